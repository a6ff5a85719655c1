//! The machine: all streams and listening ports of a device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use delivery::Instant;
use iwarp::{Config, Counters};
use link::tcp::TcpPort;
use mem::MemoryAccess;
use rdma_cm::{Caller, Exchange, Listener, PortSpace, Request};
use runtime::{Descriptors, Machine, Progress, Readiness};
use verbs::{Gid, Registry};
use work::{CompletionQueue, Owner};

use crate::busy::BusyStreams;
use crate::ends::end_of;
use crate::entry::{Asked, Asking, Entry, Found, Tools, segment_bytes};
use crate::half_open::HalfOpenCount;
use crate::inside::Inside;
use crate::limits::READ_DEPTH;
use crate::source::{QueuePairSource, RungStreams};
use crate::statistics::{Statistics, Totals};

/// The device of the streams.
pub(crate) trait Home: Send + Sync {
    /// Returns the registry of completion owners.
    fn registry(&self) -> &Registry;

    /// Returns the exchange of a stream that a peer has asked for.
    fn exchange(self: Arc<Self>, stream: u64) -> Arc<dyn Exchange>;
}

/// All streams and listening ports of a device.
pub(crate) struct Streams {
    home: Option<Weak<dyn Home>>,
    descriptors: Option<Descriptors>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ports: Vec<Option<Listened>>,
    /// Ports at which connections wait.
    ready_ports: Vec<usize>,
    /// Ports at which connections wait and that accept none, because they have the maximum of
    /// half-open ones.
    full_ports: Vec<usize>,
    rung: Arc<RungStreams>,
    /// Room for the streams whose doorbells were rung.
    rung_now: Vec<u64>,
    /// The streams that have something to do in the next turn.
    active: Vec<u32>,
    busy: BusyStreams,
    /// Whether the runtime polls the descriptors around the next turn, which then need not try to
    /// read the busy streams.
    is_polled: bool,
    /// When streams want their turns. An entry may be out of date: the stream decides.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The streams that may have memory of bursts.
    used: Vec<u32>,
    /// When the memory of those that are idle is released. `NEVER` if `used` is empty.
    release_at: Instant,
    tools: Tools,
    config: Config,
    /// What the streams that have ended had done, and how many streams there were.
    ended: Totals,
    /// The statistics socket; `None` if no name was free for it.
    statistics: Option<Statistics>,
    /// Whether a process waits for the statistics.
    is_asked: bool,
    dropped: Arc<DroppedExchanges>,
    /// Whether callers were notified since the last turn.
    has_news: bool,
    /// Whether the process ends.
    is_process_ending: bool,
}

/// Streams whose exchanges were dropped inside a turn, for example because the id that listens has
/// no room for a request. The next turn forgets them.
#[derive(Debug, Default)]
pub(crate) struct DroppedExchanges(Mutex<Vec<u64>>);

