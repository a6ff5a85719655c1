"""The package as its users see it."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ethernot_sim
from ethernot_sim import (
    ConfigurationError,
    Fabric,
    SimulationError,
    Table,
    Topology,
    _native,
    calibrate,
    points,
    run,
    run_point,
    slurm_array,
    sweep,
    to_toml,
)

GRID = to_toml(
    topology=Topology.star(8),
    workload={"kind": "all_reduce", "iterations": 2},
    sweep={
        "workload": {"bytes": [64, 9000], "algorithm": ["ring", "rabenseifner"]},
        "run": {"seed": [1, 2, 3]},
    },
)


def test_topologies_tell_what_they_are() -> None:
    tree = Topology.fat_tree(radix=4)
    assert (tree.hosts, tree.switches) == (16, 20)
    # Each cable is two links: 16 to hosts, 32 between switches.
    assert len(tree.links) == 2 * (16 + 32)
    assert sum(tree.links["trunk"]) == 2 * 32
    assert tree.svg().startswith("<svg")
    assert Topology.torus([4, 4], hosts=2, lanes=2).hosts == 32
    others = [
        Topology.cascade(3, 4),
        Topology.leaf_spine(4, 4, 2, trunks=2),
        Topology.mesh([3, 3]),
        Topology.hyperx([3, 3]),
        Topology.dragonfly(4, 2, 2),
    ]
    assert len({other.name for other in others}) == len(others)
    with pytest.raises(ConfigurationError, match="radix"):
        Topology.fat_tree(radix=5)


def test_a_run_repeats_and_its_parts_or_text_are_the_same() -> None:
    parts = {
        "topology": Topology.leaf_spine(2, 4, 2),
        "fabric": Fabric.ethernet(host_rate_bps=1_000_000_000, choice="spray"),
        "workload": {"kind": "open_load", "sizes": "exponential", "load_percent": 40},
        "host": {"send_ps": 1000, "receive_ps": 2000},
    }
    result = run(**parts, seed=7)
    assert result.messages > 100
    assert result.packets_lost == 0
    assert result.hash == run(**parts, seed=7).hash != run(**parts, seed=8).hash
    assert result.hash == run(to_toml(**parts, run={"seed": 7})).hash
    assert result.hash == run(result.manifest["configuration"]).hash
    histogram = result.histogram()
    assert sum(histogram["messages"]) == result.messages
    assert result.latency_us["min"] <= result.latency_us["median"] <= result.latency_us["max"]


@pytest.mark.parametrize("kind", ["ethernet", "wormhole", "flit", "loggp", "fluid"])
def test_every_fabric_runs(kind: str) -> None:
    topology = Topology.torus([3, 3], lanes=2)
    fabric = getattr(Fabric, kind)()
    result = run(topology=topology, fabric=fabric, workload={"kind": "barrier", "iterations": 1})
    assert result.messages == 9 * 4


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `mtu_bytes`"):
        run(topology=Topology.star(4), fabric=Fabric.ethernet(mtu_byte=9000))
    with pytest.raises(ConfigurationError, match="is no setting"):
        run(workload={"kind": "mesh", "bytes": 1.5})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="not both"):
        run("[run]\n", topology=Topology.star(4))
    with pytest.raises(SimulationError, match="rank 0 waits for a message from rank 1 with tag 3"):
        trace = "num_ranks 2\nrank 0 {\nrecv 1b from 1 tag 3\n}\nrank 1 {\n}\n"
        run(topology=Topology.star(2), goal=trace)
    with pytest.raises(ConfigurationError, match="trace:3: there is no rank 5"):
        run(topology=Topology.star(2), goal="num_ranks 1\nrank 0 {\nsend 1b to 5\n}\n")
    with pytest.raises(ConfigurationError, match="3 ranks, but there are only 2 hosts"):
        trace = "num_ranks 3\n" + "".join(f"rank {rank} {{\n}}\n" for rank in range(3))
        run(topology=Topology.star(2), goal=trace)


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "sizes.cdf").write_text("64 0.5\n1500 1\n")
    (tmp_path / "a.toml").write_text('[workload]\nsizes_file = "sizes.cdf"\n')
    assert run(tmp_path / "a.toml").messages > 0
    with pytest.raises(ConfigurationError, match=r"read missing\.cdf"):
        run('[workload]\nsizes_file = "missing.cdf"\n')


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    first = sweep(GRID, tmp_path, part=(1, 3), jobs=2)
    assert len(first) == 4
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert len(written) == 4
    table = sweep(GRID, tmp_path, jobs=2)
    assert len(table) == len(points(GRID)) == 12
    assert all(path.stat().st_mtime_ns == at for path, at in written.items())
    assert not list(tmp_path.glob("*.unfinished"))
    assert set(table["workload.bytes"]) == {64, 9000}
    assert set(table["workload.algorithm"]) == {"ring", "rabenseifner"}
    assert len(set(table["result_hash"])) == 4, "seeds change nothing in a closed loop"
    rings = [row for row in table.rows() if row["workload.algorithm"] == "ring"]
    assert {row["messages"] for row in rings} == {2 * 8 * 14}


def test_a_result_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    sweep(GRID, tmp_path)
    point = points(GRID)[5]
    path = tmp_path / f"{point.hash}.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    sweep(GRID, tmp_path)
    assert json.loads(path.read_text()) == json.loads(whole)


def test_points_that_are_the_same_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    grid = to_toml(workload={"kind": "barrier"}, sweep={"workload": {"iterations": [1] * 7}})
    assert len(sweep(grid, tmp_path, jobs=4)) == 7
    assert len(list(tmp_path.iterdir())) == 1


def test_a_point_is_a_pure_function_that_other_processes_can_call(tmp_path: Path) -> None:
    calls = []

    def elsewhere(function, chosen):  # type: ignore[no-untyped-def]
        calls.append(len(chosen))
        assert pickle.loads(pickle.dumps(function)) is run_point
        return [function(pickle.loads(pickle.dumps(point))) for point in chosen]

    table = sweep(GRID, tmp_path, map=elsewhere)
    again = sweep(GRID, tmp_path, map=elsewhere)
    assert calls == [12, 0]
    assert list(table["result_hash"]) == list(again["result_hash"])


def test_a_job_array_runs_every_point_once(tmp_path: Path) -> None:
    grid = tmp_path / "the grid.toml"
    grid.write_text(GRID)
    text = slurm_array(grid, tmp_path / "results", tmp_path / "a.sh", tasks=5, options=["-p short"])
    assert "#SBATCH --array=1-5" in text
    assert "#SBATCH -p short" in text
    for task in range(1, 6):
        environment = {"SLURM_ARRAY_TASK_ID": str(task), "PATH": "/usr/bin:/bin"}
        subprocess.run(["sh", str(tmp_path / "a.sh")], check=True, env=environment)
    assert len(list((tmp_path / "results").glob("*.json"))) == 12
    assert "--array=1-12\n" in slurm_array(grid, tmp_path, tmp_path / "b.sh", tasks=99)


def test_calibration_finds_the_parameters_of_a_model() -> None:
    fabric = Fabric.loggp(latency_ps=3_000_000, gap_ps=0, byte_ps=800)
    host = dict.fromkeys(["send_ps", "receive_ps"], 1_200_000)
    sizes = [1, 64, 1024, 65536]

    def one_way_us(size: int) -> float:
        token = {"kind": "token_pass", "bytes": size, "passes": 2}
        result = run(topology=Topology.star(2), fabric=fabric, host=host, workload=token)
        return result.completed_us / 2

    latencies = [one_way_us(size) for size in sizes]
    found = calibrate(sizes, latencies, link_rate_bps=10**10, network_latency_us=3.0)
    assert found.fabric == fabric
    assert found.host == {**host, "send_ps_per_byte": 0, "receive_ps_per_byte": 0}
    assert found.worst_error_percent < 0.01
    with pytest.raises(ConfigurationError, match="different lengths"):
        calibrate([8], [1.0])
    with pytest.raises(ConfigurationError, match="2 sizes, but 1 latencies"):
        calibrate([8, 9], [1.0])


def test_tables_are_for_numpy_and_arrow() -> None:
    table = Table({"bytes": [64, 1500], "latency_us": [1.5, 3], "name": ["a", "b"]})
    assert list(table.rows())[1] == {"bytes": 1500, "latency_us": 3.0, "name": "b"}
    with pytest.raises(ValueError, match="different lengths"):
        Table({"a": [1], "b": []})
    numpy = pytest.importorskip("numpy", reason="the package works without NumPy")
    arrays = table.to_numpy()
    assert arrays["bytes"].dtype == numpy.int64
    assert arrays["latency_us"].dtype == numpy.float64
    # Not a copy.
    arrays["bytes"][0] = 65
    assert table["bytes"][0] == 65


def test_tables_are_for_arrow() -> None:
    pytest.importorskip("pyarrow", reason="the package works without pyarrow")
    table = Table({"bytes": [64, 1500], "name": ["a", "b"]}).to_arrow()
    assert table.to_pydict() == {"bytes": [64, 1500], "name": ["a", "b"]}


def command() -> str:
    """The command `ethernot`, of the path or of the workspace around this package."""
    found = shutil.which("ethernot")
    built = Path(__file__).parents[2] / "target"
    candidates = [built / profile / "ethernot" for profile in ("release", "debug")]
    found = found or next((str(path) for path in candidates if path.exists()), None)
    return found or pytest.skip("the command `ethernot` is neither installed nor built")


def test_files_of_the_command_are_for_arrow(tmp_path: Path) -> None:
    ipc = pytest.importorskip("pyarrow.ipc", reason="the package works without pyarrow")
    program = command()
    (tmp_path / "mesh.toml").write_text(to_toml(workload={"kind": "mesh", "bytes": 5000}))
    forms = {"arrow": tmp_path / "messages.arrow", "json": tmp_path / "messages.json"}
    for file in forms.values():
        arguments = [program, "sim", "run", "mesh.toml", "--messages", str(file)]
        subprocess.run(arguments, cwd=tmp_path, check=True, capture_output=True)
    with ipc.open_file(forms["arrow"]) as reader:
        table = reader.read_all()
    assert table.to_pylist() == json.loads(forms["json"].read_text())
    assert str(table.schema.field("delivered_ps").type) == "int64"
    assert table.schema.field("delivered_ps").metadata == {b"unit": b"ps"}


def test_the_stub_has_all_that_the_native_module_has() -> None:
    stub = Path(ethernot_sim.__file__).with_name("_native.pyi")
    body = ast.parse(stub.read_text()).body
    stubbed = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert stubbed == {name for name in dir(_native) if not name.startswith("_")}
    assert stub.with_name("py.typed").exists()


def test_examples_in_the_documentation_run() -> None:
    import doctest

    for module in (ethernot_sim, sys.modules["ethernot_sim._table"]):
        failed, tried = doctest.testmod(module)
        assert tried > 0
        assert failed == 0
