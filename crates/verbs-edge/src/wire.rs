//! The wire of a reliable or unreliable connection: what a queue pair calls, and where the engine takes its work from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use delivery::Instant;
use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, ProtectionDomain};
use runtime::{Bell, Posted, Rest, WorkSource};
use semantics::{OPERATION_SHARE, Owner, PostingRoom};
use verbs::{Ending, Error, Gid, QueuePair, Wire};

use super::desk::Desk;
use super::draining::Draining;
use super::instance::Instance;
use super::work::{Ends, Outcome, post_receive, post_send};

/// Where the engine takes the work of a queue pair from.
pub(crate) struct Source {
    queue_pair: Arc<QueuePair>,
    domain: ProtectionDomain,
    bell: Bell,
    desk: Arc<Desk>,
    /// Owners of the connections; [`NOBODY`] if there is none.
    sends: AtomicU64,
    receives: AtomicU64,
    /// Since when there is work and nobody to whom it could go; [`NEVER`] if that is not so.
    waits_since_ns: AtomicU64,
    /// When sends were last handed to the engine.
    handed_at_ns: AtomicU64,
    /// Its peer has said that it is not there.
    is_refused: AtomicBool,
    /// Its connection has ended, and there will be no other before it is in RESET again.
    has_ended: AtomicBool,
    /// The queue pair wants to know when nothing is under way any more.
    draining: Draining,
}

impl Source {
    pub(crate) fn new(
        queue_pair: &Arc<QueuePair>,
        domain: ProtectionDomain,
        desk: &Arc<Desk>,
    ) -> Self {
        Self {
            queue_pair: Arc::clone(queue_pair),
            domain,
            bell: Bell::new(),
            desk: Arc::clone(desk),
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
    fn is_acknowledged(&self, engine: &Engine, now: Instant) -> bool {
        if self.awaits_peer(now) {
            return false;
        }
        let handed_at = Instant(self.handed_at_ns.load(Ordering::Relaxed));
        let is_outstanding = handle(&self.sends).is_some_and(|sends| engine.outstanding(sends) > 0);
        !is_outstanding || now.since_ns(handed_at) >= LINGER_NS
    }

    /// Has it asked whether work is still under way.
    fn drain(&self) {
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

    /// There is no peer yet to which work could go, or none any more. The desk asks for it when the peer is found.
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
            self.desk.look_soon(now);
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

/// What a queue pair calls.
pub(crate) struct ConnectedWire {
    instance: Arc<Instance>,
    source: Arc<Source>,
    /// The same, as the runtime knows it.
    rung: Arc<dyn WorkSource>,
}

impl ConnectedWire {
    pub(crate) fn new(instance: &Arc<Instance>, source: Source) -> Self {
        let source = Arc::new(source);
        let rung = Arc::clone(&source);
        instance.desk().enter(&source);
        Self { instance: Arc::clone(instance), source, rung }
    }

    fn number(&self) -> u32 {
        self.source.queue_pair.number()
    }

    /// Has work looked for. In a forked child there is none.
    fn look(&self) {
        let _forked = self.instance.runtime().ring(&self.rung);
    }
}

impl Wire for ConnectedWire {
    fn open(&self) -> Result<(), Error> {
        self.instance.check()
    }

    fn connect(&self) -> Result<(), Error> {
        let number = self.number();
        let wanted = self.instance.wanted(&self.source)?;
        self.instance.at_desk(move |desk, engine, memory, now| {
            desk.seek(engine, memory, now, number, wanted);
        })
    }

    fn update(&self) -> Result<(), Error> {
        let number = self.number();
        self.instance.at_desk(move |desk, engine, _, now| desk.update(engine, now, number))
    }

    fn ring(&self) {
        self.look();
    }

    fn receives(&self) {
        self.look();
    }

    fn drain(&self) {
        self.source.drain();
        self.look();
    }

    fn send_out(&self) {
        // In a forked child nothing is sent.
        if self.instance.runtime().send_out(&self.rung).is_err() {
            return;
        }
        // A Close on one link may overtake frames on another. A frame may be lost.
        let source = Arc::clone(&self.source);
        let is_acknowledged = move |_: &Desk, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
            source.is_acknowledged(engine, now)
        };
        let mut is_done = false;
        while !is_done {
            self.instance.wait(&mut || {
                is_done = self.instance.at_desk(is_acknowledged.clone()) != Ok(false);
                is_done
            });
            // What was put off since is not sent otherwise.
            is_done |= self.instance.runtime().send_out(&self.rung).is_err();
        }
    }

    fn close(&self) {
        let number = self.number();
        let close = move |desk: &Desk, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
            desk.close(engine, now, number);
        };
        // In a forked child there is nothing to close.
        let _forked = self.instance.at_desk(close);
    }

    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Err(Error::Invalid("only datagram queue pairs are in groups".into()))
    }
}

impl Drop for ConnectedWire {
    fn drop(&mut self) {
        let number = self.number();
        let leave = move |desk: &Desk, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
            desk.leave(engine, now, number);
        };
        // In a forked child there is nothing to leave.
        let _forked = self.instance.at_desk(leave);
    }
}

/// The connection of an owner, if it is one.
fn handle(owner: &AtomicU64) -> Option<ConnectionHandle> {
    let bits = owner.load(Ordering::Relaxed);
    (bits != NOBODY).then(|| ConnectionHandle::of(Owner::new(bits as u32, (bits >> 32) as u32)))
}

/// Work requests of a queue pair under way in the engine: the ring of the queue pair is the queue. If the peer lacks
/// receives, it is [`OPERATION_SHARE`], which each connection gets in any case.
pub(super) const WINDOW: u32 = 256;

const _: () = assert!(WINDOW > OPERATION_SHARE);

// What all queue pairs of a device hold if each waits for its peer.
const _: () = assert!(crate::limits::QUEUE_PAIRS_MAX as usize * semantics::SHARE_BYTES <= 64 << 20);

/// For how long after its last send a queue pair that is closed waits for acknowledgements: many round trips of a network,
/// and as long as the peer's process may wait for its processor. Of many that are closed one after the other the first waits.
const LINGER_NS: u64 = 20_000_000;

/// For how long after its first send a queue pair that is closed waits for its peer to be found. An adapter would have sent
/// it at once, to a peer that is ready: here the two ends greet each other first, which is some round trips.
const MEETING_NS: u64 = 50_000_000;

/// The owner of no connection.
const NOBODY: u64 = u64::MAX;

const NEVER: u64 = u64::MAX;
