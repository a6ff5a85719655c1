//! One direction of a simulated link: a drop-tail queue, a transmitter with an exact rate, and a
//! cable with a delay.

use std::collections::VecDeque;

use delivery::{Instant, SettingError};

use crate::random::Random;

/// The bytes that a link adds to each frame of the edge protocol on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overhead {
    /// IP and UDP headers, in bytes; 0 for raw Ethernet frames.
    pub network_bytes: u32,
    /// Minimum length of the packet that carries a frame, in bytes; shorter packets are padded. 46
    /// on Ethernet.
    pub packet_bytes_min: u32,
    /// Ethernet header, preamble, check sequence and interframe gap, in bytes.
    pub ethernet_bytes: u32,
}

impl Overhead {
    /// UDP over IPv4 over Ethernet: 28 bytes for IPv4 and UDP. The Ethernet bytes are 14 of header,
    /// 8 of preamble, 4 of check sequence and 12 of gap.
    pub const UDP: Self = Self { network_bytes: 28, packet_bytes_min: 46, ethernet_bytes: 38 };

    /// Raw Ethernet frames, without IP and UDP.
    pub const ETHERNET: Self = Self { network_bytes: 0, packet_bytes_min: 46, ethernet_bytes: 38 };

    /// No overhead: the rate applies to the frames of the edge protocol alone.
    pub const NONE: Self = Self { network_bytes: 0, packet_bytes_min: 0, ethernet_bytes: 0 };

    /// Returns the size of a frame of `frame_bytes` bytes on the wire, in bytes.
    pub fn wire_bytes(self, frame_bytes: usize) -> u32 {
        (frame_bytes as u32 + self.network_bytes).max(self.packet_bytes_min) + self.ethernet_bytes
    }
}

/// How the propagation delay differs between frames. Frames stay in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Jitter {
    /// No variation.
    Constant,
    /// The delay of a frame is larger by a uniformly distributed time, from 0 to `most_ns`.
    Uniform {
        /// Maximum of the added time, in nanoseconds.
        most_ns: u64,
    },
    /// The delay of a frame is larger by an exponentially distributed time.
    Exponential {
        /// Mean of the added time, in nanoseconds.
        mean_ns: u64,
    },
}

/// A token bucket shaper. A link with a token bucket has no transmitter with an exact rate. The
/// shaper behaves like `tbf` on a fast interface. After a pause, it sends faster than the rate of
/// the link, because the bucket has saved tokens. Frames that wait for tokens leave when a timer
/// fires. The timer can fire late.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenBucket {
    /// Rate of the interface after the shaper, in bits per second; at least the rate of the link.
    pub peak_rate: u64,
    /// Depth of the bucket, as the time in which the bucket fills at the rate of the link, in
    /// nanoseconds. If the bucket is full, the bytes that the link carries in this time can leave
    /// at the peak rate.
    pub burst_ns: u64,
    /// Maximum delay of the timer, in nanoseconds. Delays are uniformly distributed from 0.
    pub late_ns_max: u64,
}

/// Properties of one direction of a link without faults.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkModel {
    /// Bits per second, at least 1.
    pub rate: u64,
    /// Token bucket that limits the rate. `None` means that a transmitter with exactly this rate
    /// limits the rate.
    pub bucket: Option<TokenBucket>,
    /// The bytes added to each frame on the wire.
    pub overhead: Overhead,
    /// Time from the last bit sent to the last bit received, in nanoseconds.
    pub propagation_ns: u64,
    /// Variation of the propagation delay.
    pub jitter: Jitter,
    /// Capacity of the queue, in bytes on the wire, including the frame being sent. Frames that do
    /// not fit are dropped.
    pub queue_bytes: u32,
    /// Frames are marked (ECN CE) if at least this number of bytes is queued. `None` for no marks.
    pub mark_bytes: Option<u32>,
    /// The driver refuses frames if at least this number of bytes is queued. `None` for no limit.
    pub driver_bytes: Option<u32>,
    /// Length of the largest frame of the edge protocol that the link carries, in bytes. The link
    /// drops larger frames.
    pub frame_bytes_max: u16,
    /// Whether the sender gets a report if a frame is too large.
    pub reports_too_big: bool,
    /// Whether the interface reports its rate. Virtual interfaces of real hosts do not.
    pub reports_rate: bool,
    /// Whether the driver reports segmentation offload. With this report, the driver claims that
    /// frames of equal size that the engine passes together cost as little as one frame, as with
    /// UDP segmentation in the kernel.
    pub offloads: bool,
}