impl DroppedExchanges {
    pub(crate) fn add(&self, stream: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A place for a stream.
#[derive(Default)]
struct Slot {
    /// Number of streams that have had this place.
    life: u32,
    entry: Option<Entry>,
    is_active: bool,
    /// Whether the stream is in the list of those that may have memory of bursts.
    is_listed: bool,
    /// Whether the stream has worked since the last look at that list.
    has_worked: bool,
    /// Earliest time at which the timers call the stream. `None` if they do not.
    called_at: Option<Instant>,
}

/// A port at which an id listens.
struct Listened {
    port: Arc<TcpPort>,
    listener: Arc<dyn Listener>,
    /// The accepted connections whose peers have not sent a request yet.
    half_open: HalfOpenCount,
}

impl Streams {
    pub(crate) fn new(
        rung: &Arc<RungStreams>,
        dropped: &Arc<DroppedExchanges>,
        config: Config,
        tools: Tools,
        statistics: Option<Statistics>,
    ) -> Self {
        Self {
            home: None,
            descriptors: None,
            slots: Vec::new(),
            free: Vec::new(),
            ports: Vec::new(),
            ready_ports: Vec::new(),
            full_ports: Vec::new(),
            rung: Arc::clone(rung),
            rung_now: Vec::new(),
            active: Vec::new(),
            busy: BusyStreams::default(),
            is_polled: false,
            timers: BinaryHeap::new(),
            used: Vec::new(),
            release_at: Instant::NEVER,
            tools,
            config,
            ended: Totals::default(),
            statistics,
            is_asked: false,
            dropped: Arc::clone(dropped),
            has_news: false,
            is_process_ending: false,
        }
    }

    /// Sets the device to which the streams belong.
    pub(crate) fn settle(&mut self, home: Weak<dyn Home>) {
        self.home = Some(home);
    }

    fn home(&self) -> Option<Arc<dyn Home>> {
        self.home.as_ref().and_then(Weak::upgrade)
    }

    /// Adds the stream of an initiator. Returns the bits of its owner.
    pub(crate) fn connect(
        &mut self,
        asking: Asking,
        source: Arc<QueuePairSource>,
        caller: Arc<dyn Caller>,
    ) -> std::io::Result<u64> {
        let owner = self.next_owner();
        self.carry(owner, &source);
        self.insert(Entry::asking(owner, asking, source, caller))?;
        Ok(owner.bits())
    }

    /// Accepts the request of a peer. Returns false if the peer has withdrawn it.
    pub(crate) fn accept(
        &mut self,
        stream: u64,
        source: &Arc<QueuePairSource>,
        private_data: &[u8],
        reads: (u16, u16),
    ) -> bool {
        let Some(entry) = self.entry(stream) else { return false };
        let owner = entry.owner();
        if !entry.accept(source, private_data, reads) {
            return false;
        }
        self.carry(owner, source);
        self.activate(owner.index());
        true
    }

    /// Makes completions and doorbells of the queue pair belong to the stream.
    fn carry(&mut self, owner: Owner, source: &Arc<QueuePairSource>) {
        if let Some(home) = self.home() {
            home.registry().own(owner, source.queue_pair());
        }
        source.set_stream(Some(owner.bits()));
    }

    /// Rejects the request of a peer.
    pub(crate) fn reject(&mut self, stream: u64, private_data: &[u8]) {
        if let Some(entry) = self.entry(stream) {
            entry.reject(private_data);
            self.activate(stream as u32);
        }
    }

    /// Closes a stream. All its completions are in their queues after this call.
    pub(crate) fn close(&mut self, now: Instant, access: &MemoryAccess<'_>, stream: u64) {
        let tools = &mut self.tools;
        let slot = self.slots.get_mut(stream as u32 as usize);
        let entry = slot.filter(|slot| slot.life == (stream >> 32) as u32);
        if let Some(entry) = entry.and_then(|slot| slot.entry.as_mut()) {
            entry.close(now, access, tools);
            self.activate(stream as u32);
        }
    }

    /// Ends a stream for a program that disconnects: sends what was posted before, and then the end
    /// of the stream. If TCP takes everything at once, this is done when the call returns.
    pub(crate) fn disconnect(&mut self, now: Instant, access: &MemoryAccess<'_>, stream: u64) {
        let Some(entry) = self.entry(stream) else { return };
        entry.disconnect(now);
        let found = self.turn_one(now, access, stream as u32);
        self.has_news |= found.has_news;
        self.activate(stream as u32);
    }

    /// Forgets the id of a stream. A request that the id has not answered is rejected.
    pub(crate) fn forget(&mut self, stream: u64) {
        if let Some(entry) = self.entry(stream) {
            entry.forget_caller();
            self.activate(stream as u32);
        }
    }

    /// Returns what all streams have done so far.
    pub(crate) fn counters(&self) -> Counters {
        let entries = self.slots.iter().filter_map(|slot| slot.entry.as_ref());
        entries.fold(self.ended.counters, |sum, entry| sum_of(sum, entry.counters()))
    }

    /// Answers the processes that ask for the statistics.
    #[cold]
    fn answer_statistics(&self) {
        let Some(statistics) = &self.statistics else { return };
        let entries = || self.slots.iter().filter_map(|slot| slot.entry.as_ref());
        let totals = Totals { counters: self.counters(), ..self.ended };
        statistics.answer(&totals, entries().count(), || {
            let mut reports: Vec<_> = entries().filter_map(Entry::report).collect();
            reports.sort_unstable_by_key(|report| report.number);
            reports
        });
    }

    /// Listens at a port. Returns the number of the port.
    pub(crate) fn listen(
        &mut self,
        port: Arc<TcpPort>,
        listener: Arc<dyn Listener>,
    ) -> std::io::Result<usize> {
        port.listen(BACKLOG)?;
        let free = self.ports.iter().position(Option::is_none);
        let index = free.unwrap_or(self.ports.len());
        if let Some(descriptors) = &self.descriptors {
            descriptors.watch(port.as_fd(), PORT_KEYS | index as u64, Readiness::READABLE)?;
        }
        let listened = Some(Listened { port, listener, half_open: HalfOpenCount::default() });
        match self.ports.get_mut(index) {
            Some(place) => *place = listened,
            None => self.ports.push(listened),
        }
        Ok(index)
    }

    /// Accepts no more connections at a port.
    pub(crate) fn stop_listening(&mut self, index: usize) {
        if let Some(listened) = self.ports.get_mut(index).and_then(Option::take)
            && let Some(descriptors) = &self.descriptors
        {
            descriptors.unwatch(listened.port.as_fd());
        }
    }

    fn entry(&mut self, stream: u64) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(stream as u32 as usize)?;
        slot.entry.as_mut().filter(|_| slot.life == (stream >> 32) as u32)
    }

    /// Returns the owner that the next stream gets.
    fn next_owner(&mut self) -> Owner {
        if self.free.is_empty() {
            self.free.push(self.slots.len() as u32);
            self.slots.push(Slot::default());
        }
        let index = self.free.last().copied().unwrap_or_default();
        let life = self.slots.get(index as usize).map_or(0, |slot| slot.life.wrapping_add(1));
        Owner::new(index, life)
    }

    fn insert(&mut self, entry: Entry) -> std::io::Result<()> {
        let index = entry.owner().index();
        if let Some(descriptors) = &self.descriptors {
            entry.watch(descriptors, index.into())?;
        }
        self.free.pop();
        if let Some(slot) = self.slots.get_mut(index as usize) {
            (slot.life, slot.entry) = (entry.owner().life(), Some(entry));
        }
        self.activate(index);
        Ok(())
    }

    fn activate(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && !std::mem::replace(&mut slot.is_active, true)
        {
            self.active.push(index);
        }
    }

    /// Takes note that a stream has worked, so that it may have memory of a burst later.
    fn note_use(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        slot.has_worked = true;
        if !std::mem::replace(&mut slot.is_listed, true) {
            self.used.push(index);
            self.release_at = self.release_at.min(now.after_ns(RELEASE_NS));
        }
    }

    /// Releases the memory of bursts of the streams that have not worked since the last call.
    #[cold]
    fn release_idle(&mut self, now: Instant) {
        let slots = &mut self.slots;
        self.used.retain(|index| {
            let Some(slot) = slots.get_mut(*index as usize) else { return false };
            if std::mem::take(&mut slot.has_worked) && slot.entry.is_some() {
                return true;
            }
            slot.is_listed = false;
            if let Some(entry) = &mut slot.entry {
                entry.release_buffers();
            }
            false
        });
        let is_empty = self.used.is_empty();
        self.release_at = if is_empty { Instant::NEVER } else { now.after_ns(RELEASE_NS) };
    }

    /// Accepts the connections that wait at a port.
    fn accept_connections(&mut self, now: Instant, index: usize) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(Some(listened)) = self.ports.get(index) else { return };
            let Some(half_open) = listened.half_open.begin() else { return self.pause(index) };
            // After an error, such as the lack of a descriptor, the connection waits on.
            let Ok(Some((socket, peer))) = listened.port.accept() else { return };
            let config = Config { mss: segment_bytes(&socket), ..self.config };
            let owner = self.next_owner();
            let entry = Entry::accepted(owner, (socket, peer), config, now, index, half_open);
            self.ended.accepted += 1;
            // Without room in the set of descriptors, the connection is dropped.
            let _dropped = self.insert(entry);
        }
    }

    /// Stops to watch a port until it has room for another half-open connection. The kernel keeps
    /// the connections that wait meanwhile.
    fn pause(&mut self, index: usize) {
        if let (Some(descriptors), Some(Some(listened))) =
            (&self.descriptors, self.ports.get(index))
        {
            descriptors.unwatch(listened.port.as_fd());
            self.full_ports.push(index);
        }
    }

    /// Watches the ports again that have room for another half-open connection.
    fn resume_ports(&mut self) {
        let Some(descriptors) = &self.descriptors else { return };
        self.full_ports.retain(|index| {
            let Some(Some(listened)) = self.ports.get(*index) else { return false };
            if listened.half_open.is_full() {
                return true;
            }
            let key = PORT_KEYS | *index as u64;
            // If the set of descriptors has no room, the port is tried again in the next turn.
            descriptors.watch(listened.port.as_fd(), key, Readiness::READABLE).is_err()
        });
    }

    /// Makes the turn of one stream.
    fn turn_one(&mut self, now: Instant, access: &MemoryAccess<'_>, index: u32) -> Found {
        let Some(slot) = self.slots.get_mut(index as usize) else { return Found::default() };
        slot.is_active = false;
        let Some(entry) = &mut slot.entry else { return Found::default() };
        let mut found = entry.turn(now, access, &mut self.tools);
        self.ended.established += u64::from(found.established);
        self.ended.broken_rules += u64::from(found.broke_rule);
        if let Some(asked) = &found.request {
            let (owner, port, local, peer) =
                (entry.owner(), entry.port(), entry.local_address(), entry.peer());
            let caller = self.on_request(owner, port, local.map(|local| (local, peer)), asked);
            if caller.is_none() {
                self.tools.journal.no_listener(peer);
            }
            if let Some(entry) = self.entry(owner.bits()) {
                match caller {
                    Some(caller) => entry.set_caller(caller),
                    None => entry.reject(&[]),
                }
            }
            self.activate(index);
        }
        let Some(slot) = self.slots.get_mut(index as usize) else { return found };
        let Some(entry) = &mut slot.entry else { return found };
        if let Some(descriptors) = &self.descriptors {
            if let Some(socket) = &found.paused {
                descriptors.unwatch(socket.as_fd());
            }
            if found.connects
                && let Err(error) = entry.watch(descriptors, index.into())
            {
                entry.fail_to_connect(now, &self.tools.journal, &error, &mut found);
            }
        }
        let awaits_answers = entry.awaits_answers();
        self.busy.on_turn(index, found.worked, awaits_answers);
        if found.has_ended {
            if let (Some(descriptors), Some(socket)) = (&self.descriptors, entry.socket()) {
                descriptors.unwatch(socket.as_fd());
            }
            self.ended.counters = sum_of(self.ended.counters, entry.counters());
            self.ended.ended += 1;
            slot.entry = None;
            self.free.push(index);
            return found;
        }
        if entry.wants_other_watch()
            && let Some(descriptors) = &self.descriptors
        {
            // Changing the watch of a watched descriptor needs no memory, so it does not fail.
            let _changed = entry.change_watch(descriptors, index.into());
        }
        let due = entry.due();
        if due != Instant::NEVER && slot.called_at.is_none_or(|at| due < at) {
            slot.called_at = Some(due);
            self.timers.push(Reverse((due, index)));
        }
        if found.more {
            self.activate(index);
        }
        found
    }

    /// Passes a request of a peer to the id that listens at the port. Returns whom to notify of
    /// what becomes of it, or `None` if the request is to be rejected.
    fn on_request(
        &self,
        owner: Owner,
        port: Option<usize>,
        addresses: Option<(SocketAddr, SocketAddr)>,
        asked: &Asked,
    ) -> Option<Arc<dyn Caller>> {
        let (local, peer) = addresses?;
        let listened = self.ports.get(port?)?.as_ref()?;
        let exchange = self.home()?.exchange(owner.bits());
        // A request of revision 1 leaves the numbers to the programs.
        let reads = |reads: Option<u16>| {
            reads.map_or(READ_DEPTH, |reads| u8::try_from(reads).unwrap_or(u8::MAX))
        };
        let request = Request {
            space: PortSpace::Tcp,
            port: local.port(),
            source_port: peer.port(),
            to: Gid::of(local.ip()),
            end: end_of(Gid::of(peer.ip()), 0, (reads(asked.ird), reads(asked.ord))),
            private_data: asked.private_data.clone(),
        };
        listened.listener.on_request(request, exchange).ok()
    }
}

