//! Translates work requests of queue pairs into operations of the engine.

use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, ProtectionDomain, Reach, RegionId, Rights, Window};
use semantics::{
    AccessFault, Operation, OperationError, OperationFlags, Order, PIECES_MAX, Piece, PieceList,
    PostError, Receive, Request, Sink, Source,
};
use verbs::{AccessFlags, ScatterGather, SendOpcode, TakenReceive, TakenSend, WindowType};
use wire_edge::RemoteKey;

/// The connections of a queue pair. If the queue pair is its own peer, it has two connections;
/// otherwise both fields contain the same connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The connection for this queue pair's operations.
    pub(crate) sends: ConnectionHandle,
    /// The connection for the peer's operations.
    pub(crate) receives: ConnectionHandle,
}

/// Outcome of handing a work request to the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The request will complete, successfully or not.
    Posted,
    /// The engine has no room for the request now.
    NoRoom,
    /// The connection has ended.
    Over,
}

/// Local memory of a work request.
enum Bytes<'a> {
    One(Piece),
    Several(PieceList<'a>),
}

/// Posts the oldest send of a queue pair. If the send fails, its completion reports the error,
/// after the completions of all earlier sends.
pub(crate) fn post_send(
    engine: &mut Engine,
    memory: &MemoryAccess<'_>,
    ends: Ends,
    domain: ProtectionDomain,
    send: &TakenSend<'_>,
) -> Outcome {
    let pieces = send.pieces();
    if pieces.len() > 1 {
        let mut room = [Piece::NOTHING; PIECES_MAX];
        return post_with(engine, memory, ends, domain, send, |want| {
            let found = locate_all(memory, domain, pieces, want, &mut room)?;
            PieceList::new(found).map(Bytes::Several).map_err(|_| OperationError::NotPosted)
        });
    }
    post_with(engine, memory, ends, domain, send, |want| {
        if let Some(inline) = send.inline() {
            let (region, offset, length) = (inline.region, inline.offset, inline.length);
            return Ok(Bytes::One(Piece { region, offset, length }));
        }
        pieces
            .first()
            .map_or(Ok(Piece::NOTHING), |piece| locate(memory, domain, piece, want))
            .map(Bytes::One)
    })
}

/// Posts a send like [`post_send`]. `find` locates the local memory, and checks whether it has the
/// rights that the send needs.
#[inline]
fn post_with<'a>(
    engine: &mut Engine,
    memory: &MemoryAccess<'_>,
    ends: Ends,
    domain: ProtectionDomain,
    send: &TakenSend<'_>,
    find: impl FnOnce(Rights) -> Result<Bytes<'a>, OperationError>,
) -> Outcome {
    let flags = send.flags();
    let mut operation = Operation {
        request: bare_request(send.opcode(), domain),
        length: 0,
        flags: OperationFlags {
            waits_for_answers: flags.fence,
            order: Order::Strict,
            notify: flags.solicited,
            signalled: flags.signalled,
            ..OperationFlags::default()
        },
        immediate: immediate_of(send.opcode()),
        context: send.sequence(),
        status: None,
    };
    let handle = ends.sends;
    let posted = match fill(&mut operation, memory, ends, domain, send.opcode(), find) {
        Ok(None) => engine.post(memory, handle, &operation).map(|_| ()),
        Ok(Some(list)) => engine.post_list(memory, handle, &operation, list).map(|_| ()),
        Err(error) => engine.post_failed(handle, &operation, error),
    };
    let posted = posted.or_else(|error| match fault_of(error) {
        Some(fault) => engine.post_failed(handle, &operation, fault),
        None => Err(error),
    });
    match posted {
        Ok(()) => Outcome::Posted,
        Err(PostError::NotConnected) => Outcome::Over,
        Err(_) => Outcome::NoRoom,
    }
}

