"""Simulates interconnects of clusters.

    >>> from ethernot_sim import Fabric, Topology, run
    >>> result = run(
    ...     topology=Topology.fat_tree(radix=4),
    ...     fabric=Fabric.ethernet(host_rate_bps=25_000_000_000),
    ...     workload={"kind": "all_reduce", "bytes": 1_000_000, "iterations": 1},
    ... )
    >>> result.messages
    480

The names of settings and their defaults are those of the TOML files of `ethernot sim run`.
`ethernot sim keys` lists them. A run has the same result, bit for bit, on every machine.
"""

from ._calibration import Calibration, calibrate
from ._configuration import Cable, Fabric, Topology, to_toml
from ._native import ConfigurationError, SimulationError
from ._run import CriticalPath, Result, Saturation, run
from ._sweep import Point, points, results, run_point, slurm_array, sweep
from ._table import Table

__all__ = [
    "Cable",
    "Calibration",
    "ConfigurationError",
    "CriticalPath",
    "Fabric",
    "Point",
    "Result",
    "Saturation",
    "SimulationError",
    "Table",
    "Topology",
    "calibrate",
    "points",
    "results",
    "run",
    "run_point",
    "slurm_array",
    "sweep",
    "to_toml",
]
