"""Columns of numbers. NumPy and Arrow can use them if they are installed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Union

Column = Union["array[int]", "array[float]", "list[bool]", "list[str]"]
"""A column: numbers (an array of the standard library, whose memory NumPy can share), booleans, or texts."""


class Table:
    """Columns of equal length.

    >>> table = Table({"bytes": [64, 1500], "latency_us": [1.5, 3.0]})
    >>> len(table), table.names
    (2, ['bytes', 'latency_us'])
    >>> list(table["latency_us"])
    [1.5, 3.0]
    """

    def __init__(self, columns: dict[str, Sequence[Any]]) -> None:
        self._columns: dict[str, Column] = {name: _column(of) for name, of in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"the columns have different lengths: {sorted(lengths)}")

    @property
    def names(self) -> list[str]:
        """Returns the names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self._columns[name]

    def __len__(self) -> int:
        return next((len(column) for column in self._columns.values()), 0)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Returns an iterator over the rows."""
        for values in zip(*self._columns.values()):
            yield dict(zip(self._columns, values))

    def to_numpy(self) -> dict[str, Any]:
        """Returns each column as a NumPy array. Columns of numbers are not copied. Needs NumPy."""
        import numpy

        return {name: numpy.asarray(column) for name, column in self._columns.items()}

    def to_arrow(self) -> Any:
        """Returns the table as an Arrow table. Needs pyarrow."""
        import pyarrow

        arrays = {name: pyarrow.array(column) for name, column in self._columns.items()}
        return pyarrow.table(arrays)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self._columns)})"


def _column(values: Sequence[Any]) -> Column:
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return array("q", values)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return array("d", values)
    if all(isinstance(value, bool) for value in values):
        return list(values)
    return [str(value) for value in values]
