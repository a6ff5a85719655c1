//! A soak: hours of churn. Links disappear and come back while hosts send little. No operation may
//! be lost.
//!
//! A soak is a sequence of episodes, each of which has three phases:
//!
//! * For some time, disasters happen. With each disaster, the applications post a burst of
//!   operations.
//! * All faults end, and everything must converge: operations, memory, and the links of each
//!   connection. The connections must find all links again.
//! * The hosts are idle for 3 to 60 seconds. In this time, no engine may have any work.
//!
//! The checks of the torture harness also apply, in all phases.

use delivery::{Instant, LinkId};
use wire_edge::PeerAddr;

use super::MakeEngine;
use super::healing::OUTAGE_EXCUSED_NS;
use super::plan::{Disaster, Plan, Wiring};
use super::report::{Options, Report};
use super::run::{Run, SLICE_NS, Wake};
use crate::channel::Faults;
use crate::edge_host::EdgeHost;
use crate::host::HostEngine;
use crate::network::port_address;
use crate::oracle::Violation;
use crate::random::Random;
use crate::trace::Kind;
use crate::world::World;

/// Results of a soak.
#[derive(Clone, Debug)]
pub struct SoakReport {
    /// The report, like that of other runs. Its seed is the seed of the soak.
    pub report: Report,
    /// Number of episodes that succeeded.
    pub episodes: u64,
    /// Number of disasters.
    pub disasters: u64,
}

