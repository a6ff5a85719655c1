"""Tests of the package as users see it."""

from __future__ import annotations

import ast
import csv
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest

import ethernot_sim
from ethernot_sim import (
    Cable,
    ConfigurationError,
    Fabric,
    SimulationError,
    Table,
    Topology,
    _native,
    _sweep,
    calibrate,
    points,
    results,
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


ENDLESS = to_toml(
    workload={"kind": "open_load", "until_ps": 1 << 50, "load_percent": 10},
    run={"events": 1 << 40},
)
"""A configuration with so many events that its run does not end during a test."""


def test_topologies_describe_themselves() -> None:
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


def test_a_graph_has_names_and_cables_with_individual_rates() -> None:
    cables = [Cable("a", "left", rate_bps="1 Gb/s"), ("b", "right"), Cable("left", "right", count=2)]
    graph = Topology.graph(["a", "b"], ["left", "right"], cables)
    assert graph.name == "graph 2 hosts, 2 switches, 4 cables"
    assert graph.names == ["a", "b", "left", "right"]
    assert (len(graph.links), list(graph.links["lane"])[-2:]) == (8, [1, 1])
    assert Topology.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
    flows = {"kind": "flows", "flows": [(0, 1, "1 MiB", 0)]}
    result = run(topology=graph, workload=flows, record=True)
    # A MiB at 1 Gb/s, with headers.
    assert 8_388 < result.completed_us < 8_800
    rates = dict(zip(result.links["link"], result.links["rate_bps"]))
    assert (rates["a->left"], rates["right->b"]) == (1_000_000_000, 10_000_000_000)
    # If all cables are equal, the graph is the built-in topology.
    star = Topology.graph(3, 1, [(f"h{host}", "s0") for host in range(3)])
    load = {"kind": "all_to_all", "iterations": 1}
    assert run(topology=star, workload=load).hash == run(topology=Topology.star(3), workload=load).hash
    with pytest.raises(ConfigurationError, match="cable 2 ends at `rigth`.*did you mean `right`"):
        Topology.graph(["a", "b"], ["left", "right"], [("a", "left"), ("b", "rigth")])


def test_a_run_is_reproducible_divided_and_from_text() -> None:
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


def test_errors_name_a_remedy() -> None:
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


def test_flows_are_a_list_or_a_file(tmp_path: Path) -> None:
    flows = [(0, 1, "1 MiB", 0), (2, 1, 1500, "10 us")]
    result = run(topology=Topology.star(4), workload={"kind": "flows", "flows": flows})
    assert (result.messages, result.manifest["bytes"]) == (2, (1 << 20) + 1500)
    (tmp_path / "web.flows").write_text("# two\n0 1 1 MiB 0\n2 1 1500 10us\n")
    grid = to_toml(topology=Topology.star(4), workload={"flows_file": "web.flows"})
    (tmp_path / "grid.toml").write_text(grid)
    assert run(tmp_path / "grid.toml").hash == result.hash
    (tmp_path / "web.flows").write_text("0 1 1 MiB 0\n2 4 1500 10us\n")
    with pytest.raises(ConfigurationError, match="web.flows:2: .* destination is 4"):
        run(tmp_path / "grid.toml")


def test_each_of_several_workloads_has_its_own_results() -> None:
    barrier = {"name": "steps", "kind": "barrier", "iterations": 2}
    flow = {"kind": "flows", "flows": [(0, 1, "1 MiB", 0)], "start_ps": "1 ms"}
    result = run(topology=Topology.star(4), workload=[barrier, flow])
    steps, copied = result.workloads
    assert (steps["name"], copied["name"]) == ("steps", "workload 1")
    assert (steps["messages"], copied["messages"]) == (2 * 4 * 2, 1)
    assert steps["completed_us"] < 1000 < copied["completed_us"]
    assert copied["latency_us"]["median"] == pytest.approx(copied["completed_us"] - 1000)
    assert run(topology=Topology.star(4), workload={"kind": "barrier"}).workloads == []


def test_a_recorded_run_reports_links_queues_ports_saturation_and_causes() -> None:
    parts: dict[str, Any] = {
        "topology": {"kind": "leaf_spine", "leaves": 2, "hosts": 4, "spines": 1},
        "fabric": {"kind": "ethernet", "host_rate_bps": "10 Gb/s", "buffer_bytes": "30 kB"},
        "workload": {"load_percent": 90, "until_ps": "200 us"},
    }
    plain = run(**parts)
    result = run(**parts, record=True)
    assert result.hash == plain.hash
    assert result.manifest == plain.manifest
    # Eight cables of hosts and two trunks, each in both directions.
    assert len(result.links) == 2 * (8 + 2)
    assert set(result.links["link"]) >= {"h0->s0", "s0->s2"}
    by_share = max(result.links.rows(), key=lambda row: row["busy_share"])
    assert 0.9 < by_share["busy_share"] <= 1 and by_share["rate_bps"] == 10_000_000_000
    assert max(result.queues["wait_max_us"]) == max(result.links["wait_max_us"])
    assert sum(result.ports["lost"]) == result.packets_lost > 0
    saturation = result.saturation
    assert isinstance(saturation.is_saturated, bool)
    assert saturation.messages_under_way == saturation.messages_in_flight
    slowdown = result.slowdown
    assert slowdown["messages"] <= result.messages
    assert 1 <= slowdown["min"] <= slowdown["median"] <= slowdown["p99"] <= slowdown["max"]
    path = result.critical_path
    assert path.completed_us == result.completed_us
    assert sum(path.causes_us.values()) == pytest.approx(path.completed_us)
    assert path.steps["from_us"][0] == 0
    for name in ("links", "queues", "saturation", "slowdown", "critical_path"):
        with pytest.raises(ConfigurationError, match=rf"{name} was not recorded: .*record=True"):
            getattr(plain, name)


def test_a_topology_and_a_fabric_may_be_dicts() -> None:
    tree = Topology.fat_tree(radix=4)
    settings = json.loads(json.dumps(tree.to_dict()))
    assert settings == {"kind": "fat_tree", "radix": 4}
    assert Topology.from_dict(settings) == tree
    fabric = Fabric.ethernet(choice="spray")
    assert Fabric.from_dict(fabric.to_dict()) == fabric
    workload = {"kind": "barrier", "iterations": 1}
    from_dicts = run(topology=settings, fabric=fabric.to_dict(), workload=workload)
    assert from_dicts.hash == run(topology=tree, fabric=fabric, workload=workload).hash


def test_invalid_objects_are_reported_when_created() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `mtu_bytes`"):
        Fabric.ethernet(mtu_byte=9000)
    with pytest.raises(ConfigurationError, match="mtu_bytes .* is 12, but must be from 64 B"):
        Fabric.from_dict({"kind": "flit", "mtu_bytes": 12})
    with pytest.raises(ConfigurationError, match="it needs .topology. kind = \"leaf_spine\""):
        Topology.from_dict({"kind": "star", "leaves": 4})


def test_documented_examples_give_the_documented_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "simulator.md"
    if not page.exists():
        pytest.skip("the documentation is not here")
    blocks = page.read_text(encoding="utf-8").split("```")[1::2]
    programs = 0
    for block, following in zip(blocks, [*blocks[1:], ""]):
        language, _, code = block.partition("\n")
        if language != "python":
            continue
        program = compile(code, "simulator.md", "exec")
        if "dask" in code:
            continue
        exec(program, {"__name__": "example"})
        shown, programs = capsys.readouterr().out, programs + 1
        assert shown == following.partition("\n")[2]
    assert programs == 2


def test_the_finish_times_of_trace_ranks_are_reported() -> None:
    trace = "num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\n}\n"
    result = run(topology=Topology.star(2), goal=trace)
    assert result.finished_us == [0.0, result.completed_us]
    with pytest.raises(ConfigurationError, match="only a run of a trace"):
        run(topology=Topology.star(2)).finished_us  # noqa: B018


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Topology.star(-1), r"hosts in \[topology\] is -1"),
        (lambda: Topology.star("four"), r"hosts in \[topology\] is \"four\""),  # type: ignore[arg-type]
        (lambda: Topology.star(4.0), r"topology\.hosts: 4\.0 is no setting"),  # type: ignore[arg-type]
        (lambda: Topology("stars"), r"kind in \[topology\] is \"stars\""),
        (lambda: run(fabric="ethernet"), "fabric is of type str, but must be a Fabric"),  # type: ignore[arg-type]
        (lambda: run(workload="mesh"), "workload is 'mesh', but must be a dict"),  # type: ignore[arg-type]
        (lambda: run("[run]\n", seed=2), "not both"),
        (lambda: run(seed=-1), "seed"),
        (lambda: sweep(GRID, "x", jobs=0), "jobs is 0"),
        (lambda: sweep(GRID, "x", jobs="2"), "jobs is '2'"),  # type: ignore[arg-type]
        (lambda: sweep(GRID, "x", part=(3, 2)), r"part is \(3, 2\)"),
        (lambda: sweep(GRID, "x", part=3), "part is 3"),  # type: ignore[arg-type]
        (lambda: sweep(GRID, "x", jobs=1, map=map), "one of jobs, executor and map"),  # type: ignore[arg-type]
        (lambda: slurm_array("grid.toml", "x", "x.sh", tasks=0), "tasks is 0"),
        (lambda: calibrate([8, -64], [1, 2]), "sizes: -64 is no int"),
        (lambda: calibrate([8, 1.5], [1, 2]), "sizes: 1.5 is no int"),  # type: ignore[list-item]
        (lambda: calibrate([8, 64], [1, float("nan")]), "NaN"),
        (lambda: calibrate([8, 64], [1, 2], link_rate_bps=-1), "link_rate_bps: -1"),
    ],
)
def test_invalid_values_raise_a_value_error_that_names_them(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_configuration_may_be_a_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)
    assert points("grid.toml") == points(Path("grid.toml")) == points(GRID)
    Path("trace.goal").write_text("num_ranks 1\nrank 0 {\ncalc 5\n}\n")
    assert run(goal="trace.goal").hash == run(goal=Path("trace.goal").read_text()).hash
    with pytest.raises(FileNotFoundError, match="other.toml"):
        run("other.toml")
    Path("binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="binary.toml is no text"):
        run("binary.toml")


def test_a_run_releases_other_threads_and_can_be_stopped() -> None:
    stop, begins = _native.Stop(), threading.Event()

    def run_it() -> None:
        begins.set()
        _native.run("endless", ENDLESS, "", stop)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run_it)
        begins.wait()
        stop.stop()
        with pytest.raises(SimulationError, match="stopped after [1-9][0-9]* events"):
            running.result()


