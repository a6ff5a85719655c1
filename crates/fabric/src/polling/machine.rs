//! The event loop: two processors with their engines, and the wires between them.

use std::collections::VecDeque;

use delivery::{Instant, LinkCaps, LinkCounters, LinkId, LinkState, RxFrame};
use engine::{EngineConfig, PathInfo};
use mem::Payload;
use wire_edge::PeerAddr;

use super::driver::Driver;
use super::pauses::Interruptions;
use super::program::{Finished, PingPong, Program};
use super::{Costs, Exercise, Trial};
use crate::channel::{Channel, LinkModel};
use crate::edge_host::EdgeHost;
use crate::host::{
    Action, CompletionKind, ConnectionHandle, Flags, HostEngine, HostEvent, Operation, Region,
};
use crate::network::port_address;
use crate::queue::EventQueue;
use crate::random::Random;
use crate::scenario::{TransferError, check_links};

/// The two hosts, and the frames in flight between them.
pub(super) struct Machine {
    hosts: [MachineHost; 2],
    /// The outgoing channels of each host, in the order of the links.
    wires: [Vec<Channel>; 2],
    queue: EventQueue<Happening>,
    costs: Costs,
    exercise: Exercise,
    message_bytes: u32,
    in_flight: u64,
    in_order: bool,
    /// Time when the running program was started, in picoseconds.
    started_ps: u64,
    queue_full: u64,
    has_failed: bool,
}

/// Sums of the counters of both hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) links: LinkCounters,
    pub(super) queue_full: u64,
}

enum Happening {
    /// A frame becomes visible to a host.
    Arrive { host: usize, link: LinkId, bytes: Vec<u8> },
    /// A processor continues. The event is ignored if the processor now waits for another event.
    Go { host: usize, token: u64 },
    /// The timer of a shaper interrupts a processor.
    Interrupt { host: usize },
}

struct MachineHost {
    engine: EdgeHost,
    source: Region,
    target: Region,
    connection: Option<ConnectionHandle>,
    is_established: bool,
    program: Program,
    /// Time when the program finished, in picoseconds; `None` before that.
    finished_ps: Option<u64>,
    inbox: VecDeque<(LinkId, Instant, Vec<u8>)>,
    /// Time at which the processor becomes free or, if the processor is idle, became idle; in
    /// picoseconds.
    free_ps: u64,
    turn: Option<BegunTurn>,
    /// Whether the processor only polls. If so, its next poll finds an arriving frame.
    is_idle: bool,
    /// Number of consecutive runs of the engine after which the program did not run.
    rounds: u32,
    has_deferred: bool,
    /// Token of the event that the processor waits for.
    token: u64,
    interruptions: Interruptions,
    /// End of the last timer interruption of the idle processor, in picoseconds.
    interrupted_until_ps: u64,
    /// Time that timer interruptions took from the current step, in picoseconds.
    taken_ps: u64,
}

/// A run of the engine that the processor has begun.
#[derive(Clone, Copy)]
struct BegunTurn {
    now: Instant,
    frames: u32,
}

impl Machine {
    pub(super) fn new(trial: &Trial<'_>, config: &EngineConfig) -> Result<Self, TransferError> {
        check_links(trial.links)?;
        let mut hosts = [0, 1].map(|host| MachineHost::new(host, trial, config.clone()));
        for host in &mut hosts {
            host.engine.listen(Instant(0));
        }
        let wire = |host: u64, (link, model): (usize, &LinkModel)| {
            Channel::new(*model, Random::stream(trial.seed, host << 8 | link as u64))
        };
        let wires = [0, 1].map(|host| {
            let links = trial.links.iter().enumerate();
            links.map(|numbered| wire(host, numbered)).collect()
        });
        let paths: Vec<_> = (0..trial.links.len() as u8)
            .map(|link| (LinkId(link), port_address(1, link)))
            .collect();
        let opened = hosts[0].engine.connect(Instant(0), &paths, &[]);
        hosts[0].connection = Some(opened.map_err(TransferError::Refused)?);
        let mut machine = Self {
            hosts,
            wires,
            queue: EventQueue::new(),
            costs: trial.costs,
            exercise: trial.exercise,
            message_bytes: trial.message_bytes.max(WORD_BYTES),
            in_flight: u64::from(trial.in_flight.max(1)),
            in_order: trial.in_order,
            started_ps: 0,
            queue_full: 0,
            has_failed: false,
        };
        machine.wake(0, 0);
        machine.wake(1, 0);
        Ok(machine)
    }

