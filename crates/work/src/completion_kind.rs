//! Kinds of completions.

/// Kind of the work that finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A write to the peer's memory. If it succeeded, every byte is in that memory.
    Write,
    /// A read of the peer's memory. If it succeeded, every byte is in local memory.
    Read,
    /// A fetch-and-add in the peer's memory.
    FetchAdd,
    /// A remote compare-and-swap.
    CompareSwap,
    /// A send. If it succeeded, the peer's receive that took the message is complete.
    Send,
    /// A posted receive. Either it contains a message, or (only on a queue pair) a write with an
    /// immediate has consumed it.
    Receive,
    /// A notification: the peer wrote to local memory and asked to notify the application
    /// (`MultiEdge`'s notification).
    Notification,
    /// A memory window of this side was bound.
    BindWindow,
    /// The key of a memory window of this side was invalidated.
    Invalidate,
    /// A patch of the peer's memory. If it succeeded, every word is in that memory.
    Patch,
    /// A remote swap.
    Swap,
}

impl CompletionKind {
    /// All kinds, in the order of their numbers.
    pub(crate) const ALL: [Self; 11] = [
        Self::Write,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Send,
        Self::Receive,
        Self::Notification,
        Self::BindWindow,
        Self::Invalidate,
        Self::Patch,
        Self::Swap,
    ];
}
