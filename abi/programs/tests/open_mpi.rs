//! Debian's Open MPI 4: ranks on two hosts, which exchange messages through libfabric
//! (`--mca mtl ofi`) over the device.

use programs::{
    Hosts, Launcher, Mpi, Network, Program, Side, are_installed, build_mpi_client, expect_both,
    fi_pingpong_with, over_us,
};

/// Returns Debian's Open MPI, which chooses the device by default. Debian disables the component
/// `pt2pt`, which performs one-sided operations by messages. The options enable this component for
/// the device and for TCP.
fn open_mpi() -> Option<Mpi> {
    are_installed(&["mpirun.openmpi", "mpicc.openmpi"]).then(|| Mpi {
        name: "openmpi",
        compiler: "mpicc.openmpi".into(),
        launcher: Launcher::OpenMpi4("mpirun.openmpi".into()),
        us: format!("--mca osc pt2pt --mca mtl_base_verbose 100 {YIELDING}"),
        tcp: format!("--mca pml ob1 --mca btl tcp,self --mca osc pt2pt {YIELDING}"),
    })
}

/// The line that a rank prints at high verbosity when it has found the device.
const FOUND: &str = "mtl:ofi:provider: edge0";

/// Option that makes waiting ranks yield, because both hosts of the test share the processors of
/// one machine. Without this option, an allreduce of four ranks over TCP takes a hundred times as
/// long.
const YIELDING: &str = "--mca mpi_yield_when_idle 1";

/// Faults of the links.
const FAULTS: &str = "loss=0.01,dup=0.01,reorder=0.05";

/// Number of speed measurements over the device. There are as many measurements over TCP.
const TURNS: usize = 5;

#[test]
fn results_of_two_and_four_ranks_equal_those_over_tcp() {
    if let Some(mpi) = open_mpi() {
        mpi.expect_same_as_over_tcp(&["all"], FOUND, true);
    }
}

/// All ranks run on one host, as on a laptop, and Open MPI chooses the transport. Within a host,
/// one-sided operations of Open MPI crash even without the library. The option `osc pt2pt` avoids
/// this.
#[test]
fn ranks_on_one_host_end_successfully() {
    let (Some(_), Some(hosts)) = (open_mpi(), Hosts::two()) else { return };
    let client = build_mpi_client("mpicc.openmpi".as_ref(), "openmpi", "mpi_results");
    let Some(client) = client else { return };
    let results = over_us("", &Program::new(&client.display().to_string(), "all"));
    let launcher =
        Program::new("mpirun.openmpi", "--allow-run-as-root --oversubscribe --mca osc pt2pt -np 2");
    let command = results.words().iter().fold(launcher, Program::argument);
    let ended = hosts.start_on_first(&command).finish();
    assert!(ended.expect_success().contains("done by 2 ranks"), "{ended}");
}

/// Runs each program `times` times over links with faults. Returns the number of runs.
fn run_each(times: u16) -> Option<u32> {
    let mpi = open_mpi().filter(|_| are_installed(&["fi_pingpong"]))?;
    let (hosts, network) = (Hosts::two()?, Network::namespaces()?);
    let of_run = format!("--faults {FAULTS}");
    let variables = [("ETHERNOT_FAULTS", FAULTS)];
    let mut runs = 0;
    for time in 0..times {
        for (number, endpoint) in (0..).zip([("verbs", "msg"), ("verbs;ofi_rxm", "rdm")]) {
            // Each run has a new port, because a program cannot listen on a port right after a
            // connection on it has ended.
            let port = 25_100 + time * 2 + number;
            let more = "-I 100";
            let side = Side::Client;
            expect_both(&fi_pingpong_with(&network, side, port, endpoint, more, &variables));
        }
        for part in ["ping-pong", "collectives"] {
            let (ended, _) = mpi.over_us(&hosts, 2, &of_run, ["mpi_results", part])?;
            let is_whole = ended.expect_success().contains("done by 2 ranks");
            assert!(is_whole && ended.output.contains(FOUND), "{ended}");
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
#[ignore = "slow: run by `./x acceptance frameworks`; the same twenty times: takes minutes"]
fn frameworks_pass_twenty_times() {
    if let Some(runs) = run_each(20) {
        println!("figure: runs of frameworks over links with faults: {runs}");
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; measures"]
fn speeds_of_mpi() {
    let speeds = open_mpi().and_then(|mpi| mpi.speeds(TURNS));
    let Some([latency, throughput, allreduce, alltoall]) = speeds else { return };
    println!("figure: latency of MPI against TCP, 1 B: {latency:.3}");
    println!("figure: throughput of MPI against TCP, 1 MiB: {throughput:.3}");
    println!("figure: allreduce of 4 ranks against TCP: {allreduce:.3}");
    println!("figure: alltoall of 4 ranks against TCP: {alltoall:.3}");
}