impl LinkModel {
    /// Returns an Ethernet link without faults, for UDP at MTU 1500. It has a queue of 1 MiB, no
    /// marks and no back-pressure. `rate` is in bits per second.
    pub const fn ethernet(rate: u64, propagation_ns: u64) -> Self {
        Self {
            rate,
            bucket: None,
            overhead: Overhead::UDP,
            propagation_ns,
            jitter: Jitter::Constant,
            queue_bytes: 1 << 20,
            mark_bytes: None,
            driver_bytes: None,
            frame_bytes_max: 1472,
            reports_too_big: false,
            reports_rate: true,
            offloads: false,
        }
    }

    /// Checks that the link has a rate.
    ///
    /// # Errors
    /// Returns [`SettingError`] if the rate is 0. The error contains the name of the setting and
    /// its range.
    pub fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_within("rate", &self.rate, &(1..=u64::MAX))
    }
}

/// What a link does with a frame that has flipped bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Corruption {
    /// The UDP checksum or the Ethernet check sequence detects the error, and the receiver drops
    /// the frame.
    #[default]
    Dropped,
    /// The receiver gets the frame with wrong bits. Such frames test robustness, not correctness.
    Delivered,
}

/// Faults of one direction of a link. By default there are none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    /// Probability that a burst of losses starts at a frame, in parts per million.
    pub loss_ppm: u32,
    /// Number of consecutive frames lost in a burst, at least 1 (0 counts as 1).
    pub loss_burst_frames: u32,
    /// Probability that a frame arrives twice, in parts per million.
    pub duplicate_ppm: u32,
    /// Probability that a frame is delayed so much that later frames overtake it, in parts per
    /// million.
    pub reorder_ppm: u32,
    /// Maximum extra delay of a reordered or duplicated frame, in nanoseconds.
    pub late_ns_max: u64,
    /// Probability of flipped bits, in parts per million.
    pub corrupt_ppm: u32,
    /// The effect of flipped bits.
    pub corruption: Corruption,
    /// Probability that a recorded frame is replayed, in parts per million.
    pub replay_ppm: u32,
    /// Whether this direction is cut: no frame passes.
    pub cut: bool,
}

/// State of one direction of a link.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) model: LinkModel,
    pub(crate) faults: Faults,
    /// Time at which the transmitter will have sent all queued frames, in picoseconds.
    idle_at_ps: u64,
    /// Fraction of a picosecond that `idle_at_ps` leaves out, in units of 1/rate ps.
    remainder: u64,
    /// Time when a token bucket last released waiting frames, in picoseconds.
    released_at_ps: u64,
    /// Time at which the last frame leaves a token bucket, in picoseconds.
    left_at_ps: u64,
    /// For each queued frame: the time at which the frame has left, in picoseconds, and its size on
    /// the wire, in bytes.
    queued: VecDeque<(u64, u32)>,
    queued_bytes: u32,
    /// The next frame that is not reordered arrives at this time or later.
    last_arrival: Instant,
    /// Number of frames that the current burst of losses will still lose.
    losing_frames: u32,
    random: Random,
}

/// The result of adding a frame to the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admission {
    Full,
    Queued { departs_at_ps: u64, marked: bool },
}

impl Channel {
    pub(crate) fn new(model: LinkModel, random: Random) -> Self {
        assert!(model.rate > 0, "a link needs a rate");
        Self {
            model,
            faults: Faults::default(),
            idle_at_ps: 0,
            remainder: 0,
            released_at_ps: 0,
            left_at_ps: 0,
            queued: VecDeque::new(),
            queued_bytes: 0,
            last_arrival: Instant(0),
            losing_frames: 0,
            random,
        }
    }

