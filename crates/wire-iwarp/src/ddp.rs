//! Headers of DDP segments (RFC 5041 section 4).

use crate::octets::Appender;

/// The version of DDP that this crate implements.
pub const DDP_VERSION: u8 = 1;

/// Length of the headers of a tagged segment in bytes.
pub const TAGGED_HEADER_BYTES: usize = 14;

/// Length of the headers of an untagged segment in bytes.
pub const UNTAGGED_HEADER_BYTES: usize = 18;

/// Length of the longest headers of a segment in bytes.
pub const SEGMENT_HEADER_BYTES_MAX: usize = UNTAGGED_HEADER_BYTES;

/// A steering tag: the name of a registered buffer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Stag(pub u32);

/// A queue of untagged messages, as RDMAP uses them (RFC 5040 section 4.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum QueueNumber {
    /// Queue 0: Sends.
    Send,
    /// Queue 1: Read Requests.
    ReadRequest,
    /// Queue 2: Terminates.
    Terminate,
}

impl QueueNumber {
    /// Returns the number of the queue.
    pub const fn number(self) -> u32 {
        match self {
            Self::Send => 0,
            Self::ReadRequest => 1,
            Self::Terminate => 2,
        }
    }

    /// Returns the queue with this number, or `None` if RDMAP does not use it.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Send),
            1 => Some(Self::ReadRequest),
            2 => Some(Self::Terminate),
            _ => None,
        }
    }
}

/// The fields of DDP in the headers of a segment.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum DdpHeader {
    /// The segment says where its payload belongs.
    Tagged {
        /// Whether this is the last segment of its message.
        last: bool,
        /// The buffer.
        stag: Stag,
        /// Tagged offset (TO) of the first payload byte in the buffer.
        offset: u64,
    },
    /// The payload of the segment belongs into the receiver's next buffer of a queue.
    Untagged {
        /// Whether this is the last segment of its message.
        last: bool,
        /// The queue.
        queue: QueueNumber,
        /// Message sequence number (MSN), counted from 1 in each queue.
        msn: u32,
        /// Message offset (MO) of the first payload byte in the message.
        mo: u32,
        /// The 32 bits that DDP leaves to RDMAP: the STag to invalidate for the opcodes with
        /// invalidate, else reserved. Senders set reserved bits to 0, and receivers ignore them.
        upper_layer: u32,
    },
}

impl DdpHeader {
    /// Returns whether the segment is tagged.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Tagged { .. })
    }

    /// Returns whether the segment is the last one of its message.
    pub const fn is_last(self) -> bool {
        match self {
            Self::Tagged { last, .. } | Self::Untagged { last, .. } => last,
        }
    }

    /// Returns the length of the headers of the segment in bytes, with the control field of RDMAP.
    pub const fn encoded_bytes(self) -> usize {
        if self.is_tagged() { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES }
    }

    /// Returns the bits of DDP in the control field.
    pub(crate) const fn control(self) -> u16 {
        let tagged = if self.is_tagged() { TAGGED } else { 0 };
        let last = if self.is_last() { LAST } else { 0 };
        tagged | last | (DDP_VERSION as u16) << VERSION_SHIFT
    }

    /// Appends the fields behind the control field.
    pub(crate) fn put(self, out: &mut Appender<'_>) {
        match self {
            Self::Tagged { stag, offset, .. } => {
                out.put(&stag.0.to_be_bytes());
                out.put(&offset.to_be_bytes());
            }
            Self::Untagged { queue, msn, mo, upper_layer, .. } => {
                for word in [upper_layer, queue.number(), msn, mo] {
                    out.put(&word.to_be_bytes());
                }
            }
        }
    }
}

/// The bit T of the control field.
pub(crate) const TAGGED: u16 = 0x8000;
/// The bit L of the control field.
pub(crate) const LAST: u16 = 0x4000;
/// The version of DDP in the control field.
pub(crate) const VERSION: u16 = 0x0300;
pub(crate) const VERSION_SHIFT: u32 = 8;
