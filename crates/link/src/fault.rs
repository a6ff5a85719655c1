//! A wrapper that loses, duplicates, reorders and corrupts frames of a link. One seed always
//! produces the same faults.

use std::collections::VecDeque;
use std::io;

use delivery::{Instant, RxFrame, SettingError, TxBatch};
use mem::Payload;
use wire_edge::PeerAddr;

use crate::random::Random;
use crate::udp::PayloadUnmapped;
use crate::wrapper::Wrapper;
use crate::{Link, OnFrame};

/// Fault rates of a link. Rates are probabilities per frame, 0.0 to 1.0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FaultConfig {
    /// Seed of all random choices. They depend only on the seed and on the order of the frames.
    pub seed: u64,
    /// Rate of frames that are lost on arrival.
    pub receive_loss: f64,
    /// Rate of frames that are lost before they are sent.
    pub send_loss: f64,
    /// Rate of frames that are delivered twice: on arrival, and once more later.
    pub duplication: f64,
    /// Rate of frames that are held back while later frames overtake them.
    pub reordering: f64,
    /// Rate of frames that are delivered with one bit inverted.
    pub corruption: f64,
    /// Maximum number of frames that overtake a frame that is held back, at least 1.
    pub distance_frames: u32,
    /// Longest time for which a frame is held back, in nanoseconds of the engine's clock.
    pub hold_ns: u64,
}

delivery::setters!(FaultConfig {
    seed: u64,
    receive_loss: f64,
    send_loss: f64,
    duplication: f64,
    reordering: f64,
    corruption: f64,
    distance_frames: u32,
    hold_ns: u64,
});

impl FaultConfig {
    /// Rejects rates outside 0.0 to 1.0 and a distance of 0 frames.
    fn check(&self) -> Result<(), SettingError> {
        for (setting, share) in [
            ("receive_loss", self.receive_loss),
            ("send_loss", self.send_loss),
            ("duplication", self.duplication),
            ("reordering", self.reordering),
            ("corruption", self.corruption),
        ] {
            SettingError::unless_within(setting, &share, &(0.0..=1.0))?;
        }
        SettingError::unless_within("distance_frames", &self.distance_frames, &(1..=u32::MAX))
    }
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            receive_loss: 0.0,
            send_loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            distance_frames: 16,
            hold_ns: 1_000_000,
        }
    }
}

/// The directions in which a link carries no frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Cut {
    /// Frames pass in both directions.
    #[default]
    None,
    /// No frame is received.
    Incoming,
    /// No frame is sent.
    Outgoing,
    /// No frame is received or sent.
    Both,
}

/// Counters of the faults so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct FaultStatistics {
    /// Frames lost on arrival. Frames that a cut drops are not included.
    pub receive_lost: u64,
    /// Frames lost before they were sent. Frames that a cut drops are not included.
    pub send_lost: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames corrupted.
    pub corrupted: u64,
    /// Frames that a cut dropped, in both directions.
    pub cut: u64,
}

/// A link that loses, duplicates, reorders and corrupts frames. A seed determines the random
/// choices.
///
/// A later [`Link::receive`] delivers the frames that are held back. When such a frame is due, the
/// descriptors of [`Link::wait_fds`] do not become readable. The number that `receive` returns
/// includes lost frames.
#[derive(Debug)]
pub struct Fault<L> {
    link: L,
    config: FaultConfig,
    cut: Cut,
    random: Random,
    /// Frames that are held back, in any order.
    held: VecDeque<HeldFrame>,
    /// The frames of a batch that are not lost. For each of them, `origins` has its index in the
    /// original batch.
    remaining: TxBatch,
    origins: Vec<usize>,
    statistics: FaultStatistics,
}

#[derive(Debug)]
struct HeldFrame {
    bytes: Vec<u8>,
    received_at: Instant,
    congestion_experienced: bool,
    from: PeerAddr,
    /// Number of frames that have yet to overtake this frame before it is delivered.
    passes: u32,
    release_at: Instant,
}

impl<L: Link> Fault<L> {
    /// Wraps `link`.
    ///
    /// # Errors
    /// Returns [`SettingError`], with the setting and its range.
    pub fn new(link: L, config: FaultConfig) -> Result<Self, SettingError> {
        config.check()?;
        Ok(Self {
            link,
            config,
            cut: Cut::None,
            random: Random::new(config.seed),
            held: VecDeque::new(),
            remaining: TxBatch::new(0, 0),
            origins: Vec::new(),
            statistics: FaultStatistics::default(),
        })
    }

    /// Cuts the link in the directions of `cut`, and restores the other directions.
    pub const fn set_cut(&mut self, cut: Cut) {
        self.cut = cut;
    }

    /// Returns the counters so far.
    pub const fn fault_statistics(&self) -> FaultStatistics {
        self.statistics
    }

    /// Returns the wrapped link. Frames that are held back are lost.
    pub fn into_inner(self) -> L {
        self.link
    }

