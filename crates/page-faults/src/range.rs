//! Claims of the faults at the addresses of a range.

use core::any::Any;
use core::fmt;
use core::ops::Range;
use core::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::claims::{FORBIDDEN, OnFault, RangeEntry, WRITES};
use crate::error::ClaimError;
use crate::{own, processor};

/// What a thread did when it faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The thread read.
    Read,
    /// The thread wrote, or changed a word atomically.
    Write,
}

/// A fault at an address that a [`RangeClaim`] covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that the thread accessed.
    pub address: usize,
    /// What the thread did.
    pub access: Access,
    /// Whether the signal was `SIGSEGV`: nothing is mapped at the address, or the mapping does not
    /// permit the access. Otherwise the signal was `SIGBUS`: a page is missing.
    pub is_forbidden: bool,
}

/// Handles the faults of a [`RangeClaim`].
///
/// The handler runs on the thread that faulted, on that thread's own stack, even if the thread has
/// an alternate stack for signals. `SIGSEGV` and `SIGBUS` are not blocked there, so that the handler
/// may itself cause faults that other claims handle. The handler interrupts the plain access of a
/// program to the range. So it may do what that program could do at this place: take locks and
/// allocate, for example. That is why the memory of a range must not be passed to code that accesses
/// it under a lock which the handler takes, too, such as the allocator.
pub trait FaultHandler: Send + Sync + 'static {
    /// Repairs the memory. Returns true if the thread is to repeat the access, and false if the
    /// fault is an error of the program, which gets the signal then.
    fn on_fault(&self, fault: Fault) -> bool;
}

/// A claim of the faults at the addresses of a range. It ends when this value is dropped.
pub struct RangeClaim {
    entry: RangeEntry,
    /// Keeps the handler, to which the entry has a pointer.
    _handler: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for RangeClaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangeEntry { start, end, .. } = self.entry;
        write!(formatter, "RangeClaim({start:#x}..{end:#x})")
    }
}

impl RangeClaim {
    /// Claims the faults at the addresses of `range`. If ranges overlap, the claim that was made
    /// first gets the faults.
    ///
    /// # Errors
    /// [`ClaimError::Range`] if the range is empty, [`ClaimError::TooMany`] if the process has too
    /// many claims, and the errors of [`catch_instructions`](crate::catch_instructions).
    pub fn new<H: FaultHandler>(range: Range<usize>, handler: Arc<H>) -> Result<Self, ClaimError> {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 || range.start < ADDRESS_MIN {
            return Err(ClaimError::Range { start: range.start, bytes });
        }
        processor::install()?;
        let entry = RangeEntry {
            start: range.start,
            end: range.end,
            on_fault: call::<H> as OnFault as usize,
            context: Arc::as_ptr(&handler).expose_provenance(),
        };
        own::add_range(entry)?;
        Ok(Self { entry, _handler: handler })
    }
}

impl Drop for RangeClaim {
    /// Waits until no thread is in the claim's handler. So a handler must not drop its own claim.
    fn drop(&mut self) {
        own::remove_range(self.entry, wait);
    }
}

/// Calls the handler of a claim.
///
/// # Safety
/// `context` must point to a handler of this type, which exists until the call returns.
unsafe extern "C" fn call<H: FaultHandler>(context: usize, address: usize, kind: u32) -> u32 {
    // SAFETY: `RangeClaim::new` made the pointer from an `Arc`, which the claim keeps until no
    // handler uses it.
    let handler = unsafe { &*ptr::with_exposed_provenance::<H>(context) };
    let access = if kind & WRITES == 0 { Access::Read } else { Access::Write };
    let is_forbidden = kind & FORBIDDEN != 0;
    u32::from(handler.on_fault(Fault { address, access, is_forbidden }))
}

/// Waits before the next look whether handlers still use a claim.
#[expect(clippy::disallowed_methods, reason = "a handler that leaves sends no notice")]
fn wait() {
    std::thread::sleep(WAIT);
}

/// Lowest address of a range. The lowest page is never mapped.
const ADDRESS_MIN: usize = 4096;

/// Time between two looks whether handlers still use a claim that ends.
const WAIT: Duration = Duration::from_micros(50);
