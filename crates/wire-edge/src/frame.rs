//! Connection frames (protocol.md §3).

use crate::fields::{self, Layout, layout_end};
use crate::octets::{get, put};
use crate::{
    AckSection, ConnectionId, DecodeError, Epoch, Flags, Kind, LinkIndex, MessageNumber,
    OperationNumber, RemoteKey, handshake,
};

/// Bytes of the common header.
pub const COMMON_BYTES: usize = layout_end(Layout::Common);
/// Bytes of the largest header of any kind, from the first byte of the frame.
pub const HEADER_BYTES_MAX: usize = ATOMIC_BYTES;
/// Most bytes of one operation.
pub const OPERATION_BYTES_MAX: u64 = 1 << 31;

const OFFSET_BYTES: usize = layout_end(Layout::Offset);
const MESSAGE_BYTES: usize = layout_end(Layout::Message);
const TAGGED_BYTES: usize = layout_end(Layout::Tagged);
const IMMEDIATE_BYTES: usize = layout_end(Layout::Immediate);
const ATOMIC_BYTES: usize = layout_end(Layout::Operands);
const VALUE_BYTES: usize = layout_end(Layout::Value);
const _: () = assert!(COMMON_BYTES == 12 && OFFSET_BYTES == 20 && TAGGED_BYTES == 32);
const _: () = assert!(TAGGED_BYTES + IMMEDIATE_BYTES <= HEADER_BYTES_MAX);

/// The immediate of a Write, which has the longest header before it.
const TAGGED_IMMEDIATE: fields::Field = fields::Field { offset: TAGGED_BYTES, ..fields::IMMEDIATE };
/// The immediate of a Send.
const MESSAGE_IMMEDIATE: fields::Field =
    fields::Field { offset: MESSAGE_BYTES, ..fields::IMMEDIATE };

/// The common header of a connection frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefix {
    /// What the frame is. [`encode_header`] takes it from the header instead.
    pub kind: Kind,
    /// The link the packet number belongs to, 0 to 15.
    pub link: LinkIndex,
    /// Flags. [`encode_header`] sets and clears those that the header decides.
    pub flags: Flags,
    /// What the receiver chose for this life of the connection.
    pub epoch: Epoch,
    /// What the receiver calls the connection.
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
    /// Stores the operand if the memory holds the value to compare with.
    CompareSwap = 2,
}

/// The header of a connection frame after the common header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Header {
    /// An ack section and nothing else.
    Ack,
    /// Control messages.
    Control,
    /// Padding.
    Probe,
    /// Bytes for a memory region of the receiver.
    Write {
        /// The operation.
        operation: OperationNumber,
        /// Of the payload's first byte within the operation.
        offset: u32,
        /// The memory region.
        key: RemoteKey,
        /// Remote address of the payload's first byte.
        address: u64,
        /// Delivered with the completion; only with [`Flags::LAST`].
        immediate: Option<u32>,
    },
    /// Asks for bytes of a memory region of the receiver.
    ReadRequest {
        /// The operation.
        operation: OperationNumber,
        /// Bytes to read, at most 2^31.
        length: u32,
        /// The memory region.
        key: RemoteKey,
        /// Remote address of the first byte.
        address: u64,
    },
    /// Bytes the receiver asked for.
    ReadResponse {
        /// The operation of the request.
        operation: OperationNumber,
        /// Of the payload's first byte within the operation.
        offset: u32,
    },
    /// Bytes for a posted receive.
    Send {
        /// The operation.
        operation: OperationNumber,
        /// Of the payload's first byte within the operation.
        offset: u32,
        /// Ordinal of the receive it consumes.
        message: MessageNumber,
        /// Delivered with the completion; only with [`Flags::LAST`].
        immediate: Option<u32>,
    },
    /// Asks for an atomic operation.
    Atomic {
        /// The operation.
        operation: OperationNumber,
        /// What to do.
        opcode: AtomicOpcode,
        /// The memory region.
        key: RemoteKey,
        /// Remote address of the eight bytes.
        address: u64,
        /// Addend, or the value to store.
        operand: u64,
        /// Value to compare with, 0 for fetch-and-add.
        compare: u64,
    },
    /// What the memory held before the atomic operation.
    AtomicResponse {
        /// The operation of the request.
        operation: OperationNumber,
        /// The eight bytes, as a number.
        value: u64,
    },
}

