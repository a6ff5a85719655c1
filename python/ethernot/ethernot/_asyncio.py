"""The classes that programs use. They add support for asyncio to the classes of `_native`."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Optional, TypeVar, Union

from . import _native
from ._native import ClosedError, InvalidError, Memory, RemoteMemory, TimedOutError

T = TypeVar("T")

# Seconds to add to each timer, because an event loop may call a timer too early by the resolution of its clock.
_LATE = 1e-3


class Rights(enum.IntFlag):
    """Rights on registered memory. The process that registers the memory may always read and write it."""

    NONE = 0
    LOCAL_WRITE = 1
    """Reads and received messages may be stored in the memory."""
    REMOTE_READ = 2
    REMOTE_WRITE = 4
    REMOTE_ATOMIC = 8


class Options(NamedTuple):
    """Order and notification of an operation. Defaults: relaxed order; only the operation object reports the end."""

    fence_before: bool = False
    """Performs the operation only after all earlier operations of the connection."""
    fence_after: bool = False
    """Performs all later operations of the connection only after this operation."""
    strict: bool = False
    """Uses strict order, as on a reliable connection of verbs."""
    signalled: bool = False
    """Queues a completion at this end when the operation succeeds."""
    notify: bool = False
    """Queues a completion at the peer after a write."""
    immediate: Optional[int] = None
    """A 32-bit number for the peer, sent with a message or a write."""
    context: int = 0
    """A number that the completion returns."""
    more: bool = False
    """Allows the library to defer the operation: to the next operation without this flag, the next poll or wait."""


class _Reactor:
    """Wakes the tasks of one event loop that wait for one endpoint."""

    def __init__(self, endpoint: _native.Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._waiting: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self._fd: Optional[int] = None
        self._is_looking = False

    async def until(self, look: Callable[[], Optional[T]], limit: Optional[float] = None) -> T:
        """Waits until `look` returns a result. After `limit` seconds, calls `look`, which then raises the timeout."""
        found = look()
        if found is not None:
            return found
        future: asyncio.Future[T] = self._loop.create_future()
        entry = (future, look)
        self._waiting.append(entry)
        self._look_soon()
        timer = None
        if limit is not None:
            timer = self._loop.call_later(limit + _LATE, self._look_soon)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            if entry in self._waiting:
                self._waiting.remove(entry)
            if not self._waiting:
                self.rest()

    def rest(self) -> None:
        """Stops watching the file descriptor."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None

    def end(self) -> None:
        """Ends all waits, because the endpoint was closed."""
        self.rest()
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            if not future.done():
                future.set_exception(ClosedError("the endpoint was closed"))

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        still = []
        for future, look in self._waiting:
            if future.done():
                continue
            try:
                found = look()
            except BaseException as error:
                future.set_exception(error)
            else:
                if found is None:
                    still.append((future, look))
                else:
                    future.set_result(found)
        self._waiting = still
        if not still:
            return
        try:
            is_armed = self._endpoint.arm()
        except BaseException as error:
            for future, _ in still:
                future.set_exception(error)
            return
        if not is_armed:
            # An event has occurred since the last check, or there is no progress thread.
            self._endpoint.drive()
            self._look_soon()
        elif self._fd is None:
            self._fd = self._endpoint.fileno()
            self._loop.add_reader(self._fd, self._look)


