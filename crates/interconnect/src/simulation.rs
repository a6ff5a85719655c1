//! A run: ranks on hosts execute a workload over a fabric, in virtual time.

mod due;
mod outcome;
mod parallel;
mod processors;

use std::ops::{ControlFlow, Range};

use super::ethernet::{PortCounters, TransportCounts};
use super::loggp::LogGpConfiguration;
use super::receiving::{Interrupts, Noticed, ReceivingConfiguration};
use super::records::{NEVER_PS, Recorder, Work};
use super::slab::Slab;
use super::statistics::mix;
use super::wheel::{Event, Wheel};
use super::workload::{Action, Actions, Origin, Received, Workload};

use outcome::check_end;
use processors::{Processors, What};

pub use outcome::{Accepted, Outcome, Progress, Stuck, Watcher, WorkloadOutcome};
pub use parallel::{Driver, InTurns, Part, Parts, Shares, WATCHED_EVENTS, Window};

/// A network that carries messages from host to host.
pub trait Fabric {
    /// Whether messages from a host to itself travel to its switch and back. If this is false, such
    /// messages never leave the host.
    const CARRIES_OWN: bool = false;

    /// Accepts a message that its host hands over now.
    fn inject(&mut self, context: &mut Context, message: u32);

    /// Handles an event that the fabric scheduled; its `place` is below [`FABRIC_PLACES`].
    fn handle(&mut self, context: &mut Context, event: Event);

    /// Prefetches the state that the events of the next wheel slot need ([`Wheel::due`]). The run
    /// calls this function before the slot starts. If the fabric's state exceeds the caches, the
    /// processor can then load many cache lines at the same time.
    #[inline]
    fn foresee(&mut self, _context: &Context) {}

    /// Prefetches the state that an event needs. The event will happen soon ([`Wheel::ahead`]).
    #[inline]
    fn foresee_event(&self, _event: &Event) {}

    /// Prefetches the state of a host that will probably send soon.
    #[inline]
    fn foresee_sender(&self, _host: u32) {}

    /// Returns what the messages in flight wait for. The run calls this function when no events
    /// remain.
    fn diagnose(&self, context: &Context) -> Stuck;

    /// Returns the counters of ports at which frames were lost, marked or paused.
    fn port_counters(&self) -> Vec<PortCounters> {
        Vec::new()
    }

    /// Returns the counters of the hosts' transport; `None` if hosts have no transport.
    fn transport_counts(&self) -> Option<TransportCounts> {
        None
    }

    /// Returns the parameters of the LogGP model; `None` for other fabrics. If this is `Some`, the
    /// run orders the work of processors and interfaces by the rules of the LogGP model.
    fn loggp(&self) -> Option<LogGpConfiguration> {
        None
    }

    /// Returns the number of link crossings so far, summed over all packets. A flit fabric sums
    /// over all flits.
    fn hops(&self) -> u64;

    /// Returns the slot width for the [`Wheel`], in picoseconds: half of the shortest usual time
    /// from scheduling an event until the event happens.
    fn slot_ps(&self) -> u64;
}

/// State that a fabric and the run share: future events, messages in flight, and delivered
/// messages.
#[derive(Debug)]
pub struct Context {
    /// Future events.
    pub wheel: Wheel,
    /// Messages in flight.
    pub messages: Slab<Message>,
    /// Records links and messages; `None` if the run is not recorded.
    pub recorder: Option<Box<Recorder>>,
    delivered: Vec<u32>,
    dropped: u64,
    /// Bits that are added to `Event::place` of each scheduled event.
    place_base: u32,
    /// Messages that lost a packet; `None` before the first call of [`Self::take_lost`].
    lost: Option<Vec<u32>>,
}

impl Context {
    /// Creates a context at time 0 without messages in flight. `slot_ps` is the slot width of the
    /// [`Wheel`].
    pub fn new(slot_ps: u64) -> Self {
        Self {
            wheel: Wheel::new(slot_ps),
            messages: Slab::new(),
            recorder: None,
            delivered: Vec::new(),
            dropped: 0,
            place_base: 0,
            lost: None,
        }
    }

