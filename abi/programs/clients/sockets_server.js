// Serves files by HTTP: sockets_server.js ADDRESS PORT FOLDER
const fs = require("fs");
const http = require("http");
const path = require("path");

const [address, port, folder] = process.argv.slice(2);
http.createServer((request, response) => {
  const file = path.join(folder, path.basename(request.url));
  response.setHeader("Content-Length", fs.statSync(file).size);
  fs.createReadStream(file).pipe(response);
}).listen(Number(port), address);
