//! The sequential model that the engine's promises are checked against.
//!
//! One [`DirectionModel`] follows what one side of a connection asks of the other. It knows every
//! posted operation and a *bound*: all operations before it are known to have been performed,
//! because one of them completed, was delivered to the peer's application, or because something
//! became visible that may only be visible after them. Each byte of the target must then hold what
//! the operations before the bound leave there in sequence, or what an operation at or beyond the
//! bound writes there. A byte that only an ordered operation explains raises the bound, and what
//! should be there by that is compared in turn: this is how fences and strict tails are checked
//! without looking into the engine.

use std::collections::VecDeque;

use thiserror::Error;

use crate::host::{Action, Completion, CompletionKind, Flags};

/// A broken promise.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// Memory holds what no allowed order of operations can have put there.
    #[error(
        "byte {offset} of the target is {found:#04x}, expected {expected:#04x} \
         with all operations before {bound} performed"
    )]
    Memory {
        /// Where in the target region.
        offset: u32,
        /// What it holds.
        found: u8,
        /// What the operations before `bound` leave there.
        expected: u8,
        /// Operations before this number are known to have been performed.
        bound: u64,
    },
    /// A read brought bytes that the target never held at its place in the order.
    #[error("read {number} brought {found:#04x} at offset {offset}, expected {expected:#04x}")]
    ReadResult {
        /// The read.
        number: u64,
        /// Where in the target region.
        offset: u32,
        /// What it brought.
        found: u8,
        /// What the earlier operations leave there.
        expected: u8,
    },
    /// An atomic operation returned another value than its place in the order demands.
    #[error("atomic {number} returned {found}, expected {expected}")]
    AtomicResult {
        /// The operation.
        number: u64,
        /// What it returned.
        found: u64,
        /// What the earlier operations leave there.
        expected: u64,
    },
    /// A completion does not belong to the operation whose turn it is.
    #[error("completion {found:?} came although it was the turn of operation {expected:?}")]
    CompletionOrder {
        /// What came.
        found: Completion,
        /// The operation that was due; absent if none was.
        expected: Option<u64>,
    },
    /// A completion of the right operation with wrong facts.
    #[error("completion {found:?} of an operation {expected:?} of {length_bytes} bytes")]
    CompletionFacts {
        /// What came.
        found: Completion,
        /// What was posted.
        expected: CompletionKind,
        /// Its size.
        length_bytes: u32,
    },
    /// A message or notification came that was not sent, or not in its turn, or altered.
    #[error("delivery {found:?} is not the next one: {expected}")]
    Delivery {
        /// What came.
        found: Completion,
        /// The next one that was sent.
        expected: String,
    },
    /// An operation succeeded under a key that had ended before it.
    #[error("operation {number} succeeded although what it needs was gone before")]
    NotDenied {
        /// The operation.
        number: u64,
    },
    /// A datagram came, or left, as it must not.
    #[error("datagram at host {host}: {what}")]
    Datagram {
        /// The host.
        host: usize,
        /// What is wrong.
        what: String,
    },
    /// Operations of an ended connection were neither completed nor flushed.
    #[error("connection of pair {pair} ended and {outstanding} operations never completed")]
    NeverCompleted {
        /// Which pair of hosts.
        pair: usize,
        /// How many.
        outstanding: usize,
    },
    /// A connection ended although nothing happened that would end it.
    #[error("connection of pair {pair} ended by {cause} although nothing ended it")]
    ConnectionLost {
        /// Which pair of hosts.
        pair: usize,
        /// What the engine said.
        cause: String,
    },
    /// A connection ended for another cause than the one there was.
    #[error("connection of pair {pair} ended on side {side} by {cause}, which nothing caused")]
    WrongCause {
        /// Which pair of hosts.
        pair: usize,
        /// Which side of it.
        side: usize,
        /// What the engine said.
        cause: String,
    },
    /// An operation failed in another way than its connection.
    #[error("operation {number} failed as {fault:?}, its connection as {cause:?}")]
    WrongFault {
        /// The operation.
        number: u64,
        /// What the engine said of it.
        fault: crate::host::Fault,
        /// What the engine said of the connection, if it has ended.
        cause: Option<String>,
    },
    /// Everything is closed, and something is still in use.
    #[error("host {host} holds {used} {name} although everything is closed")]
    Held {
        /// The host.
        host: usize,
        /// The resource.
        name: &'static str,
        /// What is in use.
        used: u64,
    },
    /// Memory changed that nothing may write any more.
    #[error("region {region} of host {host} changed after its connection had ended")]
    FrozenMemory {
        /// The host.
        host: usize,
        /// Number of the region.
        region: u32,
    },
    /// Bytes outside every region changed.
    #[error("guard bytes of host {host} changed")]
    Guards {
        /// The host.
        host: usize,
    },
    /// Shared counters do not add up.
    #[error("counter {counter} of host {host}: {what}")]
    Counter {
        /// The host.
        host: usize,
        /// Which counter.
        counter: usize,
        /// What is wrong.
        what: String,
    },
    /// A bounded resource went beyond its limit.
    #[error("{name} of host {host} is {used}, limit {limit}")]
    Occupancy {
        /// The host.
        host: usize,
        /// The resource.
        name: &'static str,
        /// What is in use.
        used: u64,
        /// What may be.
        limit: u64,
    },
    /// An engine refused what it must take.
    #[error("host {host} refused: {what}")]
    Refused {
        /// The host.
        host: usize,
        /// What it refused and why.
        what: String,
    },
    /// With all faults gone, something is still not done.
    #[error("no convergence after healing: {what}")]
    NoConvergence {
        /// What is missing.
        what: String,
    },
    /// A pair that has nothing to do with a fault came to a halt because of it.
    #[error("pair {pair} side {side} did nothing for {since_ns} ns while others fail: {what}")]
    Starved {
        /// Which pair of hosts.
        pair: usize,
        /// Which side of it.
        side: usize,
        /// For how long, in nanoseconds.
        since_ns: u64,
        /// What it waits for.
        what: String,
    },
    /// An address that proved nothing got more than three times what came from it.
    #[error("host {host} sent {sent} bytes to {address}, from where {received} came")]
    Amplified {
        /// The host.
        host: usize,
        /// Whose address.
        address: wire_edge::PeerAddr,
        /// Bytes sent there.
        sent: u64,
        /// Bytes that came from there.
        received: u64,
    },
    /// A link that carries larger frames is used for small ones only.
    #[error("pair {pair} sends frames of {bytes} bytes at most where every path carries more")]
    FrameBytes {
        /// Which pair of hosts.
        pair: usize,
        /// Its largest frame, in bytes.
        bytes: u16,
    },
    /// Hosts keep each other busy while time stands still.
    #[error("host {host} never becomes quiet at {time_ns} ns")]
    Livelock {
        /// The host.
        host: usize,
        /// When the clock stopped.
        time_ns: u64,
    },
    /// An engine panicked.
    #[error("panic: {what}")]
    Panicked {
        /// Its message.
        what: String,
    },
    /// Two runs of one seed differ.
    #[error("two runs differ: trace hashes {first:016x} and {second:016x}")]
    NotDeterministic {
        /// Hash of the first run.
        first: u64,
        /// Hash of the second run.
        second: u64,
    },
}

