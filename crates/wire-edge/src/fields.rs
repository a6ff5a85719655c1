//! A table of every field of every frame.
//!
//! At compile time, encoders and decoders take offsets, sizes and ranges from these constants. The
//! Wireshark dissector is generated from the same table.
//!
//! In layouts of connection headers, offsets count from the start of the frame, as in protocol.md.
//! In all other layouts, offsets count from the start of the layout.

use crate::control::LinkStatus;
use crate::envelope::EnvelopeKind;
use crate::flags::{Flags, Kind};
use crate::frame::AtomicOpcode;
use crate::parameters::Features;
use crate::reason::{CloseReason, RejectReason};

/// A group of fields that are adjacent in a frame.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Layout {
    /// The envelope between the `EtherType` and the frame on raw Ethernet.
    Envelope,
    /// Start of every connection frame.
    Common,
    /// Operation number.
    Operation,
    /// Offset of the payload within the operation.
    Offset,
    /// Length of a read. In a `ReadRequest`, this field stands at the position of the offset.
    Length,
    /// Opcode of an atomic operation. In an Atomic, this field stands at the position of the
    /// offset.
    Opcode,
    /// Message number of a Send.
    Message,
    /// Remote key and address.
    Tagged,
    /// Immediate data, after the headers.
    Immediate,
    /// Key in the last frame of a `SendInvalidate`. This field stands at the position of the
    /// immediate.
    Invalidated,
    /// Operands of an Atomic.
    Operands,
    /// Answer to an Atomic.
    Value,
    /// Start of a record in the payload of a Patch; words follow.
    PatchRecord,
    /// Start of an ack section.
    AckSection,
    /// Start of a link block in an ack section; bitmap words follow.
    AckBlock,
    /// Start of a control message; the body follows.
    ControlMessage,
    /// Body of `PathChallenge` and `PathResponse`.
    Path,
    /// Body of `LinkStatus`.
    LinkStatus,
    /// Body of Close; private data follows.
    Close,
    /// One address of a peer.
    Address,
    /// Body of Links.
    Links,
    /// Body of Gone.
    Gone,
    /// Body of `NotReady`.
    NotReady,
    /// Start of every handshake frame.
    Preamble,
    /// Parameters in Hello and Accept.
    Parameters,
    /// Cookie in Hello and Retry.
    Cookie,
    /// Counts in Hello and Accept; addresses and private data follow.
    Counts,
    /// Body of Reject; private data follows.
    Reject,
    /// Private data of a Reject that redirects the initiator to the endpoint that has the service.
    Moved,
    /// Body of Reset.
    Reset,
    /// Body of `VersionMismatch`.
    VersionMismatch,
    /// Header of a datagram, from the start of the frame; the payload follows.
    Datagram,
}

/// How to interpret the bytes of a field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Value {
    /// An unsigned number.
    Decimal,
    /// An unsigned number that tools display in base 16.
    Hexadecimal,
    /// An unsigned number in these units.
    Quantity(&'static str),
    /// An unsigned number with named values.
    Names(&'static [Name]),
    /// Bits with names.
    Bits(&'static [Name]),
    /// The low four bits, with named values.
    LowNibble(&'static [Name]),
    /// The high four bits.
    HighNibble,
    /// A port, big-endian.
    Port,
    /// Bytes without structure.
    Bytes,
    /// Reserved: sent as 0, ignored on receipt.
    Reserved,
}

/// A number with a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Name {
    /// The number that has the name, or the mask of the bit that has the name.
    pub value: u64,
    /// The name.
    pub name: &'static str,
}

/// A field of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Field {
    /// The layout that contains the field.
    pub layout: Layout,
    /// The field's name in protocol.md.
    pub name: &'static str,
    /// Offset of the first byte, in bytes. The documentation of [`fields`](self) says where offsets
    /// begin.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// How to interpret the bytes.
    pub value: Value,
    /// Smallest and largest value that a decoder accepts.
    pub range: (u64, u64),
    /// A description for a person that reads a capture.
    pub description: &'static str,
}

impl Field {
    /// Returns the offset of the byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.size
    }

    /// Returns whether a decoder accepts `value` in this field.
    #[inline]
    pub const fn accepts(&self, value: u64) -> bool {
        self.range.0 <= value && value <= self.range.1
    }
}