/// Runs the engine through `hours` of churn. At the end of each episode, calls `progress` with the
/// virtual time in nanoseconds. If `progress` returns false, the soak ends.
pub fn soak(
    seed: u64,
    hours: f64,
    options: &Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> SoakReport {
    soak_with(seed, hours, options, &|_, tuning| EdgeHost::new(&tuning), progress)
}

/// Runs a soak like [`soak`], with engines that `make` creates.
pub fn soak_with<E: HostEngine>(
    seed: u64,
    hours: f64,
    options: &Options,
    make: &MakeEngine<'_, E>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> SoakReport {
    let mut run = Run::of_plan(seed, *options, make, Plan::draw_churn(seed));
    let mut world = World::new(seed, options.tail_entries);
    run.build(&mut world);
    run.schedule(&mut world);
    run.healed = true;
    run.recover(&mut world);
    let end = Instant((hours * HOUR_NS) as u64);
    let mut episodes = 0;
    while run.violation.is_none() && world.now() < end {
        run.strike_for_a_while(&mut world);
        run.heal(&mut world);
        run.recover(&mut world);
        run.stay_idle(&mut world);
        episodes += u64::from(run.violation.is_none());
        if !progress(world.now().0) {
            break;
        }
    }
    let again = format!("ethernot sim churn --hours {hours} --seed {seed} --jobs 1");
    SoakReport { report: run.report(&world, again), episodes, disasters: run.churn.disasters }
}

/// State that only a soak needs.
#[derive(Debug)]
pub(super) struct Churn {
    random: Random,
    /// For each port, whether a disaster has affected it in this episode. If so, connections may
    /// have to find the links of the port again.
    touched: Vec<bool>,
    /// Links that were removed from the connections of a host, each as host and link.
    removed: Vec<(usize, usize)>,
    /// Number of new addresses assigned so far.
    versions: u16,
    disasters: u64,
}

impl Churn {
    pub(super) fn new(seed: u64, ports: usize) -> Self {
        Self {
            random: Random::stream(seed, EPISODE_STREAM),
            touched: vec![false; ports],
            removed: Vec::new(),
            versions: 0,
            disasters: 0,
        }
    }
}

/// Returns the address of a host's link. `version` counts the changes of this address.
pub(super) fn address(wiring: &Wiring, host: usize, link: usize, version: u16) -> PeerAddr {
    if !wiring.ethernet {
        return port_address(host as u8, link as u8);
    }
    // On real hosts, the Ethernet addresses of interfaces have no common prefix. Therefore derive
    // each address from a hash.
    let mut bytes = [0; 20];
    bytes[0] = 1;
    let name = crate::trace::digest(&[host as u8, link as u8, version as u8, (version >> 8) as u8]);
    bytes[4..10].copy_from_slice(&name.to_le_bytes()[..6]);
    bytes[4] = bytes[4] & 0xfc | 2;
    PeerAddr(bytes)
}

impl<E: HostEngine> Run<'_, E> {
    /// Makes disasters happen for some time.
    fn strike_for_a_while(&mut self, world: &mut World<E>) {
        self.healed = false;
        for end in self.pairs.iter_mut().flat_map(|pair| pair.ends.iter_mut().flatten()) {
            end.probed = false;
            end.excused = false;
        }
        let start = world.now();
        let random = &mut self.churn.random;
        let lasts_ns = random.pick(&[50_000_000, 500_000_000, 3_000_000_000, 20_000_000_000]);
        let count = random.pick(&[1, 1, 2, 4, 8]);
        // On real networks, several disasters often happen at the same time, for example because a
        // switch fails, or because a script configures both ends.
        let mut at_ns = random.below(lasts_ns);
        for _ in 0..count {
            let random = &mut self.churn.random;
            if random.chance_ppm(600_000) {
                at_ns = random.below(lasts_ns);
            }
            let at = start.after_ns(at_ns);
            let left_ns = (lasts_ns - at_ns).max(1);
            for disaster in self.draw_disasters(left_ns) {
                self.wake_at(world, at, Wake::Strike(disaster));
                self.churn.disasters += 1;
            }
            self.grant_around(world, at);
        }
        self.grant_around(world, start);
        self.advance(world, start.after_ns(lasts_ns));
    }

    /// Lets applications post operations around the time `at`.
    fn grant_around(&mut self, world: &mut World<E>, at: Instant) {
        for pair in 0..self.pairs.len() {
            let random = &mut self.churn.random;
            let operations = random.between(1, u64::from(self.plan.traffic.operations)) as u32;
            let before_ns = random.below(300_000);
            let at = Instant(at.0.saturating_sub(before_ns)).max(world.now());
            self.wake_at(world, at, Wake::Grant { pair, operations });
        }
    }

    /// Returns a random disaster that ends within `left_ns`. Sometimes adds a second disaster at
    /// another host.
    fn draw_disasters(&mut self, left_ns: u64) -> Vec<Disaster> {
        let links = self.plan.links.len();
        let random = &mut self.churn.random;
        let host = random.below(self.plan.hosts as u64) as usize;
        let link = random.below(links as u64) as usize;
        let length =
            random.pick(&[1_000_000, 30_000_000, 300_000_000, 3_000_000_000, 9_000_000_000]);
        let for_ns = random.between(1, length).min(left_ns);
        let is_renumbered = random.chance_ppm(300_000);
        let first = match random.below(16) {
            0..=3 => Disaster::Detach { host, link, for_ns, is_renumbered },
            4 | 5 => Disaster::RemovePath { host, link, for_ns },
            6 | 7 => Disaster::LinkDown { host, link, for_ns },
            8 => Disaster::Flap { host, link, times: random.between(2, 9) as u8, for_ns },
            9 | 10 => Disaster::Cut { host, link, for_ns },
            11 => Disaster::FrameStep { host, link, frame_bytes_max: draw_frame_bytes(random) },
            12 => {
                // The host gets no report of this limit. The limit must therefore be at least the
                // size of frames that hosts send without a probe.
                let frame_bytes_max = random.pick(&[1_232, 1_300, 1_472]);
                Disaster::FrameLimit { host, link, frame_bytes_max }
            }
            13 => match random.below(3) {
                0 => Disaster::Rate { host, link, rate: random.pick(&RATES) },
                1 => Disaster::Delay { host, link, propagation_ns: random.pick(&DELAYS_NS) },
                _ => Disaster::Pause { host, for_ns: for_ns.min(PAUSE_NS_MAX) },
            },
            14 => {
                let loss_ppm = random.pick(&[10_000, 100_000, 400_000]);
                Disaster::Loss { host, link, loss_ppm, for_ns }
            }
            _ => match random.below(4) {
                0 => Disaster::Restart { host },
                _ => Disaster::Isolate { host, for_ns },
            },
        };
        let mut all = vec![first];
        let is_doubled = random.chance_ppm(300_000);
        let other =
            (host + 1 + random.below(self.plan.hosts as u64 - 1) as usize) % self.plan.hosts;
        // The second disaster affects another host, either on the same segment or on another one.
        // After it, each end can lack a link that the other end has.
        let place = (link + usize::from(random.chance_ppm(500_000))) % links;
        let far = self.plan.link_on(other, self.plan.segment(host, place));
        if is_doubled {
            all.extend(at_other_end(first, other, far));
        }
        all
    }

    /// Ends all disasters and restores all links.
    fn recover(&mut self, world: &mut World<E>) {
        for host in 0..self.plan.hosts {
            for link in 0..self.plan.links.len() {
                self.attach(world, host, link, false);
                let port = self.port(host, link);
                world.network.announce(port);
            }
        }
        world.report_changes();
        for (host, link) in core::mem::take(&mut self.churn.removed) {
            self.add_path(world, host, link);
        }
        for pair in 0..self.pairs.len() {
            self.call(world, pair);
        }
        let healed_at = world.now();
        let deadline = healed_at.after_ns(CONVERGENCE_NS);
        while self.violation.is_none()
            && let Some(what) = self.missing().or_else(|| self.missing_links(world))
        {
            if world.now() >= deadline {
                return self.check(Err(Violation::NoConvergence { what }));
            }
            self.advance(world, world.now().after_ns(LOOK_NS));
        }
        if self.violation.is_none() {
            self.check_idle(world);
        }
        self.churn.touched.fill(false);
        self.reassess(world);
    }

    /// Keeps the applications idle for a time in which no engine may have work.
    fn stay_idle(&mut self, world: &mut World<E>) {
        let idle_ns = self.churn.random.between(IDLE_NS_MIN, IDLE_NS_MAX);
        let end = world.now().after_ns(idle_ns);
        self.advance(world, world.now().after_ns(IDLE_NS_MIN));
        self.expect_idle(world);
        let before = world.trace.events();
        if self.violation.is_none()
            && let Err(stuck) = world.run_until(end, self)
        {
            let (host, time_ns) = (stuck.host, stuck.time.0);
            self.check(Err(Violation::Livelock { host, time_ns }));
        }
        self.expect_idle(world);
        self.check_idle_time(world, world.trace.events() - before);
    }

    /// Checks that few events happened in an idle time, and that all links are still there.
    fn check_idle_time(&mut self, world: &World<E>, events: u64) {
        let links = (self.pairs.len() * self.plan.links.len()) as u64;
        if self.violation.is_none() && events > links * IDLE_EVENTS_MAX {
            let what = format!("{events} events in an idle time, on {links} links");
            return self.check(Err(Violation::NoConvergence { what }));
        }
        if self.violation.is_none()
            && let Some(what) = self.missing_links(world)
        {
            self.check(Err(Violation::NoConvergence { what }));
        }
    }

    /// Checks that the only pending work of every engine is keep-alives. If a keep-alive has
    /// started an exchange of frames, waits for the end of this exchange.
    fn expect_idle(&mut self, world: &mut World<E>) {
        let deadline = world.now().after_ns(EXCHANGE_NS);
        while self.violation.is_none()
            && let Some(host) = (0..self.plan.hosts).find(|&host| !world.engine(host).is_idle())
        {
            if world.now() >= deadline {
                let links: Vec<String> = self
                    .connections_of(host)
                    .into_iter()
                    .map(|(connection, _)| world.engine(host).describe_links(connection))
                    .collect();
                let what = format!("host {host} does not become idle: {}", links.join("; and "));
                return self.check(Err(Violation::NoConvergence { what }));
            }
            self.advance(world, world.now().after_ns(SLICE_NS));
        }
    }

    /// Describes the links that connections have not found again; returns `None` if they have found
    /// all.
    fn missing_links(&self, world: &World<E>) -> Option<String> {
        let all = self.plan.links.len();
        self.pairs.iter().enumerate().find_map(|(number, pair)| {
            pair.ends.iter().flatten().find_map(|end| {
                let (up, known) = world.engine(end.host).links_up(end.connection)?;
                let links = || {
                    let ends = self.describe_ends(world, number);
                    format!("pair {number} has {up} links, not {all}: {ends}")
                };
                (up != all || known != all).then(links)
            })
        })
    }

    /// Applies a disaster of a kind that only soaks have.
    pub(super) fn churn_strike(&mut self, world: &mut World<E>, disaster: Disaster) {
        let now = world.now();
        match disaster {
            Disaster::Detach { host, link, for_ns, is_renumbered } => {
                world.detach_link(host, LinkId(link as u8));
                let wake = Wake::Attach { host, link, is_renumbered };
                self.wake_at(world, now.after_ns(for_ns), wake);
            }
            Disaster::Flap { host, link, times, for_ns } => {
                let steps = 2 * u64::from(times);
                for step in 0..steps {
                    let at = now.after_ns(for_ns * step / steps);
                    let is_up = step % 2 == 1;
                    self.wake_at(world, at, Wake::Carrier { host, link, is_up });
                }
            }
            Disaster::FrameStep { host, link, frame_bytes_max } => {
                let port = self.port(host, link);
                world.network.set_frame_bytes_max(port, frame_bytes_max);
                world.network.announce(port);
                world.report_changes();
            }
            Disaster::Delay { host, link, propagation_ns } => {
                world.network.set_propagation(self.port(host, link), propagation_ns);
            }
            Disaster::Loss { host, link, loss_ppm, for_ns } => {
                let faults = Faults { loss_ppm, ..Faults::default() };
                world.network.set_faults(self.port(host, link), faults);
                self.wake_at(world, now.after_ns(for_ns), Wake::Calm { host, link });
            }
            _ => {}
        }
    }

    /// Records the ports that a disaster has affected.
    pub(super) fn touch(&mut self, disaster: Disaster) {
        let links = self.plan.links.len();
        match disaster {
            Disaster::RemovePath { host, link, .. } => {
                self.churn.removed.push((host, link));
                self.churn.touched[host * links + link] = true;
            }
            Disaster::Cut { host, link, .. }
            | Disaster::LinkDown { host, link, .. }
            | Disaster::Detach { host, link, .. }
            | Disaster::Flap { host, link, .. }
            | Disaster::Loss { host, link, loss_ppm: LOSS_PPM_HARMLESS.., .. } => {
                self.churn.touched[host * links + link] = true;
            }
            Disaster::Isolate { host, .. } | Disaster::Restart { host } => {
                self.churn.touched[host * links..][..links].fill(true);
            }
            _ => {}
        }
    }

    /// Allows a connection to end if disasters in this episode have affected every segment between
    /// its hosts.
    pub(super) fn reassess_churn(&mut self, pair: usize) {
        let [first, second] = self.pairs[pair].hosts;
        let links = self.plan.links.len();
        let is_spared = (0..links).any(|link| {
            let other = self.plan.link_on(second, self.plan.segment(first, link));
            !self.churn.touched[first * links + link] && !self.churn.touched[second * links + other]
        });
        self.pairs[pair].blocked_ns = if is_spared { 0 } else { OUTAGE_EXCUSED_NS };
        if !is_spared {
            for end in self.pairs[pair].ends.iter_mut().flatten() {
                end.excused = true;
            }
        }
    }

    /// Attaches an interface that was detached.
    pub(super) fn attach(
        &mut self,
        world: &mut World<E>,
        host: usize,
        link: usize,
        is_renumbered: bool,
    ) {
        if world.is_attached(host, LinkId(link as u8)) {
            return;
        }
        if let Some(wiring) = self.plan.churn.as_ref().filter(|wiring| wiring.ethernet)
            && is_renumbered
        {
            self.churn.versions += 1;
            let address = address(wiring, host, link, self.churn.versions);
            world.network.set_address(self.port(host, link), address);
        }
        world.attach_link(host, LinkId(link as u8));
    }

    pub(super) fn set_carrier(
        &mut self,
        world: &mut World<E>,
        host: usize,
        link: usize,
        is_up: bool,
    ) {
        if world.is_attached(host, LinkId(link as u8)) {
            world.network.set_up(self.port(host, link), is_up);
        }
    }

    pub(super) fn calm(&mut self, world: &mut World<E>, host: usize, link: usize) {
        let port = self.port(host, link);
        let cut = world.network.faults(port).cut;
        world.network.set_faults(port, Faults { cut, ..Faults::default() });
    }

    /// Lets the applications of a pair post more operations.
    pub(super) fn grant(&mut self, world: &mut World<E>, pair: usize, operations: u32) {
        for remaining in &mut self.pairs[pair].remaining {
            *remaining = (*remaining + operations).min(GRANTED_MAX);
        }
        let now = world.now();
        world.trace.record(now, Kind::Altered, GRANTED, pair as u64);
        self.call(world, pair);
    }

    /// Returns all links and addresses that may reach the peer. A host requests a connection over
    /// them.
    pub(super) fn churn_ways(
        &self,
        world: &World<E>,
        host: usize,
        peer: usize,
    ) -> Vec<(LinkId, PeerAddr)> {
        let address = |host: usize, link: usize| world.network.caps(self.port(host, link)).local;
        let links: Vec<(LinkId, PeerAddr)> = (0..self.plan.links.len())
            .filter(|&link| world.is_attached(host, LinkId(link as u8)))
            .map(|link| (LinkId(link as u8), address(host, link)))
            .collect();
        let peers: Vec<PeerAddr> =
            (0..self.plan.links.len()).map(|link| address(peer, link)).collect();
        engine::rank_pairs(&links, &peers)
    }
}

