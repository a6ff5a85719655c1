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
    /// Returns the limits and abilities of the device.
    fn attributes(&self) -> &DeviceAttributes;

    /// Whether this is the process that the device was made in: every call of every object asks, before it takes a lock
    /// that another thread of the parent may have held when it forked. Nothing that was not started yet is missed by a
    /// child.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    fn check(&self) -> Result<(), Error>;

    /// Returns the registry, which knows the owners of completions. It is there before anything is started.
    fn registry(&self) -> &Arc<Registry>;

    /// Returns the present attributes of the port.
    fn port(&self) -> PortAttributes;

    /// Returns the counters of the port; nothing before something is started. May not be called inside the engine.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// Returns the MTU of its paths in bytes, which connections announce. Costs no look at the host.
    fn path_mtu(&self) -> u32;

    /// Returns its addresses, by index.
    fn gids(&self) -> Vec<GidEntry>;

    /// Returns the table in which memory is registered. Starts what drives the device.
    ///
    /// # Errors
    /// [`Error`], if what drives the device cannot be started.
    fn memory(&self) -> Result<Arc<MemoryTable>, Error>;

    /// Reserves a number that no queue pair of the host has, until it is released.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if there is none left.
    fn reserve_number(&self, service: QueuePairType) -> Result<u32, Error>;

    /// Releases a number.
    fn release_number(&self, number: u32);

    /// Makes the wire of a queue pair, which is in RESET.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error>;

    /// Continues connections that wait for receives of a shared queue, because some were posted
    /// ([`SharedReceives::post`] has returned so).
    fn receives_posted(&self, receives: &Arc<SharedReceives>);

    /// Arms the limit of a shared queue inside the engine, as [`SharedReceives::arm_limit`] does: returns true if
    /// fewer are left now. Later it is reported by [`Registry::on_below_limit`].
    ///
    /// # Errors
    /// [`Error::NoDevice`] in a forked child.
    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error>;

    /// Makes progress, unless another thread does: called by an application that polls.
    fn drive(&self);

    /// Sends deferred work ([`Wire::ring`]), if there is some: belongs to each poll that finds completions.
    fn send_deferred(&self);

    /// Waits until `ready`, which is asked again whenever a completion or an event may have come. Returns after a moment
    /// in any case: signals are held back meanwhile.
    fn wait(&self, ready: &mut dyn FnMut() -> bool);

    /// Wakes the threads that [wait](Provider::wait), because something may be there that did not come from the
    /// wire. May be called inside the engine.
    fn wake(&self);

    /// Makes progress independent of the application from now on, because it is about to wait in a way of which the
    /// device knows nothing, as for a descriptor.
    fn serve_alone(&self);
}

/// What carries the work of one queue pair, from when it is made until it is destroyed: through RESET and back. It is
/// dropped when the queue pair is destroyed, after [`Wire::close`], and may hold the queue pair till then.
pub trait Wire: Send + Sync {
    /// Opens the wire, because the queue pair is in INIT: datagrams and requests for it may come.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause; the queue pair stays as it was.
    fn open(&self) -> Result<(), Error>;

    /// Finds the peer, as the attributes of the queue pair say, because it is in RTR. Returns at once; work that is
    /// posted waits until they are connected.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause; the queue pair stays as it was.
    fn connect(&self) -> Result<(), Error>;

    /// Adapts to attributes that were changed in a later state: timers, the queue key.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
    fn update(&self) -> Result<(), Error>;

    /// Takes sends from the queue pair, which has some that were not taken.
    fn ring(&self);

    /// Takes receives from the queue pair, which has some that were not taken.
    fn receives(&self);

    /// Calls [`QueuePair::on_drained`] when no send that was taken is in flight any more, which may be at once,
    /// because the queue pair is in SQD or SQE.
    fn drain(&self);

    /// Hands all sends that were posted to the engine and sends each once, as far as there is room, before it
    /// returns: the queue pair is about to leave RTS for good. What the peer does not acknowledge before
    /// [`Wire::close`] is flushed.
    fn send_out(&self);

    /// Ends the connection: nothing is placed in memory for this queue pair any more when it returns, and its last
    /// completions are in their queues. Pending acknowledgements and the Close go to the peer.
    fn close(&self);

    /// Joins or leaves a group (UD).
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
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