    /// Adds a frame of `wire_bytes` bytes to the queue, if the queue has room.
    pub(crate) fn admit(&mut self, now: Instant, wire_bytes: u32) -> Admission {
        let backlog = self.backlog_bytes(now);
        if backlog.saturating_add(wire_bytes) > self.model.queue_bytes {
            return Admission::Full;
        }
        let marked = self.model.mark_bytes.is_some_and(|threshold| backlog >= threshold);
        let now_ps = now.0.saturating_mul(PICOSECONDS_PER_NANOSECOND);
        let departs_at_ps = match self.model.bucket {
            None => {
                if now_ps > self.idle_at_ps {
                    self.idle_at_ps = now_ps;
                    self.remainder = 0;
                }
                self.charge(wire_bytes);
                self.idle_at_ps
            }
            Some(bucket) => self.pass(&bucket, now_ps, wire_bytes),
        };
        self.queued.push_back((departs_at_ps, wire_bytes));
        self.queued_bytes += wire_bytes;
        Admission::Queued { departs_at_ps, marked }
    }

    /// Returns the time at which a frame that arrives at `now_ps` leaves a token bucket, in
    /// picoseconds. `idle_at_ps` is the time at which the bucket is full, if no more frames arrive.
    fn pass(&mut self, bucket: &TokenBucket, now_ps: u64, wire_bytes: u32) -> u64 {
        let burst_ps = bucket.burst_ns.saturating_mul(PICOSECONDS_PER_NANOSECOND);
        let frame_ps = u64::from(wire_bytes) * 8_000_000_000_000 / self.model.rate;
        // The frame takes its tokens from the bucket at once, so the number of tokens can become
        // negative. The frame leaves when the number is no longer negative: then at most one burst
        // of tokens is missing. A frame that is larger than a burst leaves at the time at which the
        // bucket would be full without this frame.
        let ready_ps = (self.idle_at_ps + frame_ps).saturating_sub(burst_ps.max(frame_ps));
        if ready_ps > now_ps.max(self.released_at_ps) {
            let late_ns = self.random.between(0, bucket.late_ns_max);
            self.released_at_ps = ready_ps + late_ns * PICOSECONDS_PER_NANOSECOND;
        }
        let released_ps = if ready_ps > now_ps { self.released_at_ps } else { now_ps };
        // A full bucket has one burst of tokens. It saves no more tokens, even if no frame arrives
        // for a long time.
        if released_ps > self.idle_at_ps {
            self.idle_at_ps = released_ps;
            self.remainder = 0;
        }
        self.charge(wire_bytes);
        let peak_ps = u64::from(wire_bytes) * 8_000_000_000_000 / bucket.peak_rate.max(1);
        self.left_at_ps = self.left_at_ps.max(released_ps) + peak_ps;
        self.left_at_ps
    }

    /// Returns the time at which a token bucket last released waiting frames, or will release them,
    /// in picoseconds. A timer of the bucket fires at this time.
    pub(crate) const fn timer_ps(&self) -> u64 {
        self.released_at_ps
    }

    /// Advances `idle_at_ps` by the transmission time of a frame.
    fn charge(&mut self, wire_bytes: u32) {
        // Computes bits × 10^12 / rate without rounding errors: adds the remainder of the division
        // to the next frame.
        let rate = u128::from(self.model.rate);
        let exact =
            u128::from(wire_bytes) * 8 * PICOSECONDS_PER_SECOND + u128::from(self.remainder);
        self.idle_at_ps += (exact / rate) as u64;
        self.remainder = (exact % rate) as u64;
    }

    /// Returns the bytes on the wire that are queued at `now`.
    pub(crate) fn backlog_bytes(&mut self, now: Instant) -> u32 {
        let now_ps = now.0.saturating_mul(PICOSECONDS_PER_NANOSECOND);
        while let Some(&(left_at_ps, bytes)) = self.queued.front()
            && left_at_ps <= now_ps
        {
            self.queued.pop_front();
            self.queued_bytes -= bytes;
        }
        self.queued_bytes
    }

