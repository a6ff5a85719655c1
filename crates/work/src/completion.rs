//! The report that an operation, a receive or a notification is finished.

use wire_edge::RemoteKey;

use crate::completion_kind::CompletionKind;
use crate::completion_status::CompletionStatus;
use crate::error::OperationError;

/// A report to the application that an operation, a receive or a notification is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The value that the application passed with the post; 0 for a notification.
    pub context: u64,
    /// The connection to which the work belongs.
    pub owner: Owner,
    /// Kind of the finished work.
    pub kind: CompletionKind,
    /// Result of the work.
    pub result: Result<(), OperationError>,
    /// Number of bytes written, read, sent or received. For a notification, the length of the
    /// peer's write in bytes.
    pub bytes: u32,
    /// Immediate of the peer's message or write.
    pub immediate: Option<u32>,
    /// Whether the peer asked this end to wake an application that waits for a completion.
    pub solicited: bool,
    /// A value that depends on the kind of work:
    ///
    /// * atomic: the old value of the memory,
    /// * notification: the address that the peer wrote to,
    /// * receive: see [`Completion::is_of_write`] and [`Completion::invalidated`],
    /// * otherwise: 0.
    pub value: u64,
}

impl Completion {
    /// Returns the result as a status of verbs.
    pub const fn status(&self) -> CompletionStatus {
        match self.result {
            Ok(()) => CompletionStatus::Success,
            Err(error) => error.status(self.kind),
        }
    }

    /// Value of [`Completion::value`] for a receive that a write with an immediate consumed.
    pub const OF_WRITE: u64 = 1 << 32;

    /// Returns the key of this side that the peer's message invalidated. Returns `None` if the
    /// message invalidated no key.
    pub const fn invalidated(&self) -> Option<RemoteKey> {
        let is_key = 0 < self.value && self.value < Self::OF_WRITE;
        if is_key && matches!(self.kind, CompletionKind::Receive) {
            return Some(RemoteKey(self.value as u32));
        }
        None
    }

    /// Returns whether a write with an immediate consumed the receive of this completion. In that
    /// case, the bytes are at the destination of the write, and the memory of the receive is
    /// unchanged.
    pub const fn is_of_write(&self) -> bool {
        matches!(self.kind, CompletionKind::Receive) && self.value == Self::OF_WRITE
    }
}

/// The connection that a completion belongs to: its slot at the endpoint, and a count of the uses
/// of this slot. Connections reuse slots. Without the count, late completions of one connection
/// could be taken for completions of the next connection in the slot.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Owner(u64);

impl Owner {
    /// Creates the owner for use number `life` of slot `index`.
    pub const fn new(index: u32, life: u32) -> Self {
        Self((life as u64) << 32 | index as u64)
    }

    /// Packs the index and the count of uses into one number. No two connections of an endpoint
    /// have the same number.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the index of the connection at its endpoint.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Returns the count of uses of the slot, including this use.
    pub const fn life(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Number of 64-bit words in a packed completion.
pub(crate) const WORDS: usize = 5;

const CODE_SHIFT: u32 = 8;
const HAS_IMMEDIATE: u64 = 1 << 16;
const IS_SOLICITED: u64 = 1 << 17;
/// Bit of the last word. It is set if the completion counts against the depth of its queue
/// (`CompletionQueue::with_depth`).
pub(crate) const TAKES_PLACE: u64 = 1 << 18;
/// Position of the stamp in the last word, in bits. The stamp consists of the low 45 bits of the
/// time in nanoseconds at which the completion was added to its queue. 45 bits cover nine hours.
pub(crate) const STAMP_SHIFT: u32 = 19;

impl Completion {
    /// Packs the completion into words. Threads can write and read the words without a lock.
    #[inline]
    pub(crate) const fn pack(&self) -> [u64; WORDS] {
        let code = match self.result {
            Ok(()) => 0,
            Err(error) => error.code(),
        };
        let (immediate, has_immediate) = match self.immediate {
            Some(immediate) => (immediate, HAS_IMMEDIATE),
            None => (0, 0),
        };
        let solicited = if self.solicited { IS_SOLICITED } else { 0 };
        let marks = self.kind as u64 | (code as u64) << CODE_SHIFT | has_immediate | solicited;
        let sizes = self.bytes as u64 | (immediate as u64) << 32;
        [self.context, self.owner.0, self.value, sizes, marks]
    }

    /// Returns the completion that [`Completion::pack`] packed into these words.
    #[inline]
    pub(crate) fn unpack([context, owner, value, sizes, marks]: [u64; WORDS]) -> Self {
        let kind = CompletionKind::ALL.get(usize::from(marks as u8)).copied();
        let result = match (marks >> CODE_SHIFT) as u8 {
            0 => Ok(()),
            code => Err(OperationError::from_code(code)),
        };
        Self {
            context,
            owner: Owner(owner),
            kind: kind.unwrap_or(CompletionKind::Notification),
            result,
            bytes: sizes as u32,
            immediate: (marks & HAS_IMMEDIATE != 0).then_some((sizes >> 32) as u32),
            solicited: marks & IS_SOLICITED != 0,
            value,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_connections_in_one_slot_have_different_owners() {
        let (first, second) = (Owner::new(7, 1), Owner::new(7, 2));
        assert_ne!(first, second);
        assert_eq!((first.index(), second.index()), (7, 7));
        assert_eq!((first.life(), second.life()), (1, 2));
        assert_ne!(first.bits(), second.bits());
    }

    #[test]
    fn a_receive_reports_the_key_it_invalidated_or_the_write_that_consumed_it() {
        let receive = |value| Completion {
            context: 0,
            owner: Owner::default(),
            kind: CompletionKind::Receive,
            result: Ok(()),
            bytes: 0,
            immediate: None,
            solicited: false,
            value,
        };
        let details = |found: Completion| (found.invalidated(), found.is_of_write());
        assert_eq!(details(receive(0)), (None, false));
        assert_eq!(details(receive(0xffff_ffff)), (Some(RemoteKey(0xffff_ffff)), false));
        assert_eq!(details(receive(Completion::OF_WRITE)), (None, true));
        let atomic = Completion { kind: CompletionKind::FetchAdd, ..receive(7) };
        assert_eq!(details(atomic), (None, false));
    }

    proptest! {
        #[test]
        fn a_completion_decodes_from_its_words(
            (context, owner, value) in any::<(u64, u64, u64)>(),
            kind in 0..CompletionKind::ALL.len(),
            code in 0..19_u8,
            (bytes, immediate, solicited) in any::<(u32, Option<u32>, bool)>(),
        ) {
            let result = if code == 0 { Ok(()) } else { Err(OperationError::from_code(code)) };
            let kind = CompletionKind::ALL[kind];
            let owner = Owner(owner);
            let completion =
                Completion { context, owner, kind, result, bytes, immediate, solicited, value };
            prop_assert_eq!(Completion::unpack(completion.pack()), completion);
        }
    }
}
