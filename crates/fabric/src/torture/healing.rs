//! Applies disasters and ends them.

use delivery::{Instant, LinkId};

use super::plan::Disaster;
use super::run::{Pair, Run, SharedCounter, Wake};
use crate::channel::Faults;
use crate::host::{ConnectionHandle, HostEngine};
use crate::torture::end::{COUNTERS, Stage};
use crate::trace::Kind;
use crate::world::World;

impl<E: HostEngine> Run<'_, E> {
    /// Applies a disaster.
    pub(super) fn strike(&mut self, world: &mut World<E>, disaster: Disaster) {
        let now = world.now();
        world.trace.record(now, Kind::Altered, disaster_number(disaster), 0);
        match disaster {
            Disaster::Cut { host, link, for_ns } => {
                world.network.set_cut(self.port(host, link), true);
                self.block(world, host, link, for_ns);
            }
            Disaster::Isolate { host, for_ns } => {
                for link in 0..self.plan.links.len() {
                    world.network.set_cut(self.port(host, link), true);
                    self.block(world, host, link, for_ns);
                }
            }
            Disaster::LinkDown { host, link, for_ns } => {
                world.network.set_up(self.port(host, link), false);
                self.block(world, host, link, for_ns);
            }
            Disaster::Pause { host, for_ns } => {
                world.pause(host, now.after_ns(for_ns));
                // The check happens one nanosecond after the pause, so that the host is running
                // again.
                self.wake_at(world, now.after_ns(for_ns + 1), Wake::Reassess);
            }
            Disaster::Restart { host } => self.restart(world, host),
            Disaster::FrameLimit { host, link, frame_bytes_max } => {
                world.network.set_frame_bytes_max(self.port(host, link), frame_bytes_max);
            }
            Disaster::Rate { host, link, rate } => {
                world.network.set_rate(self.port(host, link), rate);
            }
            Disaster::RemovePath { host, link, for_ns } => {
                for (connection, _) in self.connections_of(host) {
                    world.engine_mut(host).remove_path(connection, LinkId(link as u8));
                }
                self.wake_at(world, now.after_ns(for_ns), Wake::AddPath { host, link });
            }
            other => self.churn_strike(world, other),
        }
        self.touch(disaster);
        self.reassess(world);
    }

    /// Ends a cut or an outage of a link. Does nothing if another disaster of the link lasts
    /// longer.
    pub(super) fn unblock(&mut self, world: &mut World<E>, host: usize, link: usize) {
        let port = self.port(host, link);
        let is_attached = world.is_attached(host, LinkId(link as u8));
        if world.now() < self.blocked_until[usize::from(port.0)] || !is_attached {
            return;
        }
        world.network.set_cut(port, false);
        world.network.set_up(port, true);
        self.reassess(world);
    }

    /// Adds a link that was removed to the connections of a host again.
    pub(super) fn add_path(&mut self, world: &mut World<E>, host: usize, link: usize) {
        let now = world.now();
        for (connection, peer) in self.connections_of(host) {
            let link = LinkId(link as u8);
            let other = self.plan.link_on(peer, self.plan.segment(host, usize::from(link.0)));
            let to = world.network.caps(self.port(peer, other)).local;
            world.engine_mut(host).add_path(now, connection, link, to);
        }
    }

    /// Returns the open connections of a host, each with the number of the peer's host.
    pub(super) fn connections_of(&self, host: usize) -> Vec<(ConnectionHandle, usize)> {
        let life = self.hosts[host].life;
        let sides = self
            .pairs
            .iter()
            .flat_map(|pair| [0, 1].map(|side| (pair.ends[side].as_ref(), pair.hosts[1 - side])));
        sides
            .filter_map(|(end, peer)| {
                let end =
                    end.filter(|end| (end.host, end.life, end.stage) == (host, life, Stage::Open))?;
                Some((end.connection, peer))
            })
            .collect()
    }

    /// Schedules the end of a cut or outage of a port.
    fn block(&mut self, world: &mut World<E>, host: usize, link: usize, for_ns: u64) {
        let until = world.now().after_ns(for_ns);
        let latest = &mut self.blocked_until[host * self.plan.links.len() + link];
        *latest = until.max(*latest);
        self.wake_at(world, until, Wake::Unblock { host, link });
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self, world: &mut World<E>) {
        self.healed = true;
        for host in 0..self.plan.hosts {
            for link in 0..self.plan.links.len() {
                let port = self.port(host, link);
                world.network.set_faults(port, Faults::default());
                world.network.set_up(port, true);
                let model = self.plan.links[link].model;
                world.network.set_frame_bytes_max(port, self.frame_bytes_max(host, link));
                world.network.set_rate(port, model.rate);
                world.network.set_propagation(port, model.propagation_ns);
            }
            world.resume(host);
        }
        self.mend_faulty(world);
        self.send_strangers_away(world);
        let now = world.now();
        world.trace.record(now, Kind::Altered, HEALED, 0);
        self.reassess(world);
    }

    /// For each pair of hosts without a path that works in both directions, records when this state
    /// began.
    pub(super) fn reassess(&mut self, world: &World<E>) {
        let now = world.now();
        for pair in 0..self.pairs.len() {
            let [first, second] = self.pairs[pair].hosts;
            let runs = !world.is_paused(first) && !world.is_paused(second);
            let passes = (0..self.plan.links.len()).any(|link| {
                let (there, back) = (self.port(first, link), self.port(second, link));
                world.network.passes(there, back) && world.network.passes(back, there)
            });
            if self.plan.churn.is_some() {
                self.reassess_churn(pair);
                continue;
            }
            let state = &mut self.pairs[pair];
            match (runs && passes, state.blocked_since) {
                (false, None) => state.blocked_since = Some(now),
                (true, Some(since)) => {
                    state.blocked_ns += now.since_ns(since);
                    state.blocked_since = None;
                }
                _ => {}
            }
            self.excuse_long_outage(now, pair);
        }
    }

    /// Allows a connection to end if it had no path for a long time.
    pub(super) fn excuse_long_outage(&mut self, now: Instant, pair: usize) {
        let state = &mut self.pairs[pair];
        if state.lacked_path(now) {
            for end in state.ends.iter_mut().flatten() {
                end.excused = true;
            }
        }
    }

    fn restart(&mut self, world: &mut World<E>, host: usize) {
        let now = world.now();
        self.hosts[host].life += 1;
        let engine = self.engine(host, self.hosts[host].life);
        world.restart(host, engine);
        world.engine_mut(host).listen(now);
        self.frozen.retain(|frozen| frozen.host != host);
        self.hosts[host].counters = world.engine_mut(host).register(COUNTERS as u32 * 8);
        self.hosts[host].shared = core::array::from_fn(|_| SharedCounter::default());
        for pair in 0..self.pairs.len() {
            let Some(side) = self.pairs[pair].hosts.iter().position(|&other| other == host) else {
                continue;
            };
            if let Some(end) = &mut self.pairs[pair].ends[1 - side] {
                end.excused = true;
            }
            if let Some(end) = &mut self.pairs[pair].ends[side] {
                end.excused = true;
                end.stage = Stage::Closed;
            }
            if side == 0 {
                self.connect_later(world, pair);
            }
        }
    }
}

