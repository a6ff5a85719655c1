//! Datagrams that found no receive: what is kept of them, how many, and for how long.

use delivery::Instant;
use mem::Payload;
use wire_edge::QueuePairNumber;

/// How much the ports of an endpoint keep, all together.
#[derive(Debug, Default)]
pub(crate) struct Store {
    bytes: usize,
    /// Memory for datagrams to come.
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

/// What a completion says of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) source: QueuePairNumber,
    pub(crate) immediate: Option<u32>,
    pub(crate) solicited: bool,
}

impl Store {
    /// Whether any datagram waits.
    #[inline]
    pub(crate) const fn is_used(&self) -> bool {
        self.bytes != 0
    }

    /// Keeps a datagram for a port that keeps so many bytes already, if there is room.
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

    /// One waits no more.
    pub(crate) fn remove(&mut self, kept: Kept) {
        self.bytes -= kept.cost();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(kept.bytes);
        }
    }
}

impl Kept {
    /// What it counts for.
    pub(crate) const fn cost(&self) -> usize {
        cost(self.bytes.len())
    }

    /// It has waited for too long.
    pub(crate) const fn is_old(&self, now: Instant) -> bool {
        now.since_ns(self.came_at) >= DATAGRAM_KEPT_NS
    }
}

const fn cost(bytes: usize) -> usize {
    bytes + size_of::<Kept>()
}

/// What a port keeps: a thousand small datagrams, or 60 of 4 KiB.
const PORT_KEPT_BYTES_MAX: usize = 256 << 10;

/// What all ports of an endpoint keep: sixteen ports can keep all they may.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// For how long: a program that polls is kept from it by others for less, on a machine with ten times as much to do as
/// it has processors for.
const DATAGRAM_KEPT_NS: u64 = 1_000_000_000;

/// Memory that is not given back, at most 4 KiB each.
const SPARE_MAX: usize = 256;
