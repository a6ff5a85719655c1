"""Finds parameters from measured latencies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, Optional

from . import _native
from ._configuration import Fabric


@dataclass(frozen=True)
class Calibration:
    """Parameters that fit."""

    fabric: Fabric
    """The LogGP model."""
    host: dict[str, int]
    """Costs of the hosts, with this or any other fabric."""
    rms_error_percent: float
    """Root of the mean square of relative differences between model and measurement."""
    worst_error_percent: float
    """The largest relative difference between model and measurement."""


def calibrate(
    sizes: Iterable[int],
    latencies_us: Iterable[float],
    *,
    interval_us: float = 0.0,
    link_rate_bps: Optional[int] = None,
    network_latency_us: Optional[float] = None,
) -> Calibration:
    """Finds parameters of the LogGP model and of hosts from one-way latencies of messages of some
    sizes, by least squares of relative differences.

    Such times do not tell what the hosts take and what the network. With the rate of the link, and
    with the latency of the network alone (switches and cables, without the time that bytes take), the
    rest is shared by both hosts equally; without them all is the network's. `interval_us` is the least
    time between two messages of a stream from one host.
    """
    found = _native.calibrate(
        [_count("sizes", size) for size in sizes],
        [float(latency) for latency in latencies_us],
        float(interval_us),
        None if link_rate_bps is None else _count("link_rate_bps", link_rate_bps),
        network_latency_us,
    )
    return Calibration(
        fabric=Fabric.loggp(**found["loggp"]),
        host=found["host"],
        rms_error_percent=found["rms_error_percent"],
        worst_error_percent=found["worst_error_percent"],
    )


def _count(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise _native.ConfigurationError(f"{name}: {value!r} is no int from 0 to 2**64 - 1")
    return number
