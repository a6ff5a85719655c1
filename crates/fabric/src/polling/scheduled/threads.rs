//! The steps of a host's threads, in the same sequence as in the runtime. Each step takes processor
//! time.

use delivery::Instant;
use waiting::{Application, Outcome};

use super::Mode;
use super::host::{Cell, Doing, Purpose, ROLES, Role, ScheduledTurn, Sleep};
use super::machine::{Happening, Machine, in_ns};
use super::program::Program;
use crate::host::{Action, CompletionKind, Flags, HostEngine, Operation};
use crate::polling::machine::{BURST_FRAMES, WORD_BYTES};

/// Result of a call that drives the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Drive {
    /// All work is done.
    Drove,
    /// Another thread is inside the engine and does the work.
    HandedOver,
    /// More work remains.
    Exhausted,
}

impl Machine {
    /// Makes the application start a new program. Wakes the application if it sleeps.
    pub(super) fn start(&mut self, number: usize) {
        if matches!(self.hosts[number].thread(Role::Application).doing, Doing::Asleep(_)) {
            self.wake(number, Role::Application);
        }
        self.call(number);
    }

    /// Continues a thread that has finished its current step.
    pub(super) fn go_on(&mut self, number: usize, role: Role) {
        match self.hosts[number].thread(role).doing {
            Doing::Look => self.take_next(number, role),
            Doing::Take => {
                self.take_frame(number);
                self.take_next(number, role);
            }
            Doing::Send => {
                let return_ps = self.send_frame(number);
                self.send_next(number, role, return_ps);
            }
            Doing::Post => {
                self.hosts[number].cell.turn.now = self.now();
                self.finish_and_send(number, role);
            }
            Doing::Submit => self.go_on_outside(number, role),
            Doing::Spin => self.end_spin(number, role),
            Doing::KeptOut => self.returned(number, role, Drive::HandedOver, false),
            Doing::Asleep(sleep) => self.woke(number, role, sleep),
        }
    }

    pub(super) fn spend(&mut self, number: usize, role: Role, doing: Doing, ns: u64) {
        let now_ns = self.now().0;
        let host = &mut self.hosts[number];
        host.thread(role).doing = doing;
        let id = host.thread(role).id;
        host.scheduler.work(now_ns, id, ns.max(1));
    }

    fn sleep(&mut self, number: usize, role: Role, sleep: Sleep, until: Instant) {
        let now_ns = self.now().0;
        let host = &mut self.hosts[number];
        host.counts.sleeps += 1;
        let thread = host.thread(role);
        thread.doing = Doing::Asleep(sleep);
        thread.alarm += 1;
        let (id, alarm) = (thread.id, thread.alarm);
        host.scheduler.sleep(now_ns, id);
        self.queue.push(until, Happening::Alarm { host: number, role, alarm });
    }

    /// Makes a thread try to enter the engine to poll the links. The thread cannot enter if another
    /// thread is inside.
    fn drive(&mut self, number: usize, role: Role, purpose: Purpose) {
        let (now, look_ns) = (self.now(), self.look_ns());
        self.hosts[number].thread(role).purpose = purpose;
        if role == Role::Application && !matches!(purpose, Purpose::Watch | Purpose::Part) {
            let polled_at = self.hosts[number].polled_at.replace(now).unwrap_or(now);
            self.hosts[number].thread(role).since = polled_at;
        }
        if self.hosts[number].is_kept_out(role, look_ns) {
            return self.keep_out(number, role);
        }
        self.enter(number, role);
        // A thread that is about to sleep does not read the links again.
        let cost_ns = if purpose == Purpose::Part { 0 } else { look_ns };
        self.spend(number, role, Doing::Look, cost_ns);
    }

    fn enter(&mut self, number: usize, role: Role) {
        let now = self.now();
        let host = &mut self.hosts[number];
        host.thread(role).kept_out_since = None;
        let Cell { has_deferred, .. } = host.cell;
        let turn = ScheduledTurn { now, ..ScheduledTurn::default() };
        let is_parting = host.thread(role).purpose == Purpose::Part;
        host.cell = Cell { owner: Some(role), turn, has_deferred, is_parting, ..Cell::default() };
    }

