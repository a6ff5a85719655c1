//! The progress of operations and receives. The engine records the progress, and the application
//! reads it through handles.

#[cfg(all(test, loom))]
mod model;

use std::sync::PoisonError;
use std::task::Waker;

use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::error::OperationError;
use crate::wakeups::Wakeups;

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OperationStatus {
    /// The operation is not finished.
    Pending {
        /// Number of bytes acknowledged so far. For a read, the number of bytes received so far.
        /// Never decreases.
        bytes: u32,
    },
    /// The operation is complete.
    Done {
        /// For an atomic, the old value of the memory. For a receive, a value from which
        /// [`Arrival`] is computed. For all other operations, 0.
        value: u64,
    },
    /// The operation has failed.
    Failed(OperationError),
}

/// Slots by which the engine reports the progress of operations to their handles.
///
/// A slot becomes free when its operation is finished and its handle is dropped. These two events
/// may happen in any order and on any threads. After its creation, the table does not allocate
/// memory. It takes a lock only if a task waits.
#[derive(Debug)]
pub struct StatusTable {
    slots: Box<[Slot]>,
    free: ArrayQueue<u32>,
    wakeups: Wakeups,
}

/// The message that arrived for a receive, if that receive has a slot in the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// Length of the message, in bytes.
    pub bytes: u32,
    /// Immediate of the message, if the message has one.
    pub immediate: Option<u32>,
}

#[derive(Debug)]
struct Slot {
    /// The bits [`FINISHED`], [`RELEASED`] and [`WATCHED`]. Bits 8 and above contain the error
    /// code.
    state: AtomicU32,
    bytes: AtomicU32,
    value: AtomicU64,
    /// The task that waits for the operation, if any. Only the holder of the handle stores a task
    /// here.
    waker: Mutex<Option<Waker>>,
}

const FINISHED: u32 = 1;
const RELEASED: u32 = 2;
/// Bit of the state. It is set if a task waits or has waited for the operation.
const WATCHED: u32 = 4;
const CODE_SHIFT: u32 = 8;
/// Bit of the value of a receive. If it is set, the low 32 bits of the value are an immediate.
const HAS_IMMEDIATE: u64 = 1 << 32;

