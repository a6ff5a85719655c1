//! The state of a run of one seed, and its main loop.

use std::panic::{AssertUnwindSafe, catch_unwind};

use delivery::Instant;

use super::MakeEngine;
use super::churn::{self, Churn};
use super::datagrams::{PortMemory, Sent};
use super::end::{self, CELLS, COUNTERS, End, Stage, View};
use super::plan::{Disaster, Plan};
use super::queue_pairs::SharedInbox;
use super::report::{Failure, Options, Report};
use super::strangers::Strangers;
use crate::host::{HostEngine, Region, Tuning};
use crate::network::{Network, PortId, Segment};
use crate::oracle::Violation;
use crate::random::Random;
use crate::world::{Livelock, World};

/// Runs `seed` with engines that `make` creates. A panic of an engine counts as a violation.
pub fn run_with<E: HostEngine>(seed: u64, options: &Options, make: &MakeEngine<'_, E>) -> Report {
    let mut report = execute_caught(seed, options, make);
    if options.twice && report.failure.is_none() {
        let second = execute_caught(seed, options, make);
        if second.trace_hash != report.trace_hash {
            let (first, second) = (report.trace_hash, second.trace_hash);
            let violation = Violation::NotDeterministic { first, second };
            let failure = Failure::without_tail(seed, options, violation, report.virtual_ns);
            report.failure = Some(failure);
        }
    }
    report
}

fn execute_caught<E: HostEngine>(seed: u64, options: &Options, make: &MakeEngine<'_, E>) -> Report {
    // After a panic, the harness no longer uses any state of the run.
    let work = AssertUnwindSafe(|| Run::new(seed, *options, make).execute());
    catch_unwind(work).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = text.unwrap_or("no message").to_owned();
        let violation = Violation::Panicked { what };
        let failure = Failure::without_tail(seed, options, violation, 0);
        Report::of_failure(seed, options, failure)
    })
}

/// The state of a run, except its world.
pub(super) struct Run<'a, E> {
    pub(super) seed: u64,
    pub(super) options: Options,
    pub(super) make: &'a MakeEngine<'a, E>,
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) hosts: Vec<HostState>,
    pub(super) pairs: Vec<Pair>,
    /// The action at each wake-up, indexed by the wake-up's token.
    pub(super) wakes: Vec<Wake>,
    /// Tokens that can be reused.
    pub(super) free_wakes: Vec<u64>,
    pub(super) frozen: Vec<Frozen>,
    /// For each port, the time at which the last of its cuts and outages so far ends.
    pub(super) blocked_until: Vec<Instant>,
    /// State that only a soak needs.
    pub(super) churn: Churn,
    /// State of the attackers without a host.
    pub(super) strangers: Strangers,
    /// Random stream that the classes of scenario use during the run.
    pub(super) chance: Random,
    /// Random stream for the keys and windows by which peers access memory.
    pub(super) gates: Random,
    /// Posted datagrams.
    pub(super) datagrams: Vec<Sent>,
    /// Number of keys given so far to windows that all connections of a service can use.
    pub(super) next_key: u32,
    /// Whether all work is done and applications now close their connections.
    pub(super) is_closing: bool,
    pub(super) healed: bool,
    /// Number of runs of engines in which a host had handled a frame.
    pub(super) turns: u64,
    pub(super) violation: Option<Violation>,
    pub(super) tally: Counts,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) operations: u64,
    pub(super) completed: u64,
    pub(super) delivered: u64,
    pub(super) connections: u64,
}

/// The state of a host, except its engine.
#[derive(Debug)]
pub(super) struct HostState {
    pub(super) life: u32,
    pub(super) counters: Region,
    pub(super) shared: [SharedCounter; COUNTERS],
    /// Memory for messages of all connections of the host; `None` if they do not share receives.
    pub(super) inbox: Option<SharedInbox>,
    /// The datagram port of the host.
    pub(super) port_memory: Option<PortMemory>,
    /// Number of frames that the host had handled when its memory was last checked.
    pub(super) frames_seen: u64,
}

