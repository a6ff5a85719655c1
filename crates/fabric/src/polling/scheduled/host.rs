//! One host: its engine, the cell (the lock of the engine), its threads and their processors.

use std::collections::VecDeque;

use delivery::{Instant, LinkId, LinkState};
use engine::EngineConfig;
use waiting::Standby;

use super::program::Program;
use super::rule::WaitRule;
use super::{Exercise, Trial};
use crate::edge_host::EdgeHost;
use crate::host::{ConnectionHandle, HostEngine, Operation, Region};
use crate::network::port_address;
use crate::polling::machine::{PAUSES_STREAM, WORD_BYTES, caps};
use crate::random::Random;
use crate::scheduler::{Scheduler, State, ThreadId};

/// The threads of the process that owns the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Application,
    Progress,
}

pub(super) const ROLES: [Role; 2] = [Role::Application, Role::Progress];

pub(super) struct ScheduledHost {
    pub(super) engine: EdgeHost,
    pub(super) source: Region,
    pub(super) target: Region,
    pub(super) connection: Option<ConnectionHandle>,
    pub(super) is_established: bool,
    pub(super) program: Program,
    /// Frames that have arrived and can be received.
    pub(super) inbox: VecDeque<(LinkId, Instant, Vec<u8>)>,
    /// Frames that the engine has passed to the driver. The driver sends them one by one.
    pub(super) outbox: VecDeque<Outgoing>,
    /// Operations that were posted while another thread was inside the engine.
    pub(super) submissions: Vec<Operation>,
    pub(super) scheduler: Scheduler,
    pub(super) threads: [Thread; 2],
    /// Threads of other programs.
    pub(super) busy: Vec<ThreadId>,
    pub(super) cell: Cell,
    /// The thread on watch, which polls the links or sleeps on them.
    pub(super) watch: Option<Role>,
    /// Time of the scheduled event for a timer of the engine.
    pub(super) timer_at: Instant,
    /// Time of the scheduler's next action. `token` identifies the event for this action.
    pub(super) next_at_ns: u64,
    pub(super) token: u64,
    /// Time of the engine's last run that did some work.
    pub(super) worked_at: Instant,
    /// Time when the application last polled; `None` before its first poll.
    pub(super) polled_at: Option<Instant>,
    /// Whether acknowledgements can be pending.
    pub(super) may_owe: bool,
    /// Number of frames received so far. `frames_before` is the number at the last poll of the
    /// links by the thread that watches them.
    pub(super) frames: u64,
    pub(super) frames_before: u64,
    /// Whether the thread that watches the links receives frames only at intervals.
    pub(super) is_moderated: bool,
    /// Number of notifications to the application so far.
    pub(super) notified: u64,
    pub(super) random: Random,
    pub(super) counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sleeps: u64,
    pub(super) kept_out: u64,
}

/// A frame that the driver sends.
pub(super) struct Outgoing {
    /// Processor time before the frame is on the wire, in picoseconds.
    pub(super) cost_ps: u64,
    /// Processor time after the frame is on the wire, in picoseconds.
    pub(super) return_ps: u64,
    pub(super) link: LinkId,
    pub(super) bytes: Vec<u8>,
}

/// The cell: the lock that lets one thread at a time into the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) owner: Option<Role>,
    /// Whether another thread has work. In this case, the owner of the cell runs the engine again
    /// before it leaves.
    pub(super) again: bool,
    pub(super) turn: ScheduledTurn,
    /// Number of times that the owner has run the engine since it entered.
    pub(super) rounds: u32,
    pub(super) has_worked: bool,
    pub(super) has_deferred: bool,
    /// Whether the owner is about to sleep. In this case, the owner sends pending acknowledgements
    /// first.
    pub(super) is_parting: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScheduledTurn {
    pub(super) now: Instant,
    pub(super) frames: u32,
    pub(super) more: bool,
}

/// What a thread does now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Doing {
    /// The thread is inside the engine and polls the links.
    Look,
    /// The thread is inside the engine and receives the first frame of the inbox.
    Take,
    /// The thread is inside the engine and sends the first frame of the outbox.
    Send,
    /// The thread is inside the engine. It posts operations, and then sends frames.
    Post,
    /// The thread hands an operation to the other thread, which is inside the engine.
    Submit,
    /// The thread polls the links repeatedly. For most of the time it is inside the engine.
    Spin,
    /// The thread waits because another thread is inside the engine.
    KeptOut,
    /// The thread sleeps or is waking up.
    Asleep(Sleep),
}

/// Kind of a sleep, which determines what ends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sleep {
    /// A frame, a timer of the engine or a wake-up by another thread ends the sleep.
    OnLinks,
    /// The end of an interval ends the sleep; arriving frames do not.
    Interval,
    /// Another thread ends the sleep, because it has completed an operation of the sleeping thread,
    /// or because the sleeping thread is now to watch the links.
    Blocked,
    /// The sleep ends when the other thread has left the engine.
    MakingWay,
    /// The thread's next scheduled poll, or a wake-up by another thread, ends the sleep.
    Aside,
}

