//! Traits that a wire implements for the connection manager.

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
    /// Connects the device's ids.
    pub manager: Arc<dyn ConnectionManager>,
}

impl fmt::Debug for ManagedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)
    }
}

/// Carries requests and answers between ids of this device and those of others. If both ids have
/// their queue pairs at that time, the connection that carries the exchange becomes that of the
/// queue pairs. All other queue pairs are connected separately with the parameters exchanged, as
/// those of programs that exchange queue pair numbers themselves.
///
/// No function here waits for a peer. A [`Listener`] or [`Caller`] may be notified before the call
/// returns, by any thread, inside the wire. It must therefore not call the wire.
pub trait ConnectionManager: Send + Sync {
    /// Passes requests for a port to `listener` until the returned object is dropped. An
    /// unspecified address stands for all addresses of the device. The wire drops `claimed`, the
    /// socket that has reserved the port so far, when it claims the port for listening, and not
    /// earlier: otherwise a peer that asks meanwhile would be informed that no program listens.
    ///
    /// # Errors
    /// [`Error::System`] with `EADDRINUSE` if another id listens there, `EADDRNOTAVAIL` if the
    /// device does not have the address.
    fn listen(
        &self,
        at: SocketAddr,
        space: PortSpace,
        claimed: Option<UdpSocket>,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error>;

    /// Sends a connection request. If the request offers it, the connection becomes that of
    /// `queue_pair`, which is in INIT. A wire that cannot do that removes the offer from the
    /// request.
    ///
    /// # Errors
    /// Fails if there is no route, or if too many requests are pending.
    fn connect(
        &self,
        from: Gid,
        to: SocketAddr,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error>;

    /// Returns whether ids of this device may have this address.
    fn has_address(&self, address: IpAddr) -> bool;
}

/// A port at which requests are accepted until this is dropped. Connections that were established
/// there remain.
pub trait Listening: Send + Sync {}

/// A request and its outcome, at either end. Dropping it aborts the exchange.
pub trait Exchange: Send + Sync {
    /// Accepts a request from the peer. If both the request and the reply offer it, `queue_pair`,
    /// which is in RTS, takes over the connection.
    ///
    /// # Errors
    /// Fails if the request was withdrawn.
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error>;

    /// Hands the connection to the requester's queue pair, which is in RTS. If the connection has
    /// ended meanwhile, the queue pair fails accordingly.
    ///
    /// # Errors
    /// Fails if the device is closed.
    fn take_over(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error>;

    /// Rejects a request from the peer, or an established connection that the program does not want
    /// after all.
    ///
    /// # Errors
    /// Fails if the request was withdrawn.
    fn reject(&self, refusal: &Refusal) -> Result<(), Error>;

    /// Ends the exchange in any state, and notifies the peer that the connection has ended. If the
    /// queue pair that has taken over the connection has ended it before, the id is notified now.
    fn close(&self);
}

/// Receives connection requests.
pub trait Listener: Send + Sync {
    /// Handles a request from a peer, whose GID is the source address of the request. Returns the
    /// object to notify of the outcome, or the reason for an immediate refusal.
    ///
    /// # Errors
    /// The refusal to send to the peer.
    fn on_request(
        &self,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal>;
}

/// Receives the outcome of a request.
pub trait Caller: Send + Sync {
    /// Handles the acceptance of this side's request. The reply says that the queue pair takes over
    /// only if both ends offered it.
    fn on_accepted(&self, reply: Reply);

    /// Handles the confirmation that the peer knows of this side's acceptance.
    fn on_established(&self);

    /// Handles the end of the connection, or of the attempt to establish it.
    fn on_over(&self, over: Over);

    /// Records that no packet of the connection is in flight any more.
    fn on_quiet(&self);
}

/// Why an exchange has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Over {
    /// The peer rejected the request, or no program listens.
    Refused(Refusal),
    /// The peer did not answer, or went away while the connection was being established.
    Unreachable,
    /// The connection was established, and the peer has ended it or is gone.
    Disconnected,
}
