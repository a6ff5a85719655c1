//! The state of a relay. A relay carries the bytes between a stream and the program's descriptor,
//! and the program's calls go to the kernel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::Readiness;

/// The state of a relay: whether the relay is on, and the bytes that it is carrying.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    is_on: AtomicBool,
    pub(super) carried: Mutex<Carried>,
}

#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Bytes of the stream that did not fit into the socket pair.
    pub(super) left: Vec<u8>,
    /// True if no process can write to the socket pair, because all descriptors are closed or shut
    /// down.
    pub(super) is_input_closed: bool,
    /// True if no process reads from the socket pair, or if the pair was shut down at the end of
    /// the stream.
    pub(super) is_output_closed: bool,
    pub(super) watched: Readiness,
}

impl Relay {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Turns the relay on permanently. The socket pair then carries the bytes of the stream.
    pub(super) fn turn_on(&self) {
        self.is_on.store(true, Ordering::SeqCst);
    }
}
