//! Simulated hosts with engines, connected by a network, in virtual time.

mod load;

use std::collections::VecDeque;

use delivery::{Instant, LinkEvent, LinkId, RxFrame};
use mem::Payload;
use wire_edge::PeerAddr;

pub(crate) use load::Load;

use crate::host::{Completion, ConnectionHandle, HostEngine, HostEvent, Wire};
use crate::network::RECEIVE_BUFFER_BYTES;
use crate::network::{Arrival, Network, NetworkEvent, Notice, PortId, SendOutcome};
use crate::queue::EventQueue;
use crate::random::Random;
use crate::trace::{Kind, Trace};

/// An event scheduled in a world.
#[derive(Clone, Copy, Debug)]
pub enum WorldEvent {
    /// An event of the network.
    Network(NetworkEvent),
    /// A timer of a host. If the host has set its timer to another time after this event was
    /// scheduled, the event is ignored.
    Timer {
        /// Index of the host.
        host: usize,
    },
    /// A driver accepts frames again.
    DriverReady {
        /// Index of the host.
        host: usize,
        /// The link of the driver.
        link: LinkId,
    },
    /// A paused host runs again.
    Resume {
        /// Index of the host.
        host: usize,
    },
    /// A host that runs its engine only at intervals runs it now.
    Turn {
        /// Index of the host.
        host: usize,
    },
    /// The scheduler of a host with shared processors has work. The event is ignored if the
    /// scheduler's plans have changed since it was scheduled.
    Processors {
        /// Index of the host.
        host: usize,
        /// The scheduler's token when this event was scheduled.
        token: u64,
    },
    /// A wake-up that the application requested.
    Wake {
        /// The token that the application passed.
        token: u64,
    },
}

impl From<NetworkEvent> for WorldEvent {
    fn from(event: NetworkEvent) -> Self {
        Self::Network(event)
    }
}

/// The application code of all hosts of a world.
pub trait Application<E> {
    /// Handles a wake-up that [`World::wake_at`] has scheduled.
    fn on_wake(&mut self, world: &mut World<E>, token: u64);
    /// Handles an event of an engine.
    fn on_event(&mut self, world: &mut World<E>, host: usize, event: HostEvent);
    /// Handles the end of a run of a host's engine (a turn). In this turn, the host has handled an
    /// input and has sent all frames that its drivers accepted.
    fn on_turn(&mut self, world: &mut World<E>, host: usize);
}

/// All hosts, the network and the virtual clock.
#[derive(Debug)]
pub struct World<E> {
    /// The trace of the run.
    pub trace: Trace,
    /// The network. Tests can change it at any time.
    pub network: Network,
    queue: EventQueue<WorldEvent>,
    hosts: Vec<WorldHost<E>>,
    /// For each port, its host and link.
    owners: Vec<(usize, LinkId)>,
    /// Number of times that engines have run at the current virtual time.
    turns_at_this_time: u32,
}

/// Error: the virtual clock stands still, because hosts continually cause each other to act.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Livelock {
    /// Index of the host that was busy last.
    pub host: usize,
    /// The virtual time at which the clock stands still.
    pub time: Instant,
}

impl<E: HostEngine> World<E> {
    /// Creates a world without hosts.
    pub fn new(network_seed: u64, trace_tail_entries: usize) -> Self {
        Self {
            trace: Trace::new(trace_tail_entries),
            network: Network::new(network_seed),
            queue: EventQueue::new(),
            hosts: Vec::new(),
            owners: Vec::new(),
            turns_at_this_time: 0,
        }
    }

    /// Adds a host with these ports, in the order of its links. Returns the host's index.
    ///
    /// # Panics
    /// Panics if `ports` are not the first ports of the network that have no host yet.
    pub fn add_host(&mut self, engine: E, ports: &[PortId]) -> usize {
        let host = self.hosts.len();
        for (link, port) in ports.iter().enumerate() {
            assert_eq!(usize::from(port.0), self.owners.len(), "ports are given in order");
            self.owners.push((host, LinkId(link as u8)));
        }
        self.hosts.push(WorldHost {
            engine,
            ports: ports.to_vec(),
            paused: false,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            timer_at: Instant::NEVER,
            detached: vec![false; ports.len()],
            refusing: vec![false; ports.len()],
            announced: Vec::new(),
            turns: None,
            load: None,
            wants_turn: true,
            frames_handled: 0,
            newest_ordinal: 0,
            overtaken: 0,
        });
        self.attach_links(host);
        host
    }

