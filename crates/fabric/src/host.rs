//! The interface between the simulator and the software of a host.
//!
//! The simulator uses an engine only through [`HostEngine`]. Worlds, applications and the oracle
//! use this trait. If the public API of the engine changes, only the implementation of the trait
//! must change.

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, RxFrame};
use thiserror::Error;
use wire_edge::PeerAddr;

/// Handle of a connection of one host's engine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionHandle(pub u64);

/// Handle of a connection request that waits for a decision.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestHandle(pub u64);

/// Memory of one host. Guard bytes around it must never change.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Region {
    /// Number of the region; not reused as long as the host lives.
    pub number: u32,
    /// Key that peers use for the region.
    pub key: u32,
    /// Address of the region's first byte, as peers see it.
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
    /// Adds to an 8-byte remote value. Local memory gets the old value.
    FetchAdd {
        /// The number to add.
        operand: u64,
    },
    /// Replaces an 8-byte remote value if it equals `compare`. Local memory gets the old value.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Replaces an 8-byte remote value. Local memory gets the old value.
    Swap {
        /// Value to store.
        value: u64,
    },
    /// Writes scattered words of four bytes to remote memory. The local bytes are records
    /// ([`wire_edge::PatchRecord`]).
    Patch,
    /// Sends local bytes to the peer's next receive.
    Send,
    /// Sends local bytes to the peer's next receive. When the peer delivers the message, it
    /// invalidates the operation's key.
    SendInvalidate,
    /// Binds a memory window: gives the peer access to the whole local region under the operation's
    /// key and address.
    Bind {
        /// Key of an earlier window that this window replaces. This key becomes invalid.
        replaced: Option<u32>,
        /// Whether all connections of the service can use the key; if false, only this connection
        /// can.
        is_for_all: bool,
    },
    /// Invalidates the operation's key. This side has bound the key for this connection.
    Invalidate,
}

impl Action {
    /// Returns whether the peer answers with data instead of only an acknowledgement.
    pub const fn is_question(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }

    /// Returns whether the operation changes eight bytes and answers with their old value.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::CompareSwap { .. } | Self::Swap { .. })
    }

    /// Returns whether the operation copies local bytes to memory that the peer's key names.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Patch)
    }

    /// Returns whether the operation carries local bytes to the peer.
    pub const fn carries(self) -> bool {
        self.writes() || self.is_message()
    }

    /// Returns whether the operation consumes a receive of the peer even without an immediate.
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate)
    }

    /// Returns whether the operation fails if its key is invalid.
    pub const fn is_under_key(self) -> bool {
        matches!(self, Self::Write | Self::Patch | Self::Read | Self::SendInvalidate)
    }
}

/// Ordering and signalling flags of one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// The target performs this operation after all earlier operations.
    pub fence_before: bool,
    /// The target performs all later operations after this one.
    pub fence_after: bool,
    /// The operation is strict. The target may place the first fragments early, but places the last
    /// fragment in order. If the write is late, it does not overwrite bytes of a newer write.
    pub strict: bool,
    /// The operation produces a completion even if it succeeds.
    pub signalled: bool,
}

/// An operation to post.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What the operation does.
    pub action: Action,
    /// Local memory: the source of a write or send, the destination of a read or atomic.
    pub local: Region,
    /// Offset in `local`, in bytes.
    pub local_offset: u32,
    /// Length in bytes; 8 for atomics.
    pub length_bytes: u32,
    /// Key of the remote memory; sends do not use it.
    pub key: u32,
    /// Remote address of the first byte; sends do not use it.
    pub address: u64,
    /// Immediate: the value that the peer's completion contains (writes and sends only).
    pub immediate: Option<u32>,
    /// Ordering and signalling flags.
    pub flags: Flags,
    /// Value that the completion contains.
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
    /// Immediate: the value that the receiver's completion contains.
    pub immediate: Option<u32>,
    /// Local memory that holds the payload.
    pub local: Region,
    /// Offset of the payload in `local`, in bytes.
    pub local_offset: u32,
    /// Length of the payload in bytes.
    pub length_bytes: u32,
    /// Whether the datagram produces a completion when it has been sent.
    pub signalled: bool,
    /// Value that the completion contains.
    pub context: u64,
}

