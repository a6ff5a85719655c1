//! Translates the simulator's operations to those of the engine.

use mem::{Reach, RegionId, Rights, Window};
use semantics::{OperationError, OperationFlags, Order, PIECES_MAX, Piece, Request, Sink, Source};
use wire_edge::RemoteKey;

use super::{Connection, EdgeHost, refusal_of};
use crate::host::{Action, Operation, Refusal};
use crate::random::Random;

impl EdgeHost {
    /// Translates an operation of a connection to a request of the engine. `region` is the
    /// operation's local memory.
    pub(super) fn request(
        &self,
        connection: &Connection,
        operation: &Operation,
        region: RegionId,
    ) -> Request {
        let offset = u64::from(operation.local_offset);
        let (key, address) = (RemoteKey(operation.key), operation.address);
        let source = Source::Region { region, offset };
        let sink = self.shape.is_of_queue_pairs.then_some(Sink { region, offset });
        match operation.action {
            Action::Write => Request::Write { source, key, address },
            Action::Read => Request::Read { sink: region, sink_offset: offset, key, address },
            Action::FetchAdd { operand } => Request::FetchAdd { key, address, operand, sink },
            Action::CompareSwap { compare, swap } => {
                Request::CompareSwap { key, address, compare, swap, sink }
            }
            Action::Swap { value } => Request::Swap { key, address, value, sink },
            Action::Patch => Request::Patch { source, key, address },
            Action::Send => Request::Send { source },
            Action::SendInvalidate => Request::SendInvalidate { source, key },
            Action::Bind { replaced, is_for_all } => {
                let own = Reach::Connection(connection.handle.owner().bits());
                let window = Window {
                    region,
                    offset: 0,
                    len: operation.local.length_bytes.into(),
                    remote_start: address,
                    rights: Rights::REMOTE_READ | Rights::REMOTE_WRITE,
                    reach: if is_for_all { Reach::Domain } else { own },
                };
                let replaced = replaced.map(RemoteKey);
                Request::BindWindow { replaced, key, window: Some(window) }
            }
            Action::Invalidate => {
                let domain = self.domains.get(connection.service as usize).copied();
                Request::Invalidate { domain: domain.unwrap_or(mem::ProtectionDomain::NONE), key }
            }
        }
    }

    /// Posts an operation whose local memory has been deregistered. The operation fails when the
    /// engine processes it.
    pub(super) fn post_failed(
        &mut self,
        handle: engine::ConnectionHandle,
        posted: &semantics::Operation,
    ) -> Result<(), Refusal> {
        let failed = self.engine.post_failed(handle, posted, OperationError::LocalAccess);
        failed.map_err(|error| refusal_of(&error))
    }
}

/// Translates the flags of an operation.
pub(super) const fn flags_of(operation: &Operation) -> OperationFlags {
    let flags = operation.flags;
    OperationFlags {
        fence_before: flags.fence_before,
        fence_after: flags.fence_after,
        waits_for_answers: false,
        order: if flags.strict { Order::Strict } else { Order::Relaxed },
        notify: false,
        signalled: flags.signalled,
    }
}

/// Returns the local memory that an operation reads or writes. Returns `None` if the operation uses
/// no local memory, or if a scatter/gather list cannot describe the memory.
pub(super) const fn local_piece(posted: &semantics::Operation) -> Option<Piece> {
    let (region, offset) = match posted.request {
        Request::Write { source: Source::Region { region, offset }, .. }
        | Request::Send { source: Source::Region { region, offset } }
        | Request::SendInvalidate { source: Source::Region { region, offset }, .. } => {
            (region, offset)
        }
        Request::Read { sink, sink_offset, .. } => (sink, sink_offset),
        _ => return None,
    };
    Some(Piece { region, offset, length: posted.length })
}

/// Cuts memory into several scatter/gather entries. `salt` determines their sizes; some entries are
/// empty.
pub(super) fn cut(whole: Piece, salt: u64) -> Vec<Piece> {
    let mut random = Random::stream(salt, CUT_STREAM);
    let count = random.pick(&[1, 2, 3, 7, PIECES_MAX]);
    let mut pieces = Vec::new();
    let mut done = 0;
    for left in (0..count).rev() {
        let rest = whole.length - done;
        let most = random.pick(&[rest, rest.min(8), rest.min(1000), 0]);
        let length = if left == 0 { rest } else { random.between(0, most.into()) as u32 };
        pieces.push(Piece { offset: whole.offset + u64::from(done), length, ..whole });
        done += length;
    }
    pieces
}

const CUT_STREAM: u64 = 0x6375_7473;
