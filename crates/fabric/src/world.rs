//! Hosts with engines, joined by a network, in virtual time.

mod load;

use std::collections::VecDeque;

use delivery::{Instant, LinkEvent, LinkId, RxFrame};
use mem::Payload;
use wire_edge::PeerAddr;

pub(crate) use load::Load;

use crate::host::{Completion, ConnectionHandle, HostEngine, HostEvent, Wire};
use crate::network::RECEIVE_BUFFER_BYTES;
use crate::{
    Arrival, EventQueue, Kind, Network, NetworkEvent, Notice, PortId, Random, SendOutcome, Trace,
};

/// Something scheduled in a world.
#[derive(Clone, Copy, Debug)]
pub enum WorldEvent {
    /// Inside the network.
    Network(NetworkEvent),
    /// A host's timer, as it stood when this was scheduled.
    Timer {
        /// The host.
        host: usize,
    },
    /// A driver takes frames again.
    DriverReady {
        /// The host.
        host: usize,
        /// Its link.
        link: LinkId,
    },
    /// A paused host runs again.
    Resume {
        /// The host.
        host: usize,
    },
    /// A host that looks only now and then looks.
    Turn {
        /// The host.
        host: usize,
    },
    /// The scheduler of a host whose processors are shared has something to do, unless that has changed since.
    Processors {
        /// The host.
        host: usize,
        /// What stood when this was scheduled.
        token: u64,
    },
    /// The application asked to be called.
    Wake {
        /// What it gave.
        token: u64,
    },
}

impl From<NetworkEvent> for WorldEvent {
    fn from(event: NetworkEvent) -> Self {
        Self::Network(event)
    }
}

/// What runs on the hosts of a world, all of it together.
pub trait Application<E> {
    /// Handles a time asked for by [`World::wake_at`].
    fn on_wake(&mut self, world: &mut World<E>, token: u64);
    /// Handles an event of an engine.
    fn on_event(&mut self, world: &mut World<E>, host: usize, event: HostEvent);
    /// Handles the end of a turn of a host, which has handled an input and sent what it could.
    fn on_turn(&mut self, world: &mut World<E>, host: usize);
}

/// All hosts, the network and the clock.
#[derive(Debug)]
pub struct World<E> {
    /// What happened.
    pub trace: Trace,
    /// The network, to be altered at will.
    pub network: Network,
    queue: EventQueue<WorldEvent>,
    hosts: Vec<WorldHost<E>>,
    /// Which host and link is behind each port.
    owners: Vec<(usize, LinkId)>,
    /// Turns since the clock last moved.
    turns_at_this_time: u32,
}

