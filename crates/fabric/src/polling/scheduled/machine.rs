//! The event loop for two hosts and the wires between them. Also contains the steps of a thread
//! inside the engine.

use delivery::{Instant, LinkId, RxFrame};
use mem::Payload;

use super::busy::Next;
use super::host::{
    Counts, Doing, Outgoing, Purpose, ROLES, Role, ScheduledHost, ScheduledTurn, Sleep,
};
use super::program::{PingPong, Program};
use super::rule::WaitRule;
use super::{Exercise, Mode, Outcome, Trial};
use crate::channel::LinkModel;
use crate::channel::{Admission, Channel};
use crate::host::{HostEngine, HostEvent};
use crate::network::port_address;
use crate::polling::Costs;
use crate::polling::machine::{
    BURST_FRAMES, CALL_FRAMES, LINKS_FOUND_NS, PATIENCE_NS, PS_PER_NS, WORD_BYTES,
};
use crate::queue::EventQueue;
use crate::random::Random;
use crate::scenario::{TransferError, check_links};
use crate::scheduler::{Report, Settings};

pub(super) struct Machine {
    pub(super) hosts: [ScheduledHost; 2],
    /// The outgoing channels of each host, in the order of the links.
    wires: [Vec<Channel>; 2],
    pub(super) queue: EventQueue<Happening>,
    pub(super) costs: Costs,
    pub(super) settings: Settings,
    pub(super) mode: Mode,
    exercise: Exercise,
    pub(super) message_bytes: u32,
    pub(super) in_flight: u64,
    pub(super) has_failed: bool,
}

pub(super) enum Happening {
    /// A host can receive a frame.
    Arrive { host: usize, link: LinkId, bytes: Vec<u8> },
    /// The scheduler of a host has work. The event is ignored if the scheduler's plans have changed
    /// since it was scheduled.
    Schedule { host: usize, token: u64 },
    /// A timer of an engine is due.
    Timer { host: usize },
    /// The sleep of a thread ends. The event is ignored if that sleep has already ended.
    Alarm { host: usize, role: Role, alarm: u64 },
    /// The sleep of another program's busy thread has ended.
    Busy { host: usize, index: usize },
}

