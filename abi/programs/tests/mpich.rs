//! MPICH: that of wheels, over UCX and over libfabric, and Debian's, which has UCX only.

use programs::{Hosts, Launcher, Mpi, are_installed, build_mpi_client, mpi_wheel};

/// What is said to MPICH to have it use the device, and what to have it use TCP, of each way it may go. By UCX it takes the
/// device by itself.
const UCX: [&str; 2] = [
    "-genv MPIR_CVAR_CH4_NETMOD ucx -genv UCX_LOG_LEVEL info",
    "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER tcp",
];
const LIBFABRIC: [&str; 2] = [
    "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER verbs;ofi_rxm",
    "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER tcp",
];
const DEBIAN: [&str; 2] = ["-genv UCX_LOG_LEVEL info", "-genv UCX_TLS tcp,self,sm"];

/// MPICH from its wheel, with a client built for it.
fn of_wheel(client: &str) -> Option<Mpi> {
    let folder = mpi_wheel("mpich")?;
    let client = build_mpi_client(&folder.join("bin/mpicc"), "mpich-wheel", client)?;
    Some(Mpi { launcher: Launcher::Hydra(folder.join("bin/mpiexec")), client })
}

/// Debian's, with a client built for it.
fn of_debian(client: &str) -> Option<Mpi> {
    if !are_installed(&["mpiexec.mpich", "mpicc.mpich"]) {
        return None;
    }
    let client = build_mpi_client("mpicc.mpich".as_ref(), "mpich", client)?;
    Some(Mpi { launcher: Launcher::Hydra("mpiexec.mpich".into()), client })
}

/// Results are those of TCP with two ranks and with four, half of them on each host.
fn results(mpi: Option<Mpi>, ways: [&str; 2], says: &str) {
    let (Some(mpi), Some(hosts)) = (mpi, Hosts::two()) else { return };
    for ranks in [2, 4] {
        let ended = mpi.expect_same_as_over_tcp(&hosts, ranks, ways);
        assert!(ended.output.contains(says), "no {says}: {ended}");
    }
}

#[test]
fn results_over_ucx_are_those_over_tcp() {
    results(of_wheel("mpi_results"), UCX, "inter-node cfg#1 tag(rc_verbs/edge0:1)");
}

#[test]
fn results_over_libfabric_are_those_over_tcp() {
    results(of_wheel("mpi_results"), LIBFABRIC, "");
}

#[test]
fn results_of_debians_are_those_over_tcp() {
    results(of_debian("mpi_results"), DEBIAN, "rc_verbs/edge0:1");
}
