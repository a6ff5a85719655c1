"""Runs many simulations: on the threads of this machine, under Dask, or as a job array of Slurm."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Optional

from . import _native
from ._configuration import Source, at_least_one, read, read_file
from ._table import Table

Map = Callable[[Callable[["Point"], "dict[str, Any]"], Sequence["Point"]], Iterable["dict[str, Any]"]]
"""A function that calls a function for each point, on any machine, and returns results in the order of the points."""


class Point(NamedTuple):
    """A point of a sweep. It contains plain values, so that programs can send it to other processes."""

    name: str
    """The settings that differ from other points, e.g. `fabric.mtu_bytes=9000`."""
    configuration: str
    """All settings, as TOML."""
    hash: str
    """Hash of the settings. The file of the result has this name."""
    settings: dict[str, Any]
    """The settings that differ from other points, e.g. `{"fabric.mtu_bytes": 9000}`."""


def points(grid: Source) -> list[Point]:
    """Returns the points of a grid: a configuration with sections `[sweep.X]`, given as a path or a text."""
    return [Point(*point) for point in _native.points(*read(grid))]


def run_point(point: Point) -> dict[str, Any]:
    """Simulates a point. The result depends only on the point, so it is the same on any machine."""
    return _native.run(point.name, point.configuration, "")[0]


def sweep(
    grid: Source,
    into: str | os.PathLike[str],
    *,
    jobs: Optional[int] = None,
    part: tuple[int, int] = (1, 1),
    executor: Optional[Executor] = None,
    map: Optional[Map] = None,
) -> Table:
    """Simulates all points of a grid that have no result in the folder `into`. Writes a file for each point.

    If a sweep was stopped, the next call simulates the rest. `ethernot sim sweep` uses the same files.
    `part=(k, n)` selects every n-th point, beginning with the k-th. `jobs` is the number of threads that simulate
    points at the same time. The default is the number of processors that this process may use. To simulate points in
    other processes, pass an `executor`, e.g. that of a Dask client or a `ProcessPoolExecutor`::

        sweep(grid, "results", executor=client.get_executor())

    This process writes the file of a point when the point is finished. A function `map` may replace the executor. Then
    this process writes each file when it gets the result from the iterator that `map` returned.

    If points fail, all other points are simulated first, and then `SimulationError` reports the failures. Control-C
    ends the sweep at once. The results of finished points are kept.

    Returns a row for each point with the settings that differ from other points, and the results.
    """
    chosen = _part(points(grid), part)
    if sum(way is not None for way in (jobs, executor, map)) > 1:
        raise _native.ConfigurationError("give one of jobs, executor and map, not more")
    if jobs is not None:
        at_least_one("jobs", jobs)
    folder = Path(into)
    open_points = [point for point in chosen if _finished(folder, point) is None]
    if open_points:
        folder.mkdir(parents=True, exist_ok=True)
        _check_writable(folder)
    if map is not None:
        for point, result in zip(open_points, map(run_point, open_points)):
            _keep(folder, point, result)
    elif executor is not None:
        _collect(folder, {executor.submit(run_point, point): point for point in open_points})
    elif open_points:
        _run_on_threads(folder, open_points, jobs or _processors())
    return _table(folder, chosen)


def results(
    grid: Source, into: str | os.PathLike[str], *, part: tuple[int, int] = (1, 1)
) -> Table:
    """Returns the table of `sweep` for the points that have a result in the folder. Runs no simulation."""
    return _table(Path(into), _part(points(grid), part))


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
    """Writes a script for `sbatch` that simulates a grid as a job array. Returns the script.

    There are at most `tasks` tasks of `cpus` processors. Each task runs the same number of points. All machines must
    have access to the file of the grid, the folder `into`, and the files that `command` needs. If the script is
    submitted again, it runs the points that have no result yet. `sbatch --array=3,7` runs only parts 3 and 7. Most
    installations of Slurm accept at most a thousand tasks. `options` are further options of `sbatch`, e.g.
    `["--partition=short"]`. `command` is the command that runs a sweep. By default it is this package. The other
    possible command is `["ethernot", "sim", "sweep"]`.
    """
    at_least_one("tasks", tasks)
    at_least_one("cpus", cpus)
    count = min(tasks, len(_native.points(*read_file(Path(grid)))))
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


def _part(all_points: list[Point], part: tuple[int, int]) -> list[Point]:
    try:
        number, of = part
        is_part = 1 <= number <= of
    except (TypeError, ValueError):
        is_part = False
    if not is_part:
        raise _native.ConfigurationError(f"part is {part!r}, but must be (k, n) with k from 1 to n")
    return all_points[number - 1 :: of]


def _processors() -> int:
    """Returns the number of processors that this process may use. In a job array, it is the task's share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_on_threads(folder: Path, open_points: Sequence[Point], jobs: int) -> None:
    stop = _native.Stop()

    def run(point: Point) -> Optional[dict[str, Any]]:
        if _finished(folder, point) is not None:
            # Another process has finished the point after this sweep began.
            return None
        return _native.run(point.name, point.configuration, "", stop)[0]

    with ThreadPoolExecutor(jobs) as threads:

        def halt() -> None:
            stop.stop()
            threads.shutdown()

        _collect(folder, {threads.submit(run, point): point for point in open_points}, halt)