/// A counter to which several connections add 1.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedCounter {
    /// The values that successful additions have found.
    pub(super) found: std::collections::BTreeSet<u64>,
}

/// Two hosts with a connection.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) hosts: [usize; 2],
    /// Number of the current attempt to connect. Both sides of a connection store the same number.
    pub(super) generation: u32,
    pub(super) ends: [Option<End>; 2],
    /// Number of operations that each side still has to post.
    pub(super) remaining: [u32; 2],
    /// Time since which the pair has had no path that works in both directions; `None` if it has
    /// such a path.
    pub(super) blocked_since: Option<Instant>,
    /// Total time without a path during the current attempt to connect and its connection, in
    /// nanoseconds.
    pub(super) blocked_ns: u64,
    /// Whether the current attempt to connect began after all faults had ended.
    pub(super) begun_healed: bool,
    /// Whether an attempt to connect is scheduled.
    pub(super) retry_scheduled: bool,
    /// A scheduled poll of an application belongs to an attempt to connect. For each side, the
    /// number of this attempt; 0 if no poll is scheduled.
    pub(super) looking: [u32; 2],
    /// For each side, the time of its last progress.
    pub(super) progress_at: [Instant; 2],
    /// Whether one of the hosts is the faulty host.
    pub(super) is_faulty: bool,
    /// Whether the pair's connections may end at any time, because of a lasting condition.
    pub(super) may_end: bool,
    /// Whether one of the hosts lies. If so, the state of the other host cannot be checked.
    pub(super) is_distrusted: bool,
    /// Number of the last attempt to connect during which one of the hosts lied.
    pub(super) distrusted_until: u32,
    /// Number of the last attempt to connect whose connection an application closed on purpose.
    pub(super) let_go: u32,
    /// A side sometimes requests an invalid access to the other side's memory. This is the number
    /// of the last attempt to connect that made a connection with such a request.
    pub(super) had_rogue: u32,
    /// A side sometimes loses memory that its connection needs. This is the number of the last
    /// attempt to connect that made a connection with such a loss.
    pub(super) lost_memory: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wake {
    /// The application on one side of a pair polls.
    Look { pair: usize, side: usize, generation: u32 },
    /// The first side of a pair connects.
    Connect { pair: usize },
    /// A disaster happens.
    Strike(Disaster),
    /// A cut ends, or a link comes back.
    Unblock { host: usize, link: usize },
    /// The connections of a host get a removed link again.
    AddPath { host: usize, link: usize },
    /// A path may have appeared or disappeared.
    Reassess,
    /// An interface that did not exist comes back.
    Attach { host: usize, link: usize, is_renumbered: bool },
    /// The carrier of a link is lost or comes back.
    Carrier { host: usize, link: usize, is_up: bool },
    /// The increased loss of a link ends.
    Calm { host: usize, link: usize },
    /// The applications of a pair get operations to post.
    Grant { pair: usize, operations: u32 },
    /// The faulty host misbehaves, for the first time or again.
    Fail,
    /// An attacker without a host attacks.
    Attack,
    /// A driver becomes full.
    Fill,
    /// A path starts to drop frames that exceed some length.
    Narrow { hole: usize },
    /// A datagram application sends a datagram. `left` is the number of datagrams that it sends
    /// after this one.
    Datagrams { host: usize, left: u32 },
}

/// Memory whose contents must not change any more.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) host: usize,
    pub(super) region: Region,
    pub(super) digest: u64,
}

impl<'a, E: HostEngine> Run<'a, E> {
    fn new(seed: u64, options: Options, make: &'a MakeEngine<'a, E>) -> Self {
        Self::of_plan(seed, options, make, Plan::of_seed(seed, &options))
    }