/// A world that cannot make progress.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Livelock {
    /// The host that was busy last.
    pub host: usize,
    /// When the clock stopped.
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

    /// Adds a host with the ports it owns, in the order of its links, and returns its number.
    ///
    /// # Panics
    /// If the ports are not the next ones of the network without an owner.
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

    /// Returns a host's engine, to look at.
    pub fn engine(&self, host: usize) -> &E {
        &self.hosts[host].engine
    }

    /// Returns a host's engine, to use; what it wants to send is sent before the clock moves.
    pub fn engine_mut(&mut self, host: usize) -> &mut E {
        self.hosts[host].wants_turn = true;
        &mut self.hosts[host].engine
    }

    /// Takes a completion of a connection of a host.
    pub fn poll_completion(
        &mut self,
        host: usize,
        connection: ConnectionHandle,
    ) -> Option<Completion> {
        // Nothing is to be sent for it unless there was one.
        let completion = self.hosts[host].engine.poll_completion(connection);
        self.hosts[host].wants_turn |= completion.is_some();
        completion
    }

    /// Returns a host's ports in the order of its links.
    pub fn ports(&self, host: usize) -> &[PortId] {
        &self.hosts[host].ports
    }

    /// Returns how many frames a host received after one that was sent later.
    pub fn overtaken(&self, host: usize) -> u64 {
        self.hosts[host].overtaken
    }

    /// Calls the application at `time`.
    pub fn wake_at(&mut self, time: Instant, token: u64) {
        self.queue.push(time, WorldEvent::Wake { token });
    }

    /// Stops a host for a while: frames pile up in its drivers, timers pass unnoticed.
    pub fn pause(&mut self, host: usize, until: Instant) {
        self.hosts[host].paused = true;
        self.trace.record(self.now(), Kind::Paused, host as u32, until.0);
        self.queue.push(until, WorldEvent::Resume { host });
    }

    /// Lets a paused host run at once.
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

    /// Returns how many frames the engines of a host have handled, from the start. Only a frame changes memory that
    /// a peer writes.
    pub fn frames_handled(&self, host: usize) -> u64 {
        self.hosts[host].frames_handled
    }

    /// Whether a host does not run.
    pub fn is_paused(&self, host: usize) -> bool {
        self.hosts[host].paused
    }

    /// Replaces a host's engine: everything it knew is gone. Frames in flight still arrive.
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

    /// Takes a link away from a host's engine, with its interface.
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

    /// Gives a host's engine a link back.
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

    /// Whether a host's engine has a link.
    pub fn is_attached(&self, host: usize, link: LinkId) -> bool {
        !self.hosts[host].detached[usize::from(link.0)]
    }

    /// Reports to hosts what has changed on their links.
    pub fn report_changes(&mut self) {
        while let Some(Notice { port, event }) = self.network.poll_notice() {
            let (host, link) = self.owners[usize::from(port.0)];
            let now = self.now();
            self.trace.record(now, Kind::LinkChanged, u32::from(port.0), 0);
            self.hosts[host].wants_turn = true;
            self.hosts[host].engine.handle_link_event(now, link, event);
        }
    }

    /// From now on a host looks after its engine only now and then.
    pub(crate) fn set_turns(&mut self, host: usize, turns: Turns, random: Random) {
        let state = TurnState { turns, random, next_at: Instant(0), is_scheduled: false };
        self.hosts[host].turns = Some(state);
    }

    /// A frame of somebody who claims to be `from` reaches `to` after `delay_ns`.
    pub(crate) fn inject(&mut self, from: PeerAddr, to: PortId, bytes: Vec<u8>, delay_ns: u64) {
        let time = self.now().after_ns(delay_ns);
        self.trace.record(self.now(), Kind::Replayed, u32::from(to.0), crate::digest(&bytes));
        self.network.inject(&mut self.queue, from, to, bytes, time);
    }

    /// Reports something about a link to a host, true or not.
    pub(crate) fn notify(&mut self, host: usize, link: LinkId, event: LinkEvent) {
        let now = self.now();
        self.trace.record(now, Kind::LinkChanged, host as u32, NOTIFIED);
        self.engine_mut(host).handle_link_event(now, link, event);
    }

    /// Runs until `limit`, or until nothing is left to do, and leaves the clock there.
    ///
    /// # Errors
    /// [`Livelock`] if the clock does not advance any more.
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

    /// A frame has reached a host's driver.
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

    /// Polls the outputs of every host that had an input, until none has anything more to say.
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

    /// Polls the outputs of a host.
    fn finish_turn(&mut self, host: usize, application: &mut dyn Application<E>) {
        while let Some(event) = self.hosts[host].engine.poll_event() {
            application.on_event(self, host, event);
        }
        self.transmit(host);
        self.arm_timer(host);
        application.on_turn(self, host);
    }

    /// A host that does not look at once takes what has come since.
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

    /// Hosts that have something to look at will look when it is their time.
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
                    // It says once that there is room again, however often it was asked.
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
        // With nothing taken, what is left waits for a driver.
        *wants_turn |= has_more && has_sent;
    }

    /// Makes sure an event is due when the host's timer is.
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
        // A later time needs nothing: the event already scheduled finds the timer not due and this
        // runs again.
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
    /// Links that were taken away from the engine.
    detached: Vec<bool>,
    paused: bool,
    /// Frames that arrived while the host did not run.
    inbox: VecDeque<(LinkId, Arrival)>,
    inbox_bytes: u32,
    /// When the earliest timer event of this host is scheduled.
    timer_at: Instant,
    /// Links whose driver takes nothing at present.
    refusing: Vec<bool>,
    /// Peers for which a driver is full and will say when it is not.
    announced: Vec<(LinkId, PeerAddr, Instant)>,
    /// Present if the host looks only now and then.
    turns: Option<TurnState>,
    /// Present if the engine's thread shares its processors.
    load: Option<load::LoadState>,
    /// Outputs have not been polled since the last input.
    wants_turn: bool,
    /// Frames that the engines of this host have handled.
    frames_handled: u64,
    /// Ordinal of the newest frame that was handled.
    newest_ordinal: u64,
    /// Frames handled after one that was sent later.
    overtaken: u64,
}

impl<E> WorldHost<E> {
    /// Whether there is something to look at, and it is time to.
    fn may_turn(&self, now: Instant) -> bool {
        let is_time = self.turns.as_ref().is_none_or(|turns| turns.next_at <= now);
        self.wants_turn && !self.paused && is_time && self.load.is_none()
    }

    /// Whether it takes what comes at once.
    const fn is_prompt(&self) -> bool {
        self.turns.is_none() && self.load.is_none()
    }
}

/// When a host looks after its engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Least time from one turn to the next, in nanoseconds: frames wait, and so does what was posted.
    pub(crate) every_ns: u64,
    /// Longest time by which a timer is late, in nanoseconds.
    pub(crate) timer_late_ns_max: u64,
    /// The engine is asked once in a turn what to send, and again in the next only if it has more.
    pub(crate) sends_briefly: bool,
}

#[derive(Debug)]
struct TurnState {
    turns: Turns,
    random: Random,
    /// No turn before this time.
    next_at: Instant,
    /// A turn is scheduled.
    is_scheduled: bool,
}

/// Details of [`Kind::LinkChanged`] in the trace.
const DETACHED: u64 = 1;
/// See [`DETACHED`].
const ATTACHED: u64 = 2;
/// See [`DETACHED`].
const NOTIFIED: u64 = 3;

/// Turns of all hosts at one instant beyond which the world counts as stuck. A burst that fills
/// every queue delivers some thousands of frames; a busy loop passes this at once.
const TURNS_PER_INSTANT_MAX: u32 = 100_000;
