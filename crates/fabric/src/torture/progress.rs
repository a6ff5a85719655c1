//! Checks that pairs of sound hosts make progress while others fail, not only after healing.

use delivery::Instant;

use super::end::Stage;
use super::run::{Run, Wake};
use crate::World;
use crate::host::HostEngine;
use crate::oracle::Violation;

impl<E: HostEngine> Run<'_, E> {
    /// Schedules work for the applications of sound pairs, repeatedly while faults last.
    pub(super) fn schedule_work(&mut self, world: &mut World<E>) {
        if !self.plan.classes.watches_progress {
            return;
        }
        for step in 1..self.plan.safety_ns / WORK_NS {
            for pair in 0..self.pairs.len() {
                let wake = Wake::Grant { pair, operations: WORK_OPERATIONS };
                self.wake_at(world, Instant(step * WORK_NS), wake);
            }
        }
    }

    /// Records that one side of a pair has made progress.
    pub(super) fn note_progress(&mut self, now: Instant, pair: usize, side: usize) {
        self.pairs[pair].progress_at[side] = now;
    }

    /// Checks that each side of a sound pair with work left has made progress recently.
    pub(super) fn expect_progress(&mut self, now: Instant) {
        if !self.plan.classes.watches_progress || self.healed {
            return;
        }
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].may_end {
                continue;
            }
            for side in [0, 1] {
                let Some(what) = self.waits_for(pair, side) else {
                    self.note_progress(now, pair, side);
                    continue;
                };
                let since_ns = now.since_ns(self.pairs[pair].progress_at[side]);
                if since_ns > PATIENCE_NS {
                    return self.check(Err(Violation::Starved { pair, side, since_ns, what }));
                }
            }
        }
    }

    /// Describes what a side of a pair waits for; `None` if it waits for nothing.
    fn waits_for(&self, pair: usize, side: usize) -> Option<String> {
        let state = &self.pairs[pair];
        let end = state.ends[side].as_ref().filter(|end| end.stage == Stage::Open);
        let Some(end) = end else { return Some("a connection".to_owned()) };
        let (remaining, outstanding) = (state.remaining[side], end.model.outstanding_signalled());
        (remaining > 0 || outstanding > 0)
            .then(|| format!("{remaining} operations to post and {outstanding} to complete"))
    }
}

/// Interval at which applications get work, in nanoseconds, and the number of operations.
const WORK_NS: u64 = 50_000_000;
const WORK_OPERATIONS: u32 = 6;

/// Longest time without progress of a sound side, in nanoseconds. A few consecutive losses delay
/// probes by some tens of milliseconds, and applications poll at least every two milliseconds.
const PATIENCE_NS: u64 = 1_000_000_000;
