//! Storage for datagrams that wait for a receive. The storage limits the bytes and the waiting time
//! of these datagrams.

use delivery::Instant;
use mem::Payload;
use wire_edge::QueuePairNumber;

/// Storage that all ports of an endpoint share for waiting datagrams.
#[derive(Debug, Default)]
pub(crate) struct Store {
    bytes: usize,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// A datagram that waits for a receive.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Route header and payload.
    pub(crate) bytes: Vec<u8>,
    pub(crate) said: Said,
    came_at: Instant,
}

/// The fields of a completion that depend on the datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) source: QueuePairNumber,
    pub(crate) immediate: Option<u32>,
    pub(crate) solicited: bool,
}

impl Store {
    /// Returns whether any datagram waits.
    #[inline]
    pub(crate) const fn is_used(&self) -> bool {
        self.bytes != 0
    }

    /// Stores a datagram for a port. `kept_bytes` is the number of bytes already stored for this
    /// port. Returns `None` if the storage of the port or of the endpoint is full.
    pub(crate) fn keep(
        &mut self,
        kept_bytes: usize,
        now: Instant,
        said: Said,
        parts: [Payload<'_>; 2],
    ) -> Option<Kept> {
        let cost = cost(parts[0].len() + parts[1].len());
        if kept_bytes + cost > PORT_KEPT_BYTES_MAX || self.bytes + cost > KEPT_BYTES_MAX {
            return None;
        }
        self.bytes += cost;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        for part in parts {
            part.append_to(&mut bytes);
        }
        Some(Kept { bytes, said, came_at: now })
    }

    /// Releases the storage of a datagram.
    pub(crate) fn remove(&mut self, kept: Kept) {
        self.bytes -= kept.cost();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(kept.bytes);
        }
    }
}

impl Kept {
    /// Returns the number of bytes that the datagram counts towards the storage limits.
    pub(crate) const fn cost(&self) -> usize {
        cost(self.bytes.len())
    }

    /// Returns whether the datagram has waited too long.
    pub(crate) const fn is_old(&self, now: Instant) -> bool {
        now.since_ns(self.came_at) >= DATAGRAM_KEPT_NS
    }
}

const fn cost(bytes: usize) -> usize {
    bytes + size_of::<Kept>()
}

/// Maximum number of bytes stored for one port: a thousand small datagrams, or 60 datagrams of 4
/// KiB.
const PORT_KEPT_BYTES_MAX: usize = 256 << 10;

/// Maximum number of bytes stored for all ports of an endpoint. This is enough for 16 ports with
/// full storage.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// How long a datagram waits for a receive, in nanoseconds. Within this time, a program that polls
/// gets a processor even if ten times as many threads as processors want to run.
const DATAGRAM_KEPT_NS: u64 = 1_000_000_000;

/// Maximum number of buffers that the storage keeps for reuse. Each buffer has at most 4 KiB.
const SPARE_MAX: usize = 256;
