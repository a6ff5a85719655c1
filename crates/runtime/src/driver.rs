//! The engine with its links, and the work of one turn.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use delivery::{Instant, LINKS_MAX, LinkEvent, LinkId};
use engine::{ConnectionHandle, DatagramError, DatagramPort, Emitted, Engine, EngineLinkError};
use link::{Link, LinkStatistics, PayloadUnmapped};
use mem::MemoryTable;
use semantics::{CompletionQueue, PieceList, PostError, SharedReceives, StatusTable};
use wire_edge::Moved;

use crate::arming::Arming;
use crate::attached::{ASK_SILENT_NS, Attached};
use crate::auxiliary_sockets::{AUXILIARY_KEYS, AuxiliaryError, AuxiliarySockets, group_address};
use crate::clock::{Clock, TurnClock};
use crate::counters::RuntimeCounters;
use crate::fork::{Forked, Inherited};
use crate::hooks::Hooks;
use crate::lookers::Lookers;
use crate::machine::{MACHINE_KEYS, Machines};
use crate::park::Waiters;
use crate::retired::{Retired, Retiring};
use crate::runtime::Doorbell;
use crate::sleep::{Descriptor, FDS_PER_LINK, Sleeper, Watched};
use crate::source::{DOORBELLS, Doorbells, Sources, WorkSource};
use crate::submission::{HeldBack, Posting, Submissions};
use crate::turn_access::TurnAccess;

