//! A run that is divided into parts, which can run in parallel.
//!
//! Each part consists of some switches with their hosts, and has its own queue of events. An event
//! in one part can affect another part only after the *lookahead*. This is the shortest time that a
//! frame takes from switch to switch. All parts work in windows of this length. A window starts at
//! the earliest event of all parts. Within a window, each part processes its events independently.
//! After the window, the parts exchange the frames that cross between them. Each part processes its
//! events in the same order as an undivided run, so the result does not depend on the number of
//! parts.
//!
//! A [`Driver`] runs the parts, one after another or on several processors.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::ethernet::{Ethernet, PARTS_MAX, Parcel, Wait};
use super::super::topology::Topology;
use super::super::workload::Separable;
use super::{
    Context, DIVIDED, Fabric, Limits, NO_RANK, Outcome, Progress, Simulation, Stuck, Watcher,
    check_end,
};

/// One part of a run.
pub trait Part: Send {
    /// Returns the time of the part's next event, in picoseconds; `None` if it has no event.
    fn next_ps(&self) -> Option<u64>;

    /// Processes the events before `end_ps`. Returns the number of events since the start of the
    /// run.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the part cannot continue.
    fn run_before(&mut self, end_ps: u64) -> Result<u64, Stuck>;

    /// Removes and returns the frames for another part. The driver must call this after each
    /// window.
    fn parcel(&mut self, to: usize) -> Parcel;

    /// Accepts the frames from part `from`.
    fn accept(&mut self, from: usize, parcel: Parcel);

    /// Returns the progress at the end of a window.
    fn progress(&self, now_ps: u64) -> Progress;
}

/// How far parts may run independently, and the maximum number of events.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Length of a window, in picoseconds. A window starts at the earliest event of all parts.
    pub lookahead_ps: u64,
    /// Maximum number of events of all parts together.
    pub events: u64,
    /// How the progress of the parts is combined into the progress of the run.
    pub shares: Shares,
}

/// How the progress of the parts is combined into the progress of the run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shares {
    /// Each part reports how much of the whole work its own ranks have done. The sum of these
    /// values is the progress.
    Sum,
    /// Each part reports an estimate of the progress of the whole run. The largest estimate is the
    /// progress.
    Greatest,
}

impl Shares {
    /// Combines the progress of the parts into the progress of the run.
    pub fn whole(self, parts: impl IntoIterator<Item = Progress>) -> Progress {
        let mut whole = Progress { share: None, now_ps: 0, events: 0, messages: 0 };
        for part in parts {
            whole.share = match (whole.share, part.share, self) {
                (Some(a), Some(b), Self::Sum) => Some((a + b).min(1.0)),
                (Some(a), Some(b), Self::Greatest) => Some(a.max(b)),
                (a, b, _) => a.or(b),
            };
            whole.now_ps = whole.now_ps.max(part.now_ps);
            whole.events += part.events;
            whole.messages += part.messages;
        }
        whole
    }
}

/// Runs the parts of a run.
pub trait Driver {
    /// Repeats two steps until no part has an event: all parts process one window, then all parts
    /// exchange frames. About every [`WATCHED_EVENTS`] events, calls `watch` with the progress.
    /// Stops if `watch` returns `Break`.
    ///
    /// # Errors
    /// Returns [`Stuck`] if a part cannot continue or `watch` stops the run.
    fn drive(
        &self,
        parts: &mut [&mut dyn Part],
        window: Window,
        watch: &mut Watcher<'_>,
    ) -> Result<(), Stuck>;
}

/// Runs the parts one after another, on one processor. Other drivers have the same result.
#[derive(Clone, Copy, Debug, Default)]
pub struct InTurns;

