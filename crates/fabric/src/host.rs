//! The interface between the simulator and the software of a host.
//!
//! The simulator reaches an engine only through [`HostEngine`]. Worlds, applications and the oracle
//! are written against this trait, so that a change of the engine's public API affects only its
//! implementation.

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, RxFrame};
use thiserror::Error;
use wire_edge::PeerAddr;

/// Handle of a connection of one host's engine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionHandle(pub u64);

/// Handle of a request for a connection that waits for a decision.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestHandle(pub u64);

/// Memory of one host, surrounded by guard bytes that no operation may write.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Region {
    /// Number of the region; not reused within one life of a host.
    pub number: u32,
    /// Key by which peers name the region.
    pub key: u32,
    /// Remote address of the region's first byte.
    pub address: u64,
    /// Size in bytes.
    pub length_bytes: u32,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Writes local bytes to remote memory.
    Write,
    /// Reads remote bytes into local memory.
    Read,
    /// Adds to an 8-byte remote value; the old value is stored in local memory.
    FetchAdd {
        /// The number to add.
        operand: u64,
    },
    /// Replaces an 8-byte remote value if it equals `compare`; the old value is stored in local
    /// memory.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Sends local bytes to the peer's next receive.
    Send,
    /// Sends local bytes to the peer's next receive, and invalidates the operation's key at the
    /// peer on delivery.
    SendInvalidate,
    /// Opens the whole local region to the peer under the operation's key and address (a memory
    /// window).
    Bind {
        /// Key of the earlier window that this one replaces; that key becomes invalid.
        replaced: Option<u32>,
        /// Whether all connections of the service may use the key, or only this one.
        is_for_all: bool,
    },
    /// Invalidates the operation's key, which this side had bound for this connection.
    Invalidate,
}

impl Action {
    /// Returns whether the peer answers with data, not only with an acknowledgement.
    pub const fn is_question(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    /// Returns whether the operation carries local bytes to the peer.
    pub const fn carries(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::SendInvalidate)
    }

    /// Returns whether the operation consumes a receive of the peer even without an immediate.
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate)
    }

    /// Returns whether the operation fails if its key is invalid.
    pub const fn is_under_key(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::SendInvalidate)
    }
}

/// Ordering and signalling flags of one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// The operation is performed after all earlier ones.
    pub fence_before: bool,
    /// All later operations are performed after this one.
    pub fence_after: bool,
    /// Strict order: bodies may be placed early, tails are placed in order, and a late write does
    /// not overwrite newer bytes.
    pub strict: bool,
    /// A successful operation produces a completion.
    pub signalled: bool,
}

/// An operation to post.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What the operation does.
    pub action: Action,
    /// Local memory: source of a write or send, sink of a read or atomic.
    pub local: Region,
    /// Offset in `local`, in bytes.
    pub local_offset: u32,
    /// Length in bytes; 8 for atomics.
    pub length_bytes: u32,
    /// Key of the remote memory; unused by sends.
    pub key: u32,
    /// Remote address of the first byte; unused by sends.
    pub address: u64,
    /// Value delivered with the completion at the peer (writes and sends only).
    pub immediate: Option<u32>,
    /// Ordering and signalling flags.
    pub flags: Flags,
    /// Value returned in the completion.
    pub context: u64,
}

/// A datagram to post.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The link that carries the datagram.
    pub link: LinkId,
    /// Address of the destination.
    pub to: PeerAddr,
    /// Number of the destination queue pair.
    pub destination: u32,
    /// Queue key of the destination queue pair.
    pub key: u32,
    /// Value delivered with the datagram.
    pub immediate: Option<u32>,
    /// Local memory that holds the payload.
    pub local: Region,
    /// Offset of the payload in `local`, in bytes.
    pub local_offset: u32,
    /// Length of the payload in bytes.
    pub length_bytes: u32,
    /// Produces a completion when the datagram has been sent.
    pub signalled: bool,
    /// Value returned in the completion.
    pub context: u64,
}

