//! Open MPI 4 as Debian has it: ranks on two hosts, whose messages go by libfabric (`--mca mtl ofi`) over the device.

use std::path::PathBuf;

use programs::{
    Finished, Hosts, Launcher, Network, Program, Side, are_installed, build_mpi_client,
    expect_both, fi_pingpong_with, over_us,
};

/// What selects TCP. Debian leaves out one-sided operations over messages, which TCP needs as well.
const TCP: &str = "--mca pml ob1 --mca btl tcp,self --mca osc pt2pt";

/// What has ranks tell over what they go. The device is chosen by itself.
const OVER_US: &str = "--mca osc pt2pt --mca mtl_base_verbose 100";

/// What a rank says that has found the device, if it is asked to say much.
const FOUND: &str = "mtl:ofi:provider: edge0";

/// Has ranks let others run while they wait: those of both hosts share the processors of one. Without it, Allreduce of
/// four ranks over TCP takes a hundred times as long.
const YIELDING: &str = "--mca mpi_yield_when_idle 1";

/// What links do to frames.
const FAULTS: &str = "loss=0.01,dup=0.01,reorder=0.05";

/// Turns of each, when speeds are measured.
const TURNS: usize = 5;

/// A program of ranks, and who starts them.
struct Client {
    launcher: Launcher,
    path: PathBuf,
}

impl Client {
    /// Builds it for Debian's Open MPI; nothing, and a printed reason, if that is not installed.
    fn built(name: &str) -> Option<Self> {
        if !are_installed(&["mpirun.openmpi", "mpicc.openmpi"]) {
            return None;
        }
        let path = build_mpi_client("mpicc.openmpi".as_ref(), "openmpi", name)?;
        Some(Self { launcher: Launcher::OpenMpi4("mpirun.openmpi".into()), path })
    }

    fn program(&self, arguments: &str) -> Program {
        Program::new(&self.path.display().to_string(), arguments)
    }

    /// With these options of the launcher more.
    fn over_tcp(&self, hosts: &Hosts, ranks: u32, options: &str, arguments: &str) -> Finished {
        let options = format!("{TCP} {options}");
        hosts.start(&self.launcher, ranks, &options, &self.program(arguments)).finish()
    }

    /// The same over the device, with these options of `ethernot run`.
    fn over_us(
        &self,
        hosts: &Hosts,
        ranks: u32,
        options: &str,
        [of_run, arguments]: [&str; 2],
    ) -> Finished {
        let options = format!("{OVER_US} {options}");
        let program = over_us(of_run, &self.program(arguments));
        hosts.start(&self.launcher, ranks, &options, &program).finish()
    }
}

/// What rank 0 has printed of results.
fn results(ended: &Finished) -> Vec<&str> {
    let is_result = |line: &&str| line.contains(" rank ") || line.starts_with("done by");
    let lines: Vec<_> = ended.expect_success().lines().filter(is_result).collect();
    let is_whole = lines.last().is_some_and(|last| last.starts_with("done by"));
    assert!(is_whole, "{ended}");
    lines
}

/// Asserts that so many ranks use the device.
fn expect_the_device(ended: &Finished, ranks: u32) {
    let found = ended.output.matches(FOUND).count();
    assert_eq!(found, ranks as usize, "{ended}");
}

#[test]
fn results_of_two_and_four_ranks_are_those_over_tcp() {
    let Some(client) = Client::built("mpi_results") else { return };
    let Some(hosts) = Hosts::two() else { return };
    for ranks in [2, 4] {
        let over_us = client.over_us(&hosts, ranks, "", ["", ""]);
        expect_the_device(&over_us, ranks);
        assert_eq!(
            results(&over_us),
            results(&client.over_tcp(&hosts, ranks, "", "")),
            "{over_us}"
        );
    }
}

/// Runs each program so often over links with faults. Returns how often that was in all.
fn run_each(times: u16) -> Option<u32> {
    let client = Client::built("mpi_results").filter(|_| are_installed(&["fi_pingpong"]))?;
    let (hosts, network) = (Hosts::two()?, Network::namespaces()?);
    let of_run = format!("--faults {FAULTS}");
    let variables = [("ETHERNOT_FAULTS", FAULTS)];
    let mut runs = 0;
    for time in 0..times {
        for (number, endpoint) in (0..).zip([("verbs", "msg"), ("verbs;ofi_rxm", "rdm")]) {
            // A port is not listened at again at once after its connection has ended.
            let port = 25_100 + time * 2 + number;
            let more = "-I 100";
            let side = Side::Client;
            expect_both(&fi_pingpong_with(&network, side, port, endpoint, more, &variables));
        }
        for part in ["ping-pong", "collectives"] {
            let ended = client.over_us(&hosts, 2, "", [&of_run, part]);
            expect_the_device(&ended, 2);
            results(&ended);
        }
        runs += 4;
    }
    Some(runs)
}

#[test]
fn frameworks_pass_over_links_with_faults() {
    run_each(1);
}

#[test]
#[ignore = "the same twenty times: takes minutes; run by `./x acceptance frameworks`"]
fn frameworks_pass_twenty_times() {
    if let Some(runs) = run_each(20) {
        println!("figure: runs of frameworks over links with faults: {runs}");
    }
}

/// The value of a line that `mpi_speed` has printed.
fn value(ended: &Finished, name: &str) -> f64 {
    let is_it = |line: &&str| line.split_whitespace().next() == Some(name);
    let line = ended.expect_success().lines().find(is_it);
    let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {ended}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "measures; run by `./x acceptance frameworks`"]
fn speeds_of_mpi() {
    let Some(client) = Client::built("mpi_speed") else { return };
    let Some(hosts) = Hosts::two() else { return };
    let figures = [
        (2, "latency_1", "latency of MPI against TCP, 1 B"),
        (2, "throughput_1048576", "throughput of MPI against TCP, 1 MiB"),
        (4, "allreduce_8", "allreduce of 4 ranks against TCP"),
    ];
    let mut ratios = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for (ranks, part) in [(2, "pair"), (4, "reduce")] {
            let over_us = client.over_us(&hosts, ranks, YIELDING, ["", part]);
            expect_the_device(&over_us, ranks);
            let over_tcp = client.over_tcp(&hosts, ranks, YIELDING, part);
            for (ratios, (_, name, _)) in
                ratios.iter_mut().zip(figures).filter(|(_, (of, ..))| *of == ranks)
            {
                let (ours, theirs) = (value(&over_us, name), value(&over_tcp, name));
                println!("{name}: {ours}, over TCP {theirs}");
                ratios.push(ours / theirs);
            }
        }
    }
    for (ratios, (.., figure)) in ratios.into_iter().zip(figures) {
        println!("figure: {figure}: {:.3}", median(ratios));
    }
}
