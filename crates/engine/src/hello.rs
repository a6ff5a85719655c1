//! A Hello of a peer, and the key that identifies its repetitions.

use wire_edge::{COOKIE_BYTES, ConnectionId, Epoch, Parameters};

/// A Hello of a peer, as decoded.
#[derive(Debug)]
pub(crate) struct Hello<'a> {
    /// The id of the connection at the peer.
    pub(crate) source: ConnectionId,
    pub(crate) parameters: Parameters,
    pub(crate) cookie: [u8; COOKIE_BYTES],
    pub(crate) private_data: &'a [u8],
}

impl Hello<'_> {
    //= protocol.md: set-up.10
    /// Returns the key of this Hello. All repetitions of a Hello have the same key.
    pub(crate) const fn key(&self) -> HelloKey {
        let Parameters { incarnation, epoch, service, .. } = self.parameters;
        HelloKey { incarnation, source: self.source, epoch, service }
    }
}

/// The fields that are equal in every Hello of one attempt to connect, even if the initiator sends
/// the Hello from several addresses.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HelloKey {
    incarnation: u64,
    source: ConnectionId,
    epoch: Epoch,
    service: u32,
}

delivery::pack_fields!(HelloKey { incarnation, source, epoch, service });