    /// Returns the virtual clock.
    pub const fn now(&self) -> Instant {
        self.queue.now()
    }

    /// Returns the number of hosts.
    pub const fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns a host's engine for inspection.
    pub fn engine(&self, host: usize) -> &E {
        &self.hosts[host].engine
    }

    /// Returns a host's engine for changes. If a change makes frames ready, the world sends them
    /// before the clock advances.
    pub fn engine_mut(&mut self, host: usize) -> &mut E {
        self.hosts[host].wants_turn = true;
        &mut self.hosts[host].engine
    }

    /// Removes and returns a completion of a host's connection.
    pub fn poll_completion(
        &mut self,
        host: usize,
        connection: ConnectionHandle,
    ) -> Option<Completion> {
        // Without a completion, the engine need not run.
        let completion = self.hosts[host].engine.poll_completion(connection);
        self.hosts[host].wants_turn |= completion.is_some();
        completion
    }

    /// Returns a host's ports in the order of its links.
    pub fn ports(&self, host: usize) -> &[PortId] {
        &self.hosts[host].ports
    }

    /// Returns the number of frames that a host received after a frame that was sent later.
    pub fn overtaken(&self, host: usize) -> u64 {
        self.hosts[host].overtaken
    }

    /// Schedules a wake-up of the application at `time`. `token` identifies the wake-up.
    pub fn wake_at(&mut self, time: Instant, token: u64) {
        self.queue.push(time, WorldEvent::Wake { token });
    }

    /// Pauses a host until `until`. In this time, frames queue in its drivers, and its timers have
    /// no effect.
    pub fn pause(&mut self, host: usize, until: Instant) {
        self.hosts[host].paused = true;
        self.trace.record(self.now(), Kind::Paused, host as u32, until.0);
        self.queue.push(until, WorldEvent::Resume { host });
    }

    /// Resumes a paused host immediately.
    pub fn resume(&mut self, host: usize) {
        if !self.hosts[host].paused {
            return;
        }
        self.trace.record(self.now(), Kind::Resumed, host as u32, 0);
        let state = &mut self.hosts[host];
        state.paused = false;
        state.inbox_bytes = 0;
        state.wants_turn = true;
        for (link, arrival) in core::mem::take(&mut state.inbox) {
            self.deliver(host, link, arrival);
        }
        self.handle_timer(host);
    }

    /// Returns the number of frames that the engines of a host have handled since the start. As
    /// long as the number stays the same, the peer does not change the host's memory.
    pub fn frames_handled(&self, host: usize) -> u64 {
        self.hosts[host].frames_handled
    }

    /// Returns whether a host is paused.
    pub fn is_paused(&self, host: usize) -> bool {
        self.hosts[host].paused
    }

    /// Replaces a host's engine, so that the host loses all its state. Frames in flight still
    /// arrive.
    pub fn restart(&mut self, host: usize, engine: E) {
        let now = self.now();
        self.trace.record(now, Kind::Restarted, host as u32, 0);
        let state = &mut self.hosts[host];
        state.engine = engine;
        state.paused = false;
        state.inbox.clear();
        state.inbox_bytes = 0;
        state.timer_at = Instant::NEVER;
        state.wants_turn = true;
        self.attach_links(host);
    }

    /// Detaches a link from a host's engine, as if its interface had been removed.
    pub fn detach_link(&mut self, host: usize, link: LinkId) {
        if std::mem::replace(&mut self.hosts[host].detached[usize::from(link.0)], true) {
            return;
        }
        let port = self.hosts[host].ports[usize::from(link.0)];
        self.network.set_up(port, false);
        self.report_changes();
        self.trace.record(self.now(), Kind::LinkChanged, u32::from(port.0), DETACHED);
        self.engine_mut(host).detach_link(link);
    }

    /// Attaches a link that was detached to a host's engine.
    pub fn attach_link(&mut self, host: usize, link: LinkId) {
        if !std::mem::replace(&mut self.hosts[host].detached[usize::from(link.0)], false) {
            return;
        }
        let (now, port) = (self.now(), self.hosts[host].ports[usize::from(link.0)]);
        self.network.set_up(port, true);
        let caps = self.network.caps(port);
        self.trace.record(now, Kind::LinkChanged, u32::from(port.0), ATTACHED);
        self.engine_mut(host).attach_link(now, link, caps);
        self.report_changes();
    }