impl Header {
    /// The kind of frames with this header.
    #[inline]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Ack => Kind::Ack,
            Self::Control => Kind::Control,
            Self::Probe => Kind::Probe,
            Self::Write { .. } => Kind::Write,
            Self::ReadRequest { .. } => Kind::ReadRequest,
            Self::ReadResponse { .. } => Kind::ReadResponse,
            Self::Send { .. } => Kind::Send,
            Self::Atomic { .. } => Kind::Atomic,
            Self::AtomicResponse { .. } => Kind::AtomicResponse,
        }
    }
}

/// A connection frame, borrowed and checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// The common header.
    pub prefix: Prefix,
    /// The header of its kind.
    pub header: Header,
    /// The ack section, if there is one.
    pub acks: Option<AckSection<'a>>,
    /// What follows: bytes of the operation, control messages, or the padding of a Probe.
    pub payload: &'a [u8],
}

/// Writes the common header and the header of a frame to the start of `out` and returns their
/// length in bytes.
///
/// The kind comes from `header`, and so do the flags that go with it: [`Flags::IMMEDIATE`] is set
/// if there is an immediate and cleared if not, [`Flags::LAST`] is set for requests and answers
/// that are always one frame (`ReadRequest`, `Atomic`, `AtomicResponse`), [`Flags::ACK`] is set for
/// Ack. With [`Flags::ACK`] the caller puts an ack section after the header.
#[inline]
pub fn encode_header(prefix: &Prefix, header: &Header, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let mut flags = prefix.flags.without(Flags::IMMEDIATE);
    let length = match *header {
        Header::Ack => {
            flags = flags.with(Flags::ACK);
            COMMON_BYTES
        }
        Header::Control | Header::Probe => COMMON_BYTES,
        Header::Write { operation, offset, key, address, immediate } => {
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

/// What it takes to find the connection of a frame: kind, connection id and epoch.
///
/// A handshake frame has no epoch (0 is returned); its connection id is the destination in its
/// preamble, 0 if the sender knows none. The rest of the frame is not looked at.
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
    let prefix = prefix(kind, common);
    Ok((kind, prefix.connection, prefix.epoch))
}

/// The connection frame in these bytes, if it keeps all rules of protocol.md §3 that can be
/// checked without knowing the connection.
///
/// The messages in the payload of a control frame are checked by [`crate::control_messages`].
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    // Nearly all frames of a large transfer are these: a Write whose header has its shortest form.
    if let Some((header, payload)) = bytes.split_first_chunk::<TAGGED_BYTES>()
        && header[0] & 0x0f == Kind::Write as u8
        && header[1] & (Flags::IMMEDIATE.0 | Flags::ACK.0) == 0
    {
        let (operation, offset, key, address) = tagged(header);
        let prefix = prefix(Kind::Write, header);
        check_write(prefix.flags, offset, address, payload)?;
        let header = Header::Write { operation, offset, key, address, immediate: None };
        return Ok(Frame { prefix, header, acks: None, payload });
    }
    decode_any(bytes)
}

/// [`decode`] for frames of all kinds and shapes.
fn decode_any(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
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
    check_ranges(prefix.flags, &header, payload)?;
    Ok(Frame { prefix, header, acks, payload })
}

/// The header of a frame of this kind, and what follows it.
fn decode_header(kind: Kind, flags: Flags, bytes: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
    let error = |part, needed| truncated(part, needed, bytes);
    Ok(match kind {
        Kind::Handshake => return Err(DecodeError::Handshake),
        Kind::Ack => (Header::Ack, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Control => (Header::Control, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Probe => (Header::Probe, bytes.get(COMMON_BYTES..).unwrap_or_default()),
        Kind::Write => {
            let (header, rest) =
                bytes.split_first_chunk().ok_or(error("header of a Write", TAGGED_BYTES))?;
            let (operation, offset, key, address) = tagged(header);
            let (immediate, rest) = decode_immediate(flags, rest)?;
            (Header::Write { operation, offset, key, address, immediate }, rest)
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
        Kind::Send => {
            let (header, rest) = bytes
                .split_first_chunk::<MESSAGE_BYTES>()
                .ok_or(error("header of a Send", MESSAGE_BYTES))?;
            let operation = operation(header);
            let offset = u32::from_le_bytes(get!(header, fields::OFFSET));
            let message = MessageNumber(u32::from_le_bytes(get!(header, fields::MESSAGE)));
            let (immediate, rest) = decode_immediate(flags, rest)?;
            (Header::Send { operation, offset, message, immediate }, rest)
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

/// The common header, which every longer header starts with.
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

/// Operation, offset or length, key and address.
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

/// The flags that announce parts, or say that a frame is a whole operation, fit the kind.
fn check_flags(kind: Kind, flags: Flags) -> Result<(), DecodeError> {
    let (required, forbidden) = match kind {
        Kind::Handshake => return Err(DecodeError::Handshake),
        Kind::Ack => (Flags::ACK, Flags::IMMEDIATE),
        Kind::Control | Kind::ReadResponse => (Flags::NONE, Flags::IMMEDIATE),
        Kind::Probe => (Flags::NONE, Flags::IMMEDIATE.with(Flags::ACK)),
        Kind::Write | Kind::Send if flags.contains(Flags::IMMEDIATE) => (Flags::LAST, Flags::NONE),
        Kind::Write | Kind::Send => (Flags::NONE, Flags::NONE),
        Kind::ReadRequest | Kind::Atomic | Kind::AtomicResponse => (Flags::LAST, Flags::IMMEDIATE),
    };
    if !flags.contains(required) {
        return Err(DecodeError::FlagMissing { kind, flag: required });
    }
    if flags.intersects(forbidden) {
        return Err(DecodeError::FlagForbidden { kind, flag: Flags(flags.0 & forbidden.0) });
    }
    Ok(())
}

/// The numbers of a header and what follows it agree.
fn check_ranges(flags: Flags, header: &Header, payload: &[u8]) -> Result<(), DecodeError> {
    match *header {
        Header::Write { offset, address, .. } => check_write(flags, offset, address, payload),
        Header::Send { offset, .. } | Header::ReadResponse { offset, .. } => {
            check_offset(flags, offset, payload)
        }
        Header::ReadRequest { length, address, .. } => {
            if u64::from(length) > OPERATION_BYTES_MAX {
                return Err(DecodeError::OperationLength { end: length.into() });
            }
            check_address(address, length.into())?;
            check_end("ReadRequest", payload)
        }
        Header::Atomic { address, .. } => {
            check_address(address, 8)?;
            check_end("Atomic", payload)
        }
        Header::AtomicResponse { .. } => check_end("AtomicResponse", payload),
        Header::Ack => check_end("Ack", payload),
        Header::Control if payload.is_empty() => Err(DecodeError::ControlEmpty),
        Header::Control | Header::Probe => Ok(()),
    }
}

#[inline]
fn check_write(flags: Flags, offset: u32, address: u64, payload: &[u8]) -> Result<(), DecodeError> {
    check_offset(flags, offset, payload)?;
    if address < offset.into() {
        return Err(DecodeError::AddressBeforeStart { address, offset });
    }
    check_address(address, payload.len() as u64)
}

#[inline]
fn check_offset(flags: Flags, offset: u32, payload: &[u8]) -> Result<(), DecodeError> {
    let end = u64::from(offset) + payload.len() as u64;
    if end > OPERATION_BYTES_MAX {
        return Err(DecodeError::OperationLength { end });
    }
    if payload.is_empty() && !(offset == 0 && flags.contains(Flags::LAST)) {
        return Err(DecodeError::PayloadEmpty { offset });
    }
    Ok(())
}

#[inline]
fn check_address(address: u64, length: u64) -> Result<(), DecodeError> {
    match address.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(DecodeError::AddressWraps { address, length }),
    }
}

fn check_end(part: &'static str, rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { part, bytes: rest.len() }) }
}

#[cold]
fn truncated(part: &'static str, needed: usize, bytes: &[u8]) -> DecodeError {
    DecodeError::Truncated { part, needed, found: bytes.len() }
}
