//! Frame formats of the edge protocol: encoding, and decoding with all checks.
//!
//! The normative text is `docs/protocol.md`. Numbers in this crate equal the numbers in that text;
//! change both in one commit. Offsets, sizes, ranges and names are in one table, [`fields`]. The
//! Wireshark dissector is generated from the same table.
//!
//! * Connection frames: [`peek`] finds the connection and [`decode`] decodes the frame. To send a
//!   frame, call [`encode_header`], then [`encode_acks`] if [`Flags::ACK`] is set, then append the
//!   payload.
//! * Handshake frames: [`decode_handshake`] and [`HandshakeFrame::encode`].
//! * Datagrams without a connection: [`decode_datagram`] and [`Datagram::encode`].
//! * Envelopes of frames on raw Ethernet: [`Envelope`].
//! * Payloads of control frames: [`control_messages`] and [`Control::encode`].
//!
//! A decoded frame obeys every rule of `docs/protocol.md` that does not depend on the state of the
//! connection.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod acknowledgement;
mod address;
mod control;
mod datagram;
mod envelope;
mod error;
pub mod fields;
mod flags;
mod frame;
#[cfg(test)]
mod generate;
mod handshake;
mod identity;
mod moved;
mod octets;
mod parameters;
mod patch;
mod permutation;
mod reason;
mod rules;

pub use acknowledgement::{
    ACK_BLOCK_WORDS_MAX, ACK_BLOCKS_MAX, ACK_SECTION_BYTES_MAX, AckBlock, AckBlocks, AckDelay,
    AckSection, ack_section_bytes, encode_acks,
};
pub use address::Addresses;
pub use control::{
    CLOSE_PRIVATE_BYTES_MAX, CONTROL_BYTES_MAX, Control, ControlMessages, LinkStatus,
    control_messages,
};
pub use datagram::{
    DATAGRAM_HEADER_BYTES, Datagram, ROUTE_HEADER_BYTES, datagram_payload_max, decode_datagram,
    route_header,
};
pub use envelope::{
    ENVELOPE_BYTES, ENVELOPE_BYTES_COVERED, ETHERTYPE_DEFAULT, Envelope, EnvelopeKind,
};
pub use error::DecodeError;
pub use flags::{Flags, Kind};
pub use frame::{
    AtomicOpcode, COMMON_BYTES, Frame, HEADER_BYTES_MAX, Header, OPERATION_BYTES_MAX, Prefix,
    decode, decode_split, encode_header, peek, peek_prefix,
};
pub use handshake::{
    ADDRESSES_MAX, COOKIE_BYTES, HANDSHAKE_BYTES_MAX, Handshake, HandshakeFrame, PRIVATE_BYTES_MAX,
    Preamble, decode_handshake, preamble,
};
pub use identity::{
    ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, PacketNumber, PeerAddr,
    QueuePairNumber, RemoteKey,
};
pub use moved::{MOVED_BYTES, Moved};
pub use parameters::{Features, PARAMETERS_BYTES, Parameters};
pub use patch::{
    PATCH_AREA_BYTES_MAX, PATCH_BLOCK_BYTES, PATCH_BLOCKS_MAX, PATCH_RECORD_BYTES_MAX,
    PATCH_RECORD_HEADER_BYTES, PATCH_WORD_BYTES, PatchRecord, PatchRecords, encode_patch,
};
pub use permutation::KeyedPermutation;
pub use reason::{CloseReason, RejectReason};

/// The protocol version that this crate implements.
pub const VERSION: u16 = 1;
