//! Collective operations: what each rank sends and awaits in each step, and the workload that
//! repeats an operation.
//!
//! Steps have the same numbers in all ranks: a message that is sent in step i is received in step
//! i. A rank can be idle in a step. A rank that only sends can be several steps ahead of the other
//! ranks. [`Collective`] therefore stores no progress; its methods compute what a given rank does
//! in a given step.

mod algorithm;

use std::collections::{BTreeSet, VecDeque};

use super::workload::{Actions, Received, Separable, Workload};

/// A collective operation and its algorithm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Collective {
    /// Each rank sends to the rank `distance` places to its right on a ring, and receives from the
    /// rank `distance` places to its left.
    Ring {
        /// Length of each message, in bytes.
        bytes: u32,
        /// Distance on the ring, modulo the number of ranks; 1 is the neighbour.
        distance: u32,
    },
    /// All other ranks send to one rank, which does not send.
    Incast {
        /// Length of each message, in bytes.
        bytes: u32,
        /// The rank that receives.
        target: u32,
    },
    /// Each rank sends to every other rank.
    AllToAll {
        /// Length of each message, in bytes.
        bytes: u32,
        /// Order of the exchanges.
        exchange: Exchange,
    },
    /// All ranks receive the sum of the data of all ranks.
    AllReduce {
        /// Length of each rank's data, in bytes.
        bytes: u32,
        /// Algorithm that computes the sum.
        reduction: Reduction,
    },
    /// All ranks receive the data of one rank, over a binomial tree.
    Broadcast {
        /// Length of the data, in bytes.
        bytes: u32,
        /// The rank that has the data.
        root: u32,
    },
    /// No rank continues before all ranks have arrived. The algorithm is the dissemination barrier.
    Barrier {
        /// Length of each message, in bytes.
        bytes: u32,
    },
}

/// Order of the exchanges in an all-to-all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exchange {
    /// In step i, rank r sends to r + i and receives from r − i.
    Shifted,
    /// In each step, the ranks exchange in pairs. If the number of ranks is a power of two, rank r
    /// exchanges with rank r xor i in step i. Otherwise rank r exchanges with rank i − r, modulo
    /// the number of ranks.
    Pairwise,
    /// In a single step, each rank sends to all other ranks, the next rank first. Then the rank
    /// waits for their messages.
    AtOnce,
}

/// Algorithm of an all-reduce.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reduction {
    /// The data is divided into pieces that travel round a ring twice. In the first round, the
    /// ranks sum the pieces. In the second round, they distribute the sums. This algorithm sends
    /// the fewest bytes and has the most steps.
    Ring,
    /// Ranks exchange all data with partners at distances 1, 2, 4, … This algorithm has the fewest
    /// steps.
    RecursiveDoubling,
    /// Rabenseifner's algorithm. Ranks exchange and sum halves with partners at distances that
    /// shrink: …, 4, 2 and 1. Then the ranks gather the sums in the reverse order.
    Rabenseifner,
}

/// What a rank does in a step: it sends, then waits for messages, then sums.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Step {
    /// Ranks to which the rank sends.
    pub to: Peers,
    /// Length of each message that the rank sends, in bytes.
    pub bytes: u32,
    /// Ranks from which the rank awaits one message each.
    pub from: Peers,
    /// Number of received bytes that the rank adds to its own data.
    pub reduced_bytes: u32,
}

/// The ranks with which a rank exchanges messages in a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Peers {
    /// No rank.
    #[default]
    NoPeer,
    /// One rank.
    One(u32),
    /// All other ranks, starting with the rank to the right.
    Others,
}

impl Peers {
    /// Returns the number of peers among `ranks` ranks.
    pub const fn count(self, ranks: u32) -> u32 {
        match self {
            Self::NoPeer => 0,
            Self::One(_) => 1,
            Self::Others => ranks - 1,
        }
    }

    /// Returns the peers of a rank.
    pub fn of(self, ranks: u32, rank: u32) -> impl Iterator<Item = u32> {
        (0..self.count(ranks)).map(move |index| match self {
            Self::One(peer) => peer,
            // The sum does not overflow, because a network has at most 2^20 hosts and rank numbers
            // fit in 31 bits.
            _ => (rank + 1 + index) % ranks,
        })
    }
}

/// A collective to be repeated, with the times that ranks need to compute and to sum.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CollectiveConfiguration {
    /// The operation.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of repetitions.
    pub iterations: u32,
    /// Time for which each rank computes after each repetition, in picoseconds.
    pub compute_ps: u64,
    /// Time to sum one byte, in picoseconds.
    pub reduce_ps_per_byte: u64,
}

/// Ranks that repeat a collective. Each rank starts the next repetition as soon as it can.
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
    /// Whether the messages of the current step have been sent.
    is_waiting: bool,
    /// Numbers of messages received: the first entry is for the current step, the others are for
    /// the steps after it.
    received: VecDeque<u32>,
}

impl State {
    /// Returns the tag of the current step's messages, for an operation with `steps` steps.
    const fn tag(&self, steps: u32) -> u32 {
        self.iteration.wrapping_mul(steps).wrapping_add(self.step)
    }
}

impl CollectiveLoop {
    /// Creates the workload in which all ranks repeat the collective of `configuration`.
    pub fn new(configuration: CollectiveConfiguration) -> Self {
        let states = vec![State::default(); configuration.ranks as usize];
        Self { configuration, states, finished: 0 }
    }

    /// Performs steps of a rank until a step takes time or must wait.
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

    /// Ends a step whose messages have all arrived. Returns whether the rank needs time to sum.
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

    /// Returns the fraction of the repetitions that one rank has finished. It stands for the
    /// progress of all ranks. For an incast, this rank is the target, because ranks that only send
    /// are ahead of the target.
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
        let Some((state, rank)) = slowest else { return "some ranks have not started".to_owned() };
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

/// Tag of all wake-ups of ranks. A rank asks for a wake-up only at the end of a computation, and
/// then continues with its next step.
const STEP: u32 = 0;

#[cfg(test)]
mod tests;
