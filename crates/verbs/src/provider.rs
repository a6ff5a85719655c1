//! Traits that a wire implements. A wire is the transport protocol that carries the work requests
//! of queue pairs, such as the edge protocol.

use std::sync::Arc;
use std::time::Duration;

use mem::MemoryTable;
use work::Owner;
use work::SharedReceives;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortCounters};
use crate::error::Error;
use crate::queue_pair::QueuePair;
use crate::registry::Registry;
use crate::services::QueuePairType;

/// A device. The wire (the transport protocol that carries the work of queue pairs) implements this
/// trait. A provider starts threads and opens sockets only when a call needs them. If a program
/// only lists devices, the library therefore starts no threads and opens no sockets.
pub trait Provider: Send + Sync {
    /// Returns the limits and abilities of the device.
    fn attributes(&self) -> &DeviceAttributes;

    /// Checks that the calling process is the process that created the device.
    ///
    /// Every call of every object checks this before it takes a lock. Otherwise a child could wait
    /// forever for a lock that another thread of the parent held during the fork.
    ///
    /// A child may use a device that the parent had not started before the fork.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    fn check(&self) -> Result<(), Error>;

    /// Returns the registry of completion owners. The registry exists before the device is started.
    fn registry(&self) -> &Arc<Registry>;

    /// Returns the current attributes of the port.
    fn port(&self) -> PortAttributes;

    /// Returns the counters of the port. All are 0 until the device is started. The caller must be
    /// outside the engine.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// Returns the path MTU that connections announce, in bytes. This value is fixed: the provider
    /// does not query the host.
    fn path_mtu(&self) -> u32;

    /// Returns the GID table, sorted by index.
    fn gids(&self) -> Vec<GidEntry>;

    /// Returns the table of registered memory. Starts the device.
    ///
    /// # Errors
    /// Returns [`Error`] if the device cannot be started.
    fn memory(&self) -> Result<Arc<MemoryTable>, Error>;

    /// Reserves a queue pair number. The number is unique on the host until the caller releases it.
    ///
    /// # Errors
    /// Returns [`Error::NoRoom`] if no number is left.
    fn reserve_number(&self, service: QueuePairType) -> Result<u32, Error>;

    /// Releases a queue pair number.
    fn release_number(&self, number: u32);

    /// Creates the wire (the transport) for a queue pair that is in RESET.
    ///
    /// # Errors
    /// Returns the error of the failed step.
    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error>;

    /// Resumes connections that wait for receives of a shared queue. The caller has posted
    /// receives, and [`SharedReceives::post`] has returned that connections wait.
    fn receives_posted(&self, receives: &Arc<SharedReceives>);

    /// Arms the limit of a shared queue inside the engine, like [`SharedReceives::arm_limit`].
    /// Returns true if the queue already has fewer receives than `limit`. If it returns false, the
    /// wire (the transport) calls [`Registry::on_below_limit`] as soon as the queue has fewer
    /// receives than `limit`.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error>;

    /// Drives the engine, the code that handles received frames and sends frames. Does nothing if
    /// another thread is driving the engine. Application threads call this function when they poll.
    fn drive(&self);

    /// Sends the work that [`Wire::ring`] has deferred. Must be called after each poll that has
    /// found completions.
    fn send_deferred(&self);

    /// Waits until `ready` returns true. Calls `ready` whenever a completion or an event may have
    /// arrived.
    ///
    /// Returns after [`WAIT_MAX`] even if `ready` has not returned true.
    fn wait(&self, ready: &mut dyn FnMut() -> bool);

    /// Wakes the threads that are in [`Provider::wait`], so that they call `ready` again. The
    /// caller has changed some state, so that `ready` may now return true. May be called inside the
    /// engine.
    fn wake(&self);

    /// Makes a thread of the device drive the engine from now on, because the application may wait
    /// in a way that the device does not see, for example on a file descriptor.
    fn serve_alone(&self);
}

