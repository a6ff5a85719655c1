"""A client of the key-value store in crates/ethernot/examples/key_value, which documents the layout of the memory.

    python key_value.py 127.0.0.1:7000 put 42 "a value"
    python key_value.py 127.0.0.1:7000 message 42 "another value"
    python key_value.py 127.0.0.1:7000 get 42
"""

import asyncio
import struct
import sys
from typing import NamedTuple, Optional

import ethernot
from ethernot import Endpoint, Options, RemoteMemory, Rights

SLOT = struct.Struct("<QQQ96sQ")
WORDS = struct.Struct("<15Q")
PROBES = 8
VALUE_MAX = 96
MASK = (1 << 64) - 1
READ, WRITTEN, ANSWER = 0, SLOT.size, 2 * SLOT.size


class Slot(NamedTuple):
    version: int  # 0: the slot is free. Odd: a writer has locked the slot.
    key: int
    length: int
    value: bytes
    checksum: int = 0

    def sum(self) -> int:
        total = 0xCBF29CE484222325
        for word in WORDS.unpack(SLOT.pack(*self)[: WORDS.size]):
            total = (total ^ word) * 0x100000001B3 & MASK
            total = (total << 23 | total >> 41) & MASK
        return total

    @property
    def is_whole(self) -> bool:
        return self.version == 0 or self.version % 2 == 0 and self.checksum == self.sum()


def made(version: int, key: int, value: bytes) -> bytes:
    if len(value) > VALUE_MAX:
        raise ValueError(f"{len(value)} bytes are more than the {VALUE_MAX} of a value")
    slot = Slot(version, key, len(value), value.ljust(VALUE_MAX, b"\0"))
    return SLOT.pack(*slot._replace(checksum=slot.sum()))


class Client:
    def __init__(self, endpoint: Endpoint, connection: ethernot.Connection) -> None:
        self.connection = connection
        self.table = RemoteMemory.from_bytes(connection.peer_data)
        self.memory = endpoint.allocate(3 * SLOT.size, Rights.LOCAL_WRITE)
        self.bytes = memoryview(self.memory)

    @classmethod
    async def connect(cls, endpoint: Endpoint, address: str) -> "Client":
        return cls(endpoint, await endpoint.connecting(address, timeout=20))

    async def get(self, key: int) -> Optional[bytes]:
        """Returns the value of a key. Reads each slot by one operation, and the server's program does nothing."""
        found = await self._find(key)
        if found is None or found[1].version == 0:
            return None
        return found[1].value[: found[1].length]

    async def put_by_swap(self, key: int, value: bytes) -> bool:
        """Puts a value; the server's program does nothing. Returns False if the table has no room for the value."""
        while True:
            found = await self._find(key)
            if found is None:
                return False
            at, seen = found
            locked = self.connection.compare_swap(self.table, at, seen.version, seen.version + 1)
            if await locked != seen.version:
                continue  # Another writer has locked the slot.
            new = made(seen.version + 2, key, value)
            self.bytes[WRITTEN : WRITTEN + SLOT.size] = new
            self.connection.write(self.memory, WRITTEN + 8, self.table, at + 8, SLOT.size - 8)
            # Write the version last. The fence delays this write until the rest of the slot is placed.
            last = Options(fence_before=True)
            await self.connection.write_bytes(new[:8], self.table, at, last)
            return True

    async def put_by_message(self, key: int, value: bytes) -> bool:
        """Asks the server to put a value. Returns False if the table has no room for the value."""
        answer = self.connection.receive(self.memory, ANSWER, 1)
        self.bytes[WRITTEN : WRITTEN + SLOT.size] = made(0, key, value)
        self.connection.send(self.memory, WRITTEN, SLOT.size)
        await answer
        return self.bytes[ANSWER] == 1

    async def _find(self, key: int) -> Optional[tuple[int, Slot]]:
        """Returns the slot of a key, or else the free slot for the key. Also returns the slot's offset in the table."""
        slots = len(self.table) // SLOT.size
        first = (key * 0x9E3779B97F4A7C15 & MASK) >> 32
        first = first * (slots - PROBES + 1) >> 32
        for at in range(first * SLOT.size, (first + PROBES) * SLOT.size, SLOT.size):
            while True:
                await self.connection.read(self.memory, READ, self.table, at, SLOT.size)
                slot = Slot(*SLOT.unpack_from(self.bytes, READ))
                if slot.is_whole:
                    break
            if slot.version == 0 or slot.key == key:
                return at, slot
        return None


async def main(address: str, what: str, key: str, value: str = "") -> None:
    with Endpoint() as endpoint:
        client = await Client.connect(endpoint, address)
        if what == "get":
            found = await client.get(int(key))
            print("none" if found is None else found.decode())
        elif what == "put":
            print(await client.put_by_swap(int(key), value.encode()))
        else:
            print(await client.put_by_message(int(key), value.encode()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
