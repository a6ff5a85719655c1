//! `ethernot sim sweep`: runs many simulations on all processors.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use interconnect::configuration::{Point, Watch, parse_sweep};
use interconnect::simulation::Progress;
use interconnect::statistics::confidence_95;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{check_writable, explained, print};
use crate::run_command::{beside, to_json};
use crate::threads::OnThreads;

/// Simulate all combinations of some settings.
///
/// A section `[sweep.X]` contains lists of values for keys of the section X. Each combination of
/// values is a point, whose result becomes a file in the folder. If you stop a sweep, you can
/// continue it: finished points do not run again. If several machines share the folder, each of
/// them can run a part of the points. If two machines run the same point, they write equal files,
/// and only processor time is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim sweep grid.toml --into results\n  \
    ethernot sim sweep grid.toml --into results --jobs 2\n  \
    ethernot sim sweep grid.toml --into results --jobs 2 --threads 4\n  \
    ethernot sim sweep grid.toml --into results --part 3/16    # of 16 machines, the third\n  \
    ethernot sim sweep grid.toml --into results --json\n  \
    ethernot sim sweep grid.toml --into results --finished     # what there is so far\n  \
    ethernot sim sweep grid.toml --into results --means        # with a list of seeds in [sweep.run]\n  \
    ethernot sim sweep grid.toml --count\n\n\
    As a job array of Slurm; in a folder that all machines share, a script sweep.sh:\n  \
    #!/bin/sh\n  \
    #SBATCH --array=1-16 --cpus-per-task=2\n  \
    exec ethernot sim sweep grid.toml --into results --jobs 2 --part $SLURM_ARRAY_TASK_ID/16\n\
    then `sbatch sweep.sh`; the same command again runs what tasks that were stopped left, and\n\
    `sbatch --array=3,7 sweep.sh` only parts 3 and 7.\n\n\
    A grid:\n  \
    [topology]\n  kind = \"fat_tree\"\n  \
    [sweep.workload]\n  bytes = [64, 1500, 9000]\n  \
    [sweep.fabric]\n  choice = [\"per_flow\", \"spray\"]")]
pub(crate) struct Arguments {
    /// The configuration with its sweep
    grid: PathBuf,
    /// Folder of the results, made if it does not exist
    #[arg(long, value_name = "FOLDER", required_unless_present = "count")]
    into: Option<PathBuf>,
    /// Points to run in parallel
    /// [default: the number of processors divided by the threads of a point]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Number of threads for the parts of each point's network, instead of the grid's number; the
    /// result does not change. If there are more points than processors, one thread per point is
    /// faster
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Run only every N-th point, starting with the K-th
    #[arg(long, value_name = "K/N", default_value = "1/1")]
    part: Part,
    /// Print the number of points, and run none
    #[arg(long)]
    count: bool,
    /// Print the finished results, and run nothing; the exit status is 1 if results are missing
    #[arg(long, conflicts_with = "count")]
    finished: bool,
    /// Print means over points that differ only in their seed, with 95 % confidence intervals
    #[arg(long, conflicts_with = "count")]
    means: bool,
    /// Print the results as JSON
    #[arg(long, conflicts_with = "count")]
    json: bool,
}

