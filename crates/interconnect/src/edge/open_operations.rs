//! Checks the guarantees of operations during a simulation.
//!
//! Every byte of every operation has its own address, which is the same at source and target. The
//! address consists of the stream (from one host to another), the operation and the offset. The
//! address of placed bytes therefore identifies their operation. The bytes contain a stamp that
//! identifies their source.

use std::collections::VecDeque;

use mem::{GhostPlacement, STAMP_BYTES};

/// Required order between the operations of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Order {
    /// Whether fences order the operations. The target then performs each operation only after all
    /// earlier operations.
    pub is_fenced: bool,
    /// Whether the operations are strict. The target may then place most bytes of an operation
    /// before it has placed earlier operations. It places the last bytes of the operation after all
    /// earlier operations.
    pub is_strict: bool,
}

/// The incomplete operations of all streams, and the violations found so far.
#[derive(Debug, Default)]
pub(super) struct OpenOperations {
    streams: Vec<Stream>,
    /// Empty lists of operations, kept to reuse their memory.
    spare: Vec<VecDeque<Operation>>,
    order: Order,
    /// The first violations found, at most [`VIOLATIONS_MAX`].
    violations: Vec<String>,
    /// Number of bytes placed more than once before their operation was complete.
    placed_again: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// Target host.
    destination: u32,
    /// Number of the first operation that is not complete at its source.
    first: u64,
    /// Number of the first operation that is not placed completely.
    placed_below: u64,
    operations: VecDeque<Operation>,
}

/// An operation that is not complete at its source.
#[derive(Debug)]
struct Operation {
    length: u32,
    /// Number of bytes placed without a gap from the start of the operation.
    prefix: u32,
    /// Message that ends with this operation; the target is notified of it once. [`NO_MESSAGE`] if
    /// no message ends here, or if the target was notified already.
    message: u32,
    /// Placed ranges that start after `prefix`, ascending and disjoint.
    beyond: Vec<(u32, u32)>,
}

/// Maximum number of incomplete operations in a stream.
pub(in super::super) const WINDOW_MAX: u32 = 1 << (OPERATION_BITS - 1);

/// Maximum length of an operation, in bytes.
pub(in super::super) const OPERATION_BYTES_MAX: u32 = 1 << OFFSET_BITS;

/// Address of the first byte of the first operation of stream 0.
pub(super) const ADDRESS_START: u64 = 1 << (OPERATION_BITS + OFFSET_BITS);

/// Number of addresses that all streams use together.
pub(super) const ADDRESSES: u64 = 1 << 62;

const OFFSET_BITS: u32 = 27;
const OPERATION_BITS: u32 = 13;
const VIOLATIONS_MAX: usize = 16;
const NO_MESSAGE: u32 = u32::MAX;

impl OpenOperations {
    pub(super) fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds a stream to the host `destination`. Returns its number; streams count from 0.
    pub(super) fn add_stream(&mut self, destination: u32) -> u32 {
        self.streams.push(Stream { destination, ..Stream::default() });
        self.streams.len() as u32 - 1
    }

    /// Returns the address of the operation that will be posted next. The address is equal at both
    /// ends.
    pub(super) fn next_address(&self, stream: u32) -> u64 {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let number = (first + operations.len() as u64) % (1 << OPERATION_BITS);
        let place = u64::from(stream) << OPERATION_BITS | number;
        ADDRESS_START + (place << OFFSET_BITS)
    }

    /// Records a posted operation. If the operation is the last of a message, the target will be
    /// notified of `message`.
    pub(super) fn on_posted(&mut self, stream: u32, length: u32, message: Option<u32>) {
        let message = message.unwrap_or(NO_MESSAGE);
        let operation = Operation { length, prefix: 0, message, beyond: Vec::new() };
        let operations = &mut self.streams[stream as usize].operations;
        if operations.capacity() == 0 {
            *operations = self.spare.pop().unwrap_or_default();
        }
        operations.push_back(operation);
    }

    /// Checks bytes that a host has placed.
    pub(super) fn on_placed(&mut self, host: u32, placement: &GhostPlacement) {
        if let Err(what) = self.place(host, placement) {
            let GhostPlacement { address, len, .. } = placement;
            self.violate(format!("host {host}, {len} bytes at {address:#x}: {what}"));
        }
    }

