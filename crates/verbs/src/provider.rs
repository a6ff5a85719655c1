//! Traits that a wire implements to appear as a device.

use std::sync::Arc;

use mem::MemoryTable;
use semantics::SharedReceives;
use work::Owner;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortCounters, QueuePairType};
use crate::error::Error;
use crate::queue_pair::QueuePair;
use crate::registry::Registry;

/// A device as its wire implements it. Starts threads and opens sockets only when a call needs
/// them, so that a program which only lists devices has neither.
pub trait Provider: Send + Sync {
    /// Returns the limits and abilities of the device.
    fn attributes(&self) -> &DeviceAttributes;

    /// Checks that this is the process that created the device. Every call of every object does so
    /// before it takes a lock that another thread of the parent may have held during the fork. A
    /// child may use everything that the parent had not started.
    ///
    /// # Errors
    /// [`Error::NoDevice`] in a forked child.
    fn check(&self) -> Result<(), Error>;

    /// Returns the registry of completion owners; it exists before anything is started.
    fn registry(&self) -> &Arc<Registry>;

    /// Returns the present attributes of the port.
    fn port(&self) -> PortAttributes;

    /// Returns the counters of the port; all are 0 until the device is started. Must not be called
    /// inside the engine.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// Returns the path MTU in bytes that connections announce. Does not query the host.
    fn path_mtu(&self) -> u32;

    /// Returns the GID table, in the order of the indices.
    fn gids(&self) -> Vec<GidEntry>;

    /// Returns the table of registered memory. Starts the device.
    ///
    /// # Errors
    /// [`Error`] if the device cannot be started.
    fn memory(&self) -> Result<Arc<MemoryTable>, Error>;

    /// Reserves a queue pair number that is unique on the host until it is released.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if no number is left.
    fn reserve_number(&self, service: QueuePairType) -> Result<u32, Error>;

    /// Releases a queue pair number.
    fn release_number(&self, number: u32);

    /// Creates the wire of a queue pair, which is in RESET.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error>;

    /// Resumes connections that waited for receives of a shared queue. To be called after receives
    /// were posted and [`SharedReceives::post`] reported that connections wait.
    fn receives_posted(&self, receives: &Arc<SharedReceives>);

    /// Arms the limit of a shared queue inside the engine, as [`SharedReceives::arm_limit`] does.
    /// Returns true if fewer receives are left now. Otherwise [`Registry::on_below_limit`] reports
    /// it later.
    ///
    /// # Errors
    /// [`Error::NoDevice`] in a forked child.
    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error>;

    /// Drives the engine, unless another thread does. Application threads call this when they poll.
    fn drive(&self);

    /// Sends work that [`Wire::ring`] deferred, if there is some. To be called after each poll that
    /// finds completions.
    fn send_deferred(&self);

    /// Waits until `ready` returns true. Calls `ready` whenever a completion or an event may have
    /// arrived. Returns after a moment in any case, because signals are held back meanwhile.
    fn wait(&self, ready: &mut dyn FnMut() -> bool);

    /// Wakes threads in [`Provider::wait`], because something other than the wire may have made
    /// them ready. May be called inside the engine.
    fn wake(&self);

    /// Lets a thread of the device make progress from now on, because the application is about to wait in a way
    /// that the device does not see, such as for a descriptor.
    fn serve_alone(&self);
}

/// Carries the work of one queue pair, from its creation to its destruction, also across RESET. It
/// is dropped when the queue pair is destroyed, after [`Wire::close`]; until then it may hold a
/// reference to the queue pair.
pub trait Wire: Send + Sync {
    /// Opens the wire, because the queue pair enters INIT: datagrams and connection requests may
    /// arrive.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause; the queue pair stays in its state.
    fn open(&self) -> Result<(), Error>;

    /// Begins to connect to the peer that the queue pair's attributes name, because the queue pair
    /// enters RTR. Returns at once; posted work waits until the connection is established.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause; the queue pair stays in its state.
    fn connect(&self) -> Result<(), Error>;

    /// Adopts attributes that were changed in a later state, such as timers and the queue key.
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
    fn update(&self) -> Result<(), Error>;

    /// Takes sends from the queue pair, which has untaken ones.
    fn ring(&self);

    /// Takes receives from the queue pair, which has untaken ones.
    fn receives(&self);

    /// Starts draining, because the queue pair is in SQD or SQE: calls [`QueuePair::on_drained`],
    /// possibly at once, when no send that was taken is in flight.
    fn drain(&self);

    /// Hands all posted sends to the engine and transmits each once, as far as there is room,
    /// before it returns. The queue pair is about to leave RTS and sends nothing more on this
    /// connection. Sends that the peer has not acknowledged before [`Wire::close`] are flushed.
    fn send_out(&self);

    /// Closes the connection. When this returns, nothing more is placed in memory for this queue
    /// pair, and its last completions are in their queues. Pending acknowledgements and the Close
    /// are sent to the peer.
    fn close(&self);

    /// Joins or leaves a multicast group (UD).
    ///
    /// # Errors
    /// [`Error`], one variant for each cause.
    fn set_membership(&self, group: crate::Gid, is_member: bool) -> Result<(), Error>;
}

/// How a queue pair's connection ended, as the wire reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The peer closed the connection; that is not an error of this side.
    ByPeer,
    /// The peer has stopped answering, or has never answered.
    Unreachable,
    /// An operation failed on this side or at the peer; its completion has the cause. The queue
    /// pair is in ERR.
    OperationFailed,
    /// The peer violated the protocol; the queue pair is in ERR.
    PeerMisbehaved,
    /// The peer asked for memory that it may not access; the queue pair is in ERR.
    AccessRefused,
    /// A completion queue has overrun.
    Overrun,
    /// The device has failed.
    DeviceFailed,
}

/// Identifies the queue pair of a completion. A wire chooses an owner when it creates a connection
/// or a port. Completions of an unknown owner are dropped.
pub type CompletionOwner = Owner;
