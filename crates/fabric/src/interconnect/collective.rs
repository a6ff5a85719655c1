//! Collective operations: what each rank sends and waits for, step by step, and the workload that
//! repeats one.
//!
//! All ranks count the same steps, and a message of a step is for the same step of its receiver; a
//! rank may have nothing to do in some. So an operation is a function from a rank and a step to
//! what happens, and needs no memory of its own.

mod algorithm;

use std::collections::BTreeSet;

use super::workload::{Actions, Received, Separable, Workload};

/// A collective operation, and how it is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Collective {
    /// Each rank sends to its right neighbour and gets from its left one.
    Ring {
        /// Length of each message.
        bytes: u32,
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
    /// To whom it sends how many bytes.
    pub send: Option<(u32, u32)>,
    /// From whom it waits for a message.
    pub receive: Option<u32>,
    /// Received bytes that it adds to its own.
    pub reduced_bytes: u32,
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
    /// Whom the rank waits for.
    awaited: Option<u32>,
    /// Messages of later steps that are there, by tag and sender.
    early: BTreeSet<(u32, u32)>,
}

impl CollectiveLoop {
    /// The program of all ranks.
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
            let tag = state.iteration.wrapping_mul(steps).wrapping_add(state.step);
            if let Some((to, bytes)) = step.send {
                actions.send(to, bytes, tag);
            }
            if let Some(from) = step.receive
                && !state.early.remove(&(tag, from))
            {
                state.awaited = Some(from);
                return;
            }
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
        let tag = state.iteration.wrapping_mul(collective.steps(ranks)).wrapping_add(state.step);
        if state.awaited != Some(received.from) || received.tag != tag {
            state.early.insert((received.tag, received.from));
            return;
        }
        state.awaited = None;
        let step = collective.step(ranks, rank, state.step);
        if !Self::reduce(&self.configuration, state, step, actions) {
            self.advance(rank, actions);
        }
    }

    fn is_finished(&self) -> bool {
        self.finished == self.configuration.ranks
    }

    /// Rank 0 tells of all: none gets far ahead of those it waits for.
    fn done(&self, _now_ps: u64) -> Option<f64> {
        let iteration = self.states.first()?.iteration;
        Some(f64::from(iteration) / f64::from(self.configuration.iterations.max(1)))
    }

    fn awaits(&self) -> String {
        let waiting = self.states.iter().zip(0..).find_map(|(state, rank)| {
            state.awaited.map(|from| (rank, from, state.iteration, state.step))
        });
        match waiting {
            Some((rank, from, iteration, step)) => {
                format!("rank {rank} waits for rank {from} in step {step} of iteration {iteration}")
            }
            None => "some ranks have not begun".to_owned(),
        }
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
