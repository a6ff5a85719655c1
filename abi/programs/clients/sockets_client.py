"""Fetches files by HTTP over one connection: sockets_client.py ADDRESS PORT FOLDER NAME..."""

import http.client
import os
import sys

address, port, folder, *names = sys.argv[1:]
connection = http.client.HTTPConnection(address, int(port))
for name in names:
    connection.request("GET", "/" + name)
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{name}: {response.status}")
    with open(os.path.join(folder, name), "wb") as file:
        file.write(response.read())
connection.close()
