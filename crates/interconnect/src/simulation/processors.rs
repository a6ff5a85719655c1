//! Order of the work of processors and interfaces in the LogGP model.
//!
//! A request of a rank waits until the processor of its host is free. A send also waits until the
//! interface is free. A message whose first byte has arrived waits until both processor and
//! interface of the receiving host are free.
//!
//! If several tasks could start, the task with the smallest sequence number starts. A message gets
//! its number when its transmission starts. A request gets the number of the work that last
//! notified the rank, and that work got its number when it started. If several hosts must be
//! checked at the same time, the checks are also made in the order of these numbers.

use std::collections::VecDeque;

use super::super::loggp::LogGpConfiguration;
use super::super::records::Cause;
use super::super::wheel::Event;
use super::super::workload::{NAMELESS, Workload};
use super::due::Due;
use super::{
    Context, Fabric, INJECT, LOOK, LOOPBACK, Message, RANK_MASK, RECEIVED, Simulation, WAKE,
};

/// Processors and interfaces of all ranks' hosts.
#[derive(Debug)]
pub(super) struct Processors {
    pub(super) loggp: LogGpConfiguration,
    /// Whether the requests of a rank are ordered only by their dependencies.
    is_unordered: bool,
    hosts: Vec<RankHost>,
    /// Checks of the current time: each entry stands for a line (a queue of tasks) whose first task
    /// may start now. For a fast comparison, an entry combines sequence number, line and rank in
    /// one number. Only checks of later times are in the queue of events, because too many checks
    /// are added for the current time.
    due: Due,
    /// Time of the event that handles the checks in `due`; [`u64::MAX`] if none is scheduled.
    flush_ps: u64,
    /// The latest sequence number assigned.
    next: u64,
    /// Sequence number for the requests that ranks make now.
    pub(super) number: u64,
    /// Number of messages sent.
    pub(super) messages: u64,
}

/// The host of a rank. [`Simulation`] stores the time when its processor is free.
#[derive(Clone, Debug, Default)]
struct RankHost {
    /// Time when the interface can send the next message.
    send_ps: u64,
    /// Time when the interface can receive the next message.
    receive_ps: u64,
    lines: [Line; LINES],
    /// Sequence number for the requests that follow the processor's current work.
    number: u64,
    /// The `name` that the rank gave to the message that the processor sends now.
    sending: u32,
}

/// A queue of waiting tasks of one kind, ordered by sequence number. It rarely has more than one
/// task.
#[derive(Clone, Debug)]
struct Line {
    first: Option<Task>,
    /// The tasks after the first; empty if there is no first task.
    others: VecDeque<Task>,
    /// Time of the scheduled check whether the first task can start, and the sequence number of
    /// this task.
    look: (u64, u64),
}

/// A task for a processor.
#[derive(Clone, Copy, Debug)]
struct Task {
    number: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// Sends a message of `bytes` bytes. The report of the send contains `name`.
    Send { message: u32, bytes: u32, name: u32 },
    /// Computes for `time_ps`.
    Compute { time_ps: u64, tag: u32 },
    /// Receives a message of `bytes` bytes.
    Receive { message: u32, bytes: u32 },
    /// Notifies the rank with `name`, which takes no time.
    Turn { name: u32, cause: Option<Cause> },
}

impl Processors {
    /// Creates idle hosts.
    pub(super) fn new(loggp: LogGpConfiguration, ranks: usize, is_unordered: bool) -> Self {
        let hosts = vec![RankHost::default(); ranks];
        let (due, flush_ps) = (Due::default(), u64::MAX);
        Self { loggp, is_unordered, hosts, due, flush_ps, next: 0, number: 0, messages: 0 }
    }

