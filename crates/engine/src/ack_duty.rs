//! Decides whether this end sends acknowledgements now. No other code makes that decision.
//!
//! [`ReceivedPackets`] computes for one link when an acknowledgement is due, and whether a data
//! frame should carry it. The decision in this file also depends on the other links, and on the
//! frames that this end is about to send.

use delivery::{Instant, ReceivedPackets};

/// What to do with a connection's pending acknowledgements.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AckDuty {
    /// Send the acknowledgements with the next data frame.
    Ride,
    /// Send the acknowledgements now, in a frame without data.
    Alone,
    /// Send the acknowledgements later: with data, together with acknowledgements of more packets,
    /// or at their deadline.
    Later,
    /// No acknowledgement is pending.
    Nothing,
}

/// The situations in which the engine decides about acknowledgements.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Moment {
    /// Data is about to leave. `has_news` says whether this end has deliveries or credits to
    /// report. Every acknowledgement also reports these.
    DataLeaves { has_news: bool },
    /// No data can leave now.
    NoData,
    /// The thread that drives the engine is about to sleep.
    BeforeSleep,
}

impl AckDuty {
    /// Decides what to do with the pending acknowledgements of `links`.
    ///
    /// If `must_report` is true, the peer must now get a report of deliveries and credits, even if
    /// no acknowledgement is due. `data_follows` returns whether data will follow within
    /// [`RIDE_WAIT_NS`]. This function calls `data_follows` only if the decision depends on the
    /// result.
    #[inline]
    pub(crate) fn decide<'a>(
        now: Instant,
        moment: Moment,
        must_report: bool,
        data_follows: impl FnOnce() -> bool,
        links: &(impl Iterator<Item = &'a ReceivedPackets> + Clone),
    ) -> Self {
        // This code runs in every turn. To keep it cheap, each case iterates over the links as few
        // times as possible.
        let mut links = links.clone();
        let is_now = must_report
            || match moment {
                Moment::DataLeaves { has_news } => links.clone().any(|received| {
                    received.acknowledgement_rides(now) || has_news && received.is_held_back()
                }),
                Moment::NoData => {
                    let is_overdue = |received: &ReceivedPackets| {
                        received.deadline().after_ns(RIDE_WAIT_NS) <= now
                    };
                    links.clone().any(|received| received.acknowledgement_due(now))
                        && (links.clone().any(is_overdue) || !data_follows())
                }
                Moment::BeforeSleep => links.clone().any(ReceivedPackets::acknowledgement_is_last),
            };
        match moment {
            Moment::DataLeaves { .. } if is_now => Self::Ride,
            _ if is_now => Self::Alone,
            _ if links.any(ReceivedPackets::acknowledgement_owed) => Self::Later,
            _ => Self::Nothing,
        }
    }

    /// Returns the time at which the engine decides again about a link's acknowledgement.
    ///
    /// If an acknowledgement is overdue and was not sent, the link is full. In this case the result
    /// is [`Instant::NEVER`]: the engine serves the connection when the link has room, and a timer
    /// that has already expired would only keep the calling thread busy.
    #[inline]
    pub(crate) fn again_at(now: Instant, received: &ReceivedPackets) -> Instant {
        let due = received.deadline();
        let at = if due > now { due } else { due.after_ns(RIDE_WAIT_NS) };
        if at > now { at } else { Instant::NEVER }
    }
}

/// How long a due acknowledgement waits for data that will be sent soon, in nanoseconds. In this
/// time, a link of 1 Gb/s sends two full frames. The acknowledgement reports this delay to the
/// peer, which subtracts the delay from the measured round trip.
pub(crate) const RIDE_WAIT_NS: u64 = 25_000;

#[cfg(test)]
mod tests {
    use delivery::{AckPolicy, Eliciting};

    use super::*;
    use AckDuty::{Alone, Later, Nothing, Ride};