    /// Copies the frames of `batch` to `remaining`, except the frames that are lost.
    fn thin_out(&mut self, batch: &TxBatch) {
        self.remaining.reset(batch.to());
        self.origins.clear();
        for index in 0..batch.len() {
            if self.random.is_hit(self.config.send_loss) {
                self.statistics.send_lost += 1;
                continue;
            }
            let frame = batch.frame(index);
            self.remaining.header_mut().extend_from_slice(frame.header);
            self.remaining.finish_frame(frame.payload);
            self.origins.push(index);
        }
    }
}

impl<L: Link> Wrapper for Fault<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut L {
        &mut self.link
    }

    fn let_in(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        let mut arrivals = Arrivals {
            now,
            config: &self.config,
            is_cut: matches!(self.cut, Cut::Incoming | Cut::Both),
            random: &mut self.random,
            held: &mut self.held,
            statistics: &mut self.statistics,
            delivered: 0,
        };
        let taken = self.link.receive(now, limit, &mut |frame| arrivals.take(frame, on_frame))?;
        arrivals.release(0, on_frame);
        Ok(taken.max(arrivals.delivered))
    }

    fn let_out(&mut self, batch: &TxBatch) -> io::Result<usize> {
        if matches!(self.cut, Cut::Outgoing | Cut::Both) {
            self.statistics.cut += batch.len() as u64;
            return Ok(batch.len());
        }
        if self.config.send_loss <= 0.0 {
            return self.link.send(batch);
        }
        self.thin_out(batch);
        if self.remaining.is_empty() {
            return Ok(batch.len());
        }
        let origin = |frame: usize| self.origins.get(frame).copied().unwrap_or(batch.len());
        match self.link.send(&self.remaining) {
            // The inner link has sent the first `frames` of the frames that are not lost. A lost
            // frame counts as sent if it precedes the first frame that the inner link did not send.
            // The caller retries all later frames, and the retry chooses again at random which of
            // them are lost.
            Ok(frames) => Ok(origin(frames)),
            Err(error) => match PayloadUnmapped::from_io(&error) {
                Some(PayloadUnmapped { frame }) => {
                    Err(PayloadUnmapped { frame: origin(frame) }.into())
                }
                None => Err(error),
            },
        }
    }
}

/// State for applying faults during one receive call.
struct Arrivals<'a> {
    now: Instant,
    config: &'a FaultConfig,
    is_cut: bool,
    random: &'a mut Random,
    held: &'a mut VecDeque<HeldFrame>,
    statistics: &'a mut FaultStatistics,
    delivered: usize,
}

impl Arrivals<'_> {
    /// Applies random faults to one frame.
    fn take(&mut self, frame: RxFrame<'_>, on_frame: OnFrame<'_>) {
        if self.is_cut {
            self.statistics.cut += 1;
            return;
        }
        if self.random.is_hit(self.config.receive_loss) {
            self.statistics.receive_lost += 1;
            return;
        }
        if self.random.is_hit(self.config.corruption) && !frame.bytes.is_empty() {
            let bit = self.random.below(frame.bytes.len() as u64 * 8) as usize;
            if let Some(byte) = frame.bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
                self.statistics.corrupted += 1;
            }
        }
        if self.random.is_hit(self.config.duplication) {
            self.statistics.duplicated += 1;
            self.keep_back(&frame);
        }
        if self.held.len() < HELD_MAX && self.random.is_hit(self.config.reordering) {
            self.statistics.reordered += 1;
            self.keep_back(&frame);
            return;
        }
        self.delivered += 1;
        on_frame(frame);
        self.release(1, on_frame);
    }

    fn keep_back(&mut self, frame: &RxFrame<'_>) {
        let distance = u64::from(self.config.distance_frames);
        let mut bytes = Vec::with_capacity(frame.len());
        frame.append_to(&mut bytes);
        self.held.push_back(HeldFrame {
            bytes,
            received_at: frame.received_at,
            congestion_experienced: frame.congestion_experienced,
            from: frame.from,
            passes: 1 + self.random.below(distance) as u32,
            release_at: self.now.after_ns(self.config.hold_ns),
        });
    }

    /// Counts `passed` frames as having overtaken each held frame, and delivers the held frames
    /// that are due.
    fn release(&mut self, passed: u32, on_frame: OnFrame<'_>) {
        for _ in 0..self.held.len() {
            let Some(mut held) = self.held.pop_front() else { return };
            held.passes = held.passes.saturating_sub(passed);
            if held.passes > 0 && held.release_at > self.now {
                self.held.push_back(held);
                continue;
            }
            self.delivered += 1;
            on_frame(RxFrame {
                bytes: &mut held.bytes,
                outside: Payload::EMPTY,
                received_at: held.received_at,
                congestion_experienced: held.congestion_experienced,
                from: held.from,
            });
        }
    }
}

/// Maximum number of frames held back at a time. At this limit, no further frame is held back.
const HELD_MAX: usize = 1024;