def test_control_c_ends_a_run() -> None:
    interrupt = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        run(ENDLESS)
    interrupt.join()


def test_control_c_ends_a_sweep_without_losing_finished_points(tmp_path: Path) -> None:
    grid, into = tmp_path / "grid.toml", tmp_path / "results"
    # The last point never ends.
    grid.write_text(ENDLESS + "[sweep.workload]\nuntil_ps = [1000000, 2000000, 3000000, 1000000000000000]")
    words = [sys.executable, "-m", "ethernot_sim", "sweep", str(grid), "--into", str(into)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*words, "--jobs", "4"], text=True, **pipes) as process:  # type: ignore[call-overload]
        while len(list(into.glob("*.json"))) < 3 and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "stopped; results so far are in" in err
    assert "Traceback" not in err
    assert len(list(into.iterdir())) == 3
    assert list(results(grid, into)["workload.until_ps"]) == [1_000_000, 2_000_000, 3_000_000]


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "sizes.cdf").write_text("64 0.5\n1500 1\n")
    (tmp_path / "a.toml").write_text('[workload]\nsizes_file = "sizes.cdf"\n')
    assert run(tmp_path / "a.toml").messages > 0
    with pytest.raises(ConfigurationError, match=r"read missing\.cdf"):
        run('[workload]\nsizes_file = "missing.cdf"\n')


