//! Traits that a wire implements for the connection manager. A wire is the transport protocol that
//! carries the requests of ids and the work of queue pairs, such as the edge protocol.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use verbs::{Device, Error, Gid, QueuePair, QueuePairType};

use super::message::{NO_RESOURCES, NO_SUCH_SERVICE, Refusal, Reply, Request};
use super::port_space::{PortSpace, PrivateDataLimits};

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
    /// Returns the properties in which the connection managers of transports differ.
    fn attributes(&self) -> ManagerAttributes;

    /// Returns the maximum lengths of private data in the messages of an id with this port space
    /// and service.
    fn private_data_limits(&self, space: PortSpace, service: QueuePairType) -> PrivateDataLimits;

    /// Returns whether ids of this port space can use the device.
    fn carries(&self, space: PortSpace) -> bool;

    /// Claims a port of this device for ids of `space`, until the returned object is dropped. Port
    /// 0 stands for any free port. An unspecified address stands for all addresses of the device.
    /// Does not listen at the port.
    ///
    /// For all ids of a process that share a port, the caller claims the port once.
    ///
    /// # Errors
    /// * Returns [`Error::System`] with `EADDRINUSE` if another process, or another program of the
    ///   wire's network protocol, uses the port.
    /// * Returns [`Error::System`] with `EADDRNOTAVAIL` if the host does not have the address.
    fn claim(&self, at: SocketAddr, space: PortSpace) -> Result<Box<dyn PortClaim>, Error>;

    /// Passes requests for a claimed port to `listener` until the returned object is dropped.
    /// `claim` is a claim of this device for ids of `space`.
    ///
    /// From the claim until the end of the call, and again from the moment at which the wire stops
    /// to listen, the port belongs to the claim without a gap. With a gap, another process could
    /// get the port, and a peer that connects at that moment would get the answer that no program
    /// listens.
    ///
    /// # Errors
    /// * Returns [`Error::System`] with `EADDRINUSE` if another id listens at the address.
    /// * Returns [`Error::System`] with `EADDRNOTAVAIL` if the device does not have the address.
    fn listen(
        &self,
        claim: &dyn PortClaim,
        space: PortSpace,
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
        route: Route,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error>;

    /// Returns whether ids of this device may have the address.
    fn has_address(&self, address: IpAddr) -> bool;

    /// Returns whether an id that is bound to this loopback address has the device. In Linux, it
    /// never has one: the kernel's connection manager treats loopback addresses like the
    /// unspecified one (`cma_any_addr`). A device whose links have loopback addresses differs.
    fn binds_loopback(&self, address: IpAddr) -> bool {
        self.has_address(address)
    }
}

/// Properties in which the connection managers of transports differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagerAttributes {
    /// The form in which programs get the peer's private data.
    pub padding: Padding,
    /// Whether the route of an id has a path record of InfiniBand.
    pub has_path_record: bool,
}

impl ManagerAttributes {
    /// The properties of InfiniBand's connection manager (IBA volume 1, chapter 12).
    pub const INFINIBAND: Self = Self { padding: Padding::Zeros, has_path_record: true };

    /// The properties of iWARP's connection manager, as Linux shows them (`cma_iw_handler` and
    /// `ucma_copy_iw_route`).
    pub const IWARP: Self = Self { padding: Padding::None, has_path_record: false };
}

/// The form in which programs get the peer's private data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Padding {
    /// Zeros pad private data to the maximum length, because the peer's message does not contain
    /// the length.
    Zeros,
    /// Private data has the length that the peer's program passed.
    None,
}

/// Addresses of a connection request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// GID of the local port.
    pub gid: Gid,
    /// Local address of the id. If the program has bound the id, the port is claimed.
    pub from: SocketAddr,
    /// Address of the peer.
    pub to: SocketAddr,
}