/// Returns a disaster of the same kind for another host.
fn at_other_end(disaster: Disaster, host: usize, link: usize) -> Option<Disaster> {
    Some(match disaster {
        Disaster::Detach { for_ns, is_renumbered, .. } => {
            Disaster::Detach { host, link, for_ns, is_renumbered }
        }
        Disaster::RemovePath { for_ns, .. } => Disaster::RemovePath { host, link, for_ns },
        Disaster::LinkDown { for_ns, .. } => Disaster::LinkDown { host, link, for_ns },
        Disaster::Flap { times, for_ns, .. } => Disaster::Flap { host, link, times, for_ns },
        Disaster::Cut { for_ns, .. } => Disaster::Cut { host, link, for_ns },
        Disaster::FrameStep { frame_bytes_max, .. } => {
            Disaster::FrameStep { host, link, frame_bytes_max }
        }
        Disaster::Restart { .. } => Disaster::Restart { host },
        _ => return None,
    })
}

fn draw_frame_bytes(random: &mut Random) -> u16 {
    random.pick(&[576, 1_232, 1_472, 4_000, 8_972])
}

const HOUR_NS: f64 = 3_600e9;

const EPISODE_STREAM: u64 = 0x6570_6973;

/// Possible rates, in bits per second.
const RATES: [u64; 3] = [10_000_000, 100_000_000, 10_000_000_000];
const DELAYS_NS: [u64; 4] = [1_000, 100_000, 2_000_000, 20_000_000];

