//! Frame formats of iWARP, RDMA over TCP: encoding, and decoding with all checks.
//!
//! Three protocols lie above each other on one TCP stream:
//!
//! * MPA (RFC 5044, RFC 6581) cuts the stream into FPDUs. A connection starts with one set-up frame
//!   in each direction: [`decode_setup`] and [`SetupFrame::encode`]. FPDUs follow: [`FpduLayout`],
//!   [`Crc`], [`Trailer`]. If the receiver asks for markers, [`MarkerPosition`] says where they
//!   fall, and [`MarkerStripper`] removes them.
//! * DDP (RFC 5041) places the payload of a segment: [`DdpHeader`].
//! * RDMAP (RFC 5040) says what a segment is for: [`Opcode`], [`ReadRequest`], [`Terminate`].
//!   [`decode_segment`] decodes the headers of DDP and RDMAP together.
//!
//! Numbers are big-endian on the wire, except the CRC. The decoders check every rule that does not
//! depend on the state of the connection. They ignore reserved bits, as the RFCs demand, but keep
//! them, so that a decoded frame encodes again to the same bytes.
#![forbid(unsafe_code)]

mod cause;
mod ddp;
mod error;
mod fpdu;
#[cfg(test)]
mod generate;
mod markers;
mod mpa;
mod octets;
mod rdmap;
mod terminate;

pub use cause::{Cause, ErrorCode, Layer};
pub use ddp::{
    DDP_VERSION, DdpHeader, QueueNumber, SEGMENT_HEADER_BYTES_MAX, Stag, TAGGED_HEADER_BYTES,
    UNTAGGED_HEADER_BYTES,
};
pub use error::EncodeError;
pub use fpdu::{
    CRC_BYTES, Crc, CrcMismatch, FpduLayout, LENGTH_BYTES, PAD_BYTES_MAX, Trailer, ULPDU_MAX,
    encode_length,
};
pub use markers::{
    FpduParts, MARKED_ULPDU_MAX, MARKER_BYTES, MARKER_INTERVAL, MarkerError, MarkerPosition,
    MarkerStripper, Part, Run,
};
pub use mpa::{
    DEPTH_MAX, DEPTH_NOT_NEGOTIATED, ENHANCED_BYTES, EnhancedSetup, PRIVATE_DATA_MAX, Parsed,
    Revision, SETUP_FRAME_BYTES_MAX, SETUP_HEADER_BYTES, SetupError, SetupFlags, SetupFrame,
    SetupKind, decode_setup,
};
pub use rdmap::{
    Opcode, RDMAP_VERSION, READ_REQUEST_BYTES, ReadRequest, Segment, SegmentError, SegmentStart,
    decode_segment, decode_segment_start,
};
pub use terminate::{
    BitOrder, TERMINATE_BYTES_MAX, Terminate, TerminateError, TerminatedHeader, decode_terminate,
};
