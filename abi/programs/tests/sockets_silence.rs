//! Peers that are stopped for some time, and links that are down for some time. Connections wait
//! and then continue, like plain TCP connections.
#![expect(clippy::disallowed_methods, reason = "a silence lasts for some time")]

use std::thread;
use std::time::Duration;

use programs::{Loaded, Network, Running, Side, Stage, WARM_UPS_MS};

/// A connection with a stream of data, or an idle connection. If both sides have the library, the
/// connection has moved.
struct Flow<'a> {
    kind: &'a str,
    stage: Stage<'a>,
    server: Running,
    client: Running,
}

impl<'a> Flow<'a> {
    /// Starts both sides of `clients/sockets_silence.c` with this test case. If the connection
    /// stays on TCP, because the host is busy, starts another with more traffic before it.
    ///
    /// # Panics
    /// Panics if no connection takes the expected path in several attempts.
    fn start(network: &'a Network, loaded: Loaded, kind: &'a str) -> Option<Self> {
        for warm_ms in WARM_UPS_MS {
            let flow = Self::begin(network, loaded, kind, warm_ms)?;
            if flow.stage.has_path() {
                return Some(flow);
            }
        }
        panic!("all connections of kind {kind} stayed on TCP")
    }

    fn begin(network: &'a Network, loaded: Loaded, kind: &'a str, warm_ms: u32) -> Option<Self> {
        let stage = Stage::new(network, loaded)?.variable("ETHERNOT_SOCKETS_LOG", "info");
        let [mut server, mut client] = stage.start_both("sockets_silence", kind, warm_ms)?;
        let is_up = matches!(kind, "up" | "limited");
        (if is_up { &mut server } else { &mut client }).wait_for_output("flows");
        Some(Self { kind, stage, server, client })
    }

    const fn side(&self, side: Side) -> &Running {
        match side {
            Side::Server => &self.server,
            Side::Client => &self.client,
        }
    }

    /// Checks that every byte arrived, and that both sides read the end of the stream.
    fn expect_whole(self) {
        // Send SIGTERM to the side that writes the stream or sends the requests. That side then
        // stops sending.
        self.side(if self.kind == "up" { Side::Client } else { Side::Server }).signal("TERM");
        for ended in [self.server.finish(), self.client.finish()] {
            ended.expect_success();
        }
    }
}

const KINDS: [&str; 3] = ["down", "up", "idle"];

/// A silence that is longer than the time limit for a silent peer during the set-up of a
/// connection.
const SHORT: Duration = Duration::from_secs(12);

const LONG: Duration = Duration::from_mins(1);

/// Stops one side for `lasts`.
fn stop(kind: &str, side: Side, lasts: Duration) {
    for loaded in [Loaded::Neither, Loaded::Both] {
        println!("{kind}, the {side:?} is stopped, {loaded:?}");
        let Some(flow) = Flow::start(&Network::Loopback, loaded, kind) else { return };
        flow.side(side).signal("STOP");
        thread::sleep(lasts);
        flow.side(side).signal("CONT");
        flow.expect_whole();
    }
}

/// Sets the link down for `lasts`.
fn cut(kind: &str, lasts: Duration) {
    let Some(network) = Network::namespaces() else { return };
    for loaded in [Loaded::Neither, Loaded::Both] {
        println!("{kind}, the link is down, {loaded:?}");
        let Some(flow) = Flow::start(&network, loaded, kind) else { return };
        network.set_link(false);
        thread::sleep(lasts);
        network.set_link(true);
        flow.expect_whole();
    }
}

#[test]
fn a_connection_waits_for_a_stopped_peer() {
    thread::scope(|scope| {
        for kind in KINDS {
            for side in [Side::Server, Side::Client] {
                scope.spawn(move || stop(kind, side, SHORT));
            }
        }
    });
}

#[test]
fn a_connection_waits_for_a_link_that_is_down() {
    thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || cut(kind, SHORT));
        }
    });
}

#[test]
fn a_peer_killed_during_a_silence_resets_its_connections() {
    for kind in KINDS {
        let Some(flow) = Flow::start(&Network::Loopback, Loaded::Both, kind) else { return };
        let (dies, survivor) =
            if kind == "up" { (flow.server, flow.client) } else { (flow.client, flow.server) };
        dies.signal("STOP");
        thread::sleep(Duration::from_secs(3));
        dies.signal("KILL");
        if kind == "idle" {
            survivor.signal("TERM");
        }
        let survivor = survivor.finish();
        assert!(survivor.output.contains("Connection reset by peer"), "{kind}: {survivor}");
        drop(dies.finish());
    }
}

#[test]
fn a_peer_killed_while_the_link_is_down_resets_its_connections() {
    let Some(network) = Network::namespaces() else { return };
    for loaded in [Loaded::Neither, Loaded::Both] {
        let Some(flow) = Flow::start(&network, loaded, "up") else { return };
        network.set_link(false);
        thread::sleep(Duration::from_secs(2));
        flow.server.signal("KILL");
        let _dead = flow.server.finish();
        network.set_link(true);
        let ended = flow.client.finish();
        let is_reported =
            ["Connection reset by peer", "Broken pipe"].map(|how| ended.output.contains(how));
        assert!(is_reported.contains(&true), "{loaded:?}: {ended}");
    }
}

#[test]
fn a_program_limits_how_long_it_waits() {
    let Some(network) = Network::namespaces() else { return };
    for loaded in [Loaded::Neither, Loaded::Both] {
        let Some(flow) = Flow::start(&network, loaded, "limited") else { return };
        network.set_link(false);
        let ended = flow.client.finish();
        // If a retransmission of the kernel found no route, because the link is down, TCP reports
        // this error (`sk_err_soft`) instead of the time-out.
        let errors: &[&str] = match loaded {
            Loaded::Neither => &["ETIMEDOUT", "ENETUNREACH", "EHOSTUNREACH"],
            _ => &["ETIMEDOUT"],
        };
        let is_known = |error: &&str| ended.output.contains(&format!("writing ends: {error}"));
        assert!(errors.iter().any(is_known), "{loaded:?}: {ended}");
        drop(flow.server);
        network.set_link(true);
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn silences_of_a_minute() {
    thread::scope(|scope| {
        for kind in KINDS {
            for side in [Side::Server, Side::Client] {
                scope.spawn(move || stop(kind, side, LONG));
            }
            scope.spawn(move || cut(kind, LONG));
        }
    });
    // Each kind runs over TCP and over the edge, with three silences: the server is stopped, the
    // client is stopped, or the link is down.
    println!("figure: silences of a minute that connections outlast: {}", KINDS.len() * 3);
}
