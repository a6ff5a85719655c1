"""Serves files by HTTP/1.1: sockets_server.py threads|asyncio ADDRESS PORT FOLDER"""

import asyncio
import functools
import http.server
import os
import sys


def serve_with_threads(address, port, folder):
    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def end_headers(self):
            # Announces to an HTTP/1.0 client that the connection stays open.
            if not self.close_connection and self.request_version == "HTTP/1.0":
                self.send_header("Connection", "keep-alive")
            super().end_headers()

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=folder)
    http.server.ThreadingHTTPServer((address, port), handler).serve_forever()


async def answer(folder, reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *fields = head.split("\r\n")
            _, path, version = first.split(" ")
            keep = "connection: keep-alive" in head.lower() if version == "HTTP/1.0" else "connection: close" not in head.lower()
            with open(os.path.join(folder, os.path.basename(path)), "rb") as file:
                body = file.read()
            mode = "keep-alive" if keep else "close"
            writer.write(f"{version} 200 OK\r\nContent-Length: {len(body)}\r\nConnection: {mode}\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
            if not keep:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve_with_asyncio(address, port, folder):
    server = await asyncio.start_server(functools.partial(answer, folder), address, port)
    async with server:
        await server.serve_forever()


kind, address, port, folder = sys.argv[1:]
if kind == "threads":
    serve_with_threads(address, int(port), folder)
else:
    asyncio.run(serve_with_asyncio(address, int(port), folder))
