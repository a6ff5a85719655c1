//! What the client `mpi_results` prints, and whether it is the same over us as over TCP.

use std::path::PathBuf;

use crate::process::{Finished, Program};
use crate::ranks::{Hosts, Launcher, over_us};

/// An MPI with the client `mpi_results` built for it.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// What starts its ranks.
    pub launcher: Launcher,
    /// The client.
    pub client: PathBuf,
}

impl Mpi {
    /// Runs the client, or the part of it that this word names, over us and over TCP, with options of the launcher for
    /// each. Returns how it ended over us.
    ///
    /// # Panics
    /// If one has failed; if what they print differs; if TCP has carried what we should have.
    pub fn expect_same_as_over_tcp(
        &self,
        hosts: &Hosts,
        ranks: u32,
        part: &str,
        [us, tcp]: [&str; 2],
    ) -> Finished {
        let program = Program::new(&self.client.display().to_string(), part);
        let before = hosts.sent();
        let ended = hosts.start(&self.launcher, ranks, us, &over_us("", &program)).finish();
        let after = hosts.sent();
        let wanted = hosts.start(&self.launcher, ranks, tcp, &program).finish();
        wanted.expect_success();
        ended.expect_success();
        let all = format!("done by {ranks} ranks");
        assert!(results(&wanted).contains(&all.as_str()), "{wanted}");
        assert_eq!(results(&ended), results(&wanted), "{ended}");
        for (before, after) in before.into_iter().zip(after) {
            let sent = after - before;
            // The rest is what launchers say to each other and ranks print. Small messages are a datagram each.
            assert!(sent.datagrams > 4 * sent.segments, "{sent:?} {ended}");
        }
        ended
    }
}

/// Lines of the client; what libraries say besides is none of them.
fn results(ended: &Finished) -> Vec<&str> {
    let is_result = |line: &&str| line.contains(" rank ") || line.starts_with("done by ");
    ended.output.lines().filter(is_result).collect()
}