class Endpoint:
    """One end of remote memory access: the links, memory and connections of a process.

    Without an address or links it uses UDP on every usable interface. `waiting` determines how long the progress
    thread spins after its last work before it sleeps: "adaptive", "sleep", "spin", or a number of seconds. `spin`
    determines how many seconds an awaited operation spins before other tasks of the event loop run. It should be
    less than the time that the event loop needs to sleep and to wake up.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        links: Optional[str] = None,
        port: int = 0,
        waiting: Union[str, float] = "adaptive",
        progress_processor: Optional[int] = None,
        spin: float = 50e-6,
    ) -> None:
        self._native = _native.Endpoint(
            address, links=links, port=port, waiting=waiting, progress_processor=progress_processor
        )
        self._spin_us = round(spin * 1e6)
        self._reactors: dict[asyncio.AbstractEventLoop, _Reactor] = {}

    def addresses(self) -> list[str]:
        """Returns, for each link, the address at which peers can reach the link by UDP."""
        return self._native.addresses()

    def allocate(self, length: int, rights: Rights = Rights.NONE) -> Memory:
        """Allocates memory, filled with zeros, and registers it."""
        return self._native.allocate(length, int(rights))

    def register(self, array: Any, rights: Rights = Rights.NONE) -> Memory:
        """Registers the bytes of an object without a copy. The object is a NumPy array, `bytearray`, `mmap` or `bytes`.

        The bytes must be contiguous (`numpy.ascontiguousarray`). If a right allows changes, they must be writable. The
        object exists, with the same size, until the memory is released and no operation uses the memory.
        """
        return self._native.register(array, int(rights))

    def listen(self, service: int = 0) -> Listener:
        """Listens for connection requests to a service. Both ends must agree on the number of the service."""
        return Listener(self, self._native.listen(service))

    def connect(
        self,
        peer: str,
        *,
        service: int = 0,
        private_data: bytes = b"",
        timeout: Optional[float] = None,
        completions: Optional[int] = None,
    ) -> Connection:
        """Connects to a peer that listens at an address such as "10.0.0.2:7000"."""
        return Connection(self, self._native.connect(peer, service, private_data, timeout, completions))

    async def connecting(
        self,
        peer: str,
        *,
        service: int = 0,
        private_data: bytes = b"",
        timeout: Optional[float] = None,
        completions: Optional[int] = None,
    ) -> Connection:
        """Connects like `connect`, while other tasks run. If `peer` is a name, another thread resolves the name."""
        start, given = self._native.start_connect, (peer, service, private_data, timeout, completions)
        if _native.is_address(peer):
            attempt = start(*given)
        else:
            attempt = await asyncio.to_thread(start, *given)
        return Connection(self, await self._reactor().until(attempt.result, attempt.left()))

    def fileno(self) -> int:
        """Returns a file descriptor for other event loops. After `arm`, it becomes readable at the next event."""
        return self._native.fileno()

    def arm(self) -> bool:
        """Arms the file descriptor for the next event. Returns False if an event has occurred since the last call."""
        return self._native.arm()

    def drain(self) -> None:
        """Makes the file descriptor unreadable again."""
        self._native.drain()

    def drive(self) -> None:
        """Makes progress, unless another thread makes progress."""
        self._native.drive()

    def shutdown(self, timeout: Optional[float] = None) -> None:
        """Waits until the operations of all connections are complete, and closes the connections."""
        self._native.shutdown(timeout)

    def close(self) -> None:
        """Closes this object. Connections and memory made from it keep the endpoint alive."""
        for reactor in self._reactors.values():
            if not reactor._loop.is_closed():
                reactor._loop.call_soon_threadsafe(reactor.end)
        self._reactors.clear()
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""
        return self._native.closed

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reactor(self) -> _Reactor:
        loop = asyncio.get_running_loop()
        reactor = self._reactors.get(loop)
        if reactor is None:
            if any(not other.is_closed() for other in self._reactors):
                raise InvalidError("the endpoint is awaited in another event loop; make one for each loop")
            self._reactors = {loop: _Reactor(self._native, loop)}
            reactor = self._reactors[loop]
        return reactor


class Operation:
    """A pending operation. To get its result, call `wait` or await the object.

    For an atomic the result is the previous value of the word; for other operations it is 0. If the object is dropped,
    the operation continues.
    """

    __slots__ = ("_endpoint", "_native")

    def __init__(self, endpoint: Endpoint, native: _native.Operation) -> None:
        self._endpoint = endpoint
        self._native = native

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until the operation is complete. May be called again after `TimedOutError`."""
        return self._native.wait(timeout)

    @property
    def is_done(self) -> bool:
        """Whether the operation is complete or has failed. Reading this does not make progress."""
        return self._native.is_done

    def __await__(self) -> Generator[Any, None, int]:
        result = self._native.result_within(self._endpoint._spin_us)
        if result is not None:
            return result
        return (yield from self._endpoint._reactor().until(self._native.result).__await__())


