//! The oracle: a sequential model against which the engine's guarantees are checked.
//!
//! A [`DirectionModel`] follows the operations that one side of a connection posts to the other
//! side. It knows every posted operation and a *bound*, the number of an operation. The model knows
//! for certain that the target has performed all operations with lower numbers. An operation raises
//! the bound in three cases:
//!
//! * It completes.
//! * The peer's application receives it.
//! * One of its effects becomes visible, and this effect may become visible only after earlier
//!   operations.
//!
//! Each byte of the target must be one of two values:
//!
//! * the result of the operations before the bound, in sequence, or
//! * a byte that an operation at or after the bound writes there.
//!
//! If only an ordered operation can have written a byte, the model raises the bound and compares
//! the memory again. The oracle thus checks fences and strict tails from the outside, without
//! access to the engine's state.

use std::collections::VecDeque;

use thiserror::Error;

use crate::host::{Action, Completion, CompletionKind, Flags};

/// A violated guarantee.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// A byte of memory has a value that no allowed order of operations can produce.
    #[error(
        "byte {offset} of the target is {found:#04x}, expected {expected:#04x} \
         with all operations before {bound} performed"
    )]
    Memory {
        /// Offset in the target region.
        offset: u32,
        /// The byte that was found.
        found: u8,
        /// The byte that results from the operations before `bound`.
        expected: u8,
        /// Operations before this number are known to have been performed.
        bound: u64,
    },
    /// A read returned bytes that the target's memory cannot contain when the read is performed.
    #[error("read {number} brought {found:#04x} at offset {offset}, expected {expected:#04x}")]
    ReadResult {
        /// Number of the read.
        number: u64,
        /// Offset in the target region.
        offset: u32,
        /// The byte that the read returned.
        found: u8,
        /// The byte that results from the earlier operations.
        expected: u8,
    },
    /// An atomic returned a value that does not result from the earlier operations.
    #[error("atomic {number} returned {found}, expected {expected}")]
    AtomicResult {
        /// Number of the operation.
        number: u64,
        /// The value returned.
        found: u64,
        /// The value that results from the earlier operations.
        expected: u64,
    },
    /// A completion arrived out of order.
    #[error("completion {found:?} came although it was the turn of operation {expected:?}")]
    CompletionOrder {
        /// The completion that arrived.
        found: Completion,
        /// Number of the operation that must complete next; `None` if there is none.
        expected: Option<u64>,
    },
    /// A completion in order has a wrong kind or length.
    #[error("completion {found:?} of an operation {expected:?} of {length_bytes} bytes")]
    CompletionFacts {
        /// The completion that arrived.
        found: Completion,
        /// The kind of the posted operation.
        expected: CompletionKind,
        /// Length of the posted operation, in bytes.
        length_bytes: u32,
    },
    /// A message or notification arrived that was never sent, that is out of order, or that is
    /// changed.
    #[error("delivery {found:?} is not the next one: {expected}")]
    Delivery {
        /// The completion that arrived.
        found: Completion,
        /// Description of the message or notification that had to arrive next.
        expected: String,
    },
    /// An operation succeeded, although its key or memory had become invalid earlier.
    #[error(
        "operation {number} succeeded although the memory or permission that it needs was already gone"
    )]
    NotDenied {
        /// Number of the operation.
        number: u64,
    },
    /// A host sent or received a datagram that it must not send or receive.
    #[error("datagram at host {host}: {what}")]
    Datagram {
        /// Index of the host.
        host: usize,
        /// Description of the violation.
        what: String,
    },
    /// A connection ended, and some of its operations never completed.
    #[error("connection of pair {pair} ended and {outstanding} operations never completed")]
    NeverCompleted {
        /// Index of the pair of hosts.
        pair: usize,
        /// Number of operations that never completed.
        outstanding: usize,
    },
    /// A connection ended, although no event happened that allows the connection to end.
    #[error("connection of pair {pair} ended by {cause} although nothing ended it")]
    ConnectionLost {
        /// Index of the pair of hosts.
        pair: usize,
        /// The cause that the engine reported.
        cause: String,
    },
    /// A connection ended with a cause that did not occur.
    #[error("connection of pair {pair} ended on side {side} by {cause}, which nothing caused")]
    WrongCause {
        /// Index of the pair of hosts.
        pair: usize,
        /// The side of the pair, 0 or 1.
        side: usize,
        /// The cause that the engine reported.
        cause: String,
    },
    /// An operation failed with a reason that does not match the cause for which its connection
    /// ended.
    #[error("operation {number} failed as {fault:?}, its connection as {cause:?}")]
    WrongFault {
        /// Number of the operation.
        number: u64,
        /// The reason that the engine reported for the operation.
        fault: crate::host::Fault,
        /// The cause that the engine reported for the connection; `None` if it has not ended.
        cause: Option<String>,
    },
    /// A resource is in use, although everything was closed.
    #[error("host {host} holds {used} {name} although everything is closed")]
    Held {
        /// Index of the host.
        host: usize,
        /// Name of the resource.
        name: &'static str,
        /// The amount in use.
        used: u64,
    },
    /// Memory changed, although no peer had the right to write to the memory any more.
    #[error("region {region} of host {host} changed after its connection had ended")]
    FrozenMemory {
        /// Index of the host.
        host: usize,
        /// Number of the region.
        region: u32,
    },
    /// Guard bytes around a region changed.
    #[error("guard bytes of host {host} changed")]
    Guards {
        /// Index of the host.
        host: usize,
    },
    /// The values of a shared counter are inconsistent.
    #[error("counter {counter} of host {host}: {what}")]
    Counter {
        /// Index of the host.
        host: usize,
        /// Index of the counter.
        counter: usize,
        /// Description of the inconsistency.
        what: String,
    },
    /// A bounded resource exceeded its limit.
    #[error("{name} of host {host} is {used}, limit {limit}")]
    Occupancy {
        /// Index of the host.
        host: usize,
        /// Name of the resource.
        name: &'static str,
        /// The amount in use.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// An engine refused an operation that it must accept.
    #[error("host {host} refused: {what}")]
    Refused {
        /// Index of the host.
        host: usize,
        /// The refused operation and the reason.
        what: String,
    },
    /// Some work did not finish, although all faults were removed.
    #[error("no convergence after healing: {what}")]
    NoConvergence {
        /// Description of the unfinished work.
        what: String,
    },
    /// A pair of hosts made no progress because of a fault of other hosts.
    #[error("pair {pair} side {side} did nothing for {since_ns} ns while others fail: {what}")]
    Starved {
        /// Index of the pair of hosts.
        pair: usize,
        /// The side of the pair, 0 or 1.
        side: usize,
        /// Time without progress, in nanoseconds.
        since_ns: u64,
        /// What the side waits for.
        what: String,
    },
    /// A host sent too many bytes to an address that it had not validated: more than three times
    /// the bytes that it had received from the address.
    #[error("host {host} sent {sent} bytes to {address}, from where {received} came")]
    Amplified {
        /// Index of the host.
        host: usize,
        /// The unvalidated address.
        address: wire_edge::PeerAddr,
        /// Bytes sent to the address.
        sent: u64,
        /// Bytes received from the address.
        received: u64,
    },
    /// A pair sends only small frames, although its links carry larger ones.
    #[error("pair {pair} sends frames of {bytes} bytes at most where every path carries more")]
    FrameBytes {
        /// Index of the pair of hosts.
        pair: usize,
        /// Largest frame that the pair sends, in bytes.
        bytes: u16,
    },
    /// Hosts continually cause each other to act at the same virtual time.
    #[error("host {host} never becomes quiet at {time_ns} ns")]
    Livelock {
        /// Index of the host that was busy last.
        host: usize,
        /// The time at which the clock stopped, in nanoseconds.
        time_ns: u64,
    },
    /// An engine panicked.
    #[error("panic: {what}")]
    Panicked {
        /// The panic message.
        what: String,
    },
    /// Two runs with the same seed differ.
    #[error("two runs differ: trace hashes {first:016x} and {second:016x}")]
    NotDeterministic {
        /// Hash of the first run.
        first: u64,
        /// Hash of the second run.
        second: u64,
    },
}

