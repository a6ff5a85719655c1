//! The limits of this crate, with the calculations behind them.

/// Default number of operations that a target tracks, counted from the first operation that is not
/// delivered. At 50 M operations/s, 1024 writes of 8 bytes take 20 µs. This is longer than a round
/// trip between two hosts, so the window does not limit the rate.
pub const OPERATION_WINDOW_DEFAULT: u32 = 1024;

/// Size of a block of the order pool in bytes: the payload of an Ethernet frame. Longer frames use
/// several blocks.
pub(crate) const ORDER_BLOCK_BYTES: usize = 1536;

/// Maximum number of lists of pieces (scatter/gather entries) that all operations and receives of
/// an endpoint use. The number is enough for 64 connections with 1024 receives each. The lists take
/// 65 536 × 0.8 KB = 50 MiB, allocated on first use.
pub(crate) const LISTS_MAX: u32 = 1 << 16;

/// Number of operations that each connection may have posted in any case, even if other connections
/// use all other records. For example, 16 operations of 4 KiB in flight are enough for 10 Gb/s and
/// a round trip of 50 µs. These guaranteed operations do not reduce the room of other connections.
/// Beyond them, a connection may have only as many records as remain free for others.
pub const OPERATION_SHARE: u32 = 16;

/// Maximum number of operations that wait for a receive of their peer without reducing the room of
/// other connections. Guaranteed operations ([`OPERATION_SHARE`]) do not count. The number is
/// enough for 256 connections with a window of 256 operations each. The records take
/// 65 536 × 256 B = 16 MiB, as much as the guaranteed operations of 4096 connections.
pub(crate) const NOT_READY_MAX: u32 = 1 << 16;

/// Number of lists of pieces that each half of a connection may use in any case: one for the
/// receive that is being filled, one for the next message, and two in reserve.
pub(crate) const LIST_SHARE: u32 = 4;

/// Number of messages that a peer may send after the last delivered message, if the target takes
/// its receives from a shared queue. The number of posted receives does not change this limit. 256
/// messages of 4 KiB in flight are enough for 10 Gb/s and a round trip of 800 µs.
pub(crate) const SHARED_WINDOW: u32 = 256;

/// Numbers of records for all connections of an endpoint, by kind. The endpoint allocates the
/// records when it is created.
///
/// For some kinds, peers decide how many records are used. A connection may use only as many of
/// these records as remain free for others. A single connection may therefore use half of them,
/// which covers its window of operations.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PoolLimits {
    /// Operations that are posted and not complete. Guaranteed operations do not count. 16 384 ×
    /// 256 B = 4 MiB, touched on first use. A single connection may use half of them. If all are in
    /// use, each connection still gets its [`OPERATION_SHARE`] guaranteed operations.
    pub operations: u32,
    /// Operations of peers of which some bytes have arrived, or that wait for earlier operations.
    /// 2048 × 1.6 KB = 3.2 MiB. If all are in use, the first undelivered operation of each
    /// connection still gets a record.
    pub incoming: u32,
    /// Reads and atomics of peers that this side is answering. 2048 × 96 B = 192 KiB. If all are in
    /// use, a connection that has no record still gets one.
    pub responses: u32,
    /// Reads of this side whose answers have arrived out of order. 1024 × 1.4 KB = 1.4 MiB.
    pub reads: u32,
    /// Fragments that wait to be retransmitted. 65 536 × 24 B = 1.5 MiB: every packet in flight on
    /// 16 full links of 4096 packets. If more fragments are lost at the same time, memory is
    /// allocated for them.
    pub retransmissions: u32,
    /// Blocks of the order pool. 2048 × 1.5 KiB = 3 MiB. If each operation is small and needs one
    /// block, half of the blocks cover the window of one connection. The other half serves six
    /// connections that use their full 256 KiB.
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