/// The kind of operation that completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionKind {
    /// A posted write.
    Write,
    /// A posted patch.
    Patch,
    /// A posted read.
    Read,
    /// A posted atomic operation.
    Atomic,
    /// A posted send.
    Send,
    /// A posted receive, which a message of the peer has consumed.
    Receive,
    /// A peer's write or patch with an immediate, which was delivered here.
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
    /// Whether the operation succeeded. If false, it failed, or its connection ended first.
    pub success: bool,
    /// Number of bytes transferred.
    pub length_bytes: u32,
    /// The immediate that the peer sent, if there is one.
    pub immediate: Option<u32>,
    /// The key of this side that the peer's message invalidated; `None` if it invalidated none.
    pub invalidated: Option<u32>,
    /// The reason of a failure; `None` if the operation succeeded or the engine reports no reason.
    pub fault: Option<Fault>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// This side ended the connection before the operation was complete.
    Flushed,
    /// The application of the peer closed the connection before the operation was complete.
    ClosedByPeer,
    /// The peer ended the connection because something else failed.
    EndedByPeer,
    /// The peer did not allow the access.
    AccessDenied,
    /// The peer did not answer for so long that this side regards it as dead.
    Unreachable,
    /// The peer no longer knows the connection.
    PeerRestarted,
    /// The peer or this side violated the protocol.
    Violation,
    /// Local memory of the operation has been deregistered.
    LocalAccess,
    /// The peer could not perform the operation, because the memory of the receive that it consumed
    /// has been deregistered.
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
    /// The peer did not answer for so long that this side regards it as dead.
    Unreachable,
    /// The peer rejected the request.
    Rejected,
    /// The peer denied this side an access to memory, or this side denied the peer an access.
    AccessDenied,
    /// The peer or this side violated the protocol.
    Violation,
    /// The memory of a receive has been deregistered, on either side.
    MemoryGone,
    /// An operation of this side failed; its completion has the reason.
    OperationFailed,
    /// Any other reason. Contains the number of the reason.
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
    /// A queue or window is full; a later retry can succeed.
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
    /// Congestion control that increases additively and decreases multiplicatively (AIMD), on ECN
    /// marks and losses.
    Aimd,
    /// Congestion control with a target delay.
    Delay,
}

/// Rule by which an engine chooses the link for a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheduling {
    /// The link with the earliest expected delivery.
    EarliestDelivery,
    /// The links in round-robin order.
    RoundRobin,
}

/// Settings of a host's engine. The limits have the same meaning as the limits in the protocol's
/// parameters.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Random bytes from which keys, connection ids and epochs are derived. These bytes differ
    /// between hosts, and a host gets new ones at each restart.
    pub entropy: [u8; 32],
    /// The congestion control.
    pub congestion: Congestion,
    /// The link scheduler.
    pub scheduling: Scheduling,
    /// Maximum number of operations, after the last delivered operation, that the engine tracks.
    pub operation_window: u32,
    /// Maximum number of bytes that the engine holds for operations that must wait.
    pub order_pool_bytes: u32,
    /// Maximum number of reads and atomics that the host answers at the same time.
    pub read_depth: u16,
    /// Maximum delay of an acknowledgement, in nanoseconds.
    pub ack_delay_max_ns: u32,
    /// Time after which a silent peer is regarded as dead, in nanoseconds.
    pub dead_peer_ns: u64,
    /// Divisor of the number of records that all connections share, at least 1. With a larger
    /// divisor, connections share fewer records.
    pub pool_divisor: u32,
    /// Settings that can differ between the two ends.
    pub shape: Shape,
}

/// Settings of an engine other than its limits. The default is the usual configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Number of services on which the host listens, at least 1. Each service has its own
    /// protection domain.
    pub places: u32,
    /// Whether all connections report to one completion queue.
    pub shares_queue: bool,
    /// Whether the engine follows the rules of the `MultiEdge` paper.
    pub is_multiedge: bool,
    /// Number of the first packet, operation and message. Must be equal at both ends.
    pub numbers_from: u32,
    /// Number of connections that the engine opens and closes before the run.
    pub worn_connections: u32,
    /// Maximum number of packets in flight on one link of a connection; 0 stands for 2048.
    pub packets_max: u16,
    /// Whether connections are queue pairs. Every second operation or receive then uses a
    /// scatter/gather list.
    pub is_of_queue_pairs: bool,
    /// Whether all connections take their receives from one queue.
    pub shares_receives: bool,
    /// With the value N, the driver sends every Nth frame but reports that it does not know whether
    /// the frame left. 0 turns these reports off.
    pub doubts_one_in: u32,
    /// A planted fault that the checks must find. For each frame that `doubts_one_in` selects, the
    /// driver sends the frame, but falsely reports that the frame did not leave.
    pub forgets_doubts: bool,
}

