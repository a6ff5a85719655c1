//! Rendezvous of large messages: a request, a clearance and the data. The sender sends the data
//! only when the receive is posted.
//!
//! A message longer than the threshold (S of `LogGOPSim`) uses rendezvous. Its sender first sends a
//! one-byte request. The receiver matches a receive with the request, not with the data. After the
//! match, the receiver answers with a one-byte clearance. The sender then sends the data, which
//! ends the send. When the data arrives, the receive ends. Rendezvous takes two latencies more than
//! an eager message, and hosts have the costs of three messages.

use std::collections::{BTreeMap, VecDeque};

use super::super::workload::{Actions, Received};
use super::{Goal, GoalError, Kind, Program};

/// Messages of a rank whose request was sent or received, but whose data was not. Messages with
/// equal peer and equal tag stay in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Rendezvous {
    /// Sends that wait for a clearance, by receiver and tag.
    requested: Lines,
    /// Receives that wait for data, by sender and tag.
    cleared: Lines,
}

type Lines = BTreeMap<(u32, u32), VecDeque<u32>>;

/// A message that can match a receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offer {
    /// The data itself.
    Message,
    /// A request to send the data.
    Request {
        /// Rank that will send the data.
        from: u32,
        /// Tag of the message.
        tag: u32,
    },
}

impl Goal {
    /// Makes messages of more than `bytes` bytes use rendezvous: the sender sends their data after
    /// the receiver has posted the receive.
    ///
    /// Two bits of the tag then distinguish request, clearance and data. An operation whose tag
    /// uses these bits is an error.
    ///
    /// # Errors
    /// Returns [`GoalError`]; each variant names one cause.
    pub fn with_rendezvous_above(mut self, bytes: u32) -> Result<Self, GoalError> {
        for program in &self.ranks {
            for operation in &program.operations {
                if let Kind::Send { tag, .. } = operation.kind
                    && tag > TAG_MASK
                {
                    let (file, place) = (self.file.clone(), self.unit.place(operation.place));
                    return Err(GoalError::Tag { file, place, tag, most: TAG_MASK });
                }
            }
        }
        self.rendezvous_above = Some(bytes);
        Ok(self)
    }

    /// Handles a message. Returns the operation that the message ends, if there is one.
    pub(super) fn take(
        &mut self,
        rank: u32,
        received: Received,
        actions: &mut Actions,
    ) -> Option<u32> {
        let Received { from, tag, bytes, .. } = received;
        let program = &mut self.ranks[rank as usize];
        let Some(eager_max) = self.rendezvous_above else {
            let (index, _) = program.matching.arrive(from, tag, Offer::Message)?;
            return Some(index);
        };
        let named = (from, tag & TAG_MASK);
        match tag & !TAG_MASK {
            REQUEST => {
                let offer = Offer::Request { from, tag: named.1 };
                let (index, _) = program.matching.arrive(from, named.1, offer)?;
                program.rendezvous.clear(named, index, actions);
                None
            }
            CLEARANCE => {
                let index = pop(&mut program.rendezvous.requested, named)?;
                if let Kind::Send { to, bytes, tag } = program.operations[index as usize].kind {
                    actions.send_named(to, bytes, tag, index);
                }
                (!actions.reports_sent()).then_some(index)
            }
            _ if bytes > eager_max => pop(&mut program.rendezvous.cleared, named),
            _ => program.matching.arrive(from, tag, Offer::Message).map(|(index, _)| index),
        }
    }
}

impl Rendezvous {
    /// Sends the request that belongs to a send.
    pub(super) fn request(&mut self, (to, tag): (u32, u32), index: u32, actions: &mut Actions) {
        actions.send(to, CONTROL_BYTES, tag | REQUEST);
        self.requested.entry((to, tag)).or_default().push_back(index);
    }

    /// Sends the clearance for a message. `from` and `tag` identify the message. The receive
    /// `index` will end when the data arrives.
    pub(super) fn clear(&mut self, (from, tag): (u32, u32), index: u32, actions: &mut Actions) {
        actions.send(from, CONTROL_BYTES, tag | CLEARANCE);
        self.cleared.entry((from, tag)).or_default().push_back(index);
    }
}

impl Program {
    /// Returns a send that waits for its clearance: its receiver, tag and operation.
    pub(super) fn uncleared(&self) -> Option<(u32, u32, u32)> {
        let (&(to, tag), line) = self.rendezvous.requested.first_key_value()?;
        Some((to, tag, *line.front()?))
    }
}

/// Removes and returns the first entry of a queue. If the queue is then empty, removes the queue
/// too.
fn pop(lines: &mut Lines, named: (u32, u32)) -> Option<u32> {
    let line = lines.get_mut(&named)?;
    let first = line.pop_front();
    if line.is_empty() {
        lines.remove(&named);
    }
    first
}

/// Length of requests and clearances in bytes, the minimum that all fabrics carry.
const CONTROL_BYTES: u32 = 1;
const TAG_MASK: u32 = (1 << 30) - 1;
const REQUEST: u32 = 1 << 30;
const CLEARANCE: u32 = 2 << 30;

#[cfg(test)]
mod tests {
    use super::super::super::configuration::{Configuration, Watch};
    use super::super::super::loggp::{LogGp, LogGpConfiguration};
    use super::super::super::simulation::{HostCosts, InTurns, Outcome, Simulation, Stuck};
    use super::*;

    /// Replays a trace with L = 1 µs, g = 0.1 µs, G = 1 ns and these host costs.
    fn replay(text: &str, above: u32, costs: HostCosts) -> Result<Outcome, Stuck> {
        let goal = Goal::parse("a.goal", text).expect("it is well formed");
        let goal = goal.with_rendezvous_above(above).expect("tags are small");
        let configuration = LogGpConfiguration::new(1_000_000, 100_000, 1_000);
        let placement: Vec<u32> = (0..goal.ranks()).collect();
        let fabric = LogGp::new(goal.ranks(), configuration);
        Simulation::new(fabric, goal, &placement, costs).run()
    }