    /// Returns the time until which the driver refuses frames; `None` if it accepts frames now.
    pub(crate) fn refuses_until(&mut self, now: Instant) -> Option<Instant> {
        let limit = self.model.driver_bytes?;
        let mut above = self.backlog_bytes(now);
        for &(left_at_ps, bytes) in &self.queued {
            if above < limit {
                break;
            }
            above -= bytes;
            if above < limit {
                return Some(instant_of_ps(left_at_ps));
            }
        }
        None
    }

    /// Returns the arrival time of a frame that departs at `departs_at_ps`. Frames arrive in order.
    pub(crate) fn arrival(&mut self, departs_at_ps: u64) -> Instant {
        let jitter_ns = match self.model.jitter {
            Jitter::Constant => 0,
            Jitter::Uniform { most_ns } => self.random.between(0, most_ns),
            Jitter::Exponential { mean_ns } => self.random.exponential(mean_ns),
        };
        let arrival =
            instant_of_ps(departs_at_ps).after_ns(self.model.propagation_ns).after_ns(jitter_ns);
        self.last_arrival = self.last_arrival.max(arrival);
        self.last_arrival
    }

    /// Decides whether the next frame is lost at random.
    pub(crate) fn loses(&mut self) -> bool {
        if self.losing_frames > 0 {
            self.losing_frames -= 1;
            return true;
        }
        let starts = self.random.chance_ppm(self.faults.loss_ppm);
        if starts {
            self.losing_frames = self.faults.loss_burst_frames.saturating_sub(1);
        }
        starts
    }

    /// Returns a random extra delay, at least 1 ns, for a reordered or duplicated frame. The delay
    /// is in nanoseconds.
    pub(crate) fn lateness_ns(&mut self) -> u64 {
        self.random.between(1, self.faults.late_ns_max.max(1))
    }

    pub(crate) const fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Replaces the faults. Ends a current burst of losses.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.losing_frames = 0;
    }
}

/// Returns the first whole nanosecond at or after `ps` picoseconds.
fn instant_of_ps(ps: u64) -> Instant {
    Instant(ps.div_ceil(PICOSECONDS_PER_NANOSECOND))
}

