//! The locks of a node: which thread holds each, which threads wait, and which node is next.

use std::collections::{BTreeMap, VecDeque};

use crate::identity::{Rank, ThreadNumber};

/// Where a lock is, as its node knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Possession {
    /// At another node, or at none.
    #[default]
    Elsewhere,
    /// Requested of the manager.
    Requested,
    /// Here, held or not. The node keeps an unheld lock until another node wants it.
    Here,
    /// Here and unheld, but promised to the next node once the interval has ended.
    Leaving,
}

/// One lock.
#[derive(Debug, Default)]
struct Lock {
    possession: Possession,
    /// The thread that holds the lock. A lock that is not here has no holder.
    holder: Option<ThreadNumber>,
    /// Threads that wait, in order. Not empty while the lock is requested.
    waiting: VecDeque<ThreadNumber>,
    /// The node to which the lock goes next, and the notices of this node that it has applied.
    next: Option<(Rank, u64)>,
}

/// What a change of a lock asks of the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LockStep {
    /// Nothing.
    None,
    /// To request the lock of its manager.
    Request,
    /// To let the thread go on: it holds the lock.
    Granted(ThreadNumber),
    /// To end the interval, and then to pass the lock on.
    HandOver,
}

/// A lock that leaves the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Leave {
    /// The next node.
    pub(crate) to: Rank,
    /// The position up to which the next node has applied this node's notices.
    pub(crate) known: u64,
    /// Whether threads of this node wait, so that the lock must be requested again.
    pub(crate) is_wanted: bool,
}

/// The caller's fault, or a message that does not fit the state of the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unfit;

/// The locks that a node has ever used, by address.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    by_address: BTreeMap<u64, Lock>,
}

//= dsm-protocol.md: lock.3
impl LockTable {
    /// Returns whether the thread holds the lock.
    pub(crate) fn is_held(&self, address: u64, thread: ThreadNumber) -> bool {
        self.by_address.get(&address).is_some_and(|lock| lock.holder == Some(thread))
    }

    /// Returns the thread of this node that holds the lock.
    pub(crate) fn holder(&self, address: u64) -> Option<ThreadNumber> {
        self.by_address.get(&address)?.holder
    }

    /// Returns a lock that a thread of this node holds and others want: its address, the thread, and
    /// the node that waits, if one does.
    pub(crate) fn wanted(&self) -> Option<(u64, ThreadNumber, Option<Rank>)> {
        self.by_address.iter().find_map(|(address, lock)| {
            let holder = lock.holder?;
            let next = lock.next.map(|(rank, _)| rank);
            (next.is_some() || !lock.waiting.is_empty()).then_some((*address, holder, next))
        })
    }

    /// Returns whether another node waits for the lock, which is here or comes here first.
    pub(crate) fn is_awaited(&self, address: u64) -> bool {
        self.by_address.get(&address).is_some_and(|lock| lock.next.is_some())
    }

    /// Returns the lock for which a thread of this node waits.
    pub(crate) fn wanted_by(&self, thread: ThreadNumber) -> Option<u64> {
        let mut locks = self.by_address.iter();
        let (address, _) = locks.find(|(_, lock)| lock.waiting.contains(&thread))?;
        Some(*address)
    }

    /// Handles a thread that wants the lock.
    pub(crate) fn lock(&mut self, address: u64, thread: ThreadNumber) -> LockStep {
        let lock = self.by_address.entry(address).or_default();
        if lock.possession == Possession::Here && lock.holder.is_none() {
            lock.holder = Some(thread);
            return LockStep::Granted(thread);
        }
        lock.waiting.push_back(thread);
        if lock.possession != Possession::Elsewhere {
            return LockStep::None;
        }
        lock.possession = Possession::Requested;
        LockStep::Request
    }

    /// Handles a thread that releases the lock. A waiting node precedes waiting threads of this
    /// node, because otherwise busy threads here could keep the lock for ever.
    pub(crate) fn unlock(&mut self, address: u64, thread: ThreadNumber) -> Result<LockStep, Unfit> {
        let lock = self.by_address.get_mut(&address).ok_or(Unfit)?;
        if lock.holder != Some(thread) {
            return Err(Unfit);
        }
        lock.holder = None;
        if lock.next.is_some() {
            lock.possession = Possession::Leaving;
            return Ok(LockStep::HandOver);
        }
        lock.holder = lock.waiting.pop_front();
        Ok(lock.holder.map_or(LockStep::None, LockStep::Granted))
    }

