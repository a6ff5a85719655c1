//! What a wire must offer so that devices of it exist.

use std::sync::Arc;

use mem::MemoryTable;
use semantics::SharedReceives;
use work::Owner;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortCounters, QueuePairType};
use crate::error::Error;
use crate::queue_pair::QueuePair;
use crate::registry::Registry;

/// A device, as its wire makes it. Nothing is started before something is asked for that needs it: who only looks
/// which devices there are gets no threads and no sockets.
pub trait Provider: Send + Sync {
    /// What it can do.
    fn attributes(&self) -> &DeviceAttributes;

    /// Whether this is the process that the device was made in: every call of every object asks, before it takes a lock
    /// that another thread of the parent may have held when it forked. Nothing that was not started yet is missed by a
    /// child.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    fn check(&self) -> Result<(), Error>;

    /// Whose completions are whose. It is there before anything is started.
    fn registry(&self) -> &Arc<Registry>;

    /// What its port is like now.
    fn port(&self) -> PortAttributes;

    /// What its port has counted; nothing before something is started. May not be called inside the engine.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// The MTU of its paths, which connections announce. Costs no look at the host.
    fn path_mtu(&self) -> u32;

    /// Its addresses, by index.
    fn gids(&self) -> Vec<GidEntry>;

    /// Where memory is registered. Starts what drives the device.
    fn memory(&self) -> Result<Arc<MemoryTable>, Error>;

    /// A number that no queue pair of the host has, until it is released.
    fn reserve_number(&self, service: QueuePairType) -> Result<u32, Error>;

    /// Gives a number back.
    fn release_number(&self, number: u32);

    /// The wire of a queue pair, which is in RESET.
    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error>;

    /// Receives were posted to a shared queue that connections wait for
    /// ([`SharedReceives::post`] has said so): has them go on.
    fn receives_posted(&self, receives: &Arc<SharedReceives>);

    /// [`SharedReceives::arm_limit`], inside the engine: true if fewer are left now. Later it is reported by
    /// [`Registry::on_below_limit`].
    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error>;

    /// Makes progress, unless another thread does: called by an application that polls.
    fn drive(&self);

    /// Sends deferred work ([`Wire::ring`]), if there is some: belongs to each poll that finds completions.
    fn send_deferred(&self);

    /// Waits until `ready`, which is asked again whenever a completion or an event may have come. Returns after a moment
    /// in any case: signals are held back meanwhile.
    fn wait(&self, ready: &mut dyn FnMut() -> bool);

    /// Something that threads [wait](Provider::wait) for may be there, and not from the wire. May be called inside the
    /// engine.
    fn wake(&self);

    /// The application is about to wait in a way of which the device knows nothing, as for a descriptor: progress
    /// must not depend on it any more.
    fn serve_alone(&self);
}

/// What carries the work of one queue pair, from when it is made until it is destroyed: through RESET and back. It is
/// dropped when the queue pair is destroyed, after [`Wire::close`], and may hold the queue pair till then.
pub trait Wire: Send + Sync {
    /// The queue pair is in INIT: datagrams and requests for it may come.
    fn open(&self) -> Result<(), Error>;

    /// The queue pair is in RTR: finds its peer, as its attributes say. Returns at once; work that is posted
    /// waits until they are connected.
    fn connect(&self) -> Result<(), Error>;

    /// Attributes were changed in a later state: timers, the queue key.
    fn update(&self) -> Result<(), Error>;

    /// There are sends that were not taken.
    fn ring(&self);

    /// There are receives that were not taken.
    fn receives(&self);

    /// The queue pair is in SQD or SQE: calls [`QueuePair::on_drained`] when no send that was taken is in flight any
    /// more, which may be at once.
    fn drain(&self);

    /// The queue pair is about to leave RTS for good: hands all sends that were posted to the engine and sends each once,
    /// as far as there is room, before it returns. What the peer does not acknowledge before [`Wire::close`] is flushed.
    fn send_out(&self);

    /// Ends the connection: nothing is placed in memory for this queue pair any more when it returns, and its last
    /// completions are in their queues. Pending acknowledgements and the Close go to the peer.
    fn close(&self);

    /// Takes part in a group, or no more (UD).
    fn set_membership(&self, group: crate::Gid, is_member: bool) -> Result<(), Error>;
}

/// How a connection of a queue pair ended, as the wire reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The peer has closed it: nothing is wrong with this side.
    ByPeer,
    /// The peer is gone, or was never found.
    Unreachable,
    /// An operation failed, here or there; its completion has the cause. The queue pair is in ERR.
    OperationFailed,
    /// The peer did what it must not do; the queue pair is in ERR.
    PeerMisbehaved,
    /// The peer asked for memory that it may not have; the queue pair is in ERR.
    AccessRefused,
    /// A completion queue was full.
    Overrun,
    /// The device has failed.
    DeviceFailed,
}

/// Which queue pair a completion is of. A wire names the owner when it makes a connection or a port, and a completion
/// of an owner that is not known any more is passed over.
pub type CompletionOwner = Owner;