    /// Returns whether a link is attached to a host's engine.
    pub fn is_attached(&self, host: usize, link: LinkId) -> bool {
        !self.hosts[host].detached[usize::from(link.0)]
    }

    /// Reports pending link changes to the hosts.
    pub fn report_changes(&mut self) {
        while let Some(Notice { port, event }) = self.network.poll_notice() {
            let (host, link) = self.owners[usize::from(port.0)];
            let now = self.now();
            self.trace.record(now, Kind::LinkChanged, u32::from(port.0), 0);
            self.hosts[host].wants_turn = true;
            self.hosts[host].engine.handle_link_event(now, link, event);
        }
    }

    /// Makes a host run its engine at intervals instead of after each input.
    pub(crate) fn set_turns(&mut self, host: usize, turns: Turns, random: Random) {
        let state = TurnState { turns, random, next_at: Instant(0), is_scheduled: false };
        self.hosts[host].turns = Some(state);
    }

    /// Schedules a forged frame with the source address `from`. The frame arrives at `to` after
    /// `delay_ns`.
    pub(crate) fn inject(&mut self, from: PeerAddr, to: PortId, bytes: Vec<u8>, delay_ns: u64) {
        let time = self.now().after_ns(delay_ns);
        self.trace.record(
            self.now(),
            Kind::Replayed,
            u32::from(to.0),
            crate::trace::digest(&bytes),
        );
        self.network.inject(&mut self.queue, from, to, bytes, time);
    }

    /// Reports a link event to a host. The event need not have happened, because attackers can
    /// cause false reports.
    pub(crate) fn notify(&mut self, host: usize, link: LinkId, event: LinkEvent) {
        let now = self.now();
        self.trace.record(now, Kind::LinkChanged, host as u32, NOTIFIED);
        self.engine_mut(host).handle_link_event(now, link, event);
    }

    /// Runs until `limit`, or until no events remain. Sets the clock to `limit`.
    ///
    /// # Errors
    /// Returns [`Livelock`] if the clock no longer advances.
    pub fn run_until(
        &mut self,
        limit: Instant,
        application: &mut dyn Application<E>,
    ) -> Result<(), Livelock> {
        self.take_turns(application)?;
        loop {
            let before = self.now();
            let Some(event) = self.queue.pop_until(limit) else { break };
            if self.now() > before {
                self.turns_at_this_time = 0;
            }
            self.handle(event, application);
            self.take_turns(application)?;
        }
        self.queue.advance(limit);
        Ok(())
    }

    fn handle(&mut self, event: WorldEvent, application: &mut dyn Application<E>) {
        match event {
            WorldEvent::Network(event) => {
                let arrival = self.network.handle(&mut self.queue, &mut self.trace, event);
                if let Some(arrival) = arrival {
                    let (host, link) = self.owners[usize::from(arrival.port.0)];
                    self.receive(host, link, arrival);
                }
            }
            WorldEvent::Timer { host } => {
                let state = &mut self.hosts[host];
                if state.timer_at <= self.queue.now() {
                    state.timer_at = Instant::NEVER;
                    state.wants_turn = true;
                    if state.is_prompt() {
                        self.handle_timer(host);
                    }
                }
            }
            WorldEvent::DriverReady { host, link } => {
                self.hosts[host].refusing[usize::from(link.0)] = false;
                self.hosts[host].wants_turn = true;
            }
            WorldEvent::Turn { host } => {
                if let Some(turns) = &mut self.hosts[host].turns {
                    turns.is_scheduled = false;
                }
            }
            WorldEvent::Processors { host, token } => {
                self.run_processors(host, token, application);
            }
            WorldEvent::Resume { host } => self.resume(host),
            WorldEvent::Wake { token } => application.on_wake(self, token),
        }
        self.report_changes();
    }

    /// Handles a frame that has reached a host's driver.
    fn receive(&mut self, host: usize, link: LinkId, arrival: Arrival) {
        let now = self.now();
        let state = &mut self.hosts[host];
        state.wants_turn |= !state.paused;
        if !state.paused && state.is_prompt() {
            return self.deliver(host, link, arrival);
        }
        let bytes = arrival.bytes.len() as u32;
        if state.inbox_bytes + bytes > RECEIVE_BUFFER_BYTES {
            self.trace.record(now, Kind::Overrun, host as u32, u64::from(bytes));
            return self.network.recycle(arrival.bytes);
        }
        state.inbox_bytes += bytes;
        state.inbox.push_back((link, arrival));
    }

