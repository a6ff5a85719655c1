//! A child made by `fork` has no threads and shares the links: it is told so instead of using them.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

/// The call was made in a child process that was forked after the endpoint was made.
///
/// The child has a copy of the endpoint's memory but shares its sockets with the parent: two engines
/// with one identity would confuse every peer. The child makes an endpoint of its own.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("this endpoint belongs to the parent process; a forked child makes its own")]
pub struct Forked;

/// Knows in which process it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomeProcess {
    generation: u32,
}

impl HomeProcess {
    /// This process.
    pub(crate) fn here() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a function without captured state that only increments an
            // atomic, which is allowed in a child of a program with threads. Failure (no memory)
            // leaves forked children undetected, as they are without this call.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self { generation: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether the caller is in the process this was made in. One relaxed load.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Forked> {
        if FORKS.load(Ordering::Relaxed) == self.generation { Ok(()) } else { Err(Forked) }
    }
}

/// How many forks lie between this process and the first.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
