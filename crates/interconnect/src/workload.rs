//! Workloads: programs of ranks that send, compute and wait.

mod flows;
mod pattern;
mod several;
mod sizes;

use super::simulation::Shares;
use crate::Random;

pub use flows::{Flow, Flows};
pub use pattern::{NeedsRanks, Pattern};
pub use several::{AnyWorkload, Member, Several, WORKLOADS_MAX};
pub use sizes::{SizeTable, Sizes, SizesError};

/// A program of all ranks. The run calls its methods for each notification of a rank.
pub trait Workload {
    /// Starts a rank at the start of the run.
    fn start(&mut self, rank: u32, actions: &mut Actions);

    /// Handles the end of a computation or timer that the rank requested.
    fn on_wake(&mut self, rank: u32, tag: u32, actions: &mut Actions);

    /// Handles a message that the rank has received.
    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions);

    /// Handles a report to a rank. There are two kinds of reports:
    ///
    /// - The processor has sent the message that the rank called `name`
    ///   ([`Actions::reports_sent`]).
    /// - The rank has requested this call with `name` ([`Actions::take_turn`]).
    fn on_sent(&mut self, rank: u32, name: u32, actions: &mut Actions) {
        let _ = (rank, name, actions);
    }

    /// Returns whether the actions of a rank are ordered only by dependencies, as in a trace. In
    /// this case, the processor computes while a send waits for the interface. Otherwise a rank
    /// continues only after its send has ended.
    fn is_unordered(&self) -> bool {
        false
    }

    /// Prefetches the state of a rank that will probably be notified soon.
    #[inline]
    fn foresee(&self, _rank: u32) {}

    /// Returns whether every rank has finished its work.
    fn is_finished(&self) -> bool;

    /// Returns the pairs of ranks that will send to each other; empty if they are not known. The
    /// hosts of these ranks can then connect before the run starts.
    fn pairs(&self) -> Vec<(u32, u32)> {
        Vec::new()
    }

    /// Returns the fraction of the work that is done at `now_ps`, from 0 to 1; `None` if it is not
    /// known.
    fn done(&self, now_ps: u64) -> Option<f64> {
        let _ = now_ps;
        None
    }

    /// Returns the time when posting ends, in picoseconds; `None` if the end does not depend on
    /// time.
    fn posts_until_ps(&self) -> Option<u64> {
        None
    }

    /// Returns the number of workloads that this workload combines. The run also reports the
    /// results of each of them. Returns 0 for a single workload.
    fn workloads(&self) -> usize {
        0
    }

    /// Describes the unfinished work. The run calls this if no events remain and the workload is
    /// not finished.
    fn awaits(&self) -> String {
        "some ranks have not finished their work".to_owned()
    }
}

/// A workload whose ranks share no state. Each part of a divided run has a copy of the whole
/// workload, and runs only its own ranks.
pub trait Separable: Workload + Clone + Send {
    /// How to combine the results of [`Workload::done`] from several copies. Each copy runs some of
    /// the ranks.
    const SHARES: Shares = Shares::Greatest;

    /// Moves the state of a rank from the copy that ran the rank to this copy.
    fn adopt(&mut self, rank: u32, part: &mut Self);
}

/// A message, as the receiving rank sees it.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Rank that sent the message.
    pub from: u32,
    /// Length of the message, in bytes.
    pub bytes: u32,
    /// Tag that the sender chose.
    pub tag: u32,
    /// Index of the message's workload among several, from 0.
    pub workload: u8,
}

/// The workload that posted a message, and its class.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Origin {
    /// Index of the workload among several, from 0.
    pub workload: u8,
    /// Class that the workload gave the message.
    pub class: u8,
}

/// Actions that a rank requests, in order.
#[derive(Debug, Default)]
pub struct Actions {
    /// The current time, in picoseconds.
    pub now_ps: u64,
    pub(super) list: Vec<Action>,
    /// Origin of the messages that the rank sends.
    origin: Origin,
    reports_sent: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Send { to: u32, bytes: u32, tag: u32, name: u32, origin: Origin },
    Compute { time_ps: u64, tag: u32 },
    Wake { time_ps: u64, tag: u32 },
    Turn { name: u32 },
}

