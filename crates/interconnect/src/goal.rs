//! Replays traces in GOAL, the group operation assembly language of LogGOPSim, in its text or
//! binary form.
//!
//! A trace lists the operations of each rank, and their dependencies:
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//! a: calc 1000
//! b: send 8b to 1 tag 7
//! b requires a
//! }
//! rank 1 {
//! a: recv 8b from 0 tag 7
//! }
//! ```
//!
//! By default, sends are eager: a message is sent before its receive is posted. With
//! [`Goal::with_rendezvous_above`], the data of a large message is sent only when the matching
//! receive is posted.
//!
//! * Durations are in nanoseconds.
//! * `X requires Y` makes X wait for the end of Y; `X irequires Y` makes X wait for the start
//!   of Y.
//! * A send ends when it is posted. A receive ends when a message with its source and tag has
//!   arrived.
//! * Messages are matched in the order of arrival. `-1` as source or tag matches any source or tag.
//! * The options `cpu` and `nic` are stored but have no effect, because a host has one of each.
//! * Every rank needs a block, even an empty one.
//! * `//` and `/* */` start comments.

mod binary;
mod parser;
mod rendezvous;

use mem::prefetch;

use super::matching::{ANY, Matching};
use super::simulation::Shares;
use super::workload::{Actions, NAMELESS, Received, Separable, Workload};

pub use parser::GoalError;
use rendezvous::{Offer, Rendezvous};

/// A trace that can be replayed.
#[derive(Clone, Debug)]
pub struct Goal {
    file: String,
    /// Kind of number by which errors name an operation: its line in a text file, or its number
    /// among the operations of its rank.
    unit: Unit,
    ranks: Vec<Program>,
    operations: u64,
    unfinished: u64,
    /// Length in bytes. The data of longer messages is sent only when the matching receive is
    /// posted. `None` means that messages of all lengths are sent immediately.
    rendezvous_above: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Line,
    Operation,
}

/// The operations of a rank.
#[derive(Clone, Debug, Default)]
struct Program {
    operations: Vec<Operation>,
    /// Operations that depend on the end of another operation. The dependents of one operation are
    /// adjacent.
    dependents: Vec<u32>,
    /// Operations that depend on the start of another operation, in the same layout as
    /// `dependents`.
    start_dependents: Vec<u32>,
    matching: Matching<Offer>,
    rendezvous: Rendezvous,
    /// Operations whose dependencies are met, but which have not started. Each method of `Workload`
    /// starts these operations before it returns, so the list is empty between calls.
    ready: Vec<u32>,
    /// The operation that was started last.
    latest: u32,
    /// Number of operations that have not ended.
    unfinished: u64,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: Kind,
    /// Number of operations for which this operation still waits.
    waits: u32,
    /// For the lists `dependents` and `start_dependents`: the position of this operation's first
    /// entry, and the number of its entries.
    dependents: (u32, u32),
    start_dependents: (u32, u32),
    /// Place that errors name. In the text form, the place is the line of the operation in the
    /// file, from 1. In the binary form, the place is the number of the operation among the
    /// operations of its rank, from 0.
    place: u32,
    processor: u8,
    interface: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Calculate { time_ps: u64 },
    Send { to: u32, bytes: u32, tag: u32 },
    Receive { from: u32, bytes: u32, tag: u32 },
}

impl Goal {
    /// Reads a trace in text form. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// Returns [`GoalError`]; each variant names one cause.
    pub fn parse(file: &str, text: &str) -> Result<Self, GoalError> {
        parser::parse(file, text)
    }

    /// Reads a trace in binary form. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// Returns [`GoalError`]; each variant names one cause.
    pub fn decode(file: &str, bytes: &[u8]) -> Result<Self, GoalError> {
        binary::decode(file, bytes)
    }