/// A function that a turn runs inside the engine: the control path.
pub(crate) type Command =
    Box<dyn FnOnce(&mut Driver, &RuntimeHost, Instant, &TurnAccess<'_>) + Send>;

/// State that the thread inside the engine shares with the threads outside.
pub(crate) struct RuntimeHost {
    pub(crate) clock: Clock,
    pub(crate) memory: Arc<MemoryTable>,
    pub(crate) status: Arc<StatusTable>,
    pub(crate) submissions: Submissions,
    pub(crate) doorbells: Doorbells<dyn WorkSource>,
    pub(crate) commands: Mutex<Vec<Command>>,
    /// True if `commands` is not empty.
    pub(crate) has_commands: AtomicBool,
    pub(crate) hooks: Box<dyn Hooks>,
    pub(crate) waiters: Waiters,
    pub(crate) sleeper: Sleeper,
    pub(crate) inherited: Inherited,
    /// Latest time at which the engine wants its next turn, in nanoseconds of `clock`.
    pub(crate) turn_due: AtomicU64,
    /// Time at which the sleep on the links times out, in nanoseconds; 0 if no thread sleeps there.
    pub(crate) armed_until: AtomicU64,
    /// True if a thread is about to sleep. The next turn must then send pending acknowledgements.
    pub(crate) is_parting: AtomicBool,
    /// True if a thread left the engine while there was more to do.
    pub(crate) is_unfinished: AtomicBool,
    /// True if the last sleep on the links ended because its timeout expired.
    pub(crate) timers_end_sleeps: AtomicBool,
    /// True if the thread on watch has found, when it woke other threads, that its own wait may
    /// have ended. It must then check this before it sleeps. Only this thread uses the flag.
    pub(crate) must_look: AtomicBool,
    /// True while the thread on watch sleeps for intervals in which frames stay unread
    /// (moderation), and flushes pending acknowledgements in each turn.
    pub(crate) is_moderated: AtomicBool,
    /// Frames received so far.
    pub(crate) frames: AtomicU64,
    /// Number of answers that this endpoint has begun to send to peers. Turns that receive frames
    /// update this number.
    pub(crate) answers_begun: AtomicU64,
    /// Time at which a thread of the application last entered the engine or found it occupied, in
    /// nanoseconds.
    pub(crate) polled_at: AtomicU64,
    /// Time at which the application last polled (posting does not count), in nanoseconds.
    pub(crate) looked_at: AtomicU64,
    /// Time of the last turn that did work, in nanoseconds.
    pub(crate) worked_at: AtomicU64,
    /// Nanoseconds for which the first frame of a turn had waited before a thread read it. A thread
    /// that has slept sets this to 0, so 0 means that no frame arrived after the sleep.
    pub(crate) frame_waited_ns: AtomicU64,
    /// True if there are connection events for which no thread has woken the blocked threads yet.
    pub(crate) has_news: AtomicBool,
    /// Completion queues to report to the hooks.
    pub(crate) fired: Mutex<Vec<Arc<CompletionQueue>>>,
    /// Memory regions that the application dropped while operations used them.
    pub(crate) retired: Retired,
    /// Tasks that wait for changes which cause no event, and must therefore poll.
    pub(crate) lookers: Lookers,
    /// Shared receive queues to report to the hooks.
    pub(crate) below_limit: Mutex<Vec<Arc<SharedReceives>>>,
    /// True if `fired` or `below_limit` is not empty.
    pub(crate) has_fired: AtomicBool,
    /// Whether the descriptor of the endpoint must become readable at the next report.
    pub(crate) arming: Arming,
    pub(crate) descriptor: Descriptor,
}

impl RuntimeHost {
    /// If a turn `worked`, wakes the threads that wait for its results. A thread calls this after
    /// it has left the cell: leaving orders the work done inside before the loads here
    /// ([`ProgressCell::pass`](crate::cell::ProgressCell::pass)).
    #[inline]
    pub(crate) fn wake_others(&self, worked: bool) {
        if worked && (self.must_call() || self.waiters.are_blocked() || self.has_unreported_news())
        {
            self.wake_up();
        }
    }

    #[cold]
    fn wake_up(&self) {
        if self.must_call() {
            self.sleeper.call();
        }
        let has_news = self.has_news.swap(false, Ordering::AcqRel);
        self.wake_waiters(has_news);
    }

    /// Wakes the threads and tasks whose interest is met.
    #[cold]
    pub(crate) fn wake_waiters(&self, news: bool) {
        let reports = self.arming.reports();
        if self.waiters.wake(news, &self.status, reports, &self.sleeper) {
            self.must_look.store(true, Ordering::Relaxed);
        }
    }

    /// Stores completion queues whose armed condition is met. A thread outside of the cell reports
    /// them.
    #[cold]
    fn pass_on_fired(&self, queues: impl Iterator<Item = Arc<CompletionQueue>>) {
        let mut fired = self.fired.lock().unwrap_or_else(PoisonError::into_inner);
        fired.extend(queues);
        self.has_fired.store(true, Ordering::Relaxed);
    }

    /// Stores shared receive queues that fell below their limit. A thread outside of the cell
    /// reports them.
    #[cold]
    fn pass_on_below_limit(&self, queues: impl Iterator<Item = Arc<SharedReceives>>) {
        let mut below = self.below_limit.lock().unwrap_or_else(PoisonError::into_inner);
        below.extend(queues);
        self.has_fired.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`RuntimeHost::report_fired`] has something to report. A thread that stays
    /// inside for several turns checks this between them.
    #[inline]
    pub(crate) fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Relaxed)
            || self.status.wakeups().has_any()
            || self.retired.has_ended()
    }

    /// Reports to the hooks the completion queues whose armed condition is met, and the shared
    /// receive queues that fell below their limit. Also wakes tasks, and makes the descriptor of
    /// the endpoint readable. Call this after leaving the cell.
    #[inline]
    pub(crate) fn report_fired(&self) {
        if self.arming.fires() {
            self.descriptor.raise();
        }
        if self.has_fired() {
            self.report_queues();
        }
    }

    #[cold]
    fn report_queues(&self) {
        let (fired, below) = {
            let mut fired = self.fired.lock().unwrap_or_else(PoisonError::into_inner);
            let mut below = self.below_limit.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_fired.store(false, Ordering::Relaxed);
            (std::mem::take(&mut *fired), std::mem::take(&mut *below))
        };
        if !fired.is_empty() {
            self.hooks.on_completions(&fired);
        }
        if !below.is_empty() {
            self.hooks.on_below_limit(&below);
        }
        // Threads may wait for the queues that this thread has just reported to the hooks.
        if !(fired.is_empty() && below.is_empty()) && self.waiters.are_blocked() {
            self.wake_waiters(true);
        }
        self.status.wakeups().wake();
        if self.retired.has_ended() {
            self.retired.deregister(&self.memory);
        }
    }

    /// Returns whether the next turn is due before the timeout of the thread that sleeps on the
    /// links.
    #[inline]
    fn must_call(&self) -> bool {
        self.turn_due.load(Ordering::Relaxed) < self.armed_until.load(Ordering::Relaxed)
    }

    #[inline]
    fn has_unreported_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Wakes the thread that sleeps on the links or is about to sleep there.
    pub(crate) fn call_watch(&self) {
        self.is_unfinished.store(true, Ordering::SeqCst);
        if self.armed_until.load(Ordering::SeqCst) != 0 {
            self.sleeper.call();
        }
    }
}

/// State of posted work when the process is about to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unsent {
    /// All posted work is sent and acknowledged.
    Nothing,
    /// Work was sent and is not acknowledged yet.
    Outstanding,
    /// Work waits for peers whose addresses are not known yet.
    AwaitsPeers,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Turned {
    /// There is more to do at once.
    pub(crate) more: bool,
    /// True if the turn changed something for which other threads may wait;
    /// [`RuntimeHost::wake_others`] wakes those threads.
    pub(crate) worked: bool,
}

/// The role of the thread that makes a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Caller {
    /// A thread of the application that posts or polls.
    Application,
    /// A thread that has nothing else to do.
    Watch,
}

