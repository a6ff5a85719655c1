//! Congestion control: decides how many bytes may be in flight on one link.

mod aimd;
mod delay;
mod fixed;

pub use aimd::Aimd;
pub(crate) use aimd::HOST_NS_MAX;
pub use delay::Delay;
pub use fixed::Fixed;

use crate::pack::{Pack, Packer, Unpacker};
use crate::time::Instant;

/// Number of frames in flight that every algorithm allows. With two frames, one can be on the wire
/// while the peer acknowledges the other.
const WINDOW_FRAMES_MIN: u32 = 2;

/// The input that a congestion controller gets from one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// Bytes newly acknowledged.
    pub acked_bytes: u32,
    /// Packets newly acknowledged.
    pub acked_packets: u32,
    /// Number of frames that arrived at the peer with a congestion mark after the previous
    /// acknowledgement.
    pub marked_frames: u32,
    /// Whether the window and not the application limited the bytes in flight.
    pub window_limited: bool,
    /// Whether this acknowledgement ends a round and begins the next one: the newest acknowledged
    /// packet was sent after the previous round had ended.
    pub round_started: bool,
    /// Round-trip time of the newest acknowledged packet without the delay at the peer, in
    /// nanoseconds; `None` if the acknowledgement gives no sample.
    pub rtt_ns: Option<u64>,
    /// Recent minimum of the round-trip time, in nanoseconds.
    pub rtt_min_ns: u64,
    /// Time that the two hosts add to the round trip, in nanoseconds.
    pub host_ns: u64,
    /// Largest delivery rate of the last rounds, in bytes per second.
    pub rate: Option<u64>,
    /// Whether the application limited every sample of the rate. If so, the link may be much
    /// faster.
    pub rate_is_lower_bound: bool,
    /// Size of one burst, in bytes.
    pub quantum_bytes: u32,
}

/// The packets that were declared lost at the same time.
#[derive(Clone, Copy, Debug)]
pub struct LossSample {
    /// Bytes of the lost packets.
    pub lost_bytes: u32,
    /// Number of lost packets.
    pub lost_packets: u32,
    /// Time at which the newest lost packet was sent.
    pub newest_sent_at: Instant,
    /// Whether several probe timeouts passed without an answer.
    pub persistent: bool,
}

/// Decides how many bytes may be in flight on a link.
pub trait CongestionController {
    /// Records that a packet of `bytes` bytes is sent. `in_flight_bytes` includes this packet.
    fn on_sent(&mut self, _now: Instant, _bytes: u32, _in_flight_bytes: u32) {}

    /// Adapts to acknowledged packets.
    fn on_ack(&mut self, now: Instant, sample: &AckSample);

    /// Adapts to lost packets, or to a link that does not answer.
    fn on_loss(&mut self, now: Instant, loss: &LossSample);

    /// Undoes the reaction to a packet that was declared lost and is now acknowledged.
    fn on_spurious_loss(&mut self);

    /// Sets the size of frames, in bytes.
    fn set_frame_bytes(&mut self, frame_bytes: u32);

    /// Returns the number of bytes that may be in flight.
    fn window(&self) -> u32;
}

/// The congestion control algorithm of a link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// A constant number of frames, like in `MultiEdge`. Meant for dedicated fabrics.
    Fixed {
        /// Frames in flight, at least 2.
        frames: u32,
    },
    /// [`Aimd`]: reacts to congestion marks and losses.
    #[default]
    Aimd,
    /// [`Delay`]: keeps the queueing delay at a target.
    Delay {
        /// The queueing delay that the algorithm aims at, in nanoseconds.
        target_ns: u32,
    },
}

/// The algorithm of one link. This is an enum and not a boxed trait object, because a box would
/// cost an allocation for each link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Controller {
    Fixed(Fixed),
    Aimd(Aimd),
    Delay(Delay),
}

