//! `ethernot sim torture`: runs many seeds on all processors.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fabric::torture::{self, Options, Report, Tally};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{is_standard_output, print, write_text};

/// Search for violations of the engine's guarantees under random simulated faults.
///
/// Each seed determines a network, its faults and the applications' operations. Seeds that are
/// multiples of 8 run twice, and the two runs must have the same result. If a seed fails, prints
/// the violated guarantee, the network with its faults, and the command that repeats the run. The
/// exit status is 1 if a seed failed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim torture --seeds 0..500\n  \
    ethernot sim torture --seeds 0..50000 --jobs 2 --json torture.json\n  \
    ethernot sim torture --seeds 17..18\n  \
    ethernot sim torture --queue-pairs\n  \
    ethernot sim torture --load 4")]
pub(crate) struct Arguments {
    /// Seeds to run: from A up to but excluding B
    #[arg(long, value_name = "A..B", default_value = "0..500", value_parser = parse_range)]
    seeds: Range<u64>,
    /// Seeds to run in parallel [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Number of failed seeds after which the command stops
    #[arg(long, value_name = "N", default_value_t = 10)]
    failures: usize,
    /// Use queue pairs, with scatter/gather lists and immediates that consume receives. Some
    /// operations fail because access is denied, while others are in flight. Peers close as soon as
    /// they have received the expected data
    #[arg(long)]
    queue_pairs: bool,
    /// Run this number of busy threads on each simulated processor, 0 to 16, beside the engine's
    /// thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    load: Option<u8>,
    /// Write the result as JSON; `-` for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::new(AtomicBool::new(false));
    let flags = [Arc::clone(&stop), Arc::clone(&interrupted)];
    ctrlc::set_handler(move || flags.iter().for_each(|flag| flag.store(true, Ordering::Relaxed)))
        .map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let start = Instant::now();
    let is_text_wanted = arguments.json.as_deref().is_none_or(|path| !is_standard_output(path));
    let mut tally = run_seeds(arguments, &stop, is_text_wanted);
    tally.failures.sort_by_key(|report| report.seed);
    let outcome = Outcome {
        tally,
        seconds: start.elapsed().as_secs_f64(),
        interrupted: interrupted.load(Ordering::Relaxed),
    };
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", outcome.to_json(&arguments.seeds));
        if is_text_wanted {
            write_text(path, &text)?;
        } else {
            print(&text)?;
        }
    }
    if is_text_wanted {
        println!("{}", outcome.summary());
    }
    match outcome.tally.failures.len() {
        0 if outcome.interrupted => Err("interrupted before all seeds were run".into()),
        0 => Ok(()),
        failed => Err(format!("{failed} of {} seeds failed", outcome.tally.seeds).into()),
    }
}

/// Runs seeds on several threads until all are done, enough have failed or `stop` is set.
fn run_seeds(arguments: &Arguments, stop: &AtomicBool, is_text_wanted: bool) -> Tally {
    let Arguments { seeds, failures, queue_pairs, load, .. } = arguments;
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let jobs = arguments.jobs.unwrap_or(available);
    let next = AtomicU64::new(seeds.start);
    let (sender, receiver) = mpsc::channel();
    let bar = progress_bar(seeds.end - seeds.start);
    let mut tally = Tally::default();
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let options = Options {
                        twice: seed.is_multiple_of(TWICE_EVERY),
                        queue_pairs: *queue_pairs,
                        load: *load,
                        ..Options::default()
                    };
                    if seed >= seeds.end || sender.send(torture::run(seed, &options)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for report in receiver {
            if report.failure.is_some() && is_text_wanted {
                bar.suspend(|| println!("{report}"));
            }
            tally.add(report);
            bar.inc(1);
            let failed = tally.failures.len();
            bar.set_message(format!("{failed} failed, {} operations", tally.completed));
            if failed >= *failures {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    bar.finish_and_clear();
    tally
}

/// Interval of the seeds that run twice. If two runs of a seed can differ, for example because of
/// the order of a hash map or because of an address, they differ for most seeds. So a sample of
/// seeds shows the fault.
const TWICE_EVERY: u64 = 8;

fn progress_bar(seeds: u64) -> ProgressBar {
    // Draws nothing if standard error is not a terminal.
    let bar = ProgressBar::new(seeds);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// The results of all seeds.
struct Outcome {
    tally: Tally,
    seconds: f64,
    interrupted: bool,
}

impl Outcome {
    fn summary(&self) -> String {
        let Tally { seeds, completed, delivered, frames, virtual_ns, failures } = &self.tally;
        let interrupted = if self.interrupted { "interrupted; " } else { "" };
        let failed = if failures.is_empty() {
            "none failed".to_owned()
        } else {
            let numbers: Vec<String> =
                failures.iter().map(|report| report.seed.to_string()).collect();
            format!("{} FAILED: {}", failures.len(), numbers.join(", "))
        };
        format!(
            "{interrupted}{seeds} seeds, {failed}; {completed} operations, {delivered} messages \
             and notifications, {frames} frames, {:.0} s of virtual time in {:.1} s",
            *virtual_ns as f64 / 1e9,
            self.seconds
        )
    }

    fn to_json(&self, wanted: &Range<u64>) -> Value {
        let Tally { seeds, completed, delivered, frames, virtual_ns, failures } = &self.tally;
        json!({
            "first_seed": wanted.start,
            "end_seed": wanted.end,
            "seeds": seeds,
            "interrupted": self.interrupted,
            "operations": completed,
            "deliveries": delivered,
            "frames": frames,
            "virtual_seconds": *virtual_ns as f64 / 1e9,
            "seconds": self.seconds,
            "failures": failures.iter().map(failure_to_json).collect::<Vec<_>>(),
        })
    }
}

fn failure_to_json(report: &Report) -> Value {
    let failure = report.failure.as_ref();
    json!({
        "seed": report.seed,
        "violation": failure.map(|failure| failure.violation.to_string()),
        "virtual_ns": failure.map(|failure| failure.time.0),
        "plan": failure.map(|failure| &failure.plan),
        "again": failure.map(|failure| &failure.again),
    })
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let bounds = text.split_once("..").and_then(|(start, end)| {
        Some(start.trim().parse::<u64>().ok()?..end.trim().parse::<u64>().ok()?)
    });
    match bounds {
        Some(range) if !range.is_empty() => Ok(range),
        _ => Err("invalid seeds: write a range such as 0..500, which excludes the last number"
            .to_owned()),
    }
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} seeds, {eta} left · {wide_msg}";

/// Interval of the progress bar: long enough not to slow the runs.
const TICK: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seeds_are_half_open_and_not_empty() {
        assert_eq!(parse_range("0..500"), Ok(0..500));
        assert_eq!(parse_range(" 7 .. 8 "), Ok(7..8));
        for wrong in ["", "5", "5..5", "6..5", "a..b", "0..=5", "-1..5"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }
}
