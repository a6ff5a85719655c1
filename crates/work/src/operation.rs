//! The operations and receives that an application posts.

use mem::{AccessError, MemoryAccess, ProtectionDomain, RegionId, Rights, Window};
use wire_edge::{PATCH_RECORD_HEADER_BYTES, PatchRecord, RemoteKey};

use crate::completion_kind::CompletionKind;
use crate::error::PostError;
use crate::limits::{INLINE_BYTES_MAX, OPERATION_BYTES_MAX};
use crate::patch::check_patch;
use crate::pieces::{Piece, PieceList};

/// An operation to post.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The request: what the operation does.
    pub request: Request,
    /// Length in bytes, 0 to 2^31 (8 for atomics).
    pub length: u32,
    /// The order in which the operation is performed, and the notifications about it.
    pub flags: OperationFlags,
    /// 32 bits for the peer, which a message or a write carries. A write with an immediate causes a
    /// notification at the peer.
    pub immediate: Option<u32>,
    /// A value of the caller. The completion returns it.
    pub context: u64,
    /// Slot of this operation in the `StatusTable`, if the application has a handle of the
    /// operation.
    pub status: Option<u32>,
}

impl Operation {
    /// Checks the parts of the operation that do not depend on its connection: lengths, ranges,
    /// alignment and local memory.
    ///
    /// # Errors
    /// Returns [`PostError::TooLong`], [`PostError::InlineTooLong`], [`PostError::RemoteRange`],
    /// [`PostError::Misaligned`] or [`PostError::LocalAccess`], and for a patch
    /// [`PostError::PatchStrict`], [`PostError::PatchMisaligned`] or [`PostError::PatchRecords`].
    pub fn check(&self, memory: &MemoryAccess<'_>) -> Result<(), PostError> {
        match self.request {
            Request::FetchAdd { address, .. }
            | Request::CompareSwap { address, .. }
            | Request::Swap { address, .. }
                if !address.is_multiple_of(8) =>
            {
                Err(PostError::Misaligned(address))
            }
            _ => self.check_of_queue_pair(memory),
        }
    }

    /// Checks an operation of a queue pair like [`Operation::check`], but does not check alignment.
    /// On a queue pair, the peer detects a misaligned atomic, so that both ends report the same
    /// errors that network adapters report.
    ///
    /// # Errors
    /// Returns the errors of [`Operation::check`], except [`PostError::Misaligned`].
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
            Request::Patch { ref source, address, .. } => {
                check_source(source)?;
                self.check_order_of_patch()?;
                check_patch(address, length, |at| record_at(memory, source, at))
            }
            Request::Read { sink, sink_offset, .. } => {
                if length > 0 {
                    let length = u64::from(length);
                    memory.resolve_local(sink, sink_offset, length, Rights::LOCAL_WRITE)?;
                }
                Ok(())
            }
            Request::FetchAdd { sink, .. }
            | Request::CompareSwap { sink, .. }
            | Request::Swap { sink, .. } => {
                if let Some(Sink { region, offset }) = sink {
                    memory.resolve_local(region, offset, 8, Rights::LOCAL_WRITE)?;
                }
                Ok(())
            }
            Request::BindWindow { .. } | Request::Invalidate { .. } => Ok(()),
        }
    }

    /// Checks a write, read or send like [`Operation::check`]. The local bytes are the bytes of the
    /// entries of `list`. Ignores the local memory in the request.
    ///
    /// # Errors
    /// Returns the errors of [`Operation::check`].
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

    //= protocol.md: patch.4
    const fn check_order_of_patch(&self) -> Result<(), PostError> {
        match self.flags.order {
            Order::Relaxed => Ok(()),
            Order::Strict => Err(PostError::PatchStrict),
        }
    }

    /// Checks the length of the operation, and the range of addresses in the peer's memory.
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
            | Request::Invalidate { .. }
            // The range depends on the records, which are checked with the local bytes.
            | Request::Patch { .. } => Ok(()),
            Request::Write { address, .. } | Request::Read { address, .. } => {
                check_remote(address, length)
            }
            Request::FetchAdd { address, .. }
            | Request::CompareSwap { address, .. }
            | Request::Swap { address, .. } => check_remote(address, 8),
        }
    }
}

/// Returns the start of the record at offset `at` of the local bytes of a patch.
fn record_at(
    memory: &MemoryAccess<'_>,
    source: &Source,
    at: u32,
) -> Result<PatchRecord, AccessError> {
    let mut header = [0; PATCH_RECORD_HEADER_BYTES];
    match *source {
        Source::Region { region, offset } => {
            memory.copy_out(region, offset.saturating_add(u64::from(at)), &mut header)?;
        }
        Source::Inline(ref bytes) => {
            let inline = bytes.get(at as usize..).and_then(|bytes| bytes.first_chunk());
            header = inline.copied().unwrap_or_default();
        }
    }
    Ok(PatchRecord::decode(&header))
}