/// Fills in the local memory of an operation. If the memory has several scatter/gather entries,
/// returns the list.
#[inline]
fn fill<'a>(
    operation: &mut Operation,
    memory: &MemoryAccess<'_>,
    ends: Ends,
    domain: ProtectionDomain,
    opcode: SendOpcode,
    find: impl FnOnce(Rights) -> Result<Bytes<'a>, OperationError>,
) -> Result<Option<PieceList<'a>>, OperationError> {
    let want = match opcode {
        SendOpcode::BindWindow { .. } => {
            operation.request = bind(memory, ends, domain, opcode)?;
            return Ok(None);
        }
        SendOpcode::LocalInvalidate { .. } => return Ok(None),
        SendOpcode::Write { .. } | SendOpcode::Send { .. } | SendOpcode::SendInvalidate { .. } => {
            Rights::NONE
        }
        SendOpcode::Read { .. } | SendOpcode::FetchAdd { .. } | SendOpcode::CompareSwap { .. } => {
            Rights::LOCAL_WRITE
        }
    };
    let piece = match find(want)? {
        Bytes::Several(list) => {
            operation.length = list.length();
            return match operation.request {
                // The result of an atomic must go to a single scatter/gather entry.
                Request::FetchAdd { .. } | Request::CompareSwap { .. } => {
                    Err(OperationError::NotPosted)
                }
                _ => Ok(Some(list)),
            };
        }
        Bytes::One(piece) => piece,
    };
    let Piece { region, offset, length } = piece;
    operation.length = length;
    match &mut operation.request {
        Request::Write { source, .. }
        | Request::Send { source }
        | Request::SendInvalidate { source, .. } => *source = Source::Region { region, offset },
        Request::Read { sink, sink_offset, .. } => (*sink, *sink_offset) = (region, offset),
        Request::FetchAdd { sink, .. } | Request::CompareSwap { sink, .. } => {
            *sink = match length {
                0 => None,
                8.. => Some(Sink { region, offset }),
                _ => return Err(OperationError::NotPosted),
            };
            operation.length = 8;
        }
        // A queue pair has no patches and swaps.
        Request::BindWindow { .. }
        | Request::Invalidate { .. }
        | Request::Patch { .. }
        | Request::Swap { .. } => {}
    }
    Ok(None)
}

/// Returns the engine's request for a send, without local memory. The caller fills in the local
/// memory.
#[inline]
const fn bare_request(opcode: SendOpcode, domain: ProtectionDomain) -> Request {
    let source = Source::Region { region: RegionId::NONE, offset: 0 };
    match opcode {
        SendOpcode::Write { address, key, .. } => {
            Request::Write { source, key: RemoteKey(key), address }
        }
        SendOpcode::Read { address, key } => {
            let (sink, sink_offset) = (RegionId::NONE, 0);
            Request::Read { sink, sink_offset, key: RemoteKey(key), address }
        }
        SendOpcode::Send { .. } => Request::Send { source },
        SendOpcode::SendInvalidate { key } => {
            Request::SendInvalidate { source, key: RemoteKey(key) }
        }
        SendOpcode::FetchAdd { address, key, operand } => {
            Request::FetchAdd { key: RemoteKey(key), address, operand, sink: None }
        }
        SendOpcode::CompareSwap { address, key, compare, swap } => {
            Request::CompareSwap { key: RemoteKey(key), address, compare, swap, sink: None }
        }
        SendOpcode::BindWindow { key, .. } => {
            Request::BindWindow { replaced: None, key: RemoteKey(key), window: None }
        }
        SendOpcode::LocalInvalidate { key } => Request::Invalidate { domain, key: RemoteKey(key) },
    }
}

const fn immediate_of(opcode: SendOpcode) -> Option<u32> {
    match opcode {
        SendOpcode::Write { immediate, .. } | SendOpcode::Send { immediate } => immediate,
        _ => None,
    }
}

/// Returns the engine's request for binding a window.
#[cold]
fn bind(
    memory: &MemoryAccess<'_>,
    ends: Ends,
    domain: ProtectionDomain,
    opcode: SendOpcode,
) -> Result<Request, OperationError> {
    let SendOpcode::BindWindow { kind, replaced, key, region_key, address, length, access } =
        opcode
    else {
        return Err(OperationError::NotPosted);
    };
    let window = if length == 0 {
        None
    } else {
        let region_key = RemoteKey(region_key);
        let found = memory.locate(domain, region_key, address, length, Rights::NONE);
        let (region, offset) = found.map_err(|_| OperationError::WindowBind)?;
        Some(Window {
            region,
            offset,
            len: length,
            remote_start: address,
            rights: AccessFlags(access).rights(),
            reach: match kind {
                WindowType::One => Reach::Domain,
                WindowType::Two => Reach::Connection(ends.receives.owner().bits()),
            },
        })
    };
    let replaced = (replaced != 0).then_some(RemoteKey(replaced));
    Ok(Request::BindWindow { replaced, key: RemoteKey(key), window })
}

