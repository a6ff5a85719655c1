"""Tests of operations, messages, memory and errors in programs without an event loop."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import ethernot
from ethernot import Options, RemoteMemory, Rights


def test_written_bytes_can_be_read(pair):
    memoryview(pair.local)[:6] = b"abcdef"
    pair.connection.write(pair.local, 0, pair.remote, 100, 6).wait(20)
    assert bytes(memoryview(pair.target)[100:106]) == b"abcdef"
    pair.connection.write_bytes(b"xyz", pair.remote, 103).wait(20)
    pair.connection.read(pair.local, 1000, pair.remote, 100, 6).wait(20)
    assert bytes(memoryview(pair.local)[1000:1006]) == b"abcxyz"
    assert pair.accepted.peer_data == b"hi"


def test_atomics_return_the_previous_value(pair):
    pair.target.store(8, 40)
    assert pair.connection.fetch_add(pair.remote, 8, 2).wait(20) == 40
    assert pair.connection.compare_swap(pair.remote, 8, 41, 1).wait(20) == 42
    assert pair.connection.compare_swap(pair.remote, 8, 42, 2**64 - 1).wait(20) == 42
    assert pair.target.load(8) == 2**64 - 1


def test_messages_arrive_in_their_posted_receives(pair):
    first = pair.accepted.receive(pair.target, 0, 64)
    second = pair.accepted.receive(pair.target, 64, 64)
    pair.connection.send_bytes(b"first").wait(20)
    pair.connection.send_bytes(b"second", Options(immediate=9)).wait(20)
    assert second.wait(20) == (6, 9)
    assert first.wait(20) == (5, None)
    assert bytes(memoryview(pair.target)[:5]) == b"first"


def test_the_peer_is_notified_of_a_write(pair):
    options = Options(notify=True, immediate=7, signalled=True, context=3)
    pair.connection.write_bytes(b"note", pair.remote, 16, options)
    note = pair.accepted.wait_completion(20)
    assert (note.kind, note.immediate, note.bytes) == ("notification", 7, 4)
    done = pair.connection.wait_completion(20)
    assert (done.kind, done.context) == ("write", 3)
    done.check()


def test_memory_outlives_its_views_and_its_registration(pair):
    view = memoryview(pair.local)
    assert (view.nbytes, view.readonly, view.format) == (4096, False, "B")
    view[0] = 5
    pair.local.release()
    pair.local.release()
    with pytest.raises(ethernot.ClosedError):
        pair.local.remote
    with pytest.raises(ethernot.ClosedError):
        pair.connection.read(pair.local, 0, pair.remote, 0, 8)
    del pair.local
    gc.collect()
    assert view[0] == 5, "the view holds it"


def test_a_region_of_another_endpoint_is_refused(pair):
    with pytest.raises(ethernot.InvalidError):
        pair.connection.read(pair.target, 0, pair.remote, 0, 8)


def test_errors_belong_to_this_package_and_to_python_types(pair):
    with pytest.raises(TimeoutError) as timed_out:
        pair.accepted.receive(pair.target, 0, 8).wait(0.01)
    assert isinstance(timed_out.value, ethernot.EthernotError)
    with pytest.raises(ValueError, match="exceed the remote region"):
        pair.connection.write(pair.local, 0, pair.remote, 4090, 100)
    with pytest.raises(ethernot.InvalidError, match="64"):
        pair.connection.send_bytes(b"x" * 65)
    with pytest.raises(ethernot.OperationError, match="no region has this key"):
        wrong = RemoteMemory(pair.remote.key ^ 1, pair.remote.address, 8)
        pair.connection.write_bytes(b"x", wrong, 0).wait(20)
    for wrong in (lambda: pair.target.load(4), lambda: pair.target.store(4096, 1)):
        with pytest.raises(ethernot.InvalidError):
            wrong()
    with pytest.raises(ethernot.InvalidError):
        pair.client.allocate(8, 1 << 7)
    with pytest.raises(ethernot.InvalidError):
        ethernot.Endpoint("127.0.0.1:0", waiting="wildly")
    with pytest.raises(ethernot.InvalidError):
        RemoteMemory.from_bytes(b"short")


def test_a_closed_connection_reports_its_end(pair):
    pair.connection.close(b"bye")
    assert "closed by the peer" in pair.accepted.wait_closed(20)
    with pytest.raises(ConnectionError, match="closed by the peer"):
        pair.accepted.send_bytes(b"x")
    with pytest.raises(ethernot.ClosedError):
        pair.accepted.wait_completion(20)


def test_errors_distinguish_refused_from_in_use(pair):
    with pytest.raises(ethernot.RefusedError):
        pair.client.connect(pair.server.addresses()[0], service=99, timeout=20)
    listener = pair.server.listen(6)
    with pytest.raises(ethernot.InUseError, match="6"):
        pair.server.listen(6)
    listener.close()
    with pytest.raises(ethernot.TimedOutError):
        pair.server.listen(6).accept(0)


def test_a_closed_endpoint_raises_and_its_objects_stay_valid(pair):
    pair.client.close()
    pair.client.close()
    assert pair.client.closed
    with pytest.raises(ethernot.ClosedError):
        pair.client.allocate(8, Rights.NONE)
    pair.connection.write_bytes(b"on", pair.remote, 0).wait(20)


def test_arrays_are_read_and_written_in_place(pair):
    array = bytearray(range(64))
    memory = pair.client.register(array, Rights.LOCAL_WRITE)
    pair.connection.write(memory, 8, pair.remote, 0, 4).wait(20)
    assert bytes(memoryview(pair.target)[:4]) == bytes([8, 9, 10, 11])
    pair.connection.read(memory, 60, pair.remote, 0, 4).wait(20)
    assert array[60:] == bytes([8, 9, 10, 11])
    with pytest.raises(BufferError):
        array.append(1)
    memory.release()
    del memory
    _until(lambda: _grows(array))


def test_numpy_arrays_of_any_type_are_registered(pair):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1024, dtype=numpy.float64).reshape(32, 32)
    memory = pair.client.register(array, Rights.LOCAL_WRITE)
    assert len(memory) == array.nbytes
    pair.connection.write(memory, 0, pair.remote, 0, 4096).wait(20)
    assert numpy.frombuffer(pair.target, dtype=numpy.float64)[511] == 511
    del array
    assert numpy.frombuffer(memory, dtype=numpy.float64)[1023] == 1023
    with pytest.raises((BufferError, ValueError)):
        pair.client.register(numpy.arange(8)[::2], Rights.NONE)


def test_immutable_buffers_are_registered_read_only(pair):
    memory = pair.client.register(b"0123456789abcdef", Rights.REMOTE_READ)
    pair.connection.write(memory, 10, pair.remote, 0, 6).wait(20)
    assert bytes(memoryview(pair.target)[:6]) == b"abcdef"
    assert memoryview(memory).readonly
    with pytest.raises(ethernot.InvalidError):
        memory.store(0, 1)
    with pytest.raises(BufferError):
        pair.client.register(b"0123456789abcdef", Rights.LOCAL_WRITE)
    with pytest.raises(TypeError):
        pair.client.register(5, Rights.NONE)


def _grows(array):
    try:
        array.append(1)
    except BufferError:
        return False
    return True


def _until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_threads_wait_concurrently(pair):
    done = []

    def add():
        for _ in range(100):
            pair.connection.fetch_add(pair.remote, 0, 1).wait(20)
        done.append(True)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), pair.target.load(0)) == (4, 400)


def test_ctrl_c_interrupts_a_wait(pair):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pair.accepted.wait_completion(60)


def test_ctrl_c_interrupts_connecting_and_accepting(pair):
    listener = pair.server.listen(6)
    address = pair.server.addresses()[0]
    for wait in (
        lambda: pair.client.connect(address, service=6),
        lambda: pair.server.listen(7).accept(),
        lambda: asyncio.run(pair.client.connecting(address, service=6)),
    ):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
    listener.close()


SERVER = """
import ethernot
server = ethernot.Endpoint("127.0.0.1:0")
table = server.allocate(8, ethernot.Rights.REMOTE_WRITE)
listener = server.listen()
print(server.addresses()[0], flush=True)
print(listener.accept(20).accept(bytes(table.remote)).wait_closed(20))
"""


def test_a_shutdown_waits_for_operations():
    client = ethernot.Endpoint("127.0.0.1:0")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, cwd="/"
    ) as server:
        assert server.stdout is not None
        connection = client.connect(server.stdout.readline().strip(), timeout=20)
        remote = RemoteMemory.from_bytes(connection.peer_data)
        os.kill(server.pid, signal.SIGSTOP)
        write = connection.write_bytes(b"x", remote, 0)
        threading.Timer(0.3, os.kill, (server.pid, signal.SIGCONT)).start()
        client.shutdown()
        assert write.wait(0) == 0


def test_a_forked_child_gets_an_error(pair):
    pid = os.fork()
    if pid == 0:
        try:
            pair.connection.send_bytes(b"x")
        except ethernot.ForkedError:
            os._exit(7)
        except BaseException:
            pass
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
