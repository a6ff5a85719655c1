//! MPICH: from a wheel, over UCX and over libfabric; and from Debian, over UCX only.

use std::path::PathBuf;

use programs::{Launcher, Mpi, are_installed, wheel};

/// Options that make the wheel's MPICH use libfabric's TCP, because this TCP yields the processor
/// while it waits. With UCX's TCP, which does not yield, four ranks on two processors would take
/// minutes.
const TCP: &str = "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER tcp";

/// Returns the wheel's MPICH, with these options to use the device.
fn of_wheel(us: &str) -> Option<Mpi> {
    let folder = wheel("mpich")?;
    Some(Mpi {
        name: "mpich-wheel",
        compiler: folder.join("bin/mpicc"),
        launcher: Launcher::Hydra(folder.join("bin/mpiexec")),
        us: us.into(),
        tcp: TCP.into(),
    })
}

/// Returns the wheel's MPICH over UCX, without options: MPICH chooses UCX by default, and UCX
/// chooses the device.
fn over_ucx() -> Option<Mpi> {
    of_wheel("-genv UCX_LOG_LEVEL info")
}

/// Returns Debian's MPICH. Even if `UCX_TLS` selects TCP, its UCX may use shared memory between
/// processes of one host.
fn of_debian() -> Option<Mpi> {
    are_installed(&["mpiexec.mpich", "mpicc.mpich"]).then(|| Mpi {
        name: "mpich",
        compiler: PathBuf::from("mpicc.mpich"),
        launcher: Launcher::Hydra("mpiexec.mpich".into()),
        us: "-genv UCX_LOG_LEVEL info".into(),
        tcp: "-genv UCX_TLS tcp,self,sm".into(),
    })
}

#[test]
fn results_over_ucx_equal_those_over_tcp() {
    if let Some(mpi) = over_ucx() {
        mpi.expect_same_as_over_tcp(&["all"], "inter-node cfg#1 tag(rc_verbs/edge0:1)", true);
    }
}

#[test]
fn results_over_libfabric_equal_those_over_tcp() {
    let us = "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER verbs;ofi_rxm";
    if let Some(mpi) = of_wheel(us) {
        mpi.expect_same_as_over_tcp(&["all"], "", true);
    }
}

#[test]
fn results_of_the_debian_mpich_equal_those_over_tcp() {
    if let Some(mpi) = of_debian() {
        mpi.expect_same_as_over_tcp(&["all"], "tag(rc_verbs/edge0:1)", true);
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; measures"]
fn speeds_of_mpi() {
    let speeds = over_ucx().and_then(|mpi| mpi.speeds(TURNS));
    let Some([latency, throughput, allreduce, alltoall]) = speeds else { return };
    println!("figure: latency of MPI against TCP, 1 B (mpich): {latency:.3}");
    println!("figure: throughput of MPI against TCP, 1 MiB (mpich): {throughput:.3}");
    println!("figure: allreduce of 4 ranks against TCP (mpich): {allreduce:.3}");
    println!("figure: alltoall of 4 ranks against TCP (mpich): {alltoall:.3}");
}

/// Number of speed measurements over the device. There are as many measurements over TCP.
const TURNS: usize = 5;