    fn place(&mut self, host: u32, placement: &GhostPlacement) -> Result<(), String> {
        let GhostPlacement { address, len, stamp } = *placement;
        let place = (address - ADDRESS_START) >> OFFSET_BITS;
        let start = address as u32 % OPERATION_BYTES_MAX;
        let end = start + len;
        let index = place >> OPERATION_BITS;
        let stream =
            self.streams.get_mut(index as usize).ok_or("no stream has memory at this address")?;
        if stream.destination != host {
            return Err(format!("the bytes belong to host {}", stream.destination));
        }
        let mask = (1 << OPERATION_BITS) - 1;
        let ahead = (place & mask).wrapping_sub(stream.first) & mask;
        let number = stream.first + ahead;
        let is_first_open = number <= stream.placed_below;
        let operation = stream
            .operations
            .get_mut(ahead as usize)
            .ok_or("the operation of the bytes is complete, or was never posted")?;
        let whole = if len >= STAMP_BYTES as u32 { u64::MAX } else { (1 << (8 * len)) - 1 };
        if stamp != 0 && stamp != address & whole {
            return Err(format!("the bytes come from {stamp:#x}"));
        }
        if end > operation.length {
            return Err(format!("the operation of the bytes has {} bytes", operation.length));
        }
        if operation.prefix == operation.length {
            return Err("the whole operation was already placed".to_owned());
        }
        let must_wait = self.order.is_fenced || self.order.is_strict && end == operation.length;
        if must_wait && !is_first_open {
            return Err("an earlier operation is not placed yet".to_owned());
        }
        self.placed_again += u64::from(operation.add(start, end));
        while stream
            .operations
            .get((stream.placed_below - stream.first) as usize)
            .is_some_and(|operation| operation.prefix == operation.length)
        {
            stream.placed_below += 1;
        }
        Ok(())
    }

    /// Returns the number of the operation that will be posted next.
    pub(super) fn next_number(&self, stream: u32) -> u64 {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        first + operations.len() as u64
    }

    /// Returns the numbers and lengths of operations that the next notification of the target
    /// covers. Omits operations if their placement is already recorded.
    pub(super) fn due(&self, stream: u32) -> impl Iterator<Item = (u64, u32)> + use<> {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let last = operations.iter().position(|operation| operation.message != NO_MESSAGE);
        let numbered = (*first..).zip(operations.iter().take(last.map_or(0, |last| last + 1)));
        let open = numbered.filter(|(_, operation)| operation.prefix < operation.length);
        let due: Vec<_> = open.map(|(number, operation)| (number, operation.length)).collect();
        due.into_iter()
    }

    /// Returns the oldest operation that is not complete at its source: its number, its length, and
    /// whether its placement is recorded.
    pub(super) fn oldest(&self, stream: u32) -> Option<(u64, u32, bool)> {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let oldest = operations.front()?;
        Some((*first, oldest.length, oldest.prefix == oldest.length))
    }

    /// Records that the target has all bytes of an incomplete operation.
    pub(super) fn on_found(&mut self, stream: u32, number: u64) {
        let open = &mut self.streams[stream as usize];
        let ahead = number.wrapping_sub(open.first) as usize;
        if let Some(operation) = open.operations.get_mut(ahead) {
            operation.prefix = operation.length;
        }
    }

    /// Checks a notification that the target of a stream gets.
    pub(super) fn on_notified(&mut self, stream: u32, message: u32) {
        let open = &mut self.streams[stream as usize];
        let outstanding =
            open.operations.iter_mut().find(|operation| operation.message != NO_MESSAGE);
        let what = match outstanding {
            Some(operation) if operation.message != message => {
                format!("message {message} arrived before message {}", operation.message)
            }
            Some(operation) if operation.prefix < operation.length => {
                format!("message {message} was reported before all of it was placed")
            }
            Some(operation) => {
                operation.message = NO_MESSAGE;
                return;
            }
            None => format!("message {message} arrived a second time"),
        };
        self.violate(format!("stream {stream}: {what}"));
    }

    /// Checks a completion at the source. The completed operation must be the oldest operation of
    /// the stream.
    pub(super) fn on_completed(&mut self, stream: u32, succeeded: bool) {
        let open = &mut self.streams[stream as usize];
        let number = open.first;
        let what = match open.operations.pop_front() {
            None => "completed, but was never posted",
            Some(_) if !succeeded => "failed",
            Some(operation) if operation.prefix < operation.length => {
                "is complete at its source, but not placed"
            }
            Some(operation) if operation.message != NO_MESSAGE => {
                "is complete at its source, but its target got no notification"
            }
            Some(_) => {
                open.first += 1;
                self.spare_memory(stream);
                return;
            }
        };
        open.first += 1;
        open.placed_below = open.placed_below.max(open.first);
        self.violate(format!("stream {stream}: operation {number} {what}"));
    }

    /// If a stream's list of operations is empty, keeps the memory of this list for other streams.
    fn spare_memory(&mut self, stream: u32) {
        let operations = &mut self.streams[stream as usize].operations;
        if operations.is_empty() {
            self.spare.push(std::mem::take(operations));
        }
    }