class Receive:
    """A posted receive. To get its result, call `wait` or await the object. The result is the length of the message in
    bytes, and the immediate that the peer sent with the message, or None."""

    __slots__ = ("_endpoint", "_native")

    def __init__(self, endpoint: Endpoint, native: _native.Receive) -> None:
        self._endpoint = endpoint
        self._native = native

    def wait(self, timeout: Optional[float] = None) -> tuple[int, Optional[int]]:
        """Waits for the message. May be called again after `TimedOutError`."""
        return self._native.wait(timeout)

    @property
    def is_done(self) -> bool:
        """Whether the message has arrived or the receive has failed. Reading this does not make progress."""
        return self._native.is_done

    def __await__(self) -> Generator[Any, None, tuple[int, Optional[int]]]:
        result = self._native.result_within(self._endpoint._spin_us)
        if result is not None:
            return result
        return (yield from self._endpoint._reactor().until(self._native.result).__await__())


class Listener:
    """Receives the requests of peers for connections to one service. Closing the listener rejects pending requests."""

    def __init__(self, endpoint: Endpoint, native: _native.Listener) -> None:
        self._endpoint = endpoint
        self._native = native

    def accept(self, timeout: Optional[float] = None) -> Request:
        """Waits for the next request."""
        return Request(self._endpoint, self._native.accept(timeout))

    async def accepting(self) -> Request:
        """Waits for the next request like `accept`, while other tasks run."""

        def look() -> Optional[_native.Request]:
            try:
                return self._native.accept(0.0)
            except TimedOutError:
                return None

        return Request(self._endpoint, await self._endpoint._reactor().until(look))

    def close(self) -> None:
        """Stops listening."""
        self._native.close()


class Request:
    """A connection request of a peer. Dropping this object rejects the request."""

    def __init__(self, endpoint: Endpoint, native: _native.Request) -> None:
        self._endpoint = endpoint
        self._native = native

    @property
    def private_data(self) -> bytes:
        """Returns the private data of the request."""
        return self._native.private_data

    def accept(
        self,
        private_data: bytes = b"",
        *,
        timeout: Optional[float] = None,
        completions: Optional[int] = None,
    ) -> Connection:
        """Accepts the request, sends up to 512 bytes to the peer, and waits until the peer has confirmed."""
        return Connection(self._endpoint, self._native.accept(private_data, timeout, completions))

    async def accepting(
        self,
        private_data: bytes = b"",
        *,
        timeout: Optional[float] = None,
        completions: Optional[int] = None,
    ) -> Connection:
        """Accepts the request like `accept`, while other tasks run."""
        attempt = self._native.start_accept(private_data, timeout, completions)
        made = await self._endpoint._reactor().until(attempt.result, attempt.left())
        return Connection(self._endpoint, made)

    def reject(self, private_data: bytes = b"") -> None:
        """Rejects the request, and sends up to 512 bytes to the peer."""
        self._native.reject(private_data)


