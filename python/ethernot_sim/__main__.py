"""Simulates a sweep or a part of a sweep, for example in a task of a job array: `python -m ethernot_sim sweep`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import ConfigurationError, SimulationError, sweep


def main() -> int:
    """Runs the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ethernot_sim", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sweep", help="simulate all combinations of some settings")
    command.add_argument("grid", type=Path, help="configuration with its sweep, a TOML file")
    command.add_argument("--into", type=Path, required=True, help="folder of the results")
    command.add_argument("--jobs", type=int, help="points to run at a time (default: one for each processor)")
    command.add_argument("--part", type=_part, default=(1, 1), help="K/N: only every N-th point, from the K-th (default: all)")
    arguments = parser.parse_args()
    try:
        table = sweep(arguments.grid, arguments.into, jobs=arguments.jobs, part=arguments.part)
    except (ConfigurationError, SimulationError, OSError) as error:
        print(f"ethernot_sim: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"ethernot_sim: stopped; results so far are in {arguments.into}, and the same command "
            "goes on",
            file=sys.stderr,
        )
        return INTERRUPTED
    print(f"{len(table)} results in {arguments.into}")
    return 0


def _part(text: str) -> tuple[int, int]:
    try:
        number, of = (int(word) for word in text.split("/"))
        if 1 <= number <= of:
            return number, of
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, as in 3/16")


INTERRUPTED = 130
"""Exit status of an interrupted program: 128 + SIGINT, as in shells."""


if __name__ == "__main__":
    sys.exit(main())