    /// Handles a thread that cannot enter the engine, because another thread is inside. If the
    /// other thread stays inside for a long time, it has probably lost its processor.
    fn keep_out(&mut self, number: usize, role: Role) {
        let (now, look_ns) = (self.now(), self.look_ns());
        let host = &mut self.hosts[number];
        host.counts.kept_out += 1;
        host.cell.again |= host.cell.owner.is_some();
        if role == Role::Progress {
            return self.returned(number, role, Drive::HandedOver, false);
        }
        let thread = host.thread(role);
        let cost_ns = thread.rule.sleep_cost_ns();
        let since = *thread.kept_out_since.get_or_insert(now);
        if now.since_ns(since) < cost_ns {
            return self.spend(number, role, Doing::KeptOut, look_ns);
        }
        thread.kept_out_since = None;
        self.sleep(number, role, Sleep::MakingWay, now.after_ns(cost_ns));
    }

    /// Makes a thread poll the links repeatedly, until an event arrives or the rule must decide
    /// again. The longer the thread has waited for an event, the more polls it makes before the
    /// rule decides.
    fn spin(&mut self, number: usize, role: Role) {
        let (now, look_ns) = (self.now(), self.look_ns());
        let host = &mut self.hosts[number];
        let is_due = host.engine.poll_timeout() <= now;
        let looks = host.thread(role).looks;
        let is_called = !host.inbox.is_empty() || is_due || host.cell.has_deferred;
        let count = if is_called { 1 } else { (looks / 8).clamp(1, SPIN_NS_MAX.div_ceil(look_ns)) };
        host.thread(role).looks += count;
        host.thread(role).away_ns = 0;
        self.arm_timer(number);
        self.spend(number, role, Doing::Spin, count * look_ns);
    }

    /// Handles the end of a series of polls.
    fn end_spin(&mut self, number: usize, role: Role) {
        let (now, look_ns) = (self.now(), self.look_ns());
        let host = &mut self.hosts[number];
        // As long as `doing` is `Spin`, other threads find this thread inside the engine
        // (`is_kept_out`). Therefore change it first.
        host.thread(role).doing = Doing::Look;
        if role == Role::Application && host.thread(role).purpose != Purpose::Watch {
            let last = Instant(now.0.saturating_sub(look_ns + host.thread(role).away_ns));
            host.thread(role).since = last;
            host.polled_at = Some(now);
        }
        if host.is_kept_out(role, look_ns) {
            return self.keep_out(number, role);
        }
        self.enter(number, role);
        self.take_next(number, role);
    }

    fn take_next(&mut self, number: usize, role: Role) {
        let frames = self.hosts[number].cell.turn.frames;
        let reads = frames < BURST_FRAMES && !self.hosts[number].cell.is_parting;
        match self.frame_cost_ns(number).filter(|_| reads) {
            Some(cost_ns) => self.spend(number, role, Doing::Take, cost_ns),
            None => self.finish_and_send(number, role),
        }
    }

    fn finish_and_send(&mut self, number: usize, role: Role) {
        self.finish_turn(number, role);
        self.send_next(number, role, 0);
    }

    fn send_next(&mut self, number: usize, role: Role, return_ps: u64) {
        match self.hosts[number].outbox.front() {
            Some(next) => {
                let cost_ns = in_ns(return_ps + next.cost_ps);
                self.spend(number, role, Doing::Send, cost_ns);
            }
            // All frames of this run of the engine are sent. The run ends after the remaining cost
            // of the last frame.
            None if return_ps > 0 => self.spend(number, role, Doing::Send, in_ns(return_ps)),
            None => self.end_turn(number, role),
        }
    }

    fn end_turn(&mut self, number: usize, role: Role) {
        let (now, look_ns) = (self.now(), self.look_ns());
        let host = &mut self.hosts[number];
        let cell = &mut host.cell;
        cell.rounds += 1;
        let rounds_max = if role == Role::Application { ROUNDS_INLINE } else { ROUNDS_MAX };
        let more = cell.turn.more | core::mem::take(&mut cell.again);
        if cell.has_worked {
            host.worked_at = now;
        }
        if more && cell.rounds < rounds_max {
            cell.turn = ScheduledTurn { now, ..ScheduledTurn::default() };
            return self.spend(number, role, Doing::Look, look_ns);
        }
        let worked = cell.has_worked;
        cell.owner = None;
        self.arm_timer(number);
        if role == Role::Progress && worked {
            self.wake_blocked(number);
        }
        if more && role == Role::Application {
            self.call(number);
        }
        let outcome = if more { Drive::Exhausted } else { Drive::Drove };
        self.returned(number, role, outcome, worked);
    }

