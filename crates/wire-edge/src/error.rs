//! Errors in received bytes, as decoders report them.

use crate::flags::{Flags, Kind};
use crate::identity::LinkIndex;

/// Why bytes from a peer are malformed. Each cause has a variant. The receiver drops the bytes and
/// counts the cause.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a part of the frame.
    #[error("{part} needs {needed} bytes and {found} are left")]
    Truncated {
        /// Name of the part.
        part: &'static str,
        /// Number of bytes that the part needs.
        needed: usize,
        /// Number of bytes left.
        found: usize,
    },
    /// Bytes follow the last part of a frame, although the fields of the frame say that the frame
    /// ends there.
    #[error("{bytes} bytes follow the end of {part}")]
    Trailing {
        /// The last part.
        part: &'static str,
        /// Number of extra bytes.
        bytes: usize,
    },
    /// The low nibble of the first byte, the kind, has a reserved value.
    #[error("frame of reserved kind {0}")]
    Kind(u8),
    /// The frame is a handshake frame, but a connection frame was expected.
    #[error("a handshake frame is not a connection frame")]
    Handshake,
    /// The frame is a datagram, but a connection frame was expected.
    #[error("a datagram is not a connection frame")]
    Datagram,
    /// The frame has this kind, but a datagram was expected.
    #[error("a frame of kind {0:?} is not a datagram")]
    NotDatagram(Kind),
    /// The first byte of a datagram has a link index in its high nibble.
    #[error("datagram with link index {0}, not 0")]
    DatagramLink(u8),
    /// The frame has this kind, but a handshake frame was expected.
    #[error("a frame of kind {0:?} is not a handshake frame")]
    NotHandshake(Kind),
    /// The first byte of a handshake frame has a link index in its high nibble.
    #[error("handshake frame with link index {0}, not 0")]
    HandshakeLink(u8),
    /// The magic of the preamble is not "ETHN".
    #[error("handshake frame with magic {0:02x?}")]
    Magic([u8; 4]),
    /// The frame has this version, which the receiver does not support. [`crate::preamble`] returns
    /// the ids that an answer needs.
    #[error("handshake frame of version {0}, not {own}", own = crate::VERSION)]
    Version(u16),
    /// The step of the handshake is unknown.
    #[error("unknown handshake step {0}")]
    Step(u8),
    /// A flag that this kind of frame requires is missing.
    #[error("frame of kind {kind:?} without flag {flag:?}")]
    FlagMissing {
        /// Kind of the frame.
        kind: Kind,
        /// The missing flag.
        flag: Flags,
    },
    /// The frame has a flag for a part that frames of this kind do not have.
    #[error("frame of kind {kind:?} with flag {flag:?}")]
    FlagForbidden {
        /// Kind of the frame.
        kind: Kind,
        /// The flag.
        flag: Flags,
    },
    /// The value of a field is outside its range.
    #[error("{field} is {value}")]
    Range {
        /// Name of the field in protocol.md.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// The end of the operation is above 2^31. For a read, the end is its length; for other
    /// operations, it is `offset + payload length`.
    #[error("operation reaches to byte {end}, beyond 2^31")]
    OperationLength {
        /// Lower bound for the end of the operation, in bytes from its start.
        end: u64,
    },
    /// `address - offset` is below 0: the operation would start before the address space.
    #[error("remote address {address:#x} is less than the offset {offset} it lies at")]
    AddressBeforeStart {
        /// Remote address of the first payload byte of the frame.
        address: u64,
        /// Offset of the first payload byte within the operation.
        offset: u32,
    },
    /// `address + length` is above 2^64 − 1.
    #[error("{length} bytes at remote address {address:#x} leave the address space")]
    AddressWraps {
        /// Remote address of the first accessed byte.
        address: u64,
        /// Number of accessed bytes.
        length: u64,
    },
    /// A Write, Send or `ReadResponse` frame has no payload, although its operation is not empty.
    #[error("frame without payload at offset {offset}")]
    PayloadEmpty {
        /// Offset of the frame within its operation, in bytes.
        offset: u32,
    },
    /// The payload of a Patch has bytes that are not a whole record.
    #[error("payload of a Patch without a whole record at byte {offset}")]
    PatchRecord {
        /// Offset of these bytes within the payload of the frame.
        offset: u32,
    },
    /// A record of a Patch names the same block as the record before it, or an earlier block.
    #[error("payload of a Patch with block {block} not after the block of the record before")]
    PatchOrder {
        /// Number of the block.
        block: u16,
    },
    /// Two blocks of an ack section are about the same link.
    #[error("ack section with two blocks for link {0:?}")]
    AckLinkTwice(LinkIndex),
    /// A Control frame contains no message.
    #[error("control frame without a message")]
    ControlEmpty,
    /// The body of a control message has the wrong length for its type.
    #[error("control message {message} with a body of {found} bytes")]
    ControlLength {
        /// Name of the message.
        message: &'static str,
        /// Length of the body in bytes.
        found: usize,
    },
    /// An address has an unknown family, or a nonzero value in a byte that its family does not use.
    #[error("malformed address {0:02x?}")]
    Address([u8; 20]),
}
