//! Connection frames (protocol.md §3).

use crate::acknowledgement::AckSection;
use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::flags::{Flags, Kind};
use crate::handshake;
use crate::identity::{ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, RemoteKey};
use crate::octets::{get, put};
use crate::rules::{check_end, check_flags, check_ranges, check_records, check_write};

/// Size of the common header, in bytes.
pub const COMMON_BYTES: usize = layout_end(Layout::Common);
/// Size of the largest header of any kind, in bytes from the start of the frame.
pub const HEADER_BYTES_MAX: usize = ATOMIC_BYTES;
/// Maximum length of one operation, in bytes.
pub const OPERATION_BYTES_MAX: u64 = 1 << 31;

const OFFSET_BYTES: usize = layout_end(Layout::Offset);
const MESSAGE_BYTES: usize = layout_end(Layout::Message);
const TAGGED_BYTES: usize = layout_end(Layout::Tagged);
const IMMEDIATE_BYTES: usize = layout_end(Layout::Immediate);
const ATOMIC_BYTES: usize = layout_end(Layout::Operands);
const VALUE_BYTES: usize = layout_end(Layout::Value);
const _: () = assert!(COMMON_BYTES == 12 && OFFSET_BYTES == 20 && TAGGED_BYTES == 32);
const _: () = assert!(TAGGED_BYTES + IMMEDIATE_BYTES <= HEADER_BYTES_MAX);

/// The immediate of a Write or Patch. It follows the operation number, the offset, the key and the
/// address.
const TAGGED_IMMEDIATE: fields::Field = fields::Field { offset: TAGGED_BYTES, ..fields::IMMEDIATE };
/// The immediate of a Send. It follows the operation number, the offset and the message number.
const MESSAGE_IMMEDIATE: fields::Field =
    fields::Field { offset: MESSAGE_BYTES, ..fields::IMMEDIATE };

/// The key of a `SendInvalidate`. It stands at the position of the immediate.
const MESSAGE_INVALIDATED: fields::Field =
    fields::Field { offset: MESSAGE_BYTES, ..fields::INVALIDATED };
const _: () = assert!(layout_end(Layout::Invalidated) == IMMEDIATE_BYTES);

/// The common header of a connection frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefix {
    /// The kind of the frame. [`encode_header`] ignores this field and uses the kind of the header.
    pub kind: Kind,
    /// The link on which the packet number counts, 0 to 15.
    pub link: LinkIndex,
    /// The flags. [`encode_header`] replaces flags that the header determines.
    pub flags: Flags,
    /// The epoch that the receiver of the frame chose for this connection.
    pub epoch: Epoch,
    /// The connection id that the receiver of the frame chose.
    pub connection: ConnectionId,
    /// Low 32 bits of the packet number.
    pub packet: u32,
}

/// An atomic operation on eight bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u32)]
pub enum AtomicOpcode {
    /// Adds the operand.
    FetchAdd = 1,
    /// Stores the operand if the memory equals the compare value.
    CompareSwap = 2,
    /// Stores the operand.
    Swap = 3,
}

