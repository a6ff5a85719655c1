//! The receiving half of a stream: bytes that the peer has written to the ring, until the program reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ring::Ring;
use crate::sending::Implausible;

/// Bytes that have arrived, that the program has read, and of which the peer was told that they are.
///
/// Positions count bytes of the stream: `told` ≤ `consumed` ≤ `arrived` ≤ `told` and the ring. `consumed`
/// belongs to the program's threads, who come one after the other (the caller's lock), the others to whoever is inside the
/// engine. The peer may write to the ring from `arrived` to `told` and the ring whenever it likes; if it writes
/// elsewhere, its own stream is garbled and nothing else.
#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    ring: Ring,
    engine: EngineSide,
    program: ProgramSide,
}

#[derive(Debug)]
#[repr(align(64))]
struct EngineSide {
    arrived: AtomicU64,
    /// The peer knows that so much is consumed.
    told: AtomicU64,
    /// What it was told before, in case the last credit is not posted.
    told_before: AtomicU64,
    /// Where the stream ends; [`NO_END`] while that is not known.
    end: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct ProgramSide {
    consumed: AtomicU64,
}

/// Whether bytes that are read go away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Taking {
    /// They do.
    Take,
    /// They are read again next time; so many are passed over before.
    Peek(u64),
}

impl ReceiveHalf {
    pub(crate) fn new(ring: Ring) -> Self {
        let [arrived, told, told_before] = [0; 3].map(AtomicU64::new);
        let engine = EngineSide { arrived, told, told_before, end: AtomicU64::new(NO_END) };
        Self { ring, engine, program: ProgramSide::default() }
    }

    /// Bytes that can be read.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        let consumed = self.program.consumed.load(Ordering::Relaxed);
        self.engine.arrived.load(Ordering::SeqCst) - consumed
    }

    /// All that the peer has sent, and will ever send, was read.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.program.consumed.load(Ordering::Relaxed) == self.engine.end.load(Ordering::SeqCst)
    }

    /// The peer has said where the stream ends.
    pub(crate) fn has_end(&self) -> bool {
        self.engine.end.load(Ordering::SeqCst) != NO_END
    }

    /// Reads what is there, as far as it fits. One thread at a time.
    #[inline]
    pub(crate) fn read(&self, out: &mut [u8], taking: Taking) -> usize {
        let consumed = self.program.consumed.load(Ordering::Relaxed);
        let arrived = self.engine.arrived.load(Ordering::SeqCst);
        let from = match taking {
            Taking::Take => consumed,
            Taking::Peek(passed) => consumed + passed.min(arrived - consumed),
        };
        let length = out.len().min((arrived - from) as usize);
        self.ring.read(from, &mut out[..length]);
        if taking == Taking::Take {
            self.program.consumed.store(consumed + length as u64, Ordering::SeqCst);
        }
        length
    }

    /// Passes over all that is there.
    pub(crate) fn discard(&self) {
        let arrived = self.engine.arrived.load(Ordering::SeqCst);
        self.program.consumed.store(arrived, Ordering::SeqCst);
    }

    /// Whether the peer is to be told how much was read: a quarter of the ring, so that it need not wait, and
    /// is not told more often than that costs.
    #[inline]
    pub(crate) fn is_credit_due(&self) -> bool {
        let told = self.engine.told.load(Ordering::SeqCst);
        let consumed = self.program.consumed.load(Ordering::SeqCst);
        consumed - told >= u64::from(self.ring.size().bytes() / 4) && !self.has_end()
    }

    /// What the peer is to be told now, which counts as told. Inside the engine, as all below.
    #[inline]
    pub(crate) fn next_credit(&self) -> Option<u64> {
        if !self.is_credit_due() {
            return None;
        }
        let consumed = self.program.consumed.load(Ordering::SeqCst);
        let before = self.engine.told.swap(consumed, Ordering::SeqCst);
        self.engine.told_before.store(before, Ordering::Relaxed);
        Some(consumed)
    }

    /// The last credit could not be posted: it is due again.
    pub(crate) fn take_back(&self) {
        let before = self.engine.told_before.load(Ordering::Relaxed);
        self.engine.told.store(before, Ordering::SeqCst);
    }

    /// The peer has written bytes to a place in the ring: those that come next, and no more than it may.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Implausible> {
        let arrived = self.engine.arrived.load(Ordering::Relaxed);
        let told = self.engine.told.load(Ordering::Relaxed);
        let size = self.ring.size();
        let room = told + u64::from(size.bytes()) - arrived;
        if at != size.place(arrived)
            || length > size.to_the_end(arrived)
            || u64::from(length) > room
            || self.has_end()
        {
            return Err(Implausible);
        }
        self.engine.arrived.store(arrived + u64::from(length), Ordering::SeqCst);
        Ok(())
    }

    /// The peer has sent so many bytes, and sends no more.
    pub(crate) fn on_end(&self, bytes: u64) -> Result<(), Implausible> {
        if self.has_end() || bytes != self.engine.arrived.load(Ordering::Relaxed) {
            return Err(Implausible);
        }
        self.engine.end.store(bytes, Ordering::SeqCst);
        Ok(())
    }
}

const NO_END: u64 = u64::MAX;
