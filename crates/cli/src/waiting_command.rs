//! `ethernot sim waiting`: measures the waiting policy (when threads spin or sleep) on simulated
//! hosts with busy processors.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fabric::polling::scheduled::Mode;
use fabric::polling::scheduled::scenarios::{
    self, Comparison, LOADS, Point, SPEEDS, Setting, measure,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{check_writable, write_results};

/// Measure the waiting policy on simulated hosts with busy threads, in virtual time.
///
/// Runs ping-pong, one-way and two-way between hosts, under a model of Linux's scheduler. On each
/// processor of a host, 0 to 4 busy threads run in addition to the host's threads. The speed of
/// hosts is 0.25 to 4 times that of a calibrated host. Applications poll, or wait in calls.
///
/// Busy threads leave only a part of a processor to a host's thread, so the highest possible rate
/// is this part of the rate without busy threads. The command divides the rate of each point by the
/// highest possible rate, and prints the worst ratio last. Also prints the result of the best fixed
/// rule (always spin, never spin, spin for as long as a sleep costs). The results depend only on
/// the protocol, the policy and the seeds, not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim waiting\n  \
    ethernot sim waiting --load 4 --hosts 1 --mode polls\n  \
    ethernot sim waiting --quick --json waiting.json")]
pub(crate) struct Arguments {
    /// Run only hosts a quarter as fast, equally fast and four times as fast as a calibrated host;
    /// one seed each; no fixed rules
    #[arg(long)]
    quick: bool,
    /// Speeds of hosts relative to a calibrated one: 0.25, 0.5, 1, 2, 4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_speed)]
    hosts: Vec<u32>,
    /// Busy threads per processor: 0, 1, 2, 4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_load)]
    load: Vec<usize>,
    /// How applications wait: polls, waits [default: both]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<Mode>,
    /// Processors of a host
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    processors: u16,
    /// Seeds of each point [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Virtual time of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    time_ms: u64,
    /// Points to run in parallel [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    check_writable(arguments.json.as_deref())?;
    let points = points(arguments);
    if points.is_empty() {
        return Err("no point is left: choose more hosts or loads".into());
    }
    let start = Instant::now();
    let mut results = run_points(arguments, &points)?;
    results.sort_by(|one, other| other.ratio().total_cmp(&one.ratio()));
    let found =
        Found { results, has_simple: !arguments.quick, seconds: start.elapsed().as_secs_f64() };
    let json = || Ok(format!("{:#}", found.to_json()));
    write_results(arguments.json.as_deref(), json, || found.to_text())
}

/// Returns the selected points.
fn points(arguments: &Arguments) -> Vec<Point> {
    let mut points = if arguments.quick && arguments.hosts.is_empty() {
        scenarios::quick()
    } else {
        scenarios::full()
    };
    points.retain(|point| {
        (arguments.hosts.is_empty() || arguments.hosts.contains(&point.quarters))
            && (arguments.load.is_empty() || arguments.load.contains(&point.load))
            && arguments.mode.is_none_or(|mode| mode == point.mode)
    });
    points
}

/// Runs points on several threads.
fn run_points(arguments: &Arguments, points: &[Point]) -> Result<Vec<Comparison>, Failure> {
    let setting = Setting {
        processors: usize::from(arguments.processors),
        measured_ns: arguments.time_ms * NS_PER_MS,
        seeds: arguments.seeds.unwrap_or(if arguments.quick { 1 } else { 3 }),
    };
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar.enable_steady_tick(TICK);
    thread::scope(|scope| {
        for _ in 0..arguments.jobs.unwrap_or(available) {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    bar.set_message(point.to_string());
                    let result = measure(point, &setting, !arguments.quick);
                    let result = result.map_err(|error| format!("{point}: {error}"));
                    if let Ok(mut results) = results.lock() {
                        results.push(result);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let results = results.into_inner().unwrap_or_default();
    Ok(results.into_iter().collect::<Result<_, String>>()?)
}

/// The results of a run.
struct Found {
    /// The results, the worst last.
    results: Vec<Comparison>,
    has_simple: bool,
    seconds: f64,
}

impl Found {
    /// Returns the worst ratio of the points with busy threads if `with_load` is true, and of the
    /// points without busy threads if `with_load` is false.
    fn worst_ratio(&self, with_load: bool) -> Option<f64> {
        let of_load = self.results.iter().filter(|result| (result.point.load > 0) == with_load);
        of_load.map(Comparison::ratio).reduce(f64::min)
    }

    fn good(&self) -> usize {
        self.results.iter().filter(|result| result.ratio() >= WANTED).count()
    }

    /// Returns one line per result. The worst result is last, because the end of a long text
    /// remains visible on a terminal.
    fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(
            text,
            "{:44} {:>6} {:>7} {:>6} {:>11} {:>9} {:>9} {:>8} {:>11}",
            "point",
            "ratio",
            "simple",
            "share",
            "per second",
            "50% us",
            "99% us",
            "gap ms",
            "processor"
        );
        for result in &self.results {
            let _ = writeln!(text, "{}", self.line(result));
        }
        let (count, good, seconds) = (self.results.len(), self.good(), self.seconds);
        let _ = write!(text, "{count} points in {seconds:.0} s, {good} >= {WANTED}");
        if let Some(worst) = self.results.last() {
            let _ = write!(text, "; worst: {} ({:.3})", worst.point, worst.ratio());
        }
        text.push('\n');
        text
    }

    fn line(&self, result: &Comparison) -> String {
        let Comparison { point, share_left, outcome, per_second, .. } = result;
        let us = |percent| {
            outcome
                .latency_ns(percent)
                .map_or_else(String::new, |ns| format!("{:.1}", ns as f64 / 1e3))
        };
        let simple =
            if self.has_simple { format!("{:.3}", result.simple_ratio()) } else { String::new() };
        let [[first, _], [second, _]] = outcome.processor_percent;
        format!(
            "{:44} {:>6.3} {simple:>7} {share_left:>6.3} {per_second:>11.0} {:>9} {:>9} {:>8.2} {:>4.0} + {:.0} %",
            point.to_string(),
            result.ratio(),
            us(50),
            us(99),
            outcome.longest_gap_ns as f64 / 1e6,
            first,
            second,
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "points": self.results.len(),
            "at_least": WANTED,
            "good": self.good(),
            "worst_ratio": self.worst_ratio(true),
            "worst_ratio_without_load": self.worst_ratio(false),
            "worst": self.results.last().map(|result| result.point.to_string()),
            "results": self.results.iter().map(|result| self.entry(result)).collect::<Vec<_>>(),
        })
    }

    fn entry(&self, result: &Comparison) -> Value {
        let Comparison { point, alone_per_second, share_left, outcome, per_second, .. } = result;
        json!({
            "point": point.to_string(),
            "exercise": point.exercise.name(),
            "message_bytes": point.message_bytes,
            "mode": point.mode.name(),
            "host_speed": f64::from(point.quarters) / 4.0,
            "load": point.load,
            "share_left": share_left,
            "alone_per_second": alone_per_second,
            "per_second": per_second,
            "ratio": result.ratio(),
            "simple_ratio": self.has_simple.then(|| result.simple_ratio()),
            "latency_50_ns": outcome.latency_ns(50),
            "latency_99_ns": outcome.latency_ns(99),
            "longest_gap_ns": outcome.longest_gap_ns,
            "processor_percent": outcome.processor_percent,
            "sleeps": outcome.sleeps,
            "kept_out": outcome.kept_out,
        })
    }
}

fn parse_speed(text: &str) -> Result<u32, String> {
    let speed: Option<f64> = text.trim().parse().ok();
    let known = |quarters: &u32| speed == Some(f64::from(*quarters) / 4.0);
    let found = SPEEDS.into_iter().find(known);
    found.ok_or_else(|| "invalid speed of hosts: it must be 0.25, 0.5, 1, 2 or 4".to_owned())
}

fn parse_load(text: &str) -> Result<usize, String> {
    let load: Option<usize> = text.trim().parse().ok();
    let found = LOADS.into_iter().find(|&known| load == Some(known));
    found.ok_or_else(|| {
        "invalid load: it must be 0, 1, 2 or 4 busy threads for each processor".to_owned()
    })
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let found = [Mode::Polls, Mode::Waits].into_iter().find(|mode| mode.name() == text.trim());
    found.ok_or_else(|| "unknown mode: known modes are polls, waits".to_owned())
}

const NS_PER_MS: u64 = 1_000_000;

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} points, {eta} left · {wide_msg}";

/// Interval of the progress bar: long enough not to slow the runs.
const TICK: Duration = Duration::from_millis(500);

/// Lowest acceptable ratio of the measured rate of operations to the highest rate that is possible
/// beside the busy threads.
const WANTED: f64 = 0.9;
