//! Work completions and the queue they go to.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::OperationError;

/// What an application learns when an operation, a receive or a notification is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The value the application gave when it posted; 0 for a notification.
    pub context: u64,
    /// Index of the connection at its endpoint.
    pub connection: u32,
    /// What finished.
    pub kind: CompletionKind,
    /// How it ended.
    pub result: Result<(), OperationError>,
    /// Bytes written, read, sent, received or notified about.
    pub bytes: u32,
    /// The immediate value that came from the peer with a message or notification.
    pub immediate: Option<u32>,
    /// Atomics: what the memory held before. Notification: the address written to. Else 0.
    pub value: u64,
}

/// What finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A remote write: every byte is in the peer's memory.
    Write,
    /// A remote read: every byte is in local memory.
    Read,
    /// A remote fetch-and-add.
    FetchAdd,
    /// A remote compare-and-swap.
    CompareSwap,
    /// A send: the peer's receive is complete.
    Send,
    /// A posted receive: a message is in it.
    Receive,
    /// The peer wrote here and asked that we be told (`MultiEdge`'s notification).
    Notification,
}

/// A bounded queue of completions: the engine fills it, any thread empties it.
///
/// Every posted operation and receive reserves its place when posted, so that the engine never
/// finds the queue full; notifications, which nobody posts, wait at the engine until there is room.
/// Operations of which a handle tells reserve none unless they are signalled.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: ArrayQueue<Completion>,
    /// The one endpoint that fills it; 0 if none has yet.
    owner: AtomicU64,
    /// Places promised to operations that are not complete yet. Changed only by the engine.
    reserved: AtomicUsize,
    /// Places known to be neither taken nor promised; there may be more, as the consumer makes room.
    /// Looking at the ring costs more than all the rest. Changed only by the engine.
    free: AtomicUsize,
}

impl CompletionQueue {
    /// A queue of at most `capacity` completions (at least 1).
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: ArrayQueue::new(capacity.max(1)),
            owner: AtomicU64::new(0),
            reserved: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
        }
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Completion> {
        self.ring.pop()
    }

    /// Completions that wait to be polled.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether nothing waits to be polled.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Most completions the queue holds, promised places included.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Takes the queue for the endpoint `owner`, a number not 0. False if it is that of another: places are
    /// promised by one engine at a time, and those of two endpoints would promise the same.
    #[must_use]
    pub fn claim(&self, owner: u64) -> bool {
        let claimed = self.owner.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(owner)
    }

    /// Whether another endpoint than `owner` fills it.
    #[inline]
    pub fn is_foreign_to(&self, owner: u64) -> bool {
        ![0, owner].contains(&self.owner.load(Ordering::Relaxed))
    }

    /// Promises one place; false when all are taken or promised.
    #[inline]
    pub fn reserve(&self) -> bool {
        let reserved = self.reserved.load(Ordering::Relaxed);
        let mut free = self.free.load(Ordering::Relaxed);
        if free == 0 {
            // The consumer only ever makes more room, so a stale length errs on the safe side.
            free = self.ring.capacity().saturating_sub(self.ring.len() + reserved);
        }
        let promised = free > 0;
        self.free.store(free.saturating_sub(1), Ordering::Relaxed);
        self.reserved.store(reserved + usize::from(promised), Ordering::Relaxed);
        promised
    }

    /// Gives a promised place back unused.
    #[inline]
    pub fn release(&self) {
        self.take_promise();
        let free = self.free.load(Ordering::Relaxed);
        self.free.store(free + 1, Ordering::Relaxed);
    }

    /// Fills a promised place.
    #[inline]
    pub fn fill(&self, completion: Completion) {
        self.take_promise();
        let pushed = self.ring.push(completion);
        assert!(pushed.is_ok(), "a promised completion place was taken");
    }

    /// Adds a completion nobody was promised a place for; false when there is none left. Only for
    /// the thread inside the engine.
    pub fn offer(&self, completion: Completion) -> bool {
        self.reserve() && {
            self.fill(completion);
            true
        }
    }

    #[inline]
    fn take_promise(&self) {
        let reserved = self.reserved.load(Ordering::Relaxed);
        assert!(reserved > 0, "a completion place is used that nobody was promised");
        self.reserved.store(reserved - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: Completion = Completion {
        context: 0,
        connection: 0,
        kind: CompletionKind::Notification,
        result: Ok(()),
        bytes: 0,
        immediate: None,
        value: 0,
    };

    #[test]
    fn one_endpoint_alone_takes_a_queue() {
        let queue = CompletionQueue::new(1);
        assert!(!queue.is_foreign_to(7));
        assert!(queue.claim(7) && queue.claim(7) && !queue.claim(8));
        assert!(!queue.is_foreign_to(7) && queue.is_foreign_to(8));
    }

    #[test]
    fn a_promised_place_is_never_given_to_a_notification() {
        let queue = CompletionQueue::new(2);
        assert!(queue.reserve());
        assert!(queue.offer(NOTE));
        assert!(!queue.offer(NOTE));
        queue.fill(Completion { context: 7, ..NOTE });
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.poll().map(|c| c.context), Some(0));
        assert!(queue.offer(NOTE));
    }
}
