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
    """Parameters that fit the measured latencies."""

    fabric: Fabric
    """The fabric: the LogGP model with the fitted parameters."""
    host: dict[str, int]
    """Costs of the hosts. They may be used with any fabric."""
    rms_error_percent: float
    """Root mean square of the relative differences between model and measurement, in percent."""
    worst_error_percent: float
    """Largest relative difference between model and measurement, in percent."""


def calibrate(
    sizes: Iterable[int],
    latencies_us: Iterable[float],
    *,
    interval_us: float = 0.0,
    link_rate_bps: Optional[int] = None,
    network_latency_us: Optional[float] = None,
) -> Calibration:
    """Finds the parameters of the LogGP model and of hosts that best fit measured one-way latencies of messages of some
    sizes. Minimises the sum of squared relative differences.

    Latencies alone do not show which part of the time hosts take and which part the network takes. By default, all time
    counts for the network. If `link_rate_bps` and `network_latency_us` are given, the rest of the time is divided
    equally between both hosts. `network_latency_us` is the latency of switches and cables, without the time in which
    bytes are sent. `interval_us` is the shortest time between two messages of a stream from one host.
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