    /// Reads a trace in either form. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// Returns [`GoalError`]; each variant names one cause.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, GoalError> {
        if binary::is_binary(bytes) {
            return Self::decode(file, bytes);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(file, text),
            Err(error) => {
                Err(GoalError::Neither { file: file.to_owned(), offset: error.valid_up_to() })
            }
        }
    }

    /// Encodes the trace in binary form.
    pub fn encode(&self) -> Vec<u8> {
        binary::encode(self)
    }

    fn new(file: &str, unit: Unit, mut ranks: Vec<Program>) -> Result<Self, GoalError> {
        for (rank, program) in ranks.iter().enumerate() {
            if let Some(place) = program.circle() {
                let place = unit.place(place);
                return Err(GoalError::Circle { file: file.to_owned(), rank, place });
            }
        }
        for program in &mut ranks {
            program.unfinished = program.operations.len() as u64;
        }
        let operations = ranks.iter().map(|program| program.unfinished).sum();
        Ok(Self {
            file: file.to_owned(),
            unit,
            ranks,
            operations,
            unfinished: operations,
            rendezvous_above: None,
        })
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Returns the text of a trace for `ranks` ranks. In each of `rounds` rounds, a rank sends a
    /// message to its right neighbour, waits for the message of its left neighbour, and computes.
    pub fn ring(ranks: u32, rounds: u32) -> String {
        use std::fmt::Write as _;
        let mut text = format!("num_ranks {ranks}\n");
        // Writing to a `String` cannot fail.
        for rank in 0..ranks {
            let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let _ = writeln!(text, "rank {rank} {{");
            for round in 0..rounds {
                let _ = writeln!(text, "s{round}: send 8b to {right} tag {round}");
                let _ = writeln!(text, "r{round}: recv 8b from {left} tag {round}");
                if round > 0 {
                    let _ = writeln!(text, "s{round} requires r{}", round - 1);
                }
            }
            text.push_str("}\n");
        }
        text
    }

    /// Starts ready operations of a rank until none is left.
    fn advance(&mut self, rank: u32, actions: &mut Actions) {
        let eager_max = self.rendezvous_above.unwrap_or(u32::MAX);
        let reports_sent = actions.reports_sent();
        let program = &mut self.ranks[rank as usize];
        let mut begun = 0;
        while let Some(&index) = program.ready.get(begun) {
            begun += 1;
            program.latest = index;
            let Operation { kind, dependents, start_dependents, .. } =
                program.operations[index as usize];
            if !reports_sent {
                program.release(start_dependents, true);
            }
            let has_ended = match kind {
                Kind::Calculate { time_ps } => {
                    actions.compute(time_ps, index);
                    false
                }
                Kind::Send { to, bytes, tag } if bytes > eager_max => {
                    program.rendezvous.request((to, tag), index, actions);
                    false
                }
                Kind::Send { to, bytes, tag } => {
                    // If no operation depends on a send, the simulation need not report the end of
                    // the send.
                    let is_reported = reports_sent && (dependents.1 > 0 || start_dependents.1 > 0);
                    let name = if is_reported { index } else { NAMELESS };
                    actions.send_named(to, bytes, tag, name);
                    !is_reported
                }
                Kind::Receive { from, tag, .. } => {
                    let offer = program.matching.receive(from, tag, index);
                    if let Some(Offer::Request { from, tag }) = offer {
                        program.rendezvous.clear((from, tag), index, actions);
                    }
                    let has_message = matches!(offer, Some(Offer::Message));
                    if reports_sent && has_message {
                        actions.take_turn(index);
                    } else if start_dependents.1 > 0 && reports_sent {
                        actions.take_turn(index | STARTED);
                    }
                    has_message && !reports_sent
                }
            };
            if has_ended {
                self.unfinished -= 1;
                program.unfinished -= 1;
                program.release(dependents, false);
            }
        }
        program.ready.clear();
    }

    /// Ends an operation, and releases the operations that depend on its end. If the start of the
    /// operation was not reported, also releases the operations that depend on its start.
    fn end(&mut self, rank: u32, index: u32, has_started: bool) {
        self.unfinished -= 1;
        let program = &mut self.ranks[rank as usize];
        program.unfinished -= 1;
        let Operation { dependents, start_dependents, .. } = program.operations[index as usize];
        if !has_started {
            program.release(start_dependents, true);
        }
        program.release(dependents, false);
    }
}

