//! Programs that print what they see of a connection: it is to be the same over plain TCP and with the library.

use std::path::Path;

use crate::client::build_plain_client;
use crate::network::{Network, Side};
use crate::process::{Program, expect_both};
use crate::sockets::{Loaded, Stage};

/// What a program of `clients/sockets_*.c` looks at.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The program: `clients/sockets_NAME.c`.
    pub program: &'a str,
    /// What it is to look at.
    pub name: &'a str,
    /// Whether connections of it can be moved at all.
    pub moves: bool,
}

/// When a program begins with what it looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum When {
    /// At once, so that connections move in the midst of it.
    Early,
    /// After it has talked so long that connections are about to move by default.
    Halfway,
    /// After it has talked long enough for connections to have moved.
    Late,
}

impl Subject<'_> {
    /// Runs it over plain TCP, then with the library, both from the beginning of a connection and when that has moved.
    ///
    /// # Panics
    /// If it fails, or what it prints differs.
    #[track_caller]
    pub fn compare(&self, network: &Network) {
        self.compare_when(network, "always", &[When::Early, When::Late]);
    }

    /// Compares as [`Self::compare`] does, where connections move when that pays, as by default.
    ///
    /// # Panics
    /// As [`Self::compare`].
    #[track_caller]
    pub fn compare_by_default(&self, network: &Network) {
        self.compare_when(network, "when-it-pays", &[When::Halfway, When::Late]);
    }

    #[track_caller]
    fn compare_when(&self, network: &Network, moving: &str, times: &[When]) {
        let Some(program) = build_plain_client(&format!("sockets_{}", self.program)) else {
            return;
        };
        for &when in times {
            let run = |loaded| self.run(&program, network, loaded, when, moving);
            let Some(plain) = run(Loaded::Neither) else { return };
            for side in [0, 1] {
                assert!(!plain[side].is_empty(), "{self:?} says nothing");
            }
            for loaded in [Loaded::Both, Loaded::Server, Loaded::Client] {
                let Some(over) = run(loaded) else { return };
                assert_eq!(over, plain, "{self:?} {when:?} {loaded:?} against plain TCP");
            }
        }
    }

    /// What server and client print.
    #[track_caller]
    fn run(
        &self,
        program: &Path,
        network: &Network,
        loaded: Loaded,
        when: When,
        moving: &str,
    ) -> Option<[String; 2]> {
        let stage = Stage::new(network, loaded)?.variable("ETHERNOT_SOCKETS_MOVE", moving);
        let port = stage.free_port();
        let warm_ms = match when {
            When::Early => 0,
            // A word and its answer in each millisecond.
            When::Halfway => 24,
            When::Late => 50,
        };
        let side = |role: &str| {
            let program = Program::new(&program.display().to_string(), self.name);
            let program = program.argument(&role).argument(&stage.address()).argument(&port);
            program.argument(&warm_ms)
        };
        let mut server = stage.start(&side("server"), Side::Server);
        server.wait_for_listener(port);
        let client = stage.run(&side("client"), Side::Client);
        let ended = [server.finish(), client];
        println!("{} {when:?} {loaded:?}", self.name);
        expect_both(&ended);
        if when == When::Late && self.moves {
            stage.expect_path();
        }
        Some(ended.map(|ended| ended.output))
    }
}