    /// Wakes a blocked application. The application then either begins to watch the links, or
    /// checks whether its operation has completed.
    fn wake_blocked(&mut self, number: usize) {
        if self.hosts[number].thread(Role::Application).doing == Doing::Asleep(Sleep::Blocked) {
            self.wake(number, Role::Application);
        }
    }

    /// Continues a thread that has left the engine.
    pub(super) fn returned(&mut self, number: usize, role: Role, outcome: Drive, worked: bool) {
        if worked {
            self.hosts[number].thread(role).looks = 0;
        }
        match self.hosts[number].thread(role).purpose {
            Purpose::Posted => self.go_on_outside(number, role),
            Purpose::Poll => self.end_poll(number, outcome, worked),
            Purpose::Wait => self.end_wait_look(number),
            Purpose::Watch => self.end_watch_look(number, outcome, worked),
            Purpose::Serve { begins } => self.end_serve_look(number, outcome, worked, begins),
            Purpose::Part => self.end_parting(number, role, outcome, worked),
        }
    }

    /// Continues a thread that has woken up.
    fn woke(&mut self, number: usize, role: Role, sleep: Sleep) {
        self.hosts[number].thread(role).alarm += 1;
        match (role, sleep) {
            (_, Sleep::OnLinks) => self.end_sleep_on_links(number, role),
            (_, Sleep::Interval) => {
                self.hosts[number].thread(role).slept_interval = true;
                self.end_sleep_on_links(number, role);
            }
            (Role::Application, Sleep::MakingWay) => {
                self.returned(number, role, Drive::HandedOver, false);
            }
            (Role::Application, Sleep::Blocked) => self.go_on_blocked(number),
            (Role::Application, Sleep::Aside) => {
                self.hosts[number].polled_at = Some(self.now());
                self.go_on_outside(number, role);
            }
            (Role::Progress, _) => self.serve(number),
        }
    }

    /// Continues a thread that is outside the engine and awake.
    fn go_on_outside(&mut self, number: usize, role: Role) {
        if role == Role::Progress {
            return self.serve(number);
        }
        if self.run_program(number) {
            return;
        }
        match self.mode {
            Mode::Polls => self.drive(number, role, Purpose::Poll),
            Mode::Waits => self.begin_wait(number),
        }
    }

    /// Runs the application's program. Returns whether the program posts operations, which takes
    /// time.
    fn run_program(&mut self, number: usize) -> bool {
        let operations = match &self.hosts[number].program {
            Program::PingPong(_) => self.run_ping_pong(number),
            Program::Stream(_) => self.run_stream(number),
            Program::Target => Vec::new(),
        };
        if operations.is_empty() {
            return false;
        }
        let post_ns = in_ns(self.costs.host.post_ps * operations.len() as u64);
        let (now, look_ns) = (self.now(), self.look_ns());
        let role = Role::Application;
        let host = &mut self.hosts[number];
        host.polled_at = Some(now);
        host.thread(role).looks = 0;
        if host.is_kept_out(role, look_ns) {
            host.submissions.extend(operations);
            host.cell.again |= host.cell.owner.is_some();
            self.call(number);
            self.spend(number, role, Doing::Submit, post_ns);
            return true;
        }
        host.thread(role).purpose = Purpose::Posted;
        self.enter(number, role);
        let host = &mut self.hosts[number];
        host.submissions.extend(operations);
        self.spend(number, role, Doing::Post, post_ns);
        true
    }

    fn run_ping_pong(&mut self, number: usize) -> Vec<Operation> {
        let now_ns = self.now().0;
        let word = self.message_bytes - WORD_BYTES;
        let host = &mut self.hosts[number];
        while host.connection.and_then(|handle| host.engine.poll_completion(handle)).is_some() {}
        let mut found = [0; WORD_BYTES as usize];
        host.engine.read_memory(host.target, word, &mut found);
        let Program::PingPong(ping_pong) = &mut host.program else { return Vec::new() };
        let Some(number_of_round) = ping_pong.next(u64::from_le_bytes(found), now_ns) else {
            return Vec::new();
        };
        host.engine.write_memory(host.source, word, &number_of_round.to_le_bytes());
        vec![self.write(number, true, false, 0)]
    }

