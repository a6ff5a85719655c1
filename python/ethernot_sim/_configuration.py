"""Topologies, fabrics, and configurations that contain them."""

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
"""A value of a setting."""

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Cable:
    """A cable of `Topology.graph`: the names of its two nodes, and properties that differ from the defaults."""

    a: str
    b: str
    rate_bps: Optional[Union[int, str]] = None
    """Rate in bit/s, or with a unit: `"25 Gb/s"`. The default is the rate of the fabric."""
    propagation_ps: Optional[Union[int, str]] = None
    """Propagation delay in ps, or with a unit: `"50 ns"`."""
    buffer_bytes: Optional[Union[int, str]] = None
    """Highest number of bytes that a switch queues for the cable; 0 for no limit."""
    count: int = 1
    """Number of parallel cables. More than 1 is possible only between switches."""

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
    """The hosts and switches of a network, and the cables between them."""

    kind: str
    settings: Settings = field(default_factory=dict)
    _facts: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_facts", _native.topology(self.to_toml()))

    @classmethod
    def star(cls, hosts: int) -> Topology:
        """Makes one switch with all hosts."""
        return cls("star", {"hosts": hosts})

    @classmethod
    def cascade(cls, switches: int, hosts: int, trunks: int = 1) -> Topology:
        """Makes a row of switches. `hosts` is per switch, and `trunks` is the number of cables between neighbours."""
        return cls("cascade", {"switches": switches, "hosts": hosts, "trunks": trunks})

    @classmethod
    def leaf_spine(cls, leaves: int, hosts: int, spines: int, trunks: int = 1) -> Topology:
        """Makes leaves and spines. `hosts` is per leaf, and `trunks` is the number of cables from a leaf to a spine."""
        return cls(
            "leaf_spine", {"leaves": leaves, "hosts": hosts, "spines": spines, "trunks": trunks}
        )

    @classmethod
    def fat_tree(cls, radix: int) -> Topology:
        """Makes a fat tree of three levels of switches with `radix` ports."""
        return cls("fat_tree", {"radix": radix})

    @classmethod
    def torus(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Makes a torus: a grid of switches whose opposite edges are joined, with hosts and parallel cables."""
        return cls("torus", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def mesh(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Makes a mesh: a grid of switches without cables between opposite edges."""
        return cls("mesh", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def hyperx(cls, sizes: Sequence[int], hosts: int = 1, lanes: int = 1) -> Topology:
        """Makes a grid of switches. In each dimension, a switch is connected to all other switches of its line."""
        return cls("hyperx", {"sizes": list(sizes), "hosts": hosts, "lanes": lanes})

    @classmethod
    def dragonfly(cls, switches: int, hosts: int, global_links: int) -> Topology:
        """Makes groups of switches. Each switch has hosts and cables to other groups."""
        return cls("dragonfly", {"switches": switches, "hosts": hosts, "global": global_links})

    @classmethod
    def graph(
        cls,
        hosts: Union[int, Sequence[str]],
        switches: Union[int, Sequence[str]],
        cables: Sequence[Union[Cable, Sequence[str]]],
    ) -> Topology:
        """Makes any graph. `hosts` and `switches` are lists of names, or numbers of nodes. With numbers the names are
        `h0`, `h1`, ... and `s0`, `s1`, ... A cable is a `Cable` or a pair of names."""
        tables = [
            (cable if isinstance(cable, Cable) else Cable(*cable)).to_dict() for cable in cables
        ]
        nodes = [
            of if isinstance(of, int) else [str(name) for name in of] for of in (hosts, switches)
        ]
        return cls("graph", {"hosts": nodes[0], "switches": nodes[1], "cables": tables})

    @classmethod
    def from_dict(cls, settings: Settings) -> Topology:
        """Makes a topology from the result of `to_dict`: the keys of `[topology]`, including `kind`."""
        return cls(*_kind("topology", settings, "star"))

    def to_dict(self) -> dict[str, Setting]:
        """Returns the keys and values of `[topology]`, for JSON or for other programs."""
        return {"kind": self.kind, **self.settings}

    def to_toml(self) -> str:
        """Returns the section `[topology]` as TOML."""
        return _section("topology", {"kind": self.kind, **self.settings})

    @property
    def name(self) -> str:
        """Returns the name of the topology, with its sizes."""
        return str(self._facts["name"])

    @property
    def hosts(self) -> int:
        """Returns the number of hosts. The hosts are the first nodes, numbered from 0."""
        return int(self._facts["hosts"])

    @property
    def switches(self) -> int:
        """Returns the number of switches. The switches are the nodes after the hosts."""
        return int(self._facts["switches"])

    @property
    def names(self) -> list[str]:
        """Returns the name of each node."""
        return list(self._facts["names"])

    @property
    def links(self) -> Table:
        """Returns a row for each direction of each cable. It has the nodes `from` and `to`; `trunk`, which is 1 between
        switches and otherwise 0; and `lane`, the index of the cable among parallel cables."""
        return Table({name: self._facts[name] for name in ("from", "to", "trunk", "lane")})

    def svg(self) -> str:
        """Returns a drawing of the topology as SVG."""
        return str(self._facts["svg"])


@dataclass(frozen=True)
class Fabric:
    """The model of the network that carries messages. All settings have defaults."""

    kind: str
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Report invalid settings here. Otherwise they would be reported only when the fabric is used.
        _native.effective("fabric", self.to_toml(), "")

    @classmethod
    def ethernet(cls, **settings: Setting) -> Fabric:
        """Makes Ethernet switches, with `host_rate_bps`, `mtu_bytes`, `latency_ps`, `choice` and other settings."""
        return cls("ethernet", settings)

    @classmethod
    def wormhole(cls, **settings: Setting) -> Fabric:
        """Makes a network of source-routed worms like Myrinet, with `character_ps`, `storage_characters` and others."""
        return cls("wormhole", settings)

    @classmethod
    def flit(cls, **settings: Setting) -> Fabric:
        """Makes flits with credits and virtual channels, with `flit_ps`, `channels`, `buffer_flits` and other settings."""
        return cls("flit", settings)

    @classmethod
    def fluid(cls, **settings: Setting) -> Fabric:
        """Makes a network whose links messages share max-min fairly: `host_rate_bps`, `link_latency_ps` and others."""
        return cls("fluid", settings)

    @classmethod
    def loggp(cls, **settings: Setting) -> Fabric:
        """Makes the LogGP model, which has costs but no links: `latency_ps`, `gap_ps` and `byte_ps`."""
        return cls("loggp", settings)

    @classmethod
    def from_dict(cls, settings: Settings) -> Fabric:
        """Makes a fabric from the keys of `[fabric]`, including `kind`."""
        return cls(*_kind("fabric", settings, "ethernet"))

    def to_dict(self) -> dict[str, Setting]:
        """Returns the keys and values of `[fabric]`."""
        return {"kind": self.kind, **self.settings}

    def to_toml(self) -> str:
        """Returns the section `[fabric]` as TOML."""
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
    """Returns a configuration as TOML. With `sweep`, such as `{"workload": {"bytes": [64, 1500]}}`, the configuration
    describes all combinations. A list as `workload` means several workloads that run at the same time."""
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
    """Returns the name, the text and the folder of a configuration."""
    if isinstance(source, str) and not is_path(source):
        return "configuration", source, ""
    return read_file(Path(source))


def read_file(path: Path) -> tuple[str, str, str]:
    """Returns the name, the text and the folder of a file."""
    try:
        return str(path), path.read_text(encoding="utf-8"), str(path.parent)
    except UnicodeDecodeError as error:
        raise _native.ConfigurationError(f"{path} is no text: {error}") from None


def is_path(text: str) -> bool:
    """Returns whether a text is a path: one line that sets no key and begins no section."""
    text = text.strip()
    return bool(text) and not text.startswith(("[", "#")) and not set(text) & set("\n=")


def at_least_one(name: str, value: int) -> None:
    """Checks that a number is an int of at least 1."""
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
        # Convert a NumPy array or a NumPy number.
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # Strings in TOML have the same escapes as in JSON.
        return json.dumps(value)
    if isinstance(value, Mapping):
        entries = [f"{name} = {_value(f'{key}.{name}', of)}" for name, of in value.items()]
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    raise _native.ConfigurationError(
        f"{key}: {value!r} is no setting: settings are int, bool, str, or a sequence or dict of these"
    )