    fn deliver(&mut self, host: usize, link: LinkId, mut arrival: Arrival) {
        let now = self.now();
        let frame = RxFrame {
            bytes: &mut arrival.bytes,
            outside: Payload::EMPTY,
            received_at: now,
            congestion_experienced: arrival.marked,
            from: arrival.from,
        };
        let state = &mut self.hosts[host];
        state.overtaken += u64::from(arrival.ordinal < state.newest_ordinal);
        state.newest_ordinal = state.newest_ordinal.max(arrival.ordinal);
        state.frames_handled += 1;
        state.engine.handle_frame(now, link, frame);
        self.network.recycle(arrival.bytes);
    }

    fn handle_timer(&mut self, host: usize) {
        let now = self.now();
        let state = &mut self.hosts[host];
        if !state.paused && state.engine.poll_timeout() <= now {
            self.trace.record(now, Kind::Timer, host as u32, 0);
            state.engine.handle_timeout(now);
        }
    }

    /// Runs the engine of each host that had an input, until no host has more output.
    fn take_turns(&mut self, application: &mut dyn Application<E>) -> Result<(), Livelock> {
        let now = self.now();
        while let Some(host) = self.hosts.iter().position(|state| state.may_turn(now)) {
            self.turns_at_this_time += 1;
            if self.turns_at_this_time > TURNS_PER_INSTANT_MAX {
                return Err(Livelock { host, time: self.now() });
            }
            self.hosts[host].wants_turn = false;
            if !self.hosts[host].is_prompt() {
                self.begin_turn(host);
            }
            self.finish_turn(host, application);
        }
        self.schedule_turns();
        for host in 0..self.hosts.len() {
            self.schedule_processors(host);
        }
        Ok(())
    }

    /// Polls the outputs of a host's engine.
    fn finish_turn(&mut self, host: usize, application: &mut dyn Application<E>) {
        while let Some(event) = self.hosts[host].engine.poll_event() {
            application.on_event(self, host, event);
        }
        self.transmit(host);
        self.arm_timer(host);
        application.on_turn(self, host);
    }

    /// Handles the waiting frames and the timer of a host that runs its engine only at intervals or
    /// shares its processors.
    fn begin_turn(&mut self, host: usize) {
        let now = self.queue.now();
        let state = &mut self.hosts[host];
        if let Some(turns) = &mut state.turns {
            turns.next_at = now.after_ns(turns.turns.every_ns);
        }
        state.inbox_bytes = 0;
        for (link, arrival) in core::mem::take(&mut state.inbox) {
            self.deliver(host, link, arrival);
        }
        self.handle_timer(host);
    }

    /// Schedules the next run of the engine of each host that runs its engine at intervals and has
    /// input.
    fn schedule_turns(&mut self) {
        for (host, state) in self.hosts.iter_mut().enumerate() {
            if let Some(turns) = &mut state.turns
                && state.wants_turn
                && !state.paused
                && !turns.is_scheduled
            {
                turns.is_scheduled = true;
                self.queue.push(turns.next_at, WorldEvent::Turn { host });
            }
        }
    }

    fn transmit(&mut self, host: usize) {
        let now = self.queue.now();
        let Self { trace, network, queue, hosts, .. } = self;
        let WorldHost { engine, ports, refusing, announced, turns, wants_turn, .. } =
            &mut hosts[host];
        let is_brief = turns.as_ref().is_some_and(|state| state.turns.sends_briefly);
        let mut has_sent = false;
        let wire: &mut Wire<'_> = &mut |link, to, pieces| {
            let index = usize::from(link.0);
            let (Some(port), Some(refusing)) = (ports.get(index), refusing.get_mut(index)) else {
                return false;
            };
            if *refusing {
                return false;
            }
            match network.send(queue, trace, *port, to, pieces) {
                SendOutcome::Accepted => {
                    has_sent = true;
                    true
                }
                SendOutcome::Refused(ready_at) => {
                    *refusing = true;
                    queue.push(ready_at, WorldEvent::DriverReady { host, link });
                    false
                }
                SendOutcome::RefusedForPeer(ready_at) => {
                    // A driver can refuse many frames before it has room again. It then sends a
                    // single report.
                    if !announced.contains(&(link, to, ready_at)) {
                        announced.retain(|&(_, _, time)| time > now);
                        announced.push((link, to, ready_at));
                        queue.push(ready_at, WorldEvent::DriverReady { host, link });
                    }
                    false
                }
            }
        };
        if !is_brief {
            return engine.poll_transmit(now, wire);
        }
        let has_more = engine.poll_transmit_briefly(now, wire);
        // If the driver accepted no frame, the remaining frames wait until the driver has room.
        *wants_turn |= has_more && has_sent;
    }

    /// Schedules an event for the host's timer. Does nothing if an earlier event is scheduled.
    fn arm_timer(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        let mut due = state.engine.poll_timeout();
        if let Some(turns) = &mut state.turns
            && due != Instant::NEVER
            && due < state.timer_at
        {
            due = due.after_ns(turns.random.between(0, turns.turns.timer_late_ns_max));
        }
        if due < state.timer_at {
            state.timer_at = due;
            self.queue.push(due, WorldEvent::Timer { host });
        }
        // A later timeout needs no new event. When the earlier event is handled, the handler finds
        // that the timer is not due, and calls this function again.
    }

    fn attach_links(&mut self, host: usize) {
        let now = self.now();
        let state = &mut self.hosts[host];
        for (index, port) in state.ports.iter().enumerate() {
            if state.detached[index] {
                continue;
            }
            let link = LinkId(index as u8);
            state.engine.attach_link(now, link, self.network.caps(*port));
            if !self.network.is_up(*port) {
                state.engine.handle_link_event(now, link, LinkEvent::Down);
            }
        }
    }
}

