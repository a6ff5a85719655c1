//! The doorbells with which streams notify their endpoint.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::Readiness;

use crate::rendezvous::exchange::Exchange;
use crate::transport::stream_doorbell::StreamDescriptor;
use crate::transport::stream_doorbell::StreamDoorbell;
use crate::wire::StreamNumber;

/// The doorbell of one stream. All clones share one state.
#[derive(Clone)]
pub(crate) struct Doorbell {
    exchange: Arc<Exchange>,
    number: StreamNumber,
    is_marked: Arc<AtomicBool>,
}

impl Doorbell {
    pub(crate) fn new(exchange: &Arc<Exchange>, number: StreamNumber) -> Self {
        Self { exchange: Arc::clone(exchange), number, is_marked: Arc::default() }
    }

    /// Notifies the endpoint that the stream has operations to post or a new due time. The caller
    /// must hold neither the lock of the engine nor a lock that the engine's thread takes.
    pub(crate) fn ring(&self) {
        self.mark();
        self.exchange.ring();
    }

    /// Does the same as [`Doorbell::ring`] for a caller that holds the lock of the engine, or a
    /// lock that the engine's thread takes. The engine serves the stream in its current or next
    /// run. A thread that does not run the engine must also call `ring` after it has released its
    /// locks.
    pub(crate) fn mark(&self) {
        if !self.is_marked.swap(true, Ordering::AcqRel) {
            self.exchange.mark(self.number);
        }
    }

    /// Clears the mark. Call this before serving the stream, so that later work marks the stream
    /// again.
    pub(crate) fn unmark(&self) {
        self.is_marked.store(false, Ordering::Release);
    }

    /// Watches a descriptor of the stream. The endpoint notifies the stream when the descriptor is
    /// ready. Call [`Doorbell::unwatch`] before closing the descriptor.
    pub(crate) fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()> {
        let runtime = self.exchange.runtime().ok_or(io::ErrorKind::NotConnected)?;
        runtime.watch_descriptor(fd, DescriptorKey::Stream(self.number, which).bits(), ready)
    }

    /// Stops watching a descriptor.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        if let Some(runtime) = self.exchange.runtime() {
            runtime.unwatch_descriptor(fd);
        }
    }
}

impl StreamDoorbell for Doorbell {
    #[inline]
    fn ring(&self) {
        Self::ring(self);
    }

    fn mark(&self) {
        Self::mark(self);
    }

    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()> {
        Self::watch(self, which, fd, ready)
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        Self::unwatch(self, fd);
    }
}

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorbell").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Identifies a descriptor that the runtime watches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DescriptorKey {
    /// The rendezvous socket of the connection with this token.
    RendezvousSocket(u64),
    /// A descriptor of a stream.
    Stream(StreamNumber, StreamDescriptor),
}

impl DescriptorKey {
    /// Returns the key for the runtime. It is less than 2^63.
    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::RendezvousSocket(id) => id & !OF_STREAM,
            Self::Stream(number, which) => {
                let is_end = matches!(which, StreamDescriptor::End);
                OF_STREAM | (number.0 as u64) << 1 | is_end as u64
            }
        }
    }

    pub(crate) const fn of_bits(bits: u64) -> Self {
        if bits & OF_STREAM == 0 {
            return Self::RendezvousSocket(bits);
        }
        let which = if bits & 1 == 0 { StreamDescriptor::Tcp } else { StreamDescriptor::End };
        Self::Stream(StreamNumber((bits >> 1) as u32), which)
    }
}

const OF_STREAM: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_descriptors_are_distinct() {
        let number = StreamNumber(0xffff_fffe);
        for key in [
            DescriptorKey::RendezvousSocket(77),
            DescriptorKey::Stream(number, StreamDescriptor::Tcp),
            DescriptorKey::Stream(number, StreamDescriptor::End),
        ] {
            assert!(key.bits() < 1 << 63);
            assert_eq!(DescriptorKey::of_bits(key.bits()), key);
        }
    }
}
