//! `ethernot sim sweep`: many simulations on all processors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use fabric::interconnect::configuration::{Point, Watch, parse_sweep};
use fabric::interconnect::simulation::InTurns;
use fabric::interconnect::simulation::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::Failure;
use crate::run_command::to_json;
use crate::simulation::explained;

/// Simulate all combinations of some settings.
///
/// A section `[sweep.X]` gives keys of the section X lists of values. Each point becomes a file in
/// the folder; a sweep that was stopped goes on where it was, as finished points are not run again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim sweep grid.toml --into results\n  \
    ethernot sim sweep grid.toml --into results --jobs 2\n\n\
    A grid:\n  \
    [topology]\n  kind = \"fat_tree\"\n  \
    [sweep.workload]\n  bytes = [64, 1500, 9000]\n  \
    [sweep.fabric]\n  choice = [\"per_flow\", \"spray\"]")]
pub(crate) struct Arguments {
    /// The configuration with its sweep
    grid: PathBuf,
    /// Folder of the results, made if it is not there
    #[arg(long, value_name = "FOLDER")]
    into: PathBuf,
    /// Points run at a time [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.grid.display().to_string();
    let text =
        fs::read_to_string(&arguments.grid).map_err(|error| format!("read {name}: {error}"))?;
    let points = parse_sweep(&name, &text)?;
    let folder = &arguments.into;
    fs::create_dir_all(folder)
        .map_err(|error| format!("make the folder {}: {error}", folder.display()))?;
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let jobs = arguments.jobs.unwrap_or(available);
    let next = AtomicUsize::new(0);
    let is_full = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    let speed = Speed { start: Instant::now(), events: AtomicU64::new(0), bar: &bar };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if is_full.load(Ordering::Relaxed) {
                        break;
                    }
                    if let Err(error) = finish(folder, point, &speed) {
                        // What comes next would be simulated in vain.
                        is_full.fetch_or(error.is_full, Ordering::Relaxed);
                        if let Ok(mut failures) = failures.lock() {
                            failures.push(format!("{}: {}", point.name, error.what));
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    for point in &points {
        if let Some(result) = finished(&file_of(folder, point), point) {
            println!(
                "{}  completed {} us  latency mean {} us  result {}",
                point.name,
                result["completed_us"],
                result["latency_us"]["mean"],
                result["result_hash"].as_str().unwrap_or_default()
            );
        }
    }
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort();
    for failure in &failures {
        eprintln!("{failure}");
    }
    match failures.len() {
        0 => Ok(()),
        _ if is_full.into_inner() => {
            Err("the sweep stopped, as the disk is full; the same command goes on where it was"
                .into())
        }
        failed => Err(format!(
            "{failed} of {} points failed; the same command runs those again",
            points.len()
        )
        .into()),
    }
}

/// Why a point has no result.
struct PointError {
    what: String,
    /// No other will have one either.
    is_full: bool,
}

/// Events per second of all runs together.
struct Speed<'a> {
    start: Instant,
    events: AtomicU64,
    bar: &'a ProgressBar,
}

impl Speed<'_> {
    /// Called every few thousand events of a run that had `before` of them the last time.
    fn tell(&self, progress: Progress, before: &mut u64) {
        if progress.events - *before < EVENTS_TOLD {
            return;
        }
        let more = progress.events - std::mem::replace(before, progress.events);
        let events = self.events.fetch_add(more, Ordering::Relaxed) + more;
        let rate = events as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        self.bar.set_message(format!("{:.1} M events/s", rate * 1e-6));
    }
}

/// Runs a point, unless its result is there.
fn finish(folder: &Path, point: &Point, speed: &Speed) -> Result<(), PointError> {
    let path = file_of(folder, point);
    if finished(&path, point).is_some() {
        return Ok(());
    }
    let mut told = 0;
    let mut progress = |progress: Progress| speed.tell(progress, &mut told);
    let watch = Watch { records: None, progress: Some(&mut progress) };
    let outcome = point
        .configuration
        .run_watched(&InTurns, watch)
        .map_err(|error| PointError { what: error.to_string(), is_full: false })?;
    let text = format!("{:#}\n", to_json(&point.configuration, &outcome));
    // A file is there as a whole or not at all, whatever stops this.
    let unfinished = path.with_extension("unfinished");
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
    written.map_err(|error| {
        // Nothing more can be done if this fails, too.
        let _ = fs::remove_file(&unfinished);
        let is_full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        PointError { what: explained(&path, &error), is_full }
    })
}

/// The result of a point, if it is there.
fn finished(path: &Path, point: &Point) -> Option<Value> {
    let result: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    (result["configuration"].as_str()? == point.configuration.effective).then_some(result)
}

fn file_of(folder: &Path, point: &Point) -> PathBuf {
    folder.join(format!("{:016x}.json", point.configuration.hash()))
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} points, {eta} left · {wide_msg}";
/// A few times a second of each run.
const EVENTS_TOLD: u64 = 1 << 21;