/// The parts of a connection frame of one kind: common header, headers, ack section and the rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KindLayout {
    /// The kind.
    pub kind: Kind,
    /// Layouts after the common header.
    pub headers: &'static [Layout],
    /// Flags that a frame of this kind must have.
    pub required: Flags,
    /// Flags that a frame of this kind must not have, because each announces a part that frames of
    /// this kind do not have.
    pub forbidden: Flags,
    /// Flags that a frame of this kind must have if it has the flag LAST.
    pub with_last: Flags,
    /// The layout that follows the headers if the flag IMMEDIATE is set.
    pub immediate: Layout,
    /// The part after the headers and the ack section.
    pub rest: Rest,
}

/// The part of a connection frame after the headers and the ack section.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rest {
    /// No bytes.
    Nothing,
    /// Bytes of the operation.
    Payload,
    /// Control messages, at least one.
    Messages,
    /// Padding, which the receiver ignores.
    Padding,
    /// Records of a Patch.
    Records,
}

/// The parts of a handshake frame's body, after the preamble.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StepLayout {
    /// Number of the step.
    pub step: u8,
    /// The layouts in their order.
    pub parts: &'static [Layout],
}

/// The body of a control message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControlLayout {
    /// Number of the type.
    pub control: u8,
    /// Layout of the start of the body, if it has fields.
    pub body: Option<Layout>,
    /// Maximum number of bytes after the fields.
    pub tail_bytes_max: usize,
}

macro_rules! fields {
    ($($constant:ident = $layout:ident, $name:literal, $offset:literal, $size:literal, $value:expr,
        $min:literal..=$max:expr, $description:literal;)*) => {
        $(
            #[doc = $description]
            pub const $constant: Field = Field {
                layout: Layout::$layout,
                name: $name,
                offset: $offset,
                size: $size,
                value: $value,
                range: ($min, $max),
                description: $description,
            };
        )*

        /// All fields. The fields of a layout are adjacent, in the order of their offsets.
        pub const FIELDS: &[Field] = &[$($constant),*];
    };
}

use Value::{
    Bits, Bytes, Decimal, Hexadecimal, HighNibble, LowNibble, Names, Port, Quantity, Reserved,
};
const ANY: u64 = u64::MAX;

