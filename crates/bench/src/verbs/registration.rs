//! The cost of registering memory with the device. It depends on the size, the kind of memory, the
//! number of registered regions and the number of threads.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::contender::Provided;
use super::document::DocumentError;
use super::figures::Surroundings;
use super::hosts::Hosts;
use super::pass::{NOT_ASKED_FOR, RETAKEN_MAX, joined};
use super::registration_document::{Quantity, RegistrationDocument, RegistrationRun};
use super::{DeviceRow, Wishes, dry_run};
use crate::machine;
use crate::run::Observer;
use crate::statistics::Summary;
use crate::unmodified::running::{ProgramError, Running};

/// The results of the test of registration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// The points in the order of their measurement.
    pub points: Vec<RegistrationPoint>,
    /// For each kind of memory, the cost of the largest region divided by that of the smallest
    /// region.
    pub growth: Vec<Growth>,
    /// The sweeps that could not be measured.
    pub failures: Vec<SweepFailure>,
}

/// The results for one kind of memory, size, number of regions alive and number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegistrationPoint {
    /// Unique name, made of the kind of memory, the size, the number of regions alive and the
    /// number of threads, as in `touched-4096-1-1`.
    pub name: String,
    /// The device.
    pub device: String,
    /// `fresh`, `touched`, `huge`, `file` or `shared`.
    pub memory: String,
    /// Bytes of the region.
    pub size: u64,
    /// Number of regions that are registered at the same time.
    pub alive: u64,
    /// Number of threads that register at the same time.
    pub threads: u64,
    /// Number of timings of the sum of registering and moving, over all runs.
    pub samples: u64,
    /// Time of `ibv_reg_mr`.
    pub register: Cost,
    /// Time of `ibv_dereg_mr`.
    pub deregister: Cost,
    /// Time of `ibv_reg_mr` and the `ibv_dereg_mr` that follows it.
    pub both: Cost,
    /// Time of an RDMA write of every byte, from memory that was registered and used before.
    pub r#move: Cost,
    /// Time to register new memory and then move every byte once.
    pub sum: Cost,
    /// Time of `ibv_dereg_mr` after the memory was used.
    pub deregister_after_move: Cost,
    /// Ratio of `sum` to `move`, computed for each sample.
    pub sum_to_move: Summary,
    /// How busy the machine was.
    pub surroundings: Surroundings,
}

/// Statistics of a quantity, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Summary of the means of all runs.
    pub mean_us: Summary,
    /// Summary of the medians of all runs.
    pub median_us: Summary,
    /// Standard deviation within a run. The value is the median over all runs.
    pub deviation_us: f64,
    /// 99th percentile within a run. The value is the median over all runs.
    pub p99_us: f64,
}

/// The cost of the largest region of a kind of memory, relative to the smallest region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// The kind of memory.
    pub memory: String,
    /// Bytes of the smallest region.
    pub smallest: u64,
    /// Bytes of the largest region.
    pub largest: u64,
    /// Ratio of the median times to register the largest and the smallest region, computed for each
    /// run.
    pub register: Summary,
    /// Ratio of the median times to deregister the largest and the smallest region, computed for
    /// each run.
    pub deregister: Summary,
}

/// A sweep without points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepFailure {
    /// Name of the sweep.
    pub name: String,
    /// The reason why the sweep could not be measured.
    pub cannot_run: String,
}

/// Why a run does not count.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the program ran on device {0} instead of {1}")]
    Device(String, &'static str),
}

/// Returns the number of runs that [`measure`] makes.
pub(super) fn samples(wishes: &Wishes) -> u64 {
    sweeps(wishes).len() as u64 * u64::from(wishes.curve_runs)
}

/// Measures all sweeps. If a sweep cannot run, adds a failure with the reason.
pub(super) fn measure(
    wishes: &Wishes,
    hosts: &Hosts,
    devices: &[DeviceRow],
    observer: &mut dyn Observer,
) -> Registration {
    let mut found = Registration { points: Vec::new(), growth: Vec::new(), failures: Vec::new() };
    // The cost is that of the host's memory, so one device is enough.
    let device = wishes.provided().first().copied().unwrap_or(Provided::Edge);
    let has_device = devices.iter().any(|row| row.name == device.name());
    for sweep in sweeps(wishes) {
        let measured = if has_device {
            (Measuring { wishes, hosts, sweep: &sweep, device }).runs(observer)
        } else {
            Err(NOT_ASKED_FOR.to_string())
        };
        match measured {
            Ok((runs, surroundings)) => found.add(device, &runs, surroundings),
            Err(cannot_run) => {
                found.failures.push(SweepFailure { name: sweep.name(), cannot_run });
            }
        }
    }
    found
}

