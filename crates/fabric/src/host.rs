//! What the simulator asks of the software of a host.
//!
//! This trait is the one place where the simulator meets an engine. Worlds, applications and the
//! oracle are written against it, so that a change in the engine's own surface ends here.

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, RxFrame};
use thiserror::Error;
use wire_edge::PeerAddr;

/// A connection of one host's engine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionHandle(pub u64);

/// A request for a connection that waits for a decision.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestHandle(pub u64);

/// Memory of one host, surrounded by guard bytes that nothing may write.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Region {
    /// Which one; never used again by the same life of a host.
    pub number: u32,
    /// What a peer names it by.
    pub key: u32,
    /// Remote address of its first byte.
    pub address: u64,
    /// Its size.
    pub length_bytes: u32,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Local bytes to remote memory.
    Write,
    /// Remote bytes to local memory.
    Read,
    /// Adds to 8 remote bytes; what they held before comes to local memory.
    FetchAdd {
        /// Addend.
        operand: u64,
    },
    /// Replaces 8 remote bytes if they equal `compare`; what they held before comes to local memory.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Local bytes to the next receive of the peer.
    Send,
    /// The same; when the peer has it, the operation's key reaches nothing any more.
    SendInvalidate,
    /// Opens all of the local region to the peer under the operation's key and address.
    Bind {
        /// A key that ends before.
        replaced: Option<u32>,
        /// All connections of the service may use the key, not this one alone.
        is_for_all: bool,
    },
    /// Ends the operation's key, which this side has opened for this connection.
    Invalidate,
}

impl Action {
    /// Whether the peer answers with more than that it has the operation.
    pub const fn is_question(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    /// Whether it carries local bytes to the peer.
    pub const fn carries(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::SendInvalidate)
    }

    /// Whether it takes a receive of the peer, with or without an immediate.
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate)
    }

    /// Whether the operation's key decides if it succeeds.
    pub const fn is_under_key(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::SendInvalidate)
    }
}

/// Rules of order and report of one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// Performed after all earlier operations.
    pub fence_before: bool,
    /// All later operations are performed after it.
    pub fence_after: bool,
    /// Bodies early, tails in order, late writer yields.
    pub strict: bool,
    /// Reports its success.
    pub signalled: bool,
}

/// An operation to post.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What it does.
    pub action: Action,
    /// Local memory: source of a write or send, sink of a read or atomic.
    pub local: Region,
    /// Where in it, in bytes.
    pub local_offset: u32,
    /// Bytes; 8 for atomics.
    pub length_bytes: u32,
    /// Key of the remote memory; unused by sends.
    pub key: u32,
    /// Remote address of the first byte; unused by sends.
    pub address: u64,
    /// Delivered with the completion at the peer (writes and sends only).
    pub immediate: Option<u32>,
    /// Rules of order and report.
    pub flags: Flags,
    /// Comes back in the completion.
    pub context: u64,
}

/// A datagram to post.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The link it takes.
    pub link: LinkId,
    /// Where it goes.
    pub to: PeerAddr,
    /// The number of the queue pair there.
    pub destination: u32,
    /// The queue key of that.
    pub key: u32,
    /// Delivered with it.
    pub immediate: Option<u32>,
    /// Local memory with its bytes.
    pub local: Region,
    /// Where in it, in bytes.
    pub local_offset: u32,
    /// Bytes.
    pub length_bytes: u32,
    /// Reports that it has left.
    pub signalled: bool,
    /// Comes back in the completion.
    pub context: u64,
}

/// What completed.
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
    /// A posted receive: a message of the peer is there.
    Receive,
    /// A write of the peer that carried an immediate is there.
    Notification,
    /// A key of this side was opened or ended.
    Window,
}

/// End of an operation, or arrival of a message or notification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// What completed.
    pub kind: CompletionKind,
    /// What was given with the operation or receive; 0 for notifications.
    pub context: u64,
    /// Whether it did what it should; otherwise it was flushed with its connection.
    pub success: bool,
    /// Bytes moved.
    pub length_bytes: u32,
    /// Value sent along by the peer.
    pub immediate: Option<u32>,
    /// Key of this side that a message of the peer ended.
    pub invalidated: Option<u32>,
    /// What was wrong, if it failed and the engine reports that.
    pub fault: Option<Fault>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// This side ended its connection before it was complete.
    Flushed,
    /// The application of the peer closed its connection before it was complete.
    ClosedByPeer,
    /// The peer ended its connection because of something else.
    EndedByPeer,
    /// The peer did not allow the access.
    AccessDenied,
    /// The peer did not answer for too long.
    Unreachable,
    /// The peer does not know the connection any more.
    PeerRestarted,
    /// A side broke the protocol.
    Violation,
    /// The memory of this side that it needs is gone.
    LocalAccess,
    /// The peer could not do it: the memory of its receive is gone.
    PeerFailed,
    /// Something else.
    Other,
}