/// The part of a connection frame's header after the common header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Header {
    /// No header. An ack section follows.
    Ack,
    /// Control messages.
    Control,
    /// Padding.
    Probe,
    /// Bytes for a memory region of the receiver.
    Write {
        /// The operation.
        operation: OperationNumber,
        /// Offset of the payload's first byte within the operation.
        offset: u32,
        /// The key of the memory region.
        key: RemoteKey,
        /// Remote address of the payload's first byte.
        address: u64,
        /// 32 bits that the completion contains. Only a frame with [`Flags::LAST`] can have an
        /// immediate.
        immediate: Option<u32>,
    },
    /// Scattered words for a memory region of the receiver.
    Patch {
        /// The operation.
        operation: OperationNumber,
        /// Offset of the payload's first byte within the operation. The payload consists of
        /// [records](crate::PatchRecord).
        offset: u32,
        /// The key of the memory region.
        key: RemoteKey,
        /// Remote address of the area, a multiple of 4. All frames of the operation have the same
        /// address.
        address: u64,
        /// 32 bits that the completion contains. Only a frame with [`Flags::LAST`] can have an
        /// immediate.
        immediate: Option<u32>,
    },
    /// A request for bytes of a memory region of the receiver.
    ReadRequest {
        /// The operation.
        operation: OperationNumber,
        /// Number of bytes to read, at most 2^31.
        length: u32,
        /// The key of the memory region.
        key: RemoteKey,
        /// Remote address of the first byte.
        address: u64,
    },
    /// Bytes that the receiver requested.
    ReadResponse {
        /// The operation of the request.
        operation: OperationNumber,
        /// Offset of the payload's first byte within the operation.
        offset: u32,
    },
    /// Bytes for a posted receive.
    Send {
        /// The operation.
        operation: OperationNumber,
        /// Offset of the payload's first byte within the operation.
        offset: u32,
        /// Number of the receive that the message consumes.
        message: MessageNumber,
        /// 32 bits that the completion contains. Only a frame with [`Flags::LAST`] can have an
        /// immediate.
        immediate: Option<u32>,
    },
    /// Bytes for a posted receive. The last frame also invalidates a key of the receiver.
    SendInvalidate {
        /// The operation.
        operation: OperationNumber,
        /// Offset of the payload's first byte within the operation.
        offset: u32,
        /// Number of the receive that the message consumes.
        message: MessageNumber,
        /// Key that the receiver invalidates when it delivers the message. A frame has a key if and
        /// only if it has [`Flags::LAST`].
        key: Option<RemoteKey>,
    },
    /// A request for an atomic operation.
    Atomic {
        /// The operation.
        operation: OperationNumber,
        /// The atomic operation to perform.
        opcode: AtomicOpcode,
        /// The key of the memory region.
        key: RemoteKey,
        /// Remote address of the eight bytes.
        address: u64,
        /// The addend, or the value to store.
        operand: u64,
        /// The value to compare with; 0 for other operations.
        compare: u64,
    },
    /// The value of the memory before the atomic operation.
    AtomicResponse {
        /// The operation of the request.
        operation: OperationNumber,
        /// The eight bytes, as a number.
        value: u64,
    },
}

impl Header {
    /// Returns the kind of frames with this header.
    #[inline]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Ack => Kind::Ack,
            Self::Control => Kind::Control,
            Self::Probe => Kind::Probe,
            Self::Write { .. } => Kind::Write,
            Self::Patch { .. } => Kind::Patch,
            Self::ReadRequest { .. } => Kind::ReadRequest,
            Self::ReadResponse { .. } => Kind::ReadResponse,
            Self::Send { .. } => Kind::Send,
            Self::SendInvalidate { .. } => Kind::SendInvalidate,
            Self::Atomic { .. } => Kind::Atomic,
            Self::AtomicResponse { .. } => Kind::AtomicResponse,
        }
    }
}

/// A connection frame, after a check of its fields. Borrows the received bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// The common header.
    pub prefix: Prefix,
    /// The header of the frame's kind.
    pub header: Header,
    /// The ack section, if present.
    pub acks: Option<AckSection<'a>>,
    /// The bytes after the headers and the ack section: payload of the operation, control messages,
    /// or the padding of a Probe.
    pub payload: &'a [u8],
}

