//! MPI over the device and over TCP: compares the results, and measures the speed of each.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::client::build_mpi_client;
use crate::network::Sent;
use crate::process::{Finished, Program};
use crate::ranks::{Hosts, Launcher, over_us};

/// An MPI implementation and the options of its launcher.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Suffix of the names of programs that are built for this MPI.
    pub name: &'static str,
    /// The compiler that builds programs for this MPI.
    pub compiler: PathBuf,
    /// The launcher that starts ranks.
    pub launcher: Launcher,
    /// Launcher options that send messages over the device.
    pub us: String,
    /// Launcher options that send messages over TCP.
    pub tcp: String,
}

impl Mpi {
    /// Runs a test client with `ranks` ranks under `ethernot run` with `options`. Returns the
    /// client's result, and the traffic that each host sent during the run.
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

    /// Runs a test client over TCP, without the project's libraries.
    pub fn over_tcp(&self, hosts: &Hosts, ranks: u32, client: [&str; 2]) -> Option<Finished> {
        let program = self.client(client)?;
        Some(hosts.start(&self.launcher, ranks, &self.tcp, &program).finish())
    }

    /// Runs the client `mpi_results` over TCP, and waits only for its last line of output. With
    /// MPICH 4 over TCP the ranks finish, but the launcher does not always end.
    fn results_over_tcp(&self, hosts: &Hosts, ranks: u32, client: [&str; 2]) -> Option<Finished> {
        let program = self.client(client)?;
        let mut running = hosts.start(&self.launcher, ranks, &self.tcp, &program);
        running.wait_for_output(&format!("done by {ranks} ranks"));
        Some(running.finish_within(PARTING))
    }

    /// Runs these parts of the client `mpi_results` with two and with four ranks, over the device
    /// and over TCP. Does nothing if this is not possible here.
    ///
    /// # Panics
    /// Panics if a run fails; if the outputs differ; if the output over the device does not contain
    /// `says`; or if `is_all_ours` is true and TCP carried messages.
    pub fn expect_same_as_over_tcp(&self, parts: &[&str], says: &str, is_all_ours: bool) {
        self.expect_same_with("", parts, says, is_all_ours);
    }

    /// Compares results like [`Self::expect_same_as_over_tcp`], with these options of
    /// `ethernot run`.
    ///
    /// # Panics
    /// Panics in the same cases.
    pub fn expect_same_with(&self, options: &str, parts: &[&str], says: &str, is_all_ours: bool) {
        let Some(hosts) = Hosts::two() else { return };
        // Runs one test at a time, because most waiting ranks spin. The ranks of concurrent tests
        // would take the processors from each other.
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for ranks in [2, 4] {
            for part in parts {
                let client = ["mpi_results", part];
                let Some((ended, sent)) = self.over_us(&hosts, ranks, options, client) else {
                    return;
                };
                ended.expect_success();
                let Some(wanted) = self.results_over_tcp(&hosts, ranks, client) else { return };
                println!("{ranks} ranks, {part}: {:?}, over TCP {:?}", ended.took, wanted.took);
                assert_eq!(results(&ended), results(&wanted), "{ended}");
                assert!(ended.output.contains(says), "no {says}: {ended}");
                for sent in sent {
                    // If the device carries all messages of ranks, TCP carries only messages of
                    // launchers and output of ranks, so there are fewer segments than datagrams.
                    // The true number of datagrams may be even higher than the counted number,
                    // because datagrams sent in one batch count as one.
                    let is_ours = sent.datagrams > sent.segments;
                    assert!(is_ours || !is_all_ours, "{sent:?} {ended}");
                }
            }
        }
    }

    /// Measures speeds over the device and over TCP, alternating, `turns` times each. Returns the
    /// medians of the ratios: latency and throughput of two ranks, and the time of an allreduce and
    /// of an alltoall of four ranks.
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

    /// Returns a test client, built for this MPI, with its arguments.
    fn client(&self, [client, arguments]: [&str; 2]) -> Option<Program> {
        let path = build_mpi_client(&self.compiler, self.name, client)?;
        Some(Program::new(&path.display().to_string(), arguments))
    }
}

/// Time from the start of a launcher until the test kills it, if it has printed all results of its
/// ranks but does not end.
const PARTING: Duration = Duration::from_secs(30);

static ALONE: Mutex<()> = Mutex::new(());

/// Returns the result lines of rank 0, without the messages of libraries.
fn results(ended: &Finished) -> Vec<&str> {
    let is_result = |line: &&str| line.contains(" rank ") || line.starts_with("done by ");
    let lines: Vec<_> = ended.output.lines().filter(is_result).collect();
    assert!(lines.last().is_some_and(|last| last.starts_with("done by ")), "{ended}");
    lines
}

/// Returns the value of the line `name` in the output of `mpi_speed`.
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
