//! A list of flows, for example from a trace or a generator.

use std::ops::Range;
use std::sync::Arc;

use super::{Actions, Received, Separable, Workload};

/// A message that is posted at a given time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow {
    /// Rank that sends the message.
    pub source: u32,
    /// Rank that receives the message.
    pub destination: u32,
    /// Length, in bytes.
    pub bytes: u32,
    /// Time when the message is posted, in picoseconds.
    pub start_ps: u64,
}

/// Ranks that post the messages of a list, each at its start time. The tag of a message is its
/// index in the list, from 0.
#[derive(Clone, Debug)]
pub struct Flows {
    list: Arc<[Flow]>,
    /// Indices of the list, ordered by source and then by start.
    order: Arc<[u32]>,
    /// For each rank, the messages that it has not posted yet, as indices in `order`.
    left: Vec<Range<u32>>,
    last_start_ps: u64,
}

impl Flows {
    /// Creates the flows of a list among `ranks` ranks. Flows with equal source and equal start are
    /// posted in the order of the list. A flow is not posted if its source is not a rank, or if at
    /// least `u32::MAX` flows come before it in the list.
    pub fn new(ranks: u32, list: Arc<[Flow]>) -> Self {
        let mut order: Vec<u32> = list.iter().zip(0..u32::MAX).map(|(_, at)| at).collect();
        let flow = |at: u32| list[at as usize];
        order.sort_by_key(|&at| (flow(at).source, flow(at).start_ps));
        let mut end = 0;
        let left = (0..ranks).map(|rank| {
            let start = end;
            end = order.partition_point(|&at| flow(at).source <= rank) as u32;
            start..end
        });
        let left = left.collect();
        let last_start_ps = list.iter().map(|flow| flow.start_ps).max().unwrap_or_default();
        Self { order: order.into(), left, last_start_ps, list }
    }

    /// Posts the flows of a rank whose start time has been reached, and schedules the next post.
    fn post(&mut self, rank: u32, actions: &mut Actions) {
        let left = &mut self.left[rank as usize];
        while left.start < left.end {
            let at = self.order[left.start as usize];
            let Flow { destination, bytes, start_ps, .. } = self.list[at as usize];
            if start_ps > actions.now_ps {
                actions.wake_at(start_ps, 0);
                return;
            }
            actions.send(destination, bytes, at);
            left.start += 1;
        }
    }
}

impl Workload for Flows {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        self.post(rank, actions);
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        self.post(rank, actions);
    }

    fn on_received(&mut self, _rank: u32, _received: Received, _actions: &mut Actions) {}

    /// Returns true, because flows do not wait for messages. They end even if the network loses
    /// messages.
    fn is_finished(&self) -> bool {
        true
    }

    fn done(&self, now_ps: u64) -> Option<f64> {
        Some((now_ps as f64 / self.last_start_ps.max(1) as f64).min(1.0))
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let mut pairs: Vec<(u32, u32)> =
            self.list.iter().map(|flow| (flow.source, flow.destination)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }
}

impl Separable for Flows {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        self.left[rank as usize] = part.left[rank as usize].clone();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Action;
    use super::*;

    #[test]
    fn a_rank_posts_its_own_flows_at_their_times_in_the_order_of_the_list() {
        let flow = |source, destination, start_ps| Flow { source, destination, bytes: 9, start_ps };
        let list =
            [flow(1, 0, 500), flow(0, 2, 70), flow(1, 2, 0), flow(1, 3, 500), flow(1, 1, 90)];
        let mut flows = Flows::new(4, list.into());
        assert_eq!(flows.pairs(), [(0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]);
        let mut posted = Vec::new();
        let mut now_ps = Some(0);
        while let Some(time_ps) = now_ps.take() {
            let mut actions = Actions { now_ps: time_ps, ..Actions::default() };
            flows.on_wake(1, 0, &mut actions);
            for action in actions.list {
                match action {
                    Action::Send { to, tag, .. } => posted.push((time_ps, to, tag)),
                    Action::Wake { time_ps, .. } => now_ps = Some(time_ps),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(posted, [(0, 2, 2), (90, 1, 4), (500, 0, 0), (500, 3, 3)]);
    }
}