    pub(super) fn of_plan(
        seed: u64,
        options: Options,
        make: &'a MakeEngine<'a, E>,
        plan: Plan,
    ) -> Self {
        let plan_ports = plan.hosts * plan.links.len();
        let pairs = plan
            .pairs
            .iter()
            .map(|&(first, second)| Pair {
                hosts: [first, second],
                generation: 0,
                ends: [None, None],
                remaining: [plan.traffic.operations; 2],
                blocked_since: None,
                blocked_ns: 0,
                begun_healed: false,
                retry_scheduled: false,
                looking: [0; 2],
                progress_at: [Instant(0); 2],
                is_faulty: false,
                may_end: false,
                is_distrusted: false,
                distrusted_until: 0,
                let_go: 0,
                had_rogue: 0,
                lost_memory: 0,
            })
            .collect();
        Self {
            seed,
            options,
            make,
            plan,
            random: Random::stream(seed, TRAFFIC_STREAM),
            hosts: Vec::new(),
            pairs,
            wakes: Vec::new(),
            free_wakes: Vec::new(),
            frozen: Vec::new(),
            blocked_until: vec![Instant(0); plan_ports],
            churn: Churn::new(seed, plan_ports),
            strangers: Strangers::new(seed),
            chance: Random::stream(seed, CHANCE_STREAM),
            gates: Random::stream(seed, GATES_STREAM),
            datagrams: Vec::new(),
            next_key: 0,
            is_closing: false,
            healed: false,
            turns: 0,
            violation: None,
            tally: Counts::default(),
        }
    }

    fn execute(mut self) -> Report {
        let mut world = World::new(self.seed, self.options.tail_entries);
        self.build(&mut world);
        self.schedule(&mut world);
        self.schedule_faulty(&mut world);
        self.schedule_strangers(&mut world);
        self.schedule_work(&mut world);
        self.schedule_full_drivers(&mut world);
        self.schedule_holes(&mut world);
        self.schedule_datagrams(&mut world);
        let healing_at = Instant(self.plan.safety_ns);
        self.advance(&mut world, healing_at);
        if self.violation.is_none() {
            self.heal(&mut world);
            self.converge(&mut world, healing_at);
        }
        if self.violation.is_none() {
            self.check_idle(&mut world);
        }
        if self.violation.is_none() {
            self.expect_emptiness(&mut world);
        }
        let again = self.options.again(self.seed);
        self.report(&world, again)
    }

    pub(super) fn report(&mut self, world: &World<E>, again: String) -> Report {
        let failure = self.violation.take().map(|violation| Failure {
            violation,
            time: world.now(),
            again,
            plan: format!("{:?}", self.plan),
            tail: world.trace.tail().copied().collect(),
        });
        Report {
            seed: self.seed,
            trace_hash: world.trace.hash(),
            events: world.trace.events(),
            virtual_ns: world.now().0,
            operations: self.tally.operations,
            completed: self.tally.completed,
            delivered: self.tally.delivered,
            connections: self.tally.connections,
            network: *world.network.counters(),
            classes: self.plan.classes.names(),
            failure,
        }
    }

    /// Records the first violation. If a run delivers corrupted frames, violations of the
    /// guarantees about data do not count.
    pub(super) fn check(&mut self, outcome: Result<(), Violation>) {
        let Err(violation) = outcome else { return };
        let excused = self.plan.lenient
            && !matches!(
                violation,
                Violation::Guards { .. } | Violation::Occupancy { .. } | Violation::Livelock { .. }
            );
        if !excused && self.violation.is_none() {
            self.violation = Some(violation);
        }
    }

    /// Records a violation by a pair of hosts. Ignores the violation if the pair is distrusted.
    pub(super) fn check_of(&mut self, pair: usize, outcome: Result<(), Violation>) {
        if !self.pairs[pair].is_distrusted {
            self.check(outcome);
        }
    }

    /// Records a violation on one side of a connection. Ignores the violation if the pair was
    /// distrusted when the connection was made.
    pub(super) fn check_of_end(
        &mut self,
        pair: usize,
        side: usize,
        outcome: Result<(), Violation>,
    ) {
        let state = &self.pairs[pair];
        let end = state.ends[side].as_ref();
        if end.is_none_or(|end| end.generation > state.distrusted_until) {
            self.check_of(pair, outcome);
        }
    }

