"""Topologies, fabrics, and configurations made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from . import _native
from ._table import Table

Setting = Union[
    int,
    bool,
    str,
    Sequence[int],
    Sequence[str],
    Sequence[Sequence[Union[int, str]]],
    Sequence[Mapping[str, Any]],
]
"""A value that a configuration may have."""

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Cable:
    """A cable of `Topology.graph`: the names of its ends, and what differs from other cables."""

    a: str
    b: str
    rate_bps: Optional[Union[int, str]] = None
    """In bit/s, or with a unit: `"25 Gb/s"`; as the fabric says unless given."""
    propagation_ps: Optional[Union[int, str]] = None
    """In ps, or with a unit: `"50 ns"`."""
    buffer_bytes: Optional[Union[int, str]] = None
    """Most that waits for it at the output of a switch; 0 for no limit."""
    count: int = 1
    """Parallel cables, between switches."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the table in `cables` of `[topology]`."""
        own = {
            "rate_bps": self.rate_bps,
            "propagation_ps": self.propagation_ps,
            "buffer_bytes": self.buffer_bytes,
            "count": None if self.count == 1 else self.count,
        }
        given = {key: value for key, value in own.items() if value is not None}
        return {"ends": [self.a, self.b], **given}


@dataclass(frozen=True)
class Topology:
    """Which hosts and switches there are, and which cables join them."""

    kind: str
    settings: Settings = field(default_factory=dict)
    _facts: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_facts", _native.topology(self.to_toml()))

    @classmethod
    def star(cls, hosts: int) -> Topology:
        """Builds one switch with all hosts."""
        return cls("star", {"hosts": hosts})

    @classmethod
    def cascade(cls, switches: int, hosts: int, trunks: int = 1) -> Topology:
        """Builds a row of switches with so many hosts each, and so many cables between neighbours."""
        return cls("cascade", {"switches": switches, "hosts": hosts, "trunks": trunks})

    @classmethod
    def leaf_spine(cls, leaves: int, hosts: int, spines: int, trunks: int = 1) -> Topology:
        """Builds leaves with so many hosts each, and so many cables from each leaf to each spine."""
        return cls(
            "leaf_spine", {"leaves": leaves, "hosts": hosts, "spines": spines, "trunks": trunks}
        )

    @classmethod
    def fat_tree(cls, radix: int) -> Topology:
        """Builds the fat tree of three levels of switches with so many ports."""
        return cls("fat_tree", {"radix": radix})

    @classmethod
    def torus(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Builds a grid of switches with joined ends, so many hosts each and parallel cables."""
        return cls("torus", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def mesh(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Builds a grid of switches with open ends."""
        return cls("mesh", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def hyperx(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Builds a grid of switches each joined with all others of its lines."""
        return cls("hyperx", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def dragonfly(cls, switches: int, hosts: int, global_links: int) -> Topology:
        """Builds groups of so many switches, with hosts and cables to other groups at each."""
        return cls("dragonfly", {"switches": switches, "hosts": hosts, "global": global_links})

    @classmethod
    def graph(
        cls,
        hosts: Union[int, Sequence[str]],
        switches: Union[int, Sequence[str]],
        cables: Sequence[Union[Cable, Sequence[str]]],
    ) -> Topology:
        """Builds any graph. `hosts` and `switches` are names, or how many there are: `h0`, `h1`, ... and `s0`,
        `s1`, ... A cable is a `Cable`, or a pair of names."""
        tables = [
            (cable if isinstance(cable, Cable) else Cable(*cable)).to_dict() for cable in cables
        ]
        nodes = [
            of if isinstance(of, int) else [str(name) for name in of] for of in (hosts, switches)
        ]
        return cls("graph", {"hosts": nodes[0], "switches": nodes[1], "cables": tables})

    @classmethod
    def from_dict(cls, settings: Settings) -> Topology:
        """Builds a topology from what `to_dict` returns: the keys of `[topology]`, of which `kind` is one."""
        return cls(*_kind("topology", settings, "star"))

    def to_dict(self) -> dict[str, Setting]:
        """Returns the keys of `[topology]`, for JSON or for other programs."""
        return {"kind": self.kind, **self.settings}

    def to_toml(self) -> str:
        """Returns the section `[topology]`."""
        return _section("topology", {"kind": self.kind, **self.settings})

    @property
    def name(self) -> str:
        """Returns its name, sizes included."""
        return str(self._facts["name"])

    @property
    def hosts(self) -> int:
        """Returns the number of hosts; they are the nodes from 0."""
        return int(self._facts["hosts"])

    @property
    def switches(self) -> int:
        """Returns the number of switches; they are the nodes after the hosts."""
        return int(self._facts["switches"])

    @property
    def names(self) -> list[str]:
        """Returns the name of each node."""
        return list(self._facts["names"])

    @property
    def links(self) -> Table:
        """Returns each direction of each cable: the nodes `from` and `to`, whether it is a `trunk` between
        switches (1 or 0), and its `lane` among parallel ones."""
        return Table({name: self._facts[name] for name in ("from", "to", "trunk", "lane")})

    def svg(self) -> str:
        """Returns a drawing, as SVG."""
        return str(self._facts["svg"])


@dataclass(frozen=True)
class Fabric:
    """What carries messages. Settings that are not given have their defaults."""

    kind: str
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What is wrong is told here, not when it is run.
        _native.effective("fabric", self.to_toml(), "")

    @classmethod
    def ethernet(cls, **settings: Setting) -> Fabric:
        """Makes Ethernet switches: `host_rate_bps`, `mtu_bytes`, `latency_ps`, `choice` and others."""
        return cls("ethernet", settings)

    @classmethod
    def wormhole(cls, **settings: Setting) -> Fabric:
        """Makes worms with source routes, as in Myrinet: `character_ps`, `storage_characters`, ..."""
        return cls("wormhole", settings)

    @classmethod
    def flit(cls, **settings: Setting) -> Fabric:
        """Makes flits with credits and virtual channels: `flit_ps`, `channels`, `buffer_flits`, ..."""
        return cls("flit", settings)

    @classmethod
    def fluid(cls, **settings: Setting) -> Fabric:
        """Makes messages that share links max-min fairly: `host_rate_bps`, `link_latency_ps`, ..."""
        return cls("fluid", settings)

    @classmethod
    def loggp(cls, **settings: Setting) -> Fabric:
        """Makes no network, only costs: `latency_ps`, `gap_ps`, `byte_ps`."""
        return cls("loggp", settings)

    @classmethod
    def from_dict(cls, settings: Settings) -> Fabric:
        """Makes a fabric from the keys of `[fabric]`, of which `kind` is one."""
        return cls(*_kind("fabric", settings, "ethernet"))

    def to_dict(self) -> dict[str, Setting]:
        """Returns the keys of `[fabric]`."""
        return {"kind": self.kind, **self.settings}

    def to_toml(self) -> str:
        """Returns the section `[fabric]`."""
        return _section("fabric", {"kind": self.kind, **self.settings})


def to_toml(
    *,
    topology: Optional[Union[Topology, Settings]] = None,
    fabric: Optional[Union[Fabric, Settings]] = None,
    workload: Optional[Union[Settings, Sequence[Settings]]] = None,
    routing: Optional[Settings] = None,
    host: Optional[Settings] = None,
    run: Optional[Settings] = None,
    sweep: Optional[Mapping[str, Mapping[str, Sequence[Setting]]]] = None,
) -> str:
    """Returns a configuration as TOML; with `sweep`, as in `{"workload": {"bytes": [64, 1500]}}`, that of all
    combinations. A list as `workload` is several that run together."""
    if isinstance(topology, Mapping):
        topology = Topology.from_dict(topology)
    if isinstance(fabric, Mapping):
        fabric = Fabric.from_dict(fabric)
    _expect("topology", topology, Topology)
    _expect("fabric", fabric, Fabric)
    parts = [part.to_toml() for part in (topology, fabric) if part is not None]
    if isinstance(workload, (list, tuple)):
        parts += [_section("workload", of, is_listed=True) for of in workload]
        workload = None
    sections = {"workload": workload, "routing": routing, "host": host, "run": run}
    parts += [_section(name, of) for name, of in sections.items() if of is not None]
    parts += [_section(f"sweep.{name}", of) for name, of in (sweep or {}).items()]
    return "\n".join(parts)


Source = Union[str, "os.PathLike[str]"]
"""A configuration: the path of a file, or a text in TOML. A `str` of one line without `=` is a path."""


def read(source: Source) -> tuple[str, str, str]:
    """Returns name, text and folder of a configuration."""
    if isinstance(source, str) and not is_path(source):
        return "configuration", source, ""
    return read_file(Path(source))


def read_file(path: Path) -> tuple[str, str, str]:
    """Returns name, text and folder of a file."""
    try:
        return str(path), path.read_text(encoding="utf-8"), str(path.parent)
    except UnicodeDecodeError as error:
        raise _native.ConfigurationError(f"{path} is no text: {error}") from None


def is_path(text: str) -> bool:
    """Whether a text is a path: one line that sets nothing and begins no section."""
    text = text.strip()
    return bool(text) and not text.startswith(("[", "#")) and not set(text) & set("\n=")


def at_least_one(name: str, value: int) -> None:
    """Makes sure that a number of things is one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _native.ConfigurationError(f"{name} is {value!r}, but must be an int from 1")


def _expect(name: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        found = type(value).__name__
        raise _native.ConfigurationError(f"{name} is of type {found}, but must be a {kind.__name__}")


def _kind(name: str, settings: Settings, default: str) -> tuple[str, Settings]:
    if not isinstance(settings, Mapping):
        raise _native.ConfigurationError(f"{name} is {settings!r}, but must be a dict of settings")
    others = {key: value for key, value in settings.items() if key != "kind"}
    return settings.get("kind", default), others  # type: ignore[return-value]


def _section(name: str, settings: Mapping[str, Any], is_listed: bool = False) -> str:
    if not isinstance(settings, Mapping):
        raise _native.ConfigurationError(f"{name} is {settings!r}, but must be a dict of settings")
    lines = [f"{key} = {_value(f'{name}.{key}', value)}" for key, value in settings.items()]
    header = f"[[{name}]]" if is_listed else f"[{name}]"
    return "\n".join([header, *lines, ""])


def _value(key: str, value: Any) -> str:
    if hasattr(value, "tolist"):
        # Of NumPy: an array or one of its numbers.
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # TOML's basic strings escape as JSON does.
        return json.dumps(value)
    if isinstance(value, Mapping):
        entries = [f"{name} = {_value(f'{key}.{name}', of)}" for name, of in value.items()]
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    raise _native.ConfigurationError(
        f"{key}: {value!r} is no setting: settings are int, bool, str, or a sequence or dict of these"
    )
