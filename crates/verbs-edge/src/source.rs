//! Where the engine takes the work of a connected queue pair from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use delivery::Instant;
use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, ProtectionDomain};
use runtime::{Bell, Posted, Rest, WorkSource};
use semantics::{OPERATION_SHARE, Owner, PostingRoom};
use verbs::{Ending, QueuePair};

use super::draining::Draining;
use super::limits::{QUEUE_PAIRS_MAX, WINDOW};
use super::work::{Ends, Outcome, post_receive, post_send};

/// Where the engine takes the work of a queue pair from.
pub(crate) struct Source {
    queue_pair: Arc<QueuePair>,
    domain: ProtectionDomain,
    bell: Bell,
    /// When the connection table looks for peers.
    due: Arc<Due>,
    /// Owners of the connections; [`NOBODY`] if there is none.
    sends: AtomicU64,
    receives: AtomicU64,
    /// Since when there is work and no peer for it; [`NEVER`] if that is not so.
    waits_since_ns: AtomicU64,
    /// When sends were last handed to the engine.
    handed_at_ns: AtomicU64,
    /// Its peer has said that it is not there.
    is_refused: AtomicBool,
    /// Its connection has ended, and there will be no other before it is in RESET again.
    has_ended: AtomicBool,
    /// The queue pair waits until no work is in flight any more.
    draining: Draining,
}

impl Source {
    pub(crate) fn new(
        queue_pair: &Arc<QueuePair>,
        domain: ProtectionDomain,
        due: &Arc<Due>,
    ) -> Self {
        Self {
            queue_pair: Arc::clone(queue_pair),
            domain,
            bell: Bell::new(),
            due: Arc::clone(due),
            sends: AtomicU64::new(NOBODY),
            receives: AtomicU64::new(NOBODY),
            waits_since_ns: AtomicU64::new(NEVER),
            handed_at_ns: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            draining: Draining::default(),
        }
    }

    /// Whose work it is.
    pub(crate) const fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.queue_pair
    }

    /// What its connections reach.
    pub(crate) const fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    /// It is connected.
    pub(crate) fn set_ends(&self, ends: Ends) {
        self.waits_since_ns.store(NEVER, Ordering::Relaxed);
        self.has_ended.store(false, Ordering::Relaxed);
        self.receives.store(ends.receives.owner().bits(), Ordering::Relaxed);
        self.sends.store(ends.sends.owner().bits(), Ordering::Relaxed);
    }

    /// The connection takes receives, but is not established yet.
    pub(crate) fn set_receives(&self, connection: ConnectionHandle) {
        self.has_ended.store(false, Ordering::Relaxed);
        self.receives.store(connection.owner().bits(), Ordering::Relaxed);
    }

    /// It is not, or no more; whether for good, as far as this life of the queue pair goes.
    pub(crate) fn clear_ends(&self, has_ended: bool) {
        self.sends.store(NOBODY, Ordering::Relaxed);
        self.receives.store(NOBODY, Ordering::Relaxed);
        self.waits_since_ns.store(NEVER, Ordering::Relaxed);
        self.has_ended.store(has_ended, Ordering::Relaxed);
    }

    /// Since when work waits for a peer.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        let since_ns = self.waits_since_ns.load(Ordering::Relaxed);
        (since_ns != NEVER).then_some(Instant(since_ns))
    }

    /// The peer has said whether it is there.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Whether work waits for a peer that may be found in a moment.
    pub(crate) fn awaits_peer(&self, now: Instant) -> bool {
        let waits = || self.waits_since().is_some_and(|since| now.since_ns(since) < MEETING_NS);
        handle(&self.sends).is_none() && !self.is_refused.load(Ordering::Relaxed) && waits()
    }

    /// Notes that work waits for a peer from now on, if it does and that is not noted.
    pub(crate) fn note_waiting(&self, now: Instant) {
        if self.waits_since().is_none() && self.queue_pair.next_send().is_some() {
            self.waits_since_ns.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether the peer has acknowledged all that was sent, or has been silent for [`LINGER_NS`] since the last of it: a
    /// queue pair whose peer does not answer is closed without delay. A peer that is not found yet may be soon.
    pub(crate) fn is_acknowledged(&self, engine: &Engine, now: Instant) -> bool {
        if self.awaits_peer(now) {
            return false;
        }
        let handed_at = Instant(self.handed_at_ns.load(Ordering::Relaxed));
        let is_outstanding = handle(&self.sends).is_some_and(|sends| engine.outstanding(sends) > 0);
        !is_outstanding || now.since_ns(handed_at) >= LINGER_NS
    }

    /// Asks for a check whether work is still in flight.
    pub(crate) fn drain(&self) {
        self.draining.begin();
    }

    /// Posts receives, then sends.
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
        let is_under_way = || sends.is_some_and(|sends| engine.outstanding(sends) > 0);
        self.draining.look(&self.queue_pair, &mut posted, is_under_way);
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
                // One of those that are posted makes room.
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
            // What cannot begin waits here, where it holds up no other queue pair.
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

    /// There is no peer yet to which work could go, or none any more. The table of connections asks for it when the peer is found.
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

impl WorkSource for Source {
    fn bell(&self) -> &Bell {
        &self.bell
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

/// When the connection table looks at its queue pairs next.
#[derive(Debug)]
pub(crate) struct Due(AtomicU64);

impl Due {
    /// Not before it is asked to.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Has it look at `at`, unless it does earlier.
    pub(crate) fn ask(&self, at: Instant) {
        self.0.fetch_min(at.0, Ordering::Relaxed);
    }

    /// Returns the time of the next look.
    pub(crate) fn next(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }

    /// It looks now.
    pub(crate) fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// The connection of an owner, if it is one.
fn handle(owner: &AtomicU64) -> Option<ConnectionHandle> {
    let bits = owner.load(Ordering::Relaxed);
    (bits != NOBODY).then(|| ConnectionHandle::of(Owner::new(bits as u32, (bits >> 32) as u32)))
}

const _: () = assert!(WINDOW > OPERATION_SHARE);

// What all queue pairs of a device hold if each waits for its peer.
const _: () = assert!(QUEUE_PAIRS_MAX as usize * semantics::SHARE_BYTES <= 64 << 20);

/// For how long after its last send a queue pair that is closed waits for acknowledgements: many round trips of a network,
/// and as long as the peer's process may wait for its processor. Of many that are closed one after the other the first waits.
const LINGER_NS: u64 = 20_000_000;

/// For how long after its first send a queue pair that is closed waits for its peer to be found. An adapter would have sent
/// it at once, to a peer that is ready: here the two ends greet each other first, which is some round trips.
const MEETING_NS: u64 = 50_000_000;

/// The owner of no connection.
const NOBODY: u64 = u64::MAX;

const NEVER: u64 = u64::MAX;