    pub(super) fn wake_at(&mut self, world: &mut World<E>, time: Instant, wake: Wake) {
        if let Some(token) = self.free_wakes.pop() {
            self.wakes[token as usize] = wake;
            return world.wake_at(time, token);
        }
        world.wake_at(time, self.wakes.len() as u64);
        self.wakes.push(wake);
    }

    pub(super) fn port(&self, host: usize, link: usize) -> PortId {
        PortId((host * self.plan.links.len() + link) as u16)
    }

    /// Creates the engine of a host that has been restarted `life` times.
    pub(super) fn engine(&self, host: usize, life: u32) -> E {
        let stream = ENTROPY_STREAM ^ (u64::from(life) << 32 | host as u64);
        let mut entropy = [0; 32];
        Random::stream(self.seed, stream).fill(&mut entropy);
        let (plan, shape) = self.engine_plan(host);
        (self.make)(
            host,
            Tuning {
                entropy,
                congestion: plan.congestion,
                scheduling: plan.scheduling,
                operation_window: plan.operation_window,
                order_pool_bytes: plan.order_pool_bytes,
                read_depth: plan.read_depth,
                ack_delay_max_ns: plan.ack_delay_max_ns,
                dead_peer_ns: DEAD_PEER_NS,
                pool_divisor: plan.pool_divisor,
                shape,
            },
        )
    }