impl Driver for InTurns {
    fn drive(
        &self,
        parts: &mut [&mut dyn Part],
        window: Window,
        watch: &mut Watcher<'_>,
    ) -> Result<(), Stuck> {
        let mut check = WATCHED_EVENTS;
        while let Some(start_ps) = parts.iter().filter_map(|part| part.next_ps()).min() {
            let end_ps = start_ps.saturating_add(window.lookahead_ps);
            let mut events = 0;
            for part in parts.iter_mut() {
                events += part.run_before(end_ps)?;
            }
            if events >= window.events {
                return Err(window.endless(events, end_ps));
            }
            if events >= check {
                check = events + WATCHED_EVENTS;
                let whole = window.shares.whole(parts.iter().map(|part| part.progress(end_ps)));
                whole.report(watch)?;
            }
            for from in 0..parts.len() {
                for to in 0..parts.len() {
                    if from != to {
                        let parcel = parts[from].parcel(to);
                        parts[to].accept(from, parcel);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Window {
    /// Returns the error for a run with too many events. [`Parts::run`] adds the number of messages
    /// in flight.
    pub const fn endless(&self, events: u64, now_ps: u64) -> Stuck {
        Stuck::Endless { events, now_ps, messages: 0, verdict: DIVIDED }
    }
}

/// A divided run on an Ethernet.
#[derive(Debug)]
pub struct Parts<W> {
    whole: Simulation<Ethernet, W>,
    shares: Vec<Share<W>>,
    lookahead_ps: u64,
}

/// A part of a run, with its ranks.
#[derive(Debug)]
struct Share<W> {
    simulation: Simulation<Ethernet, W>,
    ranks: Vec<u32>,
    has_started: bool,
}

impl<W: Separable> Simulation<Ethernet, W> {
    /// Divides a run that has not started. There are at most `count` parts, and at most as many
    /// parts as switches. If frames can cross a link in no time, there is only one part.
    pub fn divide(self, topology: &Topology, count: u32) -> Parts<W> {
        let lookahead_ps = self.fabric.lookahead_ps();
        let count = if lookahead_ps == 0 { 1 } else { count.clamp(1, PARTS_MAX) };
        let nodes: Arc<[u8]> = assign(topology, count).into();
        let count = nodes.iter().max().map_or(1, |&last| u32::from(last) + 1);
        let part = |own: u32| {
            let ranks = (0_u32..).zip(&self.hosts);
            let ranks = ranks.filter(|(_, host)| u32::from(nodes[**host as usize]) == own);
            Share {
                ranks: ranks.map(|(rank, _)| rank).collect(),
                simulation: self.copy(self.fabric.part(&nodes, own)),
                has_started: false,
            }
        };
        let shares = (0..count).map(part).collect();
        Parts { whole: self, shares, lookahead_ps }
    }

    /// Returns a copy of a run that has not started, with another fabric.
    fn copy(&self, fabric: Ethernet) -> Self {
        Self {
            context: Context::new(fabric.slot_ps()),
            fabric,
            workload: self.workload.clone(),
            costs: self.costs,
            limits: self.limits,
            actions: super::Actions::new(false),
            hosts: self.hosts.clone(),
            ranks: self.ranks.clone(),
            free_ps: self.free_ps.clone(),
            receiving: self.receiving,
            interrupts: self.interrupts.clone(),
            processors: None,
            holds_receivers: false,
            loopback: Vec::new(),
            outcome: self.outcome.clone(),
            accepting_ps: self.accepting_ps.clone(),
            end_ps: self.end_ps,
        }
    }
}

impl<W: Separable> Parts<W> {
    /// Returns the number of parts.
    pub const fn count(&self) -> usize {
        self.shares.len()
    }

    /// Runs all parts to the end.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished.
    pub fn run(self, driver: &dyn Driver) -> Result<Outcome, Stuck> {
        self.run_watched(driver, &mut |_| ControlFlow::Continue(()))
    }

    /// Runs all parts to the end, and regularly reports the progress.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished, or `watch` stops it.
    pub fn run_watched(
        mut self,
        driver: &dyn Driver,
        watch: &mut Watcher<'_>,
    ) -> Result<Outcome, Stuck> {
        let Limits { events, .. } = self.whole.limits;
        let window = Window { lookahead_ps: self.lookahead_ps, events, shares: W::SHARES };
        let mut parts: Vec<&mut dyn Part> = Vec::new();
        for part in &mut self.shares {
            parts.push(part);
        }
        match driver.drive(&mut parts, window, watch) {
            Err(Stuck::Endless { events, now_ps, .. }) => {
                let in_flight = |share: &Share<W>| share.simulation.context.messages.len();
                let messages = self.shares.iter().map(in_flight).sum();
                Err(Stuck::Endless { events, now_ps, messages, verdict: DIVIDED })
            }
            Err(stuck) => Err(stuck),
            Ok(()) => self.finish(),
        }
    }

    fn finish(self) -> Result<Outcome, Stuck> {
        let Self { mut whole, shares, .. } = self;
        let mut outcome = Outcome::new();
        let mut waits: Vec<Wait> = Vec::new();
        let mut messages = 0;
        for Share { mut simulation, ranks, .. } in shares {
            simulation.finish_ranks();
            simulation.outcome.dropped = simulation.context.dropped;
            outcome.merge(&simulation.outcome);
            outcome.messages_max += simulation.context.messages.len_max();
            messages += simulation.context.messages.len();
            waits.extend(simulation.fabric.waits());
            whole.fabric.merge(&simulation.fabric);
            for rank in ranks {
                whole.workload.adopt(rank, &mut simulation.workload);
            }
        }
        waits.sort_unstable();
        outcome.accepted.window_ps =
            whole.accepting_ps.end.saturating_sub(whole.accepting_ps.start);
        outcome.hops = whole.fabric.hops();
        outcome.ports = whole.fabric.port_counters();
        outcome.transport = whole.fabric.transport_counts();
        let stuck = (messages > 0).then(|| whole.fabric.stuck(&waits, messages));
        check_end(outcome.dropped, stuck, &whole.workload)?;
        outcome.check_measured(&whole.limits)?;
        Ok(outcome)
    }
}

impl<W: Separable> Part for Share<W> {
    fn next_ps(&self) -> Option<u64> {
        // Before the run has started, the next event is at time 0, because ranks start then.
        if self.has_started { self.simulation.context.wheel.next_ps() } else { Some(0) }
    }

    fn run_before(&mut self, end_ps: u64) -> Result<u64, Stuck> {
        let simulation = &mut self.simulation;
        if !self.has_started {
            self.has_started = true;
            for &rank in &self.ranks {
                simulation.start(rank);
            }
        }
        while simulation.context.wheel.next_ps().is_some_and(|time_ps| time_ps < end_ps) {
            simulation.context.wheel.turn();
            simulation.foresee();
            while let Some(event) = simulation.context.wheel.pop_due_before(end_ps) {
                simulation.step(event)?;
            }
        }
        Ok(simulation.outcome.events)
    }

    fn parcel(&mut self, to: usize) -> Parcel {
        self.simulation.fabric.parcel(to)
    }

    fn accept(&mut self, from: usize, parcel: Parcel) {
        let Simulation { fabric, context, .. } = &mut self.simulation;
        fabric.accept(context, from, parcel);
    }

    fn progress(&self, now_ps: u64) -> Progress {
        self.simulation.progress(now_ps)
    }
}

/// Returns the part of each node. Switches are grouped by their distance from hosts. Within each
/// group, every part gets equally many switches with consecutive numbers, because such switches are
/// near each other in all topologies. A host belongs to the part of its switch.
fn assign(topology: &Topology, count: u32) -> Vec<u8> {
    let (hosts, nodes) = (topology.hosts(), topology.nodes() as usize);
    let mut distances = vec![NO_RANK; nodes];
    let mut open: Vec<u32> = (0..hosts).collect();
    let mut parts = vec![0; nodes];
    let mut distance = 0;
    while !open.is_empty() {
        let mut next = Vec::new();
        for &node in &open {
            distances[node as usize] = distance;
        }
        for &node in &open {
            let ends = topology.outgoing(node).iter().map(|&link| topology.links()[link as usize]);
            next.extend(ends.map(|link| link.to).filter(|&to| distances[to as usize] == NO_RANK));
        }
        next.sort_unstable();
        next.dedup();
        for (place, &switch) in (0_u64..).zip(&next) {
            // The number is less than `PARTS_MAX`.
            parts[switch as usize] = (place * u64::from(count) / next.len() as u64) as u8;
        }
        open = next;
        distance += 1;
    }
    for host in 0..hosts {
        parts[host as usize] = parts[(hosts + topology.host_switch(host)) as usize];
    }
    // If there are fewer switches than parts, empty parts are removed.
    let mut used: Vec<u8> = parts.clone();
    used.sort_unstable();
    used.dedup();
    parts.iter().map(|part| used.partition_point(|other| other < part) as u8).collect()
}

/// Number of events between two progress reports of a divided run. Reports are frequent enough for
/// a progress display and cost almost nothing.
pub const WATCHED_EVENTS: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_parts_combines_to_the_progress_of_the_run() {
        let part = |share, now_ps, events| Progress { share, now_ps, events, messages: 2 };
        let parts = [part(Some(0.25), 7, 10), part(None, 9, 20), part(Some(0.5), 8, 30)];
        let whole = Progress { share: Some(0.5), now_ps: 9, events: 60, messages: 6 };
        assert_eq!(Shares::Greatest.whole(parts), whole);
        assert_eq!(Shares::Sum.whole(parts), Progress { share: Some(0.75), ..whole });
        assert_eq!(Shares::Sum.whole([part(None, 1, 1)]).share, None);
    }

    #[test]
    fn pods_of_a_fat_tree_stay_together() {
        let tree = Topology::fat_tree(4).expect("a fat tree");
        let parts = assign(&tree, 2);
        let part_of = |switch: u32| parts[(tree.hosts() + switch) as usize];
        assert_eq!((0..8).map(part_of).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!((8..16).map(part_of).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!((16..20).map(part_of).collect::<Vec<_>>(), [0, 0, 1, 1]);
        for host in 0..16 {
            assert_eq!(parts[host as usize], part_of(tree.host_switch(host)));
        }
    }

    #[test]
    fn a_run_has_at_most_as_many_parts_as_switches() {
        let cascade = Topology::cascade(3, 2, 1).expect("a cascade");
        assert_eq!(assign(&cascade, 64).iter().max(), Some(&2));
        assert!(assign(&Topology::star(5).expect("a star"), 4).iter().all(|&part| part == 0));
    }
}