/// The parameters of one run of the program. The run measures all combinations of the sizes,
/// numbers of regions alive and numbers of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sweep {
    memory: &'static str,
    sizes: Vec<u64>,
    alive: Vec<u64>,
    threads: Vec<u64>,
}

impl Sweep {
    fn of_sizes(memory: &'static str, sizes: &[u64]) -> Self {
        Self { memory, sizes: sizes.to_vec(), alive: vec![1], threads: vec![1] }
    }

    fn name(&self) -> String {
        let Self { memory, sizes, alive, threads } = self;
        format!("{memory}-{}-{}-{}", joined(sizes), joined(alive), joined(threads))
    }
}

/// Returns the sweeps. For each kind of memory, a sweep has all sizes. Further sweeps vary the
/// number of regions alive and the number of threads, with two sizes.
fn sweeps(wishes: &Wishes) -> Vec<Sweep> {
    let quick = wishes.is_quick;
    let sizes: &[u64] = if quick { &SIZES_QUICK } else { &SIZES };
    let sizes = if wishes.sizes.is_empty() { sizes } else { &wishes.sizes };
    let kinds: &[&'static str] = if quick { &KINDS_QUICK } else { &KINDS };
    let mut sweeps: Vec<Sweep> =
        kinds.iter().map(|memory| Sweep::of_sizes(memory, sizes)).collect();
    let few: Vec<u64> = if wishes.sizes.is_empty() { SIZES_FEW.into() } else { vec![sizes[0]] };
    let alive: &[u64] = if quick { &ALIVE_QUICK } else { &ALIVE };
    let threads: &[u64] = if quick { &THREADS_QUICK } else { &THREADS };
    sweeps.push(Sweep { alive: alive.into(), ..Sweep::of_sizes(TOUCHED, &few) });
    sweeps.push(Sweep { threads: threads.into(), ..Sweep::of_sizes(TOUCHED, &few) });
    if !quick && wishes.sizes.is_empty() {
        let pages: Vec<u64> = (1..=STEPS).map(|pages| pages * PAGE_BYTES).collect();
        sweeps.push(Sweep::of_sizes(TOUCHED, &pages));
    }
    sweeps
}

/// A sweep and the objects needed to measure it.
struct Measuring<'a> {
    wishes: &'a Wishes,
    hosts: &'a Hosts,
    sweep: &'a Sweep,
    device: Provided,
}

/// The points of each run, and the load of the machine.
type Runs = (Vec<Vec<RegistrationRun>>, Surroundings);