/// Carries the work of one queue pair from its creation to its destruction. A RESET of the queue
/// pair does not end this object.
///
/// When the queue pair is destroyed, it calls [`Wire::close`] and then drops this object. Until
/// then, this object may hold a reference to the queue pair.
///
/// # Where undone work begins
/// When a connection ends, the wire (the transport) may have taken sends that it has not carried
/// out. It completes these sends with an error, signalled or not, in the order of posting and after
/// the completions of all sends that were carried out. Then it calls [`QueuePair::on_ended`]. The
/// first completion with the status `Flushed`, `TransportRetryExceeded` or `General` marks where
/// undone work begins: all earlier sends were carried out, and this send and all later ones count
/// as undone. (These statuses are those of the errors `Flushed`, `ClosedByPeer`, `EndedByPeer`,
/// `NotConnected`, `Unreachable`, `PeerRestarted` and `ProtocolViolation` of
/// [`work::OperationError`].) If there is no such completion, all taken sends were carried out, and
/// undone work begins at the first send that the wire has not taken.
///
/// The program does not receive completions with these three statuses, except those of a shared
/// receive queue. Instead, the queue pair creates the completions of undone work itself when the
/// program polls, because the state of the queue pair decides whether its work fails or is flushed.
/// A send that fails for a reason of its own, such as an invalid remote key, completes with another
/// status. The program receives that completion.
pub trait Wire: Send + Sync {
    /// Opens the transport for a queue pair, because the queue pair enters INIT. From now on,
    /// datagrams and connection requests can arrive.
    ///
    /// # Errors
    /// Returns the error of the failed step. The state of the queue pair does not change.
    fn open(&self) -> Result<(), Error>;

    /// Starts to connect to the peer that the queue pair's attributes name, because the queue pair
    /// enters RTR. Returns at once. Posted work waits until the connection is established.
    ///
    /// # Errors
    /// Returns the error of the failed step. The state of the queue pair does not change.
    fn connect(&self) -> Result<(), Error>;

    /// Applies attributes that the program has changed since the connection began, such as timers
    /// and the queue key.
    ///
    /// # Errors
    /// Returns the error of the failed step.
    fn update(&self) -> Result<(), Error>;

    /// Takes posted sends from the queue pair, or defers this. The caller has just posted sends.
    fn ring(&self);

    /// Takes posted receives from the queue pair. The caller has just posted receives.
    fn receives(&self);

    /// Starts draining, because the queue pair is in SQD or SQE. As soon as none of the sends that
    /// the wire (the transport) has taken is in flight, the wire calls [`QueuePair::on_drained`],
    /// possibly before this call returns.
    fn drain(&self);

    /// Passes all posted sends to the engine, and transmits each of them once if the links have
    /// room. Returns after this, and does not wait for acknowledgements.
    ///
    /// The queue pair is about to leave RTS, and sends nothing more on this connection after this
    /// call. [`Wire::close`] later flushes the sends that the peer has not acknowledged.
    fn send_out(&self);

    /// Closes the connection. Sends the pending acknowledgements and a Close frame to the peer.
    ///
    /// When the call returns, the library places no more bytes in memory for this queue pair, and
    /// the last completions are in their queues.
    fn close(&self);

    /// Joins or leaves a multicast group (UD).
    ///
    /// # Errors
    /// Returns the error of the failed step.
    fn set_membership(&self, group: crate::attributes::Gid, is_member: bool) -> Result<(), Error>;
}

/// The reason that the wire (the transport) reports for the end of a queue pair's connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The peer closed the connection. This is not an error on this side, and the queue pair stays
    /// in RTS until its next send fails.
    ByPeer,
    /// The stream that carries the connection has ended, in peace or not. The queue pair is in ERR,
    /// and all its work is flushed. For wires over byte streams (iWARP): when such a stream ends,
    /// an adapter moves the queue pair out of RTS (RFC 5040, section 4.8).
    Flushed,
    /// The peer has stopped answering, or it has never answered.
    Unreachable,
    /// An operation failed on this side or at the peer. The completion of the operation contains
    /// the cause. The queue pair is in ERR.
    OperationFailed,
    /// The peer violated the protocol; the queue pair is in ERR.
    PeerMisbehaved,
    /// The peer accessed memory without the right to do so; the queue pair is in ERR.
    AccessRefused,
    /// A completion queue has overrun.
    Overrun,
    /// The device has failed.
    DeviceFailed,
}

/// Identifies the queue pair of a completion. A wire (a transport) chooses an owner for each
/// connection and each datagram port that it creates. The library drops a completion if the
/// registry does not know its owner.
pub type CompletionOwner = Owner;

/// Longest time of a call of [`Provider::wait`]. The time is short, because the caller has blocked
/// the signals of its thread and handles them only after the call, and because a thread that serves
/// the links does not notice meanwhile that it should wake another thread.
pub const WAIT_MAX: Duration = Duration::from_millis(1);