    /// Handles the manager's message that the node `to` is next, which has applied the notices of
    /// this node up to `known`.
    pub(crate) fn forwarded(
        &mut self,
        address: u64,
        to: Rank,
        known: u64,
    ) -> Result<LockStep, Unfit> {
        let lock = self.by_address.get_mut(&address).ok_or(Unfit)?;
        let has_or_awaits = matches!(lock.possession, Possession::Here | Possession::Requested);
        if lock.next.is_some() || !has_or_awaits {
            return Err(Unfit);
        }
        lock.next = Some((to, known));
        if lock.possession == Possession::Requested || lock.holder.is_some() {
            return Ok(LockStep::None);
        }
        lock.possession = Possession::Leaving;
        Ok(LockStep::HandOver)
    }

    /// Handles the arrival of the lock. Returns the thread that holds it now.
    pub(crate) fn arrived(&mut self, address: u64) -> Result<ThreadNumber, Unfit> {
        let lock = self.by_address.get_mut(&address).ok_or(Unfit)?;
        if lock.possession != Possession::Requested {
            return Err(Unfit);
        }
        let thread = lock.waiting.pop_front().ok_or(Unfit)?;
        lock.possession = Possession::Here;
        lock.holder = Some(thread);
        Ok(thread)
    }

    /// Passes a lock on that is leaving.
    pub(crate) fn pass_on(&mut self, address: u64) -> Option<Leave> {
        let lock = self.by_address.get_mut(&address)?;
        let (to, known) = lock.next.take()?;
        let is_wanted = !lock.waiting.is_empty();
        lock.possession = if is_wanted { Possession::Requested } else { Possession::Elsewhere };
        Some(Leave { to, known, is_wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: u64 = 64;
    const ONE: ThreadNumber = ThreadNumber(1);
    const TWO: ThreadNumber = ThreadNumber(2);

    fn held_by_one() -> LockTable {
        let mut table = LockTable::default();
        assert_eq!(table.lock(LOCK, ONE), LockStep::Request);
        assert_eq!(table.arrived(LOCK), Ok(ONE));
        table
    }

    //= dsm-protocol.md: lock.3
    #[test]
    fn a_lock_stays_until_another_node_wants_it() {
        let mut table = held_by_one();
        assert_eq!(table.unlock(LOCK, ONE), Ok(LockStep::None));
        assert_eq!(table.lock(LOCK, TWO), LockStep::Granted(TWO));
        assert!(!table.is_awaited(LOCK));
        assert_eq!(table.forwarded(LOCK, Rank(3), 5), Ok(LockStep::None));
        assert!(table.is_awaited(LOCK));
        assert_eq!(table.unlock(LOCK, TWO), Ok(LockStep::HandOver));
        assert_eq!(table.lock(LOCK, ONE), LockStep::None);
        assert_eq!(table.pass_on(LOCK), Some(Leave { to: Rank(3), known: 5, is_wanted: true }));
        assert!(!table.is_awaited(LOCK));
        assert_eq!(table.arrived(LOCK), Ok(ONE));
    }

    #[test]
    fn an_unheld_lock_leaves_at_once() {
        let mut table = held_by_one();
        assert_eq!(table.unlock(LOCK, ONE), Ok(LockStep::None));
        assert_eq!(table.forwarded(LOCK, Rank(3), 5), Ok(LockStep::HandOver));
        assert_eq!(table.pass_on(LOCK), Some(Leave { to: Rank(3), known: 5, is_wanted: false }));
        assert_eq!(table.lock(LOCK, ONE), LockStep::Request);
    }

    #[test]
    fn only_the_holder_unlocks() {
        let mut table = held_by_one();
        assert_eq!(table.unlock(LOCK, TWO), Err(Unfit));
        assert!(table.unlock(LOCK, ONE).is_ok());
        assert_eq!(table.unlock(LOCK, ONE), Err(Unfit));
        assert_eq!(table.unlock(8, ONE), Err(Unfit));
    }

    #[test]
    fn messages_that_do_not_fit_are_refused() {
        let mut table = held_by_one();
        assert_eq!(table.arrived(LOCK), Err(Unfit));
        assert_eq!(table.arrived(8), Err(Unfit));
        assert_eq!(table.forwarded(8, Rank(0), 5), Err(Unfit));
        assert!(table.forwarded(LOCK, Rank(3), 5).is_ok());
        assert_eq!(table.forwarded(LOCK, Rank(4), 5), Err(Unfit));
    }
}