fields! {
    ENVELOPE_VERSION = Envelope, "envelope_version", 0, 1, Decimal, 1..=1, "Version of the envelope";
    ENVELOPE_KIND = Envelope, "envelope_kind", 1, 1, Names(ENVELOPE_KINDS), 1..=3, "What the envelope holds";
    ENVELOPE_LENGTH = Envelope, "length", 2, 2, Quantity("bytes"), 0..=ANY, "Bytes that follow, without padding";
    ENVELOPE_DESTINATION = Envelope, "destination_port", 4, 2, Port, 0..=ANY, "Endpoint on the receiving host, big-endian";
    ENVELOPE_SOURCE = Envelope, "source_port", 6, 2, Port, 0..=ANY, "Endpoint on the sending host, big-endian";
    ENVELOPE_CHECKSUM = Envelope, "checksum", 8, 4, Hexadecimal, 0..=ANY, "CRC-32C of the eight bytes before it and of what follows the envelope";

    KIND = Common, "kind", 0, 1, LowNibble(KINDS), 0..=ANY, "What the frame is";
    LINK = Common, "link", 0, 1, HighNibble, 0..=ANY, "Link the packet number belongs to";
    FLAGS = Common, "flags", 1, 1, Bits(FLAG_BITS), 0..=ANY, "Flags";
    EPOCH = Common, "epoch", 2, 2, Hexadecimal, 0..=ANY, "Chosen by the receiver of the frame";
    CONNECTION = Common, "connection", 4, 4, Hexadecimal, 0..=ANY, "Connection id the receiver chose";
    PACKET = Common, "packet", 8, 4, Decimal, 0..=ANY, "Low 32 bits of the packet number on this link";

    OPERATION = Operation, "operation", 12, 4, Decimal, 0..=ANY, "Operation sequence number";
    OFFSET = Offset, "offset", 16, 4, Quantity("bytes"), 0..=crate::frame::OPERATION_BYTES_MAX, "Of the payload's first byte within the operation";
    LENGTH = Length, "length", 16, 4, Quantity("bytes"), 0..=crate::frame::OPERATION_BYTES_MAX, "Bytes to read";
    OPCODE = Opcode, "opcode", 16, 4, Names(ATOMIC_OPCODES), 1..=3, "Atomic operation to perform";
    MESSAGE = Message, "message", 20, 4, Decimal, 0..=ANY, "Ordinal of the receive it consumes";
    KEY = Tagged, "key", 20, 4, Hexadecimal, 0..=ANY, "Remote key";
    ADDRESS = Tagged, "address", 24, 8, Hexadecimal, 0..=ANY, "Remote address of the first byte";
    IMMEDIATE = Immediate, "immediate", 0, 4, Hexadecimal, 0..=ANY, "Delivered with the completion";
    INVALIDATED = Invalidated, "invalidated", 0, 4, Hexadecimal, 0..=ANY, "Key of the receiver that ends when the message is delivered";
    OPERAND = Operands, "operand", 32, 8, Hexadecimal, 0..=ANY, "Addend, or the value to store";
    COMPARE = Operands, "compare", 40, 8, Hexadecimal, 0..=ANY, "Value to compare with, 0 for other operations";
    RESPONSE_ZERO = Value, "reserved", 16, 4, Reserved, 0..=ANY, "Reserved, 0";
    VALUE = Value, "value", 20, 8, Hexadecimal, 0..=ANY, "What the memory held before";

    RECORD_BLOCK = PatchRecord, "block", 0, 2, Decimal, 0..=ANY, "Block of 32 words, from the start of the area";
    RECORD_ZERO = PatchRecord, "reserved", 2, 2, Reserved, 0..=ANY, "Reserved, 0";
    RECORD_BITMAP = PatchRecord, "bitmap", 4, 4, Hexadecimal, 0..=ANY, "Bit i: word i of the block follows";

    BLOCKS = AckSection, "blocks", 0, 1, Decimal, 0..=16, "Link blocks that follow";
    ACK_ZERO = AckSection, "reserved", 1, 3, Reserved, 0..=ANY, "Reserved, 0";
    DELIVERED = AckSection, "delivered", 4, 4, Decimal, 0..=ANY, "All operations before this number are delivered";
    CREDIT = AckSection, "credit", 8, 4, Decimal, 0..=ANY, "Message number up to which (exclusive) receives are posted";

    BLOCK_LINK = AckBlock, "link", 0, 1, Decimal, 0..=15, "Link whose packets this block acknowledges";
    BLOCK_WORDS = AckBlock, "words", 1, 1, Decimal, 0..=8, "Bitmap words that follow";
    BLOCK_MARKED = AckBlock, "marked", 2, 2, Decimal, 0..=ANY, "Frames received with a congestion mark so far, modulo 2^16";
    BLOCK_DELAY = AckBlock, "delay", 4, 2, Quantity("units of 64 ns"), 0..=ANY, "From the arrival of the largest packet to this acknowledgement";
    BLOCK_RUN = AckBlock, "run", 6, 2, Decimal, 1..=0xffff, "Packets received without a gap up to and including the largest";
    BLOCK_LARGEST = AckBlock, "largest", 8, 4, Decimal, 0..=ANY, "Low 32 bits of the largest packet number received";

    CONTROL_TYPE = ControlMessage, "type", 0, 1, Names(CONTROL_TYPES), 0..=ANY, "Type of the message";
    CONTROL_LENGTH = ControlMessage, "length", 1, 1, Quantity("bytes"), 0..=ANY, "Length of the body";
    NONCE = Path, "nonce", 0, 8, Hexadecimal, 0..=ANY, "Random number to be returned";
    STATUS_LINK = LinkStatus, "link", 0, 1, Decimal, 0..=15, "Link whose status changes";
    STATUS = LinkStatus, "status", 1, 1, Names(LINK_STATUSES), 1..=4, "New status of the link";
    CLOSE_REASON = Close, "reason", 0, 2, Names(CLOSE_REASONS), 0..=ANY, "Why the connection ends";
    CLOSE_OPERATION = Close, "operation", 2, 4, Decimal, 0..=ANY, "Operation at fault, else 0";
    LINKS = Links, "links", 0, 2, Hexadecimal, 0..=ANY, "Link indices that the sender has, a bit each";
    GONE_OPERATION = Gone, "operation", 0, 4, Decimal, 0..=ANY, "Read whose answer cannot be sent again";

    NOT_READY_MESSAGE = NotReady, "message", 0, 4, Decimal, 0..=ANY, "Message for which there is no receive now";

    FAMILY = Address, "family", 0, 1, Names(ADDRESS_FAMILIES), 0..=ANY, "Family of the address";
    FAMILY_ZERO = Address, "zero", 1, 1, Reserved, 0..=0, "0";
    PORT = Address, "port", 2, 2, Port, 0..=ANY, "UDP port, or that of an endpoint on raw Ethernet, big-endian";
    HOST = Address, "address", 4, 16, Bytes, 0..=ANY, "Address; bytes the family does not use are 0";

    PREAMBLE_KIND = Preamble, "kind", 0, 1, Names(KINDS), 0..=0, "0, a handshake frame";
    STEP = Preamble, "step", 1, 1, Names(STEPS), 1..=7, "Step of the handshake";
    VERSION = Preamble, "version", 2, 2, Decimal, 0..=ANY, "Version of the protocol";
    MAGIC = Preamble, "magic", 4, 4, Bytes, 0..=ANY, "\"ETHN\"";
    DESTINATION = Preamble, "destination", 8, 4, Hexadecimal, 0..=ANY, "Connection id the receiver chose, 0 if none";
    SOURCE = Preamble, "source", 12, 4, Hexadecimal, 0..=ANY, "Connection id the sender chose, 0 if none";

    INCARNATION = Parameters, "incarnation", 0, 8, Hexadecimal, 0..=ANY, "Random per start of the sending endpoint";
    FEATURES = Parameters, "features", 8, 8, Bits(FEATURE_BITS), 0..=ANY, "Features the sender has";
    PARAMETERS_EPOCH = Parameters, "epoch", 16, 2, Hexadecimal, 0..=ANY, "What the peer puts into every frame to the sender";
    LINKS_MAX = Parameters, "links_max", 18, 2, Decimal, 1..=16, "Links the sender accepts on this connection";
    FRAME_BYTES_MAX = Parameters, "frame_bytes_max", 20, 2, Quantity("bytes"), 256..=65507, "Largest frame the sender receives";
    READ_DEPTH = Parameters, "read_depth", 22, 2, Decimal, 0..=4096, "Reads and atomics the sender serves at a time";
    OPERATION_WINDOW = Parameters, "operation_window", 24, 4, Decimal, 1..=65536, "Operations the sender tracks beyond the last delivered one";
    ORDER_POOL_BYTES = Parameters, "order_pool_bytes", 28, 4, Quantity("bytes"), 0..=ANY, "Room for frames of operations that must wait";
    RECEIVE_BUFFER_BYTES = Parameters, "receive_buffer_bytes", 32, 4, Quantity("bytes"), 0..=ANY, "Room for frames in flight on one link";
    ACK_DELAY_MAX_NS = Parameters, "ack_delay_max_ns", 36, 4, Quantity("ns"), 0..=ANY, "Longest time the sender holds back an acknowledgement";
    RECEIVE_CREDIT = Parameters, "receive_credit", 40, 4, Decimal, 0..=ANY, "Message number up to which (exclusive) receives are posted";
    SERVICE = Parameters, "service", 44, 4, Decimal, 0..=ANY, "Which listener of the endpoint is meant; 0 in Accept";
    PARAMETERS_ZERO = Parameters, "reserved", 48, 16, Reserved, 0..=ANY, "Reserved, 0";

    COOKIE = Cookie, "cookie", 0, 24, Bytes, 0..=ANY, "Proves that the initiator receives at its address";
    ADDRESS_COUNT = Counts, "addresses", 0, 1, Decimal, 0..=16, "Addresses that follow";
    PRIVATE_LENGTH = Counts, "private_length", 1, 2, Quantity("bytes"), 0..=512, "Length of the private data";
    COUNTS_ZERO = Counts, "reserved", 3, 5, Reserved, 0..=ANY, "Reserved, 0";
    REJECT_REASON = Reject, "reason", 0, 2, Names(REJECT_REASONS), 0..=ANY, "Why the connection is refused";
    REJECT_LENGTH = Reject, "private_length", 2, 2, Quantity("bytes"), 0..=512, "Length of the private data";
    REJECT_ZERO = Reject, "reserved", 4, 4, Reserved, 0..=ANY, "Reserved, 0";
    MOVED_ADDRESS = Moved, "address", 0, 20, Bytes, 0..=ANY, "Endpoint that has the service";
    MOVED_SERVICE = Moved, "service", 20, 4, Decimal, 0..=ANY, "The service there";
    RESET_EPOCH = Reset, "epoch", 0, 2, Hexadecimal, 0..=ANY, "Epoch of the frame that found no connection";
    RESET_ZERO = Reset, "reserved", 2, 2, Reserved, 0..=ANY, "Reserved, 0";
    RESET_PACKET = Reset, "packet", 4, 4, Decimal, 0..=ANY, "Packet number of the frame that found no connection";
    LOWEST = VersionMismatch, "lowest", 0, 2, Decimal, 0..=ANY, "Lowest version the sender speaks";
    HIGHEST = VersionMismatch, "highest", 2, 2, Decimal, 0..=ANY, "Highest version the sender speaks";

    DATAGRAM_KIND = Datagram, "kind", 0, 1, Names(KINDS), 10..=10, "10, a datagram";
    DATAGRAM_FLAGS = Datagram, "flags", 1, 1, Bits(FLAG_BITS), 0..=ANY, "SOLICITED and IMMEDIATE; others are 0";
    DATAGRAM_DESTINATION = Datagram, "destination", 2, 3, Hexadecimal, 0..=ANY, "Queue pair number of the receiver";
    DATAGRAM_SOURCE = Datagram, "source", 5, 3, Hexadecimal, 0..=ANY, "Queue pair number of the sender";
    DATAGRAM_KEY = Datagram, "key", 8, 4, Hexadecimal, 0..=ANY, "Queue key of the receiver";
    DATAGRAM_IMMEDIATE = Datagram, "immediate", 12, 4, Hexadecimal, 0..=ANY, "Delivered with the completion if IMMEDIATE is set, else 0";
}