    /// Sets bits that are added to `Event::place` of each event scheduled from now on. A fabric
    /// that contains other fabrics uses these bits to distinguish the events of these fabrics.
    pub const fn set_place_base(&mut self, place_base: u32) {
        self.place_base = place_base;
    }

    /// Removes and returns a message that was delivered during the current event, if there is one.
    /// A fabric that contains other fabrics calls this function, because it decides itself which
    /// messages ranks receive.
    pub fn take_delivered(&mut self) -> Option<u32> {
        self.delivered.pop()
    }

    /// Removes and returns a message that lost a packet, if there is one. A fabric that contains
    /// other fabrics calls this function if it repairs their losses. The context remembers lost
    /// messages only after the first call.
    pub fn take_lost(&mut self) -> Option<u32> {
        self.lost.get_or_insert_default().pop()
    }

    /// Schedules an event.
    #[inline]
    pub fn schedule(&mut self, time_ps: u64, place: u32, subject: u32) {
        let place = self.place_base | place;
        self.wheel.push(Event { time_ps, place, subject });
    }

    /// Delivers a message whose last byte has arrived now.
    #[inline]
    pub fn deliver(&mut self, message: u32) {
        self.delivered.push(message);
    }

    /// Records that a packet of a message was lost and will not be retransmitted.
    pub fn drop_packet(&mut self, message: u32) {
        self.dropped += 1;
        if let Some(lost) = &mut self.lost {
            lost.push(message);
        }
    }
}

/// A message from host to host.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Message {
    /// Time when the sender posted the message, in picoseconds.
    pub posted_ps: u64,
    /// Host that sends the message.
    pub source: u32,
    /// Host that receives the message.
    pub destination: u32,
    /// Payload, in bytes.
    pub bytes: u32,
    /// Tag that the workload gave the message.
    pub tag: u32,
    /// Number of packets of the message that have not arrived. Only the fabric uses this field.
    pub remaining: u32,
    /// Whether a switch marked one of the message's packets for congestion (ECN).
    pub is_marked: bool,
    /// The workload that posted the message.
    pub origin: Origin,
}

/// Processor time of a host for messages.
///
/// The processor does one task at a time, in the order of posts and arrivals. If all costs are 0,
/// the processor is not simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCosts {
    /// Cost of each sent message, in picoseconds.
    pub send_ps: u64,
    /// Cost of each sent byte, in picoseconds.
    pub send_ps_per_byte: u64,
    /// Cost of each received message, in picoseconds.
    pub receive_ps: u64,
    /// Cost of each received byte, in picoseconds.
    pub receive_ps_per_byte: u64,
}

impl HostCosts {
    /// Returns equal costs for sending and receiving, in picoseconds.
    #[must_use]
    pub const fn symmetric(per_message_ps: u64, per_byte_ps: u64) -> Self {
        Self {
            send_ps: per_message_ps,
            send_ps_per_byte: per_byte_ps,
            receive_ps: per_message_ps,
            receive_ps_per_byte: per_byte_ps,
        }
    }

    /// Returns these costs multiplied by a factor, rounded to picoseconds.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |cost: u64| (cost as f64 * factor).round() as u64;
        Self {
            send_ps: scale(self.send_ps),
            send_ps_per_byte: scale(self.send_ps_per_byte),
            receive_ps: scale(self.receive_ps),
            receive_ps_per_byte: scale(self.receive_ps_per_byte),
        }
    }

    /// Returns the cost of sending `bytes` bytes, in picoseconds.
    pub const fn send(&self, bytes: u32) -> u64 {
        self.send_ps + self.send_ps_per_byte * bytes as u64
    }

    /// Returns the cost of receiving `bytes` bytes, in picoseconds.
    pub const fn receive(&self, bytes: u32) -> u64 {
        self.receive_ps + self.receive_ps_per_byte * bytes as u64
    }
}