/// The target's memory, to look at.
pub(crate) trait TargetMemory {
    /// Reads `into.len()` bytes from `offset`.
    fn read(&self, offset: u32, into: &mut [u8]);
}

/// An operation as it was posted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) action: Action,
    pub(crate) flags: Flags,
    /// Where in the target region (in the cells, for atomics; unused by sends).
    pub(crate) offset: u32,
    pub(crate) length_bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// The key of the peer that it ends.
    pub(crate) invalidates: Option<u32>,
    /// What a write or send carries; empty for others.
    pub(crate) content: Vec<u8>,
    /// Where the result of a read or atomic lands in local memory.
    pub(crate) local_offset: u32,
    /// What an atomic on a cell of this direction alone must return.
    pub(crate) returns: Option<u64>,
}

/// What a completion is checked against, beyond itself.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) number: u64,
    pub(crate) posted: Posted,
    /// For reads: what the target held when all earlier operations were performed.
    base: Vec<u8>,
}

/// Model of one direction of one connection.
#[derive(Debug)]
pub(crate) struct DirectionModel {
    /// The target after the operations before `bound`.
    expected: Vec<u8>,
    /// Operations that have not completed, or are at or beyond the bound; front is `first`.
    operations: VecDeque<(Posted, Vec<u8>)>,
    first: u64,
    /// Operations before this have completed at the requester.
    completed: u64,
    bound: u64,
    /// For each operation with a forward fence the number of the next one.
    fences: VecDeque<u64>,
    deliveries: VecDeque<ExpectedDelivery>,
    /// Operations before this one were delivered, as the peer's application knows.
    reported: u64,
    /// A write with an immediate consumes a receive.
    consumes: bool,
}