/// Read access to the target's memory.
pub(crate) trait TargetMemory {
    /// Reads `into.len()` bytes, starting at `offset`.
    fn read(&self, offset: u32, into: &mut [u8]);
}

/// A posted operation.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) action: Action,
    pub(crate) flags: Flags,
    /// Offset in the target region; for an atomic, offset in the memory of the 8-byte cells that
    /// atomics change. Sends do not use the offset.
    pub(crate) offset: u32,
    pub(crate) length_bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// The peer's key that the operation invalidates.
    pub(crate) invalidates: Option<u32>,
    /// The bytes that a write or send carries, or the words of a patch; empty for other operations.
    pub(crate) content: Vec<u8>,
    /// The words that a patch writes, in ascending order, counted from `offset`.
    pub(crate) words: Vec<u32>,
    /// Offset in local memory where the result of a read or atomic is stored.
    pub(crate) local_offset: u32,
    /// The value that an atomic must return; `None` if other directions use the cell too.
    pub(crate) returns: Option<u64>,
}

impl Posted {
    /// Returns each range of the target that the operation writes, and its bytes. Adjacent words of
    /// a patch are separate ranges.
    fn ranges(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let whole = (self.action == Action::Write).then_some((self.offset, &self.content[..]));
        let words = self.words.iter().zip(self.content.chunks_exact(WORD_BYTES as usize));
        whole.into_iter().chain(words.map(|(word, bytes)| (self.offset + word * WORD_BYTES, bytes)))
    }

