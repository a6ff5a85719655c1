//! Work sources of connected queue pairs. The engine pulls work requests from a work source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use delivery::Instant;
use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, ProtectionDomain};
use runtime::{Posted, Rest, SourceDoorbell, WorkSource};
use semantics::{OPERATION_SHARE, Owner, PostingRoom};
use verbs::{Ending, QueuePair};

use super::draining::Draining;
use super::limits::{QUEUE_PAIRS_MAX, WINDOW};
use super::work::{Ends, Outcome, post_receive, post_send};

/// The source from which the engine pulls the work of a queue pair.
pub(crate) struct QueuePairSource {
    queue_pair: Arc<QueuePair>,
    domain: ProtectionDomain,
    doorbell: SourceDoorbell,
    /// Time at which the timers of the connection table must run next.
    due: Arc<Due>,
    /// `sends` identifies the connection for sends, and `receives` identifies the connection for
    /// receives. The values are the bits of completion owners. [`NO_OWNER`] if there is no such
    /// connection.
    sends: AtomicU64,
    receives: AtomicU64,
    /// Time in nanoseconds since which work waits for a peer; [`NEVER`] if no work waits.
    waits_since_ns: AtomicU64,
    /// Time in nanoseconds at which sends were last passed to the engine.
    handed_at_ns: AtomicU64,
    /// Whether the peer has rejected the last request.
    is_refused: AtomicBool,
    /// Whether the connection has ended. If so, the queue pair gets no connection until the program
    /// resets it.
    has_ended: AtomicBool,
    /// Whether the queue pair waits until no send is in flight.
    draining: Draining,
}

impl QueuePairSource {
    pub(crate) fn new(
        queue_pair: &Arc<QueuePair>,
        domain: ProtectionDomain,
        due: &Arc<Due>,
    ) -> Self {
        Self {
            queue_pair: Arc::clone(queue_pair),
            domain,
            doorbell: SourceDoorbell::new(),
            due: Arc::clone(due),
            sends: AtomicU64::new(NO_OWNER),
            receives: AtomicU64::new(NO_OWNER),
            waits_since_ns: AtomicU64::new(NEVER),
            handed_at_ns: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            draining: Draining::default(),
        }
    }