impl Machine {
    pub(super) fn new(
        trial: &Trial<'_>,
        rule: &dyn Fn() -> Box<dyn WaitRule>,
    ) -> Result<Self, TransferError> {
        check_links(trial.links)?;
        let mut hosts = [0, 1].map(|number| ScheduledHost::new(number, trial, rule));
        let wire = |host: u64, (link, model): (usize, &LinkModel)| {
            Channel::new(*model, Random::stream(trial.seed, host << 8 | link as u64))
        };
        let wires = [0, 1].map(|host| {
            trial.links.iter().enumerate().map(|numbered| wire(host, numbered)).collect()
        });
        let paths: Vec<_> = (0..trial.links.len() as u8)
            .map(|link| (LinkId(link), port_address(1, link)))
            .collect();
        let opened = hosts[0].engine.connect(Instant(0), &paths, &[]);
        hosts[0].connection = Some(opened.map_err(TransferError::Refused)?);
        Ok(Self {
            hosts,
            wires,
            queue: EventQueue::new(),
            costs: trial.costs,
            settings: trial.processors,
            mode: trial.mode,
            exercise: trial.exercise,
            message_bytes: trial.message_bytes.max(WORD_BYTES),
            in_flight: u64::from(trial.in_flight.max(1)),
            has_failed: false,
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.queue.now()
    }

    /// Returns how long a poll of all links takes if it finds nothing, in nanoseconds.
    pub(super) fn look_ns(&self) -> u64 {
        in_ns(self.costs.poll_ps * self.wires[0].len() as u64).max(1)
    }

    /// Runs until both ends have established the connection on all links. Then runs for another
    /// [`LINKS_FOUND_NS`], so that the engines find the links' MTU.
    pub(super) fn connect(&mut self) -> Result<(), TransferError> {
        for host in 0..2 {
            for role in ROLES {
                let id = self.hosts[host].thread(role).id;
                self.hosts[host].scheduler.wake(0, id);
            }
            self.settle(host);
        }
        let links = self.wires[0].len();
        let limit = Instant(PATIENCE_NS);
        while !self.hosts.iter().all(|host| host.is_established && host.links_up() == links) {
            let event = self.queue.pop_until(limit).filter(|_| !self.has_failed);
            let Some(event) = event else { return Err(self.unfinished()) };
            self.handle(event);
        }
        self.run_for(LINKS_FOUND_NS)
    }

    /// Starts the programs and `busy` other threads on each host, and measures.
    pub(super) fn measure(
        &mut self,
        busy: usize,
        measured_ns: u64,
    ) -> Result<Outcome, TransferError> {
        for host in 0..2 {
            let exercise = self.exercise;
            self.hosts[host].set_program(host, exercise);
            for _ in 0..busy {
                let id = self.hosts[host].scheduler.spawn();
                self.hosts[host].busy.push(id);
                // The first slices of the two hosts begin at different times.
                let begins_ns = self.hosts[host].random.below(self.settings.slice_ns);
                let at = self.now().after_ns(begins_ns);
                let index = self.hosts[host].busy.len() - 1;
                self.queue.push(at, Happening::Busy { host, index });
            }
            self.start(host);
            self.settle(host);
        }
        self.run_for(measured_ns / 5)?;
        for host in &mut self.hosts {
            host.counts = Counts::default();
            if let Program::PingPong(PingPong { latencies_ns, .. }) = &mut host.program {
                latencies_ns.clear();
            }
        }
        let ran = |machine: &Self| {
            machine
                .hosts
                .each_ref()
                .map(|host| host.threads.each_ref().map(|thread| host.scheduler.ran_ns(thread.id)))
        };
        let (ran_before, done_before) = (ran(self), self.done());
        let longest_gap_ns = self.watch_for(measured_ns)?;
        let operations = self.done() - done_before;
        let ran = ran(self);
        let percent = |host: usize, thread: usize| {
            (ran[host][thread] - ran_before[host][thread]) as f64 * 100.0 / measured_ns as f64
        };
        let mut latencies_ns = match &mut self.hosts[0].program {
            Program::PingPong(ping_pong) => core::mem::take(&mut ping_pong.latencies_ns),
            Program::Stream(_) | Program::Target => Vec::new(),
        };
        latencies_ns.sort_unstable();
        Ok(Outcome {
            operations,
            operations_per_second: operations as f64 * 1e9 / measured_ns as f64,
            latencies_ns,
            longest_gap_ns,
            processor_percent: [0, 1].map(|host| [0, 1].map(|thread| percent(host, thread))),
            sleeps: self.hosts.iter().map(|host| host.counts.sleeps).sum(),
            kept_out: self.hosts.iter().map(|host| host.counts.kept_out).sum(),
        })
    }

    /// Runs for `ns` nanoseconds. Returns the longest period in which no operation completed, in
    /// nanoseconds.
    fn watch_for(&mut self, ns: u64) -> Result<u64, TransferError> {
        let until = self.now().after_ns(ns);
        let (mut since, mut seen, mut longest_ns) = (self.now(), self.done(), 0);
        while let Some(event) = self.queue.pop_until(until) {
            self.handle(event);
            longest_ns = longest_ns.max(self.now().since_ns(since));
            if self.done() != seen {
                (since, seen) = (self.now(), self.done());
            }
            if self.has_failed {
                return Err(self.unfinished());
            }
        }
        self.queue.advance(until);
        Ok(longest_ns.max(until.since_ns(since)))
    }

    fn run_for(&mut self, ns: u64) -> Result<(), TransferError> {
        self.watch_for(ns).map(|_| ())
    }

    fn unfinished(&self) -> TransferError {
        TransferError::Unfinished { bytes: self.message_bytes, limit_ns: self.now().0 }
    }

    fn done(&self) -> u64 {
        self.hosts.iter().map(|host| host.program.done()).sum()
    }

    fn handle(&mut self, event: Happening) {
        let host = match event {
            Happening::Arrive { host, link, bytes } => {
                let now = self.now();
                self.hosts[host].inbox.push_back((link, now, bytes));
                self.call(host);
                host
            }
            Happening::Schedule { host, token } if self.hosts[host].token == token => {
                self.hosts[host].next_at_ns = u64::MAX;
                host
            }
            Happening::Schedule { .. } => return,
            Happening::Timer { host } => {
                self.hosts[host].timer_at = Instant::NEVER;
                if self.hosts[host].engine.poll_timeout() <= self.now() {
                    // If no thread watches the links, the next run of the engine handles the timer.
                    self.call(host);
                } else {
                    self.arm_timer(host);
                }
                host
            }
            Happening::Alarm { host, role, alarm } => {
                if self.hosts[host].thread(role).alarm == alarm {
                    self.wake(host, role);
                }
                host
            }
            Happening::Busy { host, index } => {
                let (id, now_ns) = (self.hosts[host].busy[index], self.now().0);
                self.hosts[host].scheduler.wake(now_ns, id);
                host
            }
        };
        self.settle(host);
    }

    /// Notifies the threads of a host: wakes a thread that sleeps on the links, and makes spinning
    /// threads end their current poll.
    pub(super) fn call(&mut self, number: usize) {
        let (now_ns, look_ns) = (self.now().0, self.look_ns());
        let host = &mut self.hosts[number];
        for thread in host.threads.iter().filter(|thread| thread.doing == Doing::Spin) {
            host.scheduler.finish_repetition(now_ns, thread.id, look_ns);
        }
        if let Some(role) = host.watch
            && host.thread(role).doing == Doing::Asleep(Sleep::OnLinks)
        {
            self.wake(number, role);
        }
    }

    pub(super) fn wake(&mut self, number: usize, role: Role) {
        let (id, now_ns) = (self.hosts[number].thread(role).id, self.now().0);
        self.hosts[number].scheduler.wake(now_ns, id);
    }

    /// Schedules an event for the next timer of the engine.
    pub(super) fn arm_timer(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let due = host.engine.poll_timeout();
        if due < host.timer_at {
            host.timer_at = due;
            self.queue.push(due, Happening::Timer { host: number });
        }
    }

    /// Lets the threads of a host perform all steps for which they have a processor now.
    fn settle(&mut self, number: usize) {
        let now_ns = self.now().0;
        while let Some(report) = self.hosts[number].scheduler.advance(now_ns) {
            self.on_report(number, report);
        }
        let host = &mut self.hosts[number];
        let next_at_ns = host.scheduler.next_at();
        if next_at_ns != host.next_at_ns {
            (host.next_at_ns, host.token) = (next_at_ns, host.token + 1);
            let event = Happening::Schedule { host: number, token: host.token };
            self.queue.push(Instant(next_at_ns), event);
        }
    }

    fn on_report(&mut self, number: usize, report: Report) {
        let (Report::Ready { thread } | Report::Resumed { thread, .. }) = report;
        let host = &mut self.hosts[number];
        let Some(role) = ROLES.into_iter().find(|&role| host.threads[role as usize].id == thread)
        else {
            return self.go_on_busy(number, report);
        };
        match report {
            Report::Ready { .. } => self.go_on(number, role),
            Report::Resumed { away_ns, .. } => {
                let look_ns = self.look_ns();
                let (now_ns, host) = (self.now().0, &mut self.hosts[number]);
                host.thread(role).away_ns += away_ns;
                if host.thread(role).doing == Doing::Spin {
                    // The thread was interrupted in a poll. At the end of this poll, it notices
                    // that it had no processor.
                    host.scheduler.finish_repetition(now_ns, thread, look_ns);
                }
            }
        }
    }

    fn go_on_busy(&mut self, number: usize, report: Report) {
        let Report::Ready { thread } = report else { return };
        let now = self.now();
        let host = &mut self.hosts[number];
        let Some(index) = host.busy.iter().position(|&busy| busy == thread) else { return };
        match Next::draw(&mut host.random) {
            Next::Work(work_ns) => host.scheduler.work(now.0, thread, work_ns),
            Next::Sleep(sleep_ns) => {
                host.scheduler.sleep(now.0, thread);
                let event = Happening::Busy { host: number, index };
                self.queue.push(now.after_ns(sleep_ns), event);
            }
        }
    }

    /// Returns the processor time to receive the first frame of the inbox, in nanoseconds. Returns
    /// `None` if the inbox is empty.
    pub(super) fn frame_cost_ns(&self, number: usize) -> Option<u64> {
        let (_, _, bytes) = self.hosts[number].inbox.front()?;
        let costs = &self.costs.host;
        Some(in_ns(costs.frame_receive_ps + costs.frame_receive_ps_per_byte * bytes.len() as u64))
    }

    pub(super) fn take_frame(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let Some((link, arrived, mut bytes)) = host.inbox.pop_front() else { return };
        let frame = RxFrame {
            bytes: &mut bytes,
            outside: Payload::EMPTY,
            received_at: arrived,
            congestion_experienced: false,
            from: port_address(1 - number as u8, link.0),
        };
        host.engine.handle_frame(host.cell.turn.now, link, frame);
        host.cell.turn.frames += 1;
        host.frames += 1;
    }

    /// Finishes a run of the engine that has received its frames. After this call, the outbox
    /// contains the frames to send.
    pub(super) fn finish_turn(&mut self, number: usize, role: Role) {
        let host = &mut self.hosts[number];
        let ScheduledTurn { now, frames, .. } = host.cell.turn;
        let mut worked = frames > 0;
        if host.engine.poll_timeout() <= now {
            host.engine.handle_timeout(now);
            worked = true;
        }
        worked |= self.take_news(number, now);
        worked |= self.take_submissions(number, now);
        let host = &mut self.hosts[number];
        host.may_owe |= frames > 0;
        let is_watching = match host.thread(role).purpose {
            Purpose::Watch | Purpose::Serve { .. } => !worked || host.is_moderated,
            _ => role == Role::Progress && !worked,
        };
        if (host.cell.is_parting || is_watching) && core::mem::take(&mut host.may_owe) {
            host.engine.hasten_acknowledgements();
        }
        host.cell.is_parting = false;
        let mut more = frames >= BURST_FRAMES;
        host.cell.has_deferred = frames > 0
            && role == Role::Application
            && !host.cell.has_deferred
            && !more
            && !host.engine.engine().is_urgent(now);
        if !host.cell.has_deferred {
            more |= self.transmit(number, now);
        }
        let host = &mut self.hosts[number];
        host.cell.turn.more = more;
        host.cell.has_worked |= worked || !host.outbox.is_empty();
    }

    fn take_news(&mut self, number: usize, now: Instant) -> bool {
        let host = &mut self.hosts[number];
        let mut has_news = false;
        while let Some(event) = host.engine.poll_event() {
            has_news = true;
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
        has_news
    }

    fn take_submissions(&mut self, number: usize, now: Instant) -> bool {
        let host = &mut self.hosts[number];
        let Some(connection) = host.connection else { return false };
        let submissions = core::mem::take(&mut host.submissions);
        for operation in &submissions {
            self.has_failed |= host.engine.post(now, connection, operation).is_err();
        }
        !submissions.is_empty()
    }

    /// Lets the engine pass frames to the driver. Returns whether more frames wait.
    fn transmit(&mut self, number: usize, now: Instant) -> bool {
        let Self { hosts, wires, costs, .. } = self;
        let ScheduledHost { engine, outbox, .. } = &mut hosts[number];
        let spread_ps = costs.spread_ps * (wires[number].len() as u64).saturating_sub(1);
        let (more, taken) = engine.transmit(now, &mut |link, _, place, pieces| {
            let bytes = pieces.concat();
            let call_ps = if place.is_multiple_of(CALL_FRAMES) { costs.call_ps } else { 0 };
            let is_gathered = pieces.iter().skip(1).any(|piece| !piece.is_empty());
            let gather_ps = if is_gathered { costs.gather_ps } else { 0 };
            let frame_ps =
                costs.host.frame_send_ps + costs.host.frame_send_ps_per_byte * bytes.len() as u64;
            let cost_ps = spread_ps + call_ps + gather_ps + frame_ps;
            outbox.push_back(Outgoing { cost_ps, return_ps: costs.return_ps, link, bytes });
            true
        });
        more && taken > 0
    }

    /// Sends the first frame of the outbox. Returns the processor time that the frame still takes,
    /// in picoseconds.
    pub(super) fn send_frame(&mut self, number: usize) -> u64 {
        let now = self.queue.now();
        let Self { hosts, wires, queue, .. } = self;
        let Some(Outgoing { return_ps, link, bytes, .. }) = hosts[number].outbox.pop_front() else {
            return 0;
        };
        let Some(wire) = wires[number].get_mut(usize::from(link.0)) else { return return_ps };
        let is_too_large = bytes.len() > usize::from(wire.model.frame_bytes_max);
        let wire_bytes = wire.model.overhead.wire_bytes(bytes.len());
        if !is_too_large
            && let Admission::Queued { departs_at_ps, .. } = wire.admit(now, wire_bytes)
        {
            let arrival = wire.arrival(departs_at_ps.max(now.0 * PS_PER_NS));
            queue.push(arrival, Happening::Arrive { host: 1 - number, link, bytes });
        }
        return_ps
    }
}

pub(super) const fn in_ns(ps: u64) -> u64 {
    ps.div_ceil(PS_PER_NS)
}
