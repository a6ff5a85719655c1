// Fetches files by HTTP over one connection: sockets_client.js ADDRESS PORT FOLDER NAME...
const fs = require("fs");
const http = require("http");
const path = require("path");

const [host, port, folder, ...names] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function fetched(name) {
  return new Promise((resolve, reject) => {
    http.get({ host, port, agent, path: "/" + name }, (response) => {
      if (response.statusCode !== 200) return reject(new Error(`${name}: ${response.statusCode}`));
      const file = fs.createWriteStream(path.join(folder, name));
      response.pipe(file).on("finish", resolve).on("error", reject);
      response.on("error", reject);
    }).on("error", reject);
  });
}

(async () => {
  for (const name of names) await fetched(name);
  agent.destroy();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
