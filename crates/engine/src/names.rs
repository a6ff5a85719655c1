//! The ids and epochs by which the two ends of a connection identify it.

use wire_edge::{ConnectionId, Epoch, Parameters};

use crate::hello::{Hello, HelloKey};

/// The ids and epochs of a connection. This end's id and epoch never change. The peer's id and
/// epoch do not change after the handshake.
#[derive(Debug)]
pub(crate) struct Names {
    /// The id of the connection in frames to this end, which this end chose.
    id: ConnectionId,
    /// The epoch in frames to this end, which this end chose.
    epoch: Epoch,
    /// The id for frames to the peer. It is 0 until the peer has sent its id.
    peer_id: ConnectionId,
    /// The peer's parameters from the handshake. They contain the epoch for frames to the peer.
    peer: Option<Parameters>,
    /// The key that identifies repetitions of the peer's Hello, if the peer is the initiator.
    hello_key: Option<HelloKey>,
}

delivery::pack_fields!(Names { id, epoch, peer_id, peer, hello_key });

impl Names {
    /// Creates the value for a connection whose peer is not known yet.
    pub(crate) const fn new(id: ConnectionId, epoch: Epoch) -> Self {
        Self { id, epoch, peer_id: ConnectionId(0), peer: None, hello_key: None }
    }

    /// Records the peer's id and parameters from its Accept.
    pub(crate) fn on_accepted(&mut self, id: ConnectionId, parameters: &Parameters) {
        assert!(self.peer.is_none(), "a connection has one peer");
        (self.peer_id, self.peer) = (id, Some(*parameters));
    }

    /// Records the peer's id and parameters from its Hello.
    pub(crate) fn on_requested(&mut self, hello: &Hello<'_>) {
        self.on_accepted(hello.source, &hello.parameters);
        self.hello_key = Some(hello.key());
    }

    /// Returns the id in frames to this end.
    #[inline]
    pub(crate) const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the epoch in frames to this end.
    #[inline]
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the id and epoch for frames to the peer.
    #[inline]
    pub(crate) fn of_peer(&self) -> (ConnectionId, Epoch) {
        (self.peer_id, self.peer.as_ref().map_or(Epoch(0), |peer| peer.epoch))
    }

    /// Returns the peer's parameters; `None` until the peer has sent them.
    #[inline]
    pub(crate) const fn peer(&self) -> Option<&Parameters> {
        self.peer.as_ref()
    }

    /// Returns the key of the peer's Hello, if the peer is the initiator.
    pub(crate) const fn hello_key(&self) -> Option<&HelloKey> {
        self.hello_key.as_ref()
    }

    /// Returns whether this end is the initiator.
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
    fn a_request_makes_the_connection_a_responder() {
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
    fn a_second_peer_of_a_connection_panics() {
        let mut names = Names::new(ConnectionId(7), Epoch(3));
        names.on_accepted(ConnectionId(9), &PARAMETERS);
        names.on_accepted(ConnectionId(8), &PARAMETERS);
    }
}