/// The points at positions `number`, `number + of`, `number + 2·of` and so on; positions start at
/// 1.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        numbers
            .filter(|part| (1..=part.of).contains(&part.number))
            .ok_or_else(|| "invalid part: write K/N with K from 1 to N, such as 3/16".to_owned())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.grid.display().to_string();
    let text =
        fs::read_to_string(&arguments.grid).map_err(|error| format!("read {name}: {error}"))?;
    let points = parse_sweep(&name, &text, &beside(&arguments.grid))?;
    if arguments.count {
        println!("{}", points.len());
        return Ok(());
    }
    let Some(folder) = &arguments.into else { return Err("--into is missing".into()) };
    let Part { number, of } = arguments.part;
    let mut points: Vec<Point> = points.into_iter().skip(number - 1).step_by(of).collect();
    if let Some(threads) = arguments.threads {
        for point in &mut points {
            point.configuration.threads = threads;
        }
    }
    let Ran { failures, unwritable } = if arguments.finished {
        Ran { failures: Vec::new(), unwritable: None }
    } else {
        check_folder(folder, &points)?;
        let jobs = arguments.jobs.unwrap_or_else(|| {
            let available = thread::available_parallelism().map_or(1, |count| count.get() as u32);
            jobs_for(available, points.iter().map(|point| point.configuration.threads))
        });
        run_points(folder, &points, jobs)?
    };
    let result = |point: &Point| {
        let path = file_of(folder, point);
        finished(&path, point).map(|result| (point.name.clone(), path, result))
    };
    let results: Vec<(String, PathBuf, Value)> = points.iter().filter_map(result).collect();
    print(&match (arguments.means, arguments.json) {
        (false, false) => to_lines(&results),
        (false, true) => to_list(&results),
        (true, is_json) => show_means(&means(&results), is_json),
    })?;
    for failure in &failures {
        eprintln!("{failure}");
    }
    let (left, all) = (points.len() - results.len(), points.len());
    if left == 0 {
        return Ok(());
    }
    let text = match unwritable {
        Some(Unwritable::Full) => format!(
            "the sweep stopped, because the disk is full: {left} of {all} points have no result; \
             make room, then run the same command, which runs only these points"
        ),
        Some(Unwritable::Other) => format!(
            "the sweep stopped, because results cannot be written: {left} of {all} points have no \
             result; correct the cause, then run the same command, which runs only these points"
        ),
        None if arguments.finished => format!("{left} of {all} points have no result"),
        None => format!(
            "{left} of {all} points have no result; the same command runs only these points"
        ),
    };
    Err(text.into())
}

/// Makes the folder, and checks that results can be written. Without this check, the error would
/// come after hours of simulation. A folder that already has all results need not be writable.
fn check_folder(folder: &Path, points: &[Point]) -> Result<(), Failure> {
    if points.iter().all(|point| finished(&file_of(folder, point), point).is_some()) {
        return Ok(());
    }
    fs::create_dir_all(folder)
        .map_err(|error| format!("make the folder {}: {error}", folder.display()))?;
    let probe = folder.join(unfinished_name("probe"));
    check_writable([probe.as_path()])
}

/// Returns the results of points, one line each.
fn to_lines(results: &[(String, PathBuf, Value)]) -> String {
    let mut text = String::new();
    for (name, _, result) in results {
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{name}  completed {} us  latency mean {} us  result {}",
            microseconds(&result["completed_us"]),
            microseconds(&result["latency_us"]["mean"]),
            result["result_hash"].as_str().unwrap_or_default()
        );
    }
    text
}

/// Formats microseconds with three decimals, or `-` if there is no value.
fn microseconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_string(), |value| format!("{value:.3}"))
}

/// Returns the results as JSON, with the file of each.
fn to_list(results: &[(String, PathBuf, Value)]) -> String {
    let entry = |(name, path, result): &(String, PathBuf, Value)| {
        json!({
            "point": name,
            "file": path,
            "completed_us": result["completed_us"],
            "latency_mean_us": result["latency_us"]["mean"],
            "result_hash": result["result_hash"],
        })
    };
    format!("{:#}\n", Value::Array(results.iter().map(entry).collect()))
}

/// Statistics over points that differ only in their seeds.
#[derive(Debug, PartialEq)]
struct Replicated {
    /// The name of the points without the seed.
    name: String,
    completed_us: Vec<f64>,
    latency_us: Vec<f64>,
}

/// Returns the statistics in the order in which `results` first contains each set of settings.
fn means(results: &[(String, PathBuf, Value)]) -> Vec<Replicated> {
    let mut found: Vec<Replicated> = Vec::new();
    for (name, _, result) in results {
        let words: Vec<&str> = name.split(' ').filter(|word| !word.starts_with(SEED)).collect();
        let name = words.join(" ");
        let at = found.iter().position(|other| other.name == name).unwrap_or_else(|| {
            found.push(Replicated { name, completed_us: Vec::new(), latency_us: Vec::new() });
            found.len() - 1
        });
        found[at].completed_us.extend(result["completed_us"].as_f64());
        found[at].latency_us.extend(result["latency_us"]["mean"].as_f64());
    }
    found
}