    /// Runs until both ends have established the connection on all links. Then runs for some more
    /// time, so that the engines find the links' MTU.
    pub(super) fn connect(&mut self) -> Result<(), TransferError> {
        let links = self.wires[0].len();
        let is_ready = |machine: &Self| {
            machine.hosts.iter().all(|host| host.is_established && host.links_up() == links)
        };
        self.advance(is_ready)?;
        self.run_for(LINKS_FOUND_NS)
    }

    /// Starts both programs. Each program performs `operations` operations.
    pub(super) fn start(&mut self, operations: u64) {
        let now_ps = self.queue.now().0 * PS_PER_NS;
        self.started_ps = now_ps;
        let programs = self.trial_programs(operations);
        for (number, program) in programs.into_iter().enumerate() {
            let host = &mut self.hosts[number];
            host.program = program;
            host.finished_ps = None;
            // A host that is not idle runs its program after the current run of the engine.
            if host.is_idle {
                self.wake(number, now_ps);
            }
        }
    }

    /// Runs for `ns` nanoseconds. If the programs finish earlier, the simulation still continues.
    pub(super) fn run_for(&mut self, ns: u64) -> Result<(), TransferError> {
        let until = self.queue.now().after_ns(ns);
        while let Some(event) = self.queue.pop_until(until) {
            self.handle(event);
        }
        self.queue.advance(until);
        if self.has_failed {
            let bytes = self.message_bytes;
            return Err(TransferError::Unfinished { bytes, limit_ns: until.0 });
        }
        Ok(())
    }

    /// Sets the rate of a link in both directions, in bits per second.
    pub(super) fn set_rate(&mut self, link: usize, rate: u64) {
        for wires in &mut self.wires {
            if let Some(wire) = wires.get_mut(link) {
                wire.model.rate = rate;
            }
        }
    }

    /// Returns the state and counters of each link of a host's connection.
    pub(super) fn paths(&self, number: usize) -> Vec<PathInfo> {
        let host = &self.hosts[number];
        let handle = host.connection.and_then(|handle| host.engine.engine_handle(handle));
        let info = handle.and_then(|handle| host.engine.engine().info(handle));
        info.map_or_else(Vec::new, |info| info.paths)
    }

    /// Runs both programs to their end. Each program performs `operations` operations.
    pub(super) fn run(&mut self, operations: u64) -> Result<[Finished; 2], TransferError> {
        self.start(operations);
        self.advance(|machine| machine.hosts.iter().all(|host| host.finished_ps.is_some()))?;
        let started_ps = self.started_ps;
        Ok(self.hosts.each_mut().map(|host| {
            let until_ps = host.finished_ps.unwrap_or(started_ps);
            host.program.finished(started_ps, until_ps)
        }))
    }

    pub(super) fn counters(&self) -> Counters {
        let mut links = LinkCounters::default();
        for path in (0..self.hosts.len()).flat_map(|host| self.paths(host)) {
            links.add(&path.counters);
        }
        Counters { links, queue_full: self.queue_full }
    }

    fn trial_programs(&self, operations: u64) -> [Program; 2] {
        // The hosts poll memory for the number of a round. Therefore a program uses only round
        // numbers that no earlier program used.
        match self.exercise {
            Exercise::PingPong => [Program::ping(operations), Program::pong(operations)],
            Exercise::OneWay => [Program::stream(operations, false), Program::stream(0, true)],
            Exercise::TwoWay => {
                [Program::stream(operations, true), Program::stream(operations, true)]
            }
        }
    }

