//! Processes and links that fail in the middle of a stream. If a process dies, the other side gets
//! an error. If a link fails, the stream continues over TCP. The received bytes must be the first
//! bytes of the stream, without gaps and repetitions.
#![expect(clippy::disallowed_methods, reason = "it is measured until the other side is told")]

use std::time::Instant;

use programs::{
    Finished, Loaded, Network, Program, Running, Side, Stage, Subject, WARM_UPS_MS,
    build_plain_client,
};

/// A stream of data on a moved connection.
struct Flow<'a> {
    stage: Stage<'a>,
    server: Running,
    client: Running,
}

impl<'a> Flow<'a> {
    /// Starts both sides of `clients/sockets_stream.c` with this test case. If the connection stays
    /// on TCP, because the host is busy, starts another with more traffic before it.
    ///
    /// # Panics
    /// Panics if no connection takes the expected path in several attempts.
    fn start(network: &'a Network, loaded: Loaded, kind: &str) -> Option<Self> {
        for warm_ms in WARM_UPS_MS {
            let stage = Stage::new(network, loaded)?.variable("ETHERNOT_SOCKETS_LOG", "info");
            let [mut server, mut client] = stage.start_both("sockets_stream", kind, warm_ms)?;
            (if kind == "up" { &mut server } else { &mut client }).wait_for_output("flows");
            if stage.has_path() {
                return Some(Self { stage, server, client });
            }
        }
        panic!("all connections of kind {kind} stayed on TCP")
    }
}

/// Checks the result of a side whose peer died at `since`, and prints how many seconds the report
/// took.
#[track_caller]
fn expect_reported(ended: &Finished, since: Instant, loaded: Loaded, figure: &str) {
    let said = ended.expect_success();
    let is_reset = said.contains("ends: ECONNRESET") || said.contains("writing ends: EPIPE");
    // Without the library, accept the end of the stream instead of a reset, because the kernel may
    // close the connection of a dead process with a FIN.
    let is_end = loaded == Loaded::Neither && said.contains("ends: end");
    assert!(is_reset || is_end, "{ended}");
    if loaded == Loaded::Both {
        println!("figure: {figure}: {:.3}", since.elapsed().as_secs_f64());
    }
}

const KILLED: &str = "seconds until the peer of a killed process is told";

#[test]
fn a_killed_process_resets_its_connections() {
    for loaded in [Loaded::Neither, Loaded::Both] {
        for kind in ["down", "up", "idle"] {
            for dies in [Side::Server, Side::Client] {
                let Some(flow) = Flow::start(&Network::Loopback, loaded, kind) else { return };
                println!("{kind}, {dies:?} dies, {loaded:?}");
                let since = Instant::now();
                let (dead, survivor) = match dies {
                    Side::Server => (flow.server, flow.client),
                    Side::Client => (flow.client, flow.server),
                };
                dead.signal("KILL");
                expect_reported(&survivor.finish(), since, loaded, KILLED);
                drop(dead);
            }
        }
    }
}

#[test]
fn connections_return_to_tcp_when_the_network_stops_carrying_datagrams() {
    if !programs::are_installed(&["nft"]) {
        return;
    }
    for kind in ["down", "up", "idle"] {
        let Some(network) = Network::namespaces() else { return };
        let Some(flow) = Flow::start(&network, Loaded::Both, kind) else { return };
        println!("{kind}");
        network.block_datagrams();
        flow.stage.expect_home();
        let (mut reader, writer) =
            if kind == "up" { (flow.server, flow.client) } else { (flow.client, flow.server) };
        if kind != "idle" {
            reader.signal("USR1");
            reader.wait_for_output("flows again");
        }
        writer.signal("KILL");
        expect_reported(&reader.finish(), Instant::now(), Loaded::Neither, KILLED);
        drop((flow.stage, writer));
    }
}

#[test]
fn a_network_without_datagrams_leaves_connections_to_tcp() {
    if !programs::are_installed(&["nft"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let Some(stage) = Stage::new(&network, Loaded::Both) else { return };
    network.block_datagrams();
    let Some(program) = build_plain_client("sockets_threads") else { return };
    let stage = stage.variable("ETHERNOT_SOCKETS_LOG", "info");
    let port = stage.free_port();
    let side = |role: &str| {
        let program = Program::new(&program.display().to_string(), "both_ways").argument(&role);
        program.argument(&stage.address()).argument(&port).argument(&DECIDED_MS)
    };
    let mut server = stage.start(&side("server"), Side::Server);
    server.wait_for_listener(port);
    let client = stage.run(&side("client"), Side::Client);
    let ended = [server.finish(), client];
    programs::expect_both(&ended);
    for (side, ended) in [Side::Server, Side::Client].into_iter().zip(&ended) {
        let counters = stage.counters(side);
        assert!(counters.moved == 0 && counters.left > 0, "{side:?}: {counters:?}");
        assert!(ended.output.contains("firewall"), "the log does not say why: {ended}");
    }
}

/// Time in milliseconds for which both sides exchange messages before the test case begins. After
/// this time, the library has decided that the peer does not answer. The decision takes 1 s on an
/// idle host, because the library's offer to move a connection is valid for 1 s; on a busy host, it
/// takes longer. If a connection ends earlier, the library logs no message about a firewall.
const DECIDED_MS: u32 = 3000;

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn conformance_under_loss() {
    let Some(network) = Network::namespaces() else { return };
    network.lose(1.0);
    for (program, name) in [
        ("closing", "orders"),
        ("closing", "half_closed"),
        ("closing", "closed_at_once"),
        ("threads", "both_ways"),
        ("writing", "files_at_once"),
        ("events", "edge"),
    ] {
        Subject { program, name, moves: false }.compare(&network);
    }
}
