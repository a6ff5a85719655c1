//! What an application asks for.

use mem::{MemoryAccess, ProtectionDomain, RegionId, Rights, Window};
use wire_edge::RemoteKey;

use crate::limits::{INLINE_BYTES_MAX, OPERATION_BYTES_MAX};
use crate::{CompletionKind, Piece, PieceList, PostError};

/// One operation, as posted.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What to do.
    pub request: Request,
    /// Bytes, 0 to 2^31 (8 for atomics).
    pub length: u32,
    /// Order and notification.
    pub flags: OperationFlags,
    /// Delivered to the peer with a message, or with the notification of a write, which it implies.
    pub immediate: Option<u32>,
    /// Comes back in the completion.
    pub context: u64,
    /// Slot of the status table that follows this operation, if somebody holds a handle.
    pub status: Option<u32>,
}

impl Operation {
    /// Whether it is possible as far as this side knows without its connection: lengths, ranges,
    /// alignment, local memory.
    ///
    /// # Errors
    /// [`PostError::TooLong`], [`PostError::InlineTooLong`], [`PostError::RemoteRange`],
    /// [`PostError::Misaligned`] or [`PostError::LocalAccess`].
    pub fn check(&self, memory: &MemoryAccess<'_>) -> Result<(), PostError> {
        match self.request {
            Request::FetchAdd { address, .. } | Request::CompareSwap { address, .. }
                if !address.is_multiple_of(8) =>
            {
                Err(PostError::Misaligned(address))
            }
            _ => self.check_of_queue_pair(memory),
        }
    }

    /// Checks work of a queue pair as [`Operation::check`] does, except for alignment: the peer finds out that an
    /// atomic is misaligned, and both ends fail as those of adapters do.
    ///
    /// # Errors
    /// As for [`Operation::check`], without [`PostError::Misaligned`].
    pub fn check_of_queue_pair(&self, memory: &MemoryAccess<'_>) -> Result<(), PostError> {
        let length = self.length;
        self.check_peer()?;
        let check_source = |source: &Source| match *source {
            Source::Inline(_) if length as usize > INLINE_BYTES_MAX => {
                Err(PostError::InlineTooLong(length))
            }
            Source::Inline(_) => Ok(()),
            Source::Region { .. } if length == 0 => Ok(()),
            Source::Region { region, offset } => {
                memory.source(region, offset, length)?;
                Ok(())
            }
        };
        match self.request {
            Request::Write { ref source, .. }
            | Request::Send { ref source }
            | Request::SendInvalidate { ref source, .. } => check_source(source),
            Request::Read { sink, sink_offset, .. } => {
                if length > 0 {
                    let length = u64::from(length);
                    memory.resolve_local(sink, sink_offset, length, Rights::LOCAL_WRITE)?;
                }
                Ok(())
            }
            Request::FetchAdd { sink, .. } | Request::CompareSwap { sink, .. } => {
                if let Some(Sink { region, offset }) = sink {
                    memory.resolve_local(region, offset, 8, Rights::LOCAL_WRITE)?;
                }
                Ok(())
            }
            Request::BindWindow { .. } | Request::Invalidate { .. } => Ok(()),
        }
    }

    /// Checks an operation as [`Operation::check`] does, of which the bytes come from these pieces, or go to them
    /// if it is a read; ignores the local memory named in the request. Of writes, reads and sends.
    ///
    /// # Errors
    /// As for [`Operation::check`].
    pub fn check_list(
        &self,
        memory: &MemoryAccess<'_>,
        list: PieceList<'_>,
    ) -> Result<(), PostError> {
        Self { length: list.length(), ..*self }.check_peer()?;
        for piece in list.cut(0, list.length()) {
            let Piece { region, offset, length } = piece;
            if matches!(self.request, Request::Read { .. }) {
                memory.resolve_local(region, offset, length.into(), Rights::LOCAL_WRITE)?;
            } else {
                memory.source(region, offset, length)?;
            }
        }
        Ok(())
    }