    fn run_stream(&mut self, number: usize) -> Vec<Operation> {
        let group = (self.in_flight / 8).max(1);
        let Program::Stream(mut stream) = self.hosts[number].program else { return Vec::new() };
        let host = &mut self.hosts[number];
        while let Some(completion) =
            host.connection.and_then(|handle| host.engine.poll_completion(handle))
        {
            host.notified += 1;
            if completion.kind != CompletionKind::Notification {
                stream.done = completion.context;
            }
        }
        let mut operations = Vec::new();
        while stream.posted - stream.done < self.in_flight {
            stream.posted += 1;
            let is_signalled = stream.posted.is_multiple_of(group);
            operations.push(self.write(number, false, is_signalled, stream.posted));
        }
        self.hosts[number].program = Program::Stream(stream);
        operations
    }

    fn write(&self, number: usize, strict: bool, signalled: bool, context: u64) -> Operation {
        let target = self.hosts[1 - number].target;
        Operation {
            action: Action::Write,
            local: self.hosts[number].source,
            local_offset: 0,
            length_bytes: self.message_bytes,
            key: target.key,
            address: target.address,
            immediate: None,
            flags: Flags { strict, signalled, ..Flags::default() },
            context,
        }
    }

    /// Handles the end of one poll by the application.
    fn end_poll(&mut self, number: usize, outcome: Drive, worked: bool) {
        let (now, role) = (self.now(), Role::Application);
        let found_nothing = outcome == Drive::Drove && !worked;
        let host = &mut self.hosts[number];
        let since = host.thread(role).since;
        let away_ns = core::mem::take(&mut host.thread(role).away_ns);
        let thread = host.thread(role);
        let gap_ns = now.since_ns(since);
        if gap_ns >= thread.rule.sleep_cost_ns() {
            if away_ns > 0 {
                for role in ROLES {
                    host.thread(role).rule.on_descheduled(now, gap_ns);
                }
            }
            host.thread(role).idle_since = Some(now);
        }
        let thread = host.thread(role);
        let idle_ns = thread.idle_since.map(|since| now.since_ns(since));
        let sleeps = idle_ns.is_some_and(|idle_ns| {
            let sleeps = found_nothing && thread.rule.while_polling(now, idle_ns) != Outcome::Spin;
            if sleeps || !found_nothing {
                thread.rule.on_polled(now, idle_ns, sleeps);
            }
            sleeps
        });
        if idle_ns.is_none() || !found_nothing {
            thread.idle_since = Some(now);
        }
        if sleeps {
            thread.idle_since = None;
            return self.sleep_polling(number);
        }
        if self.run_program(number) {
            self.hosts[number].thread(role).idle_since = None;
            return;
        }
        if found_nothing {
            self.spin(number, role);
        } else {
            self.drive(number, role, Purpose::Poll);
        }
    }

    fn sleep_polling(&mut self, number: usize) {
        let (now, role) = (self.now(), Role::Application);
        let host = &mut self.hosts[number];
        if host.watch.is_none() {
            host.watch = Some(role);
            return self.drive(number, role, Purpose::Part);
        }
        let cost_ns = host.thread(role).rule.sleep_cost_ns();
        self.sleep(number, role, Sleep::Aside, now.after_ns(cost_ns));
    }

    fn begin_wait(&mut self, number: usize) {
        let now = self.now();
        let thread = self.hosts[number].thread(Role::Application);
        (thread.idle_since, thread.looks) = (Some(now), 0);
        let limit_ns = thread.rule.spin_limit_ns();
        thread.limit_ns = Some(limit_ns);
        if limit_ns == 0 {
            self.hosts[number].polled_at = Some(now);
            return self.go_on_blocked(number);
        }
        self.drive(number, Role::Application, Purpose::Wait);
    }

    /// Handles the end of one poll of the links in a wait that spins.
    fn end_wait_look(&mut self, number: usize) {
        let now = self.now();
        if self.end_wait_if_ready(number, false) {
            return;
        }
        let thread = self.hosts[number].thread(Role::Application);
        let (since, limit_ns) = (thread.idle_since.unwrap_or(now), thread.limit_ns.unwrap_or(0));
        thread.looks += 1;
        if now.since_ns(since) < limit_ns {
            return self.spin(number, Role::Application);
        }
        self.go_on_blocked(number);
    }

    /// If the application's wait has succeeded, ends the wait and continues the application.
    /// Returns whether the wait has ended.
    fn end_wait_if_ready(&mut self, number: usize, has_slept: bool) -> bool {
        let now = self.now();
        let looks = self.hosts[number].thread(Role::Application).looks;
        if !self.run_program(number) {
            return false;
        }
        let thread = self.hosts[number].thread(Role::Application);
        let took_ns = now.since_ns(thread.idle_since.unwrap_or(now));
        if looks > 0 || has_slept {
            thread.rule.on_waited(took_ns, thread.limit_ns.unwrap_or(0), has_slept);
        }
        true
    }

