"""Tests of operations, messages, requests and ends that asyncio tasks await."""

import asyncio
import gc

import pytest

import ethernot
from ethernot import Endpoint, RemoteMemory, Rights


def run(task):
    return asyncio.run(asyncio.wait_for(task, 30))


# Run the tests with and without spinning before other tasks run.
@pytest.mark.parametrize("spin", [0, 1e-3])
def test_many_tasks_share_a_connection(spin):
    async def main():
        server, client = Endpoint("127.0.0.1:0"), Endpoint("127.0.0.1:0", spin=spin)
        target = server.allocate(4096, Rights.REMOTE_ATOMIC | Rights.REMOTE_READ)
        listener = server.listen()

        async def accept():
            return await (await listener.accepting()).accepting(bytes(target.remote))

        accepting = asyncio.create_task(accept())
        connection = await client.connecting(server.addresses()[0], timeout=20)
        await accepting
        remote = RemoteMemory.from_bytes(connection.peer_data)
        local = client.allocate(4096, Rights.LOCAL_WRITE)

        async def work(number):
            for _ in range(20):
                await connection.fetch_add(remote, 8 * number, 1)
                await connection.read(local, 8 * number, remote, 8 * number, 8)
            return local.load(8 * number)

        assert await asyncio.gather(*map(work, range(10))) == [20] * 10

    run(main())


def test_messages_are_answered_by_another_task(pair):
    async def answer():
        while True:
            receive = pair.accepted.receive(pair.target, 0, 64)
            length, _ = await receive
            await pair.accepted.send(pair.target, 0, length)

    async def main():
        answering = asyncio.create_task(answer())
        for number in range(50):
            echo = pair.connection.receive(pair.local, 0, 64)
            await pair.connection.send_bytes(f"question {number}".encode())
            length, _ = await echo
            assert bytes(memoryview(pair.local)[:length]) == f"question {number}".encode()
        answering.cancel()

    run(main())


def test_cancelling_a_task_does_not_affect_the_others(pair):
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for_message(pair), 0.05)
        await pair.connection.write_bytes(b"x", pair.remote, 0)
        assert pair.target.load(0) == ord("x")

    async def wait_for_message(pair):
        await pair.accepted.receive(pair.target, 64, 8)

    run(main())


def test_the_end_of_a_connection_is_awaited(pair):
    async def main():
        ending = asyncio.create_task(pair.accepted.ending())
        waiting = asyncio.create_task(pair.accepted.completing())
        await asyncio.sleep(0)
        pair.connection.close()
        assert "closed by the peer" in await ending
        with pytest.raises(ethernot.ClosedError):
            await waiting

    run(main())


def test_closing_an_endpoint_notifies_waiting_tasks():
    async def main():
        endpoint = Endpoint("127.0.0.1:0")
        listener = endpoint.listen()
        waiting = asyncio.create_task(listener.accepting())
        await asyncio.sleep(0.01)
        endpoint.close()
        with pytest.raises(ethernot.ClosedError):
            await waiting

    run(main())


def test_a_new_event_loop_may_use_an_existing_endpoint(pair):
    async def add():
        return await pair.connection.fetch_add(pair.remote, 0, 1)

    assert [run(add()) for _ in range(3)] == [0, 1, 2]


@pytest.fixture
def no_threads(monkeypatch):
    """Fails if asyncio uses a thread. Such a thread would run on after its task was cancelled, and delay the exit."""

    async def refuse(*_):
        raise AssertionError("a thread waits")

    monkeypatch.setattr(asyncio, "to_thread", refuse)


def test_connecting_and_accepting_can_be_cancelled(no_threads):
    server, client = Endpoint("127.0.0.1:0"), Endpoint("127.0.0.1:0")
    listener = server.listen()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.connecting(server.addresses()[0]), 0.1)
        with pytest.raises(ethernot.TimedOutError, match="0.1"):
            await client.connecting(server.addresses()[0], timeout=0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.listen(1).accepting(), 0.1)

        # The cancelled requests fail when they are accepted. The next request is served.
        connecting = asyncio.create_task(client.connecting(server.addresses()[0], private_data=b"real"))
        while True:
            request = await listener.accepting()
            if request.private_data == b"real":
                break
        accepted = await request.accepting(b"yes", timeout=20)
        assert (await connecting).peer_data == b"yes"
        assert accepted.closed is None

    run(main())


def test_an_acceptance_without_a_peer_times_out(no_threads):
    server, client = Endpoint("127.0.0.1:0"), Endpoint("127.0.0.1:0")
    listener = server.listen()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.connecting(server.addresses()[0]), 0.2)
        request = await listener.accepting()
        with pytest.raises(ethernot.EthernotError):
            await request.accepting(timeout=0.2)

    run(main())


def test_a_thread_resolves_host_names():
    server, client = Endpoint("127.0.0.1:0"), Endpoint("127.0.0.1:0")
    listener = server.listen()

    async def accept():
        return await (await listener.accepting()).accepting()

    async def main():
        accepting = asyncio.create_task(accept())
        port = server.addresses()[0].rpartition(":")[2]
        connection = await client.connecting(f"localhost:{port}", timeout=20)
        assert (await accepting).closed is None and connection.closed is None

    run(main())


def test_memory_of_a_cancelled_task_is_freed():
    async def main():
        server, client = Endpoint("127.0.0.1:0"), Endpoint("127.0.0.1:0", spin=0)
        table = server.allocate(16 << 20, Rights.REMOTE_READ)
        listener = server.listen()

        async def accept():
            return await (await listener.accepting()).accepting(bytes(table.remote))

        accepting = asyncio.create_task(accept())
        connection = await client.connecting(server.addresses()[0], timeout=20)
        accepted = await accepting
        remote = RemoteMemory.from_bytes(connection.peer_data)

        async def read_own(length):
            memory = client.allocate(length, Rights.LOCAL_WRITE)
            await connection.read(memory, 0, remote, 0, length)

        for _ in range(20):
            task = asyncio.create_task(read_own(16 << 20))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
            gc.collect()
            await read_own(64)
        assert (connection.closed, accepted.closed) == (None, None)

    run(main())
