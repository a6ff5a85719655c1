//! Traits that a wire implements for the connection manager. A wire is the transport protocol that
//! carries the requests of ids and the work of queue pairs, such as the edge protocol.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use verbs::{Device, Error, Gid, QueuePair};

use super::message::{Refusal, Reply, Request};
use super::port_space::PortSpace;

/// A device with its connection manager.
#[derive(Clone)]
pub struct ManagedDevice {
    /// The device.
    pub device: Arc<Device>,
    /// The wire of this device: the transport that carries the requests of ids.
    pub manager: Arc<dyn ConnectionManager>,
}

impl fmt::Debug for ManagedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)
    }
}

/// Carries requests and answers between ids of this device and ids of other devices.
///
/// A connection of the wire (the transport that implements this trait) carries the exchange of a
/// request and its answer. If both ids already have their queue pairs during the exchange, the
/// queue pairs take over this connection. Otherwise the queue pairs are connected separately, with
/// the parameters from the exchange.
///
/// No function of this trait waits for a peer. Before a function returns, any thread inside the
/// wire may call a [`Listener`] or [`Caller`]. The called object must not call the wire.
pub trait ConnectionManager: Send + Sync {
    /// Passes requests for a port to `listener` until the returned object is dropped. An
    /// unspecified address stands for all addresses of the device.
    ///
    /// `claimed` is the socket that has reserved the port. The wire (the transport) keeps the
    /// socket open until the wire itself listens at the port. If the wire closed the socket
    /// earlier, a peer that connects at that moment would get the answer that no program listens.
    ///
    /// # Errors
    /// * Returns [`Error::System`] with `EADDRINUSE` if another id listens at the address.
    /// * Returns [`Error::System`] with `EADDRNOTAVAIL` if the device does not have the address.
    fn listen(
        &self,
        at: SocketAddr,
        space: PortSpace,
        claimed: Option<UdpSocket>,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error>;

    /// Sends a connection request. `queue_pair` is in INIT. If both the request and the answer
    /// offer a takeover, `queue_pair` takes over the connection that carries the exchange. A wire
    /// that does not support this removes the offer from the request.
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if there is no route, or if too many requests
    /// are pending.
    fn connect(
        &self,
        from: Gid,
        to: SocketAddr,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error>;

    /// Returns whether ids of this device may have the address.
    fn has_address(&self, address: IpAddr) -> bool;
}

/// A listening port. The wire (the transport) accepts requests until this object is dropped. After
/// that, established connections stay open.
pub trait Listening: Send + Sync {}

/// A request and its outcome, at the requester or at the responder. Dropping this object aborts the
/// exchange.
pub trait Exchange: Send + Sync {
    /// Accepts a request from the peer. `queue_pair` is in RTS. It takes over the connection if
    /// both the request and the reply offer this.
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the peer has withdrawn the request.
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error>;

    /// Passes the connection to the requester's queue pair, which is in RTS. If the connection has
    /// already ended, the queue pair fails with the reason for the end.
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the device is closed.
    fn take_over(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error>;

    /// Rejects a request from the peer. Also rejects an established connection that the program
    /// does not want.
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the peer has withdrawn the request.
    fn reject(&self, refusal: &Refusal) -> Result<(), Error>;

    /// Ends the exchange in any state, and notifies the peer that the connection has ended. If a
    /// queue pair has taken over the connection and has already ended it, notifies the id during
    /// this call.
    fn close(&self);
}

/// Receives connection requests.
pub trait Listener: Send + Sync {
    /// Handles a request from a peer. Returns the object that the wire (the transport) notifies of
    /// the outcome. The GID of the peer in `request` is the source address of the request.
    ///
    /// # Errors
    /// Returns the rejection that the wire sends to the peer.
    fn on_request(
        &self,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal>;
}

/// Receives the outcome of a request. Each end of an exchange has a caller.
pub trait Caller: Send + Sync {
    /// Handles the acceptance of this side's request. If `takes_over` is set in the reply, both
    /// ends have offered the takeover.
    fn on_accepted(&self, reply: Reply);

    /// Handles the peer's confirmation that it has received this side's acceptance.
    fn on_established(&self);

    /// Handles the end of the connection, or of the attempt to establish a connection.
    fn on_over(&self, over: Over);

    /// Records that no packet of the connection is in flight any more.
    fn on_quiet(&self);
}

/// Cause of the end of an exchange.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Over {
    /// The peer rejected the request, or no program listens at the port.
    Refused(Refusal),
    /// The peer did not answer, or it disappeared before the connection was established.
    Unreachable,
    /// The connection was established, and then the peer ended it or disappeared.
    Disconnected,
}
