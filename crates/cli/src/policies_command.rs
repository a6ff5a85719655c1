//! `ethernot sim policies`: own rules against those of `MultiEdge` and against plain turns.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fabric::polling::Exercise;
use fabric::polling::policies::{self, Comparison, Figures, LinkSet, Point};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failure;
use crate::bench_command::parse_size;
use crate::output::{check_writable, write_results};

/// Compare the sending policy with those of MultiEdge and with plain turns, in virtual time.
///
/// Runs one-way, two-way and ping-pong over 1 to 4 links, equal and unlike, between hosts from a quarter to
/// four times as fast as a calibrated one, with and without absences of 50 µs to 5 ms, and behind shapers
/// whose timers interrupt the host. Prints what own rules come to against the better of the others, the
/// worst last. Throughput in MB/s; of ping-pongs half a round trip in µs. The figures depend on the
/// protocol and the seeds alone, not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim policies\n  \
    ethernot sim policies --links 2x1G,10G+1G --exercise one-way --sizes 64K,1M\n  \
    ethernot sim policies --quick --json policies.json")]
pub(crate) struct Arguments {
    /// Only as many points as bring each property together with each other one, one seed each
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every point: hours
    #[arg(long)]
    full: bool,
    /// Links: 1x100M, 1x1G, 1x10G, 2x100M, 2x1G, 3x1G, 4x1G, 2x10G, 1G+100M, 10G+1G, 1G/20us+1G/2ms, 2xfree
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_links)]
    links: Vec<LinkSet>,
    /// How fast hosts are beside a calibrated one: 0.25, 0.5, 1, 2, 4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_speed)]
    hosts: Vec<u32>,
    /// What is done: one-way, two-way, ping-pong
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_exercise)]
    exercise: Vec<Exercise>,
    /// Message sizes: 64, 4K, 64K, 1M, 4M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_known_size)]
    sizes: Vec<u32>,
    /// Only with absences of the hosts' processors, or only without
    #[arg(long, value_name = "YES|NO", value_parser = parse_yes)]
    absences: Option<bool>,
    /// Seeds of each point [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Points run at a time [default: as many as there are processors]
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
        return Err("no point is left: choose more links, hosts, exercises or sizes".into());
    }
    let start = Instant::now();
    let mut results = run_points(arguments, &points)?;
    results.sort_by(|one, other| other.ratio().total_cmp(&one.ratio()));
    let seconds = start.elapsed().as_secs_f64();
    let json = || Ok(format!("{:#}", to_json(&results, seconds)));
    write_results(arguments.json.as_deref(), json, || table(&results, seconds))
}

/// The points that are wanted.
fn points(arguments: &Arguments) -> Vec<Point> {
    let mut points = match (arguments.quick, arguments.full) {
        (true, _) => policies::quick(),
        (_, true) => policies::full(),
        _ => policies::pairs(),
    };
    fn wanted<T: PartialEq>(list: &[T], value: &T) -> bool {
        list.is_empty() || list.contains(value)
    }
    points.retain(|point| {
        wanted(&arguments.links, &point.links)
            && wanted(&arguments.hosts, &point.quarters)
            && wanted(&arguments.exercise, &point.exercise)
            && wanted(&arguments.sizes, &point.message_bytes)
            && arguments.absences.is_none_or(|wanted| wanted == point.has_absences)
    });
    points
}

/// Runs points on several threads; the results are in the order of the points.
fn run_points(arguments: &Arguments, points: &[Point]) -> Result<Vec<Comparison>, Failure> {
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let jobs = arguments.jobs.unwrap_or(available);
    let seeds = arguments.seeds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar.enable_steady_tick(TICK);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = points.get(number) else { break };
                    bar.set_message(point.to_string());
                    let result = policies::compare(point, seeds);
                    if let Ok(mut results) = results.lock() {
                        results.push((number, result));
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(number, _)| *number);
    let told = |(number, result): (usize, Result<Comparison, _>)| {
        result.map_err(|error| match points.get(number) {
            Some(point) => format!("{point}: {error}").into(),
            None => Failure::from(format!("{error}")),
        })
    };
    results.into_iter().map(told).collect()
}