/// The content of the progress cell.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    links: [Option<Attached>; LINKS_MAX],
    /// All links have an index below this.
    links_end: usize,
    pub(crate) auxiliary_sockets: AuxiliarySockets,
    /// Protocols that run beside the engine.
    pub(crate) machines: Machines,
    /// Time at which a link over shared memory last delivered a frame.
    memory_brought_at: Instant,
    /// Time of the last poll of the descriptors that belong to no link.
    auxiliary_at: Instant,
    /// A bit for each link that had no room for frames at the last transmission.
    full: u16,
    /// True if acknowledgements may be pending: frames have arrived since the last flush of them.
    may_owe: bool,
    /// True if the last turn deferred transmission, so that connections with data to send wait for
    /// the next turn.
    has_deferred: bool,
    /// True if datagrams were passed to their links since the last turn ended.
    has_sent_datagrams: bool,
    /// Events of connections so far.
    news: u64,
    pub(crate) held: HeldBack,
    sources: Sources,
    /// Regions that the application dropped and that operations still use.
    pub(crate) retiring: Retiring,
    /// Time at which to wake the tasks that poll for changes.
    pub(crate) lookers_due: Instant,
    clock: TurnClock,
    pub(crate) counters: RuntimeCounters,
}

impl Driver {
    pub(crate) fn new(engine: Engine, clock: &Clock, submissions: &Submissions) -> Self {
        Self {
            engine,
            links: [const { None }; LINKS_MAX],
            links_end: 0,
            auxiliary_sockets: AuxiliarySockets::default(),
            machines: Machines::new(),
            memory_brought_at: Instant(0),
            auxiliary_at: Instant(0),
            full: 0,
            may_owe: false,
            has_deferred: false,
            has_sent_datagrams: false,
            news: 0,
            held: HeldBack::new(submissions.capacity()),
            sources: Sources::default(),
            retiring: Retiring::default(),
            lookers_due: Instant::NEVER,
            clock: TurnClock::start(clock),
            counters: RuntimeCounters::default(),
        }
    }

    /// Makes one turn: reads the clock once, reads the links, runs timers, sends frames.
    ///
    /// After the turn, the caller wakes other threads, outside of the cell if possible. The reason:
    /// a woken thread may preempt the thread that wakes it. If that thread were still inside the
    /// cell, the woken thread would find the cell occupied.
    pub(crate) fn turn(&mut self, host: &RuntimeHost, caller: Caller) -> Turned {
        let now = self.clock.now(&host.clock);
        if caller == Caller::Application {
            host.polled_at.store(now.0, Ordering::Relaxed);
            host.looked_at.store(now.0, Ordering::Relaxed);
            self.counters.polls += 1;
        }
        let is_parting = host.is_parting.load(Ordering::Relaxed)
            && host.is_parting.swap(false, Ordering::Relaxed);
        let memory = TurnAccess::new(&host.memory);
        let mut worked = self.take_work(host, now, &memory);
        let (received, mut more) = self.receive(host, caller, is_parting, now, &memory);
        let mut has_changed = received;
        if self.engine.poll_timeout() <= now {
            self.engine.handle_timeout(now, memory.begun());
            has_changed = true;
        }
        if has_changed {
            self.note_change(host, now);
            worked = true;
        }
        if self.retiring.look_at() <= now {
            self.take_retired(host, now, &memory);
        }
        if self.lookers_due <= now {
            self.wake_lookers(host);
        }
        if host.hooks.due() <= now {
            host.hooks.on_due(&mut self.engine, memory.begun(), now);
            worked = true;
        }
        if !is_parting && host.sleeper.auxiliary.is_in_use() {
            let (ready, again) = self.poll_auxiliary(host, caller, now, &memory);
            worked |= ready;
            more |= again;
        }
        // If the hooks post work, this turn sends it.
        let has_news = worked && self.report_news(host, now, &memory);
        if self.engine.has_room_news() {
            self.report_room(host, now, &memory);
        }
        if self.sources.are_due(worked) || !host.doorbells.is_empty() {
            worked |= self.pull_sources(host, now, &memory, worked);
            more |= self.sources.has_more();
        }
        // Machines come after the doorbells, because a machine may do the work of a source.
        if !self.machines.is_empty() {
            if is_parting {
                self.machines.on_polled(0);
            }
            let (machines_worked, waits) = self.turn_machines(host, now, &memory);
            worked |= machines_worked;
            more |= waits;
        }
        self.may_owe |= received;
        // A thread that starts to spin, or receives frames at intervals, flushes pending
        // acknowledgements first, like a thread that goes to sleep.
        let flushes =
            caller == Caller::Watch && (!worked || host.is_moderated.load(Ordering::Relaxed));
        if (is_parting || flushes) && self.may_owe {
            self.may_owe = false;
            self.engine.hasten_acknowledgements();
        }
        // If this turn received something, defer transmission by at most one turn. The application
        // often posts an answer, and sending the answer transmits everything else, too.
        self.has_deferred = received
            && caller == Caller::Application
            && !self.has_deferred
            && !more
            && !has_news
            && !self.engine.is_urgent(now);
        if !self.has_deferred {
            more |= self.transmit(host, now, &memory);
        }
        let has_late_news = self.report_news(host, now, &memory);
        more |= has_late_news && self.engine.has_work();
        more |= self.engine.has_room_news();
        worked |= has_late_news;
        if self.has_sent_datagrams {
            // Datagrams that were sent are complete, so their sources have room for more work.
            worked = true;
            more |= self.sources.has_more();
        }
        drop(memory);
        if is_parting {
            more |= !self.prepare_sleep();
        }
        self.finish(host, now, worked);
        Turned { more, worked }
    }

