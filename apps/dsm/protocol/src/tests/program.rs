//! Random programs without data races: phases between barriers of all threads.
//!
//! Each word belongs to a pool, which says how accesses to it are ordered: by a barrier, a lock, a
//! reader-writer lock, a semaphore, a monitor, an event, or a barrier of some threads. The pools
//! share pages. In each phase a thread first does what never waits for a later step of another
//! thread, then what may wait, so no program ends in a deadlock.
//!
//! `examples/random_program` of the crate `dsm` includes this file, and runs the programs on real
//! processes. So the file uses the public names of this crate alone.

use std::collections::VecDeque;

use dsm_protocol::diff::{PAGE_WORDS, WORD_BYTES};
use dsm_protocol::{AtomicOperation, Call, PageNumber, Rank};

use super::random::Random;

/// A step of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Reads a word and compares it with the oracle.
    Read(usize),
    /// Writes a word.
    Write(usize),
    /// Writes a word that a plan of races permits to differ from the oracle.
    Race(usize),
    /// Writes a word of a pinned page, which must not fault.
    WritePinned(usize),
    /// Calls the node.
    Call(Call),
    /// Adds 1 to the 8 bytes of two words.
    Add(usize),
    /// Adds 1 to a word, or subtracts 1.
    Count(usize, bool),
    /// Takes an item of a monitor, or waits if there is none.
    TakeItem(Monitor),
    /// Puts an item into a monitor.
    PutItem(Monitor),
}

/// A counter of items under a lock, with a condition variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Monitor {
    pub(super) lock: u64,
    pub(super) condition: u64,
    pub(super) counter: usize,
    /// Whether a put wakes all waiters.
    pub(super) is_broadcast: bool,
}

/// The shape of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) nodes: u8,
    pub(super) threads: u16,
    pub(super) pages: u32,
    pub(super) phases: usize,
    /// Steps of each thread and phase, roughly.
    pub(super) steps: usize,
    /// Whether phases are separated by barriers, and nothing else orders accesses.
    pub(super) only_barriers: bool,
    /// Whether two threads write one word without an order.
    pub(super) has_race: bool,
}

/// Scripts of all threads, by node and thread.
pub(super) struct Program {
    pub(super) scripts: Vec<VecDeque<Action>>,
    /// The word with the planted race.
    pub(super) race: Option<usize>,
}

/// Address of the barrier of all threads.
const BARRIER: u64 = 0x10;

type Chunk = Vec<Action>;

/// What a thread does in a phase.
#[derive(Default)]
struct Plan {
    first: Vec<Chunk>,
    middle: Chunk,
    then: Vec<Chunk>,
}

struct Builder {
    random: Random,
    shape: Shape,
    /// Words that no pool has yet.
    words: Vec<usize>,
    /// Pairs of words for atomics.
    pairs: Vec<usize>,
    plans: Vec<Plan>,
}

/// Returns the program of a seed.
pub(super) fn program(seed: u64, shape: Shape) -> Program {
    let mut random = Random::new(seed ^ 0xd5a);
    let mut words = Vec::new();
    let mut pairs = Vec::new();
    for page in 0..shape.pages as usize {
        let base = page * PAGE_WORDS;
        pairs.push(base + 2 * random.below(8));
        let span = random.pick(&[24, 100, 1000]);
        words.extend((16..40).map(|_| base + 16 + random.below(span)));
    }
    words.sort_unstable();
    words.dedup();
    for index in (1..words.len()).rev() {
        words.swap(index, random.below(index + 1));
    }
    let mut builder = Builder { random, shape, words, pairs, plans: Vec::new() };
    builder.build()
}

impl Builder {
    fn total(&self) -> usize {
        usize::from(self.shape.nodes) * usize::from(self.shape.threads)
    }

    fn pool(&mut self, words: usize) -> Vec<usize> {
        let kept = self.words.len().saturating_sub(words);
        self.words.split_off(kept)
    }