/// Bounds of a run, and the start of its measured part.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Warm-up, in picoseconds. Messages posted before this time are not measured.
    pub warmup_ps: u64,
    /// Maximum number of events of the run.
    pub events: u64,
    /// Time at which a run with an open load ends, in picoseconds. Messages that are in flight at
    /// that time do not count.
    pub stop_ps: u64,
}

impl Default for Limits {
    /// Returns limits that measure the whole run. The run stops after 2^36 events, which can take
    /// an hour.
    fn default() -> Self {
        Self { warmup_ps: 0, events: 1 << 36, stop_ps: u64::MAX }
    }
}

/// A run, with its ranks, hosts and fabric.
#[derive(Debug)]
pub struct Simulation<F, W> {
    fabric: F,
    workload: W,
    costs: HostCosts,
    limits: Limits,
    context: Context,
    actions: Actions,
    /// Host of each rank.
    hosts: Vec<u32>,
    /// Rank on each host; [`NO_RANK`] if the host has no rank.
    ranks: Vec<u32>,
    /// For each rank, the time when its host's processor is free, in picoseconds.
    free_ps: Vec<u64>,
    receiving: ReceivingConfiguration,
    /// Interrupts of the hosts; `None` if hosts poll.
    interrupts: Option<Interrupts>,
    /// Order of the work of processors and interfaces in the LogGP model. `None` in other models,
    /// in which processors and interfaces handle requests one after another.
    processors: Option<Box<Processors>>,
    /// Whether a receiving processor is busy while bytes arrive.
    holds_receivers: bool,
    /// Messages from hosts to themselves, each with arrival time, rank and message.
    loopback: Vec<(u64, u32, u32)>,
    outcome: Outcome,
    /// Period in which arrivals count as accepted load.
    accepting_ps: Range<u64>,
    /// The run ends at the first event after this time.
    end_ps: u64,
}

impl<F: Fabric, W: Workload> Simulation<F, W> {
    /// Creates a run with rank r on host `placement[r]`. A host can have only one rank.
    pub fn new(fabric: F, workload: W, placement: &[u32], costs: HostCosts) -> Self {
        let hosts_max = placement.iter().max().map_or(0, |&host| host as usize + 1);
        let mut ranks = vec![NO_RANK; hosts_max];
        for (rank, &host) in placement.iter().enumerate() {
            ranks[host as usize] = rank as u32;
        }
        let context = Context::new(fabric.slot_ps());
        let processors = fabric.loggp().map(|loggp| {
            Box::new(Processors::new(loggp, placement.len(), workload.is_unordered()))
        });
        let workloads = vec![WorkloadOutcome::default(); workload.workloads()];
        let accepting_ps = 0..workload.posts_until_ps().unwrap_or(0);
        let mut simulation = Self {
            actions: Actions::new(processors.is_some()),
            processors,
            holds_receivers: false,
            fabric,
            workload,
            costs,
            limits: Limits::default(),
            context,
            hosts: placement.to_vec(),
            free_ps: vec![0; placement.len()],
            receiving: ReceivingConfiguration::default(),
            interrupts: None,
            loopback: Vec::new(),
            ranks,
            outcome: Outcome { finished_ps: vec![0; placement.len()], workloads, ..Outcome::new() },
            accepting_ps,
            end_ps: END_PS,
        };
        simulation.note_receivers();
        simulation
    }

