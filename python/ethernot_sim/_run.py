"""One simulation."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

from . import _native
from ._configuration import Fabric, Settings, Source, Topology, is_path, read, to_toml
from ._table import Table


@dataclass(frozen=True)
class Result:
    """What a simulation came to."""

    manifest: dict[str, Any]
    """All of it, as `ethernot sim run --manifest` writes it and `ethernot sim verify` reads it."""

    @property
    def completed_us(self) -> float:
        """When the last rank did its last thing, in us."""
        return float(self.manifest["completed_us"])

    @property
    def latency_us(self) -> dict[str, float]:
        """From posting a message to its last byte at the destination: `min`, `mean`, `median`, `p99`,
        `max` and `deviation`, in us."""
        return dict(self.manifest["latency_us"])

    @property
    def messages(self) -> int:
        """Messages delivered."""
        return int(self.manifest["messages"])

    @property
    def bytes(self) -> int:
        """Payload delivered."""
        return int(self.manifest["bytes"])

    @property
    def packets_lost(self) -> int:
        """Packets lost for want of room."""
        return int(self.manifest["packets_lost"])

    @property
    def hash(self) -> str:
        """Hash of all deliveries: equal if and only if nothing is different."""
        return str(self.manifest["result_hash"])

    def histogram(self) -> Table:
        """Latencies by class: the largest of each class, within 3 %, and how many `messages`."""
        return Table(self.manifest["histogram"])


def run(
    configuration: Optional[Source] = None,
    *,
    topology: Optional[Topology] = None,
    fabric: Optional[Fabric] = None,
    workload: Optional[Settings] = None,
    routing: Optional[Settings] = None,
    host: Optional[Settings] = None,
    seed: Optional[int] = None,
    goal: Optional[Union[str, bytes, "PathLike[str]"]] = None,
) -> Result:
    """Simulates a configuration: a path, a text in TOML, or its parts.

    With `goal`, a trace in GOAL as text, as bytes of its binary form or as a path, this is replayed
    in the place of the workload. A run takes one thread, whatever `threads` in `[run]` says, as the
    result is the same; other threads of Python run meanwhile. Control-C ends it.
    """
    if configuration is None:
        configuration = to_toml(
            topology=topology,
            fabric=fabric,
            workload=workload,
            routing=routing,
            host=host,
            run=None if seed is None else {"seed": seed},
        )
    elif any(part is not None for part in (topology, fabric, workload, routing, host, seed)):
        raise _native.ConfigurationError("give a configuration or its parts, not both")
    file, text, folder = read(configuration)
    if goal is None:
        return Result(_native.run(file, text, folder))
    name = "trace"
    if isinstance(goal, str) and ("{" in goal or not is_path(goal)):
        goal = goal.encode()
    elif not isinstance(goal, bytes):
        name = str(goal)
        goal = Path(goal).read_bytes()
    return Result(_native.replay(file, text, folder, name, goal))