impl Machine for Streams {
    fn attached(&mut self, descriptors: Descriptors) {
        if let Some(statistics) = &self.statistics {
            // If this fails, the device works, but answers no requests for statistics.
            let (fd, ready) = (statistics.descriptor(), Readiness::READABLE);
            let _unwatched = descriptors.watch(fd, STATISTICS_KEY, ready);
        }
        self.descriptors = Some(descriptors);
    }

    /// Costs one reading (`EAGAIN`) of the stream that brought something last, and of up to eight
    /// streams with reads outstanding, if nothing else is to be done.
    fn turn(&mut self, now: Instant, memory: &MemoryAccess<'_>) -> Progress {
        let _inside = Inside::enter();
        let mut rung = std::mem::take(&mut self.rung_now);
        self.rung.take(&mut rung);
        for stream in rung.drain(..) {
            if self.entry(stream).is_some() {
                self.activate(stream as u32);
            }
        }
        self.rung_now = rung;
        if std::mem::take(&mut self.is_asked) {
            self.answer_statistics();
        }
        while let Some(port) = self.ready_ports.pop() {
            self.accept_connections(now, port);
        }
        if !self.full_ports.is_empty() {
            self.resume_ports();
        }
        // While there is other work, a reading in advance would only cost a system call.
        let is_polled = std::mem::take(&mut self.is_polled);
        let is_tried = self.active.is_empty() && !is_polled;
        let busy = if is_tried { self.busy } else { BusyStreams::default() };
        for index in busy.iter() {
            let entry = self.slots.get_mut(index as usize).and_then(|slot| slot.entry.as_mut());
            if let Some(entry) = entry {
                entry.is_readable = true;
                self.activate(index);
            }
        }
        while let Some(&Reverse((due, index))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.called_at = None;
            }
            self.activate(index);
        }
        let mut progress = Progress { news: std::mem::take(&mut self.has_news), ..Progress::NONE };
        let active = std::mem::take(&mut self.active);
        for &index in &active {
            let found = self.turn_one(now, memory, index);
            if found.worked {
                self.note_use(now, index);
            }
            progress.worked |= found.worked;
            progress.news |= found.has_news;
        }
        for stream in self.dropped.take() {
            self.forget(stream);
        }
        // Keep the memory of the longer list.
        if self.active.is_empty() {
            self.active = active;
            self.active.clear();
        }
        progress.more = !self.active.is_empty();
        if self.release_at <= now {
            self.release_idle(now);
        }
        let due = self.timers.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due);
        progress.due = due.min(self.release_at);
        progress
    }

    fn on_descriptor(&mut self, key: u64, ready: Readiness) {
        if key == STATISTICS_KEY {
            self.is_asked = true;
            return;
        }
        if key & PORT_KEYS != 0 {
            self.ready_ports.push((key & !PORT_KEYS) as usize);
            return;
        }
        let index = key as u32;
        if let Some(entry) = self.slots.get_mut(index as usize).and_then(|slot| slot.entry.as_mut())
        {
            entry.is_readable |= ready.readable;
            entry.is_writable |= ready.writable;
            self.activate(index);
        }
    }

    fn on_polled(&mut self) {
        self.is_polled = true;
    }

    fn take_fired(&mut self, fired: &mut Vec<Arc<CompletionQueue>>) {
        fired.append(&mut self.tools.fired);
    }

    /// Ends all streams. Although the kernel sends what TCP has taken even after the process has
    /// ended, it resets a connection whose peer sends something then. The peer could lose what was
    /// sent last. So the process waits until the peers have ended their sides.
    fn close(&mut self, now: Instant) {
        self.is_process_ending = true;
        for index in 0..self.slots.len() as u32 {
            let entry = self.slots.get_mut(index as usize).and_then(|slot| slot.entry.as_mut());
            if let Some(entry) = entry {
                if entry.has_queue_pair() {
                    entry.disconnect(now);
                }
                self.activate(index);
            }
        }
    }

    fn is_closing(&self) -> bool {
        let mut entries = self.slots.iter().filter_map(|slot| slot.entry.as_ref());
        self.is_process_ending && entries.any(Entry::is_closing)
    }
}

fn sum_of(one: Counters, other: Counters) -> Counters {
    Counters {
        fpdus_sent: one.fpdus_sent + other.fpdus_sent,
        fpdus_received: one.fpdus_received + other.fpdus_received,
        bytes_sent: one.bytes_sent + other.bytes_sent,
        bytes_received: one.bytes_received + other.bytes_received,
        nudges: one.nudges + other.nudges,
    }
}

/// Time after which an idle stream releases the memory of its last burst, in nanoseconds. The next
/// burst allocates it again, which costs some microseconds, so that the time hardly matters.
const RELEASE_NS: u64 = 1_000_000_000;

/// Keys of ports among the keys of the machine. Streams have the keys below.
const PORT_KEYS: u64 = 1 << 31;

/// Key of the statistics socket. No device has as many ports.
const STATISTICS_KEY: u64 = u32::MAX as u64;

/// Connections that the kernel keeps while the machine is busy.
const BACKLOG: u32 = 1024;

/// Connections that one turn accepts at a port.
const ACCEPTED_AT_ONCE: u32 = 16;
