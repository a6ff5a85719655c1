//! Nodes that run a program in virtual time, beside an oracle: one memory, in which each access
//! happens at the time at which a node performs it. In a program without races the two agree.

use std::collections::{BTreeMap, VecDeque};

use super::memory::Memory;
use super::network::{Event, Lies, Network, Port, Timing};
use super::program::{Action, Monitor, Program, Shape, add_call, program};
use super::random::Random;
use crate::call::Call;
use crate::config::Config;
use crate::diff::PAGE_WORDS;
use crate::error::Failure;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::memory::Access;
use crate::node::Node;
use crate::node_state::Counters;
use crate::races::Race;
use crate::transport::{Arrival, Reason};

/// Events of a run, at most. A run with more hangs.
const EVENTS_MAX: u64 = 3_000_000;

/// The same for runs with lies, which may keep threads waiting for ever.
const EVENTS_MAX_OF_LIES: u64 = 100_000;

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) seed: u64,
    pub(super) shape: Shape,
    /// The settings of each node, apart from its rank.
    pub(super) config: Config,
    /// A node that dies, and when.
    pub(super) death: Option<(u8, u64)>,
    /// One in so many arrivals is falsified; 0 for none.
    pub(super) lies_one_in: usize,
    /// Nodes whose memory notes writes: bit `r mod 8` is rank `r`.
    pub(super) notes_writes: u8,
    /// Whether such memory notes writes until a scan, and not after it.
    pub(super) notes_once: bool,
    /// What everything costs, for comparisons of times; otherwise delays are random.
    pub(super) timing: Option<Timing>,
}

/// What a run shows.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) races: Vec<Race>,
    pub(super) counters: Vec<Counters>,
    pub(super) failures: Vec<Option<Failure>>,
    /// When the last event of the run happened, in nanoseconds.
    pub(super) time: u64,
}

/// A thread.
#[derive(Debug, Default)]
struct Runner {
    script: VecDeque<Action>,
    /// The call that the thread has begun.
    call: Option<Call>,
    has_failed: bool,
}

pub(super) struct World {
    settings: Settings,
    network: Network,
    nodes: Vec<Node>,
    runners: Vec<Runner>,
    oracle: Vec<u32>,
    /// The word with a planted race.
    race: Option<usize>,
    /// Former values that atomics have returned, by word.
    former: BTreeMap<usize, Vec<u64>>,
    next_value: u32,
    races: Vec<Race>,
}

impl World {
    pub(super) fn new(settings: Settings) -> Self {
        Self::with_program(settings, program(settings.seed, settings.shape))
    }

    /// Returns the world that runs this program.
    pub(super) fn with_program(settings: Settings, program: Program) -> Self {
        let Settings { seed, shape, config, .. } = settings;
        let Program { scripts, race } = program;
        let layout = crate::Layout::new(shape.nodes, shape.pages, config.log_entries);
        let memory = |rank: u8| {
            let mut memory = Memory::new(shape.pages, layout.bytes(), config.races);
            memory.notes_writes = settings.notes_writes >> (rank % 8) & 1 == 1;
            memory.notes_once = memory.notes_writes && settings.notes_once;
            memory
        };
        let mut network = Network::new((0..shape.nodes).map(memory).collect(), seed);
        let nodes = (0..shape.nodes).map(|rank| {
            let config = Config { rank: Rank(rank), ..config };
            let mut port = Port { network: &mut network, me: Rank(rank) };
            Node::new(config, &mut port).expect("the settings are valid")
        });
        let nodes = nodes.collect();
        network.timing = settings.timing;
        if settings.lies_one_in > 0 {
            let random = Random::new(seed ^ 0x11e5);
            network.lies = Some(Lies { random, one_in: settings.lies_one_in });
        }
        let runner = |script| Runner { script, call: None, has_failed: false };
        Self {
            settings,
            network,
            nodes,
            runners: scripts.into_iter().map(runner).collect(),
            oracle: vec![0; shape.pages as usize * PAGE_WORDS],
            race,
            former: BTreeMap::new(),
            next_value: 1,
            races: Vec::new(),
        }
    }