#[derive(Debug)]
struct ExpectedDelivery {
    number: u64,
    kind: CompletionKind,
    length_bytes: u32,
    immediate: Option<u32>,
    invalidated: Option<u32>,
    /// What the receive holds; nothing where it holds nothing of the operation.
    content: Option<Vec<u8>>,
}

impl DirectionModel {
    /// A direction whose target has `target_bytes` zero bytes.
    pub(crate) fn new(target_bytes: u32) -> Self {
        Self {
            expected: vec![0; target_bytes as usize],
            operations: VecDeque::new(),
            first: 0,
            completed: 0,
            bound: 0,
            fences: VecDeque::new(),
            deliveries: VecDeque::new(),
            reported: 0,
            consumes: false,
        }
    }

    /// From now on a write with an immediate consumes a receive, as between queue pairs.
    pub(crate) const fn consume_receives(&mut self) {
        self.consumes = true;
    }

    /// Whether [`DirectionModel::consume_receives`] was called.
    pub(crate) const fn is_of_queue_pairs(&self) -> bool {
        self.consumes
    }

    /// Whether it cannot be that the end of the connection by the peer keeps this operation from success: the
    /// peer's application had it, and no answer is missing of any before it.
    pub(crate) fn is_surely_delivered(&self, number: u64) -> bool {
        let is_question = |(posted, _): &(Posted, Vec<u8>)| posted.action.is_question();
        let from = (self.completed.max(self.first) - self.first) as usize;
        let count = (number + 1).saturating_sub(self.completed.max(self.first)) as usize;
        number < self.reported && !self.operations.iter().skip(from).take(count).any(is_question)
    }