    /// Returns the memory that `side` of a pair writes; `None` if it no longer exists.
    pub(super) fn target<'w>(
        &self,
        world: &'w World<E>,
        pair: usize,
        side: usize,
    ) -> Option<View<'w, E>> {
        let pair = &self.pairs[pair];
        let (own, other) = (pair.ends[side].as_ref()?, pair.ends[1 - side].as_ref()?);
        let alive = other.life == self.hosts[other.host].life
            && other.generation == own.generation
            && other.stage != Stage::Closed
            && !pair.is_distrusted
            && !self.plan.lenient;
        alive.then(|| View { engine: world.engine(other.host), region: other.target })
    }

    pub(super) fn build(&mut self, world: &mut World<E>) {
        let segments: Vec<usize> = self
            .plan
            .links
            .iter()
            .map(|link| {
                let latency_ns = 1_000;
                let segment =
                    if link.switched { Segment::Switched { latency_ns } } else { Segment::Direct };
                world.network.add_segment(segment)
            })
            .collect();
        for host in 0..self.plan.hosts {
            let ports: Vec<PortId> = (0..segments.len())
                .map(|link| {
                    let segment = segments[self.plan.segment(host, link)];
                    add_port(&mut world.network, segment, host, link, &self.plan)
                })
                .collect();
            for &port in &ports {
                self.fit_port(world, host, port);
            }
            let engine = self.engine(host, 0);
            world.add_host(engine, &ports);
            self.hosts.push(HostState {
                life: 0,
                counters: world.engine_mut(host).register(COUNTERS as u32 * 8),
                shared: Default::default(),
                inbox: None,
                port_memory: None,
                frames_seen: 0,
            });
            let now = world.now();
            world.engine_mut(host).listen(now);
        }
        self.set_turns(world);
        self.set_load(world);
    }

    pub(super) fn schedule(&mut self, world: &mut World<E>) {
        for pair in 0..self.pairs.len() {
            let at_ns = self.random.below(500_000);
            self.pairs[pair].retry_scheduled = true;
            self.wake_at(world, Instant(at_ns), Wake::Connect { pair });
        }
        for (at_ns, disaster) in self.plan.disasters.clone() {
            self.wake_at(world, Instant(at_ns), Wake::Strike(disaster));
        }
    }

    /// Runs the world until `limit`, or until a violation.
    pub(super) fn advance(&mut self, world: &mut World<E>, limit: Instant) {
        while world.now() < limit && self.violation.is_none() {
            let slice = limit.min(world.now().after_ns(SLICE_NS));
            if let Err(Livelock { host, time }) = world.run_until(slice, self) {
                self.check(Err(Violation::Livelock { host, time_ns: time.0 }));
            }
            self.expect_progress(world);
            self.check_accounts(world);
        }
    }

    pub(super) fn converge(&mut self, world: &mut World<E>, healing_at: Instant) {
        // A corrupted acknowledgement can report lost data as received. The sender then never
        // retransmits this data, and the run never converges. Such a run can only check that no
        // engine crashes.
        let limit_ns = if self.plan.lenient { LENIENT_NS } else { CONVERGENCE_NS };
        let deadline = healing_at.after_ns(limit_ns);
        while self.violation.is_none() && self.missing().is_some() {
            if world.now() >= deadline {
                let what = self.missing().unwrap_or_default();
                return self.check(Err(Violation::NoConvergence { what }));
            }
            self.advance(world, world.now().after_ns(SLICE_NS));
        }
        self.advance(world, world.now().after_ns(QUIET_NS));
    }

    /// Describes unfinished work; returns `None` if all work is done.
    pub(super) fn missing(&self) -> Option<String> {
        (0..self.pairs.len()).find_map(|pair| self.unfinished(pair))
    }

    /// Describes unfinished work of a pair of hosts; returns `None` if there is none.
    pub(super) fn unfinished(&self, number: usize) -> Option<String> {
        let pair = &self.pairs[number];
        for (side, end) in pair.ends.iter().enumerate() {
            let name = format!("pair {number} side {side} (host {})", pair.hosts[side]);
            let Some(end) = end else { return Some(format!("{name} has no connection")) };
            if end.stage != Stage::Open || end.generation != pair.generation {
                return Some(format!("{name} is {:?}", end.stage));
            }
            if pair.remaining[side] > 0 || self.healed && !end.probed {
                let (remaining, outstanding) = (pair.remaining[side], end.model.outstanding());
                return Some(format!(
                    "{name} has {remaining} operations to post and waits for {outstanding}"
                ));
            }
            if end.model.outstanding_signalled() > 0 {
                let outstanding = end.model.outstanding();
                return Some(format!("{name} waits for {outstanding} operations"));
            }
            if end.model.undelivered() > 0 && !self.plan.lenient {
                let undelivered = end.model.undelivered();
                return Some(format!("{name} sent {undelivered} messages that did not arrive"));
            }
        }
        None
    }

    /// Checks memory after all work is done: it must equal the model exactly.
    pub(super) fn check_idle(&mut self, world: &mut World<E>) {
        for host in 0..self.plan.hosts {
            self.collect_datagrams(world, host);
        }
        for pair in 0..self.pairs.len() {
            for side in [0, 1] {
                self.compare(world, pair, side);
                self.check_cells(world, pair, side);
            }
        }
        for host in 0..self.plan.hosts {
            self.check_host(world, host);
            self.check_shared(world, host);
        }
        self.check_frame_bytes(world);
    }

    /// Compares all memory that `side` of a pair writes with the model.
    pub(super) fn compare(&mut self, world: &World<E>, pair: usize, side: usize) {
        let Some(view) = self.target(world, pair, side) else { return };
        if let Some(end) = &mut self.pairs[pair].ends[side] {
            let outcome = end.model.check_all(&view);
            self.check_of(pair, outcome);
        }
    }

    fn check_cells(&mut self, world: &World<E>, pair: usize, side: usize) {
        let ends = &self.pairs[pair].ends;
        let (Some(end), Some(other)) = (&ends[side], &ends[1 - side]) else { return };
        for cell in 0..CELLS {
            let mut bytes = [0; 8];
            world.engine(other.host).read_memory(other.cells, cell as u32 * 8, &mut bytes);
            let (found, expected) = (u64::from_le_bytes(bytes), end.cell_values[cell]);
            if found != expected {
                let number = end.model.next_number();
                return self.check(Err(Violation::AtomicResult { number, found, expected }));
            }
        }
    }

    fn check_shared(&mut self, world: &World<E>, host: usize) {
        for counter in 0..COUNTERS {
            let mut bytes = [0; 8];
            let state = &self.hosts[host];
            world.engine(host).read_memory(state.counters, counter as u32 * 8, &mut bytes);
            let value = u64::from_le_bytes(bytes);
            let found = &state.shared[counter].found;
            let last = found.last().map_or(0, |last| last + 1);
            if (found.len() as u64) > value || last > value {
                let what =
                    format!("is {value} after {} additions, the last at {last}", found.len());
                return self.check(Err(Violation::Counter { host, counter, what }));
            }
        }
    }

    /// Checks the guard bytes, frozen memory and limits of one host.
    pub(super) fn check_host(&mut self, world: &World<E>, host: usize) {
        let engine = world.engine(host);
        if !engine.guards_are_intact() {
            return self.check(Err(Violation::Guards { host }));
        }
        for frozen in &self.frozen {
            if frozen.host == host && digest_of(engine, frozen.region) != frozen.digest {
                let region = frozen.region.number;
                return self.check(Err(Violation::FrozenMemory { host, region }));
            }
        }
        let mut excess = None;
        engine.occupancy(&mut |name, used, limit| {
            if used > limit {
                excess = Some(Violation::Occupancy { host, name, used, limit });
            }
        });
        self.check(excess.map_or(Ok(()), Err));
    }
}