    fn build(&mut self) -> Program {
        let total = self.total();
        let race = if self.shape.has_race { self.pool(1).first().copied() } else { None };
        let quarter = self.words.len() / 4;
        let of_phases = self.pool(quarter);
        let of_locks: Vec<_> = (0..4).map(|_| self.pool(quarter / 4)).collect();
        let of_readers = self.pool(quarter / 4);
        let of_channels: Vec<_> = (0..3).map(|_| self.pool(4)).collect();
        let of_monitor = self.pool(4);
        let of_event = self.pool(3);
        let of_group = self.pool(4);
        let mut scripts = vec![VecDeque::new(); total];
        let racers = (self.random.below(total), self.random.below(total));
        for phase in 0..self.shape.phases {
            self.plans = (0..total).map(|_| Plan::default()).collect();
            self.plan_phase_words(&of_phases);
            if !self.shape.only_barriers {
                self.plan_locks(&of_locks);
                self.plan_readers(&of_readers);
                self.plan_channels(&of_channels);
                self.plan_monitor(&of_monitor);
                self.plan_event(&of_event, phase as u64);
                self.plan_group(&of_group, phase as u64);
                self.plan_atomics(phase);
                self.plan_calls(&of_phases);
            }
            for (thread, plan) in std::mem::take(&mut self.plans).into_iter().enumerate() {
                let script = &mut scripts[thread];
                let threads = usize::from(self.shape.threads);
                let is_racer = thread == racers.0 || thread == other_node(racers, threads, total);
                let race = race.filter(|_| is_racer).map(Action::Race);
                script.extend(race);
                script.extend(self.shuffled(plan.first));
                script.extend(plan.middle);
                script.extend(self.shuffled(plan.then));
                script.extend(race);
                let call = Call::Barrier { address: BARRIER, count: total as u32 };
                script.push_back(Action::Call(call));
            }
        }
        for script in &mut scripts {
            for word in &of_phases {
                script.push_back(Action::Read(*word));
            }
            let others = [of_locks.concat(), of_readers.clone(), of_monitor.clone()].concat();
            for word in others.iter().chain(&of_event).chain(&of_group) {
                if self.random.one_in(3) {
                    script.push_back(Action::Read(*word));
                }
            }
            for word in self.pairs.iter().filter(|_| !self.shape.only_barriers) {
                script.push_back(Action::Read(*word));
            }
        }
        Program { scripts, race }
    }

    fn shuffled(&mut self, mut chunks: Vec<Chunk>) -> Chunk {
        for index in (1..chunks.len()).rev() {
            chunks.swap(index, self.random.below(index + 1));
        }
        chunks.concat()
    }

    fn add(&mut self, thread: usize, chunk: Chunk) {
        let plan = &mut self.plans[thread];
        if self.random.one_in(2) { plan.first.push(chunk) } else { plan.then.push(chunk) }
    }

    /// In a phase, a word has one writer, or only readers.
    fn plan_phase_words(&mut self, words: &[usize]) {
        let total = self.total();
        for word in words {
            if self.random.one_in(2) {
                let writer = self.random.below(total);
                for _ in 0..=self.random.below(3) {
                    let read = self.random.one_in(2).then_some(Action::Read(*word));
                    self.add(writer, read.into_iter().chain([Action::Write(*word)]).collect());
                }
            } else {
                for _ in 0..=self.random.below(2) {
                    let reader = self.random.below(total);
                    self.add(reader, vec![Action::Read(*word)]);
                }
            }
        }
    }

    fn accesses(&mut self, words: &[usize], can_write: bool) -> Chunk {
        if words.is_empty() {
            return Vec::new();
        }
        let count = 1 + self.random.below(4);
        let access = |random: &mut Random| {
            let word = random.pick(words);
            let is_write = can_write && random.one_in(2);
            if is_write { Action::Write(word) } else { Action::Read(word) }
        };
        (0..count).map(|_| access(&mut self.random)).collect()
    }

    fn plan_locks(&mut self, pools: &[Vec<usize>]) {
        for thread in 0..self.total() {
            for _ in 0..self.random.below(self.shape.steps) {
                let lock = self.random.below(pools.len());
                let address = |lock: usize| 0x100 + 8 * lock as u64;
                let mut chunk = vec![Action::Call(Call::Lock(address(lock)))];
                chunk.extend(self.accesses(&pools[lock], true));
                let inner = lock + 1;
                if self.random.one_in(3) && inner < pools.len() {
                    chunk.push(Action::Call(Call::Lock(address(inner))));
                    chunk.extend(self.accesses(&pools[inner], true));
                    chunk.push(Action::Call(Call::Unlock(address(inner))));
                    chunk.extend(self.accesses(&pools[lock], true));
                }
                chunk.push(Action::Call(Call::Unlock(address(lock))));
                self.add(thread, chunk);
            }
        }
    }

    fn plan_readers(&mut self, pool: &[usize]) {
        const LOCK: u64 = 0x200;
        for thread in 0..self.total() {
            if self.random.one_in(2) {
                let is_writer = self.random.one_in(2);
                let call = if is_writer { Call::WriteLock(LOCK) } else { Call::ReadLock(LOCK) };
                let mut chunk = vec![Action::Call(call)];
                chunk.extend(self.accesses(pool, is_writer));
                chunk.push(Action::Call(Call::ReadWriteUnlock(LOCK)));
                self.add(thread, chunk);
            }
        }
    }

    /// A producer writes items, and posts one after the other.
    fn plan_channels(&mut self, pools: &[Vec<usize>]) {
        let total = self.total();
        for (pool, semaphore) in pools.iter().zip((0x300..).step_by(8)) {
            let (producer, consumer) = (self.random.below(total), self.random.below(total));
            if producer == consumer {
                continue;
            }
            let (mut produced, mut consumed) = (Vec::new(), Vec::new());
            for word in pool {
                produced.push(Action::Write(*word));
                produced.push(Action::Call(Call::Give { semaphore, count: 1 }));
                consumed.push(Action::Call(Call::Take(semaphore)));
                consumed.push(Action::Read(*word));
            }
            self.plans[producer].first.push(produced);
            self.plans[consumer].then.push(consumed);
        }
    }

