//! Why a claim or a view cannot be made, or memory of a view cannot be used.

use core::ops::Range;
use std::io;

use crate::options::Method;

/// Why faults cannot be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// This crate has no handler for the processor or the operating system.
    #[error("faults can be claimed only on x86-64 under Linux")]
    Unsupported,
    /// The list of claims is full.
    #[error("the process has {most} claims of this kind already; drop one that is not needed")]
    TooMany {
        /// Number of claims of the kind that a process may have.
        most: usize,
    },
    /// The range has no bytes or ends behind the last address.
    #[error("a claim of {bytes} bytes at {start:#x} is empty, or ends behind the last address")]
    Range {
        /// First address of the range.
        start: usize,
        /// Length of the range in bytes.
        bytes: usize,
    },
    /// The kernel does not let the process install the handler.
    #[error("the kernel refuses the handler of signal {signal}: {source}")]
    Refused {
        /// Number of the signal.
        signal: i32,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Why a fault of this thread would not reach the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotInForce {
    /// No handler was installed yet.
    #[error("no faults are claimed yet")]
    NotInstalled,
    /// The program has installed a handler of its own.
    #[error(
        "the program has set its own action for signal {signal}, at {action:#x}; let it set the \
         action before faults are claimed"
    )]
    Replaced {
        /// Number of the signal.
        signal: i32,
        /// The address of the program's handler, or `SIG_DFL` or `SIG_IGN`.
        action: usize,
    },
    /// The thread blocks a signal, so that the kernel ends the process at a fault.
    #[error("this thread blocks signal {signal}; unblock it")]
    Blocked {
        /// Number of the signal.
        signal: i32,
    },
    /// The list of the handler that another copy of this crate has installed is full.
    #[error("the list of claims of the handler in force is full")]
    ListFull,
}

/// Why watched memory cannot be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A view needs at least one page, and its bytes must be countable.
    #[error("a view of {pages} pages cannot be made: it must have at least 1, and at most {most}")]
    Pages {
        /// Number of pages that were requested.
        pages: usize,
        /// Largest number of pages.
        most: usize,
    },
    /// The kernel gives no memory for the frames.
    #[error("no memory for the frames of a view of {bytes} bytes: {source}")]
    Frames {
        /// Length in bytes.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The view cannot be mapped at the requested address.
    #[error(
        "no view of {bytes} bytes at {address:#x}: {source}; other memory may be there: choose \
         another address"
    )]
    Address {
        /// The requested address.
        address: usize,
        /// Length in bytes.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel lacks what the method needs, or forbids it.
    #[error("accesses cannot be watched by {method}: {step}: {source}; choose another method")]
    Method {
        /// The method.
        method: Method,
        /// What failed.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// No method works here.
    #[error("accesses to memory cannot be watched here: {last}")]
    NoMethod {
        /// Why the last method does not work.
        last: Box<ViewError>,
    },
    /// The process has as many mappings as the kernel permits.
    #[error(
        "the kernel permits no more mappings ({pages} pages are watched by {method}): raise \
         vm.max_map_count, or use a method with userfaultfd"
    )]
    Mappings {
        /// The method.
        method: Method,
        /// Number of pages of the view.
        pages: usize,
    },
    /// A range of pages ends behind the view.
    #[error("pages {start} to {end} are not all in the view, which has {pages} pages")]
    Range {
        /// First page.
        start: usize,
        /// The page behind the last one.
        end: usize,
        /// Number of pages of the view.
        pages: usize,
    },
    /// A change of pages failed.
    #[error("{step} of pages {start} to {end}: {source}")]
    Change {
        /// What failed.
        step: &'static str,
        /// First page.
        start: usize,
        /// The page behind the last one.
        end: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Memory of the view is missing.
    #[error(transparent)]
    Missing(#[from] MissingMemory),
    /// Faults cannot be claimed.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// Memory of a view that was there when the view was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MissingMemory {
    /// The process has unmapped a part of the view, or changed its rights.
    #[error(
        "the memory at {start:#x} to {end:#x} was unmapped or protected; let no call of `munmap`, \
         `mmap` or `mprotect` concern these addresses",
        start = addresses.start, end = addresses.end
    )]
    View {
        /// Addresses of the view.
        addresses: Range<usize>,
    },
    /// The process has unmapped a part of the frames, or changed their rights.
    #[error(
        "the second mapping, at {mapped:#x}, of the memory at {start:#x} to {end:#x} was unmapped or \
         protected; let calls of `munmap`, `mmap` and `mprotect` concern only the program's own mappings",
        start = addresses.start, end = addresses.end
    )]
    Frames {
        /// Addresses of the view whose frames are missing.
        addresses: Range<usize>,
        /// The address of the first of these frames.
        mapped: usize,
    },
    /// The frames are mapped, but the host has no page for them.
    #[error(
        "the host has no page for the memory at {start:#x} to {end:#x}; use less memory, or let the \
         host provide more (`vm.overcommit_memory`)",
        start = addresses.start, end = addresses.end
    )]
    Page {
        /// Addresses of the view whose frames are missing.
        addresses: Range<usize>,
    },
}