    const FREE: HostCosts =
        HostCosts { send_ps: 0, send_ps_per_byte: 0, receive_ps: 0, receive_ps_per_byte: 0 };

    /// Returns a trace of one message, in which rank 1 computes for `computes_ns` nanoseconds
    /// before it receives.
    fn one_message(bytes: u32, computes_ns: u32) -> String {
        format!(
            "num_ranks 2\nrank 0 {{\nsend {bytes}b to 1 tag 7\n}}\nrank 1 {{\nc: calc {computes_ns}\n\
             r: recv {bytes}b from 0 tag 7\nr requires c\n}}\n"
        )
    }

    #[test]
    fn rendezvous_data_arrive_two_latencies_later() {
        let text = "num_ranks 2\nrank 0 {\nsend 1001b to 1 tag 7\n}\nrank 1 {\nrecv 1001b from 0 tag \
                    7\n}\n";
        // The time is L for the request, L for the clearance, and L and 1000 G for the data.
        let outcome = replay(text, 1_000, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 3 * 1_000_000 + 1_000 * 1_000);
        assert_eq!(outcome.delivered, 3);
        // A message as long as the threshold is eager.
        let outcome = replay(text, 1_001, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 1_000_000 + 1_000 * 1_000);
        assert_eq!(outcome.delivered, 1);
    }

    #[test]
    fn rendezvous_data_wait_for_the_receive() {
        // Rank 1 posts the receive at 9 µs, long after the request has arrived.
        let outcome = replay(&one_message(1_001, 9_000), 1_000, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 9_000_000 + 2 * 1_000_000 + 1_000 * 1_000);
        // The data of an eager message has arrived long before 9 µs. The processor receives the
        // data when the processor's work ends.
        let outcome = replay(&one_message(1_000, 9_000), 1_000, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 9_000_000 + 999 * 1_000);
    }

    #[test]
    fn a_send_ends_when_its_data_are_posted() {
        let text = "num_ranks 2\nrank 0 {\ns: send 1001b to 1\nc: calc 50000\nc requires s\n}\nrank 1 \
                    {\nc: calc 9000\nr: recv 1001b from 0\nr requires c\n}\n";
        // The clearance arrives at 10 µs, and 50 µs of work follow.
        let outcome = replay(text, 1_000, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 10_000_000 + 50_000_000);
    }

    #[test]
    fn hosts_pay_for_three_messages() {
        let costs = HostCosts { send_ps: 300_000, receive_ps: 500_000, ..FREE };
        let text = one_message(1_001, 0);
        // Each of the three messages takes o_s, L and o_r.
        let outcome = replay(&text, 1_000, costs).expect("it ends");
        assert_eq!(outcome.completed_ps, 3 * (300_000 + 1_000_000 + 500_000) + 1_000 * 1_000);
    }

    #[test]
    fn receives_of_any_source_are_matched_with_the_first_request() {
        let text = "num_ranks 3\nrank 0 {\na: recv 1001b from -1 tag -1\nb: recv 1001b from 2 tag 9\n\
                    b requires a\n}\nrank 1 {\nsend 1001b to 0 tag 4\n}\nrank 2 {\nc: calc 100\ns: send \
                    1001b to 0 tag 9\ns requires c\n}\n";
        // The receive from rank 1 ends at 4 µs. The request of rank 2 waits until the second
        // receive is posted. Then clearance and data take 1 + 1 + 1 µs.
        let outcome = replay(text, 1_000, FREE).expect("it ends");
        assert_eq!(outcome.completed_ps, 4_000_000 + 2 * 1_000_000 + 1_000 * 1_000);
    }

    /// Both sends wait for the receive of the other rank. Eager sends would hide this deadlock.
    #[test]
    fn deadlocked_sends_are_reported_with_their_line() {
        let rank = |other: u32| {
            format!("s: send 2000b to {other}\nr: recv 2000b from {other}\nr requires s\n}}\n")
        };
        let text = format!("num_ranks 2\nrank 0 {{\n{}rank 1 {{\n{}", rank(1), rank(0));
        assert!(replay(&text, 2_000, FREE).is_ok());
        let stuck = replay(&text, 1_999, FREE).expect_err("no rank receives").to_string();
        assert!(
            stuck.contains(
                "a.goal: rank 0 waits for rank 1 to receive its message with tag 0 (line 3)"
            ),
            "{stuck}"
        );
    }

    #[test]
    fn a_tag_that_leaves_no_bits_is_refused() {
        let text = "num_ranks 2\nrank 0 {\nsend 1b to 1 tag 1073741824\n}\nrank 1 {\n}\n";
        let goal = Goal::parse("a.goal", text).expect("it is well formed");
        let error = goal.with_rendezvous_above(5).expect_err("31 bits").to_string();
        assert!(error.contains("a.goal: line 3") && error.contains("1073741823"), "{error}");
    }

    #[test]
    fn divided_runs_have_the_same_result() {
        let text = "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 4\n";
        let mut configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let trace = Goal::ring(16, 5).replace("8b", "20000b");
        let goal = Goal::parse("a.goal", &trace).expect("it is well formed");
        let goal = goal.with_rendezvous_above(1_000).expect("tags are small");
        let mut run = |threads| {
            configuration.threads = threads;
            let goal = goal.clone();
            configuration.run_divided(goal, 16, &InTurns, Watch::default()).expect("it ends").hash
        };
        assert_eq!(run(1), run(3));
    }
}
