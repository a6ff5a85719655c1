//! What applications ask for and what is reported to them, whatever the wire: operations and receives on the one side,
//! completions and the queues they go to on the other. Does no I/O, reads no clock, starts no thread.
//!
//! Nothing here knows how an operation happens. Who carries operations out takes an [`Operation`] or a
//! [`Receive`], and in the end puts a [`Completion`] into a [`CompletionQueue`].
#![forbid(unsafe_code)]

mod completion;
mod completion_queue;
mod completion_status;
mod error;
mod limits;
mod operation;
mod pieces;
mod ring;
mod status;
mod wakeups;

pub use completion::{Completion, CompletionKind, Owner};
pub use completion_queue::{Arm, CompletionQueue, Push, Queues, ResizeError};
pub use completion_status::CompletionStatus;
pub use error::{AccessFault, OperationError, PostError};
pub use limits::{COMPLETIONS_MAX, INLINE_BYTES_MAX, OPERATION_BYTES_MAX, PIECES_MAX};
pub use operation::{Operation, OperationFlags, Order, Receive, Request, Sink, Source};
pub use pieces::{Cut, Piece, PieceList, PieceListError, StoredPieces};
pub use status::{Arrival, OperationStatus, StatusTable};
pub use wakeups::Wakeups;