/// Maximum pause, in nanoseconds. It is far below the time after which a silent peer is regarded as
/// dead.
const PAUSE_NS_MAX: u64 = 300_000_000;

/// Maximum loss of a path that counts as usable, in parts per million. With this loss, at least one
/// of the probes that a host sends within five seconds arrives.
const LOSS_PPM_HARMLESS: u32 = 100_001;

/// Maximum time until only keep-alives are pending, in nanoseconds. It is the sum of these times:
///
/// * An engine remembers a lost packet for a smoothed round-trip time and two probe timeouts. If a
///   queue of 1 MiB at 10 Mb/s was full, the round-trip time is 0.9 s, and each probe timeout is
///   2.8 s.
/// * A keep-alive starts an exchange with its Links message. If a frame of this exchange is lost,
///   the exchange takes another probe timeout, which is 1 s.
const EXCHANGE_NS: u64 = 7_500_000_000;

/// Maximum number of events in an idle time, for each link of a pair: 3 × 2 × 6.
///
/// * In a minute, there are three exchanges: two keep-alives and one comparison of links.
/// * Both ends can start each exchange at the same time.
/// * Each exchange has at most six events: a timer, a frame that is sent and arrives, another
///   timer, and an acknowledgement that is sent and arrives.
const IDLE_EVENTS_MAX: u64 = 36;

/// Minimum and maximum idle time between two episodes, in nanoseconds.
const IDLE_NS_MIN: u64 = 3_000_000_000;
const IDLE_NS_MAX: u64 = 60_000_000_000;

/// Maximum time until convergence, in nanoseconds. An end notices a dead peer after 5 s. If a pair
/// of links did not answer, the ends test this pair again within a minute, in rounds of some
/// seconds.
const CONVERGENCE_NS: u64 = 150_000_000_000;

/// Time between two checks for convergence in the main loop, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;

/// Maximum number of operations that an application may still post.
const GRANTED_MAX: u32 = 200;

/// Value of `TraceEntry::place` in the trace events for granted operations.
const GRANTED: u32 = 101;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_connection_churn_loses_nothing() {
        for seed in 0..3 {
            let options = Options { twice: false, ..Options::default() };
            let found = soak(seed, 1.0, &options, &mut |_| true);
            assert!(found.report.failure.is_none(), "{}", found.report);
            assert!(found.episodes > 10);
        }
    }
}
