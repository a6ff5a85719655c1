"""Memory that processes share, on one host or several.

Each process is a rank of the program, and all ranks run the same program:

    from ethernot import dsm

    shared = dsm.join()                                     # `ethernot dsm run -n 4 -- python3 program.py`
    grid = shared.array((1000, 1000), "float64")            # zeros, at the same address in all ranks
    rows = shared.part(1000)                                # the rows of this rank
    with grid.writing(rows) as view:                        # a NumPy array over the shared memory
        view[:] = shared.rank
    shared.barrier()
    print(grid[0, 0], grid[999, 0])                         # fetches the pages that other ranks have written

A rank sees what another rank wrote before it released a lock or entered a barrier, if the rank has acquired the lock
or left the barrier after that. The grain is a word of four bytes: ranks that write different bytes of one word without
an order between them have a race.

A system call does not fetch memory. Functions that pass an array to the system, such as `ndarray.tofile`, can therefore
fail with EFAULT: pass a copy.
"""

import atexit
import contextlib
import struct
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional, Union

from . import _native
from ._native import InvalidError

try:
    import numpy
except ImportError:  # The package works without NumPy: views are memoryviews then.
    numpy = None  # type: ignore[assignment]

__all__ = ["Array", "Dsm", "Lock", "join"]

Rows = Union[slice, range]

_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    float: "d",
    int: "q",
    bool: "?",
}


def join(
    *,
    rank: Optional[int] = None,
    ranks: Optional[int] = None,
    meet: Optional[str] = None,
    region_bytes: int = 256 << 20,
    threads: int = 1,
    method: Optional[str] = None,
    limit: float = 30.0,
) -> "Dsm":
    """Joins the other ranks; returns when all are there. A process joins once.

    What is None comes from the environment: `ETHERNOT_DSM_RANK`, `ETHERNOT_DSM_SIZE`, `ETHERNOT_DSM_MEET` and
    `ETHERNOT_DSM_METHOD`, or rank and number of ranks from PMI, Open MPI or Slurm. Without these, the process is the
    only rank. `region_bytes` and `threads` must be equal on all ranks.

    At the end of the program, the rank leaves as by `finalize`. If the program ends by an exception, all ranks end.
    """
    return Dsm(_native.DsmRank(rank, ranks, meet, region_bytes, threads, method, limit))