/// The part of a point's name before its seed.
const SEED: &str = "run.seed=";

fn show_means(means: &[Replicated], is_json: bool) -> String {
    let mean = |values: &[f64]| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    if is_json {
        let value =
            |values: &[f64]| json!({ "mean": mean(values), "margin": confidence_95(values) });
        let entry = |of: &Replicated| {
            json!({
                "point": of.name,
                "replications": of.completed_us.len(),
                "completed_us": value(&of.completed_us),
                "latency_mean_us": value(&of.latency_us),
            })
        };
        return format!("{:#}\n", Value::Array(means.iter().map(entry).collect()));
    }
    let mut text = String::new();
    for Replicated { name, completed_us, latency_us } in means {
        let shown = |values: &[f64]| {
            let margin = confidence_95(values).map(|margin| format!(" \u{b1} {margin:.3}"));
            let mean = mean(values).map_or_else(|| "-".to_owned(), |mean| format!("{mean:.3}"));
            format!("{mean}{}", margin.unwrap_or_default())
        };
        let name = if name.is_empty() { "all" } else { name };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{name}  {} runs  completed {} us  latency mean {} us",
            completed_us.len(),
            shown(completed_us),
            shown(latency_us)
        );
    }
    text
}

/// Returns how many points run in parallel: `processors` divided by the largest number of threads
/// of a point, and at least 1.
fn jobs_for(processors: u32, threads: impl Iterator<Item = u32>) -> u16 {
    let most = threads.max().unwrap_or(1).max(1);
    u16::try_from(processors / most).unwrap_or(u16::MAX).max(1)
}

/// The outcome of running points.
struct Ran {
    /// One error text for each point that failed.
    failures: Vec<String>,
    /// Why results can no longer be written, if the sweep has stopped early for this reason.
    unwritable: Option<Unwritable>,
}

/// Why results cannot be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unwritable {
    /// The disk is full.
    Full,
    /// The folder no longer exists or is not writable.
    Other,
}

/// Runs the points that have no result.
fn run_points(folder: &Path, points: &[Point], jobs: u16) -> Result<Ran, Failure> {
    let next = AtomicUsize::new(0);
    let unwritable: OnceLock<Unwritable> = OnceLock::new();
    let failures = Mutex::new(Vec::new());
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    report_when_interrupted(folder, bar.clone())?;
    let speed = Speed { start: Instant::now(), events: AtomicU64::new(0), bar: &bar };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while unwritable.get().is_none()
                    && let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = finish(folder, point, &speed) {
                        if let Some(why) = error.unwritable {
                            // Further results could not be written either, so the sweep stops.
                            unwritable.get_or_init(|| why);
                        }
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
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort();
    Ok(Ran { failures, unwritable: unwritable.into_inner() })
}

/// Makes Control-C end the program immediately. The results of finished points stay stored, and a
/// later sweep runs the other points.
fn report_when_interrupted(folder: &Path, bar: ProgressBar) -> Result<(), Failure> {
    let folder = folder.to_owned();
    ctrlc::set_handler(move || {
        bar.abandon();
        eprintln!(
            "ethernot: stopped; the results so far are in {}, and the same command continues the \
             sweep",
            folder.display()
        );
        process::exit(INTERRUPTED);
    })?;
    Ok(())
}

/// Why a point has no result.
struct PointError {
    what: String,
    /// The reason why results cannot be written, if the point failed for this reason. All other
    /// points then fail, too.
    unwritable: Option<Unwritable>,
}

/// Events per second of all runs together.
struct Speed<'a> {
    start: Instant,
    events: AtomicU64,
    bar: &'a ProgressBar,
}

