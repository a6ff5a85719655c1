//! Two hosts that poll, on links of any kinds: the same engine, the same programs and the same
//! links as in `ethernot bench multiedge`, in virtual time.
//!
//! A host is one processor that does one thing at a time, as in a process restricted to one: it looks
//! at its links, takes frames, lets the engine send, and runs its program, in the order in which the
//! runtime does. What each of these takes is in [`Costs`]; [`calibration`] finds them from measured
//! latencies and rates. What frames meet on their way is a [`LinkModel`], with a
//! [`TokenBucket`](crate::TokenBucket) where the real link has one.

pub mod calibration;
mod fit;
mod machine;
mod pauses;
pub mod policies;
mod program;
pub mod scheduled;

use crate::EdgeCosts;
use crate::LinkModel;
use crate::scenario::TransferError;
use crate::stream::Policies;
use machine::Machine;

pub use pauses::Pauses;

/// What hosts do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exercise {
    /// One write back and forth, each end polling the last word of its memory.
    PingPong,
    /// Writes from the first host to the second, several outstanding.
    OneWay,
    /// The same in both directions at the same time.
    TwoWay,
}

impl Exercise {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::OneWay => "one-way",
            Self::TwoWay => "two-way",
        }
    }
}

/// What things cost the processor of a host, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Per frame and per operation.
    pub host: EdgeCosts,
    /// Per batch of frames handed to the kernel at once, 32 at most.
    pub call_ps: u64,
    /// Per frame whose payload is gathered from the memory of the program: longer than what is
    /// copied behind the header.
    pub gather_ps: u64,
    /// Per look at one link.
    pub poll_ps: u64,
    /// Per frame sent, after the peer can see it. A virtual cable takes less than no time: what it
    /// does is part of the call that sends, which returns later.
    pub return_ps: u64,
    /// Per frame sent, for each link of the connection but one: a link is chosen for it.
    pub spread_ps: u64,
    /// Per timer of a [`TokenBucket`](crate::TokenBucket) that frames of the host wait for: the processor
    /// that runs the host is interrupted, as by the shaper of a virtual interface.
    pub timer_ps: u64,
}

/// Two hosts, their links, and what they do.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// Both directions of each link.
    pub links: &'a [LinkModel],
    /// What is done.
    pub exercise: Exercise,
    /// Bytes of a write, at least 8.
    pub message_bytes: u32,
    /// Outstanding writes of a stream.
    pub in_flight: u32,
    /// Whether the writes of a stream are delivered in order.
    pub in_order: bool,
    /// What it costs.
    pub costs: Costs,
    /// When its hosts do something else.
    pub pauses: Pauses<'a>,
    /// How long it goes on.
    pub length: Length,
    /// Seed of the engines and of late timers.
    pub seed: u64,
}

/// How long a trial is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// Operations of about so many frames, after half as many.
    Frames(u32),
    /// So many operations, as those that were measured: streams behind deep queues take longer than a
    /// measurement until they are what they will be.
    Operations {
        /// Before measuring begins, at least 1.
        warm_up: u64,
        /// Measured, at least 1.
        measured: u64,
    },
}

/// What a trial came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Median of half a round trip, in nanoseconds; of ping-pong only.
    pub latency_ns: Option<f64>,
    /// Payload of all directions, per second.
    pub bytes_per_second: f64,
    /// Data frames sent, retransmissions included, by both hosts.
    pub data_frames: u64,
    /// Acknowledgements by themselves.
    pub acknowledgements: u64,
    /// Frames retransmitted.
    pub retransmissions: u64,
    /// Frames that found a queue full.
    pub queue_full: u64,
    /// Times that a turn gave a link nothing although it had room and data waited.
    pub idle_with_data: u64,
}

/// Runs a trial in virtual time.
///
/// # Errors
/// The connection cannot be made or ends, or nothing moves for a second.
pub fn run(trial: &Trial<'_>) -> Result<Outcome, TransferError> {
    run_by(trial, Policies::Default)
}

/// Runs a trial in virtual time by these rules.
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
    /// Operations before measuring, and those to measure.
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

/// About what a full frame at MTU 1500 carries.
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
    fn a_small_message_takes_what_its_steps_cost() {
        let links = [raw_link(100_000_000_000, 0)];
        let outcome = run(&trial(&links, Exercise::PingPong, 8)).expect("nothing is in the way");
        // Post, call, send and receive, up to two looks, 3 µs of jitter, some bytes on the wire.
        let latency_ns = outcome.latency_ns.expect("it is a ping-pong");
        assert!((5_200.0..9_000.0).contains(&latency_ns), "{latency_ns}");
    }

    #[test]
    fn a_stream_is_as_fast_as_the_sender_or_the_link() {
        let fast = [raw_link(100_000_000_000, 0)];
        let outcome = run(&trial(&fast, Exercise::OneWay, 1 << 20)).expect("nothing is in the way");
        // A full frame takes the sender 4.8 µs, and acknowledgements a little.
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

    /// A busy host sends less by what the timers of a shaper take: one for each frame of a full slow link.
    #[test]
    fn timers_of_a_shaper_take_time_from_the_host() {
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
        // A link that is never full sets no timer.
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