    /// Posts an operation or receive, after those that other threads handed over before. The caller
    /// is inside the engine. If `doorbell` is [`Doorbell::Ring`], also transmits. Returns whether
    /// there is more to do at once.
    #[inline]
    pub(crate) fn post(
        &mut self,
        host: &RuntimeHost,
        connection: ConnectionHandle,
        posting: &Posting,
        list: Option<PieceList<'_>>,
        doorbell: Doorbell,
    ) -> Result<bool, PostError> {
        let memory = TurnAccess::new(&host.memory);
        self.take_submissions(host, &memory);
        if let Some(error) = self.held.reason_to_wait(connection, posting) {
            return Err(error);
        }
        posting.apply(list, &mut self.engine, memory.begun(), connection)?;
        if doorbell == Doorbell::Later {
            return Ok(false);
        }
        let now = self.clock.now(&host.clock);
        host.polled_at.store(now.0, Ordering::Relaxed);
        self.has_deferred = false;
        let mut more = self.transmit(host, now, &memory);
        more |= self.report_news(host, now, &memory) && self.engine.has_work();
        drop(memory);
        self.finish(host, now, true);
        Ok(more)
    }

    /// Takes work from a source and transmits it. Returns whether there is more to do at once.
    pub(crate) fn ring(&mut self, host: &RuntimeHost, source: &Arc<dyn WorkSource>) -> bool {
        let memory = TurnAccess::new(&host.memory);
        let now = self.clock.now(&host.clock);
        host.polled_at.store(now.0, Ordering::Relaxed);
        let pulled = self.sources.pull(source, &mut self.engine, memory.begun(), now);
        self.counters.pulled += u64::from(pulled);
        self.has_deferred = false;
        let mut more = self.sources.has_more();
        if source.is_of_machine() {
            more |= self.turn_machines(host, now, &memory).1;
        }
        more |= self.transmit(host, now, &memory);
        more |= self.report_news(host, now, &memory) && self.engine.has_work();
        more |= self.engine.has_room_news();
        drop(memory);
        self.finish(host, now, true);
        more
    }

    /// Takes work from all sources whose doorbells were rung, and transmits it.
    #[cold]
    pub(crate) fn send_out_all(&mut self, host: &RuntimeHost) {
        let memory = TurnAccess::new(&host.memory);
        let now = self.clock.now(&host.clock);
        self.take_submissions(host, &memory);
        self.pull_sources(host, now, &memory, true);
        if !self.machines.is_empty() {
            self.turn_machines(host, now, &memory);
        }
        self.transmit(host, now, &memory);
    }

    /// Returns whether posted work is unsent or unacknowledged.
    #[cold]
    pub(crate) fn unsent(&self, host: &RuntimeHost) -> Unsent {
        if host.hooks.awaits_peers(host.clock.now()) {
            Unsent::AwaitsPeers
        } else if self.engine.has_outstanding() {
            Unsent::Outstanding
        } else {
            Unsent::Nothing
        }
    }

    /// Takes all work from a source and transmits it, until links or the engine have no more room.
    #[cold]
    pub(crate) fn send_out(
        &mut self,
        host: &RuntimeHost,
        now: Instant,
        memory: &TurnAccess<'_>,
        source: &Arc<dyn WorkSource>,
    ) {
        for _ in 0..SENT_OUT_ROUNDS {
            let pulled = self.sources.pull(source, &mut self.engine, memory.begun(), now);
            self.counters.pulled += u64::from(pulled);
            if source.is_of_machine() {
                self.turn_machines(host, now, memory);
            }
            let more = self.transmit(host, now, memory);
            if pulled == 0 && (!more || self.full != 0) {
                break;
            }
        }
    }