def _collect(
    folder: Path, futures: dict[Future[Any], Point], halt: Callable[[], None] = lambda: None
) -> None:
    """Writes each result when it arrives. `halt` ends the running simulations."""
    kept: set[Future[Any]] = set()
    failures: list[tuple[Point, Exception]] = []

    def keep(future: Future[Any]) -> None:
        result = future.result()
        if result is not None:
            _keep(folder, futures[future], result)
        kept.add(future)

    try:
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, Exception):
                failures.append((futures[future], error))
            else:
                keep(future)
    except OSError:
        # The results cannot be written, so further simulations are useless.
        _cancel(futures)
        halt()
        raise
    except BaseException:
        _cancel(futures)
        halt()
        for future in futures:
            is_finished = future.done() and not future.cancelled() and future.exception() is None
            if is_finished and future not in kept:
                keep(future)
        raise
    _report(failures)


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()


def _report(failures: Sequence[tuple[Point, Exception]]) -> None:
    """Raises the errors of the failed points, if there are any."""
    reported = []
    for point, error in failures:
        if not isinstance(error, (_native.SimulationError, _native.ConfigurationError)):
            # The executor failed, and not the simulation of a point.
            raise error
        reported.append(f"{point.name}: {error}")
    if not reported:
        return
    if len(reported) > FAILURES_REPORTED:
        reported[FAILURES_REPORTED:] = [f"and {len(failures) - FAILURES_REPORTED} points more"]
    raise _native.SimulationError("\n".join(reported))


def _check_writable(folder: Path) -> None:
    """Checks that results can be written. Without this check, hours of simulation could be lost."""
    probe = folder / f"probe.{_writer()}.unfinished"
    probe.touch()
    probe.unlink()


def _keep(folder: Path, point: Point, result: dict[str, Any]) -> None:
    """Writes a file atomically: it is complete or does not exist, even if the process is killed."""
    path = folder / f"{point.hash}.json"
    unfinished = folder / f"{point.hash}.{_writer()}.unfinished"
    try:
        unfinished.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # The error of `write_text` does not name the result's file, so add the name.
            why = f"{error.strerror}; the same sweep goes on where it was. Result of {point.name}"
            raise OSError(error.errno, why, str(path)) from None
        raise


def _writer() -> str:
    """Returns a name that is unique among all threads that write to the folder, on this and other machines."""
    return f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}"


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
        row: dict[str, Any] = dict(point.settings)
        for name in ("completed_us", "messages", "bytes", "packets_lost", "events"):
            row[name] = result[name]
        for name in ("min", "mean", "median", "p99", "max", "deviation"):
            row[f"latency_{name}_us"] = result["latency_us"][name]
        row["result_hash"] = result["result_hash"]
        rows.append(row)
    names = rows[0] if rows else {}
    return Table({name: [row[name] for row in rows] for name in names})


FAILURES_REPORTED = 10
"""Largest number of failures in an error text. More lines would push the lines before them off the screen."""
