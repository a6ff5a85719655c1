//! By what a repeated request for a connection is known.

use wire_edge::{ConnectionId, Epoch, Parameters};

/// What is the same in every Hello of one attempt to connect, from whichever address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HelloKey {
    incarnation: u64,
    source: ConnectionId,
    epoch: Epoch,
    service: u32,
}

delivery::pack_fields!(HelloKey { incarnation, source, epoch, service });

impl HelloKey {
    //= protocol.md: set-up.10
    /// Of a Hello from the connection with this id at its end.
    pub(crate) const fn new(source: ConnectionId, parameters: &Parameters) -> Self {
        let &Parameters { incarnation, epoch, service, .. } = parameters;
        Self { incarnation, source, epoch, service }
    }
}
