"""Operations, messages, requests and ends that tasks of asyncio wait for."""

import asyncio

import pytest

import ethernot
from ethernot import Endpoint, RemoteMemory, Rights


def run(task):
    return asyncio.run(asyncio.wait_for(task, 30))


# With and without looking for the end before other tasks run.
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


def test_a_task_that_gives_up_leaves_the_others_alone(pair):
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


def test_tasks_that_wait_at_an_endpoint_that_is_closed_are_told():
    async def main():
        endpoint = Endpoint("127.0.0.1:0")
        listener = endpoint.listen()
        waiting = asyncio.create_task(listener.accepting())
        await asyncio.sleep(0.01)
        endpoint.close()
        with pytest.raises(ethernot.ClosedError):
            await waiting

    run(main())


def test_the_next_event_loop_may_use_the_endpoint_of_the_last(pair):
    async def add():
        return await pair.connection.fetch_add(pair.remote, 0, 1)

    assert [run(add()) for _ in range(3)] == [0, 1, 2]
