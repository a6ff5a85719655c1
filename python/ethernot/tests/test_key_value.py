"""Tests of the key-value store with a client in Python and a server in Rust."""

import asyncio

import key_value
from ethernot import Endpoint


def test_a_client_in_python_gets_and_puts_at_a_server_in_rust(server):
    async def main():
        with Endpoint("127.0.0.1:0") as endpoint:
            client = await key_value.Client.connect(endpoint, server)
            assert await client.get(42) is None
            assert await client.put_by_swap(42, b"a value")
            assert await client.get(42) == b"a value"
            assert await client.put_by_message(42, b"another value")
            assert await client.get(42) == b"another value"
            for key in range(100, 140):
                assert await client.put_by_swap(key, bytes([key]) * 96)
            for key in range(100, 140):
                assert await client.get(key) == bytes([key]) * 96

    asyncio.run(asyncio.wait_for(main(), 60))
