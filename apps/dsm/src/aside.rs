//! For how long a thread that waits in a call polls, and when the progress thread, which stands
//! aside meanwhile, serves the machine again.
//!
//! The tests run these decisions on simulated hosts, in virtual time.

use std::mem;
use std::time::Duration;

/// What the progress thread knows of the threads that wait in calls.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// [`Driver::changes`](crate::driver::Driver::changes) at the last look.
    changes: u64,
}

impl Watched {
    /// Takes a look. Returns whether the progress thread must serve the machine: no thread drives the
    /// endpoint, and none began or ceased to do so since the last look.
    ///
    /// Without the second condition, the progress thread would serve between two calls that follow
    /// each other. It would then wait at the endpoint, where the frames of the second call wake it.
    pub(crate) fn needs_progress(&mut self, changes: u64, is_driven: bool) -> bool {
        mem::replace(&mut self.changes, changes) == changes && !is_driven
    }
}

/// The times of these decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// How long a thread polls before it waits at the endpoint. Other threads need a system call to
    /// wake it there. The endpoint polls for another [`AWAKE`](crate::meeting::AWAKE), and then
    /// sleeps. Both together are longer than a fetch of a page from a rank that is awake: 20 µs, and
    /// 80 µs on a host of a quarter of the speed.
    spin: Duration,
    /// The shortest pause between two looks. With a shorter one, the progress thread would serve
    /// in each gap between two calls.
    pause_min: Duration,
    /// The longest pause between two looks. The first look after a call only notices its end, so
    /// peers may wait for two pauses until they are served.
    pause_max: Duration,
    /// A pause is the time since the progress thread stands aside, divided by this number. So looks
    /// become rare while many calls follow each other, and peers wait little after a few calls.
    pause_divisor: u32,
}

impl Times {
    pub(crate) const CHOSEN: Self = Self {
        spin: Duration::from_micros(60),
        pause_min: Duration::from_micros(60),
        pause_max: Duration::from_micros(500),
        pause_divisor: 8,
    };

    /// Returns whether a thread that has waited for this time goes on to poll.
    pub(crate) fn polls(&self, waited: Duration) -> bool {
        waited < self.spin
    }

    /// Returns the time until the next look of a progress thread that stands aside for `aside`.
    pub(crate) fn pause(&self, aside: Duration) -> Duration {
        (aside / self.pause_divisor).max(self.pause_min).min(self.pause_max)
    }
}

#[cfg(test)]
mod tests;
