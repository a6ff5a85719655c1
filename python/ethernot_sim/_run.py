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
    """Whether the load was more than hosts and links can carry."""

    is_saturated: bool
    messages_in_flight: Optional[tuple[float, float]]
    """Mean numbers of messages in flight early and late in the run, if the number grew during the run."""
    links: Table
    """The links whose queues grew during the run: `link`, `early_wait_us`, `late_wait_us`, `busy_share`."""

    @property
    def messages_under_way(self) -> Optional[tuple[float, float]]:
        """Returns `messages_in_flight`, whose former name this is."""
        return self.messages_in_flight


@dataclass(frozen=True)
class CriticalPath:
    """The steps that determined the completion time. They follow each other without gaps from the start of the run."""

    completed_us: float
    messages: int
    """Number of messages on the path."""
    causes_us: dict[str, float]
    """The time that each cause took, longest first. The sum is `completed_us`."""
    links: Table
    """Time by `link`, longest waits first: `us` is the total, and `wait_us` the part spent waiting."""
    steps: Table
    """A row for each step: `cause`, `from_us`, `until_us`, and `link`, which may be empty."""


@dataclass(frozen=True)
class Result:
    """The results of a simulation."""

    manifest: dict[str, Any]
    """All results. `ethernot sim run --manifest` writes the same document, and `ethernot sim verify` reads it."""
    records: Optional[dict[str, Any]] = field(default=None, repr=False)
    """The records of the run, if it was recorded."""

    @property
    def completed_us(self) -> float:
        """Returns the time at which the last rank finished, in us."""
        return float(self.manifest["completed_us"])

    @property
    def latency_us(self) -> dict[str, float]:
        """Returns statistics of the message latencies in us: `min`, `mean`, `median`, `p99`, `max` and `deviation`. A
        latency is the time from the post of a message to the arrival of its last byte."""
        return dict(self.manifest["latency_us"])

    @property
    def messages(self) -> int:
        """Returns the number of delivered messages."""
        return int(self.manifest["messages"])

    @property
    def bytes(self) -> int:
        """Returns the delivered payload, in bytes."""
        return int(self.manifest["bytes"])

    @property
    def packets_lost(self) -> int:
        """Returns the number of packets that were lost because a queue was full."""
        return int(self.manifest["packets_lost"])

    @property
    def hash(self) -> str:
        """Returns a hash of all deliveries. Two runs have the same hash only if all deliveries are the same."""
        return str(self.manifest["result_hash"])

    @property
    def workloads(self) -> list[dict[str, Any]]:
        """Returns the results of each workload, if there are several: `name`, `start_us`, `class`, `messages`, `bytes`,
        `completed_us` (of its last message) and `latency_us`. With one workload, returns an empty list."""
        return list(self.manifest.get("workloads", []))

    @property
    def finished_us(self) -> list[float]:
        """Returns the time at which each rank of a trace finished, in us. Needs `goal`."""
        if "finished_us" not in self.manifest:
            raise _native.ConfigurationError("only a run of a trace (goal=...) has finished_us")
        return list(self.manifest["finished_us"])

    @property
    def ports(self) -> Table:
        """Returns the ports at which packets were lost, marked or paused: `name`, `lost`, `marked`, `pauses`,
        `paused_us`, `queue_bytes_max`, `headroom_bytes_max`."""
        ports = self.manifest["ports"]
        return Table({name: [port[name] for port in ports] for name in _PORT})

    @property
    def transport(self) -> Optional[dict[str, float]]:
        """Returns the counters of the hosts' transport, or None if the hosts have no transport: `connections`,
        `goodput_bps`, `throughput_bps`, `data_frames`, `payload_bytes`, `retransmitted_frames`, `timeouts`,
        `acknowledgements`, `marked_percent`, `frames_lost_at_random`, `duplicate_frames`, `discarded_frames`,
        `window_frames` (mean), `round_trip_us` (mean), `round_trip_max_us`. DCQCN also has `notifications` and
        `rate_bps` (mean), and Homa has `grants` and `resends`."""
        counts = self.manifest.get("transport")
        return None if counts is None else dict(counts)

    @property
    def links(self) -> Table:
        """Returns a row for each direction of a cable: `link`, `rate_bps`, `packets`, `bytes`, `busy_share`,
        `wait_mean_us`, `wait_max_us`, `wait_max_at_us`. Needs `record=True`."""
        return Table(self._recorded("links"))

    @property
    def queues(self) -> Table:
        """Returns the longest wait for each `link` in each time window: `from_us`, `wait_max_us`, `busy_share`. Needs
        `record=True`."""
        return Table(self._recorded("queues"))

    @property
    def saturation(self) -> Saturation:
        """Returns whether the load was more than hosts and links can carry. Needs `record=True`."""
        found = self._recorded("saturation")
        return Saturation(
            bool(found["is_saturated"]), found["messages_in_flight"], Table(found["links"])
        )

    @property
    def slowdown(self) -> dict[str, float]:
        """Returns statistics of the slowdown, which is the latency of a message divided by its latency on an empty
        network: `min`, `mean`, `median`, `p95`, `p99`, `p99_9`, `max`, and the number of `messages`. Needs
        `record=True`."""
        return dict(self._recorded("slowdown"))

    @property
    def critical_path(self) -> CriticalPath:
        """Returns the causes of the completion time. Needs `record=True`."""
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
        """Returns the number of `messages` in each latency class, with the largest latency of the class, within 3 %."""
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
    """Simulates a configuration. It is given as a path, as a text in TOML, or by its parts.

    With `record`, the result also has links, queues, saturation, slowdown and the critical path. Recording takes time
    and at most 400 MB of memory.

    `goal` is a trace in GOAL: a text, the bytes of its binary form, or a path. The run then replays this trace instead
    of the workload. A run uses one thread and ignores `threads` in `[run]`, because the number of threads does not
    change the result. Other Python threads run at the same time. Control-C ends the run.
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
