//! The meaning of operations, independent of how their bytes travel: writes, reads, sends,
//! immediates and atomics; fences, order, exactly-once delivery and credits. The crate does no I/O,
//! reads no clock and holds no socket.
//!
//! [`Outbound`] handles the operations that one side of a connection posts, and its answers to the
//! peer's reads and atomics. It cuts operations into fragments, takes back lost fragments, and
//! completes operations in the order of posting. [`Inbound`] handles the operations of the peer. It
//! decides for each fragment whether, when and where its bytes are placed, and delivers operations
//! in order. Neither knows links or packet numbers.
#![forbid(unsafe_code)]

mod close;
mod inbound;
mod limits;
mod lists;
mod order_pool;
mod outbound;
mod outlet;
mod pools;
mod range_set;
mod receive_queue;
mod shared_receives;
mod slab;
#[cfg(test)]
mod tests;
mod uses;

pub use inbound::{Inbound, InboundAtRest, InboundLimits, Refusal, Surroundings, Verdict};
pub use limits::{OPERATION_SHARE, OPERATION_WINDOW_DEFAULT, PoolLimits, SHARED_RECEIVES_MAX};
pub use outbound::{
    Answer, Carried, CarriedKind, Fragment, FragmentPayload, LocalFault, Outbound, OutboundAtRest,
    PeerLimits, PostingRoom,
};
pub use pools::{PoolUse, Pools, SHARE_BYTES};
pub use range_set::{Full, RangeSet};
pub use shared_receives::{SharedReceives, Unfit};
// The types in which users talk to this crate, so that they need not name the crate `work`.
pub use work::{
    AccessFault, Arm, Arrival, Completion, CompletionKind, CompletionQueue, Cut, INLINE_BYTES_MAX,
    OPERATION_BYTES_MAX, Operation, OperationError, OperationFlags, OperationStatus, Order, Owner,
    PIECES_MAX, Piece, PieceList, PieceListError, PostError, Push, Queues, Receive, Request, Sink,
    Source, StatusTable, StoredPieces, Wakeups,
};
