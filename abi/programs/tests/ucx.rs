//! UCX's benchmark `ucx_perftest` over the device, between two hosts and within one process.

use std::path::PathBuf;

use programs::{
    Finished, Hosts, Launcher, Mpi, Network, Program, Side, are_installed, expect_both,
};

/// Operations of UCX's lower layer that `rc_verbs` supports, each with its kinds of data (`short`,
/// `bcopy`, `zcopy`). On every device, `rc_verbs` of UCX 1.13 lacks atomics of 4 bytes, `swap`,
/// and `get` with the kind `short`.
const OF_CONNECTIONS: &[&str] = &[
    "am_lat",
    "am_bw",
    "am_lat -D shortiov -s 8,8",
    "am_bw -D bcopy -s 1000",
    "am_bw -D zcopy -s 2048",
    "put_lat",
    "put_bw",
    "put_bw -D bcopy -s 1000",
    "put_bw -D zcopy -s 65536",
    "get -D bcopy -s 1000",
    "get -D zcopy -s 65536",
    "add_lat",
    "add_mr",
    "fadd",
    "cswap",
];

/// Operations of the lower layer that `ud_verbs` supports: messages only.
const OF_DATAGRAMS: &[&str] =
    &["am_lat", "am_bw", "am_lat -D shortiov -s 8,8", "am_bw -D bcopy -s 1000"];

/// Operations of UCX's upper layer. If a transport lacks an operation, the upper layer emulates it
/// with messages.
const OF_PROTOCOLS: &[&str] = &[
    "tag_lat",
    "tag_bw",
    "tag_bw -s 300000",
    "tag_sync_lat",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_put_bw -s 300000",
    "ucp_get",
    "ucp_get -s 300000",
    "ucp_add",
    "ucp_add -s 4",
    "ucp_fadd",
    "ucp_fadd -s 4",
    "ucp_swap",
    "ucp_swap -s 4",
    "ucp_cswap",
    "ucp_cswap -s 4",
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw",
    "ucp_am_bw -s 300000",
];

/// Operations of the upper layer during which both sides may sleep between messages.
const SLEEPING: &[&str] = &["tag_lat", "tag_bw", "tag_bw -s 300000", "stream_lat", "stream_bw"];

/// Transports of the device, by UCX's names. `rc` uses connections; it also uses datagrams, by
/// which endpoints exchange their addresses. `ud_verbs` uses only datagrams.
const TRANSPORTS: [&str; 2] = ["rc", "ud_verbs"];

/// Other UCX names of the same transports.
const OTHER_NAMES: [&str; 2] = ["rc_verbs,ud_verbs", "ud"];

/// Returns a measurement of `count` operations. UCX may use only these transports.
fn measurement(transports: &str, kind: &str, count: u32) -> Program {
    let arguments = format!("-t {kind} -n {count} -w 10");
    Program::new("ucx_perftest", &arguments).variable("UCX_TLS", transports)
}

/// Runs a measurement between both sides, on this TCP port. Returns the client's result.
fn between(network: &Network, port: u16, measurement: &Program) -> Finished {
    let client = measurement.clone().argument(&"-p").argument(&port);
    let server = Program::new("ucx_perftest", &format!("-p {port}"));
    let server =
        measurement.variables().fold(server, |server, (name, value)| server.variable(name, value));
    let ended = server.run_pair(&client, network, port);
    expect_both(&ended);
    let [_, client] = ended;
    assert!(client.output.contains("Final:"), "{client}");
    client
}

/// Runs a measurement in one process, which acts as both sides.
fn with_itself(network: &Network, measurement: &Program) {
    let ended = measurement.clone().argument(&"-l").run(network, Side::Client);
    assert!(ended.expect_success().contains("Final:"), "{ended}");
}

/// Creates two hosts. Returns `None` if the tests cannot run here.
fn hosts() -> Option<Network> {
    are_installed(&["ucx_perftest"]).then(Network::namespaces).flatten()
}

/// Measures operations of the lower layer, between two hosts and in one process.
fn lower_layer(transport: &str, kinds: &[&str]) {
    let Some(network) = hosts() else { return };
    for kind in kinds {
        println!("{transport} {kind}");
        let kind = format!("{kind} -d edge0:1 -x {transport}");
        let measurement = measurement("all", &kind, 200);
        between(&network, 13_337, &measurement);
        with_itself(&network, &measurement);
    }
}

#[test]
fn operations_over_connections() {
    lower_layer("rc_verbs", OF_CONNECTIONS);
}

#[test]
fn operations_over_datagrams() {
    lower_layer("ud_verbs", OF_DATAGRAMS);
}

#[test]
fn protocols_between_two_hosts() {
    let Some(network) = hosts() else { return };
    for transports in TRANSPORTS {
        for kind in OF_PROTOCOLS {
            println!("{transports} {kind}");
            between(&network, 13_337, &measurement(transports, kind, 50));
        }
    }
}

/// UCX arms a completion queue that contains completions, and then sleeps on the descriptor of the
/// queue.
#[test]
fn protocols_between_hosts_that_sleep() {
    let Some(network) = hosts() else { return };
    for transports in TRANSPORTS {
        for kind in SLEEPING {
            println!("{transports} {kind}");
            between(&network, 13_337, &measurement(transports, &format!("{kind} -E sleep"), 50));
        }
    }
}

#[test]
fn protocols_between_sleeping_processes_of_a_host() {
    if !are_installed(&["ucx_perftest"]) {
        return;
    }
    for transports in TRANSPORTS {
        for kind in SLEEPING {
            println!("{transports} {kind}");
            let measurement = measurement(transports, &format!("{kind} -E sleep"), 50);
            between(&Network::Loopback, 13_357, &measurement);
        }
    }
}

