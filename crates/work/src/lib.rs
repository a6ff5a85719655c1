//! The operations and receives that applications post, and the completions and completion queues
//! that report their results. The types are independent of the frame format. The crate does no I/O,
//! reads no clock and starts no thread.
//!
//! The crate does not perform operations. The engine takes an [`Operation`] or a [`Receive`] and
//! performs it. When the work is finished, the engine adds a [`Completion`] to a
//! [`CompletionQueue`].
#![forbid(unsafe_code)]

mod completion;
mod completion_kind;
mod completion_queue;
mod completion_status;
mod error;
mod limits;
mod operation;
mod patch;
mod pieces;
mod ring;
mod shared_receives;
mod status;
mod wakeups;

pub use completion::{Completion, Owner};
pub use completion_kind::CompletionKind;
pub use completion_queue::{Arm, CompletionQueue, Push, Queues, ResizeError};
pub use completion_status::CompletionStatus;
pub use error::{AccessFault, OperationError, PostError};
pub use limits::{
    COMPLETIONS_MAX, INLINE_BYTES_MAX, OPERATION_BYTES_MAX, PIECES_MAX, SHARED_RECEIVES_MAX,
};
pub use operation::{Operation, OperationFlags, Order, Receive, Request, Sink, Source};
pub use pieces::{Cut, Piece, PieceList, PieceListError, StoredPieces};
pub use shared_receives::{SharedReceives, Unfit};
pub use status::{Arrival, OperationStatus, StatusTable};
pub use wakeups::Wakeups;
