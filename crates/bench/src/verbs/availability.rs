//! Availability: the fraction of its CPU that a program keeps for its own work while messages flow
//! in both directions. The two methods of the benchmark COMB measure it.
//!
//! A carrier is a program together with the transport that carries its messages.

use std::time::Duration;

use super::comb_document::CombDocument;
use super::contender::TCP;
use super::curves::{Availability, Carrier, Curve, Method, Taken};
use super::hosts::Hosts;
use super::mpi::{Mpi, MpiError, Over, Tool};
use super::pass::{LISTENS, NOT_ASKED_FOR, SampleError, joined};
use super::{DeviceRow, Wishes};
use crate::run::Observer;
use crate::unmodified::running::{ProgramError, ProgramPlace, Running};

/// Returns the number of samples that [`measure`] takes.
pub(super) fn samples(wishes: &Wishes) -> u64 {
    let plans = plans(wishes);
    let curves: usize = plans.iter().map(|plan| carriers(wishes, plan.method).len()).sum();
    curves as u64 * u64::from(wishes.curve_runs)
}

/// Measures all carriers alternately. Each repetition begins with another carrier. If a carrier
/// fails, later repetitions omit it.
pub(super) fn measure(
    wishes: &Wishes,
    hosts: &Hosts,
    devices: &[DeviceRow],
    observer: &mut dyn Observer,
) -> Availability {
    let is_asked_for = |device: &str| device == TCP || devices.iter().any(|row| row.name == device);
    let start = |carrier: &Carrier| -> Taken {
        if is_asked_for(carrier.device()) { Ok(Vec::new()) } else { Err(NOT_ASKED_FOR.to_string()) }
    };
    let mut curves = Vec::new();
    for plan in plans(wishes) {
        let carriers = carriers(wishes, plan.method);
        let mut taken: Vec<Taken> = carriers.iter().map(start).collect();
        for repetition in 0..wishes.curve_runs as usize {
            for turn in 0..carriers.len() {
                let place = (turn + repetition) % carriers.len();
                let carrier = carriers[place];
                observer.on_sample(&format!("{}, {}", plan.method.name(), carrier.name()));
                let Ok(all) = &mut taken[place] else { continue };
                match (Combing { wishes, hosts, plan: &plan, carrier }).sample() {
                    Ok(document) => all.push(document.points),
                    Err(error) => taken[place] = Err(error.to_string()),
                }
            }
        }
        curves.extend(Curve::all_of(plan.method, &plan.sizes, &carriers, &taken));
    }
    Availability::new(curves)
}

/// The parameters of one run of each carrier: all sizes and intervals of a method.
struct Plan {
    method: Method,
    sizes: Vec<u64>,
    intervals: Vec<u64>,
}

fn plans(wishes: &Wishes) -> Vec<Plan> {
    let quick = wishes.is_quick;
    let sizes: &[u64] = if quick { &SIZES_QUICK } else { &SIZES };
    let sizes = if wishes.sizes.is_empty() { sizes } else { &wishes.sizes };
    let plan = |method| {
        // The silent method sends no messages, so one size is enough.
        let (sizes, intervals): (&[u64], &[u64]) = match (method, quick) {
            (Method::Silent, _) => (&sizes[..1], &INTERVALS_SILENT),
            (_, true) => (sizes, &INTERVALS_QUICK),
            (_, false) => (sizes, &INTERVALS),
        };
        Plan { method, sizes: sizes.to_vec(), intervals: intervals.to_vec() }
    };
    Method::ALL.map(plan).into()
}

/// A plan and the carrier that runs it.
struct Combing<'a> {
    wishes: &'a Wishes,
    hosts: &'a Hosts,
    plan: &'a Plan,
    carrier: Carrier,
}