/// A port that a device has claimed for ids. Dropping this object releases the port. Ids that
/// listen at the port stop before that.
pub trait PortClaim: Send + Sync {
    /// Returns the claimed address. Its port is not 0.
    fn address(&self) -> SocketAddr;
}

/// A listening port. The wire (the transport) accepts requests until this object is dropped. After
/// that, established connections stay open.
pub trait Listening: Send + Sync {}

/// A request and its outcome, at the requester or at the responder. Dropping this object aborts the
/// exchange.
pub trait Exchange: Send + Sync {
    /// Accepts a request from the peer. `queue_pair` is in RTS. It takes over the connection if
    /// both the request and the reply offer this. If the wire connects queue pairs
    /// ([`Connector::Manager`]), `queue_pair` is in INIT, and the wire moves it to RTS.
    ///
    /// [`Connector::Manager`]: verbs::Connector::Manager
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the peer has withdrawn the request.
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error>;

    /// Passes the connection to the requester's queue pair, which is in RTS. If the connection has
    /// already ended, the queue pair fails with the reason for the end. Ids call this function only
    /// if they connect queue pairs ([`Connector::Modification`](verbs::Connector::Modification)).
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the device is closed.
    fn take_over(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error>;

    /// Rejects a request from the peer. Also rejects an established connection that the program
    /// does not want. A wire whose messages contain no reason sends only the private data.
    ///
    /// # Errors
    /// Returns the error of the wire (the transport) if the peer has withdrawn the request.
    fn reject(&self, refusal: &Refusal) -> Result<(), Error>;

    /// Ends the exchange in any state, and notifies the peer that the connection has ended. If a
    /// queue pair has taken over the connection and has already ended it, notifies the id during
    /// this call.
    ///
    /// If the wire connects queue pairs ([`Connector::Manager`](verbs::Connector::Manager)), it
    /// first sends what the program has posted to the queue pair of the exchange, and moves the
    /// queue pair to ERR after that. If the peer does not take everything at once, this happens
    /// after the call.
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
    /// ends have offered the takeover. If the wire connects queue pairs
    /// ([`Connector::Manager`](verbs::Connector::Manager)), the queue pair is in RTS.
    fn on_accepted(&self, reply: Reply);

    /// Handles the peer's confirmation that it has received this side's acceptance.
    fn on_established(&self);

    /// Handles the end of the connection, or of the attempt to establish a connection.
    fn on_over(&self, over: Over);

    /// Handles the moment from which no packet of an ended connection is in flight any more. A wire
    /// whose connections have no such wait never calls this function.
    fn on_quiet(&self);
}

/// Cause of the end of an exchange.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Over {
    /// The peer rejected the request, or no program listens at the port.
    Refused {
        /// Status of the event: a reason code of InfiniBand, or a negative `errno`.
        /// [`Over::of_refusal`] translates reason codes.
        status: i32,
        /// Private data of the peer's program, not padded.
        private_data: Vec<u8>,
    },
    /// The peer did not answer, or it disappeared before the connection was established.
    Unreachable,
    /// The connection could not be established for another reason.
    Failed {
        /// Status of the event: a negative `errno`.
        status: i32,
    },
    /// The connection was established, and then the peer ended it or disappeared.
    Disconnected,
}

impl Over {
    /// Returns the end of an exchange that the peer has refused with a reason code of InfiniBand.
    /// `service` is the service of the request.
    pub fn of_refusal(refusal: Refusal, service: QueuePairType) -> Self {
        let Refusal { reason, private_data } = refusal;
        let status = match service {
            QueuePairType::Datagram => datagram_status(reason),
            _ => reason.into(),
        };
        Self::Refused { status, private_data }
    }
}

/// Returns the event status of a rejected datagram request (IBA volume 1, table 127).
const fn datagram_status(reason: u16) -> i32 {
    match reason {
        NO_SUCH_SERVICE => 1,
        NO_RESOURCES => 3,
        _ => 2,
    }
}
