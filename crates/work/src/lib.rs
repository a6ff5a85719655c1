//! What applications ask for and what they are told, whatever the wire: operations and receives on the one side,
//! completions and the queues they go to on the other. Does no I/O, reads no clock, starts no thread.
//!
//! Nothing here knows how an operation happens. Who carries operations out takes an [`Operation`] or a
//! [`Receive`], and in the end puts a [`Completion`] into a [`CompletionQueue`].
#![forbid(unsafe_code)]

mod completion;
mod error;
mod limits;
mod operation;
mod status;

pub use completion::{Completion, CompletionKind, CompletionQueue};
pub use error::{AccessFault, OperationError, PostError};
pub use limits::{INLINE_BYTES_MAX, OPERATION_BYTES_MAX};
pub use operation::{Operation, OperationFlags, Ordering, Receive, Request, Source};
pub use status::{OperationStatus, StatusTable};
