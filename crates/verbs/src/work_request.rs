//! What is posted to queue pairs, and what comes back.

use work::CompletionStatus;

use crate::attributes::AddressVectorAttributes;
use crate::memory_window::WindowType;

/// A piece of memory of this process: laid out as `ibv_sge`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct ScatterGather {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region it is in.
    pub key: u32,
}

/// What a send does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOpcode {
    /// Writes to memory of the peer.
    Write {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
        /// Delivered with it, and then it takes a receive. In network byte order, as programs give it.
        immediate: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
    },
    /// A message.
    Send {
        /// Delivered with it.
        immediate: Option<u32>,
    },
    /// A message that ends a key of the peer.
    SendInvalidate {
        /// The key.
        key: u32,
    },
    /// Adds to 8 bytes of the peer.
    FetchAdd {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
        /// How much.
        operand: u64,
    },
    /// Exchanges 8 bytes of the peer.
    CompareSwap {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Binds a memory window: made by [`MemoryWindow::bind`](crate::MemoryWindow::bind).
    BindWindow {
        /// Who reaches it.
        kind: WindowType,
        /// Key the window has had.
        replaced: u32,
        /// Key it will have.
        key: u32,
        /// Key of the region; meaningless if `length` is 0.
        region_key: u32,
        /// First address.
        address: u64,
        /// Bytes; 0 to bind it to nothing.
        length: u64,
        /// Bits of `ibv_access_flags`.
        access: u32,
    },
    /// Ends a key of this side.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
}

impl SendOpcode {
    /// Whether a receive of the peer is consumed.
    pub const fn takes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::SendInvalidate { .. }
                | Self::Write { immediate: Some(_), .. }
        )
    }
}

/// How a send is done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// It begins when earlier reads and atomics of this side are complete.
    pub fence: bool,
    /// Its success has a completion.
    pub signalled: bool,
    /// The peer's program is woken.
    pub solicited: bool,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressVector {
    /// The address handle.
    pub to: AddressVectorAttributes,
    /// Queue pair number there.
    pub destination: u32,
    /// Its queue key; if the top bit is set, that of the sender is meant.
    pub queue_key: u32,
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What it does.
    pub opcode: SendOpcode,
    /// How.
    pub flags: SendFlags,
    /// Its bytes, or where those that are read go.
    pub pieces: &'a [ScatterGather],
    /// Its bytes by value, instead of `pieces`.
    pub inline: Option<&'a [u8]>,
    /// Where it goes, of a datagram.
    pub to: Option<AddressVector>,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the message goes.
    pub pieces: &'a [ScatterGather],
}

/// What completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionOpcode {
    /// A send, with an immediate or not.
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A window was bound.
    BindWindow,
    /// A key of this side was ended.
    LocalInvalidate,
    /// A message came.
    Receive,
    /// A write with an immediate came.
    ReceiveOfWrite,
}

/// A work completion (`ibv_wc`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WorkCompletion {
    /// Of the work request.
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// What.
    pub opcode: CompletionOpcode,
    /// Bytes of a message, or of a read.
    pub bytes: u32,
    /// What came with the message.
    pub immediate: Option<u32>,
    /// The key of this side that the message ended.
    pub invalidated: Option<u32>,
    /// The own queue pair.
    pub queue_pair: u32,
    /// The queue pair that sent a datagram.
    pub source: u32,
    /// 40 bytes of route header stand before the payload of a datagram.
    pub has_route_header: bool,
    /// The sender of the message asked that the receiver be woken.
    pub is_solicited: bool,
    /// When it completed, by the clock of a queue that has one ([`crate::Context::create_stamped_completion_queue`]);
    /// 0 otherwise.
    pub at_ns: u64,
}

impl WorkCompletion {
    /// What a place holds that nothing was written to.
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
