//! A pass: the alternating measurement of several contenders at some sizes and windows.

use std::path::Path;
use std::time::Duration;

use super::contender::{Contender, Manner, TCP};
use super::document::{Document, DocumentError};
use super::figures::{Point, Sample, Samples, Surroundings, compare};
use super::hosts::Hosts;
use super::mpi::{MpiError, Tool};
use super::{DeviceRow, Operation, Wishes, dry_run, processors};
use crate::machine;
use crate::run::Observer;
use crate::unmodified::running::{ProgramError, ProgramPlace, Running};

/// A kind of test. Each kind has the name that the measuring programs use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bandwidth,
    BothWays,
    Latency,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::BothWays => "both-ways",
            Self::Latency => "latency",
        }
    }

    /// Returns the name in results. It begins with `mpi-` if an MPI is among the contenders.
    fn name_among(self, contenders: &[Contender]) -> String {
        let is_mpi = contenders.iter().any(|contender| matches!(contender, Contender::Mpi(..)));
        format!("{}{}", if is_mpi { "mpi-" } else { "" }, self.name())
    }

    const fn unit(self) -> &'static str {
        if matches!(self, Self::Latency) { "s" } else { "B/s" }
    }
}

/// The parameters of a pass, whose points are measured together.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) kind: Kind,
    pub(super) operation: Operation,
    pub(super) sizes: Vec<u64>,
    pub(super) windows: Vec<u32>,
    pub(super) contenders: Vec<Contender>,
}

/// Why a sample is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum SampleError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(
        "the program measured {0} points instead of {1}; install it together with this command"
    )]
    Points(usize, usize),
    #[error("the program ran on device {0} instead of {1}")]
    Device(String, &'static str),
}

/// The results of a contender in one repetition: one sample for each point.
type Repetition = Vec<Sample>;

/// A pass and the objects needed to measure it.
pub(super) struct Measuring<'a> {
    pub(super) wishes: &'a Wishes,
    pub(super) hosts: &'a Hosts,
    pub(super) pass: &'a Pass,
}

