//! Invariants of operations, checked during a simulation.
//!
//! The bytes of an operation have unique addresses, which are equal at both ends: the stream (from
//! one host to another), the operation and the offset. A placement therefore identifies its
//! operation by its address, and its source by its stamp.

use std::collections::VecDeque;

use mem::{GhostPlacement, STAMP_BYTES};

/// Order between the operations of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Order {
    /// Whether every operation is performed after all earlier ones.
    pub is_fenced: bool,
    /// Whether operations may be placed early except for their last bytes.
    pub is_strict: bool,
}

/// The incomplete operations of all streams, and the violations found.
#[derive(Debug, Default)]
pub(super) struct OpenOperations {
    streams: Vec<Stream>,
    /// Empty lists of streams without operations, kept to reuse their memory.
    spare: Vec<VecDeque<Operation>>,
    order: Order,
    /// The first violations found, at most [`VIOLATIONS_MAX`].
    violations: Vec<String>,
    /// Bytes placed more than once before their operation was complete.
    placed_again: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// Target host.
    destination: u32,
    /// Number of the first operation that is not complete at its source.
    first: u64,
    /// Number of the first operation that is not placed.
    placed_below: u64,
    operations: VecDeque<Operation>,
}

/// An operation that is not complete at its source.
#[derive(Debug)]
struct Operation {
    length: u32,
    /// Length of the contiguous placed bytes from the first one on.
    prefix: u32,
    /// Message that the operation ends and that its target is notified of once; [`NO_MESSAGE`] if
    /// there is none, or after the notification.
    message: u32,
    /// Ranges placed beyond `prefix`, ascending and disjoint.
    beyond: Vec<(u32, u32)>,
}

/// Maximum number of open operations of a stream.
pub(in super::super) const WINDOW_MAX: u32 = 1 << (OPERATION_BITS - 1);

/// Maximum length of an operation, in bytes.
pub(in super::super) const OPERATION_BYTES_MAX: u32 = 1 << OFFSET_BITS;

/// Address of the first byte of the first operation of stream 0.
pub(super) const ADDRESS_START: u64 = 1 << (OPERATION_BITS + OFFSET_BITS);

/// Number of addresses of all streams together.
pub(super) const ADDRESSES: u64 = 1 << 62;

const OFFSET_BITS: u32 = 27;
const OPERATION_BITS: u32 = 13;
const VIOLATIONS_MAX: usize = 16;
const NO_MESSAGE: u32 = u32::MAX;

impl OpenOperations {
    pub(super) fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds a stream to a host. Streams are numbered from 0.
    pub(super) fn add_stream(&mut self, destination: u32) -> u32 {
        self.streams.push(Stream { destination, ..Stream::default() });
        self.streams.len() as u32 - 1
    }

    /// Returns the address of the next operation that will be posted; it is equal at both ends.
    pub(super) fn next_address(&self, stream: u32) -> u64 {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let number = (first + operations.len() as u64) % (1 << OPERATION_BITS);
        let place = u64::from(stream) << OPERATION_BITS | number;
        ADDRESS_START + (place << OFFSET_BITS)
    }

    /// Records a posted operation. `message` is the message that its target will be notified of, if
    /// any.
    pub(super) fn on_posted(&mut self, stream: u32, length: u32, message: Option<u32>) {
        let message = message.unwrap_or(NO_MESSAGE);
        let operation = Operation { length, prefix: 0, message, beyond: Vec::new() };
        let operations = &mut self.streams[stream as usize].operations;
        if operations.capacity() == 0 {
            *operations = self.spare.pop().unwrap_or_default();
        }
        operations.push_back(operation);
    }