impl Measuring<'_> {
    /// Runs the program as often as the user chose, each time between two dry runs.
    fn runs(&self, observer: &mut dyn Observer) -> Result<Runs, String> {
        let mut runs = Vec::new();
        let mut surroundings = Surroundings::default();
        for _ in 0..self.wishes.curve_runs {
            observer.on_sample(&format!("registration, {}", self.sweep.memory));
            let (mut points, mut variation) = self.run_watched()?;
            while variation > dry_run::BUSY_PERCENT && surroundings.retaken < RETAKEN_MAX {
                surroundings.retaken += 1;
                let (again, calmer) = self.run_watched()?;
                if calmer < variation {
                    (points, variation) = (again, calmer);
                }
            }
            surroundings.dry_run_percent = surroundings.dry_run_percent.max(variation);
            surroundings.load = surroundings.load.max(machine::load());
            runs.push(points);
        }
        surroundings.is_busy = surroundings.dry_run_percent > dry_run::BUSY_PERCENT;
        Ok((runs, surroundings))
    }

    fn run_watched(&self) -> Result<(Vec<RegistrationRun>, f64), String> {
        let before = dry_run::variation_percent(&self.hosts.all_cpus());
        let points = self.run().map_err(|error| error.to_string())?;
        Ok((points, before.max(dry_run::variation_percent(&self.hosts.all_cpus()))))
    }

    fn run(&self) -> Result<Vec<RegistrationRun>, RegistrationError> {
        let client = self.hosts.client(self.wishes);
        let Sweep { memory, sizes, alive, threads } = self.sweep;
        let arguments = format!(
            "--memory {memory} --sizes {} --alive {} --threads {} --seconds {} --check --json",
            joined(sizes),
            joined(alive),
            joined(threads),
            self.wishes.seconds,
        );
        let program = self.wishes.programs.memory_registration.display().to_string();
        let words = self.device.words(client.own_program).into_iter().chain([program]);
        let words = words.chain(arguments.split_whitespace().map(str::to_string));
        let running = Running::start(&client, "memory-registration", words.collect())?;
        let document = RegistrationDocument::parse(&running.finish(self.limit())?.printed)?;
        if !self.device.is_named(&document.device.name) {
            return Err(RegistrationError::Device(document.device.name, self.device.name()));
        }
        Ok(document.points)
    }

    /// Returns the time limit of a run. A point has at least five samples, and each sample moves
    /// all bytes twice. Before the samples, the program writes and compares all bytes.
    fn limit(&self) -> Duration {
        let Sweep { sizes, alive, threads, .. } = self.sweep;
        let bytes: u64 = sizes.iter().sum::<u64>() * threads.iter().sum::<u64>();
        let points = (sizes.len() * alive.len() * threads.len()) as f64;
        let moving_s = 20.0 * bytes as f64 / SLOW_BYTES_PER_SECOND;
        Duration::from_secs_f64(60.0 + moving_s + points * (2.0 + 2.0 * self.wishes.seconds))
    }
}

impl Registration {
    /// Adds the points of a sweep. If the sweep has several sizes, also adds the growth of the
    /// cost.
    fn add(&mut self, device: Provided, runs: &[Vec<RegistrationRun>], surroundings: Surroundings) {
        let Some(first) = runs.first() else { return };
        for index in 0..first.len() {
            let here: Vec<_> = runs.iter().filter_map(|points| points.get(index)).collect();
            let Some(point) = RegistrationPoint::of(device, &here, surroundings) else { continue };
            if self.points.iter().all(|other| other.name != point.name) {
                self.points.push(point);
            }
        }
        let is_of_sizes = first.iter().all(|point| (point.alive, point.threads) == (1, 1));
        let memory = first.first().map(|point| &point.memory);
        let is_first = self.growth.iter().all(|growth| Some(&growth.memory) != memory);
        if is_of_sizes && is_first {
            self.growth.extend(Growth::of(runs));
        }
    }
}

impl RegistrationPoint {
    fn of(device: Provided, runs: &[&RegistrationRun], surroundings: Surroundings) -> Option<Self> {
        let first = runs.first()?;
        let RegistrationRun { size, memory, alive, threads, .. } = first;
        let cost = |quantity: fn(&RegistrationRun) -> Quantity| {
            let all = || runs.iter().map(|run| quantity(run));
            let median = |value: fn(Quantity) -> f64| {
                Summary::trimmed(all().map(value)).map_or(0.0, |summary| summary.median)
            };
            Some(Cost {
                mean_us: Summary::trimmed(all().map(|quantity| quantity.mean_us))?,
                median_us: Summary::trimmed(all().map(|quantity| quantity.median_us))?,
                deviation_us: median(|quantity| quantity.deviation_us),
                p99_us: median(|quantity| quantity.p99_us),
            })
        };
        Some(Self {
            name: format!("{memory}-{size}-{alive}-{threads}"),
            device: device.name().to_string(),
            memory: memory.clone(),
            size: *size,
            alive: *alive,
            threads: *threads,
            samples: runs.iter().map(|run| run.samples).sum(),
            register: cost(|run| run.register)?,
            deregister: cost(|run| run.deregister)?,
            both: cost(|run| run.register_and_deregister)?,
            r#move: cost(|run| run.r#move)?,
            sum: cost(|run| run.register_and_move)?,
            deregister_after_move: cost(|run| run.deregister_after_move)?,
            sum_to_move: Summary::trimmed(runs.iter().map(|run| run.sum_to_move.median))?,
            surroundings,
        })
    }
}