//= protocol.md: frame.2
/// Writes the common header and the header of a frame to the start of `out`. Returns their total
/// length in bytes.
///
/// `header` determines the kind and some flags:
///
/// * [`Flags::IMMEDIATE`] is set if and only if the header has an immediate, or a key at the
///   position of the immediate.
/// * [`Flags::LAST`] is set for requests and answers that always have one frame (`ReadRequest`,
///   `Atomic`, `AtomicResponse`).
/// * [`Flags::ACK`] is set for Ack.
///
/// If [`Flags::ACK`] is set, the caller must append an ack section.
#[inline]
pub fn encode_header(prefix: &Prefix, header: &Header, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let mut flags = prefix.flags.without(Flags::IMMEDIATE);
    let length = match *header {
        Header::Ack => {
            flags = flags.with(Flags::ACK);
            COMMON_BYTES
        }
        Header::Control | Header::Probe => COMMON_BYTES,
        Header::Write { operation, offset, key, address, immediate }
        | Header::Patch { operation, offset, key, address, immediate } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::OFFSET, offset.to_le_bytes());
            put!(out, fields::KEY, key.0.to_le_bytes());
            put!(out, fields::ADDRESS, address.to_le_bytes());
            put!(out, TAGGED_IMMEDIATE, immediate.unwrap_or(0).to_le_bytes());
            flags.0 |= Flags::IMMEDIATE.0 * u8::from(immediate.is_some());
            TAGGED_BYTES + IMMEDIATE_BYTES * usize::from(immediate.is_some())
        }
        Header::ReadRequest { operation, length, key, address } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::LENGTH, length.to_le_bytes());
            put!(out, fields::KEY, key.0.to_le_bytes());
            put!(out, fields::ADDRESS, address.to_le_bytes());
            flags = flags.with(Flags::LAST);
            TAGGED_BYTES
        }
        Header::ReadResponse { operation, offset } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::OFFSET, offset.to_le_bytes());
            OFFSET_BYTES
        }
        Header::Send { operation, offset, message, immediate } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::OFFSET, offset.to_le_bytes());
            put!(out, fields::MESSAGE, message.0.to_le_bytes());
            put!(out, MESSAGE_IMMEDIATE, immediate.unwrap_or(0).to_le_bytes());
            flags.0 |= Flags::IMMEDIATE.0 * u8::from(immediate.is_some());
            MESSAGE_BYTES + IMMEDIATE_BYTES * usize::from(immediate.is_some())
        }
        Header::SendInvalidate { operation, offset, message, key } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::OFFSET, offset.to_le_bytes());
            put!(out, fields::MESSAGE, message.0.to_le_bytes());
            put!(out, MESSAGE_INVALIDATED, key.map_or(0, |key| key.0).to_le_bytes());
            flags.0 |= Flags::IMMEDIATE.0 * u8::from(key.is_some());
            MESSAGE_BYTES + IMMEDIATE_BYTES * usize::from(key.is_some())
        }
        Header::Atomic { operation, opcode, key, address, operand, compare } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::OPCODE, (opcode as u32).to_le_bytes());
            put!(out, fields::KEY, key.0.to_le_bytes());
            put!(out, fields::ADDRESS, address.to_le_bytes());
            put!(out, fields::OPERAND, operand.to_le_bytes());
            put!(out, fields::COMPARE, compare.to_le_bytes());
            flags = flags.with(Flags::LAST);
            ATOMIC_BYTES
        }
        Header::AtomicResponse { operation, value } => {
            put!(out, fields::OPERATION, operation.0.to_le_bytes());
            put!(out, fields::RESPONSE_ZERO, [0; 4]);
            put!(out, fields::VALUE, value.to_le_bytes());
            flags = flags.with(Flags::LAST);
            VALUE_BYTES
        }
    };
    put!(out, fields::KIND, [header.kind() as u8 | prefix.link.0 << 4]);
    put!(out, fields::FLAGS, [flags.0]);
    put!(out, fields::EPOCH, prefix.epoch.0.to_le_bytes());
    put!(out, fields::CONNECTION, prefix.connection.0.to_le_bytes());
    put!(out, fields::PACKET, prefix.packet.to_le_bytes());
    length
}

/// Returns the values that identify the connection of a frame: kind, connection id and epoch. Reads
/// no other bytes of the frame.
///
/// For a handshake frame, the epoch is 0, and the connection id is the destination in the preamble.
/// The destination is 0 if the sender knows no id. For a datagram, both values are 0.
///
/// # Errors
/// Returns [`DecodeError`] if there are too few bytes, or if the kind is reserved.
#[inline]
pub fn peek(bytes: &[u8]) -> Result<(Kind, ConnectionId, Epoch), DecodeError> {
    let Some(common) = bytes.first_chunk::<COMMON_BYTES>() else {
        return Err(truncated("common header", COMMON_BYTES, bytes));
    };
    let kind = Kind::from_first_byte(common[0])?;
    if matches!(kind, Kind::Handshake) {
        let preamble = handshake::preamble(bytes)?;
        return Ok((kind, preamble.destination, Epoch(0)));
    }
    if matches!(kind, Kind::Datagram) {
        return Ok((kind, ConnectionId(0), Epoch(0)));
    }
    let prefix = prefix(kind, common);
    Ok((kind, prefix.connection, prefix.epoch))
}

/// Decodes the common header of a connection frame. `bytes` may end after that header.
///
/// # Errors
/// Returns [`DecodeError`] if there are too few bytes, if the kind is reserved, or if the frame is
/// a handshake frame or a datagram.
pub fn peek_prefix(bytes: &[u8]) -> Result<Prefix, DecodeError> {
    let Some(common) = bytes.first_chunk::<COMMON_BYTES>() else {
        return Err(truncated("common header", COMMON_BYTES, bytes));
    };
    match Kind::from_first_byte(common[0])? {
        Kind::Handshake | Kind::Datagram => Err(DecodeError::Kind(common[0])),
        kind => Ok(prefix(kind, common)),
    }
}

