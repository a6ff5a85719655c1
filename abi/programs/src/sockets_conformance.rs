//! Programs that print their observations of a connection. The output must be the same over plain
//! TCP and with the library.

use std::path::Path;

use crate::client::build_plain_client;
use crate::network::{Network, Side};
use crate::process::{Program, expect_both};
use crate::sockets::{Loaded, Stage, WARM_UPS_MS};

/// A test case of a program `clients/sockets_*.c`.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The program: `NAME` in `clients/sockets_NAME.c`.
    pub program: &'a str,
    /// The name of the test case, an argument of the program.
    pub name: &'a str,
    /// True if the library can move the connections of this test case.
    pub moves: bool,
}

/// When a program begins its test case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum When {
    /// Immediately, so that connections move during the test case.
    Early,
    /// After about as much traffic as a connection needs to move by default.
    Halfway,
    /// After enough traffic for connections to have moved.
    Late,
}

impl Subject<'_> {
    /// Runs the test case over plain TCP, then with the library: once from the start of a
    /// connection, and once after it has moved.
    ///
    /// # Panics
    /// Panics if a run fails or the outputs differ.
    #[track_caller]
    pub fn compare(&self, network: &Network) {
        self.compare_when(network, "always", &[When::Early, When::Late]);
    }

    /// Compares like [`Self::compare`], but with the default rules: a connection moves only if it
    /// becomes faster by a move.
    ///
    /// # Panics
    /// Panics if a run fails or the outputs differ.
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

    /// Runs the test case and returns the output of server and client. If the connection must move
    /// and has not, because the host is busy, repeats the run with more traffic before the test
    /// case.
    #[track_caller]
    fn run(
        &self,
        program: &Path,
        network: &Network,
        loaded: Loaded,
        when: When,
        moving: &str,
    ) -> Option<[String; 2]> {
        let warm_ups_ms: &[u32] = match when {
            When::Early => &[0],
            // The numbers are milliseconds. In each millisecond, server and client exchange a
            // message and its answer.
            When::Halfway => &[24],
            When::Late => &WARM_UPS_MS,
        };
        let must_move = when == When::Late && self.moves;
        let mut wrong = None;
        for warm_ms in warm_ups_ms {
            let stage = Stage::new(network, loaded)?.variable("ETHERNOT_SOCKETS_MOVE", moving);
            let output = self.run_on(&stage, program, *warm_ms);
            println!("{} {when:?} {loaded:?} {warm_ms} ms", self.name);
            if !must_move || stage.has_path() {
                return Some(output);
            }
            wrong = stage.wrong_path();
        }
        panic!("{self:?}: {}", wrong.unwrap_or_default());
    }

    /// Runs the test case once, and returns the output of server and client.
    #[track_caller]
    fn run_on(&self, stage: &Stage<'_>, program: &Path, warm_ms: u32) -> [String; 2] {
        let port = stage.free_port();
        let side = |role: &str| {
            let program = Program::new(&program.display().to_string(), self.name);
            let program = program.argument(&role).argument(&stage.address()).argument(&port);
            program.argument(&warm_ms)
        };
        let mut server = stage.start(&side("server"), Side::Server);
        server.wait_for_listener(port);
        let client = stage.run(&side("client"), Side::Client);
        let ended = [server.finish(), client];
        expect_both(&ended);
        ended.map(|ended| ended.output)
    }
}
