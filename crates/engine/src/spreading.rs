//! State for the distribution of a connection's data over its links (sender.md, 8).

use delivery::{Instant, LINKS_MAX, LinkView, Next, SchedulerState, SchedulingPolicy, next};

/// The scheduler of a connection, and its record of earlier frames. Links are identified by their
/// positions. A position stays valid until a link is [removed](Self::on_positions_shifted).
#[derive(Debug)]
pub(crate) struct Spreading {
    /// The scheduler. Only a connection with several links has a scheduler.
    scheduler: Option<Box<SchedulerState>>,
    /// Time at which to check again whether a link should get data now, after the scheduler has
    /// left the data to better links.
    again_at: Instant,
    /// The position of the link that got the newest data frame, and the time at which that frame
    /// should arrive. The position is [`LINKS_MAX`] if that link was removed. The time does not
    /// include the part of the delay that is equal on all links.
    arrives_at: (usize, Instant),
    /// Number of data frames sent since [`Spreading::falls_together`] last returned true.
    in_step: u32,
}

delivery::pack_fields!(Spreading { scheduler, again_at, arrives_at, in_step });

impl Default for Spreading {
    fn default() -> Self {
        let arrives_at = (0, Instant::default());
        Self { scheduler: None, again_at: Instant::NEVER, arrives_at, in_step: 0 }
    }
}

impl Spreading {
    /// Handles a link that was opened. `links` is the number of links, including the new one.
    pub(crate) fn on_opened(&mut self, links: usize) {
        if links > 1 {
            self.scheduler.get_or_insert_default();
        }
    }

    /// Discards the measurements and counts of the scheduler for the link at `position`.
    pub(crate) fn forget(&mut self, position: usize) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.forget(position);
        }
    }

    /// Handles the removal of a link. Resets the state of the scheduler for all links, because
    /// positions have changed.
    pub(crate) fn on_positions_shifted(&mut self) {
        self.arrives_at = (LINKS_MAX, Instant::default());
        if let Some(scheduler) = &mut self.scheduler {
            **scheduler = SchedulerState::default();
        }
    }

    /// Returns the time at which to check again whether a link should get data now, after the
    /// scheduler has left the data to better links.
    #[inline]
    pub(crate) const fn again_at(&self) -> Instant {
        self.again_at
    }

    /// Returns the position of the link for the next frame; `None` if no link should get data now.
    /// `backlog_bytes` is the number of bytes that wait to be sent.
    pub(crate) fn choose(
        &mut self,
        policy: SchedulingPolicy,
        backlog_bytes: u64,
        now: Instant,
        views: &mut [LinkView],
    ) -> Option<usize> {
        match next(policy, backlog_bytes, now, views, self.scheduler.as_mut()?) {
            Next::Frame { link } => Some(link),
            Next::Wait { until } => {
                self.again_at = until;
                None
            }
        }
    }

    /// Records a frame that was cut for the link at `position`. `view` is the state of the link
    /// with this frame in its queue.
    pub(crate) fn on_cut(&mut self, position: usize, view: &LinkView) {
        debug_assert!(position < LINKS_MAX, "there is such a link");
        self.arrives_at = (position, view.idle_at.after_ns(view.one_way_ns));
    }

    /// Returns whether the next frame of the link at `position` would arrive at the same time as
    /// the newest frame of another, equally fast link.
    ///
    /// In that case, chance decides which of the two frames arrives first, and the same happens to
    /// the frames after them. If this function returns true, the caller sends a frame of half the
    /// size. After this shorter frame, frames of the two links arrive at different times for a long
    /// while.
    pub(crate) fn falls_together(
        &mut self,
        views: &[LinkView; LINKS_MAX],
        position: usize,
    ) -> bool {
        let (other, arrives_at) = self.arrives_at;
        let (mine, theirs) = (&views[position], &views[other.min(LINKS_MAX - 1)]);
        let (Some(rate), Some(other_rate)) =
            (mine.rate_bytes_per_second, theirs.rate_bytes_per_second)
        else {
            return false;
        };
        self.in_step = self.in_step.saturating_add(1);
        if other == position
            || self.in_step < STEP_FRAMES
            || rate.abs_diff(other_rate) > other_rate / 8
        {
            return false;
        }
        let sending_ns = u64::from(mine.frame_bytes) * 1_000_000_000 / rate.max(1);
        let at = mine.idle_at.after_ns(mine.one_way_ns + sending_ns);
        let apart_ns = at.since_ns(arrives_at).max(arrives_at.since_ns(at));
        let together = apart_ns < sending_ns / 5;
        if together {
            self.in_step = 0;
        }
        together
    }
}

/// After [`Spreading::falls_together`] has returned true, it returns false for this number of
/// frames.
const STEP_FRAMES: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: LinkView = LinkView {
        rate_bytes_per_second: Some(125_000_000),
        one_way_ns: 50_000,
        idle_at: Instant(1_000_000),
        window_left_bytes: 0,
        opens_at: Instant::NEVER,
        frame_bytes: 1400,
        usable: true,
        backup: false,
        has_share: false,
    };

    /// Cuts `frames` frames for two equal links. Returns the numbers of those frames of the second
    /// link that would arrive at the same time as a frame of the first link.
    fn found(mut spreading: Spreading, frames: u32) -> Vec<u32> {
        let mut views = [VIEW; LINKS_MAX];
        views[0].idle_at = VIEW.idle_at.after_ns(1400 * 8);
        let mut together = Vec::new();
        for frame in 1..=frames {
            spreading.on_cut(0, &views[0]);
            if spreading.falls_together(&views, 1) {
                together.push(frame);
            }
        }
        together
    }

    #[test]
    fn similar_links_are_desynchronized_periodically() {
        assert_eq!(found(Spreading::default(), 100), [32, 64, 96]);
    }

    #[test]
    fn the_scheduler_chooses_only_among_several_links() {
        let mut spreading = Spreading::default();
        let mut views = [VIEW; 2];
        let policy = SchedulingPolicy::default();
        spreading.on_opened(1);
        assert_eq!(spreading.choose(policy, 1, VIEW.idle_at, &mut views), None);
        spreading.on_opened(2);
        for view in &mut views {
            view.window_left_bytes = 1 << 20;
        }
        assert!(spreading.choose(policy, 1, VIEW.idle_at, &mut views).is_some());
    }

    #[test]
    fn shifted_positions_discard_what_was_learned_about_a_link() {
        let mut spreading = Spreading { in_step: STEP_FRAMES, ..Spreading::default() };
        spreading.on_cut(0, &VIEW);
        spreading.on_positions_shifted();
        assert_eq!(spreading.arrives_at.0, LINKS_MAX);
        assert!(!spreading.falls_together(&[VIEW; LINKS_MAX], 0));
    }
}
