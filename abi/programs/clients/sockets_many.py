"""Opens many connections at once and checks the answers on all of them.

Usage: sockets_many.py server ADDRESS PORT
       sockets_many.py client ADDRESS PORT CONNECTIONS ROUNDS

The server answers each message with its hash. The client prints the number of connections and the errors."""

import asyncio
import hashlib
import os
import random
import sys

SIZES = (1, 100, 5000, 60000)
CONNECTING_AT_ONCE = 100


async def serve(reader, writer):
    try:
        while True:
            count = int.from_bytes(await reader.readexactly(4), "big")
            writer.write(hashlib.sha256(await reader.readexactly(count)).digest())
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    writer.close()


async def server(host, port):
    listening = await asyncio.start_server(serve, host, port, backlog=4096)
    await listening.serve_forever()


async def client(host, port, count, rounds):
    semaphore = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def connect():
        async with semaphore:
            return await asyncio.wait_for(asyncio.open_connection(host, port), 30)

    async def use(reader, writer):
        for _ in range(rounds):
            message = random.randbytes(random.choice(SIZES))
            writer.write(len(message).to_bytes(4, "big") + message)
            answer = await asyncio.wait_for(reader.readexactly(32), 60)
            assert answer == hashlib.sha256(message).digest(), "a wrong answer"

    connections = await asyncio.gather(*[connect() for _ in range(count)], return_exceptions=True)
    made = [pair for pair in connections if isinstance(pair, tuple)]
    failed = [repr(error) for error in connections if not isinstance(error, tuple)]
    used = await asyncio.gather(*[use(*pair) for pair in made], return_exceptions=True)
    failed += [repr(error) for error in used if error is not None]
    print(f"connected {len(made)} of {count}, failed: {sorted(set(failed))[:5]}", flush=True)
    # Exits without closing the connections, because the test does not cover closing.
    os._exit(1 if failed else 0)


role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    asyncio.run(server(host, port))
else:
    asyncio.run(client(host, port, int(sys.argv[4]), int(sys.argv[5])))