/// Returns the size of a layout in bytes: the end of its last field.
pub const fn layout_end(layout: Layout) -> usize {
    let mut fields = FIELDS;
    let mut end = 0;
    while let [field, rest @ ..] = fields {
        if field.layout as u8 == layout as u8 && field.end() > end {
            end = field.end();
        }
        fields = rest;
    }
    end
}

/// "ETHN", the magic number of handshake frames. It follows the kind, the step and the version.
pub const MAGIC_BYTES: [u8; 4] = *b"ETHN";

const fn name(value: u64, name: &'static str) -> Name {
    Name { value, name }
}

/// Kinds of frames.
pub const KINDS: &[Name] = &[
    name(Kind::Handshake as u64, "Handshake"),
    name(Kind::Ack as u64, "Ack"),
    name(Kind::Control as u64, "Control"),
    name(Kind::Write as u64, "Write"),
    name(Kind::ReadRequest as u64, "ReadRequest"),
    name(Kind::ReadResponse as u64, "ReadResponse"),
    name(Kind::Send as u64, "Send"),
    name(Kind::Atomic as u64, "Atomic"),
    name(Kind::AtomicResponse as u64, "AtomicResponse"),
    name(Kind::Probe as u64, "Probe"),
    name(Kind::Datagram as u64, "Datagram"),
    name(Kind::SendInvalidate as u64, "SendInvalidate"),
    name(Kind::Patch as u64, "Patch"),
];

