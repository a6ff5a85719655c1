//! Every limit of this crate, with the arithmetic behind it.

/// Operations a target tracks beyond the last delivered one, by default: 1024 × 8 B writes in
/// flight are 20 µs at 50 M operations/s, longer than a round trip between two hosts.
pub const OPERATION_WINDOW_DEFAULT: u32 = 1024;

/// Bytes of one block of the order pool: one Ethernet frame's payload; longer frames take several.
pub(crate) const ORDER_BLOCK_BYTES: usize = 1536;

/// Lists of pieces that operations and receives of an endpoint are made of at a time: those of 64 connections
/// with 1024 receives each. 65 536 × 0.8 KB = 50 MiB, taken when they are used.
pub(crate) const LISTS_MAX: u32 = 1 << 16;

/// Operations that a connection may have posted in any case, however many others have: 16 × 4 KiB in flight are
/// 10 Gb/s × 50 µs. They take nothing from others. Above that it has no more than are left for others.
pub const OPERATION_SHARE: u32 = 16;

/// Operations above the shares of their connections that wait for receives of peers, and take nothing from others for as
/// long: 256 connections with a window of 256 each. 65 536 × 256 B = 16 MiB, as much as the shares of 4096 connections.
pub(crate) const WAITING_MAX: u32 = 1 << 16;

/// Lists of pieces that each half of a connection may have in any case: a receive that is being filled, one for the
/// message that follows, and as many that are on their way back to the application.
pub(crate) const LIST_SHARE: u32 = 4;

/// Messages beyond the last delivered one that a peer may send while receives are shared, whatever there is: 256 ×
/// 4 KiB in flight are 10 Gb/s × 800 µs.
pub(crate) const SHARED_WINDOW: u32 = 256;

/// Receives that a shared queue can hold: 16 times the 65 536 that large programs ask for. 1 048 576 × 56 B = 56 MiB,
/// taken when the queue is made.
pub const SHARED_RECEIVES_MAX: usize = 1 << 20;

/// How many of each kind of record an endpoint has, over all its connections. All are allocated when
/// the endpoint is made. Of those that the behaviour of peers takes, a connection has no more than are left
/// for others: one gets half, as many as its window of operations may need.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PoolLimits {
    /// Operations posted and not complete, beyond the shares of their connections. 16 384 × 256 B = 4 MiB, of which memory
    /// is touched when it is first used. One connection gets half of them, and each [`OPERATION_SHARE`] besides: if all are
    /// in use, more are allocated.
    pub operations: u32,
    /// Operations of peers that are partly here or wait for earlier ones. 2048 × 1.6 KB = 3.2 MiB. When
    /// they are all in use, one more is allocated for each connection whose operation in turn needs it.
    pub incoming: u32,
    /// Reads and atomics of peers being answered. 2048 × 96 B = 192 KiB. When they are all in use, one
    /// more is allocated for each connection that has none.
    pub responses: u32,
    /// Own reads whose answers have come out of order. 1024 × 1.4 KB = 1.4 MiB.
    pub reads: u32,
    /// Fragments that wait to be retransmitted. 65 536 × 24 B = 1.5 MiB; every packet in flight on 16
    /// full links of 4096 packets. If more are lost at a time, over all connections, memory is
    /// allocated for them.
    pub retransmissions: u32,
    /// Blocks of the order pool. 2048 × 1.5 KiB = 3 MiB: the small operations of one connection's window,
    /// a block each, and as much for others, which is six connections at their full 256 KiB.
    pub order_blocks: u32,
}

impl PoolLimits {
    /// Sets [`operations`](field@PoolLimits::operations).
    #[must_use]
    pub const fn operations(mut self, records: u32) -> Self {
        self.operations = records;
        self
    }

    /// Sets [`incoming`](field@PoolLimits::incoming).
    #[must_use]
    pub const fn incoming(mut self, records: u32) -> Self {
        self.incoming = records;
        self
    }

    /// Sets [`responses`](field@PoolLimits::responses).
    #[must_use]
    pub const fn responses(mut self, records: u32) -> Self {
        self.responses = records;
        self
    }

    /// Sets [`reads`](field@PoolLimits::reads).
    #[must_use]
    pub const fn reads(mut self, records: u32) -> Self {
        self.reads = records;
        self
    }

    /// Sets [`retransmissions`](field@PoolLimits::retransmissions).
    #[must_use]
    pub const fn retransmissions(mut self, records: u32) -> Self {
        self.retransmissions = records;
        self
    }

    /// Sets [`order_blocks`](field@PoolLimits::order_blocks).
    #[must_use]
    pub const fn order_blocks(mut self, records: u32) -> Self {
        self.order_blocks = records;
        self
    }
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            operations: 16_384,
            incoming: 2048,
            responses: 2048,
            reads: 1024,
            retransmissions: 65_536,
            order_blocks: 2048,
        }
    }
}