impl Actions {
    pub(super) fn new(reports_sent: bool) -> Self {
        Self { now_ps: 0, list: Vec::new(), origin: Origin::default(), reports_sent }
    }

    /// Returns whether the run reports that a message with a `name` has been sent
    /// ([`Workload::on_sent`]). The run does so in the LogGP model, because a send can wait for an
    /// interface there. In other models, a message is sent when it is posted.
    pub const fn reports_sent(&self) -> bool {
        self.reports_sent
    }

    /// Sends a message to a rank. The report that the message has been sent contains `name`.
    #[inline]
    pub fn send_named(&mut self, to: u32, bytes: u32, tag: u32, name: u32) {
        self.list.push(Action::Send { to, bytes, tag, name, origin: self.origin });
    }

    /// Makes the run call [`Workload::on_sent`] with `name` at the current time, after it has
    /// handled all earlier requests of this time. Requests that the rank makes in that call are
    /// therefore ordered after the effects of the earlier requests. Only for runs that report
    /// sends.
    #[inline]
    pub fn take_turn(&mut self, name: u32) {
        self.list.push(Action::Turn { name });
    }

    /// Sends a message to a rank.
    pub fn send(&mut self, to: u32, bytes: u32, tag: u32) {
        self.send_named(to, bytes, tag, NAMELESS);
    }

    /// Occupies the processor for `time_ps` picoseconds, after the processor's current work. Then
    /// notifies the rank.
    #[inline]
    pub fn compute(&mut self, time_ps: u64, tag: u32) {
        self.list.push(Action::Compute { time_ps, tag });
    }

    /// Notifies the rank at `time_ps`, without occupying its processor.
    pub fn wake_at(&mut self, time_ps: u64, tag: u32) {
        self.list.push(Action::Wake { time_ps, tag });
    }
}

/// Value of `name` for a message whose sending the run does not report.
pub(super) const NAMELESS: u32 = u32::MAX;

/// A token on a ring of ranks. Each rank waits for the token from the left, waits for a delay, and
/// sends the token to the right.
#[derive(Clone, Debug)]
pub struct TokenPass {
    bytes: u32,
    delay_ps: u64,
    passes: u32,
    /// For each rank, how many times it still has to pass the token on.
    passes_left: Vec<u32>,
}

impl TokenPass {
    /// Creates a token of `bytes` bytes. `ranks` ranks pass the token to the right, `passes` times
    /// in total. A rank waits for the delay before each pass, except before the first pass.
    pub fn new(ranks: u32, bytes: u32, delay_ps: u64, passes: u32) -> Self {
        let passes_left = (0..ranks).map(|rank| passes / ranks + u32::from(rank < passes % ranks));
        Self { bytes, delay_ps, passes, passes_left: passes_left.collect() }
    }

    fn pass(&mut self, rank: u32, actions: &mut Actions) {
        self.passes_left[rank as usize] -= 1;
        actions.send((rank + 1) % self.passes_left.len() as u32, self.bytes, 0);
    }
}

impl Workload for TokenPass {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank == 0 && self.passes_left[0] > 0 {
            self.pass(rank, actions);
        }
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        self.pass(rank, actions);
    }

    fn on_received(&mut self, rank: u32, _received: Received, actions: &mut Actions) {
        if self.passes_left[rank as usize] > 0 {
            actions.compute(self.delay_ps, 0);
        }
    }

    fn is_finished(&self) -> bool {
        self.passes_left.iter().all(|&left| left == 0)
    }

    fn done(&self, _now_ps: u64) -> Option<f64> {
        let left: u32 = self.passes_left.iter().sum();
        Some(1.0 - f64::from(left) / f64::from(self.passes.max(1)))
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let ranks = self.passes_left.len() as u32;
        (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect()
    }
}

impl Separable for TokenPass {
    const SHARES: Shares = Shares::Sum;

    fn adopt(&mut self, rank: u32, part: &mut Self) {
        self.passes_left[rank as usize] = part.passes_left[rank as usize];
    }
}

/// A grid of ranks that is periodic in both directions. In each iteration, a rank sends to its four
/// neighbours, waits for their messages of the same iteration, and computes. A neighbour can be one
/// iteration ahead of the rank.
#[derive(Clone, Debug)]
pub struct MeshExchange {
    configuration: MeshConfiguration,
    states: Vec<MeshState>,
    finished: u32,
}

