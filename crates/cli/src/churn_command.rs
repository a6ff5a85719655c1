//! `ethernot sim churn`: long simulated runs in which links disappear and return.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fabric::torture::{self, Options, SoakReport};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{is_standard_output, print, write_text};

/// Run the engine for a long virtual time while links disappear and return.
///
/// Interfaces disappear and return, sometimes at both ends at the same time or with other
/// addresses. Frame sizes, rates and delays change; carriers flap; paths are cut in one or both
/// directions; frames are lost in bursts; hosts restart. Each event comes with a burst of
/// operations. After every few events, all operations must complete, memory must have the expected
/// content, and all connections must have all their links. The hours are divided among `--jobs`
/// simulated worlds, each with its own seed. The exit status is 1 if a world failed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim churn --hours 24\n  \
    ethernot sim churn --hours 24 --seed 100 --jobs 2 --json churn.json\n  \
    ethernot sim churn --hours 12 --seed 101 --jobs 1")]
pub(crate) struct Arguments {
    /// Hours of virtual time, added over all worlds
    #[arg(long, value_name = "H", default_value_t = 24.0, value_parser = parse_hours)]
    hours: f64,
    /// Seed of the first world
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of worlds, which run in parallel [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Write the result as JSON; `-` for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let start = Instant::now();
    let is_text_wanted = arguments.json.as_deref().is_none_or(|path| !is_standard_output(path));
    let worlds = run_worlds(arguments, &stop);
    let outcome = Outcome { worlds, seconds: start.elapsed().as_secs_f64() };
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", outcome.to_json());
        if is_text_wanted {
            write_text(path, &text)?;
        } else {
            print(&text)?;
        }
    }
    if is_text_wanted {
        for world in &outcome.worlds {
            if world.report.failure.is_some() {
                println!("{}", world.report);
            }
        }
        println!("{}", outcome.summary());
    }
    match outcome.failed() {
        0 if stop.load(Ordering::Relaxed) => Err("interrupted before the end of the run".into()),
        0 => Ok(()),
        failed => Err(format!("{failed} of {} worlds failed", outcome.worlds.len()).into()),
    }
}

/// Runs each world on its own thread.
fn run_worlds(arguments: &Arguments, stop: &AtomicBool) -> Vec<SoakReport> {
    let available = thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let jobs = u64::from(arguments.jobs.unwrap_or(available));
    let hours = arguments.hours / jobs as f64;
    let bar = progress_bar((arguments.hours * MINUTES_PER_HOUR) as u64);
    let (sender, receiver) = mpsc::channel::<(usize, u64)>();
    let mut worlds = Vec::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|job| {
                let (sender, seed) = (sender.clone(), arguments.seed.wrapping_add(job));
                scope.spawn(move || {
                    torture::soak(seed, hours, &Options::default(), &mut |virtual_ns| {
                        // The receiver draws the progress bar. If the receiver has ended, the run
                        // continues without the bar.
                        let _ = sender.send((job as usize, virtual_ns));
                        !stop.load(Ordering::Relaxed)
                    })
                })
            })
            .collect();
        drop(sender);
        let mut virtual_ns = vec![0; jobs as usize];
        for (job, now_ns) in receiver {
            if let Some(slot) = virtual_ns.get_mut(job) {
                *slot = now_ns;
            }
            bar.set_position(virtual_ns.iter().sum::<u64>() / NS_PER_MINUTE);
        }
        for thread in threads {
            match thread.join() {
                Ok(report) => worlds.push(report),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    bar.finish_and_clear();
    worlds
}

fn progress_bar(minutes: u64) -> ProgressBar {
    // Draws nothing if standard error is not a terminal.
    let bar = ProgressBar::new(minutes);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// The results of all worlds.
struct Outcome {
    worlds: Vec<SoakReport>,
    seconds: f64,
}

impl Outcome {
    fn failed(&self) -> usize {
        self.worlds.iter().filter(|world| world.report.failure.is_some()).count()
    }

    fn sum(&self, of: impl Fn(&SoakReport) -> u64) -> u64 {
        self.worlds.iter().map(of).sum()
    }

    fn hours(&self) -> f64 {
        self.sum(|world| world.report.virtual_ns) as f64 / (NS_PER_MINUTE as f64 * MINUTES_PER_HOUR)
    }

    fn summary(&self) -> String {
        let failed = match self.failed() {
            0 => "no violation".to_owned(),
            failed => format!("{failed} FAILED"),
        };
        format!(
            "{:.1} hours of virtual time in {} worlds, {failed}; {} disasters in {} episodes, {} \
             connections, {} operations, {} messages and notifications, {} frames in {:.1} s",
            self.hours(),
            self.worlds.len(),
            self.sum(|world| world.disasters),
            self.sum(|world| world.episodes),
            self.sum(|world| world.report.connections),
            self.sum(|world| world.report.completed),
            self.sum(|world| world.report.delivered),
            self.sum(|world| world.report.network.sent),
            self.seconds
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "hours": self.hours(),
            "episodes": self.sum(|world| world.episodes),
            "disasters": self.sum(|world| world.disasters),
            "connections": self.sum(|world| world.report.connections),
            "operations": self.sum(|world| world.report.completed),
            "deliveries": self.sum(|world| world.report.delivered),
            "frames": self.sum(|world| world.report.network.sent),
            "seconds": self.seconds,
            "failed": self.failed(),
            "worlds": self.worlds.iter().map(world_to_json).collect::<Vec<_>>(),
        })
    }
}

fn world_to_json(world: &SoakReport) -> Value {
    let report = &world.report;
    let failure = report.failure.as_ref();
    json!({
        "seed": report.seed,
        "virtual_ns": report.virtual_ns,
        "episodes": world.episodes,
        "trace_hash": format!("{:016x}", report.trace_hash),
        "violation": failure.map(|failure| failure.violation.to_string()),
        "plan": failure.map(|failure| &failure.plan),
        "again": failure.map(|failure| &failure.again),
    })
}

fn parse_hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hours) if hours > 0.0 && hours <= HOURS_MAX => Ok(hours),
        _ => Err(format!(
            "invalid number of hours: it must be above 0 and at most {HOURS_MAX}, such as 24 or 0.5"
        )),
    }
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {pos}/{len} virtual minutes, {eta} left";

/// Interval of the progress bar: long enough not to slow the worlds.
const TICK: Duration = Duration::from_millis(500);

const MINUTES_PER_HOUR: f64 = 60.0;
const NS_PER_MINUTE: u64 = 60_000_000_000;

/// Highest number of hours: a year. Nanoseconds of virtual time fit 64 bits for much longer.
const HOURS_MAX: f64 = 8_784.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_positive_and_no_more_than_a_year() {
        assert_eq!(parse_hours("24"), Ok(24.0));
        assert_eq!(parse_hours("0.5"), Ok(0.5));
        for wrong in ["", "0", "-1", "x", "inf", "NaN", "9000"] {
            assert!(parse_hours(wrong).is_err(), "{wrong}");
        }
    }
}