/// Flags of connection frames.
pub const FLAG_BITS: &[Name] = &[
    name(Flags::LAST.0 as u64, "LAST"),
    name(Flags::FENCE_BEFORE.0 as u64, "FENCE_BEFORE"),
    name(Flags::FENCE_AFTER.0 as u64, "FENCE_AFTER"),
    name(Flags::STRICT.0 as u64, "STRICT"),
    name(Flags::IMMEDIATE.0 as u64, "IMMEDIATE"),
    name(Flags::ACK_NOW.0 as u64, "ACK_NOW"),
    name(Flags::ACK.0 as u64, "ACK"),
    name(Flags::SOLICITED.0 as u64, "SOLICITED"),
];

/// Atomic operations.
pub const ATOMIC_OPCODES: &[Name] = &[
    name(AtomicOpcode::FetchAdd as u64, "fetch-and-add"),
    name(AtomicOpcode::CompareSwap as u64, "compare-and-swap"),
    name(AtomicOpcode::Swap as u64, "swap"),
];

/// Steps of the handshake.
pub const STEPS: &[Name] = &[
    name(1, "Hello"),
    name(2, "Retry"),
    name(3, "Accept"),
    name(4, "Reject"),
    name(5, "Pending"),
    name(6, "Reset"),
    name(7, "VersionMismatch"),
];