impl Program {
    /// For each dependent in a range, decrements the number of operations for which it waits.
    #[inline]
    fn release(&mut self, (start, count): (u32, u32), is_start: bool) {
        if count == 0 {
            return;
        }
        let Self { operations, dependents, start_dependents, ready, .. } = self;
        let list = if is_start { start_dependents } else { dependents };
        for &dependent in &list[start as usize..(start + count) as usize] {
            let waits = &mut operations[dependent as usize].waits;
            *waits -= 1;
            if *waits == 0 {
                ready.push(dependent);
            }
        }
    }

    /// Returns the line or number of an operation that can never start, because its requirements
    /// form a circle. Returns `None` if there is no circle.
    fn circle(&self) -> Option<u32> {
        let mut waits: Vec<u32> = self.operations.iter().map(|operation| operation.waits).collect();
        let mut open: Vec<u32> =
            (0..).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(at, _)| at).collect();
        while let Some(index) = open.pop() {
            let operation = &self.operations[index as usize];
            let range = |(start, count): (u32, u32)| start as usize..(start + count) as usize;
            let ends = &self.dependents[range(operation.dependents)];
            let starts = &self.start_dependents[range(operation.start_dependents)];
            for &dependent in ends.iter().chain(starts) {
                let left = &mut waits[dependent as usize];
                *left -= 1;
                if *left == 0 {
                    open.push(dependent);
                }
            }
        }
        let stuck = waits.iter().position(|waits| *waits > 0)?;
        self.operations.get(stuck).map(|operation| operation.place)
    }
}

impl Unit {
    fn place(self, number: u32) -> String {
        match self {
            Self::Line => format!("line {number}"),
            Self::Operation => format!("operation {number}"),
        }
    }
}

