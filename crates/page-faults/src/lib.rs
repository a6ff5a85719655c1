//! One handler of memory faults for a process, and memory whose accesses a program sees.
//!
//! # The handler
//!
//! The kernel raises `SIGSEGV` or `SIGBUS` if a thread accesses memory that is missing or
//! protected. A process has one handler for each of these signals, but several libraries of a
//! process may want to handle faults. Each of them may contain a copy of this crate. The copy that
//! is needed first installs a handler. The other copies recognize that handler by a mark in its
//! code, and add their *claims* to its list. A claim says which faults a library handles:
//!
//! * [`catch_instructions`]: faults of certain instructions, for example of a copy that may meet
//!   unmapped memory.
//! * [`RangeClaim`]: faults at the addresses of a range. The claim's handler runs on the thread that
//!   faulted, and repairs the memory.
//!
//! All other faults go to the handler that was installed before, or do what the kernel does without
//! a handler. If a program installs a handler of its own later, claims have no effect until that
//! handler is gone, because the later choice of the program has priority. [`check`] reports this.
//!
//! The handler exists on x86-64 under Linux. On other processors, claims are refused.
//!
//! # Watched memory
//!
//! A [`PageView`] maps memory twice: the program accesses the *view*, and the owner of the memory
//! accesses the *frames*, which never fault. The owner decides for each page of the view whether an
//! access faults, and learns which pages were written. See [`Method`] for how this is done.
//!
//! If the process changes one of the two mappings by `munmap`, `mmap` or `mprotect`, the next access
//! to the missing memory calls [`PageFaults::on_missing`].
//!
//! # Unloading
//!
//! The handler stays installed until the process ends, because handlers that were installed later
//! may have stored its address, and copies of this crate use its list. So after the first claim, a
//! program must not unload a shared library that contains this crate.

#![cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom)))),
    allow(dead_code, reason = "without the handler, nothing uses the list of claims")
)]

mod claims;
mod error;
mod options;
mod own;
mod processor;
mod range;
mod view;

pub use claims::ResumeAt;
pub use error::{ClaimError, MissingMemory, NotInForce, ViewError};
pub use options::{Method, ViewOptions};
pub use range::{Access, Fault, FaultHandler, RangeClaim};
pub use view::{PageFaults, PageView, Pages};

/// Claims faults of instructions, for as long as the process lives. `resume_at` gets the address of
/// the instruction that faulted. It returns the address at which the thread goes on, or 0 if the
/// fault is not claimed. Claiming again with the same function has no effect.
///
/// # Errors
/// [`ClaimError::Unsupported`] on a processor or system without the handler,
/// [`ClaimError::TooMany`] if the list is full, [`ClaimError::Refused`] if the kernel refuses the
/// handler.
///
/// # Safety
/// `resume_at` is called in a signal handler, so it may only compare numbers. The code at the
/// address that it returns must be able to run with the registers of the instruction that faulted.
pub unsafe fn catch_instructions(resume_at: ResumeAt) -> Result<(), ClaimError> {
    processor::install()?;
    own::catch_instructions(resume_at)
}

/// Checks whether a fault on this thread would currently reach the handler. If another copy of this
/// crate has installed a handler later, adds this copy's claims to the list of that handler. Costs
/// three system calls.
///
/// # Errors
/// [`NotInForce`] says why a fault would not reach the handler.
pub fn check() -> Result<(), NotInForce> {
    processor::check()
}