    /// Assigns and returns a new sequence number, which is larger than all earlier numbers.
    pub(super) const fn renew(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Gives later requests a new sequence number, which is larger than all earlier numbers.
    pub(super) const fn begin_again(&mut self) {
        self.number = self.renew();
    }

    /// Gives later requests the same sequence number as the task that the rank's processor has just
    /// finished.
    pub(super) fn go_on(&mut self, rank: u32) {
        self.number = self.hosts[rank as usize].number;
    }

    /// Returns the `name` of the message that a rank's processor sends. If the processor sends none
    /// now, returns the `name` of the last message.
    fn sending(&self, rank: u32) -> u32 {
        self.hosts[rank as usize].sending
    }

    /// Queues a task with the sequence number of current requests. `free_ps` is the time when the
    /// processor is free.
    #[inline]
    pub(super) fn ask(&mut self, context: &mut Context, rank: u32, what: What, free_ps: u64) {
        self.wait(context, rank, Task { number: self.number, what }, free_ps);
    }

    /// Queues a task.
    #[inline]
    fn wait(&mut self, context: &mut Context, rank: u32, task: Task, free_ps: u64) {
        let line = match task.what {
            What::Receive { .. } => RECEIVES,
            What::Turn { .. } => TURNS,
            What::Compute { .. } if self.is_unordered => WORKS,
            _ => OWN,
        };
        self.hosts[rank as usize].lines[line].push(task);
        self.arrange(context, rank, line, free_ps);
    }

    /// Schedules a check whether the first task of a queue of tasks can start. Does nothing if this
    /// check is scheduled already.
    #[inline]
    fn arrange(&mut self, context: &mut Context, rank: u32, line: usize, free_ps: u64) {
        let host = &mut self.hosts[rank as usize];
        let Some(first) = host.lines[line].first else { return };
        let ready_ps = host.ready_ps(first.what, free_ps).max(context.wheel.now_ps());
        let look = &mut host.lines[line].look;
        if *look == (ready_ps, first.number) {
            return;
        }
        *look = (ready_ps, first.number);
        let now_ps = context.wheel.now_ps();
        if ready_ps > now_ps {
            let subject = (line as u32) << LINE_SHIFT | rank;
            context.schedule(ready_ps, LOOK | first.number as u32 & RANK_MASK, subject);
            return;
        }
        let line_and_rank = (line as u32) << LINE_SHIFT | rank;
        self.due.push(u128::from(first.number) << 64 | u128::from(line_and_rank));
        if self.flush_ps != now_ps {
            self.flush_ps = now_ps;
            context.schedule(now_ps, LOOK | RANK_MASK, FLUSH);
        }
    }

    /// Removes and returns the next check that was added for the current time, if its sequence
    /// number is at most `number`. The first part of the result is this number. The second part
    /// combines a rank and the index of its queue of tasks in one number.
    #[inline]
    fn next_due(&mut self, number: u64) -> Option<(u64, u32)> {
        let first = self.due.pop_up_to(u128::from(number) << 64 | u128::from(u64::MAX))?;
        Some(((first >> 64) as u64, first as u32))
    }

    /// Returns whether a queue contains tasks.
    fn waits(&self, rank: u32, line: usize) -> bool {
        self.hosts[rank as usize].lines[line].first.is_some()
    }

    /// Reconstructs a sequence number from its low bits, which are in `place`. Fewer numbers have
    /// been assigned after this number than the low bits can count, so the result is unique.
    const fn number_at(&self, place: u32) -> u64 {
        let age = (self.next as u32).wrapping_sub(place) & RANK_MASK;
        self.next - age as u64
    }

    /// Removes and returns the first task of a queue, if the task can start. Returns `None` if the
    /// last scheduled check of the queue has another sequence number than `number`.
    #[inline]
    fn take(
        &mut self,
        context: &mut Context,
        (rank, line): (u32, usize),
        number: u64,
        free_ps: u64,
    ) -> Option<Task> {
        let now_ps = context.wheel.now_ps();
        let host = &mut self.hosts[rank as usize];
        if host.lines[line].look != (now_ps, number) {
            return None;
        }
        host.lines[line].look = Line::NO_LOOK;
        let first = host.lines[line].first?;
        if host.ready_ps(first.what, free_ps) > now_ps {
            self.arrange(context, rank, line, free_ps);
            return None;
        }
        host.lines[line].pop()
    }

    /// Handles the arrival of a message's first byte. Returns true if the host receives the message
    /// immediately. Otherwise queues the message.
    #[inline]
    fn arrive(
        &mut self,
        context: &mut Context,
        (rank, what): (u32, What),
        number: u64,
        free_ps: u64,
    ) -> bool {
        if self.hosts[rank as usize].ready_ps(what, free_ps) <= context.wheel.now_ps() {
            return true;
        }
        self.wait(context, rank, Task { number, what }, free_ps);
        false
    }

    /// Starts to send `bytes` bytes at the interface of a rank. Returns the sequence number of the
    /// message.
    #[inline]
    fn begin_send(&mut self, rank: u32, bytes: u32, name: u32, now_ps: u64) -> u64 {
        self.messages += 1;
        let number = self.renew();
        let after = self.renew();
        let host = &mut self.hosts[rank as usize];
        host.send_ps = now_ps + self.loggp.occupied_ps(bytes);
        host.number = after;
        host.sending = name;
        number
    }

    /// Makes a rank's processor start a send to the rank itself.
    fn begin_loopback(&mut self, rank: u32, name: u32) {
        self.begin(rank);
        self.hosts[rank as usize].sending = name;
    }

    /// Starts to receive `bytes` bytes at the interface of a rank.
    #[inline]
    fn begin_receive(&mut self, rank: u32, bytes: u32, now_ps: u64) {
        self.hosts[rank as usize].receive_ps = now_ps + self.loggp.occupied_ps(bytes);
    }

    /// Starts work of a rank's processor that uses no interface.
    #[inline]
    fn begin(&mut self, rank: u32) {
        self.hosts[rank as usize].number = self.renew();
    }

    /// Schedules the arrival of the first byte of a message.
    #[inline]
    fn schedule_arrival(context: &mut Context, time_ps: u64, number: u64, message: u32) {
        let subject = (LINES as u32) << LINE_SHIFT | message;
        context.schedule(time_ps, LOOK | number as u32 & RANK_MASK, subject);
    }
}

impl RankHost {
    /// Returns the earliest time at which a task can start, in picoseconds.
    const fn ready_ps(&self, what: What, free_ps: u64) -> u64 {
        let interface_ps = match what {
            What::Send { .. } => self.send_ps,
            What::Receive { .. } => self.receive_ps,
            What::Compute { .. } => 0,
            What::Turn { .. } => return 0,
        };
        if interface_ps > free_ps { interface_ps } else { free_ps }
    }
}

impl Line {
    const NO_LOOK: (u64, u64) = (u64::MAX, u64::MAX);