impl StatusTable {
    /// Creates a table of `capacity` slots. If `capacity` is 0, the table has one slot.
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let free = ArrayQueue::new(capacity as usize);
        for index in 0..capacity {
            let pushed = free.push(index);
            assert!(pushed.is_ok(), "the free list holds every slot");
        }
        Self { slots: (0..capacity).map(|_| Slot::new()).collect(), free, wakeups: Wakeups::new() }
    }

    /// Returns the list of tasks to wake. The table adds tasks whose operations have finished. The
    /// caller may add other tasks.
    #[inline]
    pub fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// Allocates a slot for a new operation, and returns its index. Returns `None` if no slot is
    /// free.
    pub fn acquire(&self) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        slot.bytes.store(0, Ordering::Relaxed);
        slot.value.store(0, Ordering::Relaxed);
        slot.state.store(0, Ordering::Release);
        Some(index)
    }

    /// Returns the status of the operation in `slot`. If the table has no such slot, returns a
    /// failure.
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

    /// Returns the message that arrived for the receive in `slot`. The caller must have found the
    /// status [`OperationStatus::Done`] before. Otherwise the result is meaningless.
    pub fn arrival(&self, slot: u32) -> Option<Arrival> {
        let slot = self.slots.get(slot as usize)?;
        let value = slot.value.load(Ordering::Relaxed);
        let immediate = (value & HAS_IMMEDIATE != 0).then_some(value as u32);
        Some(Arrival { bytes: slot.bytes.load(Ordering::Relaxed), immediate })
    }

    /// Registers a task to wake when the operation in `slot` finishes. Replaces any earlier task.
    /// Returns false if the operation has already finished. Only the holder of the handle may call
    /// this function, from one thread at a time.
    #[must_use]
    pub fn watch(&self, slot: u32, waker: &Waker) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.watch(waker))
    }

    /// Removes the task that waits for the operation in `slot`, if there is one. Only the holder of
    /// the handle may call this function.
    pub fn forget(&self, slot: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            slot.forget_waker();
        }
    }

    /// Records that the handle of the operation in the slot `index` was dropped. If the operation
    /// is finished, frees the slot.
    pub fn release(&self, index: u32) {
        self.forget(index);
        self.finish_or_release(index, RELEASED);
    }

    /// Records that the operation in `slot` was never posted. If the handle was dropped, frees the
    /// slot.
    pub fn cancel(&self, slot: u32) {
        self.finish_or_release(slot, FINISHED);
    }

    /// Finishes the operation in `slot` with this error. Used for operations that the engine never
    /// accepted.
    pub fn fail(&self, slot: u32, error: OperationError) {
        self.finish(slot, Err(error));
    }

    /// Records that `bytes` bytes of the operation in `slot` were acknowledged, or have arrived.
    pub fn progress(&self, slot: u32, bytes: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            slot.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Finishes the operation in the slot `index`. For an atomic, the result is the old value of
    /// the memory.
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

    /// Records that a message arrived for the receive in the slot `index`.
    pub fn arrive(&self, index: u32, arrival: Arrival) {
        self.progress(index, arrival.bytes);
        let immediate = arrival.immediate.map(|immediate| HAS_IMMEDIATE | u64::from(immediate));
        self.finish(index, Ok(immediate.unwrap_or(0)));
    }

    fn finish_or_release(&self, index: u32, bits: u32) {
        let Some(slot) = self.slots.get(index as usize) else { return };
        let (before, waker) = slot.end(bits);
        if let Some(waker) = waker {
            self.wakeups.add(waker);
        }
        if (before | bits) & (FINISHED | RELEASED) == FINISHED | RELEASED {
            let pushed = self.free.push(index);
            assert!(pushed.is_ok(), "status slot {index} is freed twice");
        }
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            value: AtomicU64::new(0),
            waker: Mutex::new(None),
        }
    }

    /// Registers a task, as [`StatusTable::watch`] documents.
    fn watch(&self, waker: &Waker) -> bool {
        let old = {
            let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            match &*place {
                Some(kept) if kept.will_wake(waker) => None,
                _ => place.replace(waker.clone()),
            }
        };
        drop(old);
        let before = self.state.fetch_or(WATCHED, Ordering::AcqRel);
        if before & FINISHED == 0 || cfg!(loom_mutation) {
            return true;
        }
        // The operation finished before the task was registered. The thread that finished it either
        // did not see this task or has already woken it. So this function removes the task.
        self.forget_waker();
        false
    }

    /// Sets bits of the state, and returns the previous state. If the bits include `FINISHED` and
    /// a task waits, also removes and returns that task, and the caller must wake it.
    ///
    /// This function first sets the bits and then removes the task. If the thread is delayed
    /// between these two steps, the slot may already belong to another operation, and the returned
    /// task may wait for that operation. Such a task wakes up too early, and waits again.
    fn end(&self, bits: u32) -> (u32, Option<Waker>) {
        let before = self.state.fetch_or(bits, Ordering::AcqRel);
        let ends = bits & FINISHED != 0 && before & WATCHED != 0;
        (before, if ends { self.take_waker() } else { None })
    }

    /// Drops the waiting task. The caller must call this function before it releases the handle,
    /// because after that the slot may belong to another operation.
    fn forget_waker(&self) {
        if self.state.load(Ordering::Acquire) & WATCHED != 0 {
            drop(self.take_waker());
        }
    }

    #[cold]
    fn take_waker(&self) -> Option<Waker> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_once_outside_the_engine() {
        let table = StatusTable::new(1);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let slot = table.acquire().unwrap();
        assert!(table.watch(slot, &waker) && table.watch(slot, &waker));
        table.finish(slot, Ok(0));
        assert!(table.wakeups().has_any());
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "woken inside the engine");
        table.wakeups().wake();
        assert!(!table.wakeups().has_any());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(!table.watch(slot, &waker), "it is finished");
    }

    #[test]
    fn a_slot_drops_the_waker_of_a_task_that_stopped_waiting() {
        let table = StatusTable::new(1);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let before = Arc::strong_count(&count);
        let slot = table.acquire().unwrap();
        assert!(table.watch(slot, &waker));
        assert_eq!(Arc::strong_count(&count), before + 1);
        table.release(slot);
        assert_eq!(Arc::strong_count(&count), before, "the handle is gone");
        table.finish(slot, Ok(0));
        let slot = table.acquire().unwrap();
        table.finish(slot, Ok(0));
        assert!(!table.watch(slot, &waker));
        assert_eq!(Arc::strong_count(&count), before, "there is nothing to wait for");
        assert!(!table.wakeups().has_any());
    }

    #[test]
    fn a_receive_reports_its_message() {
        let table = StatusTable::new(1);
        for immediate in [None, Some(0), Some(u32::MAX)] {
            let (slot, arrival) = (table.acquire().unwrap(), Arrival { bytes: 7, immediate });
            table.arrive(slot, arrival);
            assert!(matches!(table.status(slot), OperationStatus::Done { .. }));
            assert_eq!(table.arrival(slot), Some(arrival));
            table.release(slot);
        }
    }

    #[test]
    fn a_slot_lives_until_both_operation_and_handle_end() {
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
    fn every_error_decodes_from_its_code() {
        for code in 1..=18 {
            assert_eq!(OperationError::from_code(code).code(), code);
        }
    }
}