    /// Sets the bounds of the run.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self.accepting_ps.start = limits.warmup_ps;
        self.end_ps = limits.stop_ps.min(END_PS);
        self
    }

    /// Sets the processor time of frames, and how hosts are notified of messages.
    #[must_use]
    pub fn with_receiving(mut self, receiving: ReceivingConfiguration) -> Self {
        let interrupts = receiving.interrupts;
        self.interrupts = interrupts.map(|how| Interrupts::new(how, self.hosts.len()));
        self.receiving = receiving;
        self.note_receivers();
        self
    }

    /// Records the run with `recorder`.
    #[must_use]
    pub fn with_recorder(mut self, mut recorder: Recorder) -> Self {
        recorder.set_costs(self.costs);
        self.context.recorder = Some(Box::new(recorder));
        self
    }

    /// Runs the simulation to its end.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished.
    pub fn run(self) -> Result<Outcome, Stuck> {
        self.run_to_end().map(|(outcome, _)| outcome)
    }

    /// Runs the simulation to its end. Also returns the fabric, which has further counters.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished.
    pub fn run_to_end(self) -> Result<(Outcome, F), Stuck> {
        self.run_watched(&mut |_| ControlFlow::Continue(()))
    }

    /// Runs the simulation to its end, and reports the progress every few thousand events.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished, or `watch` stops it.
    pub fn run_watched(mut self, watch: &mut Watcher<'_>) -> Result<(Outcome, F), Stuck> {
        let mut check = CHECK_EVENTS.min(self.limits.events);
        for rank in 0..self.hosts.len() as u32 {
            self.start(rank);
        }
        while self.context.wheel.turn() {
            self.foresee();
            while let Some(event) = self.context.wheel.pop_due() {
                if let Err(stuck) = self.step(event) {
                    let is_stopped = event.time_ps > self.limits.stop_ps;
                    return if is_stopped { Ok(self.end()) } else { Err(stuck) };
                }
                if self.outcome.events >= check {
                    check = self.outcome.events + CHECK_EVENTS;
                    self.outcome.backlog.sample(event.time_ps, self.context.messages.len());
                    self.progress(event.time_ps).report(watch)?;
                }
            }
        }
        self.finish()
    }

    /// Prefetches the state that the next events need.
    #[inline]
    fn foresee(&mut self) {
        self.fabric.foresee(&self.context);
        for event in self.context.wheel.ahead().flatten() {
            if event.place < FABRIC_PLACES {
                self.fabric.foresee_event(event);
            } else if event.place & !RANK_MASK == WAKE {
                let rank = event.place & RANK_MASK;
                self.workload.foresee(rank);
                self.fabric.foresee_sender(self.hosts[rank as usize]);
            }
        }
    }

    /// Starts a rank.
    fn start(&mut self, rank: u32) {
        self.begin_again();
        self.workload.start(rank, &mut self.actions);
        self.act(rank);
    }

    /// Handles one event.
    #[inline]
    fn step(&mut self, event: Event) -> Result<(), Stuck> {
        self.outcome.events += 1;
        if event.place < FABRIC_PLACES {
            self.fabric.handle(&mut self.context, event);
        } else {
            self.handle_own(event);
        }
        while let Some(message) = self.context.delivered.pop() {
            self.on_delivered(message);
        }
        if self.outcome.events >= self.limits.events || event.time_ps > self.end_ps {
            return Err(self.endless());
        }
        Ok(())
    }

    #[cold]
    fn endless(&mut self) -> Stuck {
        let now_ps = self.context.wheel.now_ps();
        self.outcome.backlog.sample(now_ps, self.context.messages.len());
        Stuck::Endless {
            events: self.outcome.events,
            now_ps,
            messages: self.context.messages.len(),
            verdict: match self.outcome.backlog.growth() {
                Some(_) => SATURATED,
                None => ENDLESS,
            },
        }
    }

    fn progress(&self, now_ps: u64) -> Progress {
        let share = self.workload.done(now_ps);
        Progress {
            share,
            now_ps,
            events: self.outcome.events,
            messages: self.context.messages.len(),
        }
    }

    /// Extends the run until all processors are free. Processors can still be busy after the last
    /// notification.
    fn finish_ranks(&mut self) {
        for (rank, free_ps) in self.free_ps.iter().enumerate() {
            self.outcome.finish_rank(rank, *free_ps);
        }
    }

    fn finish(self) -> Result<(Outcome, F), Stuck> {
        let left = !self.context.messages.is_empty();
        let stuck = left.then(|| self.fabric.diagnose(&self.context));
        check_end(self.context.dropped, stuck, &self.workload)?;
        self.outcome.check_measured(&self.limits)?;
        Ok(self.end())
    }

    /// Ends the run and returns the outcome so far.
    fn end(mut self) -> (Outcome, F) {
        self.finish_ranks();
        self.outcome.left = self.context.messages.len();
        self.outcome.dropped = self.context.dropped;
        let sent = self.processors.as_ref().map(|processors| processors.messages);
        self.outcome.hops = sent.unwrap_or_else(|| self.fabric.hops());
        let Range { start, end } = self.accepting_ps;
        self.outcome.accepted.window_ps = end.saturating_sub(start);
        self.outcome.messages_max = self.context.messages.len_max();
        self.outcome.ports = self.fabric.port_counters();
        self.outcome.transport = self.fabric.transport_counts();
        let recorder = self.context.recorder.take();
        self.outcome.records = recorder.map(|recorder| Box::new(recorder.finish()));
        (self.outcome, self.fabric)
    }

    /// Handles an event of a rank or of its processor.
    fn handle_own(&mut self, event: Event) {
        let rank = event.place & RANK_MASK;
        match event.place & !RANK_MASK {
            INTERRUPT => self.on_interrupt(rank),
            LOOPBACK => {
                let is_due = |entry: &(u64, u32, u32)| (entry.0, entry.1) == (event.time_ps, rank);
                if let Some(at) = self.loopback.iter().position(is_due) {
                    let (_, _, index) = self.loopback.remove(at);
                    self.on_received(rank, index);
                }
            }
            WAKE => {
                self.outcome.on_reported(rank, event.time_ps);
                self.actions.now_ps = event.time_ps;
                self.go_on(rank);
                if let Some(recorder) = &mut self.context.recorder {
                    recorder.on_worked(rank, event.subject, event.time_ps);
                }
                self.workload.on_wake(rank, event.subject, &mut self.actions);
                self.act(rank);
            }
            INJECT if self.holds_receivers => self.on_sent(rank, event.subject),
            INJECT => {
                if let Some(recorder) = &mut self.context.recorder {
                    recorder.on_handed(event.subject, event.time_ps);
                }
                self.fabric.inject(&mut self.context, event.subject);
                self.on_sent(rank, event.subject);
            }
            LOOK => self.on_look(event),
            _ => {
                if self.holds_receivers {
                    // The last byte arrived earlier. Between its arrival and now, the processor
                    // spent its overhead on the message.
                    let bytes = self.context.messages.get(event.subject).bytes;
                    let delivered_ps = event.time_ps - self.receive_ps(bytes);
                    self.note_delivery(event.subject, delivered_ps);
                }
                self.on_received(rank, event.subject);
            }
        }
    }

    /// Handles the arrival of a message's last byte at its host.
    fn on_delivered(&mut self, index: u32) {
        let now_ps = self.context.wheel.now_ps();
        let message = self.note_delivery(index, now_ps);

        let rank = self.ranks[message.destination as usize];
        if let Some(interrupts) = &mut self.interrupts {
            let frames = self.receiving.frames(message.bytes);
            match interrupts.on_message(rank, index, frames, now_ps) {
                Noticed::At(time_ps) => self.context.schedule(time_ps, INTERRUPT | rank, 0),
                Noticed::Later => {}
                Noticed::Now => self.process(rank, index),
            }
            return;
        }
        self.process(rank, index);
    }

    /// Counts a message whose last byte has reached its host at `time_ps`.
    #[inline]
    fn note_delivery(&mut self, index: u32, time_ps: u64) -> Message {
        let message = *self.context.messages.get(index);
        if let Some(recorder) = &mut self.context.recorder {
            recorder.on_delivered(index, time_ps);
        }
        let is_measured = message.posted_ps >= self.limits.warmup_ps;
        if let Some(own) = self.outcome.workloads.get_mut(usize::from(message.origin.workload)) {
            own.on_delivered(&message, time_ps, is_measured);
        }
        if is_measured {
            self.outcome.latency.add(time_ps - message.posted_ps);
            self.outcome.histogram.add(time_ps - message.posted_ps);
        }
        self.outcome.delivered += 1;
        self.outcome.delivered_bytes += u64::from(message.bytes);
        if self.accepting_ps.contains(&time_ps) {
            self.outcome.accepted.bytes += u64::from(message.bytes);
        }
        let ends = u64::from(message.source) << 32 | u64::from(message.destination);
        let what = u64::from(message.tag) << 32 | u64::from(message.bytes);
        let hash = mix(mix(mix(message.posted_ps, time_ps), ends), what);
        self.outcome.hash = self.outcome.hash.wrapping_add(hash);
        message
    }

    /// Returns the time that the receiving processor spends on a message, in picoseconds.
    fn receive_ps(&self, bytes: u32) -> u64 {
        self.costs.receive(bytes) + self.receiving.reassembly_ps(bytes)
    }

    /// Makes the processor of a rank's host receive a message.
    fn process(&mut self, rank: u32, index: u32) {
        let bytes = self.context.messages.get(index).bytes;
        let mut cost_ps = self.receive_ps(bytes);
        if self.interrupts.is_some() {
            // A cost of at least 1 ps makes the processor handle the messages of an interrupt one
            // after another.
            cost_ps = cost_ps.max(1);
        }
        if cost_ps == 0 {
            self.on_received(rank, index);
            return;
        }
        let free = &mut self.free_ps[rank as usize];
        if self.interrupts.is_none()
            && let Some(processors) = &mut self.processors
        {
            processors.begin_again();
            let what = What::Receive { message: index, bytes };
            processors.ask(&mut self.context, rank, what, *free);
            return;
        }
        *free = (*free).max(self.context.wheel.now_ps()) + cost_ps;
        self.context.schedule(*free, RECEIVED | rank, index);
    }

    /// Handles the interrupt of a host. The processor handles the interrupt itself, and then all
    /// messages that have arrived.
    fn on_interrupt(&mut self, rank: u32) {
        let now_ps = self.context.wheel.now_ps();
        let Some(interrupts) = &mut self.interrupts else { return };
        let Some((cost_ps, messages)) = interrupts.take(rank, now_ps) else { return };
        let free = &mut self.free_ps[rank as usize];
        *free = (*free).max(now_ps) + cost_ps;
        for index in messages {
            self.process(rank, index);
        }
        if let Some(interrupts) = &mut self.interrupts {
            interrupts.on_handled(rank, self.free_ps[rank as usize]);
        }
    }

    /// Delivers a message to a rank.
    fn on_received(&mut self, rank: u32, index: u32) {
        let message = self.context.messages.remove(index);
        let now_ps = self.context.wheel.now_ps();
        self.go_on(rank);
        self.outcome.on_reported(rank, now_ps);
        self.actions.now_ps = now_ps;
        if let Some(recorder) = &mut self.context.recorder {
            recorder.on_received(index, now_ps);
        }
        let received = Received {
            from: self.ranks[message.source as usize],
            bytes: message.bytes,
            tag: message.tag,
            workload: message.origin.workload,
        };
        self.workload.on_received(rank, received, &mut self.actions);
        self.act(rank);
    }

    /// Gives the next requests of ranks a new sequence number, which orders them after all earlier
    /// events.
    #[inline]
    fn begin_again(&mut self) {
        if let Some(processors) = &mut self.processors {
            processors.begin_again();
        }
    }

    /// Gives the next requests of a rank the sequence number of the work that its processor has
    /// just finished. If the processor is busy or was idle, gives them a new sequence number, which
    /// orders them after all earlier events.
    #[inline]
    fn go_on(&mut self, rank: u32) {
        if let Some(processors) = &mut self.processors {
            if self.free_ps[rank as usize] == self.context.wheel.now_ps() {
                processors.go_on(rank);
            } else {
                processors.begin_again();
            }
        }
    }

    /// Performs the actions that a rank has requested.
    fn act(&mut self, rank: u32) {
        if self.actions.list.is_empty() {
            return;
        }
        let now_ps = self.context.wheel.now_ps();
        let mut list = std::mem::take(&mut self.actions.list);
        for &action in &list {
            let free = &mut self.free_ps[rank as usize];
            match action {
                Action::Turn { name } => {
                    if let Some(processors) = &mut self.processors {
                        let cause = self.context.recorder.as_ref().map(|recorder| recorder.cause());
                        let what = What::Turn { name, cause };
                        processors.ask(&mut self.context, rank, what, *free);
                    }
                }
                Action::Send { to, bytes, tag, name, origin } => {
                    let source = self.hosts[rank as usize];
                    let destination = self.hosts[to as usize];
                    let message = Message {
                        posted_ps: now_ps,
                        source,
                        destination,
                        bytes,
                        tag,
                        remaining: 0,
                        is_marked: false,
                        origin,
                    };
                    let index = self.context.messages.insert(message);
                    self.outcome.backlog.on_posted(now_ps);
                    if let Some(recorder) = &mut self.context.recorder {
                        recorder.on_posted(index, &message);
                    }
                    if let Some(processors) = &mut self.processors {
                        let what = What::Send { message: index, bytes, name };
                        processors.ask(&mut self.context, rank, what, *free);
                        continue;
                    }
                    let cost_ps = self.costs.send(bytes) + self.receiving.segmentation_ps(bytes);
                    if source == destination && !F::CARRIES_OWN {
                        let time_ps = (*free).max(now_ps) + self.costs.send(bytes);
                        self.loopback.push((time_ps, rank, index));
                        self.context.schedule(time_ps, LOOPBACK | rank, 0);
                    } else if cost_ps == 0 {
                        self.fabric.inject(&mut self.context, index);
                    } else {
                        *free = (*free).max(now_ps) + cost_ps;
                        self.context.schedule(*free, INJECT | rank, index);
                    }
                }
                Action::Compute { time_ps, tag } => {
                    if let Some(processors) = &mut self.processors {
                        if let Some(recorder) = &mut self.context.recorder {
                            recorder.on_asked(Work::new(
                                rank,
                                tag,
                                [now_ps, NEVER_PS, NEVER_PS],
                                false,
                            ));
                        }
                        processors.ask(
                            &mut self.context,
                            rank,
                            What::Compute { time_ps, tag },
                            *free,
                        );
                        continue;
                    }
                    let start_ps = (*free).max(now_ps);
                    *free = start_ps + time_ps;
                    if let Some(recorder) = &mut self.context.recorder {
                        recorder.on_asked(Work::new(rank, tag, [now_ps, start_ps, *free], false));
                    }
                    self.context.schedule(*free, WAKE | rank, tag);
                }
                Action::Wake { time_ps, tag } => {
                    if let Some(recorder) = &mut self.context.recorder {
                        let end_ps = time_ps.max(now_ps);
                        recorder.on_asked(Work::new(rank, tag, [now_ps, now_ps, end_ps], true));
                    }
                    self.context.schedule(time_ps, WAKE | rank, tag);
                }
            }
        }
        list.clear();
        self.actions.list = list;
    }
}

