//! `ethernot sim policies`: compares Ethernot's sending policy with the policy of `MultiEdge` and
//! with round robin.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fabric::polling::Costs;
use fabric::polling::Exercise;
use fabric::polling::policies::{
    self, BELIEFS, CALIBRATED, Comparison, Figures, LinkSet, Point, Recovery, Setting, Shaper,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{check_writable, write_results};
use crate::quantities::parse_size;

/// Compare Ethernot's sending policy with that of MultiEdge and with round robin, in virtual time.
///
/// Runs one-way, two-way and ping-pong over 1 to 4 links of equal or different rates. The speed of
/// hosts is 0.25 to 4 times that of a calibrated host. The processors of some hosts run other work
/// for periods of 50 µs to 5 ms (absences). Shapers limit the rates of links; the timers of some
/// shapers interrupt the host.
///
/// Prints for each point the result of Ethernot's policy divided by the better result of the two
/// other policies. The point with the lowest ratio is last. Throughput is in MB/s. The result of a
/// ping-pong is half a round trip, in µs. The results depend only on the protocol and the seeds,
/// not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim policies\n  \
    ethernot sim policies --links 2x1G,10G+1G --exercise one-way --sizes 64K,1M\n  \
    ethernot sim policies --quick --json policies.json")]
pub(crate) struct Arguments {
    /// Run fewer points, with one seed each: a selection that contains every combination of values
    /// of any two properties, and the points that `cargo xtask acceptance sender` measures on
    /// virtual Ethernet
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Run every point, which takes hours
    #[arg(long)]
    full: bool,
    /// Links: 1x100M, 1x1G, 1x10G, 2x100M, 2x1G, 3x1G, 4x1G, 2x10G, 1G+100M, 10G+1G,
    /// 1G/20us+1G/2ms, 2xfree
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_links)]
    links: Vec<LinkSet>,
    /// Speeds of hosts relative to a calibrated one: 0.25, 0.5, 1, 2, 4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_speed)]
    hosts: Vec<u32>,
    /// Exercises: one-way, two-way, ping-pong
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_exercise)]
    exercise: Vec<Exercise>,
    /// Message sizes in bytes: 64, 4K, 64K, 1M, 4M [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_known_size)]
    sizes: Vec<u32>,
    /// Shapers of the links' rates: timers, slow-timers, exact
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_shaper)]
    shapers: Vec<Shaper>,
    /// yes: run only points with absences of the hosts' processors; no: only points without
    /// absences
    #[arg(long, value_name = "YES|NO", value_parser = parse_yes)]
    absences: Option<bool>,
    /// Simulate drivers with segmentation offload, like those of UDP: frames of equal size that the
    /// engine passes together are one packet, which costs the host little more than one frame
    #[arg(long)]
    offloads: bool,
    /// Seeds of each point [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Processor time that a shaper's timer takes on a host of calibrated speed, in microseconds
    #[arg(long, value_name = "US", default_value_t = CALIBRATED.timer_ps / PS_PER_US, value_parser = clap::value_parser!(u64).range(..=1000))]
    timer_us: u64,
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
        return Err("no point is left: choose more links, hosts, exercises or sizes".into());
    }
    let start = Instant::now();
    let setting = setting(arguments);
    let mut results = run_points(arguments, &points, &setting)?;
    results.sort_by(|one, other| other.ratio().total_cmp(&one.ratio()));
    let recoveries = if arguments.is_filtered() { Vec::new() } else { recoveries(&setting)? };
    let seconds = start.elapsed().as_secs_f64();
    let found = Found { results, recoveries, offloads: setting.offloads, seconds };
    let json = || Ok(format!("{:#}", found.to_json()));
    write_results(arguments.json.as_deref(), json, || found.to_text())
}

impl Arguments {
    /// Returns whether only some of the points are selected.
    fn is_filtered(&self) -> bool {
        let Self { links, hosts, exercise, sizes, shapers, absences, .. } = self;
        let has_lists = !(links.is_empty() && hosts.is_empty() && exercise.is_empty());
        has_lists || !(sizes.is_empty() && shapers.is_empty()) || absences.is_some()
    }
}

fn setting(arguments: &Arguments) -> Setting {
    let seeds = arguments.seeds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let timer_ps = arguments.timer_us * PS_PER_US;
    Setting { costs: Costs { timer_ps, ..CALIBRATED }, seeds, offloads: arguments.offloads }
}