/// Posts the oldest receive of a queue pair. Does not check whether the receive's memory is
/// registered. If it is not registered, the receive fails when a message arrives for it.
pub(crate) fn post_receive(
    engine: &mut Engine,
    memory: &MemoryAccess<'_>,
    handle: ConnectionHandle,
    domain: ProtectionDomain,
    receive: &TakenReceive<'_>,
) -> Outcome {
    let (pieces, context) = (receive.pieces(), receive.sequence());
    let posted = if pieces.len() > 1 {
        post_receive_list(engine, memory, handle, domain, receive)
    } else {
        let found = pieces
            .first()
            .map_or(Ok(Piece::NOTHING), |piece| locate(memory, domain, piece, Rights::LOCAL_WRITE));
        match found {
            Ok(Piece { region, offset, length }) => {
                engine.post_receive(memory, handle, Receive { region, offset, length, context })
            }
            Err(_) => engine.post_failed_receive(handle, total(pieces), context),
        }
    };
    let posted = posted.or_else(|error| match error {
        PostError::LocalAccess(_) => engine.post_failed_receive(handle, total(pieces), context),
        error => Err(error),
    });
    match posted {
        Ok(()) => Outcome::Posted,
        Err(PostError::NotConnected) => Outcome::Over,
        Err(_) => Outcome::NoRoom,
    }
}

#[inline(never)]
fn post_receive_list(
    engine: &mut Engine,
    memory: &MemoryAccess<'_>,
    handle: ConnectionHandle,
    domain: ProtectionDomain,
    receive: &TakenReceive<'_>,
) -> Result<(), PostError> {
    let mut room = [Piece::NOTHING; PIECES_MAX];
    let (pieces, context) = (receive.pieces(), receive.sequence());
    let found = locate_all(memory, domain, pieces, Rights::LOCAL_WRITE, &mut room);
    match found.ok().and_then(|found| PieceList::new(found).ok()) {
        Some(list) => engine.post_receive_list(memory, handle, list, context),
        None => engine.post_failed_receive(handle, total(pieces), context),
    }
}

/// Returns the total length of all entries in bytes, but at most `u32::MAX`.
pub(super) fn total(pieces: &[ScatterGather]) -> u32 {
    pieces.iter().fold(0, |sum: u32, piece| sum.saturating_add(piece.length))
}

/// Locates scatter/gather entries.
pub(super) fn locate_all<'a>(
    memory: &MemoryAccess<'_>,
    domain: ProtectionDomain,
    pieces: &[ScatterGather],
    want: Rights,
    room: &'a mut [Piece; PIECES_MAX],
) -> Result<&'a [Piece], OperationError> {
    for (found, piece) in room.iter_mut().zip(pieces) {
        *found = locate(memory, domain, piece, want)?;
    }
    room.get(..pieces.len()).ok_or(OperationError::NotPosted)
}

/// Locates a scatter/gather entry. An entry of length 0 may have any key.
#[inline]
pub(super) fn locate(
    memory: &MemoryAccess<'_>,
    domain: ProtectionDomain,
    piece: &ScatterGather,
    want: Rights,
) -> Result<Piece, OperationError> {
    let &ScatterGather { address, length, key } = piece;
    if length == 0 {
        return Ok(Piece::NOTHING);
    }
    let found = memory.locate(domain, RemoteKey(key), address, length.into(), want);
    let (region, offset) = found.map_err(|_| OperationError::LocalAccess)?;
    Ok(Piece { region, offset, length })
}

/// Returns the error for the completion of a work request that the engine has rejected because of
/// `error`. Returns `None` if the request itself is not the cause of the rejection.
const fn fault_of(error: PostError) -> Option<OperationError> {
    match error {
        PostError::LocalAccess(_) => Some(OperationError::LocalAccess),
        PostError::RemoteRange { .. } => Some(OperationError::RemoteAccess(AccessFault::Range)),
        PostError::Misaligned(_) => Some(OperationError::RemoteAccess(AccessFault::Alignment)),
        PostError::ReadsRefused => Some(OperationError::RemoteInvalidRequest),
        PostError::TooLong(_) | PostError::InlineTooLong(_) | PostError::QueuePairOnly => {
            Some(OperationError::NotPosted)
        }
        _ => None,
    }
}