/// Feature bits.
pub const FEATURE_BITS: &[Name] = &[
    name(Features::PSK.0, "psk"),
    name(Features::WHOLE_ADDRESS_SPACE.0, "whole_address_space"),
    name(Features::QUEUE_PAIR.0, "queue_pair"),
    name(Features::PATCH.0, "patch"),
];

/// Types of control messages.
pub const CONTROL_TYPES: &[Name] = &[
    name(0, "Padding"),
    name(1, "Ping"),
    name(2, "PathChallenge"),
    name(3, "PathResponse"),
    name(4, "LinkStatus"),
    name(5, "Close"),
    name(6, "CloseAck"),
    name(7, "Address"),
    name(8, "Links"),
    name(9, "Gone"),
    name(10, "NotReady"),
    name(11, "Ready"),
];

/// Statuses of links.
pub const LINK_STATUSES: &[Name] = &[
    name(LinkStatus::Available as u64, "available"),
    name(LinkStatus::Backup as u64, "backup"),
    name(LinkStatus::Down as u64, "down"),
    name(LinkStatus::Removed as u64, "removed"),
];

/// Contents of envelopes.
pub const ENVELOPE_KINDS: &[Name] = &[
    name(EnvelopeKind::Frame as u64, "Frame"),
    name(EnvelopeKind::Discover as u64, "Discover"),
    name(EnvelopeKind::Here as u64, "Here"),
];

