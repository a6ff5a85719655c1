//! MPI over us and over TCP: whether both come to the same, and how fast each is.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::client::build_mpi_client;
use crate::network::Sent;
use crate::process::{Finished, Program};
use crate::ranks::{Hosts, Launcher, over_us};

/// An MPI, and what is said to its launcher.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// What programs built for it are called after.
    pub name: &'static str,
    /// What builds them.
    pub compiler: PathBuf,
    /// What starts ranks.
    pub launcher: Launcher,
    /// Options by which messages go over us.
    pub us: String,
    /// Options by which they go over TCP.
    pub tcp: String,
}

impl Mpi {
    /// Runs a client of the tests with so many ranks over us, with these options of `ethernot run`. Returns how it has ended,
    /// and what was sent on each host meanwhile.
    pub fn over_us(
        &self,
        hosts: &Hosts,
        ranks: u32,
        options: &str,
        client: [&str; 2],
    ) -> Option<(Finished, [Sent; 2])> {
        let program = over_us(options, &self.client(client)?);
        let before = hosts.sent();
        let ended = hosts.start(&self.launcher, ranks, &self.us, &program).finish();
        let [first, second] = hosts.sent();
        Some((ended, [first - before[0], second - before[1]]))
    }

    /// Runs the client over TCP, without our libraries.
    pub fn over_tcp(&self, hosts: &Hosts, ranks: u32, client: [&str; 2]) -> Option<Finished> {
        let program = self.client(client)?;
        Some(hosts.start(&self.launcher, ranks, &self.tcp, &program).finish())
    }

    /// As the function above, for the client `mpi_results`. MPICH 4 over TCP comes to its end and then does not always end: what it has
    /// printed counts.
    fn results_over_tcp(&self, hosts: &Hosts, ranks: u32, client: [&str; 2]) -> Option<Finished> {
        let program = self.client(client)?;
        let mut running = hosts.start(&self.launcher, ranks, &self.tcp, &program);
        running.wait_for_output(&format!("done by {ranks} ranks"));
        Some(running.finish_within(PARTING))
    }

    /// Runs these parts of the client `mpi_results` with two ranks and with four, over us and over TCP; nothing if
    /// that cannot be done here.
    ///
    /// # Panics
    /// If one has failed; if what they print differs; if what libraries say over us is not `says`; if TCP has carried what
    /// we should have, where `is_all_ours`.
    pub fn expect_same_as_over_tcp(&self, parts: &[&str], says: &str, is_all_ours: bool) {
        let Some(hosts) = Hosts::two() else { return };
        // Ranks that wait spin, most of them: those of several tests would starve each other.
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for ranks in [2, 4] {
            for part in parts {
                let client = ["mpi_results", part];
                let Some((ended, sent)) = self.over_us(&hosts, ranks, "", client) else { return };
                ended.expect_success();
                let Some(wanted) = self.results_over_tcp(&hosts, ranks, client) else { return };
                println!("{ranks} ranks, {part}: {:?}, over TCP {:?}", ended.took, wanted.took);
                assert_eq!(results(&ended), results(&wanted), "{ended}");
                assert!(ended.output.contains(says), "no {says}: {ended}");
                for sent in sent {
                    // What launchers say to each other and ranks print goes by TCP. Many datagrams that are sent at
                    // once count once.
                    let is_ours = sent.datagrams > sent.segments;
                    assert!(is_ours || !is_all_ours, "{sent:?} {ended}");
                }
            }
        }
    }

    /// Measures speeds over us and over TCP in turn: the medians of ratios of latency and of throughput of two
    /// ranks, and of the time of an allreduce and of an alltoall of four.
    pub fn speeds(&self, turns: usize) -> Option<[f64; 4]> {
        let hosts = Hosts::two()?;
        let figures =
            [(2, "latency_1"), (2, "throughput_1048576"), (4, "allreduce_8"), (4, "alltoall_1024")];
        let mut ratios = [const { Vec::new() }; 4];
        for _ in 0..turns {
            for (ranks, part) in [(2, "pair"), (4, "collectives")] {
                let client = ["mpi_speed", part];
                let (over_us, _) = self.over_us(&hosts, ranks, "", client)?;
                let over_tcp = self.over_tcp(&hosts, ranks, client)?;
                let of_these = ratios.iter_mut().zip(figures).filter(|(_, (of, _))| *of == ranks);
                for (ratios, (_, name)) in of_these {
                    let (ours, theirs) = (value(&over_us, name), value(&over_tcp, name));
                    println!("{name}: {ours}, over TCP {theirs}");
                    ratios.push(ours / theirs);
                }
            }
        }
        Some(ratios.map(median))
    }

    /// A client of the tests, built for this MPI, and its arguments.
    fn client(&self, [client, arguments]: [&str; 2]) -> Option<Program> {
        let path = build_mpi_client(&self.compiler, self.name, client)?;
        Some(Program::new(&path.display().to_string(), arguments))
    }
}

/// Time from its start after which a program that is done may be killed.
const PARTING: Duration = Duration::from_secs(30);

static ALONE: Mutex<()> = Mutex::new(());

/// What rank 0 has printed of results; what libraries say besides is none of them.
fn results(ended: &Finished) -> Vec<&str> {
    let is_result = |line: &&str| line.contains(" rank ") || line.starts_with("done by ");
    let lines: Vec<_> = ended.output.lines().filter(is_result).collect();
    assert!(lines.last().is_some_and(|last| last.starts_with("done by ")), "{ended}");
    lines
}

/// The value of a line that `mpi_speed` has printed.
fn value(ended: &Finished, name: &str) -> f64 {
    let is_it = |line: &&str| line.split_whitespace().next() == Some(name);
    let line = ended.expect_success().lines().find(is_it);
    let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {ended}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