    /// Checks bytes that were placed at a host.
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
        let stream = self.streams.get_mut(index as usize).ok_or("no stream is there")?;
        if stream.destination != host {
            return Err(format!("they are for host {}", stream.destination));
        }
        let mask = (1 << OPERATION_BITS) - 1;
        let ahead = (place & mask).wrapping_sub(stream.first) & mask;
        let number = stream.first + ahead;
        let is_first_open = number <= stream.placed_below;
        let operation = stream
            .operations
            .get_mut(ahead as usize)
            .ok_or("their operation is complete, or was never posted")?;
        let whole = if len >= STAMP_BYTES as u32 { u64::MAX } else { (1 << (8 * len)) - 1 };
        if stamp != 0 && stamp != address & whole {
            return Err(format!("they come from {stamp:#x}"));
        }
        if end > operation.length {
            return Err(format!("their operation has {} bytes", operation.length));
        }
        if operation.prefix == operation.length {
            return Err("all of their operation was placed before".to_owned());
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

    /// Returns the number of the next operation that will be posted.
    pub(super) fn next_number(&self, stream: u32) -> u64 {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        first + operations.len() as u64
    }

    /// Returns the operations of a stream whose bytes must be at the target when it is notified of
    /// its next message, and that are not known to be placed: their numbers and lengths.
    pub(super) fn due(&self, stream: u32) -> impl Iterator<Item = (u64, u32)> + use<> {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let last = operations.iter().position(|operation| operation.message != NO_MESSAGE);
        let numbered = (*first..).zip(operations.iter().take(last.map_or(0, |last| last + 1)));
        let open = numbered.filter(|(_, operation)| operation.prefix < operation.length);
        let due: Vec<_> = open.map(|(number, operation)| (number, operation.length)).collect();
        due.into_iter()
    }

    /// Returns the oldest operation of a stream that is not complete at its source: number, length,
    /// and whether it is known to be placed.
    pub(super) fn oldest(&self, stream: u32) -> Option<(u64, u32, bool)> {
        let Stream { first, operations, .. } = &self.streams[stream as usize];
        let oldest = operations.front()?;
        Some((*first, oldest.length, oldest.prefix == oldest.length))
    }

    /// Records that all bytes of an open operation are at the target.
    pub(super) fn on_found(&mut self, stream: u32, number: u64) {
        let open = &mut self.streams[stream as usize];
        let ahead = number.wrapping_sub(open.first) as usize;
        if let Some(operation) = open.operations.get_mut(ahead) {
            operation.prefix = operation.length;
        }
    }

    /// Checks a notification of the target of a stream.
    pub(super) fn on_notified(&mut self, stream: u32, message: u32) {
        let open = &mut self.streams[stream as usize];
        let outstanding =
            open.operations.iter_mut().find(|operation| operation.message != NO_MESSAGE);
        let what = match outstanding {
            Some(operation) if operation.message != message => {
                format!("message {message} came before message {}", operation.message)
            }
            Some(operation) if operation.prefix < operation.length => {
                format!("message {message} was reported before all of it was placed")
            }
            Some(operation) => {
                operation.message = NO_MESSAGE;
                return;
            }
            None => format!("message {message} came once more"),
        };
        self.violate(format!("stream {stream}: {what}"));
    }

    /// Checks the completion of a stream's oldest operation at its source.
    pub(super) fn on_completed(&mut self, stream: u32, succeeded: bool) {
        let open = &mut self.streams[stream as usize];
        let number = open.first;
        let what = match open.operations.pop_front() {
            None => "completed, and was never posted",
            Some(_) if !succeeded => "failed",
            Some(operation) if operation.prefix < operation.length => {
                "is complete at its source and not placed"
            }
            Some(operation) if operation.message != NO_MESSAGE => {
                "is complete at its source, and its target got no notification"
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

    /// Keeps the memory of a stream's list of operations for reuse, if the list is empty.
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

    /// Returns the violations found.
    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Returns the number of bytes placed more than once before their operation was complete.
    pub(super) const fn placed_again(&self) -> u64 {
        self.placed_again
    }
}

impl Operation {
    /// Adds a range of placed bytes. Returns how many of them were placed before.
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
    fn operations_placed_once_in_pieces_are_right() {
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
        assert!(elsewhere.contains("for host 7"), "{elsewhere}");
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
        assert!(twice.contains("once more"), "{twice}");
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