    /// Takes work from sources whose doorbells were rung. If `has_happened` (the turn did work),
    /// also takes work from sources that wait for room. Returns whether there was any work.
    #[cold]
    fn pull_sources(
        &mut self,
        host: &RuntimeHost,
        now: Instant,
        memory: &TurnAccess<'_>,
        has_happened: bool,
    ) -> bool {
        let Self { sources, engine, counters, .. } = self;
        let mut pulled = 0;
        // Serve waiting sources first, because their doorbells were rung earlier.
        if sources.are_due(has_happened) {
            counters.asked_again += sources.waiting() as u64;
            pulled += sources.pull_again(engine, memory.begun(), now);
        }
        // Take at most one full ring of doorbells. Without this limit, threads that keep ringing
        // could keep this thread inside the engine.
        for _ in 0..DOORBELLS {
            let Some(source) = host.doorbells.take(|source| source.doorbell()) else { break };
            pulled += sources.pull(&source, engine, memory.begun(), now);
        }
        counters.pulled += u64::from(pulled);
        pulled > 0
    }

    /// Attaches a link under a free identifier.
    pub(crate) fn attach(
        &mut self,
        host: &RuntimeHost,
        driver: Box<dyn Link>,
    ) -> Result<LinkId, AttachError> {
        let free = self.links.iter().position(Option::is_none);
        let index = free.ok_or(AttachError::NoneLeft)?;
        let id = LinkId(index as u8);
        self.engine.attach_link(id, driver.caps())?;
        if let Some(slot) = self.links.get_mut(index) {
            let shares_memory = driver.caps().local.is_shared_memory();
            let (asked_at, brought_at, news_at) = (Instant(0), Instant(0), Instant(0));
            *slot = Some(Attached {
                driver,
                shares_memory,
                asked_at,
                brought_at,
                news_at,
                has_failed: false,
            });
            self.links_end = self.links_end.max(index + 1);
        }
        self.watch(host, index);
        Ok(id)
    }

    /// Detaches a link and closes its sockets.
    pub(crate) fn detach(&mut self, host: &RuntimeHost, link: LinkId) -> bool {
        let index = usize::from(link.0);
        let Some(slot) = self.links.get_mut(index).filter(|slot| slot.is_some()) else {
            return false;
        };
        let attached = slot.take();
        self.engine.detach_link(link);
        self.watch(host, index);
        self.auxiliary_sockets.on_detached(&host.sleeper.auxiliary, link);
        // Close the sockets only here, when no thread polls them any more.
        drop(attached);
        true
    }

    /// Makes a turn of each machine. Returns whether a machine did work, and whether a machine has
    /// more to do.
    #[cold]
    fn turn_machines(
        &mut self,
        host: &RuntimeHost,
        now: Instant,
        memory: &TurnAccess<'_>,
    ) -> (bool, bool) {
        let progress = self.machines.turn(now, memory.begun());
        if progress.news {
            host.has_news.store(true, Ordering::Release);
        }
        if !self.machines.fired.is_empty() {
            host.pass_on_fired(self.machines.fired.drain(..));
        }
        (progress.worked, progress.more)
    }

    /// Adds a port to a multicast group on the interface of a link.
    pub(crate) fn join_group(
        &mut self,
        host: &RuntimeHost,
        port: DatagramPort,
        link: LinkId,
        group: IpAddr,
    ) -> Result<(), AuxiliaryError> {
        let attached = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        let local = attached.and_then(|attached| attached.driver.caps().local.to_socket());
        let local = local.ok_or(AuxiliaryError::NotUdp(link.0))?.ip();
        self.auxiliary_sockets.join(&host.sleeper.auxiliary, link, local, group)?;
        let joined = self.engine.join_datagram_group(port, group_address(group));
        self.trim_auxiliary_sockets(host);
        Ok(joined?)
    }

    /// Removes a port from a multicast group.
    pub(crate) fn leave_group(
        &mut self,
        host: &RuntimeHost,
        port: DatagramPort,
        group: IpAddr,
    ) -> Result<(), DatagramError> {
        self.engine.leave_datagram_group(port, group_address(group))?;
        self.trim_auxiliary_sockets(host);
        Ok(())
    }

    /// Closes a port and removes it from its groups.
    pub(crate) fn close_datagram_port(
        &mut self,
        host: &RuntimeHost,
        port: DatagramPort,
    ) -> Result<(), DatagramError> {
        self.engine.close_datagram_port(port)?;
        self.trim_auxiliary_sockets(host);
        Ok(())
    }