/// The reason for which a thread has entered the engine. The reason determines what the thread does
/// after it leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// The application has posted.
    Posted,
    /// The application polls.
    Poll,
    /// The application waits and spins.
    Wait,
    /// The application waits and watches the links.
    Watch,
    /// The progress thread serves the links. `begins` is true for its first poll.
    Serve { begins: bool },
    /// The thread that watches the links is about to sleep on them.
    Part,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    pub(super) rule: Box<dyn WaitRule>,
    pub(super) doing: Doing,
    pub(super) purpose: Purpose,
    /// Number of consecutive polls of the links that have found nothing.
    pub(super) looks: u64,
    /// Time in which the thread had no processor during the current poll of the links, in
    /// nanoseconds.
    pub(super) away_ns: u64,
    /// Number of the alarm that ends the thread's current sleep.
    pub(super) alarm: u64,
    /// Start of the current poll or wait. Outside polls and waits, the start of the thread's last
    /// poll.
    pub(super) since: Instant,
    /// Time at which the current series of polls that found nothing began.
    pub(super) idle_since: Option<Instant>,
    /// Start of the period in which the thread could not enter the engine, because another thread
    /// was inside at each attempt.
    pub(super) kept_out_since: Option<Instant>,
    /// Maximum time for which the current wait spins, in nanoseconds.
    pub(super) limit_ns: Option<u64>,
    pub(super) has_slept: bool,
    /// Whether the thread's last sleep was an interval.
    pub(super) slept_interval: bool,
    /// The periods in which this thread has found that another thread watches the links.
    pub(super) standby: Standby,
}

impl Thread {
    fn new(id: ThreadId, rule: Box<dyn WaitRule>) -> Self {
        Self {
            id,
            rule,
            doing: Doing::Asleep(Sleep::Aside),
            purpose: Purpose::Poll,
            looks: 0,
            away_ns: 0,
            alarm: 0,
            since: Instant(0),
            idle_since: None,
            kept_out_since: None,
            limit_ns: None,
            has_slept: false,
            slept_interval: false,
            standby: Standby::default(),
        }
    }
}

impl ScheduledHost {
    pub(super) fn new(
        number: u64,
        trial: &Trial<'_>,
        rule: &dyn Fn() -> Box<dyn WaitRule>,
    ) -> Self {
        let mut entropy = [0; 32];
        Random::stream(trial.seed, number).fill(&mut entropy);
        let mut engine = EdgeHost::with_config(EngineConfig::default(), entropy);
        for (link, model) in trial.links.iter().enumerate() {
            let local = port_address(number as u8, link as u8);
            engine.attach_link(Instant(0), LinkId(link as u8), caps(model, local));
        }
        let bytes = trial.message_bytes.max(WORD_BYTES);
        let (source, target) = (engine.register(bytes), engine.register(bytes));
        engine.listen(Instant(0));
        let mut scheduler = Scheduler::new(trial.processors);
        let threads = ROLES.map(|_| Thread::new(scheduler.spawn(), rule()));
        Self {
            engine,
            source,
            target,
            connection: None,
            is_established: false,
            program: Program::Target,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            submissions: Vec::new(),
            scheduler,
            threads,
            busy: Vec::new(),
            cell: Cell::default(),
            watch: None,
            timer_at: Instant::NEVER,
            next_at_ns: u64::MAX,
            token: 0,
            worked_at: Instant(0),
            polled_at: None,
            may_owe: false,
            frames: 0,
            frames_before: 0,
            is_moderated: false,
            notified: 0,
            random: Random::stream(trial.seed, PAUSES_STREAM | number),
            counts: Counts::default(),
        }
    }

    pub(super) fn thread(&mut self, role: Role) -> &mut Thread {
        &mut self.threads[role as usize]
    }

    /// Sets the program that this host runs.
    pub(super) fn set_program(&mut self, number: usize, exercise: Exercise) {
        self.program = match (exercise, number) {
            (Exercise::PingPong, _) => Program::ping_pong(number == 0),
            (Exercise::OneWay, 0) | (Exercise::TwoWay, _) => Program::stream(),
            (Exercise::OneWay, _) => Program::Target,
        };
    }

    pub(super) fn links_up(&self) -> usize {
        let info = self.connection.and_then(|handle| self.engine.engine_handle(handle));
        let info = info.and_then(|handle| self.engine.engine().info(handle));
        let paths = info.iter().flat_map(|info| &info.paths);
        paths.filter(|path| path.state == LinkState::Up).count()
    }

    /// Returns whether the other thread is inside the engine. A thread that spins is inside for
    /// most of each poll of the links. If it loses its processor while it spins, it still counts as
    /// inside.
    pub(super) fn is_kept_out(&self, role: Role, look_ns: u64) -> bool {
        let other = match role {
            Role::Application => Role::Progress,
            Role::Progress => Role::Application,
        };
        if self.cell.owner == Some(other) {
            return true;
        }
        let thread = &self.threads[other as usize];
        let outside_ns = look_ns / OUTSIDE_PART;
        thread.doing == Doing::Spin && self.scheduler.left_ns(thread.id) % look_ns >= outside_ns
    }

    /// Returns the time since the application's last poll, in nanoseconds.
    pub(super) fn polled_ns_ago(&self, now: Instant) -> u64 {
        let thread = &self.threads[Role::Application as usize];
        if thread.doing == Doing::Spin {
            return match self.scheduler.state(thread.id) {
                State::Running => 0,
                _ => self.scheduler.waits_ns(thread.id),
            };
        }
        self.polled_at.map_or(u64::MAX, |at| now.since_ns(at))
    }
}

/// A spinning thread is outside the engine for 1/`OUTSIDE_PART` of each poll of the links. In this
/// time, the thread reads its clock and the state for which it waits.
const OUTSIDE_PART: u64 = 8;
