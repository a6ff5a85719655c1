//! Completion queues.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use work::{Arm, Completion, CompletionStatus, Owner};

use crate::acknowledged::Unacknowledged;
use crate::async_event::{AsyncEventKind, EventElement};
use crate::attributes::Strictness;
use crate::completion_channel::CompletionChannel;
use crate::device::Context;
use crate::error::Error;
use crate::queue_pair::{QueuePair, Side};
use crate::registry::Registry;
use crate::uses::Uses;
use crate::work_request::WorkCompletion;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    this: Weak<Self>,
    context: Arc<Context>,
    channel: Option<Arc<CompletionChannel>>,
    uses: Uses,
    /// The queue to which the device adds completions.
    work: Arc<work::CompletionQueue>,
    /// Number of entries that the program asked for.
    entries: AtomicU32,
    /// Number of places in addition to `entries`. They are for completions that the device adds but
    /// the program does not receive.
    unreported_sends: AtomicU32,
    polling: Mutex<Polling>,
    /// Queue pairs that may have work to flush, each with the queue of work ([`Side`]) to flush.
    flushing: Mutex<VecDeque<(Arc<QueuePair>, Side)>>,
    flushing_count: AtomicUsize,
    /// If the program has requested an event, the [`Arm`] value as a number; otherwise 0.
    armed: AtomicU8,
    has_reported_overrun: AtomicBool,
    /// Whether all attached queue pairs were moved to ERR because this queue has overrun.
    has_failed_all: AtomicBool,
    /// The queue pairs that use this queue, by queue pair number.
    attached: Mutex<HashMap<u32, Weak<QueuePair>>>,
    /// Whether the queue overruns as soon as the number of completions for the program exceeds the
    /// number of entries that the program asked for. If false, the queue may have room for more.
    is_strict: bool,
    completion_events: Unacknowledged,
    async_events: Unacknowledged,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

/// State that is used while polling. The poll lock, `CompletionQueue::polling`, protects it.
#[derive(Debug, Default)]
struct Polling {
    /// Cache of the queue pairs of recent completions. The owner in a completion
    /// (`CompletionOwner`) identifies the queue pair. The low bits of the owner's index are the
    /// position of the entry in this cache.
    known: [Option<Known>; KNOWN],
    /// Completions that were moved out of `CompletionQueue::work` but not yet returned to the
    /// program. All of them are older than the completions in that queue.
    backlog: VecDeque<WorkCompletion>,
    /// Number of completions that an event has reported but the program has not polled. These are
    /// the oldest completions of the queue.
    reported: usize,
    /// Whether completions carry the time at which they arrived.
    is_stamped: bool,
}

/// A guard that holds the poll lock of a queue.
struct PollingGuard<'a> {
    polling: MutexGuard<'a, Polling>,
    queue: &'a CompletionQueue,
}

impl Deref for PollingGuard<'_> {
    type Target = Polling;

    #[inline]
    fn deref(&self) -> &Polling {
        &self.polling
    }
}

impl DerefMut for PollingGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Polling {
        &mut self.polling
    }
}

impl Drop for PollingGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.queue.is_strict {
            self.queue.work.set_kept(self.polling.backlog.len());
        }
    }
}

#[derive(Debug)]
struct Known {
    owner: Owner,
    version: u64,
    queue_pair: Arc<QueuePair>,
}

impl Polling {
    /// Dequeues the next completion for the program.
    #[inline]
    fn next(
        &mut self,
        work: &work::CompletionQueue,
        registry: &Registry,
    ) -> Option<WorkCompletion> {
        while let Some((completion, at_ns)) = self.poll(work) {
            if let Some(translated) = self.translate(registry, &completion) {
                return Some(WorkCompletion { at_ns, ..translated });
            }
        }
        None
    }

    /// Dequeues the next completion that the device has added, with its time of arrival. The time
    /// is 0 if the queue does not record times.
    #[inline]
    fn poll(&self, work: &work::CompletionQueue) -> Option<(Completion, u64)> {
        if self.is_stamped { work.poll_stamped() } else { Some((work.poll()?, 0)) }
    }

    #[inline]
    fn translate(
        &mut self,
        registry: &Registry,
        completion: &Completion,
    ) -> Option<WorkCompletion> {
        let version = registry.version();
        let owner = completion.owner;
        let known = self.known.get_mut(owner.index() as usize % KNOWN)?;
        if !known.as_ref().is_some_and(|last| last.owner == owner && last.version == version) {
            *known = Some(Known { owner, version, queue_pair: registry.find(owner)? });
        }
        known.as_ref()?.queue_pair.on_completion(completion, &mut self.backlog)
    }