/// The kind of operation that completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionKind {
    /// A posted write.
    Write,
    /// A posted read.
    Read,
    /// A posted atomic operation.
    Atomic,
    /// A posted send.
    Send,
    /// A posted receive, which a message of the peer has filled.
    Receive,
    /// A write with an immediate that the peer posted; it was delivered here.
    Notification,
    /// A memory window of this side was bound or invalidated.
    Window,
}

/// The result of an operation, or the arrival of a message or notification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// Kind of the completed operation.
    pub kind: CompletionKind,
    /// The context of the operation or receive; 0 for notifications.
    pub context: u64,
    /// Whether the operation succeeded. If not, it failed or was flushed with its connection.
    pub success: bool,
    /// Number of bytes moved.
    pub length_bytes: u32,
    /// The immediate that the peer sent.
    pub immediate: Option<u32>,
    /// Key of this side that the peer's message invalidated.
    pub invalidated: Option<u32>,
    /// The reason of the failure, if the operation failed and the engine reports a reason.
    pub fault: Option<Fault>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// This side ended the connection before the operation was complete.
    Flushed,
    /// The application of the peer closed the connection before the operation was complete.
    ClosedByPeer,
    /// The peer ended the connection because of another failure.
    EndedByPeer,
    /// The peer did not allow the access.
    AccessDenied,
    /// The peer did not answer within the dead-peer time.
    Unreachable,
    /// The peer no longer knows the connection.
    PeerRestarted,
    /// One side violated the protocol.
    Violation,
    /// Local memory of the operation has been deregistered.
    LocalAccess,
    /// The peer could not perform the operation: the memory of its receive has been deregistered.
    PeerFailed,
    /// Any other reason.
    Other,
}

/// Why a connection ended or was not established.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// This side closed the connection.
    ClosedHere,
    /// The peer closed the connection.
    ClosedByPeer,
    /// The peer no longer knows the connection.
    PeerRestarted,
    /// The peer did not answer within the dead-peer time.
    Unreachable,
    /// The peer rejected the request.
    Rejected,
    /// An access to remote memory was denied, here or at the peer.
    AccessDenied,
    /// One side violated the protocol.
    Violation,
    /// Memory of a receive has been deregistered, here or at the peer.
    MemoryGone,
    /// An operation of this side failed; its completion has the reason.
    OperationFailed,
    /// Any other reason, by its number.
    Other(u16),
}

/// An event that an engine reports to its applications.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// A peer requests a connection.
    Requested {
        /// Handle of the request.
        request: RequestHandle,
        /// Data that the peer sent with the request.
        private_data: Vec<u8>,
    },
    /// A connection is established and can be used.
    Established(ConnectionHandle),
    /// A connection has ended, and all its operations have completed.
    Closed(ConnectionHandle, Cause),
}

/// Why an operation or receive was not posted.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Refusal {
    /// A queue or window is full; a retry may succeed later.
    #[error("no room for the operation now")]
    Full,
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// The engine rejects the arguments.
    #[error("the engine rejects the operation")]
    Invalid,
}

/// The congestion control of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Congestion {
    /// A window of constant size.
    Fixed {
        /// Size of the window in bytes.
        window_bytes: u32,
    },
    /// Additive increase, multiplicative decrease (AIMD) on ECN marks and loss.
    Aimd,
    /// Congestion control that aims at a target delay.
    Delay,
}

/// The link scheduler of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheduling {
    /// Sends on the link with the earliest expected delivery.
    EarliestDelivery,
    /// Sends on the links in round-robin order.
    RoundRobin,
}