/// The action of an operation, and its parameters.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Copies local bytes to the peer's memory.
    Write {
        /// Source of the bytes.
        source: Source,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Copies bytes of the peer's memory to local memory.
    Read {
        /// Local region for the bytes. If the read has zero bytes, this may be any region or
        /// [`RegionId::NONE`].
        sink: RegionId,
        /// Offset in that region, in bytes.
        sink_offset: u64,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Adds to 8 bytes of the peer's memory. The completion contains the old value.
    FetchAdd {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory, a multiple of 8.
        address: u64,
        /// Number to add. The sum is computed modulo 2^64.
        operand: u64,
        /// Local memory that gets the old value before the completion is reported. `None` if only
        /// the completion shall report the old value.
        sink: Option<Sink>,
    },
    /// Stores `swap` in 8 bytes of the peer's memory if their value is `compare`.
    CompareSwap {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory, a multiple of 8.
        address: u64,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
        /// Local memory that gets the old value, like in [`Request::FetchAdd`].
        sink: Option<Sink>,
    },
    /// Copies scattered words of four bytes to the peer's memory. The local bytes are records
    /// ([`wire_edge::PatchRecord`]), which name the words. Each word becomes visible at once; the
    /// words become visible in any order. Possible only on connections with the feature `patch`.
    Patch {
        /// Source of the records.
        source: Source,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address of the area in the peer's memory, a multiple of 4.
        address: u64,
    },
    /// Stores `value` in 8 bytes of the peer's memory. The completion contains the old value.
    /// Possible only on connections with the feature `patch`.
    Swap {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory, a multiple of 8.
        address: u64,
        /// New value.
        value: u64,
        /// Local memory that gets the old value, like in [`Request::FetchAdd`].
        sink: Option<Sink>,
    },
    /// Sends a message, which consumes the next receive of the peer.
    Send {
        /// Source of the bytes.
        source: Source,
    },
    /// Sends a message like [`Request::Send`], and invalidates a key of the peer. After the peer's
    /// receive is complete, every access with that key fails. Possible only on queue pairs. The
    /// message cannot carry an immediate.
    SendInvalidate {
        /// Source of the bytes.
        source: Source,
        /// Key of one of the peer's memory windows.
        key: RemoteKey,
    },
    /// Binds a memory window of this side. Sends nothing to the peer. The binding happens after
    /// earlier operations have begun and before later operations begin. Possible only on queue
    /// pairs.
    BindWindow {
        /// Previous key of the window. The operation first invalidates this key.
        replaced: Option<RemoteKey>,
        /// New key of the window.
        key: RemoteKey,
        /// Memory that the window covers; `None` to bind the window to no memory.
        window: Option<Window>,
    },
    /// Invalidates the key of a memory window of this side. The window was bound for this
    /// connection. The invalidation happens after earlier operations have begun and before later
    /// operations begin. Possible only on queue pairs.
    Invalidate {
        /// The protection domain of the connection.
        domain: ProtectionDomain,
        /// Key of the window.
        key: RemoteKey,
    },
}

impl Request {
    /// Returns the kind of the completion of this request.
    pub const fn completion_kind(&self) -> CompletionKind {
        match self {
            Self::Write { .. } => CompletionKind::Write,
            Self::Read { .. } => CompletionKind::Read,
            Self::FetchAdd { .. } => CompletionKind::FetchAdd,
            Self::CompareSwap { .. } => CompletionKind::CompareSwap,
            Self::Patch { .. } => CompletionKind::Patch,
            Self::Swap { .. } => CompletionKind::Swap,
            Self::Send { .. } | Self::SendInvalidate { .. } => CompletionKind::Send,
            Self::BindWindow { .. } => CompletionKind::BindWindow,
            Self::Invalidate { .. } => CompletionKind::Invalidate,
        }
    }
}

/// Local memory for the result of an atomic: 8 bytes of a region, in the byte order of this
/// processor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sink {
    /// The region of the bytes.
    pub region: RegionId,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

/// The local bytes that a write, patch or send copies to the peer.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Registered memory, which must not change until the operation is complete.
    Region {
        /// The region of the bytes.
        region: RegionId,
        /// Offset in the region, in bytes.
        offset: u64,
    },
    /// Inline bytes. The operation uses the first bytes of the array, as many as its `length` says.
    Inline([u8; INLINE_BYTES_MAX]),
}

/// The order in which the bytes of one connection's operations reach the target's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Order {
    /// The target copies bytes to its memory in the order in which they arrive (`MultiEdge`'s
    /// default).
    #[default]
    Relaxed,
    /// The order of a reliable connection of verbs. If a thread of the target sees the last byte of
    /// an operation, it sees every byte of all earlier operations. If two writes have the same
    /// destination, the bytes of the later write remain.
    Strict,
}

/// The order and the notifications of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationFlags {
    /// The target performs this operation only after all earlier operations of this connection
    /// (backward fence).
    pub fence_before: bool,
    /// The target performs later operations of this connection only after this operation (forward
    /// fence).
    pub fence_after: bool,
    /// This end begins the operation only after all earlier reads and atomics of this connection
    /// are complete (the fence of verbs). Earlier writes and sends may still be in flight. The peer
    /// does not learn of this fence.
    pub waits_for_answers: bool,
    /// Relaxed or strict order.
    pub order: Order,
    /// Asks the peer to wake an application that waits for a completion. The flag has an effect
    /// only if the peer queues a completion, which it does for messages and for writes with an
    /// immediate.
    pub notify: bool,
    /// Whether the engine queues a completion if the operation succeeds. If the operation fails,
    /// the engine queues a completion even without this flag. There is one exception: if an
    /// operation without this flag has a slot in the status table, its failure is queued only if
    /// the queue has room.
    pub signalled: bool,
}

/// A buffer for one message.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Region for the message. If the receive has zero bytes, this may be any region or
    /// [`RegionId::NONE`].
    pub region: RegionId,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length of the longest message that fits, in bytes.
    pub length: u32,
    /// A value of the caller. The completion returns it.
    pub context: u64,
}
