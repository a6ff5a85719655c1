//! Calls that are not permitted.

use dsm_protocol::Misuse;
use thiserror::Error;

/// A call that is not permitted. It has changed nothing.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("rank {rank}: {misuse}{holder}; {remedy}", remedy = remedy(misuse))]
pub struct MisusedCall {
    misuse: Misuse,
    rank: usize,
    /// Where the rank runs that holds the lock, as a part of the text; empty if none does.
    holder: String,
}

impl MisusedCall {
    /// Describes a misuse by rank `rank`. `places` says where each rank runs.
    pub(crate) fn new(misuse: Misuse, rank: usize, places: &[String]) -> Self {
        let holder = match misuse {
            Misuse::HeldElsewhere { rank, .. } => places.get(rank.index()),
            _ => None,
        };
        let holder = holder.map(|place| format!(" (that rank is {place})"));
        Self { misuse, rank, holder: holder.unwrap_or_default() }
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
        Misuse::HeldBy { .. } | Misuse::HeldElsewhere { .. } => {
            "unlock on the thread that has locked"
        }
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
    use dsm_protocol::Rank;

    use super::*;

    #[test]
    fn the_text_names_rank_address_holder_and_remedy() {
        let places = ["process 7 on here".to_owned(), "process 8 on there".to_owned()];
        let text = |misuse| MisusedCall::new(misuse, 3, &places).to_string();
        assert_eq!(
            text(Misuse::HeldBy { lock: 0x40, thread: 2 }),
            "rank 3: thread 2 of this rank holds the lock at 0x40, not the calling thread; unlock on \
             the thread that has locked"
        );
        assert_eq!(
            text(Misuse::HeldElsewhere { lock: 0x40, rank: Rank(1), thread: 2 }),
            "rank 3: thread 2 of rank 1 holds the lock at 0x40, not the calling thread (that rank is \
             process 8 on there); unlock on the thread that has locked"
        );
    }
}