/// Settings of a host's engine. Limits are those of the protocol's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Random bytes for keys, connection ids and epochs; different for each life of each host.
    pub entropy: [u8; 32],
    /// The congestion control.
    pub congestion: Congestion,
    /// The link scheduler.
    pub scheduling: Scheduling,
    /// Maximum number of operations tracked beyond the last delivered one.
    pub operation_window: u32,
    /// Maximum number of bytes held for operations that must wait.
    pub order_pool_bytes: u32,
    /// Maximum number of reads and atomics served at the same time.
    pub read_depth: u16,
    /// Longest time by which an acknowledgement is delayed, in nanoseconds.
    pub ack_delay_max_ns: u32,
    /// Time without an answer after which a peer is considered dead, in nanoseconds.
    pub dead_peer_ns: u64,
    /// Divisor, at least 1, of the usual number of records that all connections share.
    pub pool_divisor: u32,
    /// Settings that may differ between the two ends.
    pub shape: Shape,
}

/// Settings of an engine besides its limits. The default is the usual configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Number of services that the host listens for, at least 1. Each has its own protection
    /// domain.
    pub places: u32,
    /// All connections report to one shared completion queue.
    pub shares_queue: bool,
    /// The engine follows the rules of the `MultiEdge` paper.
    pub is_multiedge: bool,
    /// Number of the first packet, operation and message; equal at both ends.
    pub numbers_from: u32,
    /// Number of connections that the engine opened and dropped before the run.
    pub worn_connections: u32,
    /// Maximum number of packets in flight on one link of a connection; 0 means 2048.
    pub packets_max: u16,
    /// Connections are queue pairs; every other operation and receive is a scatter/gather list.
    pub is_of_queue_pairs: bool,
    /// All connections take their receives from one shared queue.
    pub shares_receives: bool,
    /// One frame in this many is sent, although its driver reports that it does not know whether
    /// the frame left. 0 turns this off.
    pub doubts_one_in: u32,
    /// The engine is given the wrong report that those doubtful frames did not leave. This planted
    /// fault must be found.
    pub forgets_doubts: bool,
}

