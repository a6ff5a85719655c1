//! The first two bytes of every connection frame: kinds and flags.

use crate::error::DecodeError;

/// The kind of a frame (protocol.md §1.2). The discriminant is the low nibble of byte 0.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// Connection set-up, and answers to frames without a connection.
    Handshake = 0,
    /// An ack section only. An Ack is never acknowledged.
    Ack,
    /// Control messages.
    Control,
    /// Bytes to write to a memory region of the receiver.
    Write,
    /// A request for bytes of a memory region of the receiver.
    ReadRequest,
    /// Bytes that the receiver requested by a `ReadRequest`.
    ReadResponse,
    /// Bytes for the receive with this message number.
    Send,
    /// A request for an atomic operation on eight bytes of the receiver's memory.
    Atomic,
    /// The value of the memory before the atomic operation.
    AtomicResponse,
    /// Padding, which tests whether frames of this size arrive.
    Probe,
    /// A datagram of a queue pair, without a connection.
    Datagram,
    /// Bytes for the receive with this message number. The last frame also invalidates a key of the
    /// receiver.
    SendInvalidate,
    /// Scattered words to write to a memory region of the receiver.
    Patch,
}

impl Kind {
    //= protocol.md: kind.1, kind.2
    /// Returns the kind in the low nibble of a frame's first byte.
    ///
    /// # Errors
    /// Returns [`DecodeError::Kind`] for the reserved values 13 to 15.
    #[inline]
    pub const fn from_first_byte(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte & 0x0f {
            0 => Self::Handshake,
            1 => Self::Ack,
            2 => Self::Control,
            3 => Self::Write,
            4 => Self::ReadRequest,
            5 => Self::ReadResponse,
            6 => Self::Send,
            7 => Self::Atomic,
            8 => Self::AtomicResponse,
            9 => Self::Probe,
            10 => Self::Datagram,
            11 => Self::SendInvalidate,
            12 => Self::Patch,
            reserved => return Err(DecodeError::Kind(reserved)),
        })
    }

    //= protocol.md: ack.4
    /// Returns whether a frame of this kind elicits an acknowledgement.
    #[inline]
    pub const fn is_ack_eliciting(self) -> bool {
        !matches!(self, Self::Handshake | Self::Ack | Self::Datagram)
    }
}

/// Flags of a connection frame (protocol.md §3.1). If a flag has no meaning for a kind of frame,
/// senders clear the flag and receivers ignore it. There is one exception: if a flag announces a
/// part that frames of this kind do not have, receivers treat the frame as malformed.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Flags(pub u8);

impl Flags {
    /// The frame contains the last byte of the operation.
    pub const LAST: Self = Self(1 << 0);
    /// The receiver places and delivers this operation only after it has delivered all earlier
    /// operations.
    pub const FENCE_BEFORE: Self = Self(1 << 1);
    /// Announces that every later operation has the flag `FENCE_BEFORE`, until this operation is
    /// delivered and answered.
    pub const FENCE_AFTER: Self = Self(1 << 2);
    /// The strict ordering rules apply to this operation.
    pub const STRICT: Self = Self(1 << 3);
    /// An immediate follows the header of the operation. In a `SendInvalidate`, a key follows
    /// instead.
    pub const IMMEDIATE: Self = Self(1 << 4);
    /// The receiver must acknowledge soon (protocol.md §6.2).
    pub const ACK_NOW: Self = Self(1 << 5);
    /// An ack section follows the headers.
    pub const ACK: Self = Self(1 << 6);
    /// The completion wakes a waiting application.
    pub const SOLICITED: Self = Self(1 << 7);
    /// No flag.
    pub const NONE: Self = Self(0);

    /// Returns whether all of `flags` are set.
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns whether at least one of `flags` is set.
    #[inline]
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Returns the union of these flags and `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Returns these flags without `flags`.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Returns the byte on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}
