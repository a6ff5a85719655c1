//! Work requests and work completions.

use work::CompletionStatus;

use crate::attributes::AddressVectorAttributes;
use crate::memory_window::WindowType;
use crate::services::Operation;

/// A scatter/gather entry with the memory layout of `ibv_sge`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct ScatterGather {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub key: u32,
}

/// Operation of a send, with its parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOpcode {
    /// Writes to memory of the peer.
    Write {
        /// Remote address.
        address: u64,
        /// Remote key.
        key: u32,
        /// Immediate data, in network byte order like in the program's request. A write with an
        /// immediate consumes a receive of the peer.
        immediate: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Remote address.
        address: u64,
        /// Remote key.
        key: u32,
    },
    /// Sends a message.
    Send {
        /// Immediate data, in network byte order.
        immediate: Option<u32>,
    },
    /// Sends a message and invalidates a key of the peer.
    SendInvalidate {
        /// The key to invalidate.
        key: u32,
    },
    /// Adds to 8 bytes of the peer's memory.
    FetchAdd {
        /// Remote address.
        address: u64,
        /// Remote key.
        key: u32,
        /// Summand.
        operand: u64,
    },
    /// Compares and swaps 8 bytes of the peer's memory.
    CompareSwap {
        /// Remote address.
        address: u64,
        /// Remote key.
        key: u32,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Binds a memory window. [`MemoryWindow::bind`](crate::MemoryWindow::bind) returns this
    /// variant.
    BindWindow {
        /// Type of the window.
        kind: WindowType,
        /// Key of the window before the bind.
        replaced: u32,
        /// Key of the window after the bind.
        key: u32,
        /// Key of the memory region; unused if `length` is 0.
        region_key: u32,
        /// Address of the window's first byte.
        address: u64,
        /// Length in bytes; 0 unbinds the window.
        length: u64,
        /// Bits of `ibv_access_flags`.
        access: u32,
    },
    /// Invalidates the key of a memory window of this side. Sends nothing to the peer.
    LocalInvalidate {
        /// The key to invalidate.
        key: u32,
    },
}

impl SendOpcode {
    /// Returns the operation without its parameters.
    #[inline]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Write { immediate: None, .. } => Operation::Write,
            Self::Write { immediate: Some(_), .. } => Operation::WriteImmediate,
            Self::Read { .. } => Operation::Read,
            Self::Send { immediate: None } => Operation::Send,
            Self::Send { immediate: Some(_) } => Operation::SendImmediate,
            Self::SendInvalidate { .. } => Operation::SendInvalidate,
            Self::FetchAdd { .. } => Operation::FetchAdd,
            Self::CompareSwap { .. } => Operation::CompareSwap,
            Self::BindWindow { .. } => Operation::BindWindow,
            Self::LocalInvalidate { .. } => Operation::LocalInvalidate,
        }
    }

    /// Returns whether the operation consumes a receive of the peer.
    pub const fn takes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::SendInvalidate { .. }
                | Self::Write { immediate: Some(_), .. }
        )
    }
}

/// Flags of a send.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// Whether the operation begins only after all earlier reads and atomics of this queue pair are
    /// complete.
    pub fence: bool,
    /// Whether the operation generates a completion if it succeeds.
    pub signalled: bool,
    /// Whether the completion at the peer is solicited: it raises an event also if the peer has
    /// armed its queue only for solicited completions.
    pub solicited: bool,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressVector {
    /// Path to the destination.
    pub to: AddressVectorAttributes,
    /// Destination queue pair number.
    pub destination: u32,
    /// Queue key of the destination. If the top bit is set, the datagram contains the queue key of
    /// the sending queue pair instead.
    pub queue_key: u32,
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Identifier that the completion returns.
    pub id: u64,
    /// Operation, with its parameters.
    pub opcode: SendOpcode,
    /// Flags.
    pub flags: SendFlags,
    /// Memory with the payload; for a read, the memory where the data is stored.
    pub pieces: &'a [ScatterGather],
    /// Inline payload. If there is one, `pieces` is ignored.
    pub inline: Option<&'a [u8]>,
    /// Destination, for a datagram.
    pub to: Option<AddressVector>,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Identifier that the completion returns.
    pub id: u64,
    /// Memory where the message is stored.
    pub pieces: &'a [ScatterGather],
}

/// The operation that has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionOpcode {
    /// A send, with or without an immediate.
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A bind of a memory window.
    BindWindow,
    /// An invalidation of a key of this side.
    LocalInvalidate,
    /// A received message.
    Receive,
    /// A received write with an immediate.
    ReceiveOfWrite,
}

/// A work completion (`ibv_wc`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WorkCompletion {
    /// Identifier of the work request.
    pub id: u64,
    /// Outcome.
    pub status: CompletionStatus,
    /// The operation that has completed.
    pub opcode: CompletionOpcode,
    /// Length of a received message or of a read, in bytes.
    pub bytes: u32,
    /// Immediate data of the received message.
    pub immediate: Option<u32>,
    /// Key of this side that the received message invalidated; `None` if it invalidated none.
    pub invalidated: Option<u32>,
    /// Number of the local queue pair.
    pub queue_pair: u32,
    /// Number of the queue pair that sent the datagram.
    pub source: u32,
    /// Whether a route header of 40 bytes precedes the payload of the datagram.
    pub has_route_header: bool,
    /// Whether the sender of the message asked for a solicited event.
    pub is_solicited: bool,
    /// Time of completion in nanoseconds, if the queue has a clock
    /// ([`crate::Context::create_stamped_completion_queue`]); otherwise 0.
    pub at_ns: u64,
}

impl WorkCompletion {
    /// A completion with all fields 0 or `None`, to initialise arrays.
    pub const NOTHING: Self = Self {
        id: 0,
        status: CompletionStatus::Success,
        opcode: CompletionOpcode::Send,
        bytes: 0,
        immediate: None,
        invalidated: None,
        queue_pair: 0,
        source: 0,
        has_route_header: false,
        is_solicited: false,
        at_ns: 0,
    };
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self::NOTHING
    }
}