    /// Runs the program to its end.
    pub(super) fn run(mut self) -> Result<Summary, String> {
        let shape = self.settings.shape;
        for rank in 0..shape.nodes {
            for thread in 0..shape.threads {
                let delay = self.network.delay();
                self.network.schedule(delay, Event::Step { rank, thread });
            }
        }
        if let Some((rank, time)) = self.settings.death {
            self.network.schedule(time, Event::Die(rank));
        }
        let is_lied_to = self.settings.lies_one_in > 0;
        let events_max = if is_lied_to { EVENTS_MAX_OF_LIES } else { EVENTS_MAX };
        let mut events = 0;
        while let Some(event) = self.network.next_event() {
            events += 1;
            if events > events_max {
                if is_lied_to {
                    break;
                }
                return Err("the run has no end".into());
            }
            self.handle(event)?;
        }
        if !is_lied_to {
            self.check_end()?;
        }
        Ok(Summary {
            races: self.races,
            counters: self.nodes.iter().map(Node::counters).collect(),
            failures: self.nodes.iter().map(Node::failure).collect(),
            time: self.network.now,
        })
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Perform { flight, part } => self.network.perform(flight, part),
            Event::Complete { flight } => self.network.complete(flight),
            Event::Poll(rank) => self.poll(rank),
            Event::Step { rank, thread } if !self.network.dead[usize::from(rank)] => {
                self.step(rank, thread)?;
            }
            Event::Step { .. } => {}
            Event::Die(dead) => self.die(dead),
            Event::Learn { rank, dead } => {
                let died = Arrival::Died { rank: Rank(dead), reason: Reason::Silent };
                self.network.push(Rank(rank), died, Vec::new());
            }
        }
        Ok(())
    }

    /// Ends a node. At least one other node notices by itself.
    fn die(&mut self, dead: u8) {
        self.network.dead[usize::from(dead)] = true;
        let nodes = self.settings.shape.nodes;
        let first = (dead + 1) % nodes;
        for rank in (0..nodes).filter(|rank| *rank != dead) {
            if rank == first || self.settings.seed >> (rank % 8) & 1 == 1 {
                let delay = 50_000 + self.network.delay();
                self.network.schedule(delay, Event::Learn { rank, dead });
            }
        }
    }

    fn poll(&mut self, rank: u8) {
        if self.network.dead[usize::from(rank)] {
            return;
        }
        let mut port = Port { network: &mut self.network, me: Rank(rank) };
        let node = &mut self.nodes[usize::from(rank)];
        node.poll(&mut port);
        while let Some(race) = node.poll_race() {
            self.races.push(race);
        }
        self.wake(rank);
    }

    /// Lets the threads of a node continue whose calls have ended.
    fn wake(&mut self, rank: u8) {
        for thread in 0..self.settings.shape.threads {
            let index = self.index(rank, thread);
            let Some(call) = self.runners[index].call else { continue };
            let node = &mut self.nodes[usize::from(rank)];
            let Some(result) = node.take(ThreadNumber(thread)) else { continue };
            self.runners[index].call = None;
            let Ok(value) = result else {
                self.runners[index].has_failed = true;
                continue;
            };
            self.end_call(call, value);
            let delay = self.network.call_delay();
            self.network.schedule(delay, Event::Step { rank, thread });
        }
    }

    fn end_call(&mut self, call: Call, value: u64) {
        if let Call::Atomic { address, .. } = call {
            let word = address as usize / 4;
            self.oracle[word] += 1;
            self.former.entry(word).or_default().push(value);
        }
    }

    fn index(&self, rank: u8, thread: u16) -> usize {
        usize::from(rank) * usize::from(self.settings.shape.threads) + usize::from(thread)
    }

    fn start(&mut self, rank: u8, thread: u16, call: Call) -> Result<(), String> {
        let mut port = Port { network: &mut self.network, me: Rank(rank) };
        let node = &mut self.nodes[usize::from(rank)];
        node.start(&mut port, ThreadNumber(thread), call)
            .map_err(|misuse| format!("{rank}.{thread}: {misuse}"))?;
        let index = self.index(rank, thread);
        self.runners[index].call = Some(call);
        // A call may end the waits of other threads of the node.
        self.wake(rank);
        Ok(())
    }

    /// Performs the next action of a thread.
    fn step(&mut self, rank: u8, thread: u16) -> Result<(), String> {
        let index = self.index(rank, thread);
        let Some(action) = self.runners[index].script.pop_front() else { return Ok(()) };
        match action {
            Action::Call(call) => return self.start(rank, thread, call),
            Action::Add(word) => return self.start(rank, thread, add_call(word)),
            Action::Read(word) => {
                if let Some(fault) = self.fault(rank, word, false) {
                    return self.retry(rank, thread, action, fault);
                }
                self.check_read(rank, thread, word)?;
            }
            Action::Write(word) | Action::Race(word) => {
                if let Some(fault) = self.fault(rank, word, true) {
                    return self.retry(rank, thread, action, fault);
                }
                self.write(rank, word);
            }
            Action::WritePinned(word) => {
                if self.fault(rank, word, true).is_some() {
                    return Err(format!("{rank}.{thread}: a pinned page faults"));
                }
                self.write(rank, word);
            }
            Action::Count(word, is_up) => {
                if let Some(fault) = self.fault(rank, word, true) {
                    return self.retry(rank, thread, action, fault);
                }
                self.check_read(rank, thread, word)?;
                let count = self.oracle[word];
                let count = if is_up { count + 1 } else { count.wrapping_sub(1) };
                self.oracle[word] = count;
                self.network.memories[usize::from(rank)].write(word, count);
            }
            Action::PutItem(monitor) => self.put_item(index, monitor),
            Action::TakeItem(monitor) => {
                if let Some(fault) = self.fault(rank, monitor.counter, false) {
                    return self.retry(rank, thread, action, fault);
                }
                self.take_item(rank, index, monitor);
            }
        }
        let delay = self.network.access_delay();
        self.network.schedule(delay, Event::Step { rank, thread });
        Ok(())
    }

    fn retry(&mut self, rank: u8, thread: u16, action: Action, fault: Call) -> Result<(), String> {
        let index = self.index(rank, thread);
        self.runners[index].script.push_front(action);
        if let Call::WriteFault(page) = fault
            && self.nodes[usize::from(rank)].access(page) == Access::Write
        {
            self.network.memories[usize::from(rank)].map_again(page);
        }
        self.start(rank, thread, fault)
    }

    /// Returns the call that an access needs first.
    fn fault(&self, rank: u8, word: usize, is_write: bool) -> Option<Call> {
        let page = PageNumber((word / PAGE_WORDS) as u32);
        let memory = &self.network.memories[usize::from(rank)];
        match (memory.access(page), is_write) {
            (Access::Write, _) | (Access::Read, false) => None,
            (Access::Read, true) if !memory.is_fault(page) => None,
            (_, false) => Some(Call::ReadFault(page)),
            (_, true) => Some(Call::WriteFault(page)),
        }
    }

    fn check_read(&self, rank: u8, thread: u16, word: usize) -> Result<(), String> {
        let found = self.network.memories[usize::from(rank)].read(word);
        let expected = self.oracle[word];
        let may_differ = self.settings.lies_one_in > 0 || self.race == Some(word);
        if found == expected || may_differ {
            return Ok(());
        }
        let page = word / PAGE_WORDS;
        Err(format!(
            "{rank}.{thread} at {} ns: word {word} of page {page} is {found} instead of {expected}",
            self.network.now
        ))
    }

    fn write(&mut self, rank: u8, word: usize) {
        self.network.memories[usize::from(rank)].write(word, self.next_value);
        self.oracle[word] = self.next_value;
        self.next_value += 1;
    }

    fn put_item(&mut self, index: usize, monitor: Monitor) {
        let script = &mut self.runners[index].script;
        let condition = monitor.condition;
        let call =
            if monitor.is_broadcast { Call::Broadcast(condition) } else { Call::Signal(condition) };
        script.push_front(Action::Call(call));
        script.push_front(Action::Count(monitor.counter, true));
    }

    fn take_item(&mut self, rank: u8, index: usize, monitor: Monitor) {
        let items = self.network.memories[usize::from(rank)].read(monitor.counter);
        let script = &mut self.runners[index].script;
        if items == 0 {
            let (condition, lock) = (monitor.condition, monitor.lock);
            script.push_front(Action::TakeItem(monitor));
            script.push_front(Action::Call(Call::Wait { condition, lock }));
        } else {
            script.push_front(Action::Count(monitor.counter, false));
        }
    }

    /// Checks that every thread has come to its end.
    fn check_end(&self) -> Result<(), String> {
        let threads = usize::from(self.settings.shape.threads);
        for (index, runner) in self.runners.iter().enumerate() {
            let rank = index / threads;
            if self.network.dead[rank] || runner.has_failed {
                continue;
            }
            if !runner.script.is_empty() || runner.call.is_some() {
                return Err(format!(
                    "{rank}.{} waits for ever in {:?}",
                    index % threads,
                    runner.call
                ));
            }
        }
        for (rank, node) in self.nodes.iter().enumerate() {
            let is_dead = self.network.dead[rank];
            match (node.failure(), self.settings.death) {
                (None, _) if is_dead => {}
                (None, None) => {}
                (None, Some(_)) => return Err(format!("rank {rank} does not know of the death")),
                (Some(Failure::Died { rank: dead, .. }), Some((died, _))) if dead.0 == died => {}
                (Some(failure), _) => return Err(format!("rank {rank}: {failure}")),
            }
        }
        if self.settings.death.is_none() {
            for (word, former) in &self.former {
                let mut former = former.clone();
                former.sort_unstable();
                if !former.iter().copied().eq(0..former.len() as u64) {
                    return Err(format!("atomics of word {word} returned {former:?}"));
                }
            }
        }
        Ok(())
    }
}
