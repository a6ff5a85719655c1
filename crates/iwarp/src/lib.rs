//! The protocol machine of one iWARP stream: a TCP connection that carries MPA (RFC 5044,
//! RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040). The crate does no I/O, reads no clock and
//! holds no socket: bytes, time and memory are arguments.
//!
//! A driver connects a [`Stream`] with a socket:
//!
//! * It passes received bytes to [`Stream::handle_received`], in any cut, and reports the end of
//!   the TCP connection with [`Stream::handle_end`] and [`Stream::handle_reset`].
//! * It writes what [`Stream::poll_transmit`] returns, and reports with [`Stream::handle_written`]
//!   how many bytes TCP has taken.
//! * It calls [`Stream::handle_timeout`] when the time [`Stream::next_timeout`] has come.
//! * After each of these calls, it takes the events of [`Stream::poll_event`].
//! * Once [`Stream::may_close`] is true, it closes the socket.
//!
//! The user posts operations with [`Stream::post_send`]. The stream reaches the memory of the
//! application through the trait [`Memory`].
//!
//! A stream checks each segment completely before it places a byte of it. The peer's errors end the
//! stream with the Terminate message that the RFCs name, and with [`EndCause`]. Nothing that a peer
//! sends panics.
#![forbid(unsafe_code)]

mod blamed;
mod config;
mod cursor;
mod ending;
mod event;
mod framing;
mod gather;
mod handshake;
mod memory;
mod nudges;
mod placement;
mod planted;
mod receive;
mod segments;
mod setup;
mod stream;
mod terminate_payload;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod work;

pub use blamed::BlamedSegment;
pub use config::{
    Config, FPDU_BYTES_MAX, FPDU_BYTES_MIN, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, MSS_MIN,
    PIECES_MAX, PeerKind, RtrKinds, Terms,
};
pub use event::{EndCause, Event, Kind, SetupFault, Status};
pub use gather::{Gather, Part, TURN_BYTES};
pub use handshake::AnswerError;
pub use memory::{Access, Memory, Piece, Refusal};
pub use receive::DirectSink;
pub use stream::{Counters, Stream};
pub use work::{Payload, PostError, Work, WorkKind};