impl Speed<'_> {
    /// Reports the progress of a run every few thousand events. `before` is the run's number of
    /// events at the last call.
    fn report(&self, progress: Progress, before: &mut u64) {
        if progress.events - *before < EVENTS_REPORTED {
            return;
        }
        let more = progress.events - std::mem::replace(before, progress.events);
        let events = self.events.fetch_add(more, Ordering::Relaxed) + more;
        let rate = events as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        self.bar.set_message(format!("{:.1} M events/s", rate * 1e-6));
    }
}

/// Runs a point, unless it has a result.
fn finish(folder: &Path, point: &Point, speed: &Speed) -> Result<(), PointError> {
    let path = file_of(folder, point);
    if finished(&path, point).is_some() {
        return Ok(());
    }
    let mut reported = 0;
    let mut progress = |progress: Progress| {
        speed.report(progress, &mut reported);
        ControlFlow::Continue(())
    };
    let watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let outcome = point
        .configuration
        .run_watched(&OnThreads, watch)
        .map_err(|error| PointError { what: error.to_string(), unwritable: None })?;
    let text = format!("{:#}\n", to_json(&point.configuration, &outcome));
    keep(&path, &text).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Unwritable::Full,
            _ => Unwritable::Other,
        };
        PointError { what: explained(&path, &error), unwritable: Some(why) }
    })
}

/// Writes a result atomically, by a temporary file. If two runs write the same point, they use
/// different temporary files, even if they are in different processes.
fn keep(path: &Path, text: &str) -> io::Result<()> {
    let hash = path.file_stem().unwrap_or_default().to_string_lossy();
    let unfinished = path.with_file_name(unfinished_name(&hash));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // If this fails, the temporary file remains. A sweep ignores it, because its name is not
        // the name of a result.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Returns a unique name. The name contains more than the process id, because another machine that
/// shares the folder may run the same point with the same process id.
fn unfinished_name(of: &str) -> String {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{of}.{}-{}-{number}.unfinished", host.trim(), process::id())
}

/// Returns the result of a point, if it exists.
fn finished(path: &Path, point: &Point) -> Option<Value> {
    let result: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    (result["configuration"].as_str()? == point.configuration.effective).then_some(result)
}

fn file_of(folder: &Path, point: &Point) -> PathBuf {
    folder.join(format!("{:016x}.json", point.configuration.hash()))
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} points, {eta} left · {wide_msg}";
/// Exit status of an interrupted program, by the convention of shells.
const INTERRUPTED: i32 = 130;
/// Events between reports: a few reports per second for each run.
const EVENTS_REPORTED: u64 = 1 << 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_that_differ_only_in_their_seed_are_one() {
        let result =
            |latency: f64| json!({ "completed_us": 10.0, "latency_us": { "mean": latency } });
        let point = |name: &str, latency| (name.to_owned(), PathBuf::new(), result(latency));
        let results = [
            point("run.seed=1 workload.bytes=64", 4.0),
            point("run.seed=1 workload.bytes=1500", 7.0),
            point("run.seed=2 workload.bytes=64", 6.0),
        ];
        let shown = show_means(&means(&results), false);
        let lines: Vec<&str> = shown.lines().collect();
        // The half-width for two values: half their distance, times 12.706 (Student's t, 95 %).
        assert_eq!(
            lines,
            [
                "workload.bytes=64  2 runs  completed 10.000 \u{b1} 0.000 us  latency mean 5.000 \u{b1} 12.706 us",
                "workload.bytes=1500  1 runs  completed 10.000 us  latency mean 7.000 us",
            ]
        );
        let json: Value = serde_json::from_str(&show_means(&means(&results), true)).expect("JSON");
        assert_eq!(json[0]["latency_mean_us"]["margin"].as_f64().map(f64::round), Some(13.0));
        assert_eq!(json[1]["latency_mean_us"]["margin"], Value::Null);
    }

    #[test]
    fn concurrent_points_never_need_more_threads_than_processors() {
        assert_eq!(jobs_for(8, [1, 1].into_iter()), 8);
        assert_eq!(jobs_for(8, [1, 3].into_iter()), 2);
        assert_eq!(jobs_for(2, [16].into_iter()), 1);
        assert_eq!(jobs_for(4, [].into_iter()), 4);
    }
}