    /// Returns the first byte of the target that the operation writes, and the byte after the last;
    /// `None` if it writes nothing.
    fn span(&self) -> Option<(u32, u32)> {
        match (self.action, self.words.first().zip(self.words.last())) {
            (Action::Write, _) if self.length_bytes > 0 => {
                Some((self.offset, self.offset + self.length_bytes))
            }
            (_, Some((first, last))) => {
                Some((self.offset + first * WORD_BYTES, self.offset + (last + 1) * WORD_BYTES))
            }
            _ => None,
        }
    }

    /// Returns whether the operation writes a byte of `[low, high)`.
    fn overlaps(&self, low: u32, high: u32) -> bool {
        let Some((start, end)) = self.span().filter(|&(start, end)| start < high && low < end)
        else {
            return false;
        };
        if self.words.is_empty() {
            return start < end;
        }
        let from = low.saturating_sub(self.offset) / WORD_BYTES;
        let next = self.words.partition_point(|&word| word < from);
        self.words.get(next).is_some_and(|word| self.offset + word * WORD_BYTES < high)
    }

    /// Returns whether the operation stores `byte` at `position` of the target.
    fn stores(&self, position: u32, byte: u8) -> bool {
        let Some(index) = position.checked_sub(self.offset) else { return false };
        let index = match self.action {
            Action::Write => Some(index as usize),
            Action::Patch => {
                let found = self.words.binary_search(&(index / WORD_BYTES)).ok();
                found.map(|word| word * WORD_BYTES as usize + (index % WORD_BYTES) as usize)
            }
            _ => None,
        };
        index.and_then(|index| self.content.get(index)).is_some_and(|&written| written == byte)
    }
}

/// A finished operation, with data against which its result is checked.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) number: u64,
    pub(crate) posted: Posted,
    /// For a read, the target's bytes after all earlier operations.
    base: Vec<u8>,
}

/// The model of one direction of one connection.
#[derive(Debug)]
pub(crate) struct DirectionModel {
    /// Required content of the target's memory after all operations with numbers below `bound`.
    expected: Vec<u8>,
    /// The operations that have not completed, and those with a number of at least `bound`. The
    /// number of the first operation in the queue is `first`.
    operations: VecDeque<(Posted, Vec<u8>)>,
    first: u64,
    /// All operations with lower numbers have completed at the requester.
    completed: u64,
    bound: u64,
    /// For each operation with `fence_after`, the number of the next operation.
    fences: VecDeque<u64>,
    deliveries: VecDeque<ExpectedDelivery>,
    /// The peer's application has received completions for all messages and notifications with
    /// lower numbers, which proves that these were delivered.
    reported: u64,
    /// Whether a write with an immediate consumes a receive.
    consumes: bool,
}

#[derive(Debug)]
struct ExpectedDelivery {
    number: u64,
    kind: CompletionKind,
    length_bytes: u32,
    immediate: Option<u32>,
    invalidated: Option<u32>,
    /// Bytes that the receive must contain; `None` if the operation stores no bytes in a receive.
    content: Option<Vec<u8>>,
}

impl DirectionModel {
    /// Creates a direction whose target has `target_bytes` zero bytes.
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

    /// Makes each later write with an immediate consume a receive, as between queue pairs.
    pub(crate) const fn consume_receives(&mut self) {
        self.consumes = true;
    }

