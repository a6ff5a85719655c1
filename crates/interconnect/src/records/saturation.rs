//! Detects saturated networks and links. Their queues grow for as long as ranks post messages.

use super::Records;

/// Samples of the number of messages in flight during a run.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    samples: Vec<(u64, u32)>,
    /// Number of samples skipped since the last stored sample.
    skipped: u32,
    /// Number of samples to skip between two stored samples.
    stride: u32,
    posting_ended_ps: u64,
}

/// How much the number of messages in flight has grown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Mean number of messages in flight in the second quarter of the posting time.
    pub early: f64,
    /// Mean number of messages in flight in the last quarter of the posting time.
    pub late: f64,
}

/// A link whose queue grew for as long as ranks posted messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaturatedLink {
    /// Number of the link.
    pub link: u32,
    /// The longest wait in a window of time, averaged over the windows in the second quarter of the
    /// posting time, in picoseconds.
    pub early_ps: f64,
    /// The longest wait in a window of time, averaged over the windows in the last quarter of the
    /// posting time, in picoseconds.
    pub late_ps: f64,
    /// Fraction of the second half of the posting time in which the link was occupied, from 0 to 1.
    pub busy: f64,
}

impl Backlog {
    /// Takes a sample. Callers may call this function at any rate, because it stores only some of
    /// the samples.
    pub(in super::super) fn sample(&mut self, now_ps: u64, messages: usize) {
        if self.skipped < self.stride {
            self.skipped += 1;
            return;
        }
        self.skipped = 0;
        self.samples.push((now_ps, messages as u32));
        if self.samples.len() == SAMPLES_MAX {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.stride = self.stride * 2 + 1;
        }
    }

    /// Records the time of the last post.
    pub(in super::super) const fn on_posted(&mut self, now_ps: u64) {
        self.posting_ended_ps = now_ps;
    }

    /// Returns the samples, each with a time in picoseconds and the number of messages in flight.
    pub fn samples(&self) -> &[(u64, u32)] {
        &self.samples
    }

    /// Returns how much the number of messages in flight has grown. Returns `None` if the number
    /// did not keep growing until ranks stopped posting.
    pub fn growth(&self) -> Option<Growth> {
        let quarter = |number: u64| {
            let (from, until) =
                (number * self.posting_ended_ps / 4, (number + 1) * self.posting_ended_ps / 4);
            let within = self.samples.iter().filter(|(at, _)| (from..until).contains(at));
            mean(within.map(|(_, messages)| f64::from(*messages)))
        };
        let (second, third, last) = (quarter(1)?, quarter(2)?, quarter(3)?);
        let is_growing = is_growing(second, third, last) && last - second > MESSAGES_MIN;
        is_growing.then_some(Growth { early: second, late: last })
    }
}

impl Records {
    /// Returns the links whose queues grew for as long as ranks posted messages, the longest queue
    /// first.
    pub fn saturated_links(&self) -> Vec<SaturatedLink> {
        let windows = (self.posting_ended_ps / self.window_ps.max(1)) as usize;
        if windows < WINDOWS_MIN {
            return Vec::new();
        }
        let mut found: Vec<SaturatedLink> = (0..self.links.len() as u32)
            .filter_map(|link| self.saturation(link, windows))
            .collect();
        found.sort_by(|a, b| b.late_ps.total_cmp(&a.late_ps).then(a.link.cmp(&b.link)));
        found
    }

    fn saturation(&self, link: u32, windows: usize) -> Option<SaturatedLink> {
        let record = self.links.get(link as usize)?;
        let used = record.windows.get(..windows)?;
        let quarter = |number: usize| {
            let part = used.get(number * windows / 4..(number + 1) * windows / 4)?;
            mean(part.iter().map(|window| window.wait_max_ps as f64))
        };
        let (second, third, last) = (quarter(1)?, quarter(2)?, quarter(3)?);
        let half = used.get(windows / 2..)?;
        let busy = mean(half.iter().map(|window| window.busy_ps as f64))? / self.window_ps as f64;
        // The mean time in which the link sends a packet.
        let packet_ps = record.busy_ps as f64 / record.packets.max(1) as f64;
        let is_long = last > PACKETS_MIN * packet_ps;
        let is_saturated = is_growing(second, third, last) && is_long && busy > BUSY_MIN;
        is_saturated.then_some(SaturatedLink { link, early_ps: second, late_ps: last, busy })
    }
}

/// Returns whether a queue kept growing. The arguments are the mean lengths of the queue in the
/// second, third and last quarter of the posting time. If a queue grows steadily from 0, the mean
/// length in the third quarter is 1.7 times the mean length in the second quarter, and the mean
/// length in the last quarter is 2.3 times the mean length in the second quarter.
fn is_growing(second: f64, third: f64, last: f64) -> bool {
    third > second * 1.15 && last > third * 1.1 && last > second * 1.5
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

const SAMPLES_MAX: usize = 512;
/// Minimum growth, in messages. Smaller growth is regarded as chance.
const MESSAGES_MIN: f64 = 32.0;
const WINDOWS_MIN: usize = 12;
/// Minimum length of a growing queue, in packets. Shorter queues form by chance.
const PACKETS_MIN: f64 = 20.0;
/// Minimum fraction of time for which a saturated link is occupied. If a link is occupied for less
/// time, it can carry its load. Gaps between frames do not count as occupied time.
const BUSY_MIN: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(messages: impl Fn(u64) -> usize) -> Option<Growth> {
        let mut backlog = Backlog::default();
        for at in 0..5_000 {
            backlog.sample(at, messages(at));
            if at < 4_000 {
                backlog.on_posted(at);
            }
        }
        assert!(backlog.samples().len() < SAMPLES_MAX);
        backlog.growth()
    }

    #[test]
    fn steady_growth_is_distinguished_from_noise() {
        let growing = growth(|at| at as usize).expect("the queue grows during the whole run");
        assert!((growing.early - 1_500.0).abs() < 20.0 && (growing.late - 3_500.0).abs() < 20.0);
        assert_eq!(growth(|at| 200 + at as usize % 97), None);
        assert_eq!(growth(|at| at.min(500) as usize), None, "the queue has stopped growing");
        assert_eq!(growth(|_| 0), None);
    }
}