    /// Moves completions from `work` to the backlog. Stops when the backlog has `count` entries or
    /// `work` is empty.
    fn keep(&mut self, count: usize, work: &work::CompletionQueue, registry: &Registry) {
        while self.backlog.len() < count
            && let Some((completion, at_ns)) = self.poll(work)
        {
            self.keep_one(registry, &completion, at_ns);
        }
    }

    fn keep_one(&mut self, registry: &Registry, completion: &Completion, at_ns: u64) {
        let more = self.backlog.len();
        if let Some(translated) = self.translate(registry, completion) {
            // The translation may have appended newer completions to the backlog. Insert this
            // completion before them.
            self.backlog.insert(more, WorkCompletion { at_ns, ..translated });
        }
    }

    /// Moves all completions from `work` to the backlog.
    fn absorb(&mut self, work: &work::CompletionQueue, registry: &Registry) {
        self.keep(usize::MAX, work, registry);
    }

    /// Returns the position in the backlog of the oldest completion that an event of type `what`
    /// must report and that no event has reported yet. Returns `None` if there is no such
    /// completion.
    fn unreported(&self, what: Arm) -> Option<usize> {
        let counts = |completion: &WorkCompletion| {
            what == Arm::Next
                || completion.is_solicited
                || completion.status != CompletionStatus::Success
        };
        let mut rest = self.backlog.iter().enumerate().skip(self.reported);
        rest.find(|(_, completion)| counts(completion)).map(|(position, _)| position)
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
        clock: Option<fn() -> u64>,
    ) -> Result<Arc<Self>, Error> {
        let attributes = context.device().attributes();
        check_entries(entries, attributes.completions_max)?;
        let max = attributes.completion_queues_max;
        context.begin("completion queues", max, |counts| &mut counts.completion_queues)?;
        let begun = channel.map_or(Ok(()), |channel| {
            if !Arc::ptr_eq(channel.context(), context) {
                return Err(Error::Invalid("the channel is of another context".into()));
            }
            channel.uses().begin_of("completion channel")
        });
        begun.inspect_err(|_| context.end(|counts| &mut counts.completion_queues))?;
        let places = entries as usize;
        let work = if channel.is_some() {
            work::CompletionQueue::with_events(places)
        } else {
            work::CompletionQueue::new(places)
        };
        let is_strict = attributes.strictness == Strictness::Strict;
        let registry = Arc::downgrade(context.provider().registry());
        let work = if is_strict {
            work.with_depth(places, move |completion| takes_place(&registry, completion))
        } else {
            work
        };
        let work = if let Some(clock) = clock { work.with_clock(clock) } else { work };
        let polling = Polling { is_stamped: clock.is_some(), ..Polling::default() };
        let made = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            context: Arc::clone(context),
            channel: channel.cloned(),
            uses: Uses::default(),
            work: Arc::new(work),
            entries: AtomicU32::new(entries),
            unreported_sends: AtomicU32::new(0),
            polling: Mutex::new(polling),
            flushing: Mutex::default(),
            flushing_count: AtomicUsize::new(0),
            armed: AtomicU8::new(0),
            has_reported_overrun: AtomicBool::new(false),
            has_failed_all: AtomicBool::new(false),
            attached: Mutex::default(),
            is_strict,
            completion_events: Unacknowledged::default(),
            async_events: Unacknowledged::default(),
            user: AtomicUsize::new(0),
        });
        context.provider().registry().add_queue(&made);
        Ok(made)
    }

    /// Returns the context that the queue belongs to.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the channel that receives the queue's events.
    pub const fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Returns the size of the queue: it has room for at least this number of completions.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Acquire)
    }

    /// Returns the queue to which the device adds completions.
    pub const fn work(&self) -> &Arc<work::CompletionQueue> {
        &self.work
    }

    /// Dequeues the oldest completions, at most `out.len()`, and returns their number. If the queue
    /// is empty, first drives the device, so that completions can arrive.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, Error> {
        let provider = self.context.provider();
        provider.check()?;
        let registry = provider.registry();
        let mut found = self.take(registry, out);
        if found == 0 {
            provider.drive();
            found = self.take(registry, out);
        }
        if found != 0 {
            provider.send_deferred();
        }
        if self.is_strict && self.work.is_overrun() {
            self.on_overrun();
        }
        Ok(found)
    }

    fn take(&self, registry: &Registry, out: &mut [WorkCompletion]) -> usize {
        let mut polling = self.lock_polling();
        let mut found = 0;
        for place in &mut *out {
            let old = if polling.backlog.is_empty() { None } else { polling.backlog.pop_front() };
            let Some(next) = old.or_else(|| polling.next(&self.work, registry)) else { break };
            *place = next;
            found += 1;
        }
        let is_flushing = self.flushing_count.load(Ordering::SeqCst) > 0;
        if is_flushing && let Some(room) = out.get_mut(found..).filter(|room| !room.is_empty()) {
            found += self.flush(&polling, room);
        }
        if polling.is_stamped {
            self.stamp(out.iter_mut().take(found));
        }
        polling.reported =
            if found < out.len() { 0 } else { polling.reported.saturating_sub(found) };
        found
    }

    /// Sets the current time in completions that have no time. Only completions of flushed work
    /// have none. Such work counts as completed when the program polls it.
    #[cold]
    fn stamp<'a>(&self, completions: impl Iterator<Item = &'a mut WorkCompletion>) {
        let now_ns = self.work.now_ns().unwrap_or(0);
        for completion in completions.filter(|completion| completion.at_ns == 0) {
            completion.at_ns = now_ns;
        }
    }

    /// Writes completions of flushed work to `out`, for the queue pairs whose work must be flushed.
    /// Returns the number of completions written. The caller has dequeued all earlier completions
    /// of these queue pairs.
    #[cold]
    fn flush(&self, polling: &Polling, out: &mut [WorkCompletion]) -> usize {
        if self.is_strict && !self.has_places_to_flush(polling) {
            return 0;
        }
        let mut found = 0;
        for _ in 0..self.flushing_count.load(Ordering::SeqCst) {
            let Some((queue_pair, side)) = self.lock_flushing().front().cloned() else { break };
            // The device may have added completions just before this queue pair was listed. The
            // program must get them before the flushed work.
            if !self.work.is_empty() {
                break;
            }
            let is_settled = self.settle_polled(&queue_pair, side);
            let Some(room) = out.get_mut(found..) else { break };
            found += queue_pair.flush(side, room);
            if found == out.len() {
                break;
            }
            self.unlist(&queue_pair, side, is_settled);
        }
        found
    }

    /// Returns whether the queue has room for all completions that a flush adds. If there is no
    /// room, marks the queue as overrun. This library adds these completions when the program
    /// polls. A network adapter would add all of them at once, and its queue would overrun. So this
    /// queue must overrun too.
    fn has_places_to_flush(&self, polling: &Polling) -> bool {
        if self.work.is_overrun() {
            return false;
        }
        let mut count = polling.backlog.len();
        for (queue_pair, side) in &*self.lock_flushing() {
            count += queue_pair.flushable(*side);
        }
        let has_places = count <= self.entries() as usize;
        if !has_places {
            self.work.overrun();
        }
        has_places
    }

    /// If the peer of a queue pair was lost, decides which sends of the queue pair the peer has
    /// carried out. Returns false if this thread cannot decide, because another thread is polling
    /// the completion queue of sends.
    fn settle_polled(&self, queue_pair: &QueuePair, side: Side) -> bool {
        if !queue_pair.is_unsettled() {
            return true;
        }
        if side == Side::Send || std::ptr::eq(&raw const **queue_pair.send_queue(), self) {
            queue_pair.decide();
            return true;
        }
        queue_pair.send_queue().settle(queue_pair)
    }

    /// Removes a queue pair from the list, because all its work is flushed. If `is_settled` is
    /// false, moves the queue pair to the end of the list instead, because it is not yet decided
    /// which of its sends were carried out.
    fn unlist(&self, queue_pair: &Arc<QueuePair>, side: Side, is_settled: bool) {
        let mut flushing = self.lock_flushing();
        let Some(at) =
            flushing.iter().position(|(listed, of)| Arc::ptr_eq(listed, queue_pair) && *of == side)
        else {
            return;
        };
        let entry = flushing.remove(at);
        if !is_settled {
            flushing.extend(entry);
            return;
        }
        self.flushing_count.store(flushing.len(), Ordering::SeqCst);
        drop(flushing);
        queue_pair.on_unlisted(side);
    }

    /// Decides which sends of a queue pair its lost peer has carried out. The completions of these
    /// sends are in this queue. If another thread is polling this queue, returns false and decides
    /// nothing.
    pub(crate) fn settle(&self, queue_pair: &QueuePair) -> bool {
        let polling = match self.polling.try_lock() {
            Ok(polling) => polling,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut polling = PollingGuard { polling, queue: self };
        polling.absorb(&self.work, self.context.provider().registry());
        queue_pair.decide();
        true
    }

    /// Flushes all posted sends of a queue pair, and adds their completions to the backlog. The
    /// caller does this before the queue pair returns from SQE to RTS.
    pub(crate) fn flush_sends_of(&self, queue_pair: &QueuePair) {
        let mut polling = self.lock_polling();
        polling.absorb(&self.work, self.context.provider().registry());
        let mut flushed = [WorkCompletion::NOTHING; 16];
        loop {
            let count = queue_pair.flush(Side::Send, &mut flushed);
            polling.backlog.extend(flushed.iter().take(count));
            if count < flushed.len() {
                return;
            }
        }
    }

    pub(crate) fn add_flushing(&self, queue_pair: Arc<QueuePair>, side: Side) {
        let mut flushing = self.lock_flushing();
        flushing.push_back((queue_pair, side));
        self.flushing_count.store(flushing.len(), Ordering::SeqCst);
    }

    /// Drops all completions of a queue pair. The caller has already closed the queue pair's
    /// `Wire`, so no further completions arrive.
    pub(crate) fn purge(&self, queue_pair: &QueuePair) {
        let mut polling = self.lock_polling();
        polling.absorb(&self.work, self.context.provider().registry());
        polling.known = Default::default();
        polling.backlog.retain(|completion| completion.queue_pair != queue_pair.number());
        let mut flushing = self.lock_flushing();
        flushing.retain(|(listed, _)| !std::ptr::eq(Arc::as_ptr(listed), queue_pair));
        self.flushing_count.store(flushing.len(), Ordering::SeqCst);
    }

    /// Requests one event for the next completion. With [`Arm::Solicited`], requests an event for
    /// the next completion that is solicited or has failed.
    ///
    /// If the queue already contains such a completion, and no event has reported that completion,
    /// raises the event at once. Network adapters do the same, because a request to arm contains
    /// the number of completions that the program has polled. Therefore a program may arm a queue
    /// that is not empty and then sleep on the descriptor of the channel.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn arm(&self, what: Arm) -> Result<(), Error> {
        self.context.provider().check()?;
        if self.channel.is_none() {
            // Some programs also arm queues that have no channel. This has no effect.
            return Ok(());
        }
        self.armed.fetch_max(what as u8, Ordering::SeqCst);
        let _has_events = self.work.arm(what);
        self.fire_if_due();
        // A thread that waits in `CompletionChannel::get` drives the engine itself. If the program
        // waits on the descriptor although it is not expected to, the thread of the device takes
        // over a little later, when it finds that no other thread drives the engine.
        if !self.context.waits().on_armed() {
            self.context.provider().serve_alone();
        }
        Ok(())
    }

    /// Handles a completion that arrived after the queue was armed: raises the event. If the
    /// program has already polled that completion, raises no event, but arms the queue again.
    /// Without this, the program would get an event but find no completion. Programs that poll once
    /// for each event fail in this case.
    pub(crate) fn on_completion(&self) {
        if self.work.is_overrun() {
            self.on_overrun();
        }
        let Some(armed) = self.armed() else { return };
        if self.fire_if_due() {
            return;
        }
        let _has_events = self.work.arm(armed);
        // Check again, because a completion that arrived just before the queue was armed again has
        // raised no event.
        self.fire_if_due();
    }

    fn armed(&self) -> Option<Arm> {
        [Arm::Solicited, Arm::Next]
            .into_iter()
            .find(|armed| *armed as u8 == self.armed.load(Ordering::SeqCst))
    }

    /// If the queue is armed and contains a matching completion that no event has reported, disarms
    /// the queue, raises an event and returns true. Each event reports a single completion, because
    /// some programs poll a single completion for each event.
    fn fire_if_due(&self) -> bool {
        let Some(armed) = self.armed() else { return false };
        let fires = {
            let mut polling = self.lock_polling();
            let due = self.find_unreported(&mut polling, armed);
            let fires = due.is_some() && self.armed.swap(0, Ordering::SeqCst) != 0;
            if fires {
                polling.reported = due.map_or(0, |position| position + 1);
            }
            fires
        };
        if fires {
            self.raise();
        }
        if self.is_strict && self.work.is_overrun() {
            self.on_overrun();
        }
        fires
    }

    /// Returns the position in the backlog of the oldest completion that matches `armed` and that
    /// no event has reported. Moves completions into the backlog to find it.
    fn find_unreported(&self, polling: &mut Polling, armed: Arm) -> Option<usize> {
        let registry = self.context.provider().registry();
        let is_flushing = self.flushing_count.load(Ordering::SeqCst) > 0;
        let is_wanted = armed == Arm::Next || is_flushing || self.work.has_solicited();
        if is_wanted {
            let count = if armed == Arm::Next { polling.reported + 1 } else { usize::MAX };
            polling.keep(count, &self.work, registry);
            // The program does not receive every completion that the device adds, so the backlog
            // may have fewer completions than events have reported.
            polling.reported = polling.reported.min(polling.backlog.len());
        }
        polling.unreported(armed).or_else(|| {
            let mut flushed = [WorkCompletion::NOTHING];
            if !is_flushing || self.flush(polling, &mut flushed) == 0 {
                return None;
            }
            polling.backlog.extend(flushed);
            Some(polling.backlog.len() - 1)
        })
    }

    /// If the queue is armed, disarms it and raises an event. The caller knows that the queue
    /// contains a completion.
    pub(crate) fn fire(&self) {
        if self.armed.swap(0, Ordering::SeqCst) != 0 {
            self.raise();
        }
    }

    fn raise(&self) {
        if let Some(channel) = &self.channel
            && let Some(this) = self.this.upgrade()
        {
            channel.fire(&this);
        }
    }

    /// Disarms the queue and returns true if all of these hold:
    /// * The queue is armed for the next completion of any kind.
    /// * The queue contains a completion that the program has not polled.
    /// * No other thread is about to raise an event of this queue.
    ///
    /// If this returns true, the caller raises the event. The last condition is needed because the
    /// program would find no completion for a second event.
    pub(crate) fn take_left(&self) -> bool {
        self.armed() == Some(Arm::Next) && self.has_left() && self.work.disarm()
    }

    fn has_left(&self) -> bool {
        let mut polling = self.lock_polling();
        polling.keep(1, &self.work, self.context.provider().registry());
        !polling.backlog.is_empty()
    }

    /// Acknowledges `events` events of this queue that the program has read from the channel.
    pub fn acknowledge_events(&self, events: u32) {
        self.completion_events.acknowledge(events);
    }

    /// Returns whether the queue is about to have more than `entries` completions. If `entries` is
    /// below the present size, drives the device several times to find out. A program may just have
    /// sent more than `entries` messages, and expects [`CompletionQueue::resize`] to fail in that
    /// case.
    fn soon_exceeds(&self, entries: u32) -> bool {
        entries < self.entries()
            && (0..RESIZE_TURNS).any(|_| {
                self.context.provider().drive();
                std::thread::yield_now();
                (entries as usize) < self.held()
            })
    }

    /// Returns the number of completions in the queue that the program has not polled.
    fn held(&self) -> usize {
        self.lock_polling().backlog.len() + self.work.len()
    }

    /// Changes the size of the queue to `entries`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the size is out of range, or smaller than the number of
    /// completions in the queue.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        self.context.provider().check()?;
        check_entries(entries, self.context.device().attributes().completions_max)?;
        if (entries as usize) < self.held() || self.soon_exceeds(entries) {
            return Err(Error::Invalid(format!(
                "the queue holds {} completions; poll some first",
                self.held()
            )));
        }
        let resized = self.work.resize(self.places(entries));
        resized.map_err(|error| Error::Invalid(error.to_string()))?;
        self.work.set_depth(entries as usize);
        self.entries.store(entries, Ordering::Release);
        Ok(())
    }

    /// Attaches the send queue or the receive queue of a queue pair. Adds `unreported_sends` places
    /// for those completions of the attached queue that the program does not receive.
    pub(crate) fn attach(&self, unreported_sends: u32) {
        self.unreported_sends.fetch_add(unreported_sends, Ordering::AcqRel);
        // A failure is harmless. It means that the queue already contains more completions than the
        // new size allows, so it already has this number of places.
        let _ = self.work.resize(self.places(self.entries()));
    }

    /// Detaches the send queue or the receive queue of a queue pair. The additional places stay
    /// until the next call of [`CompletionQueue::attach`], because completions in this queue may
    /// need them.
    pub(crate) fn detach(&self, unreported_sends: u32) {
        self.unreported_sends.fetch_sub(unreported_sends, Ordering::AcqRel);
    }

    /// Lists a queue pair as a user of this queue. From now on, if this queue overruns, the queue
    /// pair enters ERR.
    pub(crate) fn enlist(&self, queue_pair: &Arc<QueuePair>) {
        self.lock_attached().insert(queue_pair.number(), Arc::downgrade(queue_pair));
    }

    /// Removes a queue pair from the users of this queue. From now on, an overrun of this queue
    /// does not affect the queue pair.
    pub(crate) fn strike(&self, queue_pair: &QueuePair) {
        self.lock_attached().remove(&queue_pair.number());
    }

    /// Returns the number of places for completions that the device adds to a queue for which the
    /// program asked for `entries` entries.
    fn places(&self, entries: u32) -> usize {
        let unreported_sends = self.unreported_sends.load(Ordering::Acquire) as usize;
        (entries as usize + unreported_sends).min(work::COMPLETIONS_MAX)
    }

    /// Destroys the queue. Waits until the program has acknowledged every event of the queue that
    /// the program has read.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if a queue pair uses the queue.
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.provider().check()?;
        self.uses.destroy("completion queue")?;
        self.context.provider().registry().remove_queue(self);
        self.context.forget_events(|element| {
            matches!(element, EventElement::CompletionQueue(of) if std::ptr::eq(Arc::as_ptr(of), self))
        });
        if let Some(channel) = &self.channel {
            self.armed.store(0, Ordering::SeqCst);
            channel.forget(self);
        }
        self.completion_events.wait();
        self.async_events.wait();
        if let Some(channel) = &self.channel {
            channel.uses().end();
        }
        self.context.end(|counts| &mut counts.completion_queues);
        Ok(())
    }

    /// Handles an overrun like a network adapter: raises the asynchronous event, and moves the
    /// attached queue pairs to ERR. The caller must be outside the engine.
    #[cold]
    fn on_overrun(&self) {
        self.report_if_overrun();
        if self.has_failed_all.swap(true, Ordering::SeqCst) {
            return;
        }
        let attached: Vec<_> = self.lock_attached().values().filter_map(Weak::upgrade).collect();
        for queue_pair in attached {
            queue_pair.fail_by_overrun();
        }
    }

    /// If the queue has overrun and no asynchronous event has reported this, raises that event.
    pub(crate) fn report_if_overrun(&self) {
        if self.work.is_overrun()
            && !self.has_reported_overrun.swap(true, Ordering::SeqCst)
            && let Some(this) = self.this.upgrade()
        {
            let kind = AsyncEventKind::CompletionQueueError;
            self.context.raise(kind, EventElement::CompletionQueue(this));
        }
    }

    pub(crate) const fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(crate) const fn completion_events(&self) -> &Unacknowledged {
        &self.completion_events
    }

    pub(crate) const fn async_events(&self) -> &Unacknowledged {
        &self.async_events
    }

    fn lock_polling(&self) -> PollingGuard<'_> {
        let polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        PollingGuard { polling, queue: self }
    }

    fn lock_attached(&self) -> MutexGuard<'_, HashMap<u32, Weak<QueuePair>>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_flushing(&self) -> MutexGuard<'_, VecDeque<(Arc<QueuePair>, Side)>> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the program receives this completion, which the device has added. Only such a
/// completion occupies one of the places that the program asked for.
fn takes_place(registry: &Weak<Registry>, completion: &Completion) -> bool {
    let queue_pair = registry.upgrade().and_then(|registry| registry.find(completion.owner));
    queue_pair.is_some_and(|queue_pair| queue_pair.is_for_program(completion))
}

fn check_entries(entries: u32, max: u32) -> Result<(), Error> {
    if (1..=max).contains(&entries) {
        return Ok(());
    }
    Err(Error::Invalid(format!("a completion queue of {entries} entries: 1 to {max}")))
}

/// Number of entries of the cache of queue pairs. Even if many queue pairs share a queue,
/// successive completions mostly belong to the same queue pair. Eight entries take 256 B.
const KNOWN: usize = 8;

/// Number of times that [`CompletionQueue::resize`] drives the device before it makes the queue
/// smaller. This takes some tens of microseconds.
const RESIZE_TURNS: u32 = 64;

/// Number of additional places that a completion queue has for the send queue and for the receive
/// queue of each queue pair. Some completions that the device adds only mark where flushed work
/// begins. For each queue of a queue pair, a completion queue contains at most this number of such
/// completions. Programs do not expect them when they choose the size of a completion queue.
pub(crate) const MARKS: u32 = 256;
