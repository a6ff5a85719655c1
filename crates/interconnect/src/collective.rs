//! Collective operations: what each rank sends and waits for, step by step, and the workload that
//! repeats one.
//!
//! All ranks count the same steps, and a message of a step is for the same step of its receiver; a
//! rank may have nothing to do in some, and in those that only send it may be ahead of others. So an
//! operation is a function from a rank and a step to what happens, and needs no memory of its own.

mod algorithm;

use std::collections::{BTreeSet, VecDeque};

use super::workload::{Actions, Received, Separable, Workload};

/// A collective operation, and how it is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Collective {
    /// Each rank sends to the one so many places to the right, round a ring, and gets from the left.
    Ring {
        /// Length of each message.
        bytes: u32,
        /// How many places further, modulo the ranks; 1 is the neighbour.
        distance: u32,
    },
    /// All other ranks send to one, which sends nothing.
    Incast {
        /// Length of each message.
        bytes: u32,
        /// To whom.
        target: u32,
    },
    /// Each rank sends to each other one.
    AllToAll {
        /// Length of each message.
        bytes: u32,
        /// Who sends to whom in which step.
        exchange: Exchange,
    },
    /// All ranks get the sum of what each has.
    AllReduce {
        /// Length of what each has.
        bytes: u32,
        /// How it is summed.
        reduction: Reduction,
    },
    /// All ranks get what one has, over a binomial tree.
    Broadcast {
        /// Length of it.
        bytes: u32,
        /// Who has it.
        root: u32,
    },
    /// No rank goes on before all are there: dissemination.
    Barrier {
        /// Length of each message.
        bytes: u32,
    },
}

/// Who exchanges with whom in an all-to-all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exchange {
    /// In step i rank r sends to r + i and gets from r − i.
    Shifted,
    /// In each step ranks exchange in pairs: r with r xor i if the ranks are a power of two, else r
    /// with i − r.
    Pairwise,
    /// All in one step: each rank sends to all others, the next first, and waits for what they send.
    AtOnce,
}

/// How an all-reduce is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reduction {
    /// Pieces go round a ring twice: summed, then spread. Least bytes, most steps.
    Ring,
    /// All is exchanged with partners at distances 1, 2, 4, … Least steps.
    RecursiveDoubling,
    /// Rabenseifner: halves are exchanged and summed with partners at distances …, 4, 2, 1, then
    /// gathered the same way back.
    Rabenseifner,
}

/// What a rank does in a step: send, then wait, then sum.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Step {
    /// To whom it sends.
    pub to: Peers,
    /// Length of each message that it sends.
    pub bytes: u32,
    /// From whom it waits for a message each.
    pub from: Peers,
    /// Received bytes that it adds to its own.
    pub reduced_bytes: u32,
}

/// Other ranks of a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Peers {
    /// None.
    #[default]
    NoPeer,
    /// This one.
    One(u32),
    /// All, beginning with the one to the right.
    Others,
}

impl Peers {
    /// Returns how many they are among so many ranks.
    pub const fn count(self, ranks: u32) -> u32 {
        match self {
            Self::NoPeer => 0,
            Self::One(_) => 1,
            Self::Others => ranks - 1,
        }
    }

    /// Returns all of them, seen from a rank.
    pub fn of(self, ranks: u32, rank: u32) -> impl Iterator<Item = u32> {
        (0..self.count(ranks)).map(move |index| match self {
            Self::One(peer) => peer,
            // Ranks fit into 31 bits, as hosts do into 20.
            _ => (rank + 1 + index) % ranks,
        })
    }
}

/// How often a collective is done, and what it costs beside messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CollectiveConfiguration {
    /// What is done.
    pub collective: Collective,
    /// How many ranks do it.
    pub ranks: u32,
    /// How often.
    pub iterations: u32,
    /// Computation of each rank after each time, in picoseconds.
    pub compute_ps: u64,
    /// Summing a byte, in picoseconds.
    pub reduce_ps_per_byte: u64,
}

/// Ranks that do a collective again and again, each as soon as it can.
#[derive(Clone, Debug)]
pub struct CollectiveLoop {
    configuration: CollectiveConfiguration,
    states: Vec<State>,
    finished: u32,
}

#[derive(Clone, Debug, Default)]
struct State {
    iteration: u32,
    step: u32,
    /// What belongs to the step is sent.
    is_waiting: bool,
    /// Messages that are here of this step and of those after it.
    received: VecDeque<u32>,
}

impl State {
    /// What messages of this step are called, if an operation has so many.
    const fn tag(&self, steps: u32) -> u32 {
        self.iteration.wrapping_mul(steps).wrapping_add(self.step)
    }
}

