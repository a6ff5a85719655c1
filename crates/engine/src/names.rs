//! By which names the two ends of a connection know it.

use wire_edge::{ConnectionId, Epoch, Parameters};

use crate::hello::{Hello, HelloKey};

/// The names of a connection. Its own never change, and those of the peer not once they are known.
#[derive(Debug)]
pub(crate) struct Names {
    /// The id peers put into frames to this side.
    id: ConnectionId,
    /// The epoch that frames to this side must carry.
    epoch: Epoch,
    /// The id to put into frames to the peer, 0 while it is not known.
    peer_id: ConnectionId,
    /// What the peer said of itself in the handshake; its epoch is the one to put into frames to it.
    peer: Option<Parameters>,
    /// Key under which repetitions of the peer's Hello find this connection, if the peer asked for it.
    hello_key: Option<HelloKey>,
}

delivery::pack_fields!(Names { id, epoch, peer_id, peer, hello_key });

impl Names {
    /// Of a connection whose peer is not known yet.
    pub(crate) const fn new(id: ConnectionId, epoch: Epoch) -> Self {
        Self { id, epoch, peer_id: ConnectionId(0), peer: None, hello_key: None }
    }

    /// The peer accepts, and announces its names.
    pub(crate) fn on_accepted(&mut self, id: ConnectionId, parameters: &Parameters) {
        assert!(self.peer.is_none(), "a connection has one peer");
        (self.peer_id, self.peer) = (id, Some(*parameters));
    }

    /// The peer asks for this connection, and announces its names.
    pub(crate) fn on_requested(&mut self, hello: &Hello<'_>) {
        self.on_accepted(hello.source, &hello.parameters);
        self.hello_key = Some(hello.key());
    }

    /// The id in frames to this side.
    #[inline]
    pub(crate) const fn id(&self) -> ConnectionId {
        self.id
    }

    /// The epoch in frames to this side.
    #[inline]
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What frames to the peer carry.
    #[inline]
    pub(crate) fn of_peer(&self) -> (ConnectionId, Epoch) {
        (self.peer_id, self.peer.as_ref().map_or(Epoch(0), |peer| peer.epoch))
    }

    /// What the peer said of itself.
    #[inline]
    pub(crate) const fn peer(&self) -> Option<&Parameters> {
        self.peer.as_ref()
    }

    /// By what the peer's request is known, if it asked for the connection.
    pub(crate) const fn hello_key(&self) -> Option<&HelloKey> {
        self.hello_key.as_ref()
    }

    /// Whether this end asked for the connection.
    #[inline]
    pub(crate) const fn is_initiator(&self) -> bool {
        self.hello_key.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sending::tests::PARAMETERS;

    #[test]
    fn the_responder_is_not_the_initiator() {
        let mut names = Names::new(ConnectionId(7), Epoch(3));
        assert!(names.is_initiator());
        assert_eq!(names.of_peer(), (ConnectionId(0), Epoch(0)));
        let hello = Hello {
            source: ConnectionId(9),
            parameters: PARAMETERS,
            cookie: [0; wire_edge::COOKIE_BYTES],
            private_data: &[],
        };
        names.on_requested(&hello);
        assert!(!names.is_initiator());
        assert_eq!(names.of_peer(), (ConnectionId(9), PARAMETERS.epoch));
        assert_eq!(names.hello_key(), Some(&hello.key()));
    }

    #[test]
    #[should_panic(expected = "a connection has one peer")]
    fn no_other_end_takes_the_place_of_the_peer() {
        let mut names = Names::new(ConnectionId(7), Epoch(3));
        names.on_accepted(ConnectionId(9), &PARAMETERS);
        names.on_accepted(ConnectionId(8), &PARAMETERS);
    }
}
