"""Many simulations, on the threads of this machine, under Dask, or as a job array of Slurm."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Optional

from . import _native
from ._configuration import Source, read
from ._table import Table

Map = Callable[[Callable[["Point"], "dict[str, Any]"], Sequence["Point"]], Iterable["dict[str, Any]"]]
"""Calls a function for each of some points, wherever, and returns what it returns in their order."""


class Point(NamedTuple):
    """A point of a sweep; plain texts, so it can be sent to other processes."""

    name: str
    """What is particular about it, e.g. `fabric.mtu_bytes=9000`."""
    configuration: str
    """All its settings, as TOML."""
    hash: str
    """Hash of the settings, by which the file of its result is named."""


def points(grid: Source) -> list[Point]:
    """The points of a grid, which is a configuration with sections `[sweep.X]`: a path or a text."""
    return [Point(*point) for point in _native.points(*read(grid))]


def run_point(point: Point) -> dict[str, Any]:
    """Simulates a point. Depends on nothing but the point: any machine gives the same result."""
    return _native.run(point.name, point.configuration, "")


def sweep(
    grid: Source,
    into: str | os.PathLike[str],
    *,
    jobs: Optional[int] = None,
    part: tuple[int, int] = (1, 1),
    map: Optional[Map] = None,
) -> Table:
    """Simulates all points of a grid that have no result in the folder `into`, a file for each.

    A sweep that was stopped goes on where it was; `ethernot sim sweep` makes and reads the same files.
    `part=(k, n)` is every n-th point beginning with the k-th. `jobs` points run at a time, on threads.
    To run them elsewhere, give a `map`, e.g. under Dask::

        sweep(grid, "results", map=lambda run, points: client.gather(client.map(run, points)))

    Returns a row for each point with what is particular about it and its results.
    """
    number, of = part
    if not 1 <= number <= of:
        raise _native.ConfigurationError(f"part is {part}, but must be (k, n) with k from 1 to n")
    chosen = points(grid)[number - 1 :: of]
    folder = Path(into)
    folder.mkdir(parents=True, exist_ok=True)
    open_points = [point for point in chosen if _finished(folder, point) is None]
    if map is None:
        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as threads:
            waiting = [threads.submit(_run_and_keep, folder, point) for point in open_points]
            try:
                # The first error is raised when those that have begun are finished and kept.
                for future in waiting:
                    future.result()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
    else:
        for point, result in zip(open_points, map(run_point, open_points)):
            _keep(folder, point, result)
    return _table(folder, chosen)


def slurm_array(
    grid: str | os.PathLike[str],
    into: str | os.PathLike[str],
    script: str | os.PathLike[str],
    *,
    tasks: int,
    cpus: int = 1,
    time: str = "01:00:00",
    options: Sequence[str] = (),
    command: Optional[Sequence[str]] = None,
) -> str:
    """Writes a script for `sbatch` that simulates a grid as a job array, and returns it.

    Each of at most `tasks` tasks runs every so-manieth point on `cpus` processors. The folder `into`
    must be one that all machines share; tasks that failed can be submitted again. `options` are
    further options of `sbatch`, e.g. `["--partition=short"]`. `command` is what runs a sweep there:
    this package by default, or `["ethernot", "sim", "sweep"]`.
    """
    count = min(tasks, len(points(Path(grid))))
    if count < 1 or cpus < 1:
        raise _native.ConfigurationError(f"{tasks} tasks on {cpus} processors run nothing")
    command = command or [sys.executable, "-m", "ethernot_sim", "sweep"]
    words = [*command, str(Path(grid).absolute()), "--into", str(Path(into).absolute())]
    lines = [
        "#!/bin/sh",
        "#SBATCH --job-name=ethernot-sweep",
        f"#SBATCH --array=1-{count}",
        f"#SBATCH --cpus-per-task={cpus}",
        f"#SBATCH --time={time}",
        *(f"#SBATCH {option}" for option in options),
        f'exec {shlex.join(words)} --jobs {cpus} --part "$SLURM_ARRAY_TASK_ID/{count}"',
        "",
    ]
    text = "\n".join(lines)
    Path(script).write_text(text, encoding="utf-8")
    return text


def _run_and_keep(folder: Path, point: Point) -> None:
    try:
        result = run_point(point)
    except _native.SimulationError as error:
        raise _native.SimulationError(f"{point.name}: {error}") from None
    _keep(folder, point, result)


def _keep(folder: Path, point: Point, result: dict[str, Any]) -> None:
    """A file is there as a whole or not at all, whatever stops this."""
    writer = f"{os.getpid()}-{threading.get_ident()}"
    unfinished = folder / f"{point.hash}.{writer}.unfinished"
    try:
        unfinished.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(folder / f"{point.hash}.json")
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _finished(folder: Path, point: Point) -> Optional[dict[str, Any]]:
    try:
        result = json.loads((folder / f"{point.hash}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("configuration") != point.configuration:
        return None
    return result


def _table(folder: Path, chosen: Sequence[Point]) -> Table:
    rows: list[dict[str, Any]] = []
    for point in chosen:
        result = _finished(folder, point)
        if result is None:
            continue
        row: dict[str, Any] = {}
        # A text may have spaces, but the name of a key follows none.
        for setting in point.name.split():
            key, found, value = setting.partition("=")
            if found:
                row[key] = _parsed(value)
        for name in ("completed_us", "messages", "bytes", "packets_lost", "events"):
            row[name] = result[name]
        row.update({f"latency_{name}_us": of for name, of in result["latency_us"].items()})
        row["result_hash"] = result["result_hash"]
        rows.append(row)
    names = rows[0] if rows else {}
    return Table({name: [row.get(name) for row in rows] for name in names})


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
