//! Violations of the protocol that show in packets alone.

use wire_edge::PacketNumber;

/// The peer broke the protocol; the connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It acknowledged a packet that was never sent.
    #[error("the peer acknowledged packet {}, the next one to be sent is {}", .acknowledged.0, .next.0)]
    AckOfUnsent {
        /// The number it claims to have received.
        acknowledged: PacketNumber,
        /// The first number not used yet.
        next: PacketNumber,
    },
}