    fn plan_monitor(&mut self, pool: &[usize]) {
        let total = self.total();
        let Some((&counter, pool)) = pool.split_first() else { return };
        let is_broadcast = self.random.one_in(2);
        let monitor = Monitor { lock: 0x400, condition: 0x408, counter, is_broadcast };
        for _ in 0..self.random.below(self.shape.steps) {
            let (producer, consumer) = (self.random.below(total), self.random.below(total));
            let mut put = vec![Action::Call(Call::Lock(monitor.lock))];
            put.extend(self.accesses(pool, true));
            put.push(Action::PutItem(monitor));
            put.push(Action::Call(Call::Unlock(monitor.lock)));
            let mut take = vec![Action::Call(Call::Lock(monitor.lock)), Action::TakeItem(monitor)];
            take.extend(self.accesses(pool, true));
            take.push(Action::Call(Call::Unlock(monitor.lock)));
            self.plans[producer].first.push(put);
            self.plans[consumer].then.push(take);
        }
    }

    fn plan_event(&mut self, pool: &[usize], phase: u64) {
        let total = self.total();
        let setter = self.random.below(total);
        let event = |phase: u64| 0x500 + 8 * phase;
        let mut chunk: Chunk = pool.iter().map(|word| Action::Write(*word)).collect();
        chunk.push(Action::Call(Call::Set(event(phase))));
        if phase > 0 {
            chunk.push(Action::Call(Call::Clear(event(phase - 1))));
        }
        self.plans[setter].first.push(chunk);
        for waiter in 0..total {
            if self.random.one_in(2) {
                let mut chunk = vec![Action::Call(Call::Await(event(phase)))];
                chunk.extend(self.accesses(pool, false));
                self.plans[waiter].then.push(chunk);
            }
        }
    }

    /// Some threads meet at a barrier of their own in the middle of the phase.
    fn plan_group(&mut self, pool: &[usize], phase: u64) {
        let total = self.total();
        if total < 3 || pool.len() < 2 {
            return;
        }
        let count = 2 + self.random.below(total.min(pool.len() + 1) - 2);
        let first = self.random.below(total);
        let members: Vec<_> = (0..count).map(|index| (first + index) % total).collect();
        for (member, word) in members.iter().zip(pool) {
            let address = 0x600 + 8 * (phase & 1);
            let barrier = Call::Barrier { address, count: count as u32 };
            self.plans[*member].middle = vec![Action::Write(*word), Action::Call(barrier)];
            let reads = pool.iter().take(count).map(|word| Action::Read(*word)).collect();
            self.plans[*member].then.push(reads);
        }
    }

    fn plan_atomics(&mut self, phase: usize) {
        for thread in 0..self.total() {
            for _ in 0..self.random.below(3) {
                let word = self.random.pick(&self.pairs);
                let action = if phase.is_multiple_of(2) { Action::Add } else { Action::Read };
                self.add(thread, vec![action(word)]);
            }
        }
    }

    fn plan_calls(&mut self, of_phases: &[usize]) {
        let total = self.total();
        for thread in 0..total {
            let page = PageNumber(self.random.below(self.shape.pages as usize) as u32);
            let to = Rank(self.random.below(usize::from(self.shape.nodes)) as u8);
            let count = 1 + self.random.below((self.shape.pages - page.0) as usize) as u32;
            let call = match self.random.below(8) {
                0 => Call::Prefetch { first: page, count },
                1 => Call::Migrate { page, to },
                2 => Call::Release,
                3 => Call::Acquire,
                4 => {
                    self.plan_pin(thread, of_phases);
                    continue;
                }
                _ => continue,
            };
            self.add(thread, vec![Action::Call(call)]);
        }
    }

    /// A thread pins a page, and writes words there that it may write in this phase. Other calls
    /// come in between, so that notices for the pinned page arrive.
    fn plan_pin(&mut self, thread: usize, of_phases: &[usize]) {
        let plan = &self.plans[thread];
        let chunks = plan.first.iter().chain(&plan.then);
        let own = chunks.flatten().find_map(|action| match action {
            Action::Write(word) if of_phases.contains(word) => Some(*word),
            _ => None,
        });
        let Some(word) = own else { return };
        let first = PageNumber((word / PAGE_WORDS) as u32);
        self.plans[thread].first.push(vec![
            Action::Call(Call::Pin { first, count: 1, is_written: true }),
            Action::WritePinned(word),
            Action::Call(Call::Lock(0x100)),
            Action::WritePinned(word),
            Action::Call(Call::Unlock(0x100)),
            Action::WritePinned(word),
            Action::Call(Call::Unpin { first, count: 1 }),
        ]);
    }
}

/// Returns the second of two threads that race: one of another node.
fn other_node(racers: (usize, usize), threads: usize, total: usize) -> usize {
    let is_same_node = racers.0 / threads == racers.1 / threads;
    if is_same_node { (racers.0 + threads) % total } else { racers.1 }
}

/// Returns the call that adds 1 to the 8 bytes from a word on.
pub(super) const fn add_call(word: usize) -> Call {
    let address = (word * WORD_BYTES) as u64;
    Call::Atomic { address, operation: AtomicOperation::FetchAdd(1) }
}