//= protocol.md: peer.2
/// Decodes a connection frame. Checks all rules of protocol.md §3 that do not depend on the state
/// of the connection.
///
/// [`crate::control_messages`] checks the messages in the payload of a control frame.
///
/// # Errors
/// Returns [`DecodeError`] if the frame is malformed. The error says which rule the frame breaks.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    decode_split(bytes, 0)
}

/// Decodes a connection frame like [`decode`]. The last `outside` bytes of the frame are payload
/// that is stored elsewhere, and `bytes` contains the bytes before them.
///
/// If `outside` is not 0, accepts only frames with bytes of an operation, except a Patch. `bytes`
/// must then end with the headers.
///
/// # Errors
/// Returns the errors of [`decode`].
#[inline]
pub fn decode_split(bytes: &[u8], outside: usize) -> Result<Frame<'_>, DecodeError> {
    // This is a fast path for a Write without an immediate. Nearly all frames of large transfers
    // and most frames of small transfers are such frames.
    if let Some((header, payload)) = bytes.split_first_chunk::<TAGGED_BYTES>()
        && header[0] & 0x0f == Kind::Write as u8
        && header[1] & Flags::IMMEDIATE.0 == 0
    {
        let (operation, offset, key, address) = tagged(header);
        let prefix = prefix(Kind::Write, header);
        let (acks, payload) = if prefix.flags.contains(Flags::ACK) {
            let (section, payload) = AckSection::decode(payload)?;
            (Some(section), payload)
        } else {
            (None, payload)
        };
        if outside > 0 {
            check_end("headers", payload.len())?;
        }
        check_write(prefix.flags, offset, address, payload.len() + outside)?;
        let header = Header::Write { operation, offset, key, address, immediate: None };
        return Ok(Frame { prefix, header, acks, payload });
    }
    decode_any(bytes, outside)
}

/// Decodes frames of all kinds, for [`decode_split`].
fn decode_any(bytes: &[u8], outside: usize) -> Result<Frame<'_>, DecodeError> {
    let Some(common) = bytes.first_chunk::<COMMON_BYTES>() else {
        return Err(truncated("common header", COMMON_BYTES, bytes));
    };
    let kind = Kind::from_first_byte(common[0])?;
    let prefix = prefix(kind, common);
    check_flags(kind, prefix.flags)?;
    let (header, rest) = decode_header(kind, prefix.flags, bytes)?;
    let (acks, payload) = if prefix.flags.contains(Flags::ACK) {
        let (section, rest) = AckSection::decode(rest)?;
        (Some(section), rest)
    } else {
        (None, rest)
    };
    if outside > 0 {
        check_end("headers", payload.len())?;
        if matches!(kind, Kind::Control | Kind::Probe) {
            check_end("Control or Probe", outside)?;
        }
    }
    check_ranges(prefix.flags, &header, payload.len() + outside)?;
    if let Header::Patch { address, .. } = header {
        // The records are checked here, so they must be in the frame.
        check_end("headers of a Patch", outside)?;
        check_records(address, payload)?;
    }
    Ok(Frame { prefix, header, acks, payload })
}

