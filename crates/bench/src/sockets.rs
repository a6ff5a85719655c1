//! The benchmark of the papers about sockets over offloaded transports. It has the tests of these
//! papers, with their definitions: latency, throughput, multi-stream, hot-spot, fan-in, fan-out,
//! and connection time.
//!
//! A small program with ordinary sockets (modules `serve` and `ask`) runs over kernel TCP. It runs
//! again with the library that moves its connections to the edge. The library's counters must then
//! prove that the connections moved. In some tests the native API is measured as well. All
//! contenders alternate on the same virtual hosts, so that each ratio compares samples that are
//! close in time.

pub(crate) mod ask;
pub mod cases;
mod event_loop;
pub mod figures;
mod hosts;
mod native;
pub mod paper;
mod proof;
mod sample;
pub(crate) mod serve;
mod wire;
pub mod work;

use serde::{Deserialize, Serialize};

use crate::busy;
use crate::cpu;
use crate::machine::Machine;
use crate::results::{PathKind, Settings};
use crate::run::{Observer, RunError};
use crate::statistics;
use testbed::clock;

pub use self::cases::{Case, Contender, Test, Wishes};
pub use self::figures::{Figure, Ratio, Row};
use self::hosts::Hosts;
pub use self::proof::Unproven;
use self::sample::{Bench, Failed};

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The host of all processes.
    pub machine: Machine,
    /// The path between the hosts.
    pub path: PathKind,
    /// The settings of the measurement. Processes are pinned to the CPUs in `pinned_to` only in
    /// tests with one client.
    pub settings: Settings,
    /// Fixed number of round trips or messages per sample of a program with sockets, if the user
    /// gave one instead of a time.
    #[serde(default)]
    pub iterations: Option<u64>,
    /// Bits per second of each host's link, if the links were limited.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Whether this was a quick run, with fewer sizes, clients and samples than the papers have.
    pub is_quick: bool,
    /// The reason why contenders with the library were not measured; `None` if they were.
    pub no_library: Option<String>,
    /// One entry for each MTU, test, message size, number of clients and contender.
    pub rows: Vec<Row>,
    /// Samples that do not count, because they failed or their connections did not move to the
    /// edge.
    pub refused: Vec<Refused>,
}

/// A group of refused samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Test, size, clients and contender of the samples.
    pub what: String,
    /// The reason for the refusal.
    pub reason: String,
    /// Number of samples refused for this reason.
    pub samples: u32,
}

impl Report {
    /// Returns the row of a test and contender. In tests with one client, `clients` must be 1.
    pub fn row(
        &self,
        test: Test,
        mtu: u32,
        message_bytes: u64,
        clients: u32,
        contender: Contender,
    ) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.test, row.mtu, row.message_bytes, row.clients, row.contender)
                == (test, mtu, message_bytes, clients, contender)
        })
    }

    fn refuse(&mut self, what: String, reason: String) {
        let same = |known: &&mut Refused| known.what == what && known.reason == reason;
        match self.refused.iter_mut().find(same) {
            Some(known) => known.samples += 1,
            None => self.refused.push(Refused { what, reason, samples: 1 }),
        }
    }
}

/// Runs the measurements of `wishes`.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, RunError> {
    let cases = cases::all(wishes);
    let kept = u64::from(wishes.repetitions);
    let per_round: u64 = cases.iter().map(|case| case.contenders.len() as u64).sum();
    let pinned_to = wishes.pinning.then(cpu::first_two).flatten();
    let mut report = Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds: clock::unix_seconds(),
        machine: Machine::this(),
        path: PathKind::Loopback,
        settings: Settings {
            repetitions: wishes.repetitions,
            dropped: statistics::dropped(wishes.repetitions),
            sample_seconds: wishes.sample_seconds,
            in_flight: NATIVE_IN_FLIGHT,
            pinned_to,
            busy: wishes.busy,
        },
        iterations: wishes.iterations,
        rate: None,
        is_quick: wishes.is_quick,
        no_library: wishes.no_library.clone(),
        rows: Vec::new(),
        refused: Vec::new(),
    };
    let _busy = busy::start(&wishes.program, wishes.busy)?;
    let mut has_started = false;
    let mut mtus = wishes.mtus.clone();
    while let Some(mtu) = (!mtus.is_empty()).then(|| mtus.remove(0)) {
        let hosts = Hosts::open(wishes, mtu, observer)?;
        report.path = hosts.kind();
        report.rate = wishes.rate.filter(|_| hosts.kind() == PathKind::Namespaces);
        if hosts.kind() == PathKind::Loopback {
            // Keep only one MTU, because the loopback interface has a fixed MTU.
            mtus.clear();
        }
        if !std::mem::replace(&mut has_started, true) {
            observer.on_start(per_round * kept * (1 + mtus.len() as u64));
        }
        let mut bench = Bench::new(wishes, &hosts, pinned_to);
        let mut samples = cases.iter().map(Case::no_samples).collect::<Vec<_>>();
        for repetition in 1..=wishes.repetitions {
            for (case, samples) in cases.iter().zip(&mut samples) {
                for (contender, samples) in case.contenders.iter().zip(samples) {
                    let what = format!("{}, {}", case.name(), contender.name());
                    observer.on_sample(&format!("{what}, repetition {repetition} of {kept}"));
                    samples.push(match bench.sample(case, *contender) {
                        Ok(sample) => Some(sample),
                        Err(Failed::Refused(reason)) => {
                            report.refuse(format!("{what}, MTU {}", hosts.mtu()), reason);
                            None
                        }
                        Err(Failed::Process(source)) => {
                            return Err(RunError::Sample { what, source });
                        }
                    });
                }
            }
        }
        for (case, samples) in cases.iter().zip(samples) {
            report.rows.extend(figures::rows(case, hosts.mtu(), samples));
        }
    }
    Ok(report)
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-sockets/1";

/// Number of writes that the native API keeps in flight in a stream.
const NATIVE_IN_FLIGHT: u32 = 16;