#[test]
fn protocols_of_a_process_with_itself() {
    let Some(network) = hosts() else { return };
    for transports in TRANSPORTS {
        for kind in OF_PROTOCOLS {
            println!("{transports} {kind}");
            with_itself(&network, &measurement(transports, kind, 50));
        }
    }
}

#[test]
fn protocols_between_processes_of_a_host() {
    if !are_installed(&["ucx_perftest"]) {
        return;
    }
    for transports in TRANSPORTS.into_iter().chain(OTHER_NAMES) {
        for kind in ["tag_lat", "tag_bw -s 300000", "ucp_put_lat", "ucp_get", "ucp_fadd"] {
            println!("{transports} {kind}");
            between(&Network::Loopback, 13_347, &measurement(transports, kind, 50));
        }
    }
}

/// If UCX 1.13 may use only the transport of connections, it cannot connect on any device, even to
/// its own process. UCX needs a second transport, by which endpoints exchange their addresses, and
/// accepts only `ud_verbs` for this. UCX fails before it calls the device.
#[test]
fn the_connection_transport_needs_the_datagram_transport() {
    let Some(network) = hosts() else { return };
    let alone = measurement("rc_verbs", "tag_lat", 50).argument(&"-l");
    let ended = alone.run(&network, Side::Client);
    assert!(ended.output.contains("no auxiliary transport"), "{ended}");
    for transports in ["rc_v", "rc_verbs,ud_verbs:aux"] {
        let introduced = measurement(transports, "tag_lat", 50);
        with_itself(&network, &introduced);
        between(&network, 13_337, &introduced);
    }
}

/// UCX has no settings, and each side runs on its own host. UCX must prefer the device to TCP, as
/// with an adapter. So nearly all traffic must be datagrams of the device, and not TCP.
#[test]
fn ucx_chooses_the_device_by_itself() {
    let Some(network) = hosts() else { return };
    // Each side has its own namespaces of every kind. With separate network namespaces alone, UCX
    // would treat both sides as one host and use shared memory.
    let alone = "--user --ipc --pid --uts --fork ucx_perftest -p 13337";
    let chosen = [
        ("tag_lat", "tag"),
        ("ucp_put_lat", "rma"),
        ("ucp_get", "rma"),
        ("ucp_fadd", "amo_am"),
        ("stream_lat", "stream"),
        ("ucp_am_lat", "am"),
    ];
    for (kind, purpose) in chosen {
        let server = Program::new("unshare", alone).variable("UCX_LOG_LEVEL", "info");
        let client = Program::new("unshare", &format!("{alone} -t {kind} -n 1000 -w 0"));
        let client = client.variable("UCX_LOG_LEVEL", "info");
        let before = network.sent(Side::Client);
        let ended = server.run_pair(&client, &network, 13_337);
        expect_both(&ended);
        let sent = network.sent(Side::Client) - before;
        let says = format!("{purpose}(rc_verbs/edge0:1)");
        assert!(ended[1].output.contains(&says), "no {says}: {}", ended[1]);
        assert!(sent.datagrams >= 1000 && sent.segments < 100, "{kind}: {sent:?}");
    }
}

/// Runs measurements, and ranks of MPICH, over links that lose, duplicate and reorder frames.
/// Returns the number of runs.
fn over_faults(times: u32) -> u32 {
    let Some(network) = hosts() else { return 0 };
    let mut runs = 0;
    for _ in 0..times {
        for (transports, kind) in KINDS_OVER_FAULTS {
            let measurement = measurement(transports, kind, 100);
            between(&network, 13_337, &measurement.variable("ETHERNOT_FAULTS", FAULTS));
            runs += 1;
        }
        runs += u32::from(ping_pong_of_mpich().is_some());
    }
    runs
}

/// Runs a ping-pong of Debian's MPICH between two hosts, over links with faults. The ranks verify
/// what they receive.
fn ping_pong_of_mpich() -> Option<()> {
    if !are_installed(&["mpiexec.mpich", "mpicc.mpich"]) {
        return None;
    }
    let hosts = Hosts::two()?;
    let mpi = Mpi {
        name: "mpich",
        compiler: PathBuf::from("mpicc.mpich"),
        launcher: Launcher::Hydra("mpiexec.mpich".into()),
        us: String::new(),
        tcp: String::new(),
    };
    let options = format!("--faults {FAULTS}");
    let (ended, _) = mpi.over_us(&hosts, 2, &options, ["mpi_results", "ping-pong"])?;
    assert!(ended.expect_success().contains("done by 2 ranks"), "{ended}");
    Some(())
}

#[test]
fn measurements_pass_over_links_with_faults() {
    over_faults(1);
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; the same twenty times: takes minutes"]
fn frameworks_pass_twenty_times() {
    let runs = over_faults(20);
    if runs > 0 {
        println!("figure: runs of frameworks over links with faults: {runs}");
    }
}

/// Measurements over links with faults, with few outstanding datagrams. UCX drops datagrams that
/// arrive out of order, and retransmits them after a long timeout. So a megabyte takes seconds.
const KINDS_OVER_FAULTS: [(&str, &str); 6] = [
    ("rc", "tag_lat"),
    ("rc", "tag_bw -s 65536"),
    ("rc", "ucp_put_lat"),
    ("rc", "ucp_put_bw -s 65536"),
    ("ud_verbs", "tag_lat"),
    ("ud_verbs", "ucp_put_lat"),
];

/// Faults of the links.
const FAULTS: &str = "loss=0.01,dup=0.01,reorder=0.05";