    /// What is asked of the peer is within what an operation can be.
    fn check_peer(&self) -> Result<(), PostError> {
        let length = self.length;
        let check_remote = |address: u64, length: u32| {
            let ends = address.checked_add(u64::from(length)).is_some();
            if ends { Ok(()) } else { Err(PostError::RemoteRange { address, length }) }
        };
        if length > OPERATION_BYTES_MAX {
            return Err(PostError::TooLong(u64::from(length)));
        }
        match self.request {
            Request::Send { .. }
            | Request::SendInvalidate { .. }
            | Request::BindWindow { .. }
            | Request::Invalidate { .. } => Ok(()),
            Request::Write { address, .. } | Request::Read { address, .. } => {
                check_remote(address, length)
            }
            Request::FetchAdd { address, .. } | Request::CompareSwap { address, .. } => {
                check_remote(address, 8)
            }
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Copies local bytes to the peer's memory.
    Write {
        /// Where the bytes are.
        source: Source,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Copies bytes of the peer's memory here.
    Read {
        /// Local region the bytes go to; of a read of no bytes any, or [`RegionId::NONE`].
        sink: RegionId,
        /// Where in that region, bytes from its start.
        sink_offset: u64,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Adds to 8 bytes of the peer's memory; the completion carries what they held before.
    FetchAdd {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address, a multiple of 8.
        address: u64,
        /// Added modulo 2^64.
        operand: u64,
        /// Where what the memory held before is stored here, if anywhere, before the completion is reported.
        sink: Option<Sink>,
    },
    /// Stores `swap` in 8 bytes of the peer's memory if they hold `compare`.
    CompareSwap {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address, a multiple of 8.
        address: u64,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
        /// As for [`Request::FetchAdd`].
        sink: Option<Sink>,
    },
    /// Sends a message into the receive that the peer posted.
    Send {
        /// Where the bytes are.
        source: Source,
    },
    /// Sends a message as [`Request::Send`] does, and ends a key of the peer with it: when the peer learns of the
    /// message, no access succeeds under that key. Of queue pairs only, and without an immediate.
    SendInvalidate {
        /// Where the bytes are.
        source: Source,
        /// Key of one of the peer's memory windows.
        key: RemoteKey,
    },
    /// Binds a memory window of this side, in its turn: operations posted before have begun, and none posted after
    /// it. The peer learns nothing of it. Of queue pairs only.
    BindWindow {
        /// A key that ends before, as the window had it until now.
        replaced: Option<RemoteKey>,
        /// Its key from now on.
        key: RemoteKey,
        /// What it opens; nothing if the window shall be bound to nothing.
        window: Option<Window>,
    },
    /// Ends the key of a memory window of this side that was bound for this connection, in its turn as
    /// [`Request::BindWindow`]. Of queue pairs only.
    Invalidate {
        /// The domain of the connection.
        domain: ProtectionDomain,
        /// The key.
        key: RemoteKey,
    },
}

impl Request {
    /// Returns the kind of its completion.
    pub const fn completion_kind(&self) -> CompletionKind {
        match self {
            Self::Write { .. } => CompletionKind::Write,
            Self::Read { .. } => CompletionKind::Read,
            Self::FetchAdd { .. } => CompletionKind::FetchAdd,
            Self::CompareSwap { .. } => CompletionKind::CompareSwap,
            Self::Send { .. } | Self::SendInvalidate { .. } => CompletionKind::Send,
            Self::BindWindow { .. } => CompletionKind::BindWindow,
            Self::Invalidate { .. } => CompletionKind::Invalidate,
        }
    }
}

/// Where the result of an atomic goes: 8 bytes of a region, in the byte order of this processor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sink {
    /// The region.
    pub region: RegionId,
    /// Bytes from its start.
    pub offset: u64,
}

/// Where the bytes of a write or send come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Registered memory, which must not change until the operation is complete.
    Region {
        /// The region.
        region: RegionId,
        /// Bytes from its start.
        offset: u64,
    },
    /// Bytes carried by value: the first `length` of these.
    Inline([u8; INLINE_BYTES_MAX]),
}

/// How operations of one connection may overtake one another at the target.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Order {
    /// Bytes are placed as they arrive (`MultiEdge`'s default).
    #[default]
    Relaxed,
    /// As a reliable connection of verbs: a thread that sees the last byte of an operation sees every
    /// byte of all earlier ones, and of two writes to one place the later one wins.
    Strict,
}

/// Order and notification of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationFlags {
    /// Performed only after all earlier operations of this connection (backward fence).
    pub fence_before: bool,
    /// All later operations are performed only after this one (forward fence).
    pub fence_after: bool,
    /// Begun only when all earlier reads and atomics of this connection are complete (the fence of verbs). Earlier
    /// writes and sends may be in flight; the peer is not notified.
    pub waits_for_answers: bool,
    /// Free or strict order.
    pub order: Order,
    /// The peer is notified: an application that waits there is woken. A completion is queued there for a
    /// message, and for a write that carries an immediate.
    pub notify: bool,
    /// A completion is queued when the operation succeeds. (When it fails, one is queued in any case, but
    /// if a slot of the status table follows the operation, only if the queue has room.)
    pub signalled: bool,
}

/// A buffer for one message.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Where the message goes; of a receive of no bytes any, or [`RegionId::NONE`].
    pub region: RegionId,
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Longest message, in bytes.
    pub length: u32,
    /// Comes back in the completion.
    pub context: u64,
}
