//! The semantics of operations, independent of how their bytes travel. Operations are writes,
//! reads, sends and atomics; a write or send can carry an immediate. The crate implements fences,
//! order, exactly-once delivery and credits. It does no I/O, reads no clock and holds no socket.
//!
//! [`Outbound`] handles the operations that one side of a connection posts, and this side's answers
//! to the peer's reads and atomics. It cuts operations into fragments, queues lost fragments for
//! retransmission, and completes operations in the order of posting.
//!
//! [`Inbound`] handles the operations of the peer. It decides for each fragment whether, when and
//! where to place the bytes, and it delivers operations in order.
//!
//! Neither type knows links or packet numbers.
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
mod slab;
#[cfg(test)]
mod tests;
mod uses;

pub use inbound::{Inbound, InboundAtRest, InboundLimits, Refusal, Surroundings, Verdict};
pub use limits::{OPERATION_SHARE, OPERATION_WINDOW_DEFAULT, PoolLimits};
pub use outbound::{
    Answer, Carried, CarriedKind, Fragment, FragmentPayload, LocalFault, Outbound, OutboundAtRest,
    PeerLimits, PostingRoom,
};
pub use pools::{PoolUse, Pools, SHARE_BYTES};
pub use range_set::{Full, RangeSet};
// The interface of this crate contains these types. With this re-export, users need not name the
// crate `work`.
pub use work::{
    AccessFault, Arm, Arrival, Completion, CompletionKind, CompletionQueue, Cut, INLINE_BYTES_MAX,
    OPERATION_BYTES_MAX, Operation, OperationError, OperationFlags, OperationStatus, Order, Owner,
    PIECES_MAX, Piece, PieceList, PieceListError, PostError, Push, Queues, Receive, Request,
    SHARED_RECEIVES_MAX, SharedReceives, Sink, Source, StatusTable, StoredPieces, Unfit, Wakeups,
};