/// Returns a digest of all bytes in a region.
pub(super) fn digest_of<E: HostEngine>(engine: &E, region: Region) -> u64 {
    let mut bytes = vec![0; region.length_bytes as usize];
    engine.read_memory(region, 0, &mut bytes);
    crate::trace::digest(&bytes)
}

fn add_port(
    network: &mut Network,
    segment: usize,
    host: usize,
    link: usize,
    plan: &Plan,
) -> PortId {
    let address = match &plan.churn {
        Some(wiring) => churn::address(wiring, host, link, 0),
        None => plan.address(host, link),
    };
    let port = network.add_port(segment, address, plan.links[plan.segment(host, link)].model);
    network.set_faults(port, plan.faults);
    port
}

/// Time after which a silent peer is regarded as dead, in nanoseconds.
const DEAD_PEER_NS: u64 = 5_000_000_000;

/// Maximum time between the end of all faults and the end of all work, in nanoseconds. A host
/// notices a dead peer within 5 s. The remaining work is some megabytes over 100 Mb/s or more,
/// which takes a few seconds.
const CONVERGENCE_NS: u64 = 60_000_000_000;

const LENIENT_NS: u64 = 500_000_000;

/// Time for which the network must be quiet at the end, in nanoseconds. This time is longer than
/// any delay of a frame.
const QUIET_NS: u64 = 50_000_000;

/// Interval at which the main loop checks whether the run has ended, in nanoseconds.
pub(super) const SLICE_NS: u64 = 1_000_000;

const CHANCE_STREAM: u64 = 0x6368_616e;
const GATES_STREAM: u64 = 0x6761_7465;
const TRAFFIC_STREAM: u64 = 0x7472_6166;
const ENTROPY_STREAM: u64 = 0x656e_7472_0000_0000;

/// Returns the time of the next poll by the application of an end. `idle` means that the
/// application has no work.
pub(super) fn next_look<E>(run: &mut Run<'_, E>, pair: usize, now: Instant, idle: bool) -> Instant {
    let look = end::next_look(now, &mut run.random, &run.plan.traffic);
    let state = &run.pairs[pair];
    let stalled_since = state.blocked_since.unwrap_or(now).min(Instant(run.plan.safety_ns));
    let least_ns = match now.since_ns(stalled_since) {
        PATIENCE_NS.. => STALLED_LOOK_NS,
        _ if idle => IDLE_LOOK_NS,
        _ => 0,
    };
    look.max(now.after_ns(least_ns))
}

/// Minimum time between two polls of an application without work, in nanoseconds.
const IDLE_LOOK_NS: u64 = 1_000_000;

/// Time since the start of an outage, or since the end of all faults. After this time, applications
/// poll only every [`STALLED_LOOK_NS`]. Such polls still notice the end of an outage, and they cost
/// little if the outage takes minutes.
const PATIENCE_NS: u64 = 200_000_000;
const STALLED_LOOK_NS: u64 = 10_000_000;
