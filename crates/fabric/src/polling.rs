//! Simulates two hosts that busy-poll, on links of any kind. The simulation uses the engine,
//! programs and links of `ethernot bench multiedge`, in virtual time.
//!
//! A host is one processor that does one thing at a time, like a process restricted to one
//! processor. The host polls its links, receives frames, lets the engine send, and runs its
//! program, in the same order as the runtime. [`Costs`] contains the processor time of each step;
//! [`calibration`] derives these costs from measured latencies and rates. A [`LinkModel`] describes
//! each link. If the real link has a token bucket, the model has a
//! [`TokenBucket`](crate::TokenBucket).

pub mod calibration;
mod driver;
mod fit;
mod machine;
mod pauses;
pub mod policies;
mod program;
pub mod scheduled;

use crate::channel::LinkModel;
use crate::costs::EdgeCosts;
use crate::scenario::TransferError;
use crate::stream::Policies;
use machine::Machine;

pub use pauses::Pauses;

/// The transfer pattern of a trial.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exercise {
    /// A write goes back and forth. Each end polls the last word of its memory.
    PingPong,
    /// The first host writes to the second, with several writes outstanding.
    OneWay,
    /// Both hosts write at the same time, each with several writes outstanding.
    TwoWay,
}

impl Exercise {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::OneWay => "one-way",
            Self::TwoWay => "two-way",
        }
    }
}

/// Processor time of a host's steps, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Costs of frames and operations.
    pub host: EdgeCosts,
    /// Cost of each batch of at most 32 frames that is passed to the kernel in one call.
    pub call_ps: u64,
    /// Cost of each frame whose payload the driver gathers from the program's memory. The driver
    /// gathers long payloads. It copies short payloads behind the header.
    pub gather_ps: u64,
    /// Cost of each poll of a link.
    pub poll_ps: u64,
    /// For each frame, time for which the sender stays in the system call after the peer can see
    /// the frame. A virtual cable delivers a frame within this call. The delay of the cable,
    /// counted from the end of the call, is therefore negative.
    pub return_ps: u64,
    /// Cost of each frame of a segmented packet after the first frame, if the driver of a link
    /// offloads ([`LinkModel::offloads`]). The first frame costs as much as a frame of other drivers.
    pub segment_ps: u64,
    /// Cost of choosing a link. The cost applies to each sent frame, once for each link of the
    /// connection after the first.
    pub spread_ps: u64,
    /// Cost of one timer of a [`TokenBucket`](crate::TokenBucket) on this host. The timer
    /// interrupts the host's processor, as the shaper of a virtual interface does.
    pub timer_ps: u64,
}

/// Two hosts, their links, and the transfer between them.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// The links; each model applies to both directions.
    pub links: &'a [LinkModel],
    /// The transfer pattern.
    pub exercise: Exercise,
    /// Size of a write in bytes, at least 8.
    pub message_bytes: u32,
    /// Number of outstanding writes of a stream.
    pub in_flight: u32,
    /// Whether the writes of a stream are delivered in order.
    pub in_order: bool,
    /// Costs of both hosts.
    pub costs: Costs,
    /// Pauses of the hosts' processors.
    pub pauses: Pauses<'a>,
    /// Duration of the trial.
    pub length: Length,
    /// Seed of the engines and of the delays of timers.
    pub seed: u64,
}

/// The duration of a trial.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// Enough operations to send about the given number of frames. Before the measurement, a
    /// warm-up takes half as many operations.
    Frames(u32),
    /// A fixed number of operations, as in a measurement on real hosts. The rate of a stream with a
    /// deep queue may not be steady yet when such a measurement ends. To be comparable, the
    /// simulation must therefore end after the same number of operations.
    Operations {
        /// Number of operations before measuring begins, at least 1.
        warm_up: u64,
        /// Number of operations to measure, at least 1.
        measured: u64,
    },
}

/// The results of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Median of half the round-trip time, in nanoseconds; `None` for streams.
    pub latency_ns: Option<f64>,
    /// Payload of all directions, in bytes per second.
    pub bytes_per_second: f64,
    /// Number of data frames sent by both hosts, including retransmissions.
    pub data_frames: u64,
    /// Number of frames that carried only an acknowledgement.
    pub acknowledgements: u64,
    /// Number of retransmitted frames.
    pub retransmissions: u64,
    /// Number of frames dropped because a queue was full.
    pub queue_full: u64,
    /// Number of runs of the engine in which data waited and a link had room, but the link got no
    /// data.
    pub idle_with_data: u64,
}

/// Runs a trial in virtual time.
///
/// # Errors
/// Returns [`TransferError`] if the connection cannot be established or ends, or if no operation
/// completes within the time limit.
pub fn run(trial: &Trial<'_>) -> Result<Outcome, TransferError> {
    run_by(trial, Policies::Default)
}

/// Runs a trial in virtual time with these policies.
fn run_by(trial: &Trial<'_>, policies: Policies) -> Result<Outcome, TransferError> {
    let mut machine = Machine::new(trial, &policies.config())?;
    machine.connect()?;
    let (warm_up, operations) = trial.operations();
    machine.run(warm_up)?;
    let before = machine.counters();
    let ends = machine.run(operations)?;
    let after = machine.counters();
    let counted = after.links.since(&before.links);
    let bytes = f64::from(trial.message_bytes);
    let of_end = |end: &program::Finished| end.operations as f64 * bytes / end.seconds.max(1e-12);
    let directions = match trial.exercise {
        Exercise::PingPong => 2.0,
        Exercise::OneWay | Exercise::TwoWay => 1.0,
    };
    Ok(Outcome {
        latency_ns: ends.iter().find_map(|end| end.latency_ns),
        bytes_per_second: directions * ends.iter().map(of_end).sum::<f64>(),
        data_frames: counted.data_frames_sent,
        acknowledgements: counted.explicit_acks_sent,
        retransmissions: counted.retransmissions,
        queue_full: after.queue_full - before.queue_full,
        idle_with_data: counted.idle_with_data,
    })
}

