//! Two programs that write to each other in turn, on hosts of different speeds, in virtual time.
//! The costs are round figures from note 59 of `docs/performance-notes.md`, at a calibrated host.

use delivery::Instant;

use super::PingPong;
use super::tests::write;

/// A post whose write takes a system call, until the bytes are on the wire.
const POST_NS: u64 = 3_000;
/// A poll that finds nothing.
const POLL_NS: u64 = 700;
/// Reading and placing the bytes of an answer.
const READ_NS: u64 = 1_500;

/// Speeds of hosts in quarters of that of a calibrated host.
const SPEEDS: [u64; 5] = [1, 2, 4, 8, 16];
/// Answers at an end of which one is late, if a scenario has late answers.
const STALLS_IN: usize = 250;
/// Round trips of a run.
const ROUND_TRIPS: usize = 2_000;

/// What a run consists of, besides the speeds of its hosts.
#[expect(clippy::struct_field_names, reason = "each name ends with its unit")]
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// How long a program works on something else after it has taken the completion, at each end.
    work_ns: [u64; 2],
    /// Time until the progress thread has woken up.
    wake_ns: u64,
    /// Time between the ends.
    wire_ns: u64,
    /// How much later one of [`STALLS_IN`] answers arrives, because another thread had the processor.
    stall_ns: u64,
}

/// A host with a program that writes, takes the completion, and spins on its memory until the
/// peer's write is there.
struct Host {
    quarters: u64,
    work_ns: u64,
    wake_ns: u64,
    /// `None` if completions never wait.
    ping_pong: Option<PingPong>,
    /// When the last write completed, or would have completed if it had not waited.
    completed_at: Instant,
    turns: usize,
}

impl Host {
    const fn new(quarters: u64, work_ns: u64, wake_ns: u64, ping_pong: Option<PingPong>) -> Self {
        Self { quarters, work_ns, wake_ns, ping_pong, completed_at: Instant(0), turns: 0 }
    }

    /// Returns the time in nanoseconds that something takes on this host.
    const fn takes(&self, ns: u64) -> u64 {
        ns * 4 / self.quarters
    }

    /// Writes at a time. Returns when the bytes leave.
    fn write(&mut self, now: Instant) -> Instant {
        self.completed_at = now.after_ns(self.takes(POST_NS));
        if let Some(ping_pong) = &mut self.ping_pong {
            // A program that has its completion works on, as one whose completion never waits.
            let _now = ping_pong.on_completed(self.completed_at, write(0));
        }
        self.completed_at
    }

    /// Receives the peer's write, which arrives at a time. Returns when the program sees it and can
    /// write again.
    fn receive(&mut self, arrives: Instant) -> Instant {
        let due = self.ping_pong.as_ref().map_or(Instant::NEVER, PingPong::due);
        if due != Instant::NEVER && arrives <= due {
            // The polls of the program read the bytes, and its work begins with the completion.
            let poll_ns = self.takes(POLL_NS);
            let polls = arrives.since_ns(self.completed_at).div_ceil(poll_ns);
            let polled_at = self.completed_at.after_ns(polls * poll_ns);
            let read_at = polled_at.after_ns(self.takes(READ_NS));
            self.on_bytes(read_at);
            return read_at.after_ns(self.takes(self.work_ns));
        }
        let mut free_at = self.completed_at;
        if let Some(ping_pong) = self.ping_pong.as_mut().filter(|_| due != Instant::NEVER) {
            assert!(ping_pong.on_time(due).is_some());
            free_at = due;
        }
        // The program makes no call, so the progress thread wakes up.
        self.turns += 1;
        let wake_ns = self.takes(self.wake_ns) * [3, 4, 5, 2, 6][self.turns % 5] / 4;
        let read_at = arrives.max(free_at).after_ns(wake_ns + self.takes(READ_NS));
        self.on_bytes(read_at);
        read_at.max(free_at.after_ns(self.takes(self.work_ns)))
    }

    fn on_bytes(&mut self, now: Instant) {
        if let Some(ping_pong) = &mut self.ping_pong {
            ping_pong.on_bytes(now);
        }
    }
}

/// Returns the nanoseconds that the round trips take.
fn run(scenario: Scenario, speeds: [u64; 2], has_rule: bool) -> u64 {
    let Scenario { work_ns, wake_ns, wire_ns, stall_ns } = scenario;
    let rules = [PingPong::of_initiator(), PingPong::of_responder()];
    let mut rules = rules.map(|rule| has_rule.then_some(rule));
    let [mut first, mut second] =
        [0, 1].map(|end| Host::new(speeds[end], work_ns[end], wake_ns, rules[end].take()));
    let mut now = Instant(0);
    for trip in 0..ROUND_TRIPS {
        let stall_ns = |end| if trip % STALLS_IN == end * STALLS_IN / 2 { stall_ns } else { 0 };
        let arrives = first.write(now).after_ns(wire_ns + stall_ns(1));
        let seen = second.receive(arrives);
        let arrives = second.write(seen).after_ns(wire_ns + stall_ns(0));
        now = first.receive(arrives);
    }
    now.0
}

/// Checks that the round trips of each pair of hosts take at most `permille` thousandths of the time
/// that they take if completions never wait.
#[track_caller]
fn assert_ratio(scenario: Scenario, permille: u64) {
    assert_ratio_beside(scenario, permille, 0);
}

/// Checks the same, without the time that both runs lose by late answers.
#[track_caller]
fn assert_ratio_beside(scenario: Scenario, permille: u64, lost_ns: u64) {
    for first in SPEEDS {
        for second in SPEEDS {
            let speeds = [first, second];
            let [with, without] = [true, false].map(|rule| run(scenario, speeds, rule) - lost_ns);
            let text = format!("{with} ns, {without} ns without: {scenario:?}, {speeds:?}");
            assert!(with * 1000 <= without * permille, "{text}");
        }
    }
}

#[test]
fn a_ping_pong_takes_at_most_two_thirds_of_the_time_on_fast_and_on_slow_hosts() {
    for wake_ns in [20_000, 100_000] {
        for wire_ns in [500, 5_000] {
            assert_ratio(Scenario { work_ns: [0; 2], wake_ns, wire_ns, stall_ns: 0 }, 667);
        }
    }
}

/// Threads of other programs get the processor a few hundred times a second.
#[test]
fn late_answers_now_and_then_take_no_turns_from_the_others() {
    for wake_ns in [20_000, 100_000] {
        for stall_ns in [100_000, 1_000_000] {
            let scenario = Scenario { work_ns: [0; 2], wake_ns, wire_ns: 500, stall_ns };
            assert_ratio_beside(scenario, 300, 2 * stall_ns * (ROUND_TRIPS / STALLS_IN) as u64);
        }
    }
}

/// While completions wait, the work does not overlap with the answer any more.
#[test]
fn programs_that_work_between_completion_and_answer_lose_at_most_two_percent() {
    for wake_ns in [20_000, 100_000] {
        for work_ns in [3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000] {
            for work_ns in [[work_ns, 0], [0, work_ns], [work_ns; 2]] {
                for wire_ns in [500, 5_000, 50_000] {
                    assert_ratio(Scenario { work_ns, wake_ns, wire_ns, stall_ns: 0 }, 1_020);
                }
            }
        }
    }
}

#[test]
fn programs_whose_peer_is_far_away_lose_nothing() {
    for wire_ns in [200_000, 1_000_000, 50_000_000] {
        assert_ratio(Scenario { work_ns: [0; 2], wake_ns: 20_000, wire_ns, stall_ns: 0 }, 1_000);
    }
}
