"""Heat in a plate: each rank computes its rows of a grid, which needs the nearest row of its neighbours.

    ethernot dsm run -n 4 -- python3 heat.py

Rank 0 compares the result with that of a sequential program.
"""

import numpy

from ethernot import dsm

ROWS, COLUMNS, STEPS = 96, 160, 10


def first_values() -> numpy.ndarray:
    return numpy.add.outer(numpy.arange(ROWS) * 31.0, numpy.arange(COLUMNS) * 17.0 % 101)


def smooth(grid: numpy.ndarray, into: numpy.ndarray, first: int, end: int) -> None:
    """Computes the rows from `first` to before `end`. The border stays as it is."""
    into[first:end] = grid[first:end]
    first, end = max(first, 1), min(end, ROWS - 1)
    around = grid[first - 1 : end - 1, 1:-1] + grid[first + 1 : end + 1, 1:-1]
    around = around + grid[first:end, :-2] + grid[first:end, 2:] + grid[first:end, 1:-1]
    into[first:end, 1:-1] = around / 5


def main() -> None:
    shared = dsm.join()
    grids = [shared.array((ROWS, COLUMNS)) for _ in range(2)]
    steps = shared.array(1, "int64")
    rows = shared.part(ROWS)
    grids[0][rows] = first_values()[rows]
    shared.barrier()
    for step in range(STEPS):
        grid, into = grids[step % 2], grids[(step + 1) % 2]
        with grid.reading(slice(max(rows.start - 1, 0), rows.stop + 1)), into.writing(rows):
            smooth(grid.view, into.view, rows.start, rows.stop)
        with shared.lock(0):
            steps[0] += 1
        shared.barrier()
    if shared.rank == 0:
        expected = [first_values(), first_values()]
        for step in range(STEPS):
            smooth(expected[step % 2], expected[(step + 1) % 2], 0, ROWS)
        assert numpy.array_equal(grids[STEPS % 2].view, expected[STEPS % 2])
        assert steps[0] == STEPS * shared.size
        print(f"{STEPS} steps by {shared.size} ranks are right")


if __name__ == "__main__":
    main()