impl Measuring<'_> {
    /// Measures all contenders alternately. Each repetition begins with another contender. If a
    /// contender fails, later repetitions omit it.
    pub(super) fn run(&self, observer: &mut dyn Observer, devices: &mut [DeviceRow]) -> Vec<Point> {
        let contenders = &self.pass.contenders;
        let mut taken: Vec<Result<Vec<Repetition>, String>> =
            contenders.iter().map(|contender| self.check(contender, devices)).collect();
        let mut surroundings = Surroundings::default();
        for repetition in 0..self.wishes.runs as usize {
            let mut once = self.take(repetition, &mut taken, observer);
            if once.variation_percent > dry_run::BUSY_PERCENT && surroundings.retaken < RETAKEN_MAX
            {
                surroundings.retaken += 1;
                let again = self.take(repetition, &mut taken, observer);
                if again.variation_percent < once.variation_percent {
                    once = again;
                }
            }
            surroundings.dry_run_percent = surroundings.dry_run_percent.max(once.variation_percent);
            surroundings.load = surroundings.load.max(machine::load());
            for (all, one) in taken.iter_mut().zip(once.repetitions) {
                if let (Ok(all), Some(one)) = (all, one) {
                    all.push(one);
                }
            }
        }
        surroundings.is_busy = surroundings.dry_run_percent > dry_run::BUSY_PERCENT;
        self.points(&taken, surroundings)
    }

    /// Makes a contender transfer data and compare all bytes, before the measurement. Returns one
    /// empty list of repetitions to fill, or the reason why the contender cannot be measured.
    fn check(
        &self,
        contender: &Contender,
        devices: &mut [DeviceRow],
    ) -> Result<Vec<Repetition>, String> {
        let row = devices.iter_mut().find(|row| row.name == contender.device());
        if contender.device() != TCP && row.is_none() {
            return Err(NOT_ASKED_FOR.to_string());
        }
        let checked = self.sample(contender, "--check --iterations 1");
        // Ignore MPI here, because the failure of an MPI does not show that the device failed.
        match (&checked, row.filter(|_| matches!(contender, Contender::Verbs(..)))) {
            (Ok((document, _)), Some(row)) => {
                row.transport = Some(document.device.transport.clone());
            }
            (Err(error), Some(row)) if row.transport.is_none() => {
                row.cannot_run = Some(error.to_string());
            }
            _ => {}
        }
        checked.map(|_| Vec::new()).map_err(|error| error.to_string())
    }

    /// Takes one repetition of all contenders that have not failed, between two dry runs.
    fn take(
        &self,
        repetition: usize,
        taken: &mut [Result<Vec<Repetition>, String>],
        observer: &mut dyn Observer,
    ) -> Once {
        let contenders = &self.pass.contenders;
        let mut repetitions = vec![None; contenders.len()];
        let before = dry_run::variation_percent(&self.hosts.all_cpus());
        for turn in 0..contenders.len() {
            let place = (turn + repetition) % contenders.len();
            let contender = &contenders[place];
            let kind = self.pass.kind.name_among(contenders);
            observer.on_sample(&format!("{kind}, {}", contender.name()));
            if taken[place].is_err() {
                continue;
            }
            match self.sample(contender, &format!("--seconds {}", self.wishes.seconds)) {
                Ok((document, interrupt_shares)) => {
                    let runs = document.points.iter().filter_map(|point| point.runs.first());
                    let samples = runs.map(|&run| Sample { run, interrupt_shares });
                    repetitions[place] = Some(samples.collect());
                }
                Err(error) => taken[place] = Err(error.to_string()),
            }
        }
        let after = dry_run::variation_percent(&self.hosts.all_cpus());
        Once { repetitions, variation_percent: before.max(after) }
    }

    /// Measures all points once.
    fn sample(
        &self,
        contender: &Contender,
        amount: &str,
    ) -> Result<(Document, [f64; 2]), SampleError> {
        let before = processors::ticks(self.hosts.protocol_cpus());
        let document = match contender {
            Contender::Mpi(mpi, over) => {
                let mpis = self.hosts.mpis().ok_or(MpiError::not_prepared())?;
                let (around, words) = ((self.hosts, self.wishes), self.measured_words(amount));
                let ran = mpis.run(around, (*mpi, *over), Tool::MpiPerf, &words, self.limit())?;
                let document = Document::parse(&ran.printed)?;
                ran.check(document.bytes(), document.rounds())?;
                document
            }
            Contender::Verbs(..) | Contender::Tcp(_) => {
                Document::parse(&self.ask_server(contender, amount)?)?
            }
        };
        let after = processors::ticks(self.hosts.protocol_cpus());
        let expected = self.pass.sizes.len() * self.pass.windows.len();
        if document.points.len() != expected {
            return Err(SampleError::Points(document.points.len(), expected));
        }
        // Accept any device of an MPI, because an MPI reports the name of its library instead of a
        // device.
        let is_right = match contender {
            Contender::Verbs(device, ..) => device.is_named(&document.device.name),
            Contender::Tcp(_) => document.device.name == contender.device(),
            Contender::Mpi(..) => true,
        };
        if !is_right {
            return Err(SampleError::Device(document.device.name, contender.device()));
        }
        Ok((document, processors::interrupt_shares(before, after)))
    }

    /// Starts the server, lets the client measure, and ends the server. If a polling server kept
    /// running, it would take CPU time from other contenders.
    fn ask_server(&self, contender: &Contender, amount: &str) -> Result<String, ProgramError> {
        let (client, server) = (self.hosts.client(self.wishes), self.hosts.server(self.wishes));
        let program = program_name(contender);
        let mut serving = Running::start(
            &server,
            &format!("{program}-server"),
            self.words(contender, &server, ""),
        )?;
        serving.await_printed(LISTENS)?;
        let words = self.words(contender, &client, &self.client_words(contender, amount));
        let finished = Running::start(&client, program, words)?.finish(self.limit())?;
        serving.end();
        Ok(finished.printed)
    }

    /// Returns the command line of the program. On a device, the command is `ethernot run`.
    fn words(
        &self,
        contender: &Contender,
        place: &ProgramPlace<'_>,
        arguments: &str,
    ) -> Vec<String> {
        let programs = &self.wishes.programs;
        let shown = |path: &Path| path.display().to_string();
        let mut words = match contender {
            Contender::Verbs(device, ..) => {
                let mut words = device.words(place.own_program);
                words.push(shown(&programs.iwarp_perf));
                words
            }
            Contender::Tcp(_) | Contender::Mpi(..) => vec![shown(&programs.tcp_perf)],
        };
        words.extend(arguments.split_whitespace().map(str::to_string));
        words
    }

    fn client_words(&self, contender: &Contender, amount: &str) -> String {
        let manner = if contender.manner() == Manner::Events { "--events" } else { "" };
        let operation = match contender {
            Contender::Verbs(_, operation, _) => format!("--operation {}", operation.name()),
            Contender::Tcp(_) | Contender::Mpi(..) => String::new(),
        };
        let address = self.hosts.server_address();
        format!("{address} {operation} {manner} {}", self.measured_words(amount))
    }

    /// Returns the options that all programs have.
    fn measured_words(&self, amount: &str) -> String {
        let Pass { kind, sizes, windows, .. } = self.pass;
        format!(
            "--test {} --sizes {} --window {} --runs 1 --json {amount}",
            kind.name(),
            joined(sizes),
            joined(windows),
        )
    }

    /// Returns the time limit of a sample. The program needs more time than the sample itself,
    /// because it first determines how many windows fill the time.
    fn limit(&self) -> Duration {
        let points = (self.pass.sizes.len() * self.pass.windows.len()) as f64;
        Duration::from_secs_f64(30.0 + points * (2.0 + 20.0 * self.wishes.seconds))
    }

    fn points(
        &self,
        taken: &[Result<Vec<Repetition>, String>],
        surroundings: Surroundings,
    ) -> Vec<Point> {
        let Pass { kind, operation, sizes, windows, contenders } = self.pass;
        let kind_name = kind.name_among(contenders);
        let shapes = sizes.iter().flat_map(|size| windows.iter().map(move |window| (size, window)));
        let point = |(index, (&size, &window)): (usize, (&u64, &u32))| {
            let samples = |all: &Result<Vec<Repetition>, String>| -> Samples {
                let all = all.as_ref().map_err(Clone::clone)?;
                Ok(all.iter().filter_map(|one| one.get(index).copied()).collect())
            };
            let of_contenders: Vec<_> =
                contenders.iter().cloned().zip(taken.iter().map(samples)).collect();
            Point {
                name: format!("{kind_name}-{}-{size}-{window}", operation.name()),
                kind: kind_name.clone(),
                operation: *operation,
                size,
                window,
                unit: kind.unit().to_string(),
                contenders: compare(&of_contenders),
                surroundings,
            }
        };
        shapes.enumerate().map(point).collect()
    }
}

/// One repetition of all contenders.
struct Once {
    repetitions: Vec<Option<Repetition>>,
    /// The larger of the two variations of the dry runs, in percent.
    variation_percent: f64,
}

const fn program_name(contender: &Contender) -> &'static str {
    match contender {
        Contender::Verbs(..) => "iwarp-perf",
        Contender::Tcp(_) => "tcp-perf",
        Contender::Mpi(..) => "mpi-perf",
    }
}

pub(super) fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// The reason why a contender is not measured: the user did not name its device.
pub(super) const NOT_ASKED_FOR: &str = "the options do not name the device";

/// The text that a server prints when it listens.
pub(super) const LISTENS: &str = "listening on port";

/// Highest number of repetitions of a pass that are repeated because the machine was busy. If the
/// machine is still busy after that, further attempts would rarely find it idle.
pub(super) const RETAKEN_MAX: u32 = 2;