/// The software of one host: an engine with its memory.
///
/// Inputs are `handle_*`, outputs are `poll_*`. The world calls every `poll_*` after any input.
pub trait HostEngine {
    /// Attaches a link.
    fn attach_link(&mut self, now: Instant, link: LinkId, caps: LinkCaps);
    /// Detaches a link.
    fn detach_link(&mut self, link: LinkId);
    /// Handles a frame that arrived.
    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>);
    /// Handles the timeout that [`HostEngine::poll_timeout`] returned.
    fn handle_timeout(&mut self, now: Instant);
    /// Handles a change of a link.
    fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent);
    /// Passes every frame that may be sent now to `wire`, in order. If `wire` returns false, the
    /// link's driver did not accept this frame and accepts no other until it reports room again.
    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>);
    /// Sends as [`HostEngine::poll_transmit`] does, but at most as many frames as one call of a
    /// link driver would. Returns whether more frames wait.
    fn poll_transmit_briefly(&mut self, now: Instant, wire: &mut Wire<'_>) -> bool {
        self.poll_transmit(now, wire);
        false
    }
    /// Returns when to call [`HostEngine::handle_timeout`]; [`Instant::NEVER`] if no timer is set.
    fn poll_timeout(&self) -> Instant;
    /// Removes and returns the oldest event.
    fn poll_event(&mut self) -> Option<HostEvent>;

    /// Selects the service, with its protection domain, for all later registrations, requests and
    /// accepts.
    fn turn_to(&mut self, place: u32) {
        let _ = place;
    }
    /// Starts to listen for connection requests.
    fn listen(&mut self, now: Instant);
    /// Requests a connection over these links to these addresses.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal>;
    /// Accepts a request.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn accept(&mut self, now: Instant, request: RequestHandle)
    -> Result<ConnectionHandle, Refusal>;
    /// Rejects a request.
    fn reject(&mut self, now: Instant, request: RequestHandle);
    /// Starts to close a connection. An event reports when it has ended.
    fn close(&mut self, now: Instant, connection: ConnectionHandle);
    /// Removes a link from a connection, unless it is the last one.
    fn remove_path(&mut self, connection: ConnectionHandle, link: LinkId);
    /// Adds a link, to this address of the peer, to a connection. Has no effect if the connection
    /// has the link already.
    fn add_path(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    );
    /// Returns the number of a connection's links that carry data, and the number of all its links;
    /// `None` if the engine does not report them.
    fn links_up(&self, connection: ConnectionHandle) -> Option<(usize, usize)> {
        let _ = connection;
        None
    }
    /// Returns the largest frame, in bytes, on the worst link of the connection that carries data;
    /// `None` if the engine does not report it.
    fn frame_bytes(&self, connection: ConnectionHandle) -> Option<u16> {
        let _ = connection;
        None
    }
    /// Returns a readable description of a connection's links.
    fn describe_links(&self, connection: ConnectionHandle) -> String {
        let _ = connection;
        String::new()
    }
    /// Posts an operation.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn post(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        operation: &Operation,
    ) -> Result<(), Refusal>;
    /// Posts memory for the next message of the peer.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn post_receive(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal>;
    /// Posts memory for the next message on any connection that shares its receives
    /// ([`Shape::shares_receives`]).
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn post_shared_receive(
        &mut self,
        now: Instant,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal> {
        let _ = (now, region, offset, length_bytes, context);
        Err(Refusal::Invalid)
    }
    /// Removes and returns the oldest completion of a connection. Works after the connection has
    /// ended, too.
    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion>;
    /// Opens a datagram port with this queue pair number and key. With [`Shape::shares_receives`]
    /// the port uses the shared receives.
    fn open_port(&mut self, number: u32, key: u32) {
        let _ = (number, key);
    }
    /// Posts a datagram from a port.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn post_datagram(&mut self, number: u32, datagram: &Datagram) -> Result<(), Refusal> {
        let _ = (number, datagram);
        Err(Refusal::Full)
    }
    /// Posts memory for a datagram to a port. `place` is a region, an offset and a length in bytes.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn post_datagram_receive(
        &mut self,
        number: u32,
        place: (Region, u32, u32),
        context: u64,
    ) -> Result<(), Refusal> {
        let _ = (number, place, context);
        Ok(())
    }
    /// Removes and returns the oldest completion of a port. For a receive, the second value is the
    /// queue pair number of the sender.
    fn poll_datagrams(&mut self, number: u32) -> Option<(Completion, u32)> {
        let _ = number;
        None
    }
    /// Releases an ended connection. Its completions are not polled after this call.
    fn release(&mut self, connection: ConnectionHandle);

    /// Returns whether no work is pending, apart from keep-alives of idle connections.
    fn is_idle(&self) -> bool {
        self.poll_timeout() == Instant::NEVER
    }
    /// Registers a region of zero bytes that peers may read, write and operate on atomically.
    fn register(&mut self, length_bytes: u32) -> Region;
    /// Invalidates all keys that [`Action::Bind`] opened for a region.
    fn close_windows(&mut self, region: Region) {
        let _ = region;
    }
    /// Revokes the rights of a region. Its bytes can still be read locally.
    fn deregister(&mut self, now: Instant, region: Region);
    /// Revokes the rights of a region and frees its memory. The test no longer checks the region.
    fn discard(&mut self, region: Region);
    /// Reads `into.len()` bytes of a region from `offset`.
    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]);
    /// Writes into a region as its local owner.
    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]);
    /// Returns whether the guard bytes around all regions are unchanged.
    fn guards_are_intact(&self) -> bool;
    /// Reports each bounded resource: its name, the amount in use, and its limit.
    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64));
}

/// Callback that passes a frame, as a list of slices, to the driver of a link, for a peer. Returns
/// whether the driver accepted the frame.
pub type Wire<'a> = dyn FnMut(LinkId, PeerAddr, &[&[u8]]) -> bool + 'a;