impl CollectiveLoop {
    /// Makes the program of all ranks.
    pub fn new(configuration: CollectiveConfiguration) -> Self {
        let states = vec![State::default(); configuration.ranks as usize];
        Self { configuration, states, finished: 0 }
    }

    /// Begins steps until one takes time.
    fn advance(&mut self, rank: u32, actions: &mut Actions) {
        let CollectiveConfiguration { collective, ranks, iterations, compute_ps, .. } =
            self.configuration;
        let steps = collective.steps(ranks);
        let state = &mut self.states[rank as usize];
        loop {
            if state.iteration == iterations {
                self.finished += 1;
                return;
            }
            if state.step == steps {
                state.iteration += 1;
                state.step = 0;
                if compute_ps > 0 {
                    actions.compute(compute_ps, STEP);
                    return;
                }
                continue;
            }
            let step = collective.step(ranks, rank, state.step);
            if !state.is_waiting {
                let tag = state.tag(steps);
                step.to.of(ranks, rank).for_each(|to| actions.send(to, step.bytes, tag));
                state.is_waiting = true;
            }
            if state.received.front().copied().unwrap_or_default() < step.from.count(ranks) {
                return;
            }
            state.is_waiting = false;
            state.received.pop_front();
            if Self::reduce(&self.configuration, state, step, actions) {
                return;
            }
        }
    }

    /// Ends a step whose message is there; whether summing takes time.
    fn reduce(
        configuration: &CollectiveConfiguration,
        state: &mut State,
        step: Step,
        actions: &mut Actions,
    ) -> bool {
        state.step += 1;
        let time_ps = configuration.reduce_ps_per_byte * u64::from(step.reduced_bytes);
        if time_ps > 0 {
            actions.compute(time_ps, STEP);
        }
        time_ps > 0
    }
}

impl Workload for CollectiveLoop {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        self.advance(rank, actions);
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        self.advance(rank, actions);
    }

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        let CollectiveConfiguration { collective, ranks, .. } = self.configuration;
        let state = &mut self.states[rank as usize];
        let ahead = received.tag.wrapping_sub(state.tag(collective.steps(ranks))) as usize;
        if state.received.len() <= ahead {
            state.received.resize(ahead + 1, 0);
        }
        state.received[ahead] += 1;
        if ahead == 0 && state.is_waiting {
            self.advance(rank, actions);
        }
    }

    fn is_finished(&self) -> bool {
        self.finished == self.configuration.ranks
    }

    /// One rank stands for all, the one that waits for most: those that only send are ahead.
    fn done(&self, _now_ps: u64) -> Option<f64> {
        let rank = match self.configuration.collective {
            Collective::Incast { target, .. } => target,
            _ => 0,
        };
        let iteration = self.states.get(rank as usize)?.iteration;
        Some(f64::from(iteration) / f64::from(self.configuration.iterations.max(1)))
    }

    fn awaits(&self) -> String {
        let CollectiveConfiguration { collective, ranks, .. } = self.configuration;
        let slowest = self.states.iter().zip(0..).filter(|(state, _)| state.is_waiting);
        let slowest = slowest.min_by_key(|(state, _)| (state.iteration, state.step));
        let Some((state, rank)) = slowest else { return "some ranks have not begun".to_owned() };
        let State { iteration, step, .. } = state;
        let from = collective.step(ranks, rank, *step).from;
        let peers = if let Peers::One(from) = from {
            format!("rank {from}")
        } else {
            let here = state.received.front().copied().unwrap_or_default();
            format!("{} of {} ranks", from.count(ranks) - here, from.count(ranks))
        };
        format!("rank {rank} waits for {peers} in step {step} of iteration {iteration}")
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let CollectiveConfiguration { collective, ranks, .. } = self.configuration;
        let mut pairs = Vec::new();
        for rank in 0..ranks {
            let mut known = BTreeSet::new();
            for step in 0..collective.steps(ranks) {
                let peers = collective.step(ranks, rank, step).to.of(ranks, rank);
                pairs.extend(peers.filter(|&to| known.insert(to)).map(|to| (rank, to)));
            }
        }
        pairs
    }
}

impl Separable for CollectiveLoop {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        let state = &mut part.states[rank as usize];
        self.finished += u32::from(state.iteration == self.configuration.iterations);
        std::mem::swap(&mut self.states[rank as usize], state);
    }
}

/// The only thing a rank is woken for: to go on.
const STEP: u32 = 0;

#[cfg(test)]
mod tests;
