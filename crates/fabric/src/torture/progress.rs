//! Checks that pairs of sound hosts make progress already while other hosts are faulty, and not
//! only after all faults have ended.

use delivery::Instant;

use super::end::{End, Stage};
use super::run::{Run, Wake};
use crate::host::HostEngine;
use crate::oracle::Violation;
use crate::world::World;

impl<E: HostEngine> Run<'_, E> {
    /// Gives the applications of sound pairs operations to post. Repeats this until the faults end.
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

    /// If a side of a sound pair has unfinished work, checks that this side has made progress
    /// recently.
    pub(super) fn expect_progress(&mut self, world: &World<E>) {
        let now = world.now();
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
                    let what = format!("{what}; {}", self.describe_ends(world, pair));
                    return self.check(Err(Violation::Starved { pair, side, since_ns, what }));
                }
            }
        }
    }

    /// Describes the links of both ends of a pair.
    pub(super) fn describe_ends(&self, world: &World<E>, pair: usize) -> String {
        let one = |end: &End| {
            let links = world.engine(end.host).describe_links(end.connection);
            format!("host {}: {links}", end.host)
        };
        let both: Vec<String> = self.pairs[pair].ends.iter().flatten().map(one).collect();
        both.join("; ")
    }

    /// Describes what a side of a pair waits for; returns `None` if it waits for nothing.
    fn waits_for(&self, pair: usize, side: usize) -> Option<String> {
        let state = &self.pairs[pair];
        let end = state.ends[side].as_ref().filter(|end| end.stage == Stage::Open);
        let Some(end) = end else { return Some("a connection".to_owned()) };
        let (remaining, outstanding) = (state.remaining[side], end.model.outstanding_signalled());
        (remaining > 0 || outstanding > 0)
            .then(|| format!("{remaining} operations to post and {outstanding} to complete"))
    }
}

/// Time between two grants of operations to applications, in nanoseconds. `WORK_OPERATIONS` is the
/// number of operations in a grant.
const WORK_NS: u64 = 50_000_000;
const WORK_OPERATIONS: u32 = 6;

/// Maximum time for which a sound side may make no progress, in nanoseconds. Applications poll at
/// least every two milliseconds, and a few consecutive losses delay probes by some tens of
/// milliseconds. The limit is far above both.
const PATIENCE_NS: u64 = 1_000_000_000;