impl Pack for Controller {
    fn pack(&self, to: &mut Packer) {
        match self {
            Self::Fixed(fixed) => {
                0_u8.pack(to);
                fixed.pack(to);
            }
            Self::Aimd(aimd) => {
                1_u8.pack(to);
                aimd.pack(to);
            }
            Self::Delay(delay) => {
                2_u8.pack(to);
                delay.pack(to);
            }
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match u8::unpack(from) {
            0 => Self::Fixed(Pack::unpack(from)),
            1 => Self::Aimd(Pack::unpack(from)),
            _ => Self::Delay(Pack::unpack(from)),
        }
    }
}

impl Controller {
    pub(crate) fn new(
        algorithm: CongestionAlgorithm,
        initial_frames: u32,
        frame_bytes: u32,
    ) -> Self {
        match algorithm {
            CongestionAlgorithm::Fixed { frames } => Self::Fixed(Fixed::new(frames, frame_bytes)),
            CongestionAlgorithm::Aimd => Self::Aimd(Aimd::new(initial_frames, frame_bytes)),
            CongestionAlgorithm::Delay { target_ns } => {
                Self::Delay(Delay::new(initial_frames, frame_bytes, target_ns))
            }
        }
    }
}

impl Controller {
    pub(crate) const fn is_fixed(&self) -> bool {
        matches!(self, Self::Fixed(_))
    }
}

macro_rules! each {
    ($self:expr, $controller:ident => $call:expr) => {
        match $self {
            Controller::Fixed($controller) => $call,
            Controller::Aimd($controller) => $call,
            Controller::Delay($controller) => $call,
        }
    };
}

impl CongestionController for Controller {
    fn on_sent(&mut self, now: Instant, bytes: u32, in_flight_bytes: u32) {
        each!(self, controller => controller.on_sent(now, bytes, in_flight_bytes));
    }

    fn on_ack(&mut self, now: Instant, sample: &AckSample) {
        each!(self, controller => controller.on_ack(now, sample));
    }

    fn on_loss(&mut self, now: Instant, loss: &LossSample) {
        each!(self, controller => controller.on_loss(now, loss));
    }

    fn on_spurious_loss(&mut self) {
        each!(self, controller => controller.on_spurious_loss());
    }

    fn set_frame_bytes(&mut self, frame_bytes: u32) {
        each!(self, controller => controller.set_frame_bytes(frame_bytes));
    }

    fn window(&self) -> u32 {
        each!(self, controller => controller.window())
    }
}

/// State for undoing a reduction of the window, if all losses that caused the reduction prove to be
/// spurious.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// Window before the reduction.
    window: u32,
    /// Number of lost packets in the round trip of the reduction, without those that proved to be
    /// spurious; 0 if there is no reduction to undo.
    lost_packets: u32,
    /// Time at which the window was reduced. Packets that were sent before this time belong to the
    /// round trip of the reduction.
    reduced_at: Option<Instant>,
}

crate::pack_fields!(Undo { window, lost_packets, reduced_at });

impl Undo {
    const NOTHING: Self = Self { window: 0, lost_packets: 0, reduced_at: None };

    /// Returns whether this loss is the first of its round trip. If it is, the window must be
    /// reduced.
    fn starts(&mut self, now: Instant, loss: &LossSample, window: u32) -> bool {
        if self.reduced_at.is_some_and(|at| loss.newest_sent_at <= at) {
            self.lost_packets = self.lost_packets.saturating_add(loss.lost_packets);
            return false;
        }
        *self = Self { window, lost_packets: loss.lost_packets, reduced_at: Some(now) };
        true
    }

    /// Records that a loss was spurious. If all losses of the round trip have now proved to be
    /// spurious, returns the window to restore. Otherwise returns `None`.
    fn on_spurious_loss(&mut self) -> Option<u32> {
        if self.lost_packets == 0 {
            return None;
        }
        self.lost_packets -= 1;
        (self.lost_packets == 0).then_some(self.window)
    }
}