#[derive(Debug)]
struct WorldHost<E> {
    engine: E,
    ports: Vec<PortId>,
    /// For each link, whether it is detached from the engine.
    detached: Vec<bool>,
    paused: bool,
    /// Frames that arrived while the host did not run.
    inbox: VecDeque<(LinkId, Arrival)>,
    inbox_bytes: u32,
    /// Time of the earliest timer event that is scheduled for this host.
    timer_at: Instant,
    /// For each link, whether its driver currently refuses all frames.
    refusing: Vec<bool>,
    /// Peers for which a driver is full, each with the time when the driver will report that it has
    /// room.
    announced: Vec<(LinkId, PeerAddr, Instant)>,
    /// State for a host that runs its engine only at intervals; `None` for others.
    turns: Option<TurnState>,
    /// State for a host whose engine thread shares processors with other threads; `None` for
    /// others.
    load: Option<load::LoadState>,
    /// Whether the host has had input since its outputs were last polled.
    wants_turn: bool,
    /// Number of frames that the engines of this host have handled.
    frames_handled: u64,
    /// Ordinal of the newest frame that the host has handled.
    newest_ordinal: u64,
    /// Number of frames that the host handled after a frame that was sent later.
    overtaken: u64,
}

impl<E> WorldHost<E> {
    /// Returns whether the host has input and may run its engine now.
    fn may_turn(&self, now: Instant) -> bool {
        let is_time = self.turns.as_ref().is_none_or(|turns| turns.next_at <= now);
        self.wants_turn && !self.paused && is_time && self.load.is_none()
    }

    /// Returns whether the host handles each input immediately.
    const fn is_prompt(&self) -> bool {
        self.turns.is_none() && self.load.is_none()
    }
}

/// Times at which a host runs its engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Minimum time between two runs of the engine, in nanoseconds. Frames that arrive and
    /// operations that are posted between two runs wait for the next run.
    pub(crate) every_ns: u64,
    /// Maximum delay of a timer, in nanoseconds.
    pub(crate) timer_late_ns_max: u64,
    /// Whether a run of the engine sends only the frames that one poll returns. If more frames are
    /// left, the next run polls again.
    pub(crate) sends_briefly: bool,
}

#[derive(Debug)]
struct TurnState {
    turns: Turns,
    random: Random,
    /// Earliest time of the next run of the engine.
    next_at: Instant,
    /// Whether a run of the engine is scheduled.
    is_scheduled: bool,
}

/// Detail of a [`Kind::LinkChanged`] event in the trace: a link was detached.
const DETACHED: u64 = 1;
/// Detail of a [`Kind::LinkChanged`] event in the trace: a link was attached.
const ATTACHED: u64 = 2;
/// Detail of a [`Kind::LinkChanged`] event in the trace: a host got a report of a link event.
const NOTIFIED: u64 = 3;

/// Maximum number of times that the engines of all hosts run at the same virtual time. If they run
/// more often, the world reports a [`Livelock`]. Even a burst that fills every queue causes only
/// some thousands of runs. An endless loop soon exceeds the limit.
const TURNS_PER_INSTANT_MAX: u32 = 100_000;