    /// A test case: a name, the packets that a link received at time 0, and the expected decisions
    /// in seven situations:
    ///
    /// 1. data leaves at time 0, and there are no deliveries or credits to report
    /// 2. data leaves at time 0, and there are deliveries or credits to report
    /// 3. no data leaves, at time 0
    /// 4. no data leaves, at the time when the acknowledgement is due
    /// 5. no data leaves now but data will follow, at the time when the acknowledgement is due
    /// 6. no data leaves, after the time when the acknowledgement was due
    /// 7. the thread is about to sleep
    type Row = (&'static str, ReceivedPackets, [AckDuty; 7]);

    fn table() -> Vec<Row> {
        use Eliciting::{Midway, No, Yes};
        let fresh = |is_lossless| {
            let mut received = ReceivedPackets::new(AckPolicy::default());
            received.set_lossless(is_lossless);
            received
        };
        let one = |is_lossless, eliciting, ack_now| {
            let mut received = fresh(is_lossless);
            received.observe(START, START, 0, false, eliciting, ack_now);
            received
        };
        let twice = |received: ReceivedPackets| {
            let mut received = received;
            received.observe(START, START, 0, false, Yes, false);
            received
        };
        let nothing = [Nothing; 7];
        let at_once = [Ride, Ride, Alone, Alone, Later, Alone, Alone];
        let in_time = [Ride, Ride, Later, Alone, Later, Alone, Alone];
        vec![
            ("nothing", fresh(false), nothing),
            ("what asks for nothing", one(false, No, false), nothing),
            (
                "the middle",
                one(false, Midway, false),
                [Later, Later, Later, Alone, Later, Alone, Later],
            ),
            ("the middle, asked", one(false, Midway, true), at_once),
            ("the end", one(false, Yes, false), in_time),
            ("the end, asked", one(false, Yes, true), in_time),
            ("a duplicate", twice(one(false, Yes, false)), at_once),
            (
                "from memory",
                one(true, Yes, false),
                [Ride, Later, Later, Alone, Later, Alone, Alone],
            ),
        ]
    }

    fn decide(
        now: Instant,
        moment: Moment,
        data_follows: bool,
        links: &[ReceivedPackets],
    ) -> AckDuty {
        AckDuty::decide(now, moment, false, || data_follows, &links.iter())
    }

    #[test]
    fn decisions_are_those_of_the_table() {
        for (what, received, expected) in table() {
            let due = received.deadline().min(START.after_ns(1 << 40));
            let links = [received];
            let news = |has_news| decide(START, Moment::DataLeaves { has_news }, false, &links);
            let left = |now, data_follows| decide(now, Moment::NoData, data_follows, &links);
            let found = [
                news(true),
                news(false),
                left(START, false),
                left(due, false),
                left(due, true),
                left(due.after_ns(RIDE_WAIT_NS), true),
                decide(START, Moment::BeforeSleep, false, &links),
            ];
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn a_pending_acknowledgement_of_one_link_counts_whatever_the_other_links_need() {
        for (what, received, expected) in table() {
            let fresh = || ReceivedPackets::new(AckPolicy::default());
            let links = [fresh(), received, fresh()];
            let found = decide(START, Moment::BeforeSleep, false, &links);
            assert_eq!(found, expected[6], "{what}");
        }
    }

    #[test]
    fn a_mandatory_report_is_sent_at_once() {
        for (moment, expected) in [
            (Moment::DataLeaves { has_news: false }, Ride),
            (Moment::NoData, Alone),
            (Moment::BeforeSleep, Alone),
        ] {
            for (what, received, _) in table() {
                let links = [received];
                let duty = AckDuty::decide(START, moment, true, || true, &links.iter());
                assert_eq!(duty, expected, "{what}, {moment:?}");
            }
        }
    }

    #[test]
    fn an_acknowledgement_is_reconsidered_at_its_deadline_and_after_the_wait_for_data() {
        let mut received = ReceivedPackets::new(AckPolicy::default());
        assert_eq!(AckDuty::again_at(START, &received), Instant::NEVER);
        received.observe(START, START, 0, false, Eliciting::Yes, false);
        let due = received.deadline();
        let late = due.after_ns(RIDE_WAIT_NS);
        for (now, again_at) in [(START, due), (due, late), (late, Instant::NEVER)] {
            assert_eq!(AckDuty::again_at(now, &received), again_at);
        }
    }

    const START: Instant = Instant(1_000_000);
}
