"""One simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

from . import _native
from ._configuration import Fabric, Settings, Source, Topology, is_path, read, to_toml
from ._table import Table


_PORT = (
    "name",
    "lost",
    "marked",
    "pauses",
    "paused_us",
    "queue_bytes_max",
    "headroom_bytes_max",
)


@dataclass(frozen=True)
class Saturation:
    """Whether a load is more than what hosts and links carry."""

    is_saturated: bool
    messages_under_way: Optional[tuple[float, float]]
    """Early and late means, if they kept growing."""
    links: Table
    """Those whose queues kept growing: `link`, `early_wait_us`, `late_wait_us`, `busy_share`."""


@dataclass(frozen=True)
class CriticalPath:
    """The steps that the end of a run came from, without a gap from its start."""

    completed_us: float
    messages: int
    """How many are on it, one after another."""
    causes_us: dict[str, float]
    """Time by cause, longest first; the sum is `completed_us`."""
    links: Table
    """Time by `link`, longest waits first: `us` in all, `wait_us` of them waits."""
    steps: Table
    """Each step: `cause`, `from_us`, `until_us`, and the `link`, or an empty text."""


@dataclass(frozen=True)
class Result:
    """The results of a simulation."""

    manifest: dict[str, Any]
    """All of it, as `ethernot sim run --manifest` writes it and `ethernot sim verify` reads it."""
    records: Optional[dict[str, Any]] = field(default=None, repr=False)
    """What was recorded besides, if anything."""

    @property
    def completed_us(self) -> float:
        """Returns when the last rank did its last thing, in us."""
        return float(self.manifest["completed_us"])

    @property
    def latency_us(self) -> dict[str, float]:
        """Returns times from posting a message to its last byte at the destination: `min`, `mean`, `median`, `p99`,
        `max` and `deviation`, in us."""
        return dict(self.manifest["latency_us"])

    @property
    def messages(self) -> int:
        """Returns the number of messages delivered."""
        return int(self.manifest["messages"])

    @property
    def bytes(self) -> int:
        """Returns the payload delivered, in bytes."""
        return int(self.manifest["bytes"])

    @property
    def packets_lost(self) -> int:
        """Returns the number of packets lost for want of room."""
        return int(self.manifest["packets_lost"])

    @property
    def hash(self) -> str:
        """Returns a hash of all deliveries: equal if and only if nothing is different."""
        return str(self.manifest["result_hash"])

    @property
    def workloads(self) -> list[dict[str, Any]]:
        """Returns the results of each of several workloads: `name`, `start_us`, `class`, `messages`, `bytes`,
        `completed_us` (of its last message) and `latency_us`, as of the run. Empty of one workload."""
        return list(self.manifest.get("workloads", []))

    @property
    def finished_us(self) -> list[float]:
        """Returns when each rank of a trace had done its last thing, in us; only with `goal`."""
        if "finished_us" not in self.manifest:
            raise _native.ConfigurationError("only a run of a trace (goal=...) has finished_us")
        return list(self.manifest["finished_us"])

    @property
    def ports(self) -> Table:
        """Returns the ports where something was lost, marked or paused: `name`, `lost`, `marked`, `pauses`,
        `paused_us`, `queue_bytes_max`, `headroom_bytes_max`."""
        ports = self.manifest["ports"]
        return Table({name: [port[name] for port in ports] for name in _PORT})

    @property
    def transport(self) -> Optional[dict[str, float]]:
        """Returns what the transport of model hosts counted, if they have one: `connections`, `goodput_bps`,
        `throughput_bps`, `data_frames`, `payload_bytes`, `retransmitted_frames`, `timeouts`,
        `acknowledgements`, `marked_percent`, `frames_lost_at_random`, `duplicate_frames`,
        `discarded_frames`, `window_frames`, `round_trip_us` (means), `round_trip_max_us`; with DCQCN
        `notifications` and `rate_bps` (mean), with Homa `grants` and `resends`."""
        counts = self.manifest.get("transport")
        return None if counts is None else dict(counts)

    @property
    def links(self) -> Table:
        """Returns a row for each direction of a cable: `link`, `rate_bps`, `packets`, `bytes`, `busy_share`,
        `wait_mean_us`, `wait_max_us`, `wait_max_at_us`. Needs `record=True`."""
        return Table(self._recorded("links"))

    @property
    def queues(self) -> Table:
        """Returns the longest wait before each `link` in windows of time: `from_us`, `wait_max_us`,
        `busy_share`. Needs `record=True`."""
        return Table(self._recorded("queues"))

    @property
    def saturation(self) -> Saturation:
        """Whether more was asked for than hosts and links carry. Needs `record=True`."""
        found = self._recorded("saturation")
        return Saturation(
            bool(found["is_saturated"]), found["messages_under_way"], Table(found["links"])
        )

    @property
    def slowdown(self) -> dict[str, float]:
        """Returns times of messages over those that they would take alone on the empty network: `min`, `mean`,
        `median`, `p95`, `p99`, `p99_9`, `max`, and how many `messages`. Needs `record=True`."""
        return dict(self._recorded("slowdown"))

    @property
    def critical_path(self) -> CriticalPath:
        """Returns what the completion time came from. Needs `record=True`."""
        path = self._recorded("critical_path")
        if "error" in path:
            raise _native.SimulationError(path["error"])
        return CriticalPath(
            float(path["completed_us"]),
            int(path["messages"]),
            dict(path["causes_us"]),
            Table(path["links"]),
            Table(path["steps"]),
        )

    def _recorded(self, name: str) -> Any:
        if self.records is None:
            raise _native.ConfigurationError(f"{name} was not recorded: run(..., record=True) does")
        return self.records[name]

    def histogram(self) -> Table:
        """Returns latencies by class: the largest of each class, within 3 %, and how many `messages`."""
        return Table(self.manifest["histogram"])


def run(
    configuration: Optional[Source] = None,
    *,
    topology: Optional[Union[Topology, Settings]] = None,
    fabric: Optional[Union[Fabric, Settings]] = None,
    workload: Optional[Union[Settings, Sequence[Settings]]] = None,
    routing: Optional[Settings] = None,
    host: Optional[Settings] = None,
    seed: Optional[int] = None,
    goal: Optional[Union[str, bytes, "PathLike[str]"]] = None,
    record: bool = False,
) -> Result:
    """Simulates a configuration: a path, a text in TOML, or its parts.

    With `record`, the result has links, queues, saturation, slowdown and the critical path, too, which
    takes memory (at most 400 MB) and time.

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
        return Result(*_native.run(file, text, folder, None, record))
    name = "trace"
    if isinstance(goal, str) and ("{" in goal or not is_path(goal)):
        goal = goal.encode()
    elif not isinstance(goal, bytes):
        name = str(goal)
        goal = Path(goal).read_bytes()
    return Result(*_native.replay(file, text, folder, name, goal, record))