def test_a_stopped_sweep_resumes(tmp_path: Path) -> None:
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


def test_points_that_cannot_be_simulated_do_not_stop_others(tmp_path: Path) -> None:
    grid = to_toml(workload={"kind": "barrier"}, sweep={"run": {"events": [7, 1 << 20, 8, 1 << 21]}})
    with pytest.raises(SimulationError) as raised:
        sweep(grid, tmp_path, jobs=1)
    lines = str(raised.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["run.events=7", "run.events=8"]
    assert list(results(grid, tmp_path)["run.events"]) == [1 << 20, 1 << 21]


def test_the_error_names_ten_of_many_points_that_cannot_be_simulated(tmp_path: Path) -> None:
    grid = to_toml(workload={"kind": "barrier"}, sweep={"run": {"events": list(range(1, 14))}})
    with pytest.raises(SimulationError) as raised:
        sweep(grid, tmp_path, jobs=1)
    lines = str(raised.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 3 points more"


def test_a_full_disk_is_reported_with_the_file_and_the_point(tmp_path: Path) -> None:
    grid = to_toml(workload={"kind": "barrier"}, sweep={"run": {"seed": [1, 2, 3]}})
    chosen = points(grid)
    full = tmp_path / f"{chosen[1].hash}.{_sweep._writer()}.unfinished"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.* run\.seed=2: .*\.json"):
        sweep(grid, tmp_path, jobs=1)
    assert not full.is_symlink()
    assert len(results(grid, tmp_path)) >= 1
    assert len(sweep(grid, tmp_path)) == 3


def test_an_unwritable_folder_is_reported_before_anything_runs() -> None:
    def never(run: object, chosen: object) -> list[dict[str, Any]]:
        raise AssertionError("nothing is to run")

    with pytest.raises(OSError, match="/proc/"):
        sweep(GRID, "/proc", map=never)


def test_settings_keep_their_types_in_tables(tmp_path: Path) -> None:
    grid = to_toml(
        topology=Topology.torus([4, 4]),
        host={"kind": "edge"},
        workload={"kind": "barrier", "iterations": 1},
        sweep={"topology": {"sizes": [[4, 4], [2, 8]]}, "host": {"connects_ahead": [True, False]}},
    )
    table = sweep(grid, tmp_path)
    assert set(table["topology.sizes"]) == {"[4, 4]", "[2, 8]"}
    assert sorted(table["host.connects_ahead"]) == [False, False, True, True]
    assert table.names[:2] == ["host.connects_ahead", "topology.sizes"]
    assert table.names[-2:] == ["latency_deviation_us", "result_hash"]


def test_an_incomplete_result_is_computed_again(tmp_path: Path) -> None:
    sweep(GRID, tmp_path)
    point = points(GRID)[5]
    path = tmp_path / f"{point.hash}.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    sweep(GRID, tmp_path)
    assert json.loads(path.read_text()) == json.loads(whole)


def test_equal_points_do_not_conflict(tmp_path: Path) -> None:
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


def test_results_of_an_executor_are_saved_as_they_arrive(tmp_path: Path) -> None:
    kept = []

    def watched(point: Any) -> dict[str, Any]:
        kept.append(len(list(tmp_path.glob("*.json"))))
        return run_point(point)

    class Watched(ThreadPoolExecutor):
        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
            assert pickle.loads(pickle.dumps(function)) is run_point
            return super().submit(watched, *arguments, **named)

    with Watched(1) as executor:
        table = sweep(GRID, tmp_path, executor=executor)
        assert len(kept) == len(table) == 12
        assert list(sweep(GRID, tmp_path, executor=executor)["result_hash"]) == list(
            table["result_hash"]
        )
    assert len(kept) == 12


def test_a_sweep_runs_under_dask(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the package works without Dask")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        table = sweep(GRID, tmp_path / "dask", executor=client.get_executor())
        grid = to_toml(workload={"kind": "barrier"}, sweep={"run": {"events": [7, 1 << 20]}})
        with pytest.raises(SimulationError, match="run.events=7: not finished after"):
            sweep(grid, tmp_path / "dask", executor=client.get_executor())
        assert len(results(grid, tmp_path / "dask")) == 1
    here = sweep(GRID, tmp_path / "here")
    assert list(table.rows()) == list(here.rows())


def test_all_returned_objects_can_be_pickled() -> None:
    topology, fabric = Topology.star(4), Fabric.fluid()
    result = run(topology=topology, fabric=fabric, workload={"kind": "barrier"})
    found = calibrate([8, 64], [1.0, 2.0])
    for value in (topology, fabric, result, found, points(GRID)[0]):
        assert pickle.loads(pickle.dumps(value)) == value
    table = pickle.loads(pickle.dumps(topology.links))
    assert list(table.rows()) == list(topology.links.rows())
    for error in (ConfigurationError("a"), SimulationError("b")):
        assert type(pickle.loads(pickle.dumps(error))) is type(error)


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


def test_slurm_runs_a_job_array(tmp_path: Path) -> None:
    try:
        sinfo = subprocess.run(["sinfo", "-hN", "-o", "%n"], capture_output=True, timeout=5, text=True)
    except (OSError, subprocess.TimeoutExpired):
        pytest.skip("Slurm is not installed, or does not answer")
    if len(set(sinfo.stdout.split())) != 1:
        pytest.skip("no Slurm of one node, which would see the results of this test")
    grid, script = tmp_path / "the grid.toml", tmp_path / "sweep.sh"
    grid.write_text(GRID)
    slurm_array(grid, tmp_path / "results", script, tasks=3, options=["--output=/dev/null"])
    subprocess.run(["sbatch", "--wait", str(script)], check=True, capture_output=True)
    there = results(grid, tmp_path / "results")
    assert list(there.rows()) == list(sweep(GRID, tmp_path / "here").rows())


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


def test_tables_convert_to_numpy_and_arrow() -> None:
    table = Table({"bytes": [64, 1500], "latency_us": [1.5, 3], "name": ["a", "b"]})
    assert list(table.rows())[1] == {"bytes": 1500, "latency_us": 3.0, "name": "b"}
    with pytest.raises(ValueError, match="different lengths"):
        Table({"a": [1], "b": []})
    numpy = pytest.importorskip("numpy", reason="the package works without NumPy")
    arrays = table.to_numpy()
    assert arrays["bytes"].dtype == numpy.int64
    assert arrays["latency_us"].dtype == numpy.float64
    # The array shares its memory with the table.
    arrays["bytes"][0] = 65
    assert table["bytes"][0] == 65


def test_tables_convert_to_arrow() -> None:
    pytest.importorskip("pyarrow", reason="the package works without pyarrow")
    columns = {"bytes": [64, 1500], "name": ["a", "b"], "latency_us": [1.5, 3.0], "is": [True, False]}
    table = Table(columns).to_arrow()
    assert table.to_pydict() == columns
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double", "bool"]


def command() -> str:
    """Returns the command `ethernot`, from the path or from the workspace around this package."""
    found = shutil.which("ethernot")
    built = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target"))
    candidates = [built / profile / "ethernot" for profile in ("release", "debug")]
    # Prefer the newest command: an older one may be built from different sources than the package.
    newest_first = sorted(
        (path for path in candidates if path.exists()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    found = found or next(map(str, newest_first), None)
    return found or pytest.skip("the command `ethernot` is neither installed nor built")


def test_arrow_reads_the_files_of_the_command(tmp_path: Path) -> None:
    ipc = pytest.importorskip("pyarrow.ipc", reason="the package works without pyarrow")
    program = command()
    (tmp_path / "load.toml").write_text(to_toml(workload={"kind": "open_load", "until_ps": 10**8}))
    tables = {}
    for form in ("arrow", "json", "csv"):
        files = [f"--{what}={what}.{form}" for what in ("messages", "links", "queues")]
        words = [program, "sim", "run", "load.toml", *files]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    for what in ("messages", "links", "queues"):
        with ipc.open_file(tmp_path / f"{what}.arrow") as reader:
            table = tables[what] = reader.read_all()
        rows = table.to_pylist()
        assert rows == json.loads((tmp_path / f"{what}.json").read_text())
        with (tmp_path / f"{what}.csv").open(newline="") as file:
            for row, texts in zip(rows, csv.DictReader(file, strict=True)):
                read = {name: type(value)(texts[name] or 0) for name, value in row.items() if value}
                assert read == {name: value for name, value in row.items() if value}
    field = tables["messages"].schema.field("delivered_ps")
    assert (str(field.type), field.metadata) == ("int64", {b"unit": b"ps"})
    field = tables["links"].schema.field("wait_mean_ps")
    assert (str(field.type), field.metadata) == ("double", {b"unit": b"ps"})
    assert str(tables["queues"].schema.field("busy_share").type) == "double"


def test_the_command_writes_the_same_files(tmp_path: Path) -> None:
    program = command()
    engines = {"kind": "edge", "rails": 2, "loss_ppm": 20_000}
    mesh = {"kind": "mesh", "bytes": 5000, "iterations": 2}
    pausing = Fabric.ethernet(lossless=[0], pause_bytes=3_000)
    for name, parts in {
        "models": {"fabric": pausing, "workload": {"kind": "incast", "iterations": 2}},
        "engines": {"host": engines, "workload": mesh},
        "transport": {
            "fabric": Fabric.ethernet(buffer_bytes=5_000),
            "host": {"transport": "selective_repeat", "congestion": "delay"},
            "workload": {"kind": "incast", "bytes": 20_000, "iterations": 2},
        },
    }.items():
        grid = tmp_path / f"{name}.toml"
        grid.write_text(to_toml(**parts, sweep={"run": {"seed": [1, 2]}}))  # type: ignore[arg-type]
        here, there = tmp_path / f"{name}-here", tmp_path / f"{name}-there"
        words = [program, "sim", "sweep", str(grid), "--into", str(there)]
        subprocess.run(words, check=True, capture_output=True)
        sweep(grid, here)
        files = sorted(path.name for path in there.iterdir())
        assert files == sorted(path.name for path in here.iterdir())
        for file in files:
            made = json.loads((there / file).read_text())
            assert json.loads((here / file).read_text()) == made
            assert made["engines"]["rails"] if name == "engines" else made["ports"]
            assert ("transport" in made) == (name == "transport")


def test_a_transport_repairs_losses_and_reports_its_retransmissions() -> None:
    parts: dict[str, Any] = {
        "topology": {"hosts": 9},
        "fabric": Fabric.ethernet(buffer_bytes="10 kB"),
        "workload": {"kind": "incast", "bytes": "30 kB", "iterations": 2},
    }
    with pytest.raises(ethernot_sim.SimulationError, match="transport"):
        run(**parts)
    result = run(**parts, host={"transport": "selective_repeat"})
    assert result.messages == 16 and result.packets_lost > 0
    counts = result.transport
    assert counts is not None
    assert counts["retransmitted_frames"] > 0
    assert counts["throughput_bps"] > counts["goodput_bps"] > 0
    assert run(workload={"kind": "ring", "iterations": 1}).transport is None


def test_rates_set_by_notifications_are_reported() -> None:
    result = run(
        topology=Topology.star(5),
        fabric=Fabric.ethernet(ecn_max_bytes="20 kB"),
        host={"transport": "go_back_n", "congestion": "dcqcn"},
        workload={"kind": "incast", "bytes": "1 MiB", "iterations": 1},
    )
    assert result.transport is not None
    assert result.transport["notifications"] > 0
    assert 1e9 < result.transport["rate_bps"] < 10e9


def test_a_receiver_driven_transport_runs() -> None:
    result = run(
        topology=Topology.star(5),
        fabric=Fabric.ethernet(classes=8),
        host={"transport": "homa", "overcommitment": 2, "loss_ppm": 1000},
        workload={"kind": "all_to_all", "bytes": 100_000, "iterations": 2},
    )
    assert result.messages == 40
    assert result.transport is not None
    assert result.transport["grants"] > 0


def test_the_stub_has_all_names_of_the_native_module() -> None:
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