impl Trial<'_> {
    /// Returns the number of operations of the warm-up, and the number to measure.
    fn operations(&self) -> (u64, u64) {
        let frames = match self.length {
            Length::Frames(frames) => frames,
            Length::Operations { warm_up, measured } => {
                return (warm_up.max(1), measured.max(1));
            }
        };
        let frames_each = u64::from(self.message_bytes.div_ceil(PAYLOAD_BYTES)).max(1);
        let least = match self.exercise {
            Exercise::PingPong => 4,
            Exercise::OneWay | Exercise::TwoWay => u64::from(self.in_flight),
        };
        let operations = (u64::from(frames) / frames_each).max(least);
        (operations / 2, operations)
    }
}

/// Approximate payload of a full frame at MTU 1500, in bytes.
const PAYLOAD_BYTES: u32 = 1456;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{raw_link, shaped};

    const COSTS: Costs = Costs {
        host: EdgeCosts {
            frame_send_ps: 4_000_000,
            frame_send_ps_per_byte: 200,
            frame_receive_ps: 600_000,
            frame_receive_ps_per_byte: 100,
            post_ps: 100_000,
            completion_ps: 0,
        },
        call_ps: 500_000,
        gather_ps: 300_000,
        poll_ps: 150_000,
        return_ps: 200_000,
        segment_ps: 100_000,
        spread_ps: 0,
        timer_ps: 0,
    };

    fn trial(links: &[LinkModel], exercise: Exercise, message_bytes: u32) -> Trial<'_> {
        Trial {
            links,
            exercise,
            message_bytes,
            in_flight: 16,
            in_order: false,
            costs: COSTS,
            pauses: Pauses::default(),
            length: Length::Frames(4_000),
            seed: 1,
        }
    }

    #[test]
    fn the_time_of_a_small_message_is_the_sum_of_its_steps() {
        let links = [raw_link(100_000_000_000, 0)];
        let outcome = run(&trial(&links, Exercise::PingPong, 8)).expect("nothing is in the way");
        // The latency contains the costs of a post, a call, a send and a receive. It also contains
        // up to two polls, 3 µs of jitter, and the time of some bytes on the wire.
        let latency_ns = outcome.latency_ns.expect("it is a ping-pong");
        assert!((5_200.0..9_000.0).contains(&latency_ns), "{latency_ns}");
    }

    #[test]
    fn a_stream_is_as_fast_as_the_sender_or_the_link() {
        let fast = [raw_link(100_000_000_000, 0)];
        let outcome = run(&trial(&fast, Exercise::OneWay, 1 << 20)).expect("nothing is in the way");
        // A full frame costs the sender 4.8 µs, and acknowledgements cost a little more.
        let rate = outcome.bytes_per_second * 8.0;
        assert!((2.1e9..2.45e9).contains(&rate), "{rate}");
        let slow = [shaped(raw_link(100_000_000, 0))];
        let outcome = run(&trial(&slow, Exercise::OneWay, 1 << 20)).expect("nothing is in the way");
        let rate = outcome.bytes_per_second * 8.0;
        assert!((0.9e8..0.97e8).contains(&rate), "{rate}");
        let two_ways =
            run(&trial(&slow, Exercise::TwoWay, 1 << 20)).expect("nothing is in the way");
        assert!(two_ways.bytes_per_second > 1.8 * outcome.bytes_per_second, "{two_ways:?}");
    }

    /// The shaper's timers take time from a busy host. A slow link that is always full has one
    /// timer for each frame.
    #[test]
    fn timers_of_a_shaper_take_processor_time() {
        let links = [shaped(raw_link(1_000_000_000, 0)), shaped(raw_link(100_000_000, 0))];
        let costs = Costs {
            host: EdgeCosts { frame_send_ps: 12_000_000, ..COSTS.host },
            timer_ps: 20_000_000,
            ..COSTS
        };
        let with_timers = Trial { costs, ..trial(&links, Exercise::OneWay, 1 << 20) };
        let without = Trial { costs: Costs { timer_ps: 0, ..costs }, ..with_timers.clone() };
        let rate = |trial| run(trial).expect("nothing is in the way").bytes_per_second;
        let (with_timers, without) = (rate(&with_timers), rate(&without));
        assert!(with_timers < 0.97 * without, "{with_timers}, and {without} without");
        // A link that is never full sets no timers.
        let free = [raw_link(100_000_000_000, 0)];
        let with_timers = Trial { costs, ..trial(&free, Exercise::OneWay, 1 << 20) };
        let without = Trial { costs: Costs { timer_ps: 0, ..costs }, ..with_timers.clone() };
        assert_eq!(run(&with_timers), run(&without));
    }

    #[test]
    fn a_trial_repeats_itself() {
        let links = [shaped(raw_link(1_000_000_000, 0)), shaped(raw_link(100_000_000, 0))];
        for exercise in [Exercise::PingPong, Exercise::OneWay, Exercise::TwoWay] {
            let once = run(&trial(&links, exercise, 16 << 10)).expect("nothing is in the way");
            let again = run(&trial(&links, exercise, 16 << 10)).expect("nothing is in the way");
            assert_eq!(once, again);
        }
    }
}
