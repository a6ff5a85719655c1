//! The progress of one simulation.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use interconnect::simulation::Progress;

/// A bar with the remaining time and the events per second on a terminal. Draws nothing elsewhere.
pub(crate) struct RunProgress {
    bar: ProgressBar,
    start: Instant,
    /// The time when the bar was last drawn.
    drawn: Instant,
}

impl RunProgress {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { bar: ProgressBar::hidden(), start: now, drawn: now }
    }

    /// Updates the bar. Called every few thousand events.
    pub(crate) fn update(&mut self, progress: Progress) {
        let now = Instant::now();
        if now - self.drawn < INTERVAL {
            return;
        }
        self.drawn = now;
        if self.bar.is_hidden() {
            // Short runs draw no bar.
            self.bar = bar(progress.share.is_some());
        }
        if let Some(share) = progress.share {
            self.bar.set_position((share * STEPS as f64) as u64);
        }
        self.bar.set_message(figures(progress, now - self.start));
    }

    /// Removes the bar. Returns the duration of the run in seconds.
    pub(crate) fn finish(self) -> f64 {
        self.bar.finish_and_clear();
        self.start.elapsed().as_secs_f64()
    }
}

fn bar(knows_share: bool) -> ProgressBar {
    let bar = ProgressBar::new(STEPS);
    let template = if knows_share { TEMPLATE } else { TEMPLATE_WITHOUT_SHARE };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar
}

fn figures(progress: Progress, elapsed: Duration) -> String {
    format!(
        "{:.1} M events/s · {:.3} ms simulated · {} messages in flight",
        progress.events as f64 / elapsed.as_secs_f64().max(1e-9) * 1e-6,
        progress.now_ps as f64 * 1e-9,
        progress.messages
    )
}

const STEPS: u64 = 1_000;
const INTERVAL: Duration = Duration::from_millis(200);
const TEMPLATE: &str = "{bar:24.cyan/dim} {percent:>3} %, {eta} left · {wide_msg}";
const TEMPLATE_WITHOUT_SHARE: &str = "{spinner} {elapsed} · {wide_msg}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_the_simulation_rate() {
        let report =
            Progress { share: Some(0.5), now_ps: 2_500_000_000, events: 30_000_000, messages: 7 };
        assert_eq!(
            figures(report, Duration::from_secs(2)),
            "15.0 M events/s · 2.500 ms simulated · 7 messages in flight"
        );
    }
}
