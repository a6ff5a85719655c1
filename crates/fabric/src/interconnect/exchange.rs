//! Exchanges: each rank sends to some others, waits for what they send, and begins again.

use std::collections::VecDeque;

use super::workload::{Actions, Received, Separable, Workload};

/// A program of rounds: in each, a rank sends a message to each of its partners at once, waits for one
/// from each rank whose partner it is, and goes on. Others may be rounds ahead.
#[derive(Clone, Debug)]
pub struct Exchange {
    partners: Partners,
    ranks: u32,
    bytes: u32,
    rounds: u32,
    states: Vec<State>,
    finished: u32,
}

/// To whom a rank sends in each round of an [`Exchange`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Partners {
    /// To all others, the next rank first.
    AllToAll,
    /// To the rank so many places further, modulo their number; 1 makes a ring.
    Shift(u32),
    /// All others to this one, which sends nothing.
    Incast(u32),
}

#[derive(Clone, Debug, Default)]
struct State {
    round: u32,
    /// Messages that are here of this round and of those after it.
    received: VecDeque<u32>,
}

impl Exchange {
    /// The program of `ranks` ranks, with messages of `bytes`.
    pub fn new(ranks: u32, partners: Partners, bytes: u32, rounds: u32) -> Self {
        let states = vec![State::default(); ranks as usize];
        Self { partners, ranks, bytes, rounds, states, finished: 0 }
    }

    /// How many a rank sends to in a round, and from how many it gets something.
    const fn degrees(&self, rank: u32) -> (u32, u32) {
        match self.partners {
            Partners::AllToAll => (self.ranks - 1, self.ranks - 1),
            Partners::Shift(distance) if distance.is_multiple_of(self.ranks) => (0, 0),
            Partners::Shift(_) => (1, 1),
            Partners::Incast(target) if target == rank => (0, self.ranks - 1),
            Partners::Incast(_) => (1, 0),
        }
    }

    const fn partner(&self, rank: u32, index: u32) -> u32 {
        match self.partners {
            Partners::AllToAll => (rank + 1 + index) % self.ranks,
            Partners::Shift(distance) => (rank + distance % self.ranks) % self.ranks,
            Partners::Incast(target) => target,
        }
    }

    /// Sends what belongs to this round, and to those after it for which nothing must be waited.
    fn proceed(&mut self, rank: u32, actions: &mut Actions, mut is_begun: bool) {
        let (sends, receives) = self.degrees(rank);
        loop {
            let state = &mut self.states[rank as usize];
            if state.round == self.rounds {
                return;
            }
            let round = state.round;
            if is_begun {
                let received = state.received.front().copied().unwrap_or_default();
                if received < receives {
                    return;
                }
                state.received.pop_front();
                state.round += 1;
                self.finished += u32::from(state.round == self.rounds);
                is_begun = false;
            } else {
                for index in 0..sends {
                    actions.send(self.partner(rank, index), self.bytes, round);
                }
                is_begun = true;
            }
        }
    }
}

impl Workload for Exchange {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if self.rounds == 0 {
            self.finished += 1;
        }
        self.proceed(rank, actions, false);
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, _actions: &mut Actions) {}

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        let state = &mut self.states[rank as usize];
        let ahead = received.tag.saturating_sub(state.round) as usize;
        if state.received.len() <= ahead {
            state.received.resize(ahead + 1, 0);
        }
        state.received[ahead] += 1;
        self.proceed(rank, actions, true);
    }

    fn is_finished(&self) -> bool {
        self.finished == self.ranks
    }

    fn awaits(&self) -> String {
        let slowest = self.states.iter().enumerate().min_by_key(|(_, state)| state.round);
        let (rank, round) = slowest.map_or((0, 0), |(rank, state)| (rank, state.round));
        format!(
            "{} of {} ranks are done; rank {rank} is in round {round}",
            self.finished, self.ranks
        )
    }

    /// Of the rank that waits for most of the others: those that only send are ahead.
    fn done(&self, _now_ps: u64) -> Option<f64> {
        let rank = match self.partners {
            Partners::Incast(target) => target,
            Partners::AllToAll | Partners::Shift(_) => 0,
        };
        let state = self.states.get(rank as usize)?;
        Some(f64::from(state.round) / f64::from(self.rounds.max(1)))
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let of =
            |rank| (0..self.degrees(rank).0).map(move |index| (rank, self.partner(rank, index)));
        (0..self.ranks).flat_map(of).collect()
    }
}

impl Separable for Exchange {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        let state = std::mem::take(&mut part.states[rank as usize]);
        self.finished += u32::from(state.round == self.rounds);
        self.states[rank as usize] = state;
    }
}

#[cfg(test)]
mod tests {
    use super::super::loggp::{LogGp, LogGpConfiguration};
    use super::super::simulation::{HostCosts, Simulation};
    use super::*;

    #[test]
    fn exchanges_end_with_every_message() {
        for (partners, in_a_round) in [
            (Partners::AllToAll, 56),
            (Partners::Shift(1), 8),
            (Partners::Shift(8), 0),
            (Partners::Incast(3), 7),
        ] {
            let exchange = Exchange::new(8, partners, 100, 5);
            assert_eq!(exchange.pairs().len(), in_a_round);
            let fabric =
                LogGp::new(8, LogGpConfiguration { latency_ps: 1_000, gap_ps: 10, byte_ps: 1 });
            let placement: Vec<u32> = (0..8).collect();
            let run = Simulation::new(fabric, exchange, &placement, HostCosts::default()).run();
            let outcome = run.expect("it ends");
            assert_eq!(outcome.delivered, 5 * in_a_round as u64, "{partners:?}");
        }
    }
}