    fn go_on_blocked(&mut self, number: usize) {
        let role = Role::Application;
        if self.end_wait_if_ready(number, true) {
            return;
        }
        let host = &mut self.hosts[number];
        if host.watch.is_some() {
            return self.sleep(number, role, Sleep::Blocked, Instant::NEVER);
        }
        host.watch = Some(role);
        host.thread(role).purpose = Purpose::Watch;
        self.go_on_watching(number, Drive::Drove, false);
    }

    fn end_watch_look(&mut self, number: usize, outcome: Drive, worked: bool) {
        let role = Role::Application;
        self.on_looked(number, role);
        if self.end_wait_if_ready(number, true) {
            self.hosts[number].watch = None;
            return self.call_successor(number);
        }
        self.go_on_watching(number, outcome, worked);
    }

    /// Continues an application that watches the links and still waits. The application spins,
    /// sleeps or polls again.
    fn go_on_watching(&mut self, number: usize, outcome: Drive, worked: bool) {
        let (now, role) = (self.now(), Role::Application);
        let host = &mut self.hosts[number];
        let idle_ns = now.since_ns(host.worked_at);
        let spins = idle_ns < host.thread(Role::Progress).rule.spin_limit_ns();
        let moderates = self.interval_ns(number).is_some();
        match outcome {
            Drive::Drove if moderates => self.part(number, role),
            Drive::Drove if spins && !worked => self.spin(number, role),
            Drive::Drove if !worked => self.part(number, role),
            _ => self.drive(number, role, Purpose::Watch),
        }
    }

    /// Wakes the progress thread if it waits to become the thread that watches the links. The
    /// caller has found that no thread watches them.
    fn call_successor(&mut self, number: usize) {
        let thread = self.hosts[number].thread(Role::Progress);
        if thread.doing == Doing::Asleep(Sleep::Blocked) {
            self.wake(number, Role::Progress);
        }
    }

    /// Lets the progress thread decide what to do next.
    fn serve(&mut self, number: usize) {
        let (now, role) = (self.now(), Role::Progress);
        if let Outcome::SleepUntil(time) = self.while_serving(number) {
            self.forget_look(number);
            return self.sleep(number, role, Sleep::Aside, time);
        }
        let host = &mut self.hosts[number];
        if host.watch.is_none() {
            host.watch = Some(role);
            host.thread(role).standby.on_served();
            return self.drive(number, role, Purpose::Serve { begins: true });
        }
        let thread = host.thread(role);
        let cost_ns = thread.rule.sleep_cost_ns();
        let until = thread.standby.on_watched(now, cost_ns);
        self.forget_look(number);
        let sleep = if until.is_some() { Sleep::Aside } else { Sleep::Blocked };
        self.sleep(number, role, sleep, until.unwrap_or(Instant::NEVER));
    }

    fn while_serving(&mut self, number: usize) -> Outcome {
        let (now, look_ns, role) = (self.now(), self.look_ns(), Role::Progress);
        let host = &mut self.hosts[number];
        let application = Application {
            is_inside: host.is_kept_out(role, look_ns),
            polled_ns_ago: host.polled_ns_ago(now),
        };
        let idle_ns = now.since_ns(host.worked_at);
        host.thread(role).rule.while_serving(now, idle_ns, application)
    }

    fn forget_look(&mut self, number: usize) {
        let thread = self.hosts[number].thread(Role::Progress);
        (thread.limit_ns, thread.has_slept, thread.looks) = (None, false, 0);
    }

    fn end_serve_look(&mut self, number: usize, outcome: Drive, worked: bool, begins: bool) {
        let (now, role) = (self.now(), Role::Progress);
        self.on_looked(number, role);
        let polled_ns_ago = self.hosts[number].polled_ns_ago(now);
        let thread = self.hosts[number].thread(role);
        if begins {
            thread.rule.on_served(worked, polled_ns_ago);
        }
        if worked {
            let has_slept = core::mem::take(&mut thread.has_slept);
            if let Some(limit_ns) = thread.limit_ns.take() {
                let took_ns = now.since_ns(thread.since);
                thread.rule.on_waited(took_ns, limit_ns, has_slept);
            }
            thread.since = now;
        } else if thread.limit_ns.is_none() {
            thread.limit_ns = Some(thread.rule.spin_limit_ns());
        }
        let wait = match outcome {
            Drive::Drove => self.while_serving(number),
            Drive::HandedOver | Drive::Exhausted => return self.leave_watch(number),
        };
        self.hosts[number].thread(role).purpose = Purpose::Serve { begins: false };
        match wait {
            Outcome::Spin if self.interval_ns(number).is_none() => {
                self.hosts[number].thread(role).looks += 1;
                self.spin(number, role);
            }
            Outcome::Spin | Outcome::SleepUntilEvent => self.part(number, role),
            Outcome::SleepUntil(_) => self.leave_watch(number),
        }
    }

