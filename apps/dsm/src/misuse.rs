//! Calls that are not permitted.

use dsm_protocol::Misuse;
use thiserror::Error;

/// A call that is not permitted. It has changed nothing.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("rank {rank}: {misuse}; {remedy}", remedy = remedy(misuse))]
pub struct MisusedCall {
    misuse: Misuse,
    rank: usize,
}

impl MisusedCall {
    pub(crate) const fn new(misuse: Misuse, rank: usize) -> Self {
        Self { misuse, rank }
    }

    /// Returns what is not permitted.
    pub const fn misuse(&self) -> Misuse {
        self.misuse
    }

    /// Returns the rank that made the call.
    pub const fn rank(&self) -> usize {
        self.rank
    }
}

/// Returns what the program should do instead.
pub(crate) const fn remedy(misuse: &Misuse) -> &'static str {
    match misuse {
        Misuse::Settings => "the race detector needs a method other than `asynchronous`",
        Misuse::NoThread(_) => "raise `Options::threads` on all ranks",
        Misuse::Busy(_) => "make no call inside of another one",
        Misuse::NoPage(_) => "use memory that `Dsm::alloc` has returned",
        Misuse::NotHeld(_) => "lock before each unlock, and unlock on the thread that has locked",
        Misuse::HeldBy { .. } => "unlock on the thread that has locked",
        Misuse::HeldAlready(_) => "unlock it first: a thread cannot lock twice",
        Misuse::OtherKind(_) => "use another address or number for each object",
        Misuse::OtherCount(_) => {
            "let all threads wait at the same barrier, for the same number of threads"
        }
        Misuse::Count { .. } => "choose a number from 1 to that of all threads of all ranks",
        Misuse::Unaligned(_) => "align the element to 8 bytes",
        Misuse::NotPinned(_) => "unpin a range once for each pin of it",
        Misuse::TooManyPins(_) => "unpin ranges that are not in use any more",
        Misuse::NoRank(_) => "choose a rank below `Dsm::size`",
        _ => "see the documentation of the call",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_rank_address_holder_and_remedy() {
        let call = MisusedCall::new(Misuse::HeldBy { lock: 0x40, thread: 2 }, 3);
        let text = call.to_string();
        assert!(text.starts_with("rank 3: thread 2 of this rank holds the lock at 0x40"), "{text}");
        assert!(text.ends_with("unlock on the thread that has locked"), "{text}");
    }
}