/// Decodes the header of a frame of this kind. Returns the header and the bytes after it.
fn decode_header(kind: Kind, flags: Flags, bytes: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
    let error = |part, needed| truncated(part, needed, bytes);
    Ok(match kind {
        Kind::Handshake => return Err(DecodeError::Handshake),
        Kind::Datagram => return Err(DecodeError::Datagram),
        Kind::Ack => (Header::Ack, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Control => (Header::Control, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Probe => (Header::Probe, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Write | Kind::Patch => {
            let (header, rest) = bytes
                .split_first_chunk()
                .ok_or(error("header of a Write or Patch", TAGGED_BYTES))?;
            let (operation, offset, key, address) = tagged(header);
            let (immediate, rest) = decode_immediate(flags, rest)?;
            let header = if matches!(kind, Kind::Write) {
                Header::Write { operation, offset, key, address, immediate }
            } else {
                Header::Patch { operation, offset, key, address, immediate }
            };
            (header, rest)
        }
        Kind::ReadRequest => {
            let (header, rest) =
                bytes.split_first_chunk().ok_or(error("header of a ReadRequest", TAGGED_BYTES))?;
            let (operation, length, key, address) = tagged(header);
            (Header::ReadRequest { operation, length, key, address }, rest)
        }
        Kind::ReadResponse => {
            let (header, rest) = bytes
                .split_first_chunk::<OFFSET_BYTES>()
                .ok_or(error("header of a ReadResponse", OFFSET_BYTES))?;
            let operation = operation(header);
            let offset = u32::from_le_bytes(get!(header, fields::OFFSET));
            (Header::ReadResponse { operation, offset }, rest)
        }
        Kind::Send | Kind::SendInvalidate => {
            let (header, rest) = bytes
                .split_first_chunk::<MESSAGE_BYTES>()
                .ok_or(error("header of a message", MESSAGE_BYTES))?;
            let operation = operation(header);
            let offset = u32::from_le_bytes(get!(header, fields::OFFSET));
            let message = MessageNumber(u32::from_le_bytes(get!(header, fields::MESSAGE)));
            let (immediate, rest) = decode_immediate(flags, rest)?;
            let header = if matches!(kind, Kind::Send) {
                Header::Send { operation, offset, message, immediate }
            } else {
                let key = immediate.map(RemoteKey);
                Header::SendInvalidate { operation, offset, message, key }
            };
            (header, rest)
        }
        Kind::Atomic => {
            let (header, rest) = bytes
                .split_first_chunk::<ATOMIC_BYTES>()
                .ok_or(error("header of an Atomic", ATOMIC_BYTES))?;
            (atomic(header)?, rest)
        }
        Kind::AtomicResponse => {
            let (header, rest) = bytes
                .split_first_chunk::<VALUE_BYTES>()
                .ok_or(error("header of an AtomicResponse", VALUE_BYTES))?;
            let operation = operation(header);
            let value = u64::from_le_bytes(get!(header, fields::VALUE));
            (Header::AtomicResponse { operation, value }, rest)
        }
    })
}

fn decode_immediate(flags: Flags, bytes: &[u8]) -> Result<(Option<u32>, &[u8]), DecodeError> {
    if !flags.contains(Flags::IMMEDIATE) {
        return Ok((None, bytes));
    }
    let Some((immediate, rest)) = bytes.split_first_chunk::<IMMEDIATE_BYTES>() else {
        return Err(truncated("immediate", IMMEDIATE_BYTES, bytes));
    };
    Ok((Some(u32::from_le_bytes(get!(immediate, fields::IMMEDIATE))), rest))
}

/// Decodes the common header at the start of a longer header.
#[inline]
fn prefix<const N: usize>(kind: Kind, header: &[u8; N]) -> Prefix {
    Prefix {
        kind,
        link: LinkIndex(u8::from_le_bytes(get!(header, fields::LINK)) >> 4),
        flags: Flags(u8::from_le_bytes(get!(header, fields::FLAGS))),
        epoch: Epoch(u16::from_le_bytes(get!(header, fields::EPOCH))),
        connection: ConnectionId(u32::from_le_bytes(get!(header, fields::CONNECTION))),
        packet: u32::from_le_bytes(get!(header, fields::PACKET)),
    }
}

#[inline]
fn operation<const N: usize>(header: &[u8; N]) -> OperationNumber {
    OperationNumber(u32::from_le_bytes(get!(header, fields::OPERATION)))
}

/// Decodes the operation number, the offset or length, the key and the address.
#[inline]
fn tagged(header: &[u8; TAGGED_BYTES]) -> (OperationNumber, u32, RemoteKey, u64) {
    (
        operation(header),
        u32::from_le_bytes(get!(header, fields::OFFSET)),
        RemoteKey(u32::from_le_bytes(get!(header, fields::KEY))),
        u64::from_le_bytes(get!(header, fields::ADDRESS)),
    )
}

fn atomic(header: &[u8; ATOMIC_BYTES]) -> Result<Header, DecodeError> {
    let opcode = match u32::from_le_bytes(get!(header, fields::OPCODE)) {
        1 => AtomicOpcode::FetchAdd,
        2 => AtomicOpcode::CompareSwap,
        3 => AtomicOpcode::Swap,
        other => {
            return Err(DecodeError::Range { field: fields::OPCODE.name, value: other.into() });
        }
    };
    Ok(Header::Atomic {
        operation: operation(header),
        opcode,
        key: RemoteKey(u32::from_le_bytes(get!(header, fields::KEY))),
        address: u64::from_le_bytes(get!(header, fields::ADDRESS)),
        operand: u64::from_le_bytes(get!(header, fields::OPERAND)),
        compare: u64::from_le_bytes(get!(header, fields::COMPARE)),
    })
}

#[cold]
fn truncated(part: &'static str, needed: usize, bytes: &[u8]) -> DecodeError {
    DecodeError::Truncated { part, needed, found: bytes.len() }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::acknowledgement::AckBlock;
    use crate::control::control_messages;
    use crate::generate::{CONNECTION_KINDS, frame_parts, mutations};

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(parts in frame_parts()) {
            let bytes = parts.encode();
            let frame = decode(&bytes).unwrap();
            prop_assert_eq!(frame.prefix, parts.prefix);
            prop_assert_eq!(frame.header, parts.header);
            prop_assert_eq!(frame.payload, &parts.payload[..]);
            let acks = frame
                .acks
                .map(|acks| (acks.delivered(), acks.credit(), acks.blocks().collect::<Vec<AckBlock>>()));
            prop_assert_eq!(acks, parts.acks);
            let Prefix { kind, connection, epoch, .. } = parts.prefix;
            prop_assert_eq!(peek(&bytes), Ok((kind, connection, epoch)));
        }

        #[test]
        fn the_fast_path_decides_as_the_full_decoder(
            parts in frame_parts(),
            mutations in mutations(),
            mutate: bool,
        ) {
            let mut bytes = parts.encode();
            if mutate {
                for mutation in &mutations {
                    mutation.apply(&mut bytes);
                }
            }
            prop_assert_eq!(decode(&bytes), decode_any(&bytes, 0));
        }

        /// A split frame decodes like the whole frame, wherever the split is.
        #[test]
        fn a_split_frame_decodes_as_the_whole(
            parts in frame_parts(),
            mutations in mutations(),
            outside in 1..200_usize,
        ) {
            let mut bytes = parts.encode();
            for mutation in &mutations {
                mutation.apply(&mut bytes);
            }
            let headers = bytes.clone();
            let split = decode_split(&headers, outside);
            prop_assert_eq!(&split, &decode_any(&headers, outside));
            bytes.resize(headers.len() + outside, 0);
            let whole = decode(&bytes).ok().filter(|frame| frame.payload.len() == outside);
            let carries_bytes = |frame: &Frame<'_>| {
                !matches!(frame.prefix.kind, Kind::Control | Kind::Probe | Kind::Patch)
            };
            let whole = whole.filter(carries_bytes).map(|frame| (frame.prefix, frame.header));
            prop_assert_eq!(split.ok().map(|frame| (frame.prefix, frame.header)), whole);
        }

        #[test]
        fn what_decodes_encodes_to_the_same_header(
            parts in frame_parts(),
            mutations in mutations(),
        ) {
            let mut bytes = parts.encode();
            for mutation in &mutations {
                mutation.apply(&mut bytes);
            }
            if let Ok(frame) = decode(&bytes) {
                let mut header = [0; HEADER_BYTES_MAX];
                let length = encode_header(&frame.prefix, &frame.header, &mut header);
                let mut again = header[..length].to_vec();
                if let Header::AtomicResponse { .. } = frame.header {
                    again[16..20].copy_from_slice(&bytes[16..20]);
                }
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
        }

        //= protocol.md: peer.2
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = peek(&bytes);
            if let Ok(frame) = decode(&bytes) {
                frame.acks.iter().for_each(|acks| assert!(acks.blocks().count() <= 16));
                control_messages(frame.payload).for_each(drop);
            }
        }

        #[test]
        fn every_prefix_of_a_frame_without_payload_is_truncated(parts in frame_parts()) {
            prop_assume!(parts.payload.is_empty() && parts.prefix.kind != Kind::Probe);
            let bytes = parts.encode();
            for length in 0..bytes.len() {
                let truncated = matches!(decode(&bytes[..length]), Err(DecodeError::Truncated { .. }));
                prop_assert!(truncated, "{length} of {} bytes", bytes.len());
            }
        }
    }

    //= protocol.md: kind.1
    #[test]
    fn a_middle_frame_of_a_write_has_the_documented_bytes() {
        let write = Header::Write {
            operation: OperationNumber(0x1122_3344),
            offset: 0x0102,
            key: RemoteKey(0xaabb_ccdd),
            address: 0x0001_0203_0405_0607,
            immediate: None,
        };
        let mut out = [0; HEADER_BYTES_MAX];
        let length = encode_header(&prefix_of(Flags::STRICT), &write, &mut out);
        #[rustfmt::skip]
        let expected = [
            0x53, 0x08, 0xcd, 0xab, 0x04, 0x03, 0x02, 0x01, 0xef, 0xbe, 0xad, 0xde,
            0x44, 0x33, 0x22, 0x11, 0x02, 0x01, 0x00, 0x00,
            0xdd, 0xcc, 0xbb, 0xaa, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x00,
        ];
        assert_eq!(out[..length], expected);
    }

    //= protocol.md: kind.1
    #[test]
    fn the_codec_agrees_with_the_table_of_kinds() {
        for layout in fields::KIND_LAYOUTS {
            let last = layout.headers.last().copied().unwrap_or(Layout::Common);
            let mut out = [0; HEADER_BYTES_MAX];
            let header = header_of(layout.kind);
            let length = encode_header(&prefix_of(Flags::NONE), &header, &mut out);
            assert_eq!(length, layout_end(last), "{:?}", layout.kind);
            for bits in 0..=u8::MAX {
                let flags = Flags(bits);
                let immediate_alone =
                    flags.contains(Flags::IMMEDIATE) && !flags.contains(Flags::LAST);
                let allowed = flags.contains(layout.required)
                    && !flags.intersects(layout.forbidden)
                    && !immediate_alone
                    && (!flags.contains(Flags::LAST) || flags.contains(layout.with_last));
                assert_eq!(
                    check_flags(layout.kind, flags).is_ok(),
                    allowed,
                    "{layout:?} {flags:?}"
                );
            }
        }
        let kinds: Vec<Kind> = fields::KIND_LAYOUTS.iter().map(|layout| layout.kind).collect();
        assert_eq!(kinds, CONNECTION_KINDS);
    }

    //= protocol.md: length.1, length.2, length.3, length.4
    #[test]
    fn numbers_out_of_range_are_refused() {
        let write = |offset, address, payload: &[u8]| {
            let header = Header::Write {
                operation: OperationNumber(1),
                offset,
                key: RemoteKey(2),
                address,
                immediate: None,
            };
            decode(&frame(Flags::NONE, &header, payload)).err()
        };
        assert_eq!(write(5, 5, b"x"), None);
        assert_eq!(
            write(5, 4, b"x"),
            Some(DecodeError::AddressBeforeStart { address: 4, offset: 5 })
        );
        assert_eq!(write(0, u64::MAX - 1, b"x"), None);
        assert_eq!(
            write(0, u64::MAX, b"x"),
            Some(DecodeError::AddressWraps { address: u64::MAX, length: 1 })
        );
        assert_eq!(write(0x7fff_ffff, 1 << 40, b"x"), None);
        assert_eq!(
            write(0x8000_0000, 1 << 40, b"x"),
            Some(DecodeError::OperationLength { end: 0x8000_0001 })
        );
        assert_eq!(write(0, 0, b""), Some(DecodeError::PayloadEmpty { offset: 0 }));
        let read = Header::ReadRequest {
            operation: OperationNumber(1),
            length: 0x8000_0001,
            key: RemoteKey(2),
            address: 0,
        };
        assert_eq!(
            decode(&frame(Flags::NONE, &read, b"")),
            Err(DecodeError::OperationLength { end: 0x8000_0001 })
        );
        assert_eq!(
            decode(&frame(Flags::NONE, &header_of(Kind::Atomic), b"x")),
            Err(DecodeError::Trailing { part: "Atomic", bytes: 1 })
        );
        assert_eq!(
            decode(&frame(Flags::NONE, &Header::Control, b"")),
            Err(DecodeError::ControlEmpty)
        );
    }

    //= protocol.md: kind.2
    #[test]
    fn reserved_kinds_are_refused() {
        for kind in 13..16 {
            assert_eq!(decode(&[kind; 64]), Err(DecodeError::Kind(kind)));
            assert_eq!(peek(&[kind; 64]), Err(DecodeError::Kind(kind)));
        }
        assert_eq!(decode(&[0; 64]), Err(DecodeError::Handshake));
        assert_eq!(decode(&[10; 64]), Err(DecodeError::Datagram));
    }

    //= protocol.md: send-invalidate.1
    #[test]
    fn the_last_frame_of_a_send_with_invalidate_carries_the_key_and_no_other() {
        let (operation, offset, message) = (OperationNumber(1), 8, MessageNumber(4));
        let header = |key| Header::SendInvalidate { operation, offset, message, key };
        let last = frame(Flags::LAST, &header(Some(RemoteKey(0xaabb_ccdd))), b"x");
        assert_eq!(last[0] & 0x0f, 11);
        assert_eq!(last[20..], [4, 0, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa, b'x']);
        let decoded = decode(&last).map(|frame| frame.header);
        assert_eq!(decoded, Ok(header(Some(RemoteKey(0xaabb_ccdd)))));
        let middle = frame(Flags::NONE, &header(None), b"x");
        assert_eq!(decode(&middle).map(|frame| frame.header), Ok(header(None)));
        let (kind, flag) = (Kind::SendInvalidate, Flags::IMMEDIATE);
        let without = frame(Flags::LAST, &header(None), b"x");
        assert_eq!(decode(&without), Err(DecodeError::FlagMissing { kind, flag }));
        let early = frame(Flags::NONE, &header(Some(RemoteKey(1))), b"x");
        let flag = Flags::LAST;
        assert_eq!(decode(&early), Err(DecodeError::FlagMissing { kind, flag }));
    }

    //= protocol.md: control.5
    #[test]
    fn a_close_reports_what_was_delivered_in_an_ack_section_without_blocks() {
        let mut frame = frame(Flags::ACK.with(Flags::ACK_NOW), &Header::Control, b"");
        let mut section = [0; crate::acknowledgement::ACK_SECTION_BYTES_MAX];
        let length = crate::acknowledgement::encode_acks(
            OperationNumber(7),
            MessageNumber(9),
            &[],
            &mut section,
        );
        frame.extend_from_slice(&section[..length]);
        let (reason, operation) = (crate::reason::CloseReason::OutOfRange, OperationNumber(7));
        let close = crate::control::Control::Close { reason, operation, private_data: b"why" };
        let mut message = [0; crate::control::CONTROL_BYTES_MAX];
        let length = close.encode(&mut message);
        frame.extend_from_slice(&message[..length]);
        let decoded = decode(&frame).expect("a frame");
        let acks = decoded.acks.expect("an ack section");
        assert_eq!((acks.delivered(), acks.credit()), (OperationNumber(7), MessageNumber(9)));
        assert_eq!(acks.blocks().count(), 0);
        assert_eq!(control_messages(decoded.payload).collect::<Vec<_>>(), [Ok(close)]);
    }

    fn prefix_of(flags: Flags) -> Prefix {
        Prefix {
            kind: Kind::Write,
            link: LinkIndex(5),
            flags,
            epoch: Epoch(0xabcd),
            connection: ConnectionId(0x0102_0304),
            packet: 0xdead_beef,
        }
    }

    fn frame(flags: Flags, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut out = [0; HEADER_BYTES_MAX];
        let length = encode_header(&prefix_of(flags), header, &mut out);
        let mut bytes = out[..length].to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    fn header_of(kind: Kind) -> Header {
        let (operation, key, address, offset) = (OperationNumber(1), RemoteKey(2), 8, 0);
        let immediate = None;
        match kind {
            Kind::Handshake | Kind::Datagram | Kind::Ack => Header::Ack,
            Kind::Control => Header::Control,
            Kind::Probe => Header::Probe,
            Kind::Write => Header::Write { operation, offset, key, address, immediate },
            Kind::Patch => Header::Patch { operation, offset, key, address, immediate },
            Kind::ReadRequest => Header::ReadRequest { operation, length: 3, key, address },
            Kind::ReadResponse => Header::ReadResponse { operation, offset },
            Kind::Send => Header::Send { operation, offset, message: MessageNumber(4), immediate },
            Kind::SendInvalidate => {
                Header::SendInvalidate { operation, offset, message: MessageNumber(4), key: None }
            }
            Kind::Atomic => Header::Atomic {
                operation,
                opcode: AtomicOpcode::FetchAdd,
                key,
                address,
                operand: 5,
                compare: 0,
            },
            Kind::AtomicResponse => Header::AtomicResponse { operation, value: 6 },
        }
    }
}