    /// Records a violation.
    #[cold]
    pub(super) fn violate(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// Returns the violations found so far.
    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Returns the number of bytes placed more than once before their operation was complete.
    pub(super) const fn placed_again(&self) -> u64 {
        self.placed_again
    }
}

impl Operation {
    /// Adds a range of placed bytes. Returns how many bytes of the range were placed before.
    fn add(&mut self, start: u32, end: u32) -> u32 {
        if start == self.prefix && self.beyond.is_empty() {
            self.prefix = end;
            return 0;
        }
        let mut again = end.min(self.prefix).saturating_sub(start);
        let (mut low, mut high) = (start.max(self.prefix), end);
        self.beyond.retain(|&(from, to)| {
            let is_apart = to < low || from > high;
            if !is_apart {
                again += to.min(end).saturating_sub(from.max(start));
                low = low.min(from);
                high = high.max(to);
            }
            is_apart
        });
        if low < high {
            let at = self.beyond.partition_point(|&(from, _)| from < low);
            self.beyond.insert(at, (low, high));
        }
        if let Some(&(from, to)) = self.beyond.first()
            && from <= self.prefix
        {
            self.prefix = to;
            self.beyond.remove(0);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(address: u64, len: u32) -> GhostPlacement {
        GhostPlacement { address, len, stamp: address }
    }

    fn open(order: Order) -> (OpenOperations, u64) {
        let mut open_operations = OpenOperations::new(order);
        open_operations.add_stream(3);
        let stream = open_operations.add_stream(7);
        let address = open_operations.next_address(stream);
        open_operations.on_posted(stream, 3_000, None);
        open_operations.on_posted(stream, 100, Some(5));
        (open_operations, address)
    }

    #[test]
    fn operations_placed_once_in_fragments_pass_the_check() {
        let (mut open_operations, address) = open(Order::default());
        let second = address + u64::from(OPERATION_BYTES_MAX);
        open_operations.on_placed(7, &placement(second, 100));
        for (start, len) in [(2_000, 1_000), (0, 500), (400, 700), (1_000, 1_000)] {
            open_operations.on_placed(7, &placement(address + start, len));
        }
        open_operations.on_notified(1, 5);
        open_operations.on_completed(1, true);
        open_operations.on_completed(1, true);
        assert_eq!(open_operations.violations(), [""; 0]);
        assert_eq!(open_operations.placed_again(), 200);
    }

    #[test]
    fn broken_promises_are_found() {
        let found = |order, act: &dyn Fn(&mut OpenOperations, u64)| {
            let (mut open_operations, address) = open(order);
            act(&mut open_operations, address);
            open_operations.violations().join("; ")
        };
        let relaxed = Order::default();
        let fenced = Order { is_fenced: true, is_strict: false };
        let second = u64::from(OPERATION_BYTES_MAX);
        let elsewhere =
            found(relaxed, &|open_operations, at| open_operations.on_placed(8, &placement(at, 9)));
        assert!(elsewhere.contains("belong to host 7"), "{elsewhere}");
        let foreign = found(relaxed, &|open_operations, at| {
            open_operations.on_placed(7, &GhostPlacement { stamp: at + 1, ..placement(at, 9) });
        });
        assert!(foreign.contains("come from"), "{foreign}");
        let early = found(fenced, &|open_operations, at| {
            open_operations.on_placed(7, &placement(at + second, 100));
        });
        assert!(early.contains("earlier operation"), "{early}");
        let late = found(relaxed, &|open_operations, at| {
            open_operations.on_placed(7, &placement(at, 3_000));
            open_operations.on_completed(1, true);
            open_operations.on_placed(7, &placement(at, 100));
        });
        assert!(late.contains("complete"), "{late}");
        let twice = found(relaxed, &|open_operations, at| {
            open_operations.on_placed(7, &placement(at + second, 100));
            open_operations.on_notified(1, 5);
            open_operations.on_notified(1, 5);
        });
        assert!(twice.contains("a second time"), "{twice}");
        let lost = found(relaxed, &|open_operations, _| open_operations.on_completed(1, true));
        assert!(lost.contains("not placed"), "{lost}");
        let refusal = found(relaxed, &|open_operations, _| open_operations.on_notified(1, 5));
        assert!(refusal.contains("before all of it"), "{refusal}");
        let beyond = found(relaxed, &|open_operations, at| {
            open_operations.on_placed(7, &placement(at + 2_992, 9));
        });
        assert!(beyond.contains("3000 bytes"), "{beyond}");
    }
}
