//! A progress bar on a terminal. Draws nothing if standard error is not a terminal.

use std::time::Duration;

use bench::run::Observer;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows the number of samples and the remaining time, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Draws nothing if standard error is not a terminal.
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
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
    }

    fn on_sample(&mut self, what: &str) {
        // The estimate of the remaining time starts at the first sample.
        if self.bar.message().is_empty() {
            self.bar.reset_eta();
        } else {
            self.bar.inc(1);
        }
        self.bar.set_message(what.to_string());
    }
}

const TEMPLATE: &str = "{bar:24.cyan/dim} {percent:>3} %, {eta} left · {wide_msg}";

/// Interval of the bar: long enough not to disturb the measuring processes.
const TICK: Duration = Duration::from_millis(500);
