//! What is known of a stream whose bytes are carried for those who call the kernel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::Readiness;

/// Whether bytes of a stream are carried, and those between the two.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    is_on: AtomicBool,
    pub(super) carried: Mutex<Carried>,
}

#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Bytes of the stream for which the pair had no room.
    pub(super) left: Vec<u8>,
    /// No process writes to the pair any more.
    pub(super) is_input_closed: bool,
    /// No process reads from it, or it was told the end.
    pub(super) is_output_closed: bool,
    pub(super) watched: Readiness,
}

impl Relay {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Once the pair holds bytes of the stream, it is for good.
    pub(super) fn turn_on(&self) {
        self.is_on.store(true, Ordering::SeqCst);
    }
}
