//! Open MPI 4 as Debian has it: ranks on two hosts, whose messages go by libfabric (`--mca mtl ofi`) over the device.

use std::path::PathBuf;

use programs::{Hosts, Launcher, Program, are_installed, build_mpi_client};

/// What selects TCP.
const TCP: &str = "--mca pml ob1 --mca btl tcp,self --mca osc pt2pt";

/// Programs of Debian's Open MPI; nothing, and a printed reason, if it is not installed.
fn open_mpi(client: &str) -> Option<(Launcher, PathBuf)> {
    if !are_installed(&["mpirun.openmpi", "mpicc.openmpi"]) {
        return None;
    }
    let client = build_mpi_client("mpicc.openmpi".as_ref(), "openmpi", client)?;
    Some((Launcher::OpenMpi4("mpirun.openmpi".into()), client))
}

#[test]
fn ranks_on_two_hosts_find_each_other() {
    let Some((launcher, client)) = open_mpi("mpi_results") else { return };
    let Some(hosts) = Hosts::two() else { return };
    let program = Program::new(&client.display().to_string(), "one-sided");
    let ended = hosts.start(&launcher, 2, TCP, &program).finish();
    assert!(ended.expect_success().contains("done by 2 ranks"), "{ended}");
}
