//! libfabric, Open MPI and UCX, which are asked to use an iWARP device.

use programs::{
    Finished, Launcher, Mpi, Network, Program, Side, are_installed, expect_both, fi_pingpong_with,
};

/// Loopback, and two hosts if this process may create namespaces.
fn networks() -> impl Iterator<Item = Network> {
    std::iter::once(Network::Loopback).chain(Network::namespaces())
}

/// Chooses an iWARP device as the only device of a program.
const OVER_IWARP: (&str, &str) = ("ETHERNOT_DEVICE", "iwarp");

/// Describes a program that sees an iWARP device and no other device.
fn over_iwarp(program: &str, arguments: &str) -> Program {
    Program::new(program, arguments).variable(OVER_IWARP.0, OVER_IWARP.1)
}

/// Providers of libfabric that work over an iWARP device, each with its type of endpoint. Others
/// need datagrams.
const ENDPOINTS: [(&str, &str); 2] = [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")];

#[test]
fn libfabric_finds_the_device() {
    if !are_installed(&["fi_info"]) {
        return;
    }
    for (provider, kind) in ENDPOINTS {
        let info = over_iwarp("fi_info", "-p").argument(&provider);
        let shown = info.run(&Network::Loopback, Side::Client);
        let kind = format!("type: FI_EP_{}", kind.to_uppercase());
        let text = shown.expect_success();
        assert!(text.contains("domain: iwarp0") && text.contains(&kind), "{shown}");
    }
    let message = over_iwarp("fi_info", "-p verbs -t FI_EP_MSG");
    let shown = message.run(&Network::Loopback, Side::Client);
    assert!(shown.expect_success().contains("protocol: FI_PROTO_IWARP"), "{shown}");
}

#[test]
fn ping_pongs_of_libfabric_pass() {
    if !are_installed(&["fi_pingpong"]) {
        return;
    }
    let mut port = 25_200;
    for network in networks() {
        for client in [Side::Client, Side::Server] {
            for endpoint in ENDPOINTS {
                let ended = fi_pingpong_with(&network, client, port, endpoint, "", &[OVER_IWARP]);
                expect_both(&ended);
                port += 1;
            }
        }
        let tagged = "-m tagged -I 100";
        let (side, endpoint) = (Side::Client, ENDPOINTS[1]);
        expect_both(&fi_pingpong_with(&network, side, port, endpoint, tagged, &[OVER_IWARP]));
        port += 1;
    }
}

/// Returns Debian's Open MPI, which sends messages through libfabric by default.
fn open_mpi() -> Option<Mpi> {
    are_installed(&["mpirun.openmpi", "mpicc.openmpi"]).then(|| Mpi {
        name: "openmpi",
        compiler: "mpicc.openmpi".into(),
        launcher: Launcher::OpenMpi4("mpirun.openmpi".into()),
        us: format!("--mca osc pt2pt --mca mtl_base_verbose 100 {YIELDING}"),
        tcp: format!("--mca pml ob1 --mca btl tcp,self --mca osc pt2pt {YIELDING}"),
    })
}

/// Option that makes waiting ranks yield, because both hosts of the test share the processors of
/// one machine.
const YIELDING: &str = "--mca mpi_yield_when_idle 1";

#[test]
fn results_of_open_mpi_equal_those_over_tcp() {
    if let Some(mpi) = open_mpi() {
        mpi.expect_same_with("--device iwarp", &["all"], "mtl:ofi:provider: iwarp0", false);
    }
}

/// Runs a measurement of UCX in one process that acts as both sides.
fn ucx(transports: &str) -> Finished {
    let measurement = over_iwarp("ucx_perftest", "-t tag_lat -n 50 -w 10 -l");
    let measurement =
        measurement.variable("UCX_TLS", transports).variable("UCX_LOG_LEVEL", "debug");
    measurement.run(&Network::Loopback, Side::Client)
}

/// The one thing that UCX lacks is a transport that takes an iWARP device: UCX asks the device for
/// its kind, refuses iWARP, and goes no further.
#[test]
fn ucx_refuses_every_iwarp_device() {
    if !are_installed(&["ucx_perftest"]) {
        return;
    }
    for transports in ["rc", "ud", "ib"] {
        let ended = ucx(transports);
        let is_found = ended.output.contains("initialized device 'iwarp0' (iWARP NIC)");
        let is_refused = ended.output.contains("iWarp device iwarp0 is not supported");
        assert!(is_found && is_refused, "{ended}");
        assert!(ended.output.contains("no usable transports/devices"), "{ended}");
    }
}

#[test]
fn ucx_uses_other_transports_beside_an_iwarp_device() {
    if !are_installed(&["ucx_perftest"]) {
        return;
    }
    let ended = ucx("tcp,self");
    assert!(ended.expect_success().contains("Final:"), "{ended}");
}
