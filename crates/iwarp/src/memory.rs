//! The boundary to the memory of the application.

use wire_iwarp::{Cause, Stag};

/// A range of registered memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// Key of the region: a local key, or an STag.
    pub key: u32,
    /// Address of the first byte: a virtual address, or a tagged offset.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
}

impl Piece {
    /// Returns the `bytes` bytes that are `offset` bytes behind the start of the piece.
    pub(crate) const fn part(self, offset: u32, bytes: u32) -> Self {
        Self { key: self.key, address: self.address.wrapping_add(offset as u64), bytes }
    }
}

/// For what a range of memory is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// This end reads the payload of an own operation.
    LocalRead,
    /// This end places the answer to an own read.
    LocalWrite,
    /// This end places the payload of a Send into a receive.
    Receive,
    /// The peer reads.
    RemoteRead,
    /// The peer writes.
    RemoteWrite,
}

/// Why an access is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The key names no region.
    #[error("the key names no region")]
    Key,
    /// The range exceeds the region.
    #[error("the range exceeds the region")]
    Bounds,
    /// The region does not permit the access.
    #[error("the region does not permit the access")]
    Rights,
    /// The region belongs to another protection domain or stream.
    #[error("the region belongs to another protection domain")]
    Stream,
}

impl Refusal {
    //= RFC 5040 section 4.8: DDP reports errors of tagged placement and RDMAP those of access rights
    /// Returns what a Terminate says if a Write of the peer is refused.
    pub(crate) const fn cause_of_write(self) -> Cause {
        match self {
            Self::Key => Cause::TaggedStag,
            Self::Bounds => Cause::TaggedBounds,
            Self::Rights => Cause::ProtectionAccess,
            Self::Stream => Cause::TaggedStream,
        }
    }

    //= RFC 5040 section 4.8: RDMAP reports the errors of the source of a Read Request
    /// Returns what a Terminate says if a read of the peer is refused.
    pub(crate) const fn cause_of_read(self) -> Cause {
        match self {
            Self::Key => Cause::ProtectionStag,
            Self::Bounds => Cause::ProtectionBounds,
            Self::Rights => Cause::ProtectionAccess,
            Self::Stream => Cause::ProtectionStream,
        }
    }
}

/// The memory and the receives of a stream's application.
///
/// The stream never passes a piece without bytes to `check`, `place` or `read`.
pub trait Memory {
    /// Checks that all bytes of the piece permit the access now.
    ///
    /// # Errors
    /// Returns why the access is refused.
    fn check(&mut self, piece: Piece, access: Access) -> Result<(), Refusal>;

    /// Copies `bytes`, which are as many as those of the piece, to the piece. If `is_tail`, stores
    /// the last word after all other bytes.
    ///
    /// # Errors
    /// Returns why the access is refused. Bytes may have been stored then.
    fn place(
        &mut self,
        piece: Piece,
        access: Access,
        bytes: &[u8],
        is_tail: bool,
    ) -> Result<(), Refusal>;

    /// Copies the bytes of the piece to `out`, which is as long.
    ///
    /// # Errors
    /// Returns why the access is refused.
    fn read(&mut self, piece: Piece, access: Access, out: &mut [u8]) -> Result<(), Refusal>;

    /// Invalidates an STag for the peer.
    ///
    /// # Errors
    /// Returns [`Refusal`] if the peer must not invalidate the STag.
    fn invalidate(&mut self, stag: Stag) -> Result<(), Refusal>;

    /// Takes the next receive from the receive queue: appends its pieces, at most
    /// [`crate::PIECES_MAX`], to `pieces`, which is empty, and returns its identifier. Returns
    /// `None` if the queue is empty.
    fn take_receive(&mut self, pieces: &mut Vec<Piece>) -> Option<u64>;
}