/// Size and work of a [`MeshExchange`].
#[derive(Clone, Copy, Debug)]
pub struct MeshConfiguration {
    /// Number of ranks along x; rank = x + width · y.
    pub width: u32,
    /// Number of ranks along y.
    pub height: u32,
    /// Length of each message, in bytes.
    pub bytes: u32,
    /// Number of iterations of each rank.
    pub iterations: u32,
    /// Time for which each rank computes in each iteration, in picoseconds.
    pub compute_ps: u64,
    /// Order in which a rank sends to its neighbours, as indices into +x, −x, +y, −y. The rank at
    /// (x, y) starts x + y places later in this order. Therefore messages that are sent at the same
    /// time can have the same destination and compete for a port. If all ranks started at the same
    /// place of the order, all these destinations would be different.
    pub order: [u8; 4],
}

#[derive(Clone, Copy, Debug, Default)]
struct MeshState {
    iteration: u32,
    /// Number of messages received for even iterations, and for odd iterations.
    received: [u8; 2],
    is_computing: bool,
}

impl MeshExchange {
    /// Creates the program of width × height ranks.
    pub fn new(configuration: MeshConfiguration) -> Self {
        let MeshConfiguration { width, height, .. } = configuration;
        let states = vec![MeshState::default(); width as usize * height as usize];
        Self { configuration, states, finished: 0 }
    }

    const fn neighbours(&self, rank: u32) -> [u32; 4] {
        let MeshConfiguration { width, height, .. } = self.configuration;
        let (x, y) = (rank % width, rank / width);
        [
            (x + 1) % width + width * y,
            (x + width - 1) % width + width * y,
            x + width * ((y + 1) % height),
            x + width * ((y + height - 1) % height),
        ]
    }

    /// Sends to all neighbours.
    fn exchange(&mut self, rank: u32, actions: &mut Actions) {
        let MeshConfiguration { width, bytes, order, .. } = self.configuration;
        let (x, y) = (rank % width, rank / width);
        let neighbours = self.neighbours(rank);
        let iteration = self.states[rank as usize].iteration;
        for turn in 0..4 {
            let place = usize::from(order[((x + y + turn) % 4) as usize] % 4);
            actions.send(neighbours[place], bytes, iteration);
        }
        self.compute_when_complete(rank, actions);
    }

    fn compute_when_complete(&mut self, rank: u32, actions: &mut Actions) {
        let state = &mut self.states[rank as usize];
        let received = &mut state.received[state.iteration as usize % 2];
        if *received == 4 && !state.is_computing {
            *received = 0;
            state.is_computing = true;
            actions.compute(self.configuration.compute_ps, 0);
        }
    }
}

impl Workload for MeshExchange {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if self.configuration.iterations == 0 {
            self.finished += 1;
        } else {
            self.exchange(rank, actions);
        }
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        let state = &mut self.states[rank as usize];
        state.is_computing = false;
        state.iteration += 1;
        if state.iteration == self.configuration.iterations {
            self.finished += 1;
        } else {
            self.exchange(rank, actions);
        }
    }

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        self.states[rank as usize].received[received.tag as usize % 2] += 1;
        self.compute_when_complete(rank, actions);
    }

    fn is_finished(&self) -> bool {
        self.finished as usize == self.states.len()
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let ranks = 0..self.states.len() as u32;
        ranks.flat_map(|rank| self.neighbours(rank).map(|neighbour| (rank, neighbour))).collect()
    }

    /// Returns the progress of rank 0 as the progress of all ranks, because ranks are at most a few
    /// iterations apart.
    fn done(&self, _now_ps: u64) -> Option<f64> {
        let iteration = self.states.first()?.iteration;
        Some(f64::from(iteration) / f64::from(self.configuration.iterations.max(1)))
    }
}

impl Separable for MeshExchange {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        let state = part.states[rank as usize];
        let iterations = self.configuration.iterations;
        self.finished += u32::from(state.iteration == iterations);
        self.states[rank as usize] = state;
    }
}

/// Random distribution of the times at which [`OpenLoad`] posts messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrivals {
    /// Posts happen at any time with equal probability (Poisson).
    Poisson,
    /// At each multiple of this time, in picoseconds, at most one post happens. The probability is
    /// the same at each multiple (Bernoulli).
    Bernoulli(u64),
}