/// The software of one host: an engine with its memory.
///
/// Methods `handle_*` are inputs, methods `poll_*` are outputs. After each input, the world calls
/// every `poll_*`.
pub trait HostEngine {
    /// Attaches a link.
    fn attach_link(&mut self, now: Instant, link: LinkId, caps: LinkCaps);
    /// Detaches a link.
    fn detach_link(&mut self, link: LinkId);
    /// Handles a frame that has arrived.
    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>);
    /// Handles the expiry of the time that [`HostEngine::poll_timeout`] returned.
    fn handle_timeout(&mut self, now: Instant);
    /// Handles a change of a link.
    fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent);
    /// Passes every frame that may be sent now to `wire`, in order. If `wire` returns false, the
    /// link's driver has refused the frame. The driver then refuses all frames until it reports
    /// that it has room.
    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>);
    /// Sends like [`HostEngine::poll_transmit`], but only as many frames as one call of a link
    /// driver accepts. Returns whether more frames wait.
    fn poll_transmit_briefly(&mut self, now: Instant, wire: &mut Wire<'_>) -> bool {
        self.poll_transmit(now, wire);
        false
    }
    /// Returns the time at which [`HostEngine::handle_timeout`] must be called; [`Instant::NEVER`]
    /// if no timer is set.
    fn poll_timeout(&self) -> Instant;
    /// Removes and returns the oldest event.
    fn poll_event(&mut self) -> Option<HostEvent>;

    /// Selects a service and its protection domain. All later registrations, requests and accepts
    /// use them.
    fn turn_to(&mut self, place: u32) {
        let _ = place;
    }
    /// Starts to listen for connection requests.
    fn listen(&mut self, now: Instant);
    /// Requests a connection over these links to these addresses of the peer.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal>;
    /// Accepts a request.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
    fn accept(&mut self, now: Instant, request: RequestHandle)
    -> Result<ConnectionHandle, Refusal>;
    /// Rejects a request.
    fn reject(&mut self, now: Instant, request: RequestHandle);
    /// Starts to close a connection. An event reports when the connection has ended.
    fn close(&mut self, now: Instant, connection: ConnectionHandle);
    /// Removes a link from a connection. Does nothing if the connection has no other link.
    fn remove_path(&mut self, connection: ConnectionHandle, link: LinkId);
    /// Adds a link to a connection, to this address of the peer. Does nothing if the connection
    /// already has the link.
    fn add_path(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    );
    /// Returns the number of a connection's links that carry data, and the number of all its links.
    /// Returns `None` if the engine does not report these numbers.
    fn links_up(&self, connection: ConnectionHandle) -> Option<(usize, usize)> {
        let _ = connection;
        None
    }
    /// Returns the smallest of the frame lengths that the connection's data links allow, in bytes.
    /// Returns `None` if the engine does not report these lengths.
    fn frame_bytes(&self, connection: ConnectionHandle) -> Option<u16> {
        let _ = connection;
        None
    }
    /// Describes a connection's links and what is used of the engine's pools, in words.
    fn describe_links(&self, connection: ConnectionHandle) -> String {
        let _ = connection;
        String::new()
    }
    /// Posts an operation.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
    fn post(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        operation: &Operation,
    ) -> Result<(), Refusal>;
    /// Posts memory for the peer's next message.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
    fn post_receive(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal>;
    /// Posts memory for the next message on any connection that uses the shared receives
    /// ([`Shape::shares_receives`]).
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
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
    /// Removes and returns the oldest completion of a connection. Also works after the connection
    /// has ended.
    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion>;
    /// Opens a datagram port with this queue pair number and key. If [`Shape::shares_receives`] is
    /// set, the port uses the shared receives.
    fn open_port(&mut self, number: u32, key: u32) {
        let _ = (number, key);
    }
    /// Posts a datagram from a port.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
    fn post_datagram(&mut self, number: u32, datagram: &Datagram) -> Result<(), Refusal> {
        let _ = (number, datagram);
        Err(Refusal::Full)
    }
    /// Posts memory for a datagram to a port. `place` contains a region, an offset and a length in
    /// bytes.
    ///
    /// # Errors
    /// Returns [`Refusal`]; each variant names one cause.
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
    /// sender's queue pair number.
    fn poll_datagrams(&mut self, number: u32) -> Option<(Completion, u32)> {
        let _ = number;
        None
    }
    /// Releases an ended connection. The caller must not poll its completions after this call.
    fn release(&mut self, connection: ConnectionHandle);

    /// Returns whether no work is pending, except for keep-alives of idle connections.
    fn is_idle(&self) -> bool {
        self.poll_timeout() == Instant::NEVER
    }
    /// Registers a region of zero bytes. Peers may read it, write it and use it for atomics.
    fn register(&mut self, length_bytes: u32) -> Region;
    /// Invalidates all keys that [`Action::Bind`] has bound to a region.
    fn close_windows(&mut self, region: Region) {
        let _ = region;
    }
    /// Revokes the rights of a region. Its bytes can still be read locally.
    fn deregister(&mut self, now: Instant, region: Region);
    /// Revokes the rights of a region and frees its memory. The test does not check the region
    /// after this call.
    fn discard(&mut self, region: Region);
    /// Reads `into.len()` bytes of a region, starting at `offset`.
    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]);
    /// Writes bytes to a region, like a program of this host.
    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]);
    /// Returns whether the guard bytes around all regions are unchanged.
    fn guards_are_intact(&self) -> bool;
    /// Reports each bounded resource: its name, the amount in use, and its limit.
    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64));
}

/// Callback that passes a frame to the driver of a link: link, address of the peer, and a list of
/// slices. Returns whether the driver accepted the frame.
pub type Wire<'a> = dyn FnMut(LinkId, PeerAddr, &[&[u8]]) -> bool + 'a;