fn recoveries(setting: &Setting) -> Result<Vec<Recovery>, Failure> {
    let recover = |belief| {
        policies::recover(belief, setting).map_err(|error| format!("{belief}: {error}").into())
    };
    BELIEFS.into_iter().map(recover).collect()
}

/// Returns the selected points.
fn points(arguments: &Arguments) -> Vec<Point> {
    let mut points = match (arguments.quick, arguments.full) {
        (true, _) => policies::quick(),
        (_, true) => policies::full(),
        _ => policies::pairs(),
    };
    points.retain(|point| {
        wanted(&arguments.links, &point.links)
            && wanted(&arguments.hosts, &point.quarters)
            && wanted(&arguments.exercise, &point.exercise)
            && wanted(&arguments.sizes, &point.message_bytes)
            && wanted(&arguments.shapers, &point.shaper)
            && arguments.absences.is_none_or(|wanted| wanted == point.has_absences)
    });
    points
}

/// Returns whether `list` is empty or contains the value.
fn wanted<T: PartialEq>(list: &[T], value: &T) -> bool {
    list.is_empty() || list.contains(value)
}

/// Runs points on several threads. Returns the results in the order of the points.
fn run_points(
    arguments: &Arguments,
    points: &[Point],
    setting: &Setting,
) -> Result<Vec<Comparison>, Failure> {
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let jobs = arguments.jobs.unwrap_or(available);
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
                    let result = policies::compare(point, setting);
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
    let report = |(number, result): (usize, Result<Comparison, _>)| {
        result.map_err(|error| match points.get(number) {
            Some(point) => format!("{point}: {error}").into(),
            None => Failure::from(format!("{error}")),
        })
    };
    results.into_iter().map(report).collect()
}

/// The results of a run.
struct Found {
    /// The results, the lowest ratio last.
    results: Vec<Comparison>,
    recoveries: Vec<Recovery>,
    /// Whether the simulated drivers reported segmentation offload (`--offloads`): that a batch of
    /// frames costs as little as one frame.
    offloads: bool,
    seconds: f64,
}

impl Found {
    /// Returns the number of results that reach [`WANTED`].
    fn good(&self) -> usize {
        self.results.iter().filter(|result| result.ratio() >= WANTED).count()
    }

    /// Returns the lowest ratio of the throughput over two links without a rate limit to the
    /// throughput over one such link.
    fn worst_to_one(&self) -> Option<f64> {
        self.results.iter().filter_map(Comparison::ratio_to_one).reduce(f64::min)
    }

    /// Returns the highest percentage of frames during which another link of equal rate was idle,
    /// although the idle link had room and data waited. Includes only streams whose messages have
    /// several frames.
    fn worst_idle_percent(&self) -> Option<f64> {
        let counts = |point: &Point| {
            point.links.is_equal()
                && point.exercise != Exercise::PingPong
                && point.message_bytes >= 64 << 10
        };
        let counted = self.results.iter().filter(|result| counts(&result.point));
        counted.map(|result| result.own.idle_percent).reduce(f64::max)
    }

    /// Returns one line per result. The worst result is last, because the end of a long text
    /// remains visible on a terminal.
    fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(
            text,
            "{:60} {:>9} {:>9} {:>9} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6}",
            "point",
            "own",
            "MultiEdge",
            "in turn",
            "ratio",
            "+-",
            "to one",
            "links",
            "idle",
            "extra"
        );
        for result in &self.results {
            let _ = writeln!(text, "{}", line(result));
        }
        for recovery in &self.recoveries {
            let _ = writeln!(text, "{recovery}");
        }
        let (count, good, seconds) = (self.results.len(), self.good(), self.seconds);
        let drivers = if self.offloads { " over drivers that offload" } else { "" };
        let _ = write!(text, "{count} points{drivers} in {seconds:.0} s, {good} >= {WANTED}");
        if let Some(ratio) = self.worst_to_one() {
            let _ = write!(
                text,
                "; two links without a rate, divided by one link: {ratio:.3} at worst"
            );
        }
        if let Some(percent) = self.worst_idle_percent() {
            let _ = write!(text, "; equal links idle with data: {percent:.1} % at worst");
        }
        let worst = self.results.iter().rev().take(NAMED);
        for (number, result) in worst.filter(|result| result.ratio() < WANTED).enumerate() {
            let between = if number == 0 { "; worst: " } else { "; " };
            let _ = write!(text, "{between}{} ({:.3})", result.point, result.ratio());
        }
        text.push('\n');
        text
    }

    fn to_json(&self) -> Value {
        let ratios = self.results.iter().map(Comparison::ratio);
        json!({
            "seconds": self.seconds,
            "offloads": self.offloads,
            "points": self.results.len(),
            "at_least": WANTED,
            "good": self.good(),
            "worst_ratio": ratios.reduce(f64::min),
            "worst": self.results.last().map(|result| result.point.to_string()),
            "worst_to_one_link": self.worst_to_one(),
            "worst_idle_percent_on_equal_links": self.worst_idle_percent(),
            "results": self.results.iter().map(entry).collect::<Vec<_>>(),
            "recoveries": self.recoveries.iter().map(recovery_entry).collect::<Vec<_>>(),
        })
    }
}