    /// Returns the queue pair.
    pub(crate) const fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.queue_pair
    }

    /// Returns the protection domain that the connections of the queue pair may access.
    pub(crate) const fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    /// Sets the connections when the queue pair is connected.
    pub(crate) fn set_ends(&self, ends: Ends) {
        self.waits_since_ns.store(NEVER, Ordering::Relaxed);
        self.has_ended.store(false, Ordering::Relaxed);
        self.receives.store(ends.receives.owner().bits(), Ordering::Relaxed);
        self.sends.store(ends.sends.owner().bits(), Ordering::Relaxed);
    }

    /// Sets the connection for receives before this connection is established.
    pub(crate) fn set_receives(&self, connection: ConnectionHandle) {
        self.has_ended.store(false, Ordering::Relaxed);
        self.receives.store(connection.owner().bits(), Ordering::Relaxed);
    }

    /// Removes the connections. If `has_ended` is true, the queue pair gets no connection until the
    /// program resets it.
    pub(crate) fn clear_ends(&self, has_ended: bool) {
        self.sends.store(NO_OWNER, Ordering::Relaxed);
        self.receives.store(NO_OWNER, Ordering::Relaxed);
        self.waits_since_ns.store(NEVER, Ordering::Relaxed);
        self.has_ended.store(has_ended, Ordering::Relaxed);
    }

    /// Returns the time since which work waits for a peer; `None` if no work waits.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        let since_ns = self.waits_since_ns.load(Ordering::Relaxed);
        (since_ns != NEVER).then_some(Instant(since_ns))
    }

    /// Records whether the peer has rejected the last request.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Returns whether work waits for a peer that may soon be found.
    pub(crate) fn awaits_peer(&self, now: Instant) -> bool {
        let waits = || self.waits_since().is_some_and(|since| now.since_ns(since) < MEETING_NS);
        handle(&self.sends).is_none() && !self.is_refused.load(Ordering::Relaxed) && waits()
    }

    /// Records that work waits for the peer since `now`. Has no effect if no work waits or a time
    /// is already recorded.
    pub(crate) fn note_waiting(&self, now: Instant) {
        if self.waits_since().is_none() && self.queue_pair.next_send().is_some() {
            self.waits_since_ns.store(now.0, Ordering::Relaxed);
        }
    }

    /// Returns whether a closing queue pair may close now. If work waits for a peer that may soon
    /// be found, returns false. Otherwise returns true in these cases:
    /// * The peer has acknowledged all sends.
    /// * More than [`LINGER_NS`] have passed since the last send.
    pub(crate) fn is_acknowledged(&self, engine: &Engine, now: Instant) -> bool {
        if self.awaits_peer(now) {
            return false;
        }
        let handed_at = Instant(self.handed_at_ns.load(Ordering::Relaxed));
        let is_outstanding = handle(&self.sends).is_some_and(|sends| engine.outstanding(sends) > 0);
        !is_outstanding || now.since_ns(handed_at) >= LINGER_NS
    }

    /// Requests that the queue pair is notified as soon as no send is in flight.
    pub(crate) fn drain(&self) {
        self.draining.begin();
    }

    /// Passes receives and then sends to the engine.
    pub(crate) fn pull(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted {
        let (sends, receives) = (handle(&self.sends), handle(&self.receives));
        let mut posted = Posted { count: 0, rest: Rest::Nothing };
        if let Some(receives) = receives {
            self.pull_receives(engine, memory, receives, limit, &mut posted);
        }
        match sends.zip(receives) {
            Some((sends, receives)) => {
                let before = posted.count;
                self.pull_sends(engine, memory, Ends { sends, receives }, limit, &mut posted);
                if posted.count > before {
                    self.handed_at_ns.store(now.0, Ordering::Relaxed);
                }
            }
            None => self.wait_for_peer(now),
        }
        let is_outstanding = || sends.is_some_and(|sends| engine.outstanding(sends) > 0);
        self.draining.look(&self.queue_pair, &mut posted, is_outstanding);
        posted
    }

    fn pull_receives(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        limit: u32,
        posted: &mut Posted,
    ) {
        for _ in 0..limit {
            let Some(receive) = self.queue_pair.next_receive() else { return };
            match post_receive(engine, memory, handle, self.domain, &receive) {
                Outcome::Posted => {}
                // Request a wake-up for the next receive that completes, because it makes room.
                Outcome::NoRoom => return engine.await_room(handle),
                Outcome::Over => return,
            }
            drop(receive);
            self.queue_pair.receive_taken();
            posted.count += 1;
        }
        posted.rest = Rest::More;
    }

    fn pull_sends(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        ends: Ends,
        limit: u32,
        posted: &mut Posted,
    ) {
        let PostingRoom { mut outstanding, mut credit, window } = engine.posting_room(ends.sends);
        for _ in 0..limit {
            let Some(send) = self.queue_pair.next_send() else { return };
            // A send that cannot begin stays in the queue pair's ring, because it could delay other
            // queue pairs in the engine.
            let window = if credit < 0 { OPERATION_SHARE } else { window.min(WINDOW) };
            if outstanding >= window {
                return engine.await_room(ends.sends);
            }
            let takes_receive = send.opcode().takes_receive();
            match post_send(engine, memory, ends, self.domain, &send) {
                Outcome::Posted => {}
                Outcome::NoRoom if outstanding > 0 => return engine.await_room(ends.sends),
                Outcome::NoRoom => return posted.rest = Rest::Blocked,
                Outcome::Over => return,
            }
            drop(send);
            self.queue_pair.send_taken();
            posted.count += 1;
            outstanding += 1;
            credit -= i32::from(takes_receive);
        }
        if self.queue_pair.next_send().is_some() {
            posted.rest = Rest::More;
        }
    }

    /// Handles sends of a queue pair without a connection. If the connection has ended, reports
    /// that the peer is gone. Otherwise records that work waits. The connection table pulls this
    /// work when the peer is found.
    #[cold]
    fn wait_for_peer(&self, now: Instant) {
        if self.queue_pair.next_send().is_none() {
            return;
        }
        if self.has_ended.load(Ordering::Relaxed) {
            return self.queue_pair.on_ended(Ending::Unreachable);
        }
        if self.waits_since().is_none() {
            self.note_waiting(now);
            self.due.ask(now);
        }
    }
}

impl WorkSource for QueuePairSource {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        self.queue_pair.is_idle()
    }

    fn is_urgent(&self) -> bool {
        self.queue_pair.has_first_send()
    }

    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted {
        self.pull(engine, memory, now, limit)
    }
}

/// Holds the time at which the timers of the connection table must run next.
#[derive(Debug)]
pub(crate) struct Due(AtomicU64);

impl Due {
    /// Creates a value which means that the timers need not run.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Requests that the timers run at time `at` or earlier.
    pub(crate) fn ask(&self, at: Instant) {
        self.0.fetch_min(at.0, Ordering::Relaxed);
    }

    /// Returns the time at which the timers must run next.
    pub(crate) fn next(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }

    /// Clears the time, because the caller is about to run the timers.
    pub(crate) fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// Returns the connection of an owner. Returns `None` for [`NO_OWNER`].
fn handle(owner: &AtomicU64) -> Option<ConnectionHandle> {
    let bits = owner.load(Ordering::Relaxed);
    (bits != NO_OWNER).then(|| ConnectionHandle::of(Owner::new(bits as u32, (bits >> 32) as u32)))
}

const _: () = assert!(WINDOW > OPERATION_SHARE);

// With this bound, the engine's memory for operations stays below 64 MiB even if all queue pairs of
// a device wait for receives of their peers.
const _: () = assert!(QUEUE_PAIRS_MAX as usize * semantics::SHARE_BYTES <= 64 << 20);

/// Time for which a closing queue pair waits for acknowledgements after its last send, in
/// nanoseconds. The time is many round trips long, because the peer's process may wait about this
/// long for its processor. If many queue pairs close one after another, only the first of them
/// waits this long.
const LINGER_NS: u64 = 20_000_000;

/// Time for which a closing queue pair waits until its peer is found, counted from its first send,
/// in nanoseconds. A network adapter would send the work at once to a peer that is ready. Here, the
/// two ends first exchange greetings, which takes some round trips.
const MEETING_NS: u64 = 50_000_000;

/// Value of an owner field if there is no connection.
const NO_OWNER: u64 = u64::MAX;

const NEVER: u64 = u64::MAX;