/// One line each, the worst last, where a terminal shows it.
fn table(results: &[Comparison], seconds: f64) -> String {
    let mut text = String::new();
    // Writing to a `String` does not fail, here and below.
    let _ = writeln!(
        text,
        "{:60} {:>9} {:>9} {:>9} {:>6} {:>6} {:>6} {:>7} {:>6}",
        "point", "own", "MultiEdge", "in turn", "ratio", "to one", "links", "idle", "extra"
    );
    for result in results {
        let figure = |figures: &Figures| match result.latency_us(figures) {
            Some(latency_us) => format!("{latency_us:.2} us"),
            None => format!("{:.2}", figures.worth / 1e6),
        };
        let percent = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.1}%"));
        let to_one = result.ratio_to_one().map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let _ = writeln!(
            text,
            "{:60} {:>9} {:>9} {:>9} {:>6.3} {:>6} {:>6} {:>6.2}% {:>5.2}%",
            result.point.to_string(),
            figure(&result.own),
            figure(&result.multiedge),
            figure(&result.round_robin),
            result.ratio(),
            to_one,
            percent(result.efficiency_percent()),
            result.own.idle_percent,
            result.own.extra_percent,
        );
    }
    let good = results.iter().filter(|result| result.ratio() >= WANTED).count();
    let worst: Vec<String> = results
        .iter()
        .rev()
        .take(NAMED)
        .filter(|result| result.ratio() < WANTED)
        .map(|result| format!("{} ({:.3})", result.point, result.ratio()))
        .collect();
    let _ = write!(text, "{} points in {seconds:.0} s, {good} >= {WANTED}", results.len());
    let _ = match worst.as_slice() {
        [] => writeln!(text),
        worst => writeln!(text, "; worst: {}", worst.join("; ")),
    };
    text
}

fn to_json(results: &[Comparison], seconds: f64) -> Value {
    let ratio = |result: &Comparison| result.ratio();
    let good = results.iter().filter(|result| ratio(result) >= WANTED).count();
    json!({
        "seconds": seconds,
        "points": results.len(),
        "at_least": WANTED,
        "good": good,
        "worst_ratio": results.iter().map(ratio).fold(f64::INFINITY, f64::min),
        "worst": results.last().map(|result| result.point.to_string()),
        "worst_to_one_link": results.iter().filter_map(Comparison::ratio_to_one).reduce(f64::min),
        "results": results.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn entry(result: &Comparison) -> Value {
    let Comparison { point, own, multiedge, round_robin, alone } = result;
    let figures = |figures: &Figures| match result.latency_us(figures) {
        Some(latency_us) => json!({ "latency_us": latency_us }),
        None => json!({ "bytes_per_second": figures.worth }),
    };
    json!({
        "point": point.to_string(),
        "links": point.links.name,
        "host_speed": f64::from(point.quarters) / 4.0,
        "absences": point.has_absences,
        "exercise": point.exercise.name(),
        "message_bytes": point.message_bytes,
        "in_order": point.in_order,
        "own": figures(own),
        "multiedge": figures(multiedge),
        "round_robin": figures(round_robin),
        "one_link": alone.as_ref().map(figures),
        "ratio": result.ratio(),
        "ratio_to_one_link": result.ratio_to_one(),
        "efficiency_percent": result.efficiency_percent(),
        "idle_with_data_percent": own.idle_percent,
        "extra_frame_percent": own.extra_percent,
    })
}

fn parse_links(text: &str) -> Result<LinkSet, String> {
    let found = policies::LINK_SETS.into_iter().find(|links| links.name == text.trim());
    found.ok_or_else(|| {
        let known: Vec<_> = policies::LINK_SETS.iter().map(|links| links.name).collect();
        format!("the links are: {}", known.join(", "))
    })
}

fn parse_speed(text: &str) -> Result<u32, String> {
    let speed: Option<f64> = text.trim().parse().ok();
    let known = |quarters: &u32| speed == Some(f64::from(*quarters) / 4.0);
    let found = policies::SPEEDS.into_iter().find(known);
    found.ok_or_else(|| "hosts are 0.25, 0.5, 1, 2 or 4 times as fast".to_owned())
}

fn parse_exercise(text: &str) -> Result<Exercise, String> {
    let found = policies::EXERCISES.into_iter().find(|exercise| exercise.name() == text.trim());
    found.ok_or_else(|| "the exercises are: one-way, two-way, ping-pong".to_owned())
}

fn parse_known_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    let found = policies::SIZES.into_iter().find(|size| u64::from(*size) == bytes);
    found.ok_or_else(|| {
        let known = policies::SIZES.map(policies::size_name);
        format!("the sizes are: {}", known.join(", "))
    })
}

fn parse_yes(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    }
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} points, {eta} left · {wide_msg}";

/// Rare enough to cost the points nothing.
const TICK: Duration = Duration::from_millis(500);

/// What own rules should come to against the better of the others.
const WANTED: f64 = 0.99;

/// How many of the worst points the last line names.
const NAMED: usize = 5;