    /// Opens a redirect port, which answers with the new addresses of services that have moved.
    pub(crate) fn open_redirect_port(
        &mut self,
        host: &RuntimeHost,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, AuxiliaryError> {
        let opened = self.auxiliary_sockets.open(&host.sleeper.auxiliary, address, moved);
        // Wake a sleeping thread, because it may be sleeping without polling the epoll set.
        host.call_watch();
        opened
    }

    /// Closes the redirect port at an address. Returns false if there is no such port.
    pub(crate) fn close_redirect_port(&mut self, host: &RuntimeHost, address: SocketAddr) -> bool {
        self.auxiliary_sockets.close(&host.sleeper.auxiliary, address)
    }

    /// Closes the sockets of multicast groups that no port is a member of any more.
    fn trim_auxiliary_sockets(&mut self, host: &RuntimeHost) {
        self.auxiliary_sockets.trim(&host.sleeper.auxiliary, &mut self.engine);
        host.call_watch();
    }

    /// Returns the counters of a link's driver.
    pub(crate) fn link_statistics(&self, link: LinkId) -> Option<LinkStatistics> {
        let attached = self.links.get(usize::from(link.0))?.as_ref()?;
        Some(attached.driver.statistics())
    }

    /// Returns the attached links, each with the address at which peers reach it.
    pub(crate) fn link_addresses(&self) -> Vec<(LinkId, wire_edge::PeerAddr)> {
        let links = self.links.iter().enumerate();
        links
            .filter_map(|(index, slot)| {
                slot.as_ref().map(|link| (LinkId(index as u8), link.driver.caps().local))
            })
            .collect()
    }

    /// Makes the engine send pending acknowledgements with the rest of this turn.
    pub(crate) fn hasten(&mut self) {
        self.engine.hasten_acknowledgements();
    }

    fn take_work(&mut self, host: &RuntimeHost, now: Instant, memory: &TurnAccess<'_>) -> bool {
        let worked = self.take_submissions(host, memory);
        if host.has_commands.load(Ordering::Acquire) {
            self.run_commands(host, now, memory);
            return true;
        }
        worked
    }

    #[inline]
    pub(crate) fn take_submissions(&mut self, host: &RuntimeHost, memory: &TurnAccess<'_>) -> bool {
        if self.held.is_idle(&host.submissions) {
            return false;
        }
        let worked = self.held.drain(
            &host.submissions,
            &mut self.engine,
            memory.begun(),
            &host.status,
            &mut self.counters,
        );
        // The memory of an operation held back is gone. Close its connection, as the engine does
        // for a posted operation, so that it does not matter whether an operation was handed over.
        while let Some(connection) = self.held.take_without_memory() {
            let now = self.clock.now(&host.clock);
            // A connection that the engine does not know has already ended.
            let _ended = self.engine.close_without_memory(now, connection);
        }
        worked
    }

    #[cold]
    fn run_commands(&mut self, host: &RuntimeHost, now: Instant, memory: &TurnAccess<'_>) {
        let commands = {
            let mut commands = host.commands.lock().unwrap_or_else(PoisonError::into_inner);
            host.has_commands.store(false, Ordering::Relaxed);
            std::mem::take(&mut *commands)
        };
        for command in commands {
            command(self, host, now, memory);
        }
    }

    /// Reads a burst from each link. Returns whether a frame or an event arrived, and whether more
    /// frames wait.
    ///
    /// `is_parting`: the thread is about to sleep. In this case, does not read links that need a
    /// system call, because frames that wait there end the sleep at once.
    fn receive(
        &mut self,
        host: &RuntimeHost,
        caller: Caller,
        is_parting: bool,
        now: Instant,
        memory: &TurnAccess<'_>,
    ) -> (bool, bool) {
        let Self { engine, links, links_end, memory_brought_at, counters, .. } = self;
        let is_memory_busy = now.since_ns(*memory_brought_at) < MEMORY_BUSY_NS;
        let (mut came, mut more) = (false, false);
        let (mut rewatch, mut waited_ns) = (0_u16, None);
        for (index, slot) in links.iter_mut().enumerate().take(*links_end) {
            let Some(attached) = slot.as_mut().filter(|attached| !attached.has_failed) else {
                continue;
            };
            if is_memory_busy && attached.may_be_skipped(now) {
                continue;
            }
            let id = LinkId(index as u8);
            if !is_parting || attached.shares_memory || attached.must_be_polled() {
                attached.asked_at = now;
                let received = attached.driver.receive(now, BURST_FRAMES, &mut |frame| {
                    waited_ns.get_or_insert_with(|| now.since_ns(frame.received_at));
                    engine.handle_frame(now, memory.begun(), id, frame);
                });
                if let Ok(frames) = received {
                    if frames > 0 {
                        came = true;
                        let frames = host.frames.load(Ordering::Relaxed) + frames as u64;
                        host.frames.store(frames, Ordering::Relaxed);
                        host.answers_begun.store(engine.answers_begun(), Ordering::Relaxed);
                        attached.brought_at = now;
                        if attached.shares_memory {
                            *memory_brought_at = now;
                        }
                    }
                    more |= frames >= BURST_FRAMES;
                } else {
                    attached.fail(counters);
                    engine.handle_link_event(now, id, LinkEvent::Down);
                    came = true;
                }
            }
            // Only polling threads of the application may skip the events. A thread that is about
            // to sleep must read all events, because the next turn may be much later.
            if caller == Caller::Application && now.since_ns(attached.news_at) < NEWS_NS {
                continue;
            }
            attached.news_at = now;
            while let Some(event) = attached.driver.poll_event() {
                came = true;
                if matches!(event, LinkEvent::Descriptors) {
                    rewatch |= 1 << index;
                } else {
                    engine.handle_link_event(now, id, event);
                }
            }
        }
        if rewatch != 0 {
            self.watch_again(host, rewatch);
        }
        if caller == Caller::Watch
            && let Some(waited_ns) = waited_ns
            && host.frame_waited_ns.load(Ordering::Relaxed) == 0
        {
            host.frame_waited_ns.store(waited_ns, Ordering::Relaxed);
        }
        (came, more)
    }

    /// Polls the descriptors that belong to no link, and reports those that are ready to the hooks,
    /// machines and auxiliary sockets. Returns whether any was ready, and whether to poll them again
    /// in another turn at once. In the turns of a polling application, polls only at intervals,
    /// because each poll is a system call.
    #[cold]
    fn poll_auxiliary(
        &mut self,
        host: &RuntimeHost,
        caller: Caller,
        now: Instant,
        memory: &TurnAccess<'_>,
    ) -> (bool, bool) {
        if caller == Caller::Application && now.since_ns(self.auxiliary_at) < ASK_SILENT_NS {
            return (false, false);
        }
        self.auxiliary_at = now;
        let Self { engine, auxiliary_sockets, machines, .. } = self;
        let ready = host.sleeper.auxiliary.poll(|key, ready| match key {
            MACHINE_KEYS.. => machines.on_descriptor(key, ready),
            AUXILIARY_KEYS.. => auxiliary_sockets.receive(engine, memory.begun(), now, key),
            _ => host.hooks.on_descriptor(engine, memory.begun(), now, key, ready),
        });
        (ready > 0, self.machines.on_polled(ready))
    }

    /// Announces to the links that a thread is about to sleep. Returns false if frames already wait
    /// on a link.
    #[cold]
    fn prepare_sleep(&mut self) -> bool {
        let mut may_sleep = true;
        for attached in self.links.iter_mut().flatten().filter(|attached| !attached.has_failed) {
            may_sleep &= attached.driver.prepare_sleep();
        }
        may_sleep
    }

    /// Sends the frames that the engine has ready and the links have room for. Returns whether the
    /// engine has more frames for which the links have room.
    fn transmit(&mut self, host: &RuntimeHost, now: Instant, memory: &TurnAccess<'_>) -> bool {
        if self.full == 0 && !self.engine.has_work() {
            return false;
        }
        let waiting = self.engine.waiting_datagrams();
        let Self { engine, links, counters, .. } = self;
        let (mut full, mut failed) = (0_u16, 0_u16);
        let mut progress = false;
        let more = engine.poll_transmit(now, memory.begun(), &mut |id, batch| {
            let index = usize::from(id.0);
            // A frame for a link that is gone counts as lost, like a frame on a failed link.
            let lost = Emitted::Taken(batch.len());
            let Some(attached) = links.get_mut(index).and_then(Option::as_mut) else { return lost };
            if attached.has_failed {
                return lost;
            }
            match attached.driver.send(batch) {
                Ok(frames) => {
                    progress |= frames > 0;
                    if frames == batch.len() {
                        return Emitted::Taken(frames);
                    }
                    full |= 1 << index;
                    match attached.driver.doubtful().min(batch.len() - frames) {
                        0 => Emitted::Taken(frames),
                        doubtful => Emitted::Doubtful { taken: frames, doubtful },
                    }
                }
                Err(error) => {
                    if let Some(PayloadUnmapped { frame }) = PayloadUnmapped::from_io(&error) {
                        return Emitted::PayloadUnmapped(frame);
                    }
                    attached.fail(counters);
                    failed |= 1 << index;
                    lost
                }
            }
        });
        if failed != 0 || full != self.full {
            self.after_transmit(host, now, failed, full);
        }
        if self.engine.waiting_datagrams() < waiting {
            self.has_sent_datagrams = true;
            self.sources.ask_again();
        }
        // If no link took a frame, no link has room, so another turn at once would be useless.
        more && progress
    }

    #[cold]
    fn after_transmit(&mut self, host: &RuntimeHost, now: Instant, failed: u16, full: u16) {
        let changed = self.full ^ full | failed;
        self.full = full;
        for index in 0..LINKS_MAX {
            if failed >> index & 1 != 0 {
                self.engine.handle_link_event(now, LinkId(index as u8), LinkEvent::Down);
            }
            if changed >> index & 1 != 0 {
                self.watch(host, index);
            }
        }
    }

    /// Reports events of connections to the hooks. Returns whether there were any.
    #[inline]
    fn report_news(&mut self, host: &RuntimeHost, now: Instant, memory: &TurnAccess<'_>) -> bool {
        let mut has_news = false;
        while let Some(event) = self.engine.poll_event() {
            host.hooks.on_event(&mut self.engine, memory.begun(), now, event);
            self.news += 1;
            has_news = true;
        }
        if has_news {
            host.has_news.store(true, Ordering::Release);
        }
        has_news
    }

    /// Reports to the hooks which connections have room again, so that the hooks can post work that
    /// waited.
    #[cold]
    fn report_room(&mut self, host: &RuntimeHost, now: Instant, memory: &TurnAccess<'_>) {
        while let Some(connection) = self.engine.poll_room() {
            host.hooks.on_room(&mut self.engine, memory.begun(), now, connection);
        }
    }

    /// Publishes the results of the turn to threads outside.
    #[inline]
    fn finish(&mut self, host: &RuntimeHost, now: Instant, worked: bool) {
        self.counters.turns += 1;
        host.arming.publish(self.engine.report_count() + self.news + self.counters.refused_late);
        self.has_sent_datagrams = false;
        // If this turn deferred transmission, the next turn is due at once. Otherwise a thread
        // could go to sleep before the frames are sent.
        let due = if self.has_deferred { now } else { self.engine.poll_timeout() };
        let due = due.min(self.machines.due()).min(host.hooks.due());
        let due = due.min(self.retiring.look_at()).min(self.lookers_due);
        host.turn_due.store(due.0, Ordering::Relaxed);
        if worked {
            if let Some(queue) = self.engine.take_fired() {
                let others = std::iter::from_fn(|| self.engine.take_fired());
                host.pass_on_fired(std::iter::once(queue).chain(others));
            }
            if let Some(queue) = self.engine.take_below_limit() {
                let others = std::iter::from_fn(|| self.engine.take_below_limit());
                host.pass_on_below_limit(std::iter::once(queue).chain(others));
            }
            host.worked_at.store(now.0, Ordering::Relaxed);
            self.counters.turns_with_work += 1;
            // Reading the clock costs as much as a small operation, so only one turn in
            // [`TURNS_PER_SAMPLE`] is measured.
            if self.counters.turns_with_work.is_multiple_of(TURNS_PER_SAMPLE) {
                let passed_ns = self.clock.now(&host.clock).since_ns(now);
                self.counters.protocol_ns += passed_ns * TURNS_PER_SAMPLE;
            }
        }
    }

    /// Updates, for each link of a set, which descriptors the sleeper watches.
    #[cold]
    fn watch_again(&self, host: &RuntimeHost, links: u16) {
        for index in (0..LINKS_MAX).filter(|index| links >> index & 1 != 0) {
            self.watch(host, index);
        }
    }

    /// Updates which descriptors of one link the sleeper watches.
    #[cold]
    fn watch(&self, host: &RuntimeHost, index: usize) {
        let watched =
            self.links.get(index).and_then(Option::as_ref).filter(|link| !link.has_failed);
        let fds = watched.map(|link| link.driver.wait_fds().map(|fd| fd.map(|fd| fd.as_raw_fd())));
        let is_full = self.full >> index & 1 != 0;
        host.sleeper.watch(index, fds.map(|fds| Watched { fds, is_full }));
        for (position, fd) in fds.unwrap_or_default().into_iter().enumerate() {
            host.inherited.set(index * FDS_PER_LINK + position, fd);
        }
        host.call_watch();
    }
}

/// The reason why a link could not be attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// An endpoint has at most 16 links.
    #[error("the endpoint already has {LINKS_MAX} links, the maximum; remove a link first")]
    NoneLeft,
    /// The engine refused the link.
    #[error(transparent)]
    Refused(#[from] EngineLinkError),
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Nanoseconds for which shared memory counts as busy after it delivered a frame: a few round
/// trips.
const MEMORY_BUSY_NS: u64 = 20_000;

/// Interval in nanoseconds at which a polling application asks a link for its events, which are
/// rare. The call is indirect. After a system call, the processor mispredicts the target of the
/// call, which costs 10 ns.
const NEWS_NS: u64 = 10_000;

/// One of every 16 turns with work is measured.
const TURNS_PER_SAMPLE: u64 = 16;

/// Approximate maximum of frames that one turn reads from one link: four coalesced messages of 64
/// frames. Then the turn should send acknowledgements and read the other links.
const BURST_FRAMES: usize = 256;

/// Maximum number of times that [`Driver::send_out`] takes a batch of work from a source and sends
/// the batch. A source has at most 64 batches of 256 pieces of work.
const SENT_OUT_ROUNDS: u32 = 64;
