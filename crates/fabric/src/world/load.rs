//! Hosts whose engine thread shares processors with other threads.

use delivery::Instant;

use super::{Application, World, WorldEvent};
use crate::host::HostEngine;
use crate::random::Random;
use crate::scheduler::{Report, Scheduler, Settings, ThreadId};

/// The processors of a host, and the other threads on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) processors: Settings,
    /// Number of threads of other programs, which are always busy.
    pub(crate) busy: usize,
    /// Maximum processor time between two steps of the engine thread, and maximum processor time
    /// inside the engine, in nanoseconds. Both times are random, uniformly distributed from 1.
    pub(crate) step_ns_max: u64,
}

#[derive(Debug)]
pub(super) struct LoadState {
    load: Load,
    scheduler: Scheduler,
    engine: ThreadId,
    stage: Stage,
    random: Random,
    /// Token of the event for the scheduler's next action. This action happens at `next_at_ns`.
    token: u64,
    next_at_ns: u64,
}

/// What the engine thread does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// The engine thread sleeps until the host has input.
    Asleep,
    /// The engine thread runs outside the engine. Frames and timers wait.
    Outside,
    /// The engine thread is inside the engine. It has handled frames, but has not sent any yet.
    Inside,
}

impl LoadState {
    fn new(load: Load, random: Random) -> Self {
        let mut scheduler = Scheduler::new(load.processors);
        for _ in 0..load.busy {
            scheduler.spawn_busy(0);
        }
        let engine = scheduler.spawn();
        let stage = Stage::Asleep;
        Self { load, scheduler, engine, stage, random, token: 0, next_at_ns: u64::MAX }
    }

    fn step(&mut self, now: Instant, stage: Stage) {
        self.stage = stage;
        let work_ns = self.random.between(1, self.load.step_ns_max);
        self.scheduler.work(now.0, self.engine, work_ns);
    }
}

impl<E: HostEngine> World<E> {
    /// Makes the engine of a host run only when the engine thread has a processor.
    pub(crate) fn set_load(&mut self, host: usize, load: Load, random: Random) {
        self.hosts[host].load = Some(LoadState::new(load, random));
        self.hosts[host].turns = None;
        self.schedule_processors(host);
    }

    /// Runs the scheduler of a host. Does nothing if the scheduler's plans have changed since the
    /// event was scheduled.
    pub(super) fn run_processors(
        &mut self,
        host: usize,
        token: u64,
        application: &mut dyn Application<E>,
    ) {
        let now = self.now();
        let is_current = |load: &LoadState| load.token == token;
        if !self.hosts[host].load.as_ref().is_some_and(is_current) {
            return;
        }
        loop {
            let Some(load) = &mut self.hosts[host].load else { return };
            load.next_at_ns = u64::MAX;
            match load.scheduler.advance(now.0) {
                Some(Report::Ready { thread }) if thread == load.engine => {}
                Some(_) => continue,
                None => break,
            }
            match load.stage {
                Stage::Asleep => load.step(now, Stage::Outside),
                Stage::Outside => {
                    load.step(now, Stage::Inside);
                    self.enter(host);
                }
                Stage::Inside => self.finish(host, application),
            }
        }
        self.schedule_processors(host);
    }

    fn enter(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        if !state.paused {
            state.wants_turn = false;
            self.begin_turn(host);
        }
    }

    fn finish(&mut self, host: usize, application: &mut dyn Application<E>) {
        if !self.hosts[host].paused {
            self.finish_turn(host, application);
        }
        let now = self.now();
        let state = &mut self.hosts[host];
        let more = state.wants_turn && !state.paused;
        let Some(load) = &mut state.load else { return };
        if more {
            load.step(now, Stage::Outside);
        } else {
            load.stage = Stage::Asleep;
            load.scheduler.sleep(now.0, load.engine);
        }
    }

    /// If the engine has input, wakes the engine thread. Schedules the event for the scheduler's
    /// next action.
    pub(super) fn schedule_processors(&mut self, host: usize) {
        let now = self.now();
        let state = &mut self.hosts[host];
        let Some(load) = &mut state.load else { return };
        if state.wants_turn && !state.paused && load.stage == Stage::Asleep {
            load.scheduler.wake(now.0, load.engine);
        }
        let next_at_ns = load.scheduler.next_at();
        if next_at_ns != load.next_at_ns {
            (load.next_at_ns, load.token) = (next_at_ns, load.token + 1);
            let event = WorldEvent::Processors { host, token: load.token };
            self.queue.push(Instant(next_at_ns), event);
        }
    }
}
