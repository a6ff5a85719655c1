"""Fixtures for all tests."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import ethernot

# Background processes of a script ignore SIGINT, and their children inherit this. Tests need SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

EVERYTHING = (
    ethernot.Rights.LOCAL_WRITE
    | ethernot.Rights.REMOTE_READ
    | ethernot.Rights.REMOTE_WRITE
    | ethernot.Rights.REMOTE_ATOMIC
)


class Pair:
    """Two connected endpoints of this process, with 4 KiB of memory each."""

    def __init__(self) -> None:
        self.server, self.client = (ethernot.Endpoint("127.0.0.1:0") for _ in range(2))
        self.target = self.server.allocate(4096, EVERYTHING)
        self.local = self.client.allocate(4096, EVERYTHING)
        listener = self.server.listen(5)
        accepted = []

        def accept() -> None:
            accepted.append(listener.accept(20).accept(bytes(self.target.remote)))

        accepting = threading.Thread(target=accept)
        accepting.start()
        address = self.server.addresses()[0]
        self.connection = self.client.connect(address, service=5, private_data=b"hi", timeout=20)
        accepting.join()
        listener.close()
        self.accepted = accepted[0]
        self.remote = ethernot.RemoteMemory.from_bytes(self.connection.peer_data)


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a key-value store in Rust."""
    program = os.environ.get("ETHERNOT_KEY_VALUE")
    if program is None:
        pytest.skip("ETHERNOT_KEY_VALUE does not name the example `key_value` of the crate `ethernot`")
    with subprocess.Popen(
        [program, "serve", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.strip().removeprefix("serving on [").rstrip("]").split(",")[0]
        process.kill()