class Connection:
    """A connection to a peer: operations on its memory, and messages."""

    def __init__(self, endpoint: Endpoint, native: _native.Connection) -> None:
        self._endpoint = endpoint
        self._native = native

    def write(
        self,
        memory: Memory,
        offset: int,
        remote: RemoteMemory,
        remote_offset: int,
        length: int,
        options: Optional[Options] = None,
    ) -> Operation:
        """Copies local bytes to the peer's memory. The local bytes must not change until the operation is complete."""
        posted = self._native.write(memory, offset, remote, remote_offset, length, options)
        return Operation(self._endpoint, posted)

    def write_bytes(
        self,
        data: bytes,
        remote: RemoteMemory,
        remote_offset: int,
        options: Optional[Options] = None,
    ) -> Operation:
        """Writes up to 64 bytes to the peer's memory. The call copies the bytes."""
        posted = self._native.write_bytes(data, remote, remote_offset, options)
        return Operation(self._endpoint, posted)

    def read(
        self,
        memory: Memory,
        offset: int,
        remote: RemoteMemory,
        remote_offset: int,
        length: int,
        options: Optional[Options] = None,
    ) -> Operation:
        """Copies bytes of the peer's memory to local memory. The local memory needs the right `LOCAL_WRITE`."""
        posted = self._native.read(memory, offset, remote, remote_offset, length, options)
        return Operation(self._endpoint, posted)

    def fetch_add(
        self,
        remote: RemoteMemory,
        remote_offset: int,
        operand: int,
        options: Optional[Options] = None,
    ) -> Operation:
        """Adds to a 64-bit word of the peer's memory, modulo 2^64. The result is the previous value of the word."""
        posted = self._native.fetch_add(remote, remote_offset, operand, options)
        return Operation(self._endpoint, posted)

    def compare_swap(
        self,
        remote: RemoteMemory,
        remote_offset: int,
        compare: int,
        swap: int,
        options: Optional[Options] = None,
    ) -> Operation:
        """Stores `swap` in a 64-bit word of the peer's memory if the word equals `compare`. The result is the word's
        previous value."""
        posted = self._native.compare_swap(remote, remote_offset, compare, swap, options)
        return Operation(self._endpoint, posted)

    def send(
        self, memory: Memory, offset: int, length: int, options: Optional[Options] = None
    ) -> Operation:
        """Sends a message. The message consumes a receive that the peer has posted or will post."""
        return Operation(self._endpoint, self._native.send(memory, offset, length, options))

    def send_bytes(self, data: bytes, options: Optional[Options] = None) -> Operation:
        """Sends a message of up to 64 bytes. The call copies the bytes."""
        return Operation(self._endpoint, self._native.send_bytes(data, options))

    def receive(self, memory: Memory, offset: int, length: int) -> Receive:
        """Posts local memory for one message. The memory needs the right `LOCAL_WRITE`."""
        return Receive(self._endpoint, self._native.receive(memory, offset, length))

    def poll(self) -> Optional[_native.Completion]:
        """Returns the oldest completion or None. Signalled operations and notifications cause completions."""
        return self._native.poll()

    def wait_completion(self, timeout: Optional[float] = None) -> _native.Completion:
        """Waits for a completion. Raises `ClosedError` if the connection has ended and its queue is empty."""
        return self._native.wait_completion(timeout)

    async def completing(self) -> _native.Completion:
        """Waits like `wait_completion`, while other tasks run."""

        def look() -> Optional[_native.Completion]:
            try:
                return self._native.wait_completion(0.0)
            except TimedOutError:
                return None

        return await self._endpoint._reactor().until(look)

    @property
    def peer_data(self) -> bytes:
        """Returns the private data of the peer's request or acceptance."""
        return self._native.peer_data

    @property
    def closed(self) -> Optional[str]:
        """Returns the reason why the connection has ended, or None."""
        return self._native.closed

    def wait_closed(self, timeout: Optional[float] = None) -> str:
        """Waits until the connection has ended. Returns the reason."""
        return self._native.wait_closed(timeout)

    async def ending(self) -> str:
        """Waits like `wait_closed`, while other tasks run."""
        return await self._endpoint._reactor().until(lambda: self._native.closed)

    def close(self, private_data: bytes = b"") -> None:
        """Closes the connection and sends up to 128 bytes to the peer. Operations that are not complete fail."""
        self._native.close(private_data)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