/// Why a connection ended or did not come about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// This side closed it.
    ClosedHere,
    /// The peer closed it.
    ClosedByPeer,
    /// The peer does not know it any more.
    PeerRestarted,
    /// The peer did not answer for too long.
    Unreachable,
    /// The peer refused it.
    Rejected,
    /// An access to remote memory was denied, here or at the peer.
    AccessDenied,
    /// A side broke the protocol.
    Violation,
    /// Memory of a receive is gone, here or at the peer.
    MemoryGone,
    /// An operation of this side failed, as its completion says.
    OperationFailed,
    /// Something else, by its number.
    Other(u16),
}

/// What an engine reports to its applications.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// A peer asks for a connection.
    Requested {
        /// Names the request.
        request: RequestHandle,
        /// What the peer sent along.
        private_data: Vec<u8>,
    },
    /// A connection can be used.
    Established(ConnectionHandle),
    /// A connection ended; all its operations have completed.
    Closed(ConnectionHandle, Cause),
}

/// Why something was not posted.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Refusal {
    /// A queue or window is full; later it will be taken.
    #[error("no room for the operation now")]
    Full,
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// The engine rejects the arguments.
    #[error("the engine rejects the operation")]
    Invalid,
}

/// Congestion control that an engine is asked to use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Congestion {
    /// A constant window.
    Fixed {
        /// Its size, in bytes.
        window_bytes: u32,
    },
    /// Additive increase, multiplicative decrease on marks and loss.
    Aimd,
    /// A target for the delay.
    Delay,
}

/// Link scheduler that an engine is asked to use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheduling {
    /// Earliest delivery time.
    EarliestDelivery,
    /// One link after the other.
    RoundRobin,
}

/// What a host's engine is made with. Limits are those of the protocol's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Randomness for keys, connection ids and epochs; differs for each life of each host.
    pub entropy: [u8; 32],
    /// Congestion control.
    pub congestion: Congestion,
    /// Link scheduler.
    pub scheduling: Scheduling,
    /// Operations tracked beyond the last delivered one.
    pub operation_window: u32,
    /// Bytes held for operations that must wait.
    pub order_pool_bytes: u32,
    /// Reads and atomics served at a time.
    pub read_depth: u16,
    /// Longest time that an acknowledgement is held back, in nanoseconds.
    pub ack_delay_max_ns: u32,
    /// After this long without an answer a peer is dead, in nanoseconds.
    pub dead_peer_ns: u64,
    /// Records that all connections share are so many times fewer than usual, at least 1.
    pub pool_divisor: u32,
    /// What need not be the same at both ends.
    pub shape: Shape,
}

/// What an engine has beyond its limits. The default is what most have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Services that it listens for, each with a protection domain of its own; at least 1.
    pub places: u32,
    /// All connections report to one completion queue.
    pub shares_queue: bool,
    /// It keeps the rules of `MultiEdge`.
    pub is_multiedge: bool,
    /// Number of the first packet, operation and message; the same at both ends.
    pub numbers_from: u32,
    /// Connections that it had before.
    pub worn_connections: u32,
    /// Packets in flight on a link of a connection, at most: 2048 if 0.
    pub packets_max: u16,
    /// Connections are those of queue pairs; every other operation and receive is a list of pieces.
    pub is_of_queue_pairs: bool,
    /// They take their receives from one queue.
    pub shares_receives: bool,
    /// Of so many frames, the driver does not know of one whether it left, although it did; never if 0.
    pub doubts_one_in: u32,
    /// The engine hears that those did not leave: a fault, to see that it is found.
    pub forgets_doubts: bool,
}