    /// Adds a task after all tasks with smaller numbers.
    #[inline]
    fn push(&mut self, task: Task) {
        match self.first {
            None => self.first = Some(task),
            Some(_) => self.push_behind(task),
        }
    }

    fn push_behind(&mut self, task: Task) {
        if let Some(first) = self.first.filter(|first| first.number > task.number) {
            self.others.push_front(first);
            self.first = Some(task);
            return;
        }
        let before = self.others.iter().rposition(|other| other.number <= task.number);
        self.others.insert(before.map_or(0, |place| place + 1), task);
    }

    #[inline]
    fn pop(&mut self) -> Option<Task> {
        let first = self.first.take();
        if !self.others.is_empty() {
            self.first = self.others.pop_front();
        }
        first
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { first: None, others: VecDeque::new(), look: Self::NO_LOOK }
    }
}

/// The methods of a run that use [`Processors`].
impl<F: Fabric, W: Workload> Simulation<F, W> {
    /// Handles the event that checks whether a task can start. First makes the checks of the
    /// current time that have smaller sequence numbers.
    pub(super) fn on_look(&mut self, event: Event) {
        let is_flush = event.subject == FLUSH;
        let Some(processors) = &mut self.processors else { return };
        let number = if is_flush { u64::MAX } else { processors.number_at(event.place) };
        if is_flush {
            processors.flush_ps = u64::MAX;
        }
        while let Some((number, subject)) =
            self.processors.as_mut().and_then(|processors| processors.next_due(number))
        {
            self.look_at(subject & MESSAGE_MASK, (subject >> LINE_SHIFT) as usize, number);
            if self.context.wheel.has_due_before(LOOK) {
                // Another event of this time reports that a task has ended. A rank must be notified
                // of the end before further checks. Therefore the checks that have not been made
                // are scheduled again, after that event.
                self.context.schedule(event.time_ps, event.place, event.subject);
                return;
            }
        }
        if is_flush {
            return;
        }
        match (event.subject >> LINE_SHIFT) as usize {
            LINES => self.on_first_byte(event.subject & MESSAGE_MASK, number),
            line => self.look_at(event.subject & MESSAGE_MASK, line, number),
        }
    }

    /// Handles the arrival of a message's first byte.
    #[inline]
    fn on_first_byte(&mut self, message: u32, number: u64) {
        let &Message { destination, bytes, .. } = self.context.messages.get(message);
        let rank = self.ranks[destination as usize];
        let what = What::Receive { message, bytes };
        let free_ps = self.free_ps[rank as usize];
        let Some(processors) = &mut self.processors else { return };
        if processors.arrive(&mut self.context, (rank, what), number, free_ps) {
            self.begin_receive(rank, message, bytes);
        }
    }

    /// Starts the first task of a queue, if the task can start.
    #[inline]
    fn look_at(&mut self, rank: u32, line: usize, number: u64) {
        let free_ps = self.free_ps[rank as usize];
        let Some(processors) = &mut self.processors else { return };
        let taken = processors.take(&mut self.context, (rank, line), number, free_ps);
        let Some(task) = taken else { return };
        self.begin(rank, task.what);
        let free_ps = self.free_ps[rank as usize];
        if let Some(processors) = &mut self.processors
            && processors.waits(rank, line)
        {
            processors.arrange(&mut self.context, rank, line, free_ps);
        }
    }

