//! Several workloads in one run, on the same hosts.

use std::mem;

use super::{
    Action, Actions, Flows, MeshExchange, OpenLoad, Origin, Received, Separable, TokenPass,
    Workload,
};
use crate::collective::CollectiveLoop;

/// One of the workloads that a configuration can select.
#[derive(Clone, Debug)]
pub enum AnyWorkload {
    /// A token that ranks pass round a ring.
    TokenPass(TokenPass),
    /// A grid of ranks that exchange messages.
    Mesh(MeshExchange),
    /// Messages that are posted at random times.
    OpenLoad(OpenLoad),
    /// Messages that are posted at listed times.
    Flows(Flows),
    /// A repeated collective operation.
    Collective(CollectiveLoop),
}

macro_rules! each {
    ($any:expr, $workload:ident => $call:expr) => {
        match $any {
            AnyWorkload::TokenPass($workload) => $call,
            AnyWorkload::Mesh($workload) => $call,
            AnyWorkload::OpenLoad($workload) => $call,
            AnyWorkload::Flows($workload) => $call,
            AnyWorkload::Collective($workload) => $call,
        }
    };
}

/// One of several workloads.
#[derive(Clone, Debug)]
pub struct Member {
    /// The workload; its times count from `start_ps`.
    pub workload: AnyWorkload,
    /// Number of ranks of the workload; they run on the hosts from 0.
    pub ranks: u32,
    /// Start time, in picoseconds.
    pub start_ps: u64,
    /// Class of the workload's messages, if switches classify by workload.
    pub class: u8,
}

/// Several workloads that share hosts and network and are otherwise independent.
///
/// The processor of a host performs the requests of all workloads in order. The low byte of a
/// notification's tag is the index of the workload that gets the notification.
#[derive(Clone, Debug)]
pub struct Several {
    members: Vec<Member>,
}

impl Several {
    /// Combines workloads. Uses only the first [`WORKLOADS_MAX`].
    pub fn new(mut members: Vec<Member>) -> Self {
        members.truncate(WORKLOADS_MAX);
        Self { members }
    }

    /// Calls one workload with times that count from its start. Adds the actions that the workload
    /// requests to `actions`.
    fn act(
        &mut self,
        place: usize,
        actions: &mut Actions,
        act: impl FnOnce(&mut AnyWorkload, &mut Actions),
    ) {
        let Some(member) = self.members.get_mut(place) else { return };
        let now_ps = actions.now_ps;
        let before = mem::take(&mut actions.list);
        actions.now_ps = now_ps.saturating_sub(member.start_ps);
        actions.origin = Origin { workload: place as u8, class: member.class };
        act(&mut member.workload, actions);
        actions.origin = Origin::default();
        actions.now_ps = now_ps;
        for action in &mut actions.list {
            match action {
                Action::Wake { time_ps, tag } => {
                    *time_ps = time_ps.saturating_add(member.start_ps);
                    *tag = *tag << PLACE_BITS | place as u32;
                }
                Action::Compute { tag, .. } => *tag = *tag << PLACE_BITS | place as u32,
                Action::Send { .. } | Action::Turn { .. } => {}
            }
        }
        if !before.is_empty() {
            let own = mem::replace(&mut actions.list, before);
            actions.list.extend(own);
        }
    }
}

impl Workload for Several {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        for place in 0..self.members.len() {
            let Member { ranks, start_ps, .. } = self.members[place];
            if rank >= ranks {
                continue;
            }
            if start_ps > 0 {
                actions.wake_at(start_ps, BEGIN << PLACE_BITS | place as u32);
            } else {
                self.act(place, actions, |workload, actions| {
                    each!(workload, own => own.start(rank, actions));
                });
            }
        }
    }

    fn on_wake(&mut self, rank: u32, tag: u32, actions: &mut Actions) {
        let place = (tag & PLACE_MASK) as usize;
        let tag = tag >> PLACE_BITS;
        self.act(place, actions, |workload, actions| {
            if tag == BEGIN {
                each!(workload, own => own.start(rank, actions));
            } else {
                each!(workload, own => own.on_wake(rank, tag, actions));
            }
        });
    }

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        self.act(received.workload.into(), actions, |workload, actions| {
            each!(workload, own => own.on_received(rank, received, actions));
        });
    }

    fn foresee(&self, rank: u32) {
        for member in &self.members {
            each!(&member.workload, own => own.foresee(rank));
        }
    }

    fn is_finished(&self) -> bool {
        self.members.iter().all(|member| each!(&member.workload, own => own.is_finished()))
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let pairs = |member: &Member| each!(&member.workload, own => own.pairs());
        let mut pairs: Vec<(u32, u32)> = self.members.iter().flat_map(pairs).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    /// Returns the mean progress of the workloads, with equal weights.
    fn done(&self, now_ps: u64) -> Option<f64> {
        let done = |member: &Member| {
            let now_ps = now_ps.saturating_sub(member.start_ps);
            each!(&member.workload, own => own.done(now_ps))
        };
        let sum = self.members.iter().map(done).sum::<Option<f64>>()?;
        Some(sum / self.members.len().max(1) as f64)
    }

    fn posts_until_ps(&self) -> Option<u64> {
        let until = |member: &Member| {
            let until_ps = each!(&member.workload, own => own.posts_until_ps())?;
            Some(until_ps.saturating_add(member.start_ps))
        };
        self.members.iter().filter_map(until).max()
    }

    fn awaits(&self) -> String {
        let waits = |member: &&Member| !each!(&member.workload, own => own.is_finished());
        let first = self.members.iter().position(|member| waits(&member));
        let Some((place, member)) = first.and_then(|at| Some((at, self.members.get(at)?))) else {
            return "all workloads have ended".to_owned();
        };
        let what = each!(&member.workload, own => own.awaits());
        format!("in workload {place}, counted from 0, {what}")
    }

    fn workloads(&self) -> usize {
        self.members.len()
    }
}

impl Separable for Several {
    fn adopt(&mut self, rank: u32, part: &mut Self) {
        use AnyWorkload::{Collective, Flows, Mesh, OpenLoad, TokenPass};
        for (own, other) in self.members.iter_mut().zip(&mut part.members) {
            if rank >= own.ranks {
                continue;
            }
            match (&mut own.workload, &mut other.workload) {
                (TokenPass(own), TokenPass(other)) => own.adopt(rank, other),
                (Mesh(own), Mesh(other)) => own.adopt(rank, other),
                (OpenLoad(own), OpenLoad(other)) => own.adopt(rank, other),
                (Flows(own), Flows(other)) => own.adopt(rank, other),
                (Collective(own), Collective(other)) => own.adopt(rank, other),
                // `self` and `part` are copies of the same workloads. Members with the same index
                // are therefore of the same kind, and this case does not occur.
                _ => {}
            }
        }
    }
}

/// Maximum number of workloads, because the index of a workload is one byte.
pub const WORKLOADS_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 8;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// Tag of the notification at the start of a workload. Tags that workloads use are smaller.
const BEGIN: u32 = u32::MAX >> PLACE_BITS;
