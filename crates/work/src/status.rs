//! The progress of operations, as their handles see it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::OperationError;

/// How far an operation is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OperationStatus {
    /// Under way; so many bytes were acknowledged (or, of a read, arrived).
    Pending {
        /// Bytes acknowledged so far; never falls.
        bytes: u32,
    },
    /// Complete. Of an atomic: what the memory held before.
    Done {
        /// Old value of an atomic, else 0.
        value: u64,
    },
    /// Failed.
    Failed(OperationError),
}

/// Slots through which the engine tells handles of the progress of their operations.
///
/// A slot is free again when both its operation is finished and its handle is dropped, in
/// whichever order and on whichever threads; no lock, no allocation after construction.
#[derive(Debug)]
pub struct StatusTable {
    slots: Box<[Slot]>,
    free: ArrayQueue<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    /// [`FINISHED`] and [`RELEASED`], and the error code from bit 8 on.
    state: AtomicU32,
    bytes: AtomicU32,
    value: AtomicU64,
}

const FINISHED: u32 = 1;
const RELEASED: u32 = 2;
const CODE_SHIFT: u32 = 8;

impl StatusTable {
    /// A table of `capacity` slots, at least 1.
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let free = ArrayQueue::new(capacity as usize);
        for index in 0..capacity {
            let pushed = free.push(index);
            assert!(pushed.is_ok(), "the free list holds every slot");
        }
        Self { slots: (0..capacity).map(|_| Slot::default()).collect(), free }
    }

    /// Takes a slot for a new operation, if one is free.
    pub fn acquire(&self) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        slot.bytes.store(0, Ordering::Relaxed);
        slot.value.store(0, Ordering::Relaxed);
        slot.state.store(0, Ordering::Release);
        Some(index)
    }

    /// What is known of the operation in `slot`.
    pub fn status(&self, slot: u32) -> OperationStatus {
        let Some(slot) = self.slots.get(slot as usize) else {
            return OperationStatus::Failed(OperationError::Flushed);
        };
        let state = slot.state.load(Ordering::Acquire);
        if state & FINISHED == 0 {
            return OperationStatus::Pending { bytes: slot.bytes.load(Ordering::Relaxed) };
        }
        match (state >> CODE_SHIFT) as u8 {
            0 => OperationStatus::Done { value: slot.value.load(Ordering::Relaxed) },
            code => OperationStatus::Failed(OperationError::from_code(code)),
        }
    }

    /// Gives the slot of a handle up.
    pub fn release(&self, slot: u32) {
        self.finish_or_release(slot, RELEASED);
    }

    /// Gives the slot of an operation up that was never posted.
    pub fn cancel(&self, slot: u32) {
        self.finish_or_release(slot, FINISHED);
    }

    /// Ends an operation as failed that the engine never took.
    pub fn fail(&self, slot: u32, error: OperationError) {
        self.finish(slot, Err(error));
    }

    /// So many bytes of the operation in `slot` are acknowledged, or here.
    pub fn progress(&self, slot: u32, bytes: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            slot.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Ends the operation in `slot`; an atomic with the value that was there before.
    pub fn finish(&self, index: u32, result: Result<u64, OperationError>) {
        let Some(slot) = self.slots.get(index as usize) else { return };
        let code = match result {
            Ok(value) => {
                slot.value.store(value, Ordering::Relaxed);
                0
            }
            Err(error) => u32::from(error.code()),
        };
        self.finish_or_release(index, FINISHED | code << CODE_SHIFT);
    }

    fn finish_or_release(&self, index: u32, bits: u32) {
        let Some(slot) = self.slots.get(index as usize) else { return };
        let before = slot.state.fetch_or(bits, Ordering::AcqRel);
        if (before | bits) & (FINISHED | RELEASED) == FINISHED | RELEASED {
            let pushed = self.free.push(index);
            assert!(pushed.is_ok(), "status slot {index} is freed twice");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_outlives_whichever_of_operation_and_handle_ends_first() {
        let table = StatusTable::new(1);
        let slot = table.acquire().unwrap();
        table.progress(slot, 5);
        assert_eq!(table.status(slot), OperationStatus::Pending { bytes: 5 });
        table.finish(slot, Ok(9));
        assert_eq!(table.acquire(), None);
        assert_eq!(table.status(slot), OperationStatus::Done { value: 9 });
        table.release(slot);
        let slot = table.acquire().unwrap();
        assert_eq!(table.status(slot), OperationStatus::Pending { bytes: 0 });
        table.release(slot);
        assert_eq!(table.acquire(), None);
        table.finish(slot, Err(OperationError::Unreachable));
        assert!(table.acquire().is_some());
    }

    #[test]
    fn every_error_survives_its_code() {
        for code in 1..=18 {
            assert_eq!(OperationError::from_code(code).code(), code);
        }
    }
}
