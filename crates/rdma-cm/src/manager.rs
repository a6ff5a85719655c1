//! What the connection manager needs of a wire.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use verbs::{Device, Error, Gid, QueuePair};

use super::message::{Refusal, Reply, Request};
use super::port_space::PortSpace;

/// A device whose wire connects ids.
#[derive(Clone)]
pub struct ManagedDevice {
    /// The device.
    pub device: Arc<Device>,
    /// Connects its ids.
    pub manager: Arc<dyn ConnectionManager>,
}

impl fmt::Debug for ManagedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)
    }
}

/// How ids of one device meet ids of others. What is carried are requests and answers. Where both ids have their queue
/// pairs at that time, what carries them becomes the connection of these; all others are connected by what was said, as
/// those are whose programs exchange numbers by themselves.
///
/// Nothing here waits for a peer. A [`Listener`] or [`Caller`] may be notified before the call
/// returns, and by any thread, inside the wire: so it must not call the wire.
pub trait ConnectionManager: Send + Sync {
    /// Passes requests for a port on from now on, until what is returned is dropped. An unspecified address stands
    /// for all that the device has. What has `claimed` the port so far is to be dropped when it is claimed for
    /// listening, and not before: a peer that asks meanwhile would get the answer that no program listens.
    ///
    /// # Errors
    /// [`Error::System`] with `EADDRINUSE` if somebody does, `EADDRNOTAVAIL` if the address is none of the device.
    fn listen(
        &self,
        at: SocketAddr,
        space: PortSpace,
        claimed: Option<UdpSocket>,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error>;

    /// Asks for a connection, and, where the request says that it takes over, for that of a queue pair, which is in INIT.
    /// A wire that cannot do that does not say so to the peer.
    ///
    /// # Errors
    /// No way leads there, or no more can be asked for.
    fn connect(
        &self,
        from: Gid,
        to: SocketAddr,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error>;

    /// Whether ids of this device may have this address.
    fn has_address(&self, address: IpAddr) -> bool;
}

/// A port at which requests are passed on. It ends when it is dropped; connections that were made there live on.
pub trait Listening: Send + Sync {}

/// One request and what becomes of it, at either end. It is given up when it is dropped.
pub trait Exchange: Send + Sync {
    /// Accepts a request that came. A queue pair, which is in RTS, takes the connection over: only where both the
    /// request and the reply say so.
    ///
    /// # Errors
    /// The request has been withdrawn.
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error>;

    /// Hands the connection to the requester's queue pair, which is in RTS. If the connection has ended meanwhile,
    /// the queue pair fails accordingly.
    ///
    /// # Errors
    /// The device is closed.
    fn take_over(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error>;

    /// Rejects a request that came, or, with a connection that is there, reports that it is not wanted after all.
    ///
    /// # Errors
    /// The request has been withdrawn.
    fn reject(&self, refusal: &Refusal) -> Result<(), Error>;

    /// Ends it, whatever it is: the peer is notified that the connection has ended. A queue pair that has taken it over may
    /// have ended it before; the requester is notified now.
    fn close(&self);
}

/// Is notified of requests.
pub trait Listener: Send + Sync {
    /// Handles a request of a peer, whose GID is that of the address which the request came from. Returns the
    /// object to notify of its outcome, or the reason to refuse it at once.
    ///
    /// # Errors
    /// The refusal to send to the peer.
    fn on_request(
        &self,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal>;
}

/// Is notified of the outcome of a request.
pub trait Caller: Send + Sync {
    /// Handles the acceptance of this side's request. The reply says that the queue pair takes over if both ends
    /// have said so.
    fn on_accepted(&self, reply: Reply);

    /// Records that the peer knows that this side accepted its request.
    fn on_established(&self);

    /// Records that the connection has ended, or that there will be none.
    fn on_over(&self, over: Over);

    /// Records that nothing of the connection is in flight any more.
    fn on_quiet(&self);
}

/// Why an exchange has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Over {
    /// The peer does not want the connection, or no program listens.
    Refused(Refusal),
    /// No answer came, or the peer went away while the connection was being made.
    Unreachable,
    /// The connection was there, and the peer has ended it or is gone.
    Disconnected,
}
