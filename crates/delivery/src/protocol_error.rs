//! Violations of the protocol that this crate detects.

use wire_edge::PacketNumber;

/// A violation of the protocol by the peer. The violation ends the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The peer acknowledged a packet that was never sent.
    #[error("the peer acknowledged packet {}, the next one to be sent is {}", .acknowledged.0, .next.0)]
    AckOfUnsent {
        /// Largest packet number that the peer acknowledged.
        acknowledged: PacketNumber,
        /// The number that the next packet gets.
        next: PacketNumber,
    },
}
