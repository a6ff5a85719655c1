//! What operations mean, apart from how their bytes get there: writes, reads, sends, immediates and
//! atomics; fences, order, exactly once, credits. Does no I/O, reads no clock, holds no socket.
//!
//! [`Outbound`] is what one side of a connection asks of the other (and its answers to the other's
//! reads and atomics): it cuts operations into fragments, takes back those that were lost, and
//! completes operations in the order they were posted. [`Inbound`] is what the other side asks of
//! this one: it decides for each fragment whether, when and where its bytes are placed, and delivers
//! operations in order. Neither knows links or packet numbers.
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
// What this crate is asked in, so that its users need not name the crate that all wires share.
pub use work::{
    AccessFault, Arm, Arrival, Completion, CompletionKind, CompletionQueue, Cut, INLINE_BYTES_MAX,
    OPERATION_BYTES_MAX, Operation, OperationError, OperationFlags, OperationStatus, Order, Owner,
    PIECES_MAX, Piece, PieceList, PieceListError, PostError, Push, Queues, Receive, Request, Sink,
    Source, StatusTable, StoredPieces, Wakeups,
};
