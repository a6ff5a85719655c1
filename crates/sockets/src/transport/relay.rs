//! State of a relay: the library carries the bytes of a stream, and the program's calls go to the
//! kernel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::Readiness;

/// The state of a relay: whether it is on, and the bytes that it is carrying.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    is_on: AtomicBool,
    pub(super) carried: Mutex<Carried>,
}

#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Bytes of the stream for which the pair had no room.
    pub(super) left: Vec<u8>,
    /// No process can write to the pair any more.
    pub(super) is_input_closed: bool,
    /// No process reads from the pair, or the pair was shut down at the end of the stream.
    pub(super) is_output_closed: bool,
    pub(super) watched: Readiness,
}

impl Relay {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Turns the relay on permanently: the pair carries bytes of the stream from now on.
    pub(super) fn turn_on(&self) {
        self.is_on.store(true, Ordering::SeqCst);
    }
}