const SATURATED: &str = "their number kept growing, so the load is more than the network carries";
const ENDLESS: &str = "their number did not keep growing, so the workload is endless, or the limit \
                       of events is too low";
const DIVIDED: &str = "to see whether their number kept growing, run the simulation on one thread";
/// Number of events between two checks of a run. Each check also samples the number of messages in
/// flight. The events between two checks take a fraction of a millisecond of real time.
const CHECK_EVENTS: u64 = 4_096;
/// End of virtual time: about two months. Sums of earlier times never overflow.
const END_PS: u64 = 1 << 62;

/// Events belong to the fabric if their `place` is below this number.
pub const FABRIC_PLACES: u32 = 1 << 30;
const WAKE: u32 = 1 << 30;
const INJECT: u32 = 2 << 30;
const RECEIVED: u32 = 3 << 30;
/// Events of two kinds: a host has an interrupt, or a host gets a message that it sent to itself.
const INTERRUPT: u32 = WAKE | OTHER;
const LOOPBACK: u32 = INJECT | OTHER;
/// Event in which processors start waiting tasks. It comes after all tasks that end at the same
/// time.
const LOOK: u32 = RECEIVED | OTHER;
const OTHER: u32 = 1 << 29;
const RANK_MASK: u32 = OTHER - 1;
const NO_RANK: u32 = u32::MAX;