class Dsm:
    """This process's part in the shared memory: its rank."""

    def __init__(self, native: _native.DsmRank) -> None:
        self._native = native
        self._has_left = False
        self._has_failed = False
        self._rank, self._size = native.rank, native.size
        former = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
            self._has_failed = True
            former(kind, error, trace)

        sys.excepthook = note
        atexit.register(self._at_exit)

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def method(self) -> str:
        """How writes are found: "asynchronous", "synchronous" or "mprotect"."""
        return self._native.method

    def counters(self) -> dict[str, int]:
        """What the library has done on this rank, such as the number of pages that it has fetched."""
        return self._native.counters()

    def array(self, shape: Union[int, tuple[int, ...]], dtype: Any = "float64") -> "Array":
        """Allocates an array of zeros. All ranks make the same allocations in the same order.

        `dtype` is anything that `numpy.dtype` takes. Without NumPy, it is the name of a number type, such as
        "float64", or a character of the module `struct`.
        """
        axes = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(axis < 0 for axis in axes):
            raise InvalidError(f"an array of shape {axes}: no axis is negative")
        code, item_bytes = _element(dtype)
        count = 1
        for axis in axes:
            count *= axis
        start = self._native.alloc(count * item_bytes)
        return Array._of(self, start, axes, code, item_bytes)

    def part(self, count: int) -> slice:
        """Returns the part of `count` rows that belongs to this rank, if each rank has an equal part."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def barrier(self) -> None:
        """Waits until all threads of all ranks are here. Ctrl-C ends the program."""
        self._native.barrier()

    def lock(self, number: int) -> "Lock":
        """Returns the lock with a number. `with shared.lock(5): …` holds it."""
        return Lock(self, number)

    def finalize(self) -> None:
        """Waits until all ranks have come here, and leaves. The arrays must not be used any more."""
        if not self._has_left:
            self._has_left = True
            self._native.finalize()

    def _at_exit(self) -> None:
        if self._has_failed and not self._has_left:
            # The other ranks would wait for this rank for ever.
            self._has_left = True
            self._native.abandon()
        else:
            self.finalize()

    def __repr__(self) -> str:
        return f"<Dsm: rank {self.rank} of {self.size}>"


class Lock:
    """A lock among all ranks."""

    def __init__(self, shared: Dsm, number: int) -> None:
        if not 0 <= number < 1 << 64:
            raise InvalidError(f"lock {number}: the numbers of locks are 0 to 2**64 - 1")
        self._shared, self._number = shared, number

    def acquire(self) -> None:
        """Waits until no other thread of any rank holds the lock. Ctrl-C ends the program."""
        self._shared._native.lock(self._number)

    def release(self) -> None:
        self._shared._native.unlock(self._number)

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Array(_native.DsmArray):
    """An array in shared memory.

    `numpy.asarray(array)` and `memoryview(array)` are views of the memory itself. `array[…]` reads and writes through
    such a view.
    """

    _shared: Dsm

    @classmethod
    def _of(cls, shared: Dsm, start: int, shape: tuple[int, ...], code: str, item_bytes: int) -> "Array":
        made = cls(shared._native, start, shape, code, item_bytes)
        made._shared = shared
        return made

    @property
    def view(self) -> Any:
        """The elements as a NumPy array; without NumPy, as a memoryview.

        Raises `InvalidError` if accesses would end the program, because it has installed a handler of
        SIGSEGV or SIGBUS (such as `faulthandler`) after it joined.
        """
        self._shared._native.check_accesses()
        return memoryview(self) if numpy is None else numpy.asarray(self)

    def reading(self, rows: Rows = slice(None)) -> contextlib.AbstractContextManager[Any]:
        """Begins to fetch rows, and returns a view of them. A hint: accesses without it wait more often."""
        return self._hinted(rows)

    def writing(self, rows: Rows = slice(None)) -> contextlib.AbstractContextManager[Any]:
        """Begins to fetch rows that this rank will write, and returns a view of them. A hint, as `reading`."""
        return self._hinted(rows)

    def prefetch(self, rows: Rows = slice(None)) -> None:
        """Begins to fetch rows, and does not wait for them."""
        part = self._part(rows)
        if part.nbytes > 0:
            self._shared._native.prefetch(part.address, part.nbytes)

    @contextlib.contextmanager
    def _hinted(self, rows: Rows) -> Iterator[Any]:
        part = self._part(rows)
        if part.nbytes > 0:
            self._shared._native.prefetch(part.address, part.nbytes)
        yield part.view

    def _part(self, rows: Rows) -> "Array":
        """Returns rows of this array as an array."""
        if not self.shape:
            raise InvalidError("an array without axes has no rows")
        count = self.shape[0]
        if isinstance(rows, range):
            if rows.start < 0 or rows.stop > count:
                raise IndexError(f"rows {rows.start} to {rows.stop} of {count} rows")
            rows = slice(rows.start, rows.stop, rows.step)
        first, end, step = rows.indices(count)
        if step != 1:
            raise InvalidError(f"rows in steps of {step}; use rows that follow each other")
        row_bytes = self.nbytes // count if count else 0
        shape = (max(end - first, 0), *self.shape[1:])
        return Array._of(self._shared, self.address + first * row_bytes, shape, self.format, self.itemsize)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        return self.view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.view[key] = value

    def __repr__(self) -> str:
        return f"<shared Array: shape {self.shape}, format {self.format!r}, at {self.address:#x}>"


def _element(dtype: Any) -> tuple[str, int]:
    """Returns the format of an element, and its length in bytes."""
    if numpy is not None:
        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise InvalidError(f"elements of {kind} refer to objects of this process; use numbers")
        return memoryview(numpy.empty(0, kind)).format, kind.itemsize
    try:
        code = _FORMATS.get(dtype, dtype)
        return code, struct.calcsize(code)
    except (TypeError, struct.error):
        text = f"elements of {dtype!r}: use a name such as \"float64\", or install NumPy"
        raise InvalidError(text) from None