const PICOSECONDS_PER_NANOSECOND: u64 = 1_000;
const PICOSECONDS_PER_SECOND: u128 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_frame_on_gigabit_takes_12304_ns() {
        let mut channel = channel(1_000_000_000);
        let wire_bytes = Overhead::UDP.wire_bytes(1472);
        assert_eq!(wire_bytes, 1538);
        for frame in 1..=1_000 {
            assert_eq!(departure_ps(&mut channel, wire_bytes), frame * 12_304_000);
        }
    }

    #[test]
    fn rates_with_fractional_picoseconds_do_not_drift() {
        // At 3 Gb/s, 8 bits take 2666 2/3 ps, and three million bytes take exactly 8 ms.
        let mut channel = channel(3_000_000_000);
        let mut last = 0;
        for _ in 0..3_000 {
            last = departure_ps(&mut channel, 1_000);
        }
        assert_eq!(last, 8_000_000_000);
    }

    #[test]
    fn idle_transmitter_starts_at_once() {
        let mut channel = channel(1_000_000_000);
        channel.admit(Instant(0), 1_000);
        let Admission::Queued { departs_at_ps, .. } = channel.admit(Instant(50_000), 1_000) else {
            panic!("queue is empty");
        };
        assert_eq!(departs_at_ps, 58_000_000);
    }

    #[test]
    fn a_token_bucket_lets_a_burst_pass_at_once_and_keeps_the_rate_when_its_timer_is_late() {
        let bucket =
            TokenBucket { peak_rate: 10_000_000_000, burst_ns: 250_000, late_ns_max: 100_000 };
        let model = LinkModel {
            bucket: Some(bucket),
            queue_bytes: u32::MAX,
            ..LinkModel::ethernet(1_000_000_000, 0)
        };
        let mut channel = Channel::new(model, Random::new(1));
        let left: Vec<u64> = (0..1_000).map(|_| departure_ps(&mut channel, 1_250)).collect();
        // A frame takes 10 µs at the rate of the link, and the full bucket has tokens for 25
        // frames. At the peak rate, these frames leave at intervals of 1 µs.
        assert_eq!(left[..25], core::array::from_fn::<u64, 25, _>(|i| (i as u64 + 1) * 1_000_000));
        let last = left[999];
        // 1000 frames take 10 ms, minus the 0.25 ms saved in the bucket. Timers add only their own
        // delay.
        assert!((9_750_000_000..9_900_000_000).contains(&last), "{last}");
        let together = left.windows(2).filter(|pair| pair[1] - pair[0] <= 1_000_000).count();
        assert!(together > 500, "timers release several frames at a time: {together}");
    }

    #[test]
    fn a_timer_later_than_the_burst_loses_rate() {
        let bucket =
            TokenBucket { peak_rate: 10_000_000_000, burst_ns: 20_000, late_ns_max: 100_000 };
        let model = LinkModel {
            bucket: Some(bucket),
            queue_bytes: u32::MAX,
            ..LinkModel::ethernet(1_000_000_000, 0)
        };
        let mut channel = Channel::new(model, Random::new(1));
        let last = (0..1_000).map(|_| departure_ps(&mut channel, 1_250)).last();
        assert!(last > Some(12_000_000_000), "{last:?}");
    }

    #[test]
    fn short_packets_are_padded() {
        assert_eq!(Overhead::UDP.wire_bytes(10), 84);
        assert_eq!(Overhead::ETHERNET.wire_bytes(46), 84);
        assert_eq!(Overhead::ETHERNET.wire_bytes(47), 85);
        assert_eq!(Overhead::NONE.wire_bytes(10), 10);
    }

    #[test]
    fn queue_drops_its_tail_and_marks_above_the_threshold() {
        let model = LinkModel {
            queue_bytes: 4_000,
            mark_bytes: Some(2_000),
            ..LinkModel::ethernet(1_000_000_000, 0)
        };
        let mut channel = Channel::new(model, Random::new(1));
        let outcomes: Vec<_> = (0..5).map(|_| channel.admit(Instant(0), 1_000)).collect();
        let marks: Vec<_> = outcomes
            .iter()
            .map(|outcome| matches!(outcome, Admission::Queued { marked: true, .. }))
            .collect();
        assert_eq!(marks, [false, false, true, true, false]);
        assert_eq!(outcomes[4], Admission::Full);
        // After 8 µs one frame has left, so the queue has room for one frame.
        assert!(matches!(channel.admit(Instant(8_000), 1_000), Admission::Queued { .. }));
        assert_eq!(channel.admit(Instant(8_000), 1_000), Admission::Full);
    }

    #[test]
    fn a_full_driver_reports_when_it_accepts_frames_again() {
        let model =
            LinkModel { driver_bytes: Some(2_000), ..LinkModel::ethernet(1_000_000_000, 0) };
        let mut channel = Channel::new(model, Random::new(1));
        channel.admit(Instant(0), 1_000);
        assert_eq!(channel.refuses_until(Instant(0)), None);
        channel.admit(Instant(0), 1_000);
        assert_eq!(channel.refuses_until(Instant(0)), Some(Instant(8_000)));
        assert_eq!(channel.refuses_until(Instant(8_000)), None);
    }

    #[test]
    fn losses_come_in_bursts_of_the_given_length() {
        let mut channel = channel(1_000_000_000);
        channel.set_faults(Faults { loss_ppm: 10_000, loss_burst_frames: 4, ..Faults::default() });
        let lost: Vec<bool> = (0..100_000).map(|_| channel.loses()).collect();
        let share = lost.iter().filter(|&&lost| lost).count();
        assert!((3_500..4_400).contains(&share), "{share}");
        let mut run = 0;
        for lost in lost {
            if lost {
                run += 1;
            } else {
                assert_eq!(run % 4, 0);
                run = 0;
            }
        }
    }

    fn channel(rate: u64) -> Channel {
        let model = LinkModel { queue_bytes: u32::MAX, ..LinkModel::ethernet(rate, 0) };
        Channel::new(model, Random::new(1))
    }

    fn departure_ps(channel: &mut Channel, wire_bytes: u32) -> u64 {
        match channel.admit(Instant(0), wire_bytes) {
            Admission::Queued { departs_at_ps, .. } => departs_at_ps,
            Admission::Full => panic!("queue is unbounded"),
        }
    }
}