/// Families of addresses.
pub const ADDRESS_FAMILIES: &[Name] =
    &[name(1, "MAC"), name(2, "shared memory"), name(4, "IPv4"), name(6, "IPv6")];

/// Reasons of Close.
pub const CLOSE_REASONS: &[Name] = &[
    name(CloseReason::Finished.code() as u64, "finished"),
    name(CloseReason::Application.code() as u64, "closed by the application"),
    name(CloseReason::UnknownKey.code() as u64, "access denied: unknown key"),
    name(CloseReason::OutOfRange.code() as u64, "access denied: out of range"),
    name(CloseReason::RightMissing.code() as u64, "access denied: right missing"),
    name(CloseReason::Misaligned.code() as u64, "access denied: misaligned"),
    name(CloseReason::ProtocolViolation.code() as u64, "protocol violation"),
    name(CloseReason::MessageTooLong.code() as u64, "message longer than the receive"),
    name(CloseReason::ResourceLimit.code() as u64, "resource limit"),
    name(CloseReason::PeerRestarted.code() as u64, "peer restarted"),
    name(CloseReason::LocalMemoryGone.code() as u64, "local memory gone"),
];

/// Reasons of Reject.
pub const REJECT_REASONS: &[Name] = &[
    name(RejectReason::Application.code() as u64, "refused by the application"),
    name(RejectReason::NoListener.code() as u64, "no listener for this service"),
    name(RejectReason::ConnectionLimit.code() as u64, "limit of connections reached"),
    name(RejectReason::Parameters.code() as u64, "parameters unacceptable"),
    name(RejectReason::Moved.code() as u64, "moved"),
];

const fn kind(
    kind: Kind,
    headers: &'static [Layout],
    required: Flags,
    forbidden: Flags,
    rest: Rest,
) -> KindLayout {
    let (with_last, immediate) = match kind {
        Kind::SendInvalidate => (Flags::IMMEDIATE, Layout::Invalidated),
        _ => (Flags::NONE, Layout::Immediate),
    };
    KindLayout { kind, headers, required, forbidden, with_last, immediate, rest }
}

/// The parts of each kind of connection frame.
pub const KIND_LAYOUTS: &[KindLayout] = &[
    kind(Kind::Ack, &[], Flags::ACK, Flags::IMMEDIATE, Rest::Nothing),
    kind(Kind::Control, &[], Flags::NONE, Flags::IMMEDIATE, Rest::Messages),
    kind(
        Kind::Write,
        &[Layout::Operation, Layout::Offset, Layout::Tagged],
        Flags::NONE,
        Flags::NONE,
        Rest::Payload,
    ),
    kind(
        Kind::ReadRequest,
        &[Layout::Operation, Layout::Length, Layout::Tagged],
        Flags::LAST,
        Flags::IMMEDIATE,
        Rest::Nothing,
    ),
    kind(
        Kind::ReadResponse,
        &[Layout::Operation, Layout::Offset],
        Flags::NONE,
        Flags::IMMEDIATE,
        Rest::Payload,
    ),
    kind(
        Kind::Send,
        &[Layout::Operation, Layout::Offset, Layout::Message],
        Flags::NONE,
        Flags::NONE,
        Rest::Payload,
    ),
    kind(
        Kind::Atomic,
        &[Layout::Operation, Layout::Opcode, Layout::Tagged, Layout::Operands],
        Flags::LAST,
        Flags::IMMEDIATE,
        Rest::Nothing,
    ),
    kind(
        Kind::AtomicResponse,
        &[Layout::Operation, Layout::Value],
        Flags::LAST,
        Flags::IMMEDIATE,
        Rest::Nothing,
    ),
    kind(Kind::Probe, &[], Flags::NONE, Flags::IMMEDIATE.with(Flags::ACK), Rest::Padding),
    kind(
        Kind::SendInvalidate,
        &[Layout::Operation, Layout::Offset, Layout::Message],
        Flags::NONE,
        Flags::NONE,
        Rest::Payload,
    ),
    kind(
        Kind::Patch,
        &[Layout::Operation, Layout::Offset, Layout::Tagged],
        Flags::NONE,
        Flags::STRICT,
        Rest::Records,
    ),
];

