//! Translates work requests of queue pairs into operations of a stream, and the ends of operations
//! into completions.

use iwarp::{
    INLINE_BYTES_MAX, Kind, PIECES_MAX, Payload, Piece, PostError, Status, Stream, Work, WorkKind,
};
use mem::MemoryAccess;
use verbs::{QueuePair, SendOpcode, TakenSend};
use wire_iwarp::Stag;
use work::{Completion, CompletionKind, CompletionStatus, OperationError, Owner};

use crate::memory::piece_of;

/// Outcome of handing a work request to the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The request will complete, successfully or not.
    Posted,
    /// The stream has no room for the request now.
    NoRoom,
    /// The stream carries no messages.
    Over,
    /// The request itself is wrong and completes with this status, after all earlier requests.
    Wrong(CompletionStatus),
}

/// Posts the oldest send of a queue pair.
pub(crate) fn post_send(
    stream: &mut Stream,
    access: &MemoryAccess<'_>,
    send: &TakenSend<'_>,
) -> Outcome {
    let flags = send.flags();
    let kind = match send.opcode() {
        SendOpcode::Write { address, key, immediate: None } => {
            WorkKind::Write { stag: Stag(key), offset: address }
        }
        SendOpcode::Read { address, key } => WorkKind::Read { stag: Stag(key), offset: address },
        SendOpcode::Send { immediate: None } => {
            WorkKind::Send { solicited: flags.solicited, invalidate: None }
        }
        SendOpcode::SendInvalidate { key } => {
            WorkKind::Send { solicited: flags.solicited, invalidate: Some(Stag(key)) }
        }
        // The device says that it carries no other operation, so that a program cannot post it.
        _ => return Outcome::Wrong(CompletionStatus::LocalQueuePairOperation),
    };
    let (id, signaled, fence) = (send.sequence(), flags.signalled, flags.fence);
    let mut post = |payload| stream.post_send(&Work { id, kind, payload, signaled, fence });
    let posted = if let Some(inline) = send.inline() {
        let mut bytes = [0; INLINE_BYTES_MAX];
        let Some(bytes) = bytes.get_mut(..inline.length as usize) else {
            return Outcome::Wrong(CompletionStatus::LocalQueuePairOperation);
        };
        if access.copy_out(inline.region, inline.offset, bytes).is_err() {
            return Outcome::Wrong(CompletionStatus::LocalProtection);
        }
        post(Payload::Inline(bytes))
    } else {
        let mut pieces = [Piece { key: 0, address: 0, bytes: 0 }; PIECES_MAX];
        let entries = send.pieces();
        for (piece, entry) in pieces.iter_mut().zip(entries) {
            *piece = piece_of(entry);
        }
        match pieces.get(..entries.len()) {
            Some(pieces) => post(Payload::Pieces(pieces)),
            None => return Outcome::Wrong(CompletionStatus::LocalQueuePairOperation),
        }
    };
    match posted {
        Ok(()) => Outcome::Posted,
        Err(PostError::Full) => Outcome::NoRoom,
        Err(PostError::NotConnected) => Outcome::Over,
        Err(PostError::NoReads) => Outcome::Wrong(CompletionStatus::RemoteInvalidRequest),
        Err(PostError::Length(_)) => Outcome::Wrong(CompletionStatus::LocalLength),
        Err(PostError::Wraps) => Outcome::Wrong(CompletionStatus::RemoteAccess),
        Err(_) => Outcome::Wrong(CompletionStatus::LocalQueuePairOperation),
    }
}

/// Returns the completion of an operation.
pub(crate) fn completion_of_send(
    owner: Owner,
    id: u64,
    kind: Kind,
    status: Status,
    bytes: u32,
) -> Completion {
    let kind = match kind {
        Kind::Write => CompletionKind::Write,
        Kind::Read => CompletionKind::Read,
        Kind::Send => CompletionKind::Send,
    };
    completion(owner, id, kind, status, bytes)
}

/// Returns the completion of a receive.
pub(crate) fn completion_of_receive(
    owner: Owner,
    id: u64,
    status: Status,
    bytes: u32,
    solicited: bool,
    invalidated: Option<Stag>,
) -> Completion {
    Completion {
        solicited,
        value: invalidated.map_or(0, |stag| stag.0.into()),
        ..completion(owner, id, CompletionKind::Receive, status, bytes)
    }
}

fn completion(
    owner: Owner,
    id: u64,
    kind: CompletionKind,
    status: Status,
    bytes: u32,
) -> Completion {
    let result = match status {
        Status::Success => Ok(()),
        Status::Flushed => Err(OperationError::Flushed),
        Status::LocalProtection => Err(OperationError::LocalAccess),
        Status::Length => Err(OperationError::MessageTooLong),
    };
    Completion {
        context: id,
        owner,
        kind,
        result,
        bytes,
        immediate: None,
        solicited: false,
        value: 0,
    }
}

/// What a stream has taken of a queue pair's sends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Pulled {
    /// Whether the stream has taken a send.
    pub(crate) any: bool,
    /// Whether sends are left that must wait for room in the stream.
    pub(crate) waits: bool,
}

/// Passes the posted sends of a queue pair with numbers below `end` to its stream, as many as fit.
pub(crate) fn pull(
    queue_pair: &QueuePair,
    stream: &mut Stream,
    access: &MemoryAccess<'_>,
    end: u64,
) -> Pulled {
    let mut pulled = Pulled::default();
    while let Some(send) = queue_pair.next_send().filter(|send| send.sequence() < end) {
        match post_send(stream, access, &send) {
            Outcome::Posted => {
                drop(send);
                queue_pair.send_taken();
                pulled.any = true;
            }
            Outcome::NoRoom => {
                pulled.waits = true;
                break;
            }
            Outcome::Over => break,
            Outcome::Wrong(status) => {
                queue_pair.send_failed(send, status);
                break;
            }
        }
    }
    pulled
}
