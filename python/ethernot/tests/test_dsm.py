"""Tests of the shared memory. Ranks are processes of this host."""

import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Optional

import pytest

METHODS = ["asynchronous", "synchronous", "mprotect"]
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
LIMIT = 120

needs_numpy = pytest.mark.skipif(
    importlib.util.find_spec("numpy") is None,
    reason="NumPy is not installed; to have it: pip install numpy",
)


def free_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start(size: int, arguments: list[str], method: Optional[str] = None) -> list[subprocess.Popen]:
    """Starts the ranks of a program."""
    meet = free_address()
    ranks = []
    for rank in range(size):
        settings = dict(os.environ, ETHERNOT_DSM_RANK=str(rank), ETHERNOT_DSM_SIZE=str(size))
        settings["ETHERNOT_DSM_MEET"] = meet
        settings.update({} if method is None else {"ETHERNOT_DSM_METHOD": method})
        pipe = subprocess.PIPE
        command = [sys.executable, *arguments]
        ranks.append(subprocess.Popen(command, env=settings, stdout=pipe, stderr=pipe, text=True))
    return ranks


def finish(ranks: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Returns exit status, output and errors of each rank."""
    try:
        texts = [rank.communicate(timeout=LIMIT) for rank in ranks]
        return [(rank.returncode, *text) for rank, text in zip(ranks, texts)]
    finally:
        for rank in ranks:
            rank.kill()


def run(size: int, script: str, method: Optional[str] = None) -> list[tuple[int, str, str]]:
    program = "from ethernot import dsm\nimport sys\nshared = dsm.join()\n" + textwrap.dedent(script)
    return finish(start(size, ["-c", program], method))


def expect_success(found: list[tuple[int, str, str]], method: Optional[str] = None) -> str:
    """Returns the output of rank 0. Skips the test if the host does not have the method."""
    if any("map the shared region" in errors for _, _, errors in found):
        pytest.skip(f"{method} does not work on this host: {found[0][2].splitlines()[-1]}")
    assert all(status == 0 for status, _, _ in found), found
    return found[0][1]


@needs_numpy
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_example_is_right_with_each_method(size, method):
    printed = expect_success(finish(start(size, [str(EXAMPLES / "heat.py")], method)), method)
    assert printed == f"10 steps by {size} ranks are right\n"


@needs_numpy
def test_numpy_uses_the_memory_in_place():
    script = """
        import numpy
        grid = shared.array((4, 1000), numpy.float32)
        names = shared.array(3, [("key", "i4"), ("value", "f8")])
        assert not numpy.asarray(grid).any()
        shared.barrier()
        rows = shared.part(4)
        assert (rows.start, rows.stop) == (2 * shared.rank, 2 * shared.rank + 2)
        with grid.writing(rows) as view:
            assert view.shape == (2, 1000) and view.dtype == numpy.float32
            view[:] = shared.rank + 1
        names[shared.rank] = (7 + shared.rank, 0.5)
        shared.barrier()
        assert numpy.asarray(grid).sum() == 2000 * 1 + 2000 * 2
        assert numpy.asarray(grid).ctypes.data == grid.address
        assert names.view["key"].tolist() == [7, 8, 0]
        with grid.reading(range(2, 4)) as view:
            assert (view == 2).all() and view.base is not None
        print(shared.counters()["faults"] > 0, repr(grid).startswith("<shared Array: shape (4, 1000)"))
    """
    assert expect_success(run(2, script)) == "True True\n"


def test_views_without_numpy_are_memoryviews():
    script = """
        dsm.numpy = None
        table = shared.array((3, 5), "int64")
        table[shared.rank, 4] = -1 - shared.rank
        shared.barrier()
        view = memoryview(table)
        assert (view.shape, view.format, view.nbytes, view.readonly) == ((3, 5), "q", 120, False)
        assert (table[0, 4], table[1, 4], view[2, 4]) == (-1, -2, 0)
        with table.writing(slice(2, 3)) as row:
            row[0, 0] = 9
        assert (table[2, 0], len(table)) == (9, 3)
        bytes_ = shared.array(10, "B")
        assert bytes(bytes_) == bytes(10)
    """
    expect_success(run(2, script))


@pytest.mark.parametrize("method", METHODS)
def test_another_handler_of_faults_works_before_joining_and_is_refused_after_it(method):
    script = """
        import faulthandler
        dsm.numpy = None
        table = shared.array(2000, "int64")
        with table.writing(shared.part(2000)) as mine:
            mine[0] = 7
        shared.barrier()
        assert table[0] + table[1000] == 14
        if not faulthandler.is_enabled():
            held = table.view
            faulthandler.enable()
            for use in (lambda: table[0], lambda: table.view, lambda: shared.barrier()):
                try:
                    use()
                    print("permitted")
                except dsm.InvalidError as error:
                    assert "has set its own action for signal" in str(error), error
            faulthandler.disable()
        shared.barrier()
        print(table[1999])
    """
    program = "from ethernot import dsm\nshared = dsm.join()\n" + textwrap.dedent(script)
    for before in ([], ["-X", "faulthandler"]):
        found = finish(start(2, [*before, "-c", program], method))
        assert expect_success(found, method) == "0\n", found


def test_a_lock_orders_the_ranks():
    script = """
        dsm.numpy = None
        count = shared.array(1, int)
        for _ in range(30):
            with shared.lock(5):
                count[0] += 1
        shared.barrier()
        print(count[0], shared.rank, shared.size, repr(shared))
        shared.finalize()
        shared.finalize()
    """
    assert expect_success(run(3, script)) == "90 0 3 <Dsm: rank 0 of 3>\n"


def test_errors_name_the_remedy():
    script = """
        import ethernot
        def fails(kind, words, call):
            try:
                call()
            except kind as error:
                assert isinstance(error, ethernot.EthernotError) or kind is IndexError
                assert words in str(error), error
            else:
                raise AssertionError(words)
        lock = shared.lock(3)
        fails(ValueError, "unlock on the thread that has locked", lock.release)
        with lock:
            fails(ValueError, "holds the lock", lock.acquire)
        fails(ValueError, "numbers of locks", lambda: shared.lock(-1))
        fails(ValueError, "raise `Options::region_bytes`", lambda: shared.array(1 << 30))
        fails(ValueError, "no axis is negative", lambda: shared.array(-5))
        grid = shared.array((4, 4))
        fails(IndexError, "of 4 rows", lambda: grid.prefetch(range(2, 9)))
        fails(ValueError, "in steps of 2", lambda: grid.prefetch(slice(0, 4, 2)))
        fails(OSError, "can join once", dsm.join)
        import threading
        raised = []
        def other():
            try:
                shared.barrier()
            except ValueError as error:
                raised.append(str(error))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "more than 1 threads" in raised[0], raised
        shared.finalize()
        fails(ConnectionError, "has left", shared.barrier)
    """
    expect_success(run(1, script))


def test_wrong_options_are_refused():
    script = """
        from ethernot import dsm
        for words, options in [
            ("belong together", dict(rank=1)),
            ("rank 3 of 2 ranks", dict(rank=3, ranks=2)),
            ("use asynchronous, synchronous or mprotect", dict(method="fast")),
            ("ETHERNOT_DSM_MEET", dict(rank=0, ranks=2)),
            ("0 threads", dict(threads=0)),
            ("give a number of seconds", dict(limit=-1)),
        ]:
            try:
                dsm.join(**options)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        try:
            dsm.join(rank=0, ranks=2, meet="127.0.0.1:0", limit=0.2)
        except TimeoutError as error:
            assert "rank 1 did not come" in str(error), error
    """
    environment = {name: value for name, value in os.environ.items() if "ETHERNOT_DSM" not in name}
    program = [sys.executable, "-c", textwrap.dedent(script)]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert found.returncode == 0, found.stderr


def test_an_exception_of_a_rank_ends_the_others_with_its_rank():
    script = """
        if shared.rank == 1:
            raise RuntimeError("the data are missing")
        shared.barrier()
    """
    (first, _, errors), (second, _, trace) = run(2, script)
    assert (first, second) == (70, 1)
    assert "rank 0 ends: rank 1 (process " in errors
    assert "the data are missing" in trace


def test_a_rank_that_leaves_early_is_an_error_of_the_others():
    script = """
        if shared.rank == 1:
            sys.exit(0)
        shared.barrier()
    """
    found = run(2, script)
    assert found[0][0] == 70, found
    assert "all ranks must make the same allocations and barriers" in found[0][2] + found[1][2]


@pytest.mark.parametrize("wait", ["shared.barrier()", "shared.lock(1).acquire()"])
def test_ctrl_c_in_a_wait_ends_the_program(wait):
    script = f"""
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if shared.rank == 1:
            shared.lock(1).acquire()
            print("ready", flush=True)
            time.sleep(100)
        time.sleep(0.3)
        print("ready", flush=True)
        {wait}
    """
    program = "from ethernot import dsm\nshared = dsm.join()\n" + textwrap.dedent(script)
    ranks = start(2, ["-c", program])
    for rank in ranks:
        assert rank.stdout.readline() == "ready\n"
    time.sleep(0.5)
    ranks[0].send_signal(signal.SIGINT)
    (first, _, _), (second, _, errors) = finish(ranks)
    assert (first, second) == (-signal.SIGINT, 70)
    assert "rank 1 ends: rank 0 (process " in errors