    fn advance(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), TransferError> {
        let mut progress_at = self.queue.now();
        let mut seen = 0;
        while !is_done(self) {
            let limit = progress_at.after_ns(PATIENCE_NS);
            let Some(event) = self.queue.pop_until(limit).filter(|_| !self.has_failed) else {
                let bytes = self.message_bytes;
                return Err(TransferError::Unfinished { bytes, limit_ns: limit.0 });
            };
            self.handle(event);
            let done = self.hosts.iter().map(MachineHost::done).sum();
            if done != seen {
                seen = done;
                progress_at = self.queue.now();
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Happening) {
        match event {
            Happening::Arrive { host, link, bytes } => self.arrive(host, link, bytes),
            Happening::Go { host, token } if self.hosts[host].token == token => self.go(host),
            Happening::Go { .. } => {}
            Happening::Interrupt { host } => self.interrupt(host),
        }
    }

    /// Handles a timer interruption. The interruption makes the current step longer, or delays an
    /// idle processor's next poll.
    fn interrupt(&mut self, number: usize) {
        let (now_ps, timer_ps) = (self.queue.now().0 * PS_PER_NS, self.costs.timer_ps);
        let host = &mut self.hosts[number];
        if host.is_idle {
            host.interrupted_until_ps = host.interrupted_until_ps.max(now_ps) + timer_ps;
        } else {
            host.taken_ps += timer_ps;
        }
    }

    fn arrive(&mut self, number: usize, link: LinkId, bytes: Vec<u8>) {
        let now = self.queue.now();
        let host = &mut self.hosts[number];
        host.inbox.push_back((link, now, bytes));
        if host.is_idle {
            self.wake(number, now.0 * PS_PER_NS);
        }
    }

    /// Schedules the wake-up of an idle processor. Its first poll at `at_ps` or later finds the
    /// event.
    fn wake(&mut self, number: usize, at_ps: u64) {
        let look_ps = self.look_ps();
        let host = &mut self.hosts[number];
        let looks = at_ps.saturating_sub(host.free_ps).div_ceil(look_ps);
        let found_ps = host.free_ps + looks * look_ps;
        self.resume(number, found_ps);
    }

    /// Schedules the next step at `at_ps`, and cancels the step scheduled before.
    fn resume(&mut self, number: usize, at_ps: u64) {
        let host = &mut self.hosts[number];
        host.token += 1;
        let event = Happening::Go { host: number, token: host.token };
        // An idle processor has polled since `free_ps`. Keep this time: if an event before `at_ps`
        // wakes the processor earlier, `wake` computes the times of the polls from `free_ps`.
        if !host.is_idle {
            host.free_ps = at_ps;
        }
        self.queue.push(Instant(at_ps.div_ceil(PS_PER_NS)), event);
    }

    /// Returns how long a poll of all links takes if it finds nothing, in picoseconds. The time is
    /// never 0, because otherwise virtual time would not advance.
    fn look_ps(&self) -> u64 {
        (self.costs.poll_ps * self.wires[0].len() as u64).max(PS_PER_NS)
    }

    /// Runs the next step of a processor.
    fn go(&mut self, number: usize) {
        let (look_ps, now_ps) = (self.look_ps(), self.queue.now().0 * PS_PER_NS);
        let host = &mut self.hosts[number];
        let free_ps = if host.is_idle { now_ps } else { host.free_ps };
        let taken_ps = core::mem::take(&mut host.taken_ps);
        let until_ps = host.interruptions.end_of_pause(free_ps);
        let until_ps = until_ps.max(host.interrupted_until_ps) + taken_ps;
        if until_ps > free_ps {
            return self.resume(number, until_ps);
        }
        if host.is_idle {
            host.is_idle = false;
            host.free_ps = host.free_ps.max(now_ps);
            host.turn = Some(BegunTurn { now: Instant(host.free_ps / PS_PER_NS), frames: 0 });
        } else if host.turn.is_none() {
            host.turn = Some(BegunTurn { now: Instant(host.free_ps / PS_PER_NS), frames: 0 });
            // A poll also finds frames that arrive before the poll ends.
            let at_ps = host.free_ps + look_ps;
            return self.resume(number, at_ps);
        }
        let Some(mut turn) = host.turn else { return };
        if turn.frames < BURST_FRAMES
            && let Some((link, arrived, bytes)) = host.inbox.pop_front()
        {
            turn.frames += 1;
            host.turn = Some(turn);
            let at_ps = host.free_ps + self.receive(number, turn.now, link, arrived, bytes);
            return self.resume(number, at_ps);
        }
        self.finish_turn(number, turn);
    }

    /// Passes a frame to the engine. Returns the processor time, in picoseconds.
    fn receive(
        &mut self,
        number: usize,
        now: Instant,
        link: LinkId,
        arrived: Instant,
        mut bytes: Vec<u8>,
    ) -> u64 {
        let costs = &self.costs.host;
        let cost_ps = costs.frame_receive_ps + costs.frame_receive_ps_per_byte * bytes.len() as u64;
        let frame = RxFrame {
            bytes: &mut bytes,
            outside: Payload::EMPTY,
            received_at: arrived,
            congestion_experienced: false,
            from: port_address(1 - number as u8, link.0),
        };
        self.hosts[number].engine.handle_frame(now, link, frame);
        cost_ps
    }

    fn finish_turn(&mut self, number: usize, turn: BegunTurn) {
        let host = &mut self.hosts[number];
        host.turn = None;
        if host.engine.poll_timeout() <= turn.now {
            host.engine.handle_timeout(turn.now);
        }
        self.take_news(number, turn.now);
        let host = &mut self.hosts[number];
        let more_frames = turn.frames >= BURST_FRAMES;
        // An application that has received a message often answers it. Therefore defer sending
        // until the next run of the engine, as the runtime does: when the answer is sent,
        // everything else is sent with it.
        host.has_deferred = turn.frames > 0
            && !host.has_deferred
            && !more_frames
            && !host.engine.engine().is_urgent(turn.now);
        let mut more = more_frames;
        if !host.has_deferred {
            more |= self.transmit(number, turn.now);
        }
        let host = &mut self.hosts[number];
        host.rounds += 1;
        if more && host.rounds < ROUNDS_MAX {
            let at_ps = host.free_ps;
            return self.resume(number, at_ps);
        }
        host.rounds = 0;
        self.run_program(number);
        self.idle_or_go_on(number, more);
    }

    fn idle_or_go_on(&mut self, number: usize, more: bool) {
        let host = &mut self.hosts[number];
        let at_ps = host.free_ps;
        if more || host.has_deferred || !host.inbox.is_empty() || host.engine.engine().has_work() {
            return self.resume(number, at_ps);
        }
        host.is_idle = true;
        host.token += 1;
        let due = host.engine.poll_timeout();
        if due < Instant::NEVER {
            self.wake(number, (due.0 * PS_PER_NS).max(at_ps));
        }
    }

    fn take_news(&mut self, number: usize, now: Instant) {
        let host = &mut self.hosts[number];
        while let Some(event) = host.engine.poll_event() {
            match event {
                HostEvent::Requested { request, .. } => {
                    self.has_failed |= host.engine.accept(now, request).is_err();
                }
                HostEvent::Established(connection) => {
                    host.connection = Some(connection);
                    host.is_established = true;
                }
                HostEvent::Closed(..) => self.has_failed = true,
            }
        }
    }

    /// Lets the engine send. Returns whether more frames wait.
    fn transmit(&mut self, number: usize, now: Instant) -> bool {
        let MachineHost { engine, free_ps, .. } = &mut self.hosts[number];
        let mut driver = Driver::new(&self.costs, &mut self.wires[number], *free_ps);
        let peer = 1 - number as u8;
        let (more, taken) = engine.transmit(now, &mut |link, to, place, pieces| {
            let reaches = to == port_address(peer, link.0);
            driver.take(link, place, pieces, reaches);
            true
        });
        let sent = driver.finish();
        *free_ps = sent.free_ps;
        self.queue_full += sent.queue_full;
        for timer_ps in sent.timers_ps {
            let fires = Instant(timer_ps.div_ceil(PS_PER_NS));
            self.queue.push(fires, Happening::Interrupt { host: number });
        }
        for (arrival, link, bytes) in sent.frames {
            self.queue.push(arrival, Happening::Arrive { host: 1 - number, link, bytes });
        }
        more && taken > 0
    }

    fn run_program(&mut self, number: usize) {
        if self.hosts[number].finished_ps.is_some() {
            return;
        }
        match &self.hosts[number].program {
            Program::PingPong(_) => self.run_ping_pong(number),
            Program::Stream(_) => self.run_stream(number),
        }
        let host = &mut self.hosts[number];
        if host.program.is_finished() {
            host.finished_ps = Some(host.free_ps);
        }
    }

    fn run_ping_pong(&mut self, number: usize) {
        let costs = self.costs.host;
        while self.hosts[number].take_completion().is_some() {}
        let host = &mut self.hosts[number];
        let word = self.message_bytes - WORD_BYTES;
        let mut found = [0; WORD_BYTES as usize];
        host.engine.read_memory(host.target, word, &mut found);
        let found = u64::from_le_bytes(found);
        let free_ps = host.free_ps;
        let Program::PingPong(PingPong {
            begins,
            done,
            is_waiting,
            started_ps,
            latencies_ps,
            rounds,
            ..
        }) = &mut host.program
        else {
            return;
        };
        // Words that an earlier program has left in memory contain other round numbers.
        let round = self.started_ps.wrapping_add(*done + 1);
        if *begins && *is_waiting {
            if found != round {
                return;
            }
            latencies_ps.push(free_ps - *started_ps);
            *is_waiting = false;
            *done += 1;
            if *done == *rounds {
                return;
            }
        } else if !*begins {
            if found != round {
                return;
            }
            *done += 1;
        }
        let written = self.started_ps.wrapping_add(if *begins { *done + 1 } else { *done });
        (*is_waiting, *started_ps) = (*begins, free_ps);
        host.engine.write_memory(host.source, word, &written.to_le_bytes());
        host.free_ps += costs.post_ps;
        self.post(number, true, None, false, 0);
        let host = &mut self.hosts[number];
        host.has_deferred = false;
        let now = Instant(host.free_ps / PS_PER_NS);
        self.transmit(number, now);
    }

    fn run_stream(&mut self, number: usize) {
        let costs = self.costs.host;
        let group = (self.in_flight / 8).max(1);
        loop {
            let Program::Stream(stream) = self.hosts[number].program else { return };
            let mut stream = stream;
            while stream.posted < stream.count && stream.posted - stream.done < self.in_flight {
                stream.posted += 1;
                let is_last = stream.posted == stream.count;
                let is_signalled = is_last || stream.posted.is_multiple_of(group);
                let immediate = is_last.then_some(END_OF_PHASE);
                self.hosts[number].free_ps += costs.post_ps;
                self.post(number, self.in_order, immediate, is_signalled, stream.posted);
            }
            let completion = self.hosts[number].take_completion();
            if let Some((kind, context)) = completion {
                self.hosts[number].free_ps += costs.completion_ps;
                if kind == CompletionKind::Notification {
                    stream.expects = false;
                } else {
                    stream.done = context;
                }
            }
            self.hosts[number].program = Program::Stream(stream);
            if completion.is_none() {
                return;
            }
        }
    }

    fn post(
        &mut self,
        number: usize,
        strict: bool,
        immediate: Option<u32>,
        signalled: bool,
        context: u64,
    ) {
        let target = self.hosts[1 - number].target;
        let host = &mut self.hosts[number];
        let Some(connection) = host.connection else { return };
        let operation = Operation {
            action: Action::Write,
            local: host.source,
            local_offset: 0,
            length_bytes: self.message_bytes,
            key: target.key,
            address: target.address,
            immediate,
            flags: Flags { strict, signalled, ..Flags::default() },
            context,
        };
        let now = Instant(host.free_ps / PS_PER_NS);
        self.has_failed |= host.engine.post(now, connection, &operation).is_err();
    }
}

impl MachineHost {
    fn new(number: u64, trial: &Trial<'_>, config: EngineConfig) -> Self {
        let mut entropy = [0; 32];
        Random::stream(trial.seed, number).fill(&mut entropy);
        let mut engine = EdgeHost::with_config(config, entropy);
        for (link, model) in trial.links.iter().enumerate() {
            let local = port_address(number as u8, link as u8);
            engine.attach_link(Instant(0), LinkId(link as u8), caps(model, local));
        }
        let bytes = trial.message_bytes.max(WORD_BYTES);
        let (source, target) = (engine.register(bytes), engine.register(bytes));
        Self {
            engine,
            source,
            target,
            connection: None,
            is_established: false,
            program: Program::stream(0, false),
            finished_ps: Some(0),
            inbox: VecDeque::new(),
            free_ps: 0,
            turn: None,
            is_idle: true,
            rounds: 0,
            has_deferred: false,
            token: 0,
            interruptions: Interruptions::new(
                &trial.pauses,
                Random::stream(trial.seed, PAUSES_STREAM | number),
            ),
            interrupted_until_ps: 0,
            taken_ps: 0,
        }
    }

    fn links_up(&self) -> usize {
        let info = self.connection.and_then(|handle| self.engine.engine_handle(handle));
        let info = info.and_then(|handle| self.engine.engine().info(handle));
        let paths = info.iter().flat_map(|info| &info.paths);
        paths.filter(|path| path.state == LinkState::Up).count()
    }

    fn take_completion(&mut self) -> Option<(CompletionKind, u64)> {
        let completion = self.engine.poll_completion(self.connection?)?;
        Some((completion.kind, completion.context))
    }

    /// Returns a number that increases when the program makes progress.
    fn done(&self) -> u64 {
        match &self.program {
            Program::PingPong(ping_pong) => ping_pong.done,
            Program::Stream(stream) => stream.done,
        }
    }
}

/// Returns the capabilities that the packet link reports.
pub(super) fn caps(model: &LinkModel, local: PeerAddr) -> LinkCaps {
    LinkCaps {
        frame_bytes_max: model.frame_bytes_max,
        frame_bytes_safe: model.frame_bytes_max.min(FRAME_BYTES_SAFE),
        segments: 2 * CALL_FRAMES as u16,
        offloads: model.offloads,
        receive_buffer_bytes: RING_SLOTS * u32::from(model.frame_bytes_max),
        // Virtual interfaces report no rate.
        rate: None,
        local,
    }
}

/// Size of the smallest message in bytes: one word, for which a host can poll.
pub(super) const WORD_BYTES: u32 = 8;

/// Immediate of the last write of a stream.
const END_OF_PHASE: u32 = 1;

/// Number of frames that the link passes to the kernel in one call.
pub(super) const CALL_FRAMES: usize = 32;

/// The first random stream for pauses. The stream of a host is this number plus the host's number.
pub(super) const PAUSES_STREAM: u64 = 1 << 16;

/// Size of frames that the packet link assumes every path to carry, in bytes.
const FRAME_BYTES_SAFE: u16 = 1200;

/// Number of frames in the ring of a packet link at MTU 1500.
const RING_SLOTS: u32 = 2048;

/// `BURST_FRAMES` is the number of received frames after which the program runs; `ROUNDS_MAX` is
/// the number of runs of the engine after which the program runs. Both numbers are equal to those
/// of the runtime.
pub(super) const BURST_FRAMES: u32 = 256;
const ROUNDS_MAX: u32 = 8;

/// Time without a completed operation after which a trial has failed, in nanoseconds.
pub(super) const PATIENCE_NS: u64 = 10_000_000_000;

/// Time in which the engines probe new links, in nanoseconds.
pub(super) const LINKS_FOUND_NS: u64 = 100_000_000;

pub(super) const PS_PER_NS: u64 = 1_000;