    /// Number of the operation posted next.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.operations.len() as u64
    }

    /// Operations posted and not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        self.next_number() - self.completed
    }

    /// Of those, the ones that report their end in any case.
    pub(crate) fn outstanding_signalled(&self) -> usize {
        let skip = (self.completed - self.first) as usize;
        self.operations.iter().skip(skip).filter(|(posted, _)| posted.flags.signalled).count()
    }

    /// The numbers of operations posted and not completed that need the peer's key.
    pub(crate) fn outstanding_under_key(&self) -> Vec<u64> {
        let from = self.completed.max(self.first);
        let skip = (from - self.first) as usize;
        let numbered = (from..).zip(self.operations.iter().skip(skip));
        let needed = numbered.filter(|(_, (posted, _))| posted.action.is_under_key());
        needed.map(|(number, _)| number).collect()
    }

    /// Messages and notifications that have not reached the peer's application.
    pub(crate) fn undelivered(&self) -> usize {
        self.deliveries.len()
    }

    /// The target was replaced by zero bytes while nothing was outstanding.
    pub(crate) fn retarget(&mut self) {
        self.expected.fill(0);
    }

    /// Whether a write of this range with these flags could meet an operation that it is not
    /// ordered after, so that the result would not be defined.
    pub(crate) fn conflicts(&self, offset: u32, length_bytes: u32, flags: Flags) -> bool {
        if flags.fence_before {
            return false;
        }
        let skip = (self.completed - self.first) as usize;
        let fenced = self.fences.back().copied().unwrap_or(0);
        self.operations.iter().enumerate().skip(skip).any(|(index, (earlier, _))| {
            let number = self.first + index as u64;
            earlier.action == Action::Write
                && number >= fenced
                && !(earlier.flags.strict && flags.strict)
                && offset < earlier.offset + earlier.length_bytes
                && earlier.offset < offset + length_bytes
        })
    }

    /// An operation was posted.
    pub(crate) fn post(&mut self, posted: Posted) -> u64 {
        let number = self.next_number();
        if posted.flags.fence_after {
            self.fences.push_back(number + 1);
        }
        let kind = match posted.action {
            Action::Send | Action::SendInvalidate => Some(CompletionKind::Receive),
            Action::Write if posted.immediate.is_some() && self.consumes => {
                Some(CompletionKind::Receive)
            }
            Action::Write if posted.immediate.is_some() => Some(CompletionKind::Notification),
            _ => None,
        };
        if let Some(kind) = kind {
            let content = posted.action.is_message().then(|| posted.content.clone());
            self.deliveries.push_back(ExpectedDelivery {
                number,
                kind,
                length_bytes: posted.length_bytes,
                immediate: posted.immediate,
                invalidated: posted.invalidates,
                content,
            });
        }
        self.operations.push_back((posted, Vec::new()));
        number
    }

    /// The requester took a completion of one of its operations. Returns those that are finished by
    /// it, in order: itself, and before it those that do not report their success.
    ///
    /// `target` is absent when the target's memory is gone.
    pub(crate) fn complete(
        &mut self,
        found: Completion,
        target: Option<&dyn TargetMemory>,
    ) -> Result<Vec<Finished>, Violation> {
        let number = found.context;
        let turn = self.turn();
        let in_order = number >= self.completed
            && number < self.next_number()
            && turn.is_none_or(|turn| number <= turn);
        if !in_order {
            return Err(Violation::CompletionOrder { found, expected: turn });
        }
        let (posted, _) = &self.operations[(number - self.first) as usize];
        let expected = kind_of(posted.action);
        let facts_hold = found.kind == expected
            && (!found.success || found.length_bytes == posted.length_bytes)
            && (!found.success || posted.flags.signalled);
        if !facts_hold {
            let length_bytes = posted.length_bytes;
            return Err(Violation::CompletionFacts { found, expected, length_bytes });
        }
        if found.success {
            self.raise(number + 1, target)?;
        }
        let from = (self.completed - self.first) as usize;
        let to = (number + 1 - self.first) as usize;
        let finished = self
            .operations
            .range(from..to)
            .enumerate()
            .map(|(index, (posted, base))| Finished {
                number: self.completed + index as u64,
                posted: posted.clone(),
                base: base.clone(),
            })
            .collect();
        self.completed = number + 1;
        Ok(finished)
    }

    /// Checks what a read or atomic brought, before [`DirectionModel::forget_completed`].
    pub(crate) fn check_result(&self, finished: &Finished, bytes: &[u8]) -> Result<(), Violation> {
        let number = finished.number;
        match finished.posted.action {
            Action::Read => self.check_read(finished, bytes),
            Action::FetchAdd { .. } | Action::CompareSwap { .. } => {
                let found = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                match finished.posted.returns {
                    Some(expected) if expected != found => {
                        Err(Violation::AtomicResult { number, found, expected })
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Drops what is not needed any more.
    pub(crate) fn forget_completed(&mut self) {
        while self.first < self.completed.min(self.bound) {
            self.operations.pop_front();
            self.first += 1;
        }
        while self.fences.front().is_some_and(|&fence| fence <= self.first) {
            self.fences.pop_front();
        }
    }

    /// The peer's application took a message or notification; `content` is what a receive holds.
    pub(crate) fn deliver(
        &mut self,
        found: Completion,
        content: &[u8],
        target: Option<&dyn TargetMemory>,
    ) -> Result<(), Violation> {
        let Some(next) = self.deliveries.pop_front() else {
            return Err(Violation::Delivery { found, expected: "nothing was sent".to_owned() });
        };
        let same = found.kind == next.kind
            && found.length_bytes == next.length_bytes
            && found.immediate == next.immediate
            && found.invalidated == next.invalidated
            && next.content.as_ref().is_none_or(|expected| content == expected);
        if !same {
            let is_content = next.content.as_ref().is_none_or(|expected| content == expected);
            let altered = if is_content { "same content" } else { "other content" };
            let expected = format!(
                "operation {} ({:?}, {} bytes, immediate {:?}), {altered}",
                next.number, next.kind, next.length_bytes, next.immediate
            );
            return Err(Violation::Delivery { found, expected });
        }
        self.reported = next.number + 1;
        self.raise(next.number + 1, target)
    }

    /// Looks for operations that became visible and checks what their order implies. Cheap.
    pub(crate) fn probe(&mut self, target: &dyn TargetMemory) -> Result<(), Violation> {
        let mut needed = self.bound;
        for number in self.bound..self.next_number() {
            let (posted, _) = &self.operations[(number - self.first) as usize];
            if posted.action != Action::Write || posted.length_bytes == 0 {
                continue;
            }
            for position in [posted.offset, posted.offset + posted.length_bytes - 1] {
                let requirement = self.requirement(number, position);
                if requirement <= needed {
                    continue;
                }
                let mut byte = [0];
                target.read(position, &mut byte);
                if byte[0] != self.expected[position as usize]
                    && let Some(required) = self.explain(position, byte[0])
                {
                    needed = needed.max(required);
                }
            }
        }
        self.raise(needed, Some(target))
    }

    /// Compares all of the target with the model.
    pub(crate) fn check_all(&mut self, target: &dyn TargetMemory) -> Result<(), Violation> {
        loop {
            let needed = self.check_range(0, self.expected.len() as u32, target)?;
            if needed <= self.bound {
                return Ok(());
            }
            self.raise(needed, Some(target))?;
        }
    }

    /// The operation whose completion must come next among those that report their success.
    fn turn(&self) -> Option<u64> {
        (self.completed..self.next_number())
            .find(|number| self.operations[(number - self.first) as usize].0.flags.signalled)
    }

    /// All operations before `bound` are now known to have been performed.
    fn raise(&mut self, bound: u64, target: Option<&dyn TargetMemory>) -> Result<(), Violation> {
        let mut needed = bound;
        while self.bound < needed {
            let raised = self.bound..needed;
            for number in raised.clone() {
                self.perform(number);
            }
            self.bound = raised.end;
            let Some(target) = target else { return Ok(()) };
            for number in raised {
                let (posted, _) = &self.operations[(number - self.first) as usize];
                if posted.action == Action::Write {
                    let proven = self.check_range(posted.offset, posted.length_bytes, target)?;
                    needed = needed.max(proven);
                }
            }
        }
        Ok(())
    }

    /// Applies operation `number` to the model.
    fn perform(&mut self, number: u64) {
        let (posted, base) = &mut self.operations[(number - self.first) as usize];
        let range = posted.offset as usize..(posted.offset + posted.length_bytes) as usize;
        match posted.action {
            Action::Write => self.expected[range].copy_from_slice(&posted.content),
            Action::Read => base.extend_from_slice(&self.expected[range]),
            _ => {}
        }
    }

    /// Compares a range with the model; returns the bound that what is visible there proves.
    fn check_range(
        &self,
        offset: u32,
        length_bytes: u32,
        target: &dyn TargetMemory,
    ) -> Result<u64, Violation> {
        let mut piece = [0; PIECE_BYTES];
        let mut needed = self.bound;
        let end = offset + length_bytes;
        let mut start = offset;
        while start < end {
            let length = (end - start).min(PIECE_BYTES as u32);
            let found = &mut piece[..length as usize];
            target.read(start, found);
            let expected = &self.expected[start as usize..(start + length) as usize];
            if found != expected {
                for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    if found == expected {
                        continue;
                    }
                    let offset = start + index as u32;
                    let required = self.explain(offset, found).ok_or(Violation::Memory {
                        offset,
                        found,
                        expected,
                        bound: self.bound,
                    })?;
                    needed = needed.max(required);
                }
            }
            start += length;
        }
        Ok(needed)
    }

    /// Which bound a byte proves that differs from what the operations before the bound leave: the
    /// least one over all operations that can have written it. Absent if none can.
    fn explain(&self, position: u32, byte: u8) -> Option<u64> {
        let writers = (self.bound..self.next_number()).filter(|number| {
            let (posted, _) = &self.operations[(number - self.first) as usize];
            posted.action == Action::Write && writes(posted, position, byte)
        });
        writers.map(|number| self.requirement(number, position)).min()
    }

    /// The bound that holds when byte `position` of write `number` is visible.
    fn requirement(&self, number: u64, position: u32) -> u64 {
        let (posted, _) = &self.operations[(number - self.first) as usize];
        let is_tail = position + 1 == posted.offset + posted.length_bytes
            || posted.length_bytes <= SINGLE_FRAME_BYTES;
        if posted.flags.strict && is_tail {
            return number + 1;
        }
        self.fence_requirement(number)
    }

    /// The bound that fences imply when anything of operation `number` is visible.
    fn fence_requirement(&self, number: u64) -> u64 {
        let (posted, _) = &self.operations[(number - self.first) as usize];
        if posted.flags.fence_before {
            return number;
        }
        self.fences.iter().copied().rfind(|&fence| fence <= number).unwrap_or(0)
    }

    fn check_read(&self, finished: &Finished, bytes: &[u8]) -> Result<(), Violation> {
        let number = finished.number;
        for (index, (&found, &expected)) in bytes.iter().zip(&finished.base).enumerate() {
            let offset = finished.posted.offset + index as u32;
            if found == expected {
                continue;
            }
            // A later operation may be early, unless a fence holds it back behind this read.
            let explained = (number + 1..self.next_number()).any(|later| {
                let (posted, _) = &self.operations[(later - self.first) as usize];
                posted.action == Action::Write
                    && writes(posted, offset, found)
                    && self.fence_requirement(later) <= number
            });
            if !explained {
                return Err(Violation::ReadResult { number, offset, found, expected });
            }
        }
        Ok(())
    }
}

/// Whether a write puts `byte` at `position`.
fn writes(posted: &Posted, position: u32, byte: u8) -> bool {
    position
        .checked_sub(posted.offset)
        .and_then(|index| posted.content.get(index as usize))
        .is_some_and(|&written| written == byte)
}

/// What the completion of an operation says it was.
pub(crate) const fn kind_of(action: Action) -> CompletionKind {
    match action {
        Action::Write => CompletionKind::Write,
        Action::Read => CompletionKind::Read,
        Action::FetchAdd { .. } | Action::CompareSwap { .. } => CompletionKind::Atomic,
        Action::Send | Action::SendInvalidate => CompletionKind::Send,
        Action::Bind { .. } | Action::Invalidate => CompletionKind::Window,
    }
}

/// Writes up to this size fit one frame on every simulated link (at least 1232 bytes), whatever
/// acknowledgement is with them, so that all of them is tail.
const SINGLE_FRAME_BYTES: u32 = 128;

/// Memory is compared in pieces of this size.
const PIECE_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