    /// Records that the thread that watches the links has polled them.
    fn on_looked(&mut self, number: usize, role: Role) {
        let now = self.now();
        let host = &mut self.hosts[number];
        let frames = host.frames - core::mem::replace(&mut host.frames_before, host.frames);
        let slept_interval = core::mem::take(&mut host.thread(role).slept_interval);
        let notified = host.notified;
        host.thread(Role::Progress).rule.on_looked(now, frames, notified, slept_interval);
    }

    fn interval_ns(&mut self, number: usize) -> Option<u64> {
        let now = self.now();
        let host = &mut self.hosts[number];
        let active_at = host.polled_at.unwrap_or_default();
        host.thread(Role::Progress).rule.interval_ns(now, active_at)
    }

    /// Makes the thread that watches the links sleep. The thread flushes pending acknowledgements
    /// first, unless its last poll has done so.
    fn part(&mut self, number: usize, role: Role) {
        let interval_ns = self.interval_ns(number);
        let host = &mut self.hosts[number];
        let was_moderated = core::mem::replace(&mut host.is_moderated, interval_ns.is_some());
        match interval_ns.filter(|_| was_moderated) {
            Some(interval_ns) => self.sleep_interval(number, role, interval_ns),
            None => self.drive(number, role, Purpose::Part),
        }
    }

    /// Makes a thread sleep until an interval has ended or a timer is due.
    fn sleep_interval(&mut self, number: usize, role: Role, interval_ns: u64) {
        let until = self.now().after_ns(interval_ns);
        let due = self.hosts[number].engine.poll_timeout();
        self.sleep(number, role, Sleep::Interval, until.min(due).max(self.now()));
    }

    /// Makes the progress thread stop watching the links, so that a blocked application watches
    /// them instead. Then continues the progress thread.
    fn leave_watch(&mut self, number: usize) {
        self.hosts[number].watch = None;
        self.wake_blocked(number);
        self.serve(number);
    }

    /// Handles the thread that watches the links after it has flushed acknowledgements. If there is
    /// no work, the thread sleeps now.
    fn end_parting(&mut self, number: usize, role: Role, outcome: Drive, worked: bool) {
        let now = self.now();
        let host = &mut self.hosts[number];
        let is_application = role == Role::Application;
        let is_due = !host.inbox.is_empty() || host.engine.poll_timeout() <= now;
        if outcome != Drive::Drove || worked && is_application || is_due {
            return self.end_sleep_on_links(number, role);
        }
        if self.hosts[number].is_moderated
            && let Some(interval_ns) = self.interval_ns(number)
        {
            return self.sleep_interval(number, role, interval_ns);
        }
        let host = &mut self.hosts[number];
        let until = if is_application && self.mode == Mode::Polls {
            now.after_ns(host.thread(role).rule.poll_sleep_ns())
        } else {
            Instant::NEVER
        };
        self.sleep(number, role, Sleep::OnLinks, until);
    }

    fn end_sleep_on_links(&mut self, number: usize, role: Role) {
        let thread = self.hosts[number].thread(role);
        thread.has_slept |= !thread.slept_interval;
        match (role, self.mode) {
            (Role::Progress, _) => self.leave_watch(number),
            (Role::Application, Mode::Polls) => {
                self.hosts[number].watch = None;
                self.hosts[number].polled_at = Some(self.now());
                self.go_on_outside(number, role);
            }
            (Role::Application, Mode::Waits) => self.drive(number, role, Purpose::Watch),
        }
    }
}

/// Maximum number of times that one call runs the engine: `ROUNDS_INLINE` for a call of an
/// application, `ROUNDS_MAX` for a call of the progress thread. Both numbers are equal to those of
/// the runtime.
const ROUNDS_INLINE: u32 = 8;
const ROUNDS_MAX: u32 = 64;

/// Maximum time until a spinning thread asks the rule again, in nanoseconds.
const SPIN_NS_MAX: u64 = 100_000;