fn line(result: &Comparison) -> String {
    let figure = |figures: &Figures| match result.latency_us(figures) {
        Some(latency_us) => format!("{latency_us:.2} us"),
        None => format!("{:.2}", figures.worth / 1e6),
    };
    let percent = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.1}%"));
    let to_one = result.ratio_to_one().map_or_else(String::new, |ratio| format!("{ratio:.3}"));
    format!(
        "{:60} {:>9} {:>9} {:>9} {:>6.3} {:>6.3} {to_one:>6} {:>6} {:>6.2}% {:>5.2}%",
        result.point.to_string(),
        figure(&result.own),
        figure(&result.multiedge),
        figure(&result.round_robin),
        result.ratio(),
        result.spread,
        percent(result.efficiency_percent()),
        result.own.idle_percent,
        result.own.extra_percent,
    )
}

fn recovery_entry(recovery: &Recovery) -> Value {
    let Recovery { belief, even_after_ns, srtt_ns, share_percent } = recovery;
    json!({
        "believed_slower": belief.slower,
        "host_speed": f64::from(belief.quarters) / 4.0,
        "even_after_ns": even_after_ns,
        "round_trips": recovery.round_trips(),
        "srtt_ns": srtt_ns,
        "share_percent": share_percent,
    })
}

fn entry(result: &Comparison) -> Value {
    let Comparison { point, own, multiedge, round_robin, alone, spread } = result;
    let figures = |figures: &Figures| match result.latency_us(figures) {
        Some(latency_us) => json!({ "latency_us": latency_us }),
        None => json!({ "bytes_per_second": figures.worth }),
    };
    json!({
        "point": point.to_string(),
        "links": point.links.name,
        "host_speed": f64::from(point.quarters) / 4.0,
        "shaper": point.shaper.name(),
        "absences": point.has_absences,
        "exercise": point.exercise.name(),
        "message_bytes": point.message_bytes,
        "in_order": point.in_order,
        "own": figures(own),
        "multiedge": figures(multiedge),
        "round_robin": figures(round_robin),
        "one_link": alone.as_ref().map(figures),
        "ratio": result.ratio(),
        "ratio_spread": spread,
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
    found.ok_or_else(|| "invalid speed of hosts: it must be 0.25, 0.5, 1, 2 or 4".to_owned())
}

fn parse_exercise(text: &str) -> Result<Exercise, String> {
    let found = policies::EXERCISES.into_iter().find(|exercise| exercise.name() == text.trim());
    found.ok_or_else(|| {
        "unknown exercise: known exercises are one-way, two-way, ping-pong".to_owned()
    })
}

fn parse_shaper(text: &str) -> Result<Shaper, String> {
    let found = policies::SHAPERS.into_iter().find(|shaper| shaper.name() == text.trim());
    found.ok_or_else(|| "unknown shaper: known shapers are timers, slow-timers, exact".to_owned())
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

const PS_PER_US: u64 = 1_000_000;

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} points, {eta} left · {wide_msg}";

/// Interval of the progress bar: long enough not to slow the runs.
const TICK: Duration = Duration::from_millis(500);

/// Lowest acceptable result of Ethernot's policy divided by the better result of the other
/// policies.
const WANTED: f64 = 0.99;

/// Number of points that the last line names, the worst first.
const NAMED: usize = 5;