impl Workload for Goal {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        let program = &mut self.ranks[rank as usize];
        for (at, operation) in (0..).zip(&program.operations) {
            if operation.waits == 0 {
                program.ready.push(at);
            }
        }
        self.advance(rank, actions);
    }

    fn on_wake(&mut self, rank: u32, tag: u32, actions: &mut Actions) {
        self.end(rank, tag, !actions.reports_sent());
        self.advance(rank, actions);
    }

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        if let Some(index) = self.take(rank, received, actions) {
            self.end(rank, index, true);
            self.advance(rank, actions);
        }
    }

    fn on_sent(&mut self, rank: u32, name: u32, actions: &mut Actions) {
        if name & STARTED == 0 {
            self.end(rank, name, false);
        } else {
            let program = &mut self.ranks[rank as usize];
            let operation = program.operations[(name & !STARTED) as usize];
            program.release(operation.start_dependents, true);
        }
        self.advance(rank, actions);
    }

    fn is_unordered(&self) -> bool {
        true
    }

    /// Prefetches the next operations of a rank. A trace is larger than the caches, and most
    /// operations start in the order of the file.
    fn foresee(&self, rank: u32) {
        let Some(program) = self.ranks.get(rank as usize) else { return };
        program.matching.foresee();
        for next in [1, 2] {
            if let Some(operation) = program.operations.get(program.latest as usize + next) {
                prefetch(operation);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    fn done(&self, _now_ps: u64) -> Option<f64> {
        Some(1.0 - self.unfinished as f64 / self.operations.max(1) as f64)
    }

    fn awaits(&self) -> String {
        let left = format!("{} operations are left", self.unfinished);
        for (rank, program) in self.ranks.iter().enumerate() {
            if let Some((to, tag, index)) = program.uncleared() {
                let place = self.unit.place(program.operations[index as usize].place);
                return format!(
                    "{}: rank {rank} waits for rank {to} to receive its message with tag {tag} \
                     ({place}); add the receive, or remove requirements of the receive; {left}",
                    self.file
                );
            }
            let Some((from, tag, index)) = program.matching.waiting().next() else { continue };
            let place = program.operations.get(index as usize).map_or(0, |found| found.place);
            let place = self.unit.place(place);
            let named = |number, name: &str| match number {
                ANY => format!("any {name}"),
                number => format!("{name} {number}"),
            };
            let (source, tag) = (named(from, "rank"), named(tag, "tag"));
            return format!(
                "{}: rank {rank} waits for a message from {source} with {tag} ({place}) that is \
                 never sent; add the send, or remove the receive; {left}",
                self.file
            );
        }
        left
    }
}

impl Separable for Goal {
    const SHARES: Shares = Shares::Sum;

    fn adopt(&mut self, rank: u32, part: &mut Self) {
        let (own, other) = (&mut self.ranks[rank as usize], &mut part.ranks[rank as usize]);
        self.unfinished -= own.unfinished - other.unfinished;
        std::mem::swap(own, other);
    }
}

/// Flag in the `name` of a notification: it reports the start of a receive. Without the flag, it
/// reports the end of a receive.
const STARTED: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::super::loggp::{LogGp, LogGpConfiguration};
    use super::super::simulation::{HostCosts, Outcome, Simulation, Stuck};
    use super::*;

    fn replay(text: &str) -> Result<Outcome, Stuck> {
        let goal = Goal::parse("a.goal", text).expect("it is well formed");
        let configuration = LogGpConfiguration::new(1_000_000, 100_000, 1_000);
        let placement: Vec<u32> = (0..goal.ranks()).collect();
        let fabric = LogGp::new(goal.ranks(), configuration);
        Simulation::new(fabric, goal, &placement, HostCosts::default()).run()
    }

    #[test]
    fn operations_wait_for_their_dependencies() {
        let text = "num_ranks 2\nrank 0 {\na: calc 1000\nb: send 8b to 1 tag 7\nb requires a\n}\n\
                    rank 1 {\na: recv 8b from 0 tag 7\nb: calc 500 cpu 0\nb requires a\n}\n";
        let outcome = replay(text).expect("it ends");
        // The time consists of 1 µs of work, L, seven further bytes and 0.5 µs of work.
        assert_eq!(outcome.completed_ps, 1_000_000 + 1_000_000 + 7_000 + 500_000);
    }

    #[test]
    fn early_messages_wait_for_their_receive() {
        let text = "num_ranks 2\nrank 0 {\na: send 1b to 1 tag 1\nb: send 1b to 1 tag 2\n}\nrank 1 \
                    {\nc: calc 9000\nx: recv 1b from 0 tag 2\ny: recv 1b from 0 tag 1\nx requires \
                    c\ny requires x\n}\n";
        // The processor receives both messages after its work, and the interface needs g between
        // them.
        assert_eq!(replay(text).expect("it ends").completed_ps, 9_000_000 + 100_000);
    }

    #[test]
    fn a_deadlocked_trace_is_reported_with_its_line() {
        let text = "num_ranks 2\nrank 0 {\na: recv 1b from 1 tag 3\n}\nrank 1 {\n}\n";
        let stuck = replay(text).expect_err("nothing is sent").to_string();
        assert!(
            stuck.contains("a.goal: rank 0 waits for a message from rank 1 with tag 3 (line 3)"),
            "{stuck}"
        );
    }

    #[test]
    fn a_receive_from_any_source_and_tag_takes_the_first_message() {
        let text = "num_ranks 3\nrank 0 {\na: recv 1b from -1 tag -1\nb: calc 1000000\nc: recv 1b \
                    from 1 tag 4\nb requires a\nc requires b\n}\nrank 1 {\na: calc 10\nb: send 1b to \
                    0 tag 4\nb requires a\n}\nrank 2 {\nsend 1b to 0 tag 9\n}\n";
        assert_eq!(replay(text).expect("it ends").completed_ps, 1_001_000_000);
    }

    #[test]
    fn a_ring_is_replayed() {
        let outcome = replay(&Goal::ring(16, 20)).expect("it ends");
        assert_eq!(outcome.delivered, 320);
    }
}
