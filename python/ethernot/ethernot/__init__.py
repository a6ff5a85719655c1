"""Remote direct memory access over ordinary Ethernet, in user space.

    >>> import ethernot, threading
    >>> server, client = ethernot.Endpoint("127.0.0.1:0"), ethernot.Endpoint("127.0.0.1:0")
    >>> table = server.allocate(4096, ethernot.Rights.REMOTE_READ)
    >>> memoryview(table)[:5] = b"hello"
    >>> listener = server.listen()
    >>> accepting = threading.Thread(target=lambda: listener.accept().accept(bytes(table.remote)))
    >>> accepting.start()
    >>> connection = client.connect(server.addresses()[0])
    >>> remote = ethernot.RemoteMemory.from_bytes(connection.peer_data)
    >>> local = client.allocate(4096, ethernot.Rights.LOCAL_WRITE)
    >>> connection.read(local, 0, remote, 0, 5).wait()
    0
    >>> bytes(memoryview(local)[:5])
    b'hello'
    >>> accepting.join()

Times are in seconds. A `timeout` of None means no limit, except for connecting, where it means 30 s.
Programs of asyncio await operations and receives. For other waits they await `Endpoint.connecting`,
`Listener.accepting`, `Request.accepting` and `Connection.ending`.
"""

from ._asyncio import Connection, Endpoint, Listener, Operation, Options, Receive, Request, Rights
from ._native import (
    BusyError,
    ClosedError,
    Completion,
    EthernotError,
    ForkedError,
    InUseError,
    InvalidError,
    Memory,
    OperationError,
    RefusedError,
    RemoteMemory,
    SystemRefusedError,
    TimedOutError,
    UnreachableError,
)

__all__ = [
    "BusyError",
    "ClosedError",
    "Completion",
    "Connection",
    "Endpoint",
    "EthernotError",
    "ForkedError",
    "InUseError",
    "InvalidError",
    "Listener",
    "Memory",
    "Operation",
    "OperationError",
    "Options",
    "Receive",
    "RefusedError",
    "RemoteMemory",
    "Request",
    "Rights",
    "SystemRefusedError",
    "TimedOutError",
    "UnreachableError",
]