    /// Returns whether [`DirectionModel::consume_receives`] was called.
    pub(crate) const fn is_of_queue_pairs(&self) -> bool {
        self.consumes
    }

    /// Returns whether an operation must succeed even if the peer ends the connection. The
    /// operation must succeed if both conditions hold:
    ///
    /// * The peer's application has received the operation.
    /// * Neither this operation nor an earlier outstanding operation waits for an answer with data.
    pub(crate) fn is_surely_delivered(&self, number: u64) -> bool {
        let is_question = |(posted, _): &(Posted, Vec<u8>)| posted.action.is_question();
        let from = (self.completed.max(self.first) - self.first) as usize;
        let count = (number + 1).saturating_sub(self.completed.max(self.first)) as usize;
        number < self.reported && !self.operations.iter().skip(from).take(count).any(is_question)
    }

    /// Returns the number that the next posted operation gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.operations.len() as u64
    }

    /// Returns the number of operations that were posted and have not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        self.next_number() - self.completed
    }

    /// Returns how many outstanding operations produce a completion even if they succeed.
    pub(crate) fn outstanding_signalled(&self) -> usize {
        let skip = (self.completed - self.first) as usize;
        self.operations.iter().skip(skip).filter(|(posted, _)| posted.flags.signalled).count()
    }

    /// Returns the numbers of the outstanding operations that use a key of the peer.
    pub(crate) fn outstanding_under_key(&self) -> Vec<u64> {
        let from = self.completed.max(self.first);
        let skip = (from - self.first) as usize;
        let numbered = (from..).zip(self.operations.iter().skip(skip));
        let needed = numbered.filter(|(_, (posted, _))| posted.action.is_under_key());
        needed.map(|(number, _)| number).collect()
    }

    /// Returns the number of messages and notifications that the peer's application has not
    /// received.
    pub(crate) fn undelivered(&self) -> usize {
        self.deliveries.len()
    }

    /// Fills the target with zero bytes. No operation may be outstanding.
    pub(crate) fn retarget(&mut self) {
        self.expected.fill(0);
    }

    /// Returns whether a write of these ranges with these flags can overlap an outstanding write or
    /// patch, and no rule orders the two. The result of two such operations is undefined. A range
    /// is a first byte and the byte after the last.
    pub(crate) fn conflicts(&self, ranges: &[(u32, u32)], flags: Flags) -> bool {
        if flags.fence_before {
            return false;
        }
        let skip = (self.completed - self.first) as usize;
        let fenced = self.fences.back().copied().unwrap_or(0);
        self.operations.iter().enumerate().skip(skip).any(|(index, (earlier, _))| {
            let number = self.first + index as u64;
            number >= fenced
                && !(earlier.flags.strict && flags.strict)
                && ranges.iter().any(|&(low, high)| earlier.overlaps(low, high))
        })
    }

    /// Adds a posted operation and returns its number.
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
            Action::Write | Action::Patch if posted.immediate.is_some() => {
                Some(CompletionKind::Notification)
            }
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

    /// Checks a completion that the requester polled. Returns the operations that the completion
    /// finishes, in order. These are earlier operations that are not signalled, and then the
    /// operation that the completion reports.
    ///
    /// `target` is `None` if the target's memory no longer exists.
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

    /// Checks the bytes that a read or atomic returned. The caller must call this before
    /// [`DirectionModel::forget_completed`].
    pub(crate) fn check_result(&self, finished: &Finished, bytes: &[u8]) -> Result<(), Violation> {
        let number = finished.number;
        match finished.posted.action {
            Action::Read => self.check_read(finished, bytes),
            action if action.is_atomic() => {
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

    /// Removes operations that have completed and that the target is known to have performed.
    pub(crate) fn forget_completed(&mut self) {
        while self.first < self.completed.min(self.bound) {
            self.operations.pop_front();
            self.first += 1;
        }
        while self.fences.front().is_some_and(|&fence| fence <= self.first) {
            self.fences.pop_front();
        }
    }

    /// Checks a message or notification that the peer's application polled. `content` contains the
    /// bytes of the receive.
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

    /// Checks at low cost which operations have become visible. Raises `bound` to match: the target
    /// has performed all operations below this number.
    pub(crate) fn probe(&mut self, target: &dyn TargetMemory) -> Result<(), Violation> {
        let mut needed = self.bound;
        for number in self.bound..self.next_number() {
            let (posted, _) = &self.operations[(number - self.first) as usize];
            let Some((start, end)) = posted.span() else { continue };
            for position in [start, end - 1] {
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

    /// Compares the whole target with the model.
    pub(crate) fn check_all(&mut self, target: &dyn TargetMemory) -> Result<(), Violation> {
        loop {
            let needed = self.check_range(0, self.expected.len() as u32, target)?;
            if needed <= self.bound {
                return Ok(());
            }
            self.raise(needed, Some(target))?;
        }
    }

    /// Returns the number of the next operation that must produce a completion.
    fn turn(&self) -> Option<u64> {
        (self.completed..self.next_number())
            .find(|number| self.operations[(number - self.first) as usize].0.flags.signalled)
    }

    /// Records that the target has performed all operations before `bound`.
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
                if let Some((start, end)) = posted.span() {
                    let proven = self.check_range(start, end - start, target)?;
                    needed = needed.max(proven);
                }
            }
        }
        Ok(())
    }

    /// Applies operation `number` to the model.
    fn perform(&mut self, number: u64) {
        let (posted, base) = &mut self.operations[(number - self.first) as usize];
        if posted.action == Action::Read {
            let range = posted.offset as usize..(posted.offset + posted.length_bytes) as usize;
            base.extend_from_slice(&self.expected[range]);
        }
        for (offset, bytes) in posted.ranges() {
            self.expected[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Compares a range with the model. The found bytes prove that the target has performed all
    /// operations before some number. Returns this number.
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

    /// A found byte proves that the target has performed all operations before some number. Returns
    /// this number. The byte differs from the result of the operations before the current `bound`,
    /// so a later operation has written it. If several operations can have written the byte,
    /// returns the lowest number that one of them proves. Returns `None` if no operation can have
    /// written the byte.
    fn explain(&self, position: u32, byte: u8) -> Option<u64> {
        let writers = (self.bound..self.next_number()).filter(|number| {
            let (posted, _) = &self.operations[(number - self.first) as usize];
            posted.stores(position, byte)
        });
        writers.map(|number| self.requirement(number, position)).min()
    }

    /// Returns the number of an operation. If byte `position` of write `number` is visible, the
    /// target must have performed all operations before the returned operation.
    fn requirement(&self, number: u64, position: u32) -> u64 {
        let (posted, _) = &self.operations[(number - self.first) as usize];
        let is_tail = position + 1 == posted.offset + posted.length_bytes
            || posted.length_bytes <= SINGLE_FRAME_BYTES;
        if posted.flags.strict && is_tail {
            return number + 1;
        }
        self.fence_requirement(number)
    }

    /// Returns the number of an operation. If any effect of operation `number` is visible, fences
    /// require that the target has performed all operations before the returned operation.
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
            // The effect of a later operation can be visible before the read is performed, unless a
            // fence makes the later operation wait for the read.
            let explained = (number + 1..self.next_number()).any(|later| {
                let (posted, _) = &self.operations[(later - self.first) as usize];
                posted.stores(offset, found) && self.fence_requirement(later) <= number
            });
            if !explained {
                return Err(Violation::ReadResult { number, offset, found, expected });
            }
        }
        Ok(())
    }
}

/// Returns the kind that the completion of an operation must have.
pub(crate) const fn kind_of(action: Action) -> CompletionKind {
    match action {
        Action::Write => CompletionKind::Write,
        Action::Read => CompletionKind::Read,
        Action::Patch => CompletionKind::Patch,
        Action::FetchAdd { .. } | Action::CompareSwap { .. } | Action::Swap { .. } => {
            CompletionKind::Atomic
        }
        Action::Send | Action::SendInvalidate => CompletionKind::Send,
        Action::Bind { .. } | Action::Invalidate => CompletionKind::Window,
    }
}

/// Maximum length, in bytes, of a write that certainly consists of one frame. Such a write fits in
/// one frame on every simulated link, together with any acknowledgement, because every link carries
/// frames of at least 1232 bytes.
const SINGLE_FRAME_BYTES: u32 = 128;

/// Size of a word of a patch, in bytes.
pub(crate) const WORD_BYTES: u32 = 4;

/// Size of the pieces in which memory is compared, in bytes.
const PIECE_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