/// The bodies of handshake frames. Addresses and private data follow Counts; private data follows
/// Reject.
pub const STEP_LAYOUTS: &[StepLayout] = &[
    StepLayout { step: 1, parts: &[Layout::Parameters, Layout::Cookie, Layout::Counts] },
    StepLayout { step: 2, parts: &[Layout::Cookie] },
    StepLayout { step: 3, parts: &[Layout::Parameters, Layout::Counts] },
    StepLayout { step: 4, parts: &[Layout::Reject] },
    StepLayout { step: 5, parts: &[] },
    StepLayout { step: 6, parts: &[Layout::Reset] },
    StepLayout { step: 7, parts: &[Layout::VersionMismatch] },
];

/// The bodies of control messages.
pub const CONTROL_LAYOUTS: &[ControlLayout] = &[
    ControlLayout { control: 0, body: None, tail_bytes_max: 255 },
    ControlLayout { control: 1, body: None, tail_bytes_max: 0 },
    ControlLayout { control: 2, body: Some(Layout::Path), tail_bytes_max: 0 },
    ControlLayout { control: 3, body: Some(Layout::Path), tail_bytes_max: 0 },
    ControlLayout { control: 4, body: Some(Layout::LinkStatus), tail_bytes_max: 0 },
    ControlLayout { control: 5, body: Some(Layout::Close), tail_bytes_max: 128 },
    ControlLayout { control: 6, body: None, tail_bytes_max: 0 },
    ControlLayout { control: 7, body: Some(Layout::Address), tail_bytes_max: 0 },
    ControlLayout { control: 8, body: Some(Layout::Links), tail_bytes_max: 0 },
    ControlLayout { control: 9, body: Some(Layout::Gone), tail_bytes_max: 0 },
    ControlLayout { control: 10, body: Some(Layout::NotReady), tail_bytes_max: 0 },
    ControlLayout { control: 11, body: None, tail_bytes_max: 0 },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::PatchRecord;

    #[test]
    fn fields_of_a_layout_follow_each_other_without_overlap() {
        for pair in FIELDS.windows(2) {
            let (before, field) = (pair[0], pair[1]);
            if before.layout == field.layout && before.offset != field.offset {
                assert_eq!(before.end(), field.offset, "{} {}", before.name, field.name);
            }
        }
    }

    //= protocol.md: patch.2
    #[test]
    fn the_encoder_of_records_agrees_with_the_table() {
        let record = PatchRecord { block: 0x0201, bitmap: 0x0605_0403 };
        let bytes = record.encode();
        assert_eq!(bytes.len(), layout_end(Layout::PatchRecord));
        assert_eq!(bytes[RECORD_BLOCK.offset..RECORD_BLOCK.end()], [1, 2]);
        assert_eq!(bytes[RECORD_ZERO.offset..RECORD_ZERO.end()], [0, 0]);
        assert_eq!(bytes[RECORD_BITMAP.offset..RECORD_BITMAP.end()], [3, 4, 5, 6]);
    }

    #[test]
    fn every_code_has_one_name() {
        for names in [
            KINDS,
            FLAG_BITS,
            ATOMIC_OPCODES,
            STEPS,
            FEATURE_BITS,
            CONTROL_TYPES,
            LINK_STATUSES,
            ENVELOPE_KINDS,
            ADDRESS_FAMILIES,
            CLOSE_REASONS,
            REJECT_REASONS,
        ] {
            assert!(names.windows(2).all(|pair| pair[0].value < pair[1].value), "{names:?}");
        }
    }
}
