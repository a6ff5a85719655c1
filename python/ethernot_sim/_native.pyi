"""Types of the native module. Programs use the names of `ethernot_sim` instead."""

from typing import Any, Optional

class ConfigurationError(ValueError): ...
class SimulationError(RuntimeError): ...

class Stop:
    def __init__(self) -> None: ...
    def stop(self) -> None: ...

def effective(file: str, text: str, folder: str) -> str: ...
def points(
    file: str, text: str, folder: str
) -> list[tuple[str, str, str, dict[str, Any]]]: ...
def run(
    file: str,
    text: str,
    folder: str,
    stop: Optional[Stop] = None,
    is_recorded: bool = False,
) -> tuple[dict[str, Any], Optional[dict[str, Any]]]: ...
def replay(
    file: str,
    text: str,
    folder: str,
    trace_file: str,
    trace: bytes,
    is_recorded: bool = False,
) -> tuple[dict[str, Any], Optional[dict[str, Any]]]: ...
def topology(text: str) -> dict[str, Any]: ...
def calibrate(
    sizes: list[int],
    latencies_us: list[float],
    interval_us: float,
    link_rate_bps: Optional[int],
    network_latency_us: Optional[float],
) -> dict[str, Any]: ...