impl Growth {
    fn of(runs: &[Vec<RegistrationRun>]) -> Option<Self> {
        let points = runs.first()?;
        let smallest = points.iter().min_by_key(|point| point.size)?;
        let largest = points.iter().max_by_key(|point| point.size)?;
        if smallest.size == largest.size {
            return None;
        }
        let ratio = |quantity: fn(&RegistrationRun) -> Quantity| {
            let at = |points: &[RegistrationRun], size: u64| {
                let point = points.iter().find(|point| point.size == size)?;
                Some(quantity(point).median_us).filter(|us| *us > 0.0)
            };
            let ratios = runs
                .iter()
                .filter_map(|points| Some(at(points, largest.size)? / at(points, smallest.size)?));
            Summary::trimmed(ratios)
        };
        Some(Self {
            memory: smallest.memory.clone(),
            smallest: smallest.size,
            largest: largest.size,
            register: ratio(|run| run.register)?,
            deregister: ratio(|run| run.deregister)?,
        })
    }
}

const TOUCHED: &str = "touched";

/// The kinds of memory. Huge pages are available only if the kernel was configured to reserve some.
const KINDS: [&str; 5] = [TOUCHED, "fresh", "file", "shared", "huge"];
const KINDS_QUICK: [&str; 4] = [TOUCHED, "fresh", "file", "shared"];

const SIZES: [u64; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];
const SIZES_QUICK: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 64 << 20];

/// The sizes in sweeps over the number of regions or of threads.
const SIZES_FEW: [u64; 2] = [4 << 10, 1 << 20];

const ALIVE: [u64; 4] = [1, 100, 10_000, 100_000];
const ALIVE_QUICK: [u64; 2] = [1, 1_000];
const THREADS: [u64; 3] = [1, 2, 4];
const THREADS_QUICK: [u64; 2] = [1, 2];

/// Number of pages in 64 KiB. Sizes up to 64 KiB are measured at every number of pages, because the
/// cost may have steps.
const STEPS: u64 = 16;
const PAGE_BYTES: u64 = 4096;

/// A rate of moving bytes that any processor with a software device exceeds, even on a busy
/// machine. It determines the time limit of a run.
const SLOW_BYTES_PER_SECOND: f64 = 100e6;

#[cfg(test)]
mod tests {
    use super::super::registration_document::SumToMove;
    use super::*;

    fn quantity(us: f64) -> Quantity {
        Quantity { mean_us: us, deviation_us: us / 10.0, median_us: us, p99_us: 2.0 * us }
    }

    fn run(size: u64, us: f64, threads: u64) -> RegistrationRun {
        RegistrationRun {
            size,
            memory: TOUCHED.to_string(),
            alive: 1,
            threads,
            samples: 5,
            register: quantity(us),
            deregister: quantity(us / 2.0),
            register_and_deregister: quantity(1.5 * us),
            r#move: quantity(10.0),
            register_and_move: quantity(10.0 + us),
            deregister_after_move: quantity(us / 2.0),
            sum_to_move: SumToMove { median: 1.0 + us / 10.0 },
        }
    }

    #[test]
    fn growth_compares_the_largest_region_with_the_smallest_run_by_run() {
        let mut found = Registration { points: vec![], growth: vec![], failures: vec![] };
        let runs = vec![
            vec![run(4096, 1.0, 1), run(1 << 30, 1.4, 1)],
            vec![run(4096, 2.0, 1), run(1 << 30, 2.8, 1)],
        ];
        found.add(Provided::Edge, &runs, Surroundings::default());
        assert_eq!(found.points[0].name, "touched-4096-1-1");
        assert_eq!(found.points[0].samples, 10);
        assert!((found.points[0].register.mean_us.median - 1.5).abs() < 1e-9, "{found:?}");
        let growth = &found.growth[0];
        assert_eq!((growth.smallest, growth.largest), (4096, 1 << 30));
        assert!(
            (growth.register.min - 1.4).abs() < 1e-9 && (growth.register.max - 1.4).abs() < 1e-9
        );
        // The test adds two points: one with one thread, and one with another number of threads.
        // The second point has the same size as the first, so no growth is added.
        let alive = [vec![run(4096, 1.0, 1), run(4096, 1.0, 2)]];
        found.add(Provided::Edge, &alive, Surroundings::default());
        assert_eq!((found.points.len(), found.growth.len()), (3, 1));
    }

    #[test]
    fn one_size_has_no_growth() {
        assert_eq!(Growth::of(&[vec![run(4096, 1.0, 1)]]), None);
    }
}
