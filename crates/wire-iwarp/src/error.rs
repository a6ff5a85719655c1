//! Errors in received bytes, as decoders report them, and errors of callers that encode.

use crate::cause::Cause;
use crate::mpa::{PRIVATE_DATA_MAX, SetupKind};
use crate::rdmap::Opcode;

/// Why the bytes at the start of a stream are no MPA set-up frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The key differs from the key of the expected kind.
    #[error("not an MPA {kind} frame: the key differs at byte {at}")]
    Key {
        /// The expected kind of frame.
        kind: SetupKind,
        /// Offset of the first wrong byte, 0 to 15.
        at: usize,
    },
    /// The revision is unknown.
    #[error("MPA revision {0}, not 0, 1 or 2")]
    Revision(u8),
    /// The length of the private data is above the limit of RFC 5044 section 7.1.1.
    #[error("{0} bytes of private data, more than {PRIVATE_DATA_MAX}")]
    PrivateDataLength(u16),
    /// The frame says that it has the words of enhanced set-up, but its private data is too short.
    #[error("enhanced set-up with {0} bytes of private data, less than 4")]
    EnhancedTruncated(u16),
}

impl SetupError {
    /// Returns what a Terminate that answers this error says.
    pub const fn cause(self) -> Cause {
        Cause::MpaInvalidSetup
    }
}

/// Why a ULPDU is no segment that RDMAP allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The ULPDU is shorter than its headers.
    #[error("a ULPDU of {found} bytes, less than the {needed} of its headers")]
    Truncated {
        /// Number of bytes that the headers need.
        needed: usize,
        /// Length of the ULPDU in bytes.
        found: usize,
    },
    /// A tagged segment has another DDP version than 1.
    #[error("a tagged segment of DDP version {0}, not 1")]
    TaggedDdpVersion(u8),
    /// An untagged segment has another DDP version than 1.
    #[error("an untagged segment of DDP version {0}, not 1")]
    UntaggedDdpVersion(u8),
    /// RDMAP uses the queues 0, 1 and 2 only.
    #[error("queue number {0}, not 0, 1 or 2")]
    QueueNumber(u32),
    /// The RDMAP version is not 1.
    #[error("RDMAP version {0}, not 1")]
    RdmapVersion(u8),
    /// The opcode is 8 or above, which RFC 5040 reserves.
    #[error("reserved RDMAP opcode {0}")]
    Opcode(u8),
    /// The segment is tagged, but its opcode belongs to untagged messages.
    #[error("a tagged segment of opcode {0:?}")]
    MustBeUntagged(Opcode),
    /// The segment is untagged, but its opcode belongs to tagged messages.
    #[error("an untagged segment of opcode {0:?}")]
    MustBeTagged(Opcode),
    /// The segment is on the queue of another opcode.
    #[error("a segment of opcode {opcode:?} on queue {queue}")]
    Queue {
        /// Opcode of the segment.
        opcode: Opcode,
        /// Its queue number.
        queue: u32,
    },
    /// The payload of a Read Request has the wrong length.
    #[error("a Read Request of {0} bytes, not 28")]
    ReadRequestLength(usize),
}

impl SegmentError {
    /// Returns what a Terminate that answers this error says.
    pub const fn cause(self) -> Cause {
        match self {
            // No RFC assigns a code to a ULPDU that is shorter than its headers. The code for a wrong
            // length field fits best, and siw sends it too.
            Self::Truncated { .. } => Cause::MpaMarkerAndLength,
            Self::TaggedDdpVersion(_) => Cause::TaggedVersion,
            Self::UntaggedDdpVersion(_) => Cause::UntaggedVersion,
            Self::QueueNumber(_) | Self::Queue { .. } => Cause::UntaggedQueueNumber,
            Self::RdmapVersion(_) => Cause::OperationVersion,
            Self::Opcode(_) | Self::MustBeUntagged(_) | Self::MustBeTagged(_) => {
                Cause::OperationOpcode
            }
            Self::ReadRequestLength(_) => Cause::OperationUnspecified,
        }
    }
}

/// Why the payload of a Terminate message is malformed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TerminateError {
    /// The payload ends inside a part that the message says to have.
    #[error("{part} of a Terminate needs {needed} bytes and {found} are left")]
    Truncated {
        /// Name of the part.
        part: &'static str,
        /// Number of bytes that the part needs.
        needed: usize,
        /// Number of bytes left.
        found: usize,
    },
}

/// Why a frame cannot be encoded. The fault is the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is too short.
    #[error("the frame needs {needed} bytes and the buffer has {found}")]
    Buffer {
        /// Length of the frame in bytes.
        needed: usize,
        /// Length of the buffer in bytes.
        found: usize,
    },
    /// The private data, with the words of enhanced set-up, is too long.
    #[error("{0} bytes of private data, more than {PRIVATE_DATA_MAX}")]
    PrivateDataLength(usize),
    /// The words of enhanced set-up are there without revision 2 and its flag, or the flag in
    /// revision 2 without the words.
    #[error("words of enhanced set-up need revision 2 and the flag, and belong to them")]
    Enhanced,
    /// A number of reads does not fit into 14 bits.
    #[error("{0} outstanding reads do not fit into 14 bits")]
    Depth(u16),
    /// A reserved field has bits outside its mask.
    #[error("reserved bits {bits:#06x} are outside of {mask:#06x}")]
    Reserved {
        /// The bits.
        bits: u16,
        /// The mask of the field.
        mask: u16,
    },
}