    /// Starts a task at the processor of a rank.
    fn begin(&mut self, rank: u32, what: What) {
        let now_ps = self.context.wheel.now_ps();
        let Some(processors) = &mut self.processors else { return };
        match what {
            What::Send { message, bytes, name } => self.begin_send(rank, message, bytes, name),
            What::Compute { time_ps, tag } => {
                processors.begin(rank);
                self.free_ps[rank as usize] = now_ps + time_ps;
                if let Some(recorder) = &mut self.context.recorder {
                    recorder.on_begun(rank, tag, now_ps, now_ps + time_ps);
                }
                self.context.schedule(now_ps + time_ps, WAKE | rank, tag);
            }
            What::Turn { name, cause } => {
                processors.begin_again();
                if let (Some(recorder), Some(cause)) = (&mut self.context.recorder, cause) {
                    recorder.resume(cause);
                }
                self.notify_sent(rank, name);
            }
            What::Receive { message, bytes } => self.begin_receive(rank, message, bytes),
        }
    }

    #[inline]
    fn begin_receive(&mut self, rank: u32, message: u32, bytes: u32) {
        let now_ps = self.context.wheel.now_ps();
        let mut end_ps = now_ps + self.receive_ps(bytes);
        let Some(processors) = &mut self.processors else { return };
        processors.begin(rank);
        if self.holds_receivers {
            processors.begin_receive(rank, bytes, now_ps);
            end_ps += processors.loggp.body_ps(bytes);
        }
        self.free_ps[rank as usize] = end_ps;
        self.workload.foresee(rank);
        self.context.schedule(end_ps, RECEIVED | rank, message);
    }

    fn begin_send(&mut self, rank: u32, message: u32, bytes: u32, name: u32) {
        let now_ps = self.context.wheel.now_ps();
        let holds_receivers = self.holds_receivers;
        let Some(processors) = &mut self.processors else { return };
        let end_ps = now_ps + self.costs.send(bytes) + self.receiving.segmentation_ps(bytes);
        self.free_ps[rank as usize] = end_ps;
        let Message { source, destination, .. } = *self.context.messages.get(message);
        if source == destination {
            processors.begin_loopback(rank, name);
            self.loopback.push((end_ps, rank, message));
            self.context.schedule(end_ps, LOOPBACK | rank, 0);
        } else {
            let number = processors.begin_send(rank, bytes, name, now_ps);
            if holds_receivers {
                if let Some(recorder) = &mut self.context.recorder {
                    recorder.on_handed(message, end_ps);
                }
                let arrived_ps = end_ps + processors.loggp.latency_ps;
                Processors::schedule_arrival(&mut self.context, arrived_ps, number, message);
            }
        }
        if name != NAMELESS || !holds_receivers {
            self.context.schedule(end_ps, INJECT | rank, message);
        }
    }

    /// Handles the end of a send by the processor of a rank.
    pub(super) fn on_sent(&mut self, rank: u32, message: u32) {
        let Some(processors) = &mut self.processors else { return };
        let name = processors.sending(rank);
        if name == NAMELESS {
            return;
        }
        processors.go_on(rank);
        if let Some(recorder) = &mut self.context.recorder {
            recorder.on_sent(message);
        }
        self.notify_sent(rank, name);
    }

    fn notify_sent(&mut self, rank: u32, name: u32) {
        self.actions.now_ps = self.context.wheel.now_ps();
        self.workload.on_sent(rank, name, &mut self.actions);
        self.act(rank);
    }

    /// Determines whether receiving processors are busy while bytes arrive. With interrupts, they
    /// are not busy, because an interrupt notifies the processor only after the whole message has
    /// arrived.
    pub(super) fn note_receivers(&mut self) {
        let holds = |processors: &Processors| processors.loggp.holds_receiver;
        let is_informed = self.interrupts.is_none();
        self.holds_receivers = is_informed && self.processors.as_deref().is_some_and(holds);
    }
}

/// Index of the queue of sends. If computations are ordered too, they are also in this queue.
const OWN: usize = 0;
/// Index of the queue of tasks that take no time.
const TURNS: usize = 1;
/// Index of the queue of computations, if computations wait only for the processor.
const WORKS: usize = 2;
/// Index of the queue of messages that have arrived.
const RECEIVES: usize = 3;
const LINES: usize = 4;
/// Bit position of the index of a queue of tasks in `Event::subject`. The low bits are a rank. If
/// the index is `LINES`, the low bits are a message.
const LINE_SHIFT: u32 = 29;
const MESSAGE_MASK: u32 = (1 << LINE_SHIFT) - 1;
/// Value of `Event::subject` for the event that makes all checks of the current time that are still
/// scheduled.
const FLUSH: u32 = u32::MAX;