/// A load whose ranks post messages at random times, whether or not earlier messages have arrived.
#[derive(Clone, Debug)]
pub struct OpenLoad {
    pattern: Pattern,
    sizes: Sizes,
    arrivals: Arrivals,
    interval_ps: u64,
    until_ps: u64,
    random: Vec<Random>,
}

impl OpenLoad {
    /// Creates `ranks` ranks, each of which posts a message every `interval_ps` on average, until
    /// `until_ps`.
    pub fn new(
        ranks: u32,
        pattern: Pattern,
        sizes: Sizes,
        interval_ps: u64,
        until_ps: u64,
        seed: u64,
    ) -> Self {
        let random = (0..ranks).map(|rank| Random::stream(seed, rank.into())).collect();
        Self { pattern, sizes, arrivals: Arrivals::Poisson, interval_ps, until_ps, random }
    }

    /// Sets the distribution of the times of posts.
    #[must_use]
    pub const fn with_arrivals(mut self, arrivals: Arrivals) -> Self {
        self.arrivals = arrivals;
        self
    }

    fn post_next(&mut self, rank: u32, actions: &mut Actions) {
        let random = &mut self.random[rank as usize];
        let time_ps = match self.arrivals {
            Arrivals::Poisson => actions.now_ps + random.exponential(self.interval_ps),
            Arrivals::Bernoulli(slot_ps) => {
                let first = actions.now_ps / slot_ps * slot_ps + slot_ps;
                let draws = (first..self.until_ps).step_by(slot_ps as usize);
                let chance = (u128::from(slot_ps) << 64) / u128::from(self.interval_ps.max(1));
                let mut drawn = draws.skip_while(|_| u128::from(random.next_u64()) >= chance);
                drawn.next().unwrap_or(self.until_ps)
            }
        };
        if time_ps < self.until_ps {
            actions.wake_at(time_ps, 0);
        }
    }
}

impl Workload for OpenLoad {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if self.pattern != Pattern::Incast(rank) {
            self.post_next(rank, actions);
        }
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        let ranks = self.random.len() as u64;
        let random = &mut self.random[rank as usize];
        let to = self.pattern.draw(rank, ranks, random);
        let bytes = self.sizes.draw(random);
        actions.send(to, bytes, 0);
        self.post_next(rank, actions);
    }

    fn on_received(&mut self, _rank: u32, _received: Received, _actions: &mut Actions) {}

    fn foresee(&self, rank: u32) {
        if let Some(random) = self.random.get(rank as usize) {
            mem::prefetch(random);
        }
    }

    fn done(&self, now_ps: u64) -> Option<f64> {
        Some((now_ps as f64 / self.until_ps.max(1) as f64).min(1.0))
    }

    fn posts_until_ps(&self) -> Option<u64> {
        Some(self.until_ps)
    }

    /// Returns true, because an open load does not wait for messages. It ends even if the network
    /// loses messages.
    fn is_finished(&self) -> bool {
        true
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let ranks = 0..self.random.len() as u32;
        match &self.pattern {
            Pattern::Uniform | Pattern::Any | Pattern::Hotspot { .. } => Vec::new(),
            Pattern::Permutation(to) => ranks.zip(to.iter().copied()).collect(),
            Pattern::Incast(to) => ranks.map(|rank| (rank, *to)).collect(),
        }
    }
}

impl Separable for OpenLoad {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        self.random[rank as usize] = part.random[rank as usize].clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bernoulli_arrivals_are_on_slots_at_the_requested_rate() {
        let sizes = Sizes::Fixed(64);
        let load = OpenLoad::new(2, Pattern::Uniform, sizes, 4_000, 100_000_000, 1);
        let mut load = load.with_arrivals(Arrivals::Bernoulli(1_000));
        let mut actions = Actions::default();
        let mut times = Vec::new();
        load.start(0, &mut actions);
        while let Some(Action::Wake { time_ps, .. }) = actions.list.pop() {
            times.push(time_ps);
            actions = Actions { now_ps: time_ps, ..Actions::default() };
            load.on_wake(0, 0, &mut actions);
        }
        assert!(times.iter().all(|time_ps| time_ps % 1_000 == 0));
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((24_500..25_500).contains(&times.len()), "{}", times.len());
    }
}