/// The software of one host: an engine with its memory.
///
/// Inputs are `handle_*`, outputs are `poll_*`; the world calls every `poll_*` after any input.
pub trait HostEngine {
    /// Attaches a link.
    fn attach_link(&mut self, now: Instant, link: LinkId, caps: LinkCaps);
    /// Detaches a link.
    fn detach_link(&mut self, link: LinkId);
    /// Handles a frame that arrived.
    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>);
    /// Handles the time of [`HostEngine::poll_timeout`].
    fn handle_timeout(&mut self, now: Instant);
    /// Handles a change of a link.
    fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent);
    /// Hands every frame that may leave now to `wire`, in order. When that returns false, the driver
    /// of the link did not take this frame and will not take another before it says so.
    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>);
    /// Sends as [`HostEngine::poll_transmit`] does, but only for as long as a driver of links would stay. Returns
    /// whether there is more.
    fn poll_transmit_briefly(&mut self, now: Instant, wire: &mut Wire<'_>) -> bool {
        self.poll_transmit(now, wire);
        false
    }
    /// Returns when to call [`HostEngine::handle_timeout`]; [`Instant::NEVER`] if nothing is to be done.
    fn poll_timeout(&self) -> Instant;
    /// Takes the oldest event.
    fn poll_event(&mut self) -> Option<HostEvent>;

    /// Selects the service and its domain to which what is registered, asked for and accepted from now on belongs.
    fn turn_to(&mut self, place: u32) {
        let _ = place;
    }
    /// Accepts requests for connections.
    fn listen(&mut self, now: Instant);
    /// Asks for a connection over these links to these addresses.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal>;
    /// Grants a request.
    ///
    /// # Errors
    /// [`Refusal`], one variant for each cause.
    fn accept(&mut self, now: Instant, request: RequestHandle)
    -> Result<ConnectionHandle, Refusal>;
    /// Refuses a request.
    fn reject(&mut self, now: Instant, request: RequestHandle);
    /// Ends a connection; an event reports when it has ended.
    fn close(&mut self, now: Instant, connection: ConnectionHandle);
    /// Takes a link away from a connection, unless it is the last one.
    fn remove_path(&mut self, connection: ConnectionHandle, link: LinkId);
    /// Gives a connection one more link, to this address of the peer, unless it has that one.
    fn add_path(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    );
    /// Returns how many links of a connection carry data, and how many there are; `None` if the engine does not
    /// report them.
    fn links_up(&self, connection: ConnectionHandle) -> Option<(usize, usize)> {
        let _ = connection;
        None
    }
    /// Returns the largest frame on the connection's worst link that carries data, in bytes; `None` if the engine
    /// does not report it.
    fn frame_bytes(&self, connection: ConnectionHandle) -> Option<u16> {
        let _ = connection;
        None
    }
    /// Returns what is known of a connection's links, for a reader.
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
    /// Posts memory for the next message that comes on any connection of [`Shape::shares_receives`].
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
    /// Takes the oldest completion of a connection. Works after the connection has ended.
    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion>;
    /// Opens a port of datagrams with this queue pair number and key. With [`Shape::shares_receives`] it takes those.
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
    /// Posts memory for a datagram to a port: a region, where in it, and how many bytes.
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
    /// Takes the oldest completion of a port; of a receive with the queue pair number of the sender.
    fn poll_datagrams(&mut self, number: u32) -> Option<(Completion, u32)> {
        let _ = number;
        None
    }
    /// Releases an ended connection: no completion of it will be taken any more.
    fn release(&mut self, connection: ConnectionHandle);

    /// Whether nothing is pending, keep-alives of idle connections apart.
    fn is_idle(&self) -> bool {
        self.poll_timeout() == Instant::NEVER
    }
    /// Makes a region of zero bytes that peers may read, write and operate on atomically.
    fn register(&mut self, length_bytes: u32) -> Region;
    /// Ends all keys that were opened for a region by [`Action::Bind`].
    fn close_windows(&mut self, region: Region) {
        let _ = region;
    }
    /// Takes a region's rights away; its bytes can still be read here.
    fn deregister(&mut self, now: Instant, region: Region);
    /// Takes a region's rights away and gives its memory back: the test does not check it any more.
    fn discard(&mut self, region: Region);
    /// Reads `into.len()` bytes of a region from `offset`.
    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]);
    /// Writes a region as its owner does.
    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]);
    /// Whether the guard bytes around all regions are as they were made.
    fn guards_are_intact(&self) -> bool;
    /// Reports each bounded resource: its name, what is in use, its limit.
    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64));
}

/// Takes a frame, given in pieces, for a peer on a link; returns whether its driver took it.
pub type Wire<'a> = dyn FnMut(LinkId, PeerAddr, &[&[u8]]) -> bool + 'a;