impl Pair {
    /// Returns whether the connection had no path for so long that it may end.
    pub(super) fn lacked_path(&self, now: Instant) -> bool {
        let current_ns = self.blocked_since.map_or(0, |since| now.since_ns(since));
        self.blocked_ns + current_ns >= OUTAGE_EXCUSED_NS
    }
}

const fn disaster_number(disaster: Disaster) -> u32 {
    match disaster {
        Disaster::Cut { .. } => 1,
        Disaster::Isolate { .. } => 2,
        Disaster::LinkDown { .. } => 3,
        Disaster::Pause { .. } => 4,
        Disaster::Restart { .. } => 5,
        Disaster::FrameLimit { .. } => 6,
        Disaster::Rate { .. } => 7,
        Disaster::RemovePath { .. } => 8,
        Disaster::Detach { .. } => 9,
        Disaster::Flap { .. } => 10,
        Disaster::FrameStep { .. } => 11,
        Disaster::Delay { .. } => 12,
        Disaster::Loss { .. } => 13,
    }
}

const HEALED: u32 = 100;

/// Total time without a path after which a connection may end, in nanoseconds. It must be much
/// longer than any short disaster. It must also be much shorter than the 5 s after which a host
/// regards a silent peer as dead: probes are rare during an outage, so an outage of less than 5 s
/// can end a connection.
pub(super) const OUTAGE_EXCUSED_NS: u64 = 2_000_000_000;
