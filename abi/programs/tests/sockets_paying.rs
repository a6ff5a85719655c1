//! By default a connection moves only after it has lasted for some time, and only if it becomes
//! faster by a move. All other connections have no extra cost.

use programs::{
    Counters, Finished, Loaded, Network, Program, Side, Stage, build_plain_client, expect_both,
};

/// A run of `clients/sockets_paying.c` with the counters of both sides, the server's first.
#[derive(Debug)]
struct Run {
    ended: [Finished; 2],
    counters: [Counters; 2],
}

impl Run {
    /// Runs a test case, with these variables on both sides.
    #[track_caller]
    fn of(
        network: &Network,
        loaded: Loaded,
        subject: &str,
        variables: &[(&str, &str)],
    ) -> Option<Self> {
        let program = build_plain_client("sockets_paying")?;
        let stage = Stage::new(network, loaded)?.variable("ETHERNOT_SOCKETS_MOVE", "when-it-pays");
        let stage = stage.variable("ETHERNOT_SOCKETS_LOG", "info");
        let stage =
            variables.iter().fold(stage, |stage, (name, value)| stage.variable(name, value));
        let port = stage.free_port();
        let side = |role: &str| {
            let program = Program::new(&program.display().to_string(), subject).argument(&role);
            program.argument(&stage.address()).argument(&port).argument(&0)
        };
        let mut server = stage.start(&side("server"), Side::Server);
        server.wait_for_listener(port);
        let client = stage.run(&side("client"), Side::Client);
        let ended = [server.finish(), client];
        expect_both(&ended);
        let counters = [Side::Server, Side::Client].map(|side| stage.counters(side));
        Some(Self { ended, counters })
    }

    /// Runs a test case with the library on both sides, in which connections must move, and checks
    /// the counters like [`Run::expect`]. Repeats a run that fails this check: on a busy host, a
    /// peer may answer after more than a second, and a connection that should move then stays on
    /// TCP.
    #[track_caller]
    fn expect_moves(
        network: &Network,
        subject: &str,
        variables: &[(&str, &str)],
        moved: u64,
        reasons: [&[(&str, u64)]; 2],
    ) -> Option<()> {
        for _ in 1..RUNS {
            if Self::of(network, Loaded::Both, subject, variables)?.has(moved, reasons) {
                return Some(());
            }
        }
        Self::of(network, Loaded::Both, subject, variables)?.expect(moved, reasons);
        Some(())
    }

    /// Checks that `moved` connections have moved on each side, and that the others stayed on TCP
    /// for these reasons.
    #[track_caller]
    fn expect(&self, moved: u64, reasons: [&[(&str, u64)]; 2]) {
        let ([server, client], counters) = (&self.ended, &self.counters);
        let is_right = self.has(moved, reasons);
        assert!(is_right, "{moved} moved, left {reasons:?}: {counters:?}\n{server}\n{client}");
    }

    fn has(&self, moved: u64, reasons: [&[(&str, u64)]; 2]) -> bool {
        self.counters.iter().zip(reasons).all(|(counters, wanted)| {
            // Ignores the reason `went-home`, because a moved connection may return to TCP when the
            // process ends.
            let stayed = counters.reasons.iter().filter(|(reason, _)| reason != "went-home");
            let found: Vec<_> = stayed.map(|(reason, count)| (reason.as_str(), *count)).collect();
            counters.moved == moved && found == wanted
        })
    }
}

#[test]
fn a_short_connection_stays_on_tcp() {
    let Some(run) = Run::of(&Network::Loopback, Loaded::Both, "short", &[]) else { return };
    run.expect(0, [&[("short", 1)]; 2]);
}

#[test]
fn a_connection_that_lasts_moves_on_one_host() {
    for subject in ["turns", "stream", "threads"] {
        if Run::expect_moves(&Network::Loopback, subject, &[], 1, [&[]; 2]).is_none() {
            return;
        }
    }
}

#[test]
fn a_half_closed_connection_stays_on_tcp() {
    let Some(run) = Run::of(&Network::Loopback, Loaded::Both, "half", &[]) else { return };
    run.expect(0, [&[("short", 1)]; 2]);
}

#[test]
fn between_two_hosts_polling_is_a_gain_and_one_link_is_not() {
    let Some(network) = Network::namespaces() else { return };
    let Some(run) = Run::of(&network, Loaded::Both, "turns", &[]) else { return };
    run.expect(0, [&[("no-gain", 1)]; 2]);
    let poll = [("ETHERNOT_SOCKETS_POLL", "100")];
    Run::expect_moves(&network, "turns", &poll, 1, [&[]; 2]);
}

#[test]
fn between_two_hosts_a_connection_that_lasts_moves_to_two_links() {
    let Some(network) = Network::namespaces_with(2) else { return };
    for subject in ["turns", "stream"] {
        if Run::expect_moves(&network, subject, &[LINKS], 1, [&[]; 2]).is_none() {
            return;
        }
    }
    let Some(run) = Run::of(&network, Loaded::Both, "short", &[LINKS]) else { return };
    run.expect(0, [&[("short", 1)]; 2]);
}

#[test]
fn a_peer_without_the_library_gets_one_offer_for_two_connections() {
    let Some(network) = Network::namespaces_with(2) else { return };
    let Some(run) = Run::of(&network, Loaded::Client, "again", &[LINKS]) else { return };
    run.expect(0, [&[], &[("no-offer", 2)]]);
    let before = network.sent(Side::Server);
    let Some(run) = Run::of(&network, Loaded::Server, "again", &[LINKS]) else { return };
    // The first connection may end before the library has decided that the peer does not answer. It
    // then stays on TCP for the reason `closed`.
    let server = &run.counters[0];
    let is_silence =
        |(reason, _): &(String, u64)| matches!(reason.as_str(), "closed" | "no-answer");
    let is_right = (server.moved, server.left) == (0, 2) && server.reasons.iter().all(is_silence);
    assert!(is_right, "{run:?}");
    let sent = network.sent(Side::Server) - before;
    assert!((1..=OFFERS_MAX).contains(&sent.datagrams), "{sent:?}");
}

#[test]
fn a_connection_moves_at_once_if_earlier_ones_have_lasted() {
    Run::expect_moves(&Network::Loopback, "known", &[], 3, [&[]; 2]);
}

#[test]
fn a_connection_waits_for_a_peer_that_does_not_expect_the_move() {
    Run::expect_moves(&Network::Loopback, "forked", &[], 3, [&[], &[("no-offer", 1)]]);
}

#[test]
fn no_connection_moves_if_the_user_forbids_it() {
    let never = [("ETHERNOT_SOCKETS_MOVE", "never")];
    let Some(run) = Run::of(&Network::Loopback, Loaded::Both, "turns", &never) else { return };
    run.expect(0, [&[("off", 1)]; 2]);
    let always = [("ETHERNOT_SOCKETS_MOVE", "always")];
    Run::expect_moves(&Network::Loopback, "again", &always, 2, [&[]; 2]);
}

/// The names of both links, which are the same on both hosts.
const LINKS: (&str, &str) = ("ETHERNOT_SOCKETS_LINKS", "udp:link1,udp:link2");

/// Maximum number of times that the library sends one offer to move a connection.
const OFFERS_MAX: u64 = 10;

/// Maximum number of runs of a test case in which connections must move.
const RUNS: u32 = 3;
