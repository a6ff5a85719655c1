//! Shows the progress of a long measurement: a bar on a terminal, and otherwise a line from time to
//! time, so that a log or a pipe shows that the command still works.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use bench::run::Observer;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows the number of samples and the remaining time, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Counts the samples. Draws nothing if standard error is not a terminal.
    bar: ProgressBar,
    /// Ends the thread that prints lines when it is dropped. `None` on a terminal.
    lines: Option<Sender<()>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { bar: ProgressBar::hidden(), lines: None }
    }

    /// Removes the bar, and prints no further lines.
    pub(crate) fn finish(&mut self) {
        self.lines = None;
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn on_note(&mut self, note: &str) {
        eprintln!("ethernot: {note}");
    }

    fn on_start(&mut self, samples: u64) {
        self.bar = ProgressBar::new(samples);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            self.bar.set_style(style.progress_chars("━━╌"));
        }
        self.bar.enable_steady_tick(TICK);
        if !io::stderr().is_terminal() {
            self.lines = Some(print_lines(self.bar.clone()));
        }
    }

    fn on_sample(&mut self, what: &str) {
        // The estimate of the remaining time starts at the first sample.
        if self.bar.message().is_empty() {
            self.bar.reset_eta();
        } else {
            self.bar.inc(1);
        }
        // Samples that a busy machine disturbed are measured again, in addition to the planned ones.
        if self.bar.length().is_some_and(|planned| self.bar.position() >= planned) {
            self.bar.inc_length(1);
        }
        self.bar.set_message(what.to_string());
    }
}

/// Starts a thread that prints a line every [`LINE`], until the sender is dropped.
fn print_lines(bar: ProgressBar) -> Sender<()> {
    let (sender, ended) = mpsc::channel::<()>();
    let start = Instant::now();
    thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LINE) {
            let (position, samples) = (bar.position(), bar.length().unwrap_or(0));
            eprintln!("ethernot: {}", line(position, samples, start.elapsed(), &bar.message()));
        }
    });
    sender
}

/// Returns the text of a line. `position` of `samples` samples are done after the time `passed`,
/// and `what` is being measured.
fn line(position: u64, samples: u64, passed: Duration, what: &str) -> String {
    let seconds = passed.as_secs();
    format!("{position} of {samples} samples after {seconds} s, measuring {what}")
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {percent:>3} %, {eta} left · {wide_msg}";

/// Interval of the bar: long enough not to disturb the measuring processes.
const TICK: Duration = Duration::from_millis(500);

/// Interval of the lines.
const LINE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_the_measurement_is() {
        let text = line(3, 40, Duration::from_millis(61_500), "registration touched");
        assert_eq!(text, "3 of 40 samples after 61 s, measuring registration touched");
    }

    #[test]
    fn samples_that_are_measured_again_count_too() {
        let mut progress = Progress::new();
        progress.on_start(2);
        for _ in 0..5 {
            progress.on_sample("latency");
            assert!(progress.bar.length().is_some_and(|all| progress.bar.position() < all));
        }
        assert_eq!((progress.bar.position(), progress.bar.length()), (4, Some(5)));
        progress.finish();
    }

    #[test]
    fn the_thread_that_prints_ends_with_the_measurement() {
        let bar = ProgressBar::hidden();
        let lines = print_lines(bar.clone());
        drop(lines);
        // The thread holds the only other reference to the bar's state.
        let weak = bar.downgrade();
        drop(bar);
        let start = Instant::now();
        while weak.upgrade().is_some() && start.elapsed() < LINE / 2 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(weak.upgrade().is_none(), "the thread still runs");
    }
}