impl Combing<'_> {
    /// Measures all points once.
    fn sample(&self) -> Result<CombDocument, SampleError> {
        let document = match self.carrier {
            Carrier::Mpi(mpi, over) => {
                let mpis = self.hosts.mpis().ok_or(MpiError::not_prepared())?;
                let around = (self.hosts, self.wishes);
                let options = self.options();
                let ran = mpis.run(around, (mpi, over), Tool::CombMpi, &options, self.limit())?;
                let document = CombDocument::parse(&ran.printed)?;
                // Pass 0 as the number of messages that waited for the message before them, because
                // COMB sends no such messages.
                ran.check(document.bytes(), 0)?;
                document
            }
            Carrier::Verbs(_) | Carrier::Tcp => CombDocument::parse(&self.ask_server()?)?,
        };
        let expected = self.plan.sizes.len() * self.plan.intervals.len();
        if document.points.len() != expected {
            return Err(SampleError::Points(document.points.len(), expected));
        }
        if let Carrier::Verbs(device) = self.carrier
            && !device.is_named(&document.device.name)
        {
            return Err(SampleError::Device(document.device.name, device.name()));
        }
        Ok(document)
    }

    fn ask_server(&self) -> Result<String, ProgramError> {
        let (client, server) = (self.hosts.client(self.wishes), self.hosts.server(self.wishes));
        let mut serving = Running::start(&server, "comb-server", self.words(&server, ""))?;
        serving.await_printed(LISTENS)?;
        let address = self.hosts.server_address();
        let words = self.words(&client, &format!("{address} {}", self.options()));
        let finished = Running::start(&client, "comb", words)?.finish(self.limit())?;
        serving.end();
        Ok(finished.printed)
    }

    /// Returns the command line of `comb`. On a device, the command is `ethernot run`.
    fn words(&self, place: &ProgramPlace<'_>, arguments: &str) -> Vec<String> {
        let comb = self.wishes.programs.comb.display().to_string();
        let (mut words, over) = match self.carrier {
            Carrier::Verbs(device) => (device.words(place.own_program), "verbs"),
            Carrier::Tcp | Carrier::Mpi(..) => (Vec::new(), TCP),
        };
        words.extend([comb, "--over".to_string(), over.to_string()]);
        words.extend(arguments.split_whitespace().map(str::to_string));
        words
    }

    fn options(&self) -> String {
        let Plan { method, sizes, intervals } = self.plan;
        let method = match method {
            Method::Polling => "--method polling --check",
            Method::PostWorkWait => "--method post-work-wait --check",
            Method::Silent => "--method polling --silent",
        };
        format!(
            "{method} --sizes {} --intervals {} --seconds {} --json",
            joined(sizes),
            joined(intervals),
            self.wishes.curve_seconds,
        )
    }

    /// Returns the time limit of a run. The program may measure a point three times, and each time
    /// it runs the work alone before and after the point. At the longest interval, one round may
    /// take longer than the intended time of a point.
    fn limit(&self) -> Duration {
        let points = (self.plan.sizes.len() * self.plan.intervals.len()) as f64;
        Duration::from_secs_f64(60.0 + points * 3.0 * (3.0 + 4.0 * self.wishes.curve_seconds))
    }
}

/// Returns the carriers that a method measures. Each MPI over the edge is followed by the same MPI
/// over TCP.
///
/// If no messages are sent, all carriers do the same work. So a quick run of the silent method
/// measures only the devices.
fn carriers(wishes: &Wishes, method: Method) -> Vec<Carrier> {
    let devices = wishes.provided().into_iter().map(Carrier::Verbs);
    if wishes.is_quick && method == Method::Silent {
        return devices.collect();
    }
    let mpis = [Mpi::OpenMpi, Mpi::Mpich];
    let mpis = mpis.into_iter().flat_map(|mpi| [Over::Edge, Over::Tcp].map(|over| (mpi, over)));
    let mpis = mpis.map(|(mpi, over)| Carrier::Mpi(mpi, over));
    devices.chain([Carrier::Tcp]).chain(mpis).collect()
}

const SIZES: [u64; 4] = [1 << 10, 16 << 10, 64 << 10, 256 << 10];
/// The message size in the paper's figures: 256 KiB.
const SIZES_QUICK: [u64; 1] = [256 << 10];

/// Iterations of the work between two calls, over six decades. The work then takes about 100 ns to
/// about 100 ms.
const INTERVALS: [u64; 13] = [
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
];
const INTERVALS_QUICK: [u64; 7] =
    [100, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000];
const INTERVALS_SILENT: [u64; 2] = [10_000, 1_000_000];
