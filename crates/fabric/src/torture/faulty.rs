//! An additional host that violates the protocol or stays silent. The faults must not affect pairs
//! of other hosts.

use delivery::Instant;
use wire_edge::{Flags, Header};

use super::classes::{CALM_NS, calm};
use super::full::fill_for;
use super::plan::{Disaster, Plan};
use super::run::{Run, Wake};
use crate::channel::Faults;
use crate::host::HostEngine;
use crate::network::Mute;
use crate::network::PortId;
use crate::random::Random;
use crate::world::World;

/// A faulty host, and how it misbehaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultyPeer {
    /// Index of the host.
    pub(crate) host: usize,
    pub(crate) kind: FaultyKind,
    /// Time when the host starts to misbehave, in nanoseconds.
    pub(crate) from_ns: u64,
}

/// How a host misbehaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FaultyKind {
    /// The host stops running.
    Stopped,
    /// The host stops running, and its peers' drivers cannot send to it.
    ReadsNothing,
    /// The host sends every frame many times.
    Floods,
    /// The host receives all frames but acknowledges none.
    NeverAcknowledges,
    /// If `at_peer` is false, the application of the faulty host never posts a receive for
    /// messages. If `at_peer` is true, the applications of its peers never do.
    NeverReceives { at_peer: bool },
    /// Some operations never arrive, so that all later operations wait at the peer.
    Withholds,
    /// The host requests connections but never confirms them.
    NeverConfirms,
    /// The host makes false statements in frames of its connections, and acknowledges no frames.
    Lies,
}

impl FaultyKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stopped => "a peer that stops",
            Self::ReadsNothing => "a peer for which drivers are full",
            Self::Floods => "a peer that floods",
            Self::NeverAcknowledges => "a peer that never acknowledges",
            Self::NeverReceives { .. } => "receives that are never posted",
            Self::Withholds => "a peer that withholds operations",
            Self::NeverConfirms => "a peer that never confirms",
            Self::Lies => "a peer that lies",
        }
    }
}

impl FaultyPeer {
    /// Adds a faulty host to the plan. The faulty host has connections to all other hosts, or to
    /// one other host.
    pub(super) fn draw(random: &mut Random, plan: &mut Plan) {
        if plan.classes.faulty.is_some() {
            return;
        }
        calm(random, plan);
        let host = plan.hosts;
        let kind = match random.below(8) {
            0 => FaultyKind::Stopped,
            1 => FaultyKind::Floods,
            2 => FaultyKind::NeverAcknowledges,
            3 => FaultyKind::NeverReceives { at_peer: random.chance_ppm(500_000) },
            4 => FaultyKind::Withholds,
            5 => FaultyKind::NeverConfirms,
            6 => FaultyKind::ReadsNothing,
            _ => FaultyKind::Lies,
        };
        if kind == FaultyKind::ReadsNothing && plan.classes.strangers.is_none() {
            share_memory(plan);
        }
        let leaves_open = match kind {
            FaultyKind::NeverReceives { .. } => {
                plan.traffic.weights[4] += 2;
                true
            }
            FaultyKind::Withholds => {
                // If operations had fences, the operations after a withheld one would also wait for
                // other operations. The test wants them to wait for the withheld operation alone.
                plan.traffic.weights = [1, 0, 0, 0, 0, 0, 0];
                plan.traffic.strict_ppm = 0;
                plan.traffic.fence_before_ppm = 0;
                plan.traffic.fence_after_ppm = 0;
                true
            }
            FaultyKind::NeverAcknowledges => {
                plan.traffic.weights[1] += 2;
                plan.engine.read_depth = 16;
                true
            }
            _ => false,
        };
        if leaves_open && random.chance_ppm(700_000) {
            // With these settings, a single peer can have more outstanding operations than there
            // are records.
            plan.engine.pool_divisor = 16;
            plan.engine.operation_window = 256;
            plan.traffic.depth = 64;
        }
        let from_ns = random.below(CALM_NS / 10);
        let spared = random.chance_ppm(300_000).then(|| random.below(host as u64) as usize);
        let others: Vec<usize> =
            (0..host).filter(|&other| plan.hosts < 3 || Some(other) != spared).collect();
        for &other in &others {
            let asks = kind == FaultyKind::NeverConfirms || random.chance_ppm(500_000);
            plan.pairs.push(if asks { (host, other) } else { (other, host) });
        }
        if random.chance_ppm(300_000) {
            // Several connections together reach limits that a single connection does not reach.
            let more = others.iter().flat_map(|&other| [(other, host); CONNECTIONS_MORE]);
            plan.pairs.extend(more);
        }
        plan.hosts += 1;
        plan.classes.faulty = Some(Self { host, kind, from_ns });
    }
}

/// Turns all links into shared memory. Such links lose no frames. If a ring is full, the sender
/// waits.
fn share_memory(plan: &mut Plan) {
    plan.classes.shares_memory = true;
    plan.faults = Faults::default();
    for link in &mut plan.links {
        link.switched = false;
        link.model.queue_bytes = 1 << 20;
        link.model.mark_bytes = None;
        link.model.driver_bytes = Some(64 << 10);
    }
}

impl<E: HostEngine> Run<'_, E> {
    /// Marks the pairs of the faulty host, and schedules the start of its faults.
    pub(super) fn schedule_faulty(&mut self, world: &mut World<E>) {
        let Some(FaultyPeer { host, kind, from_ns }) = self.plan.classes.faulty else { return };
        for pair in &mut self.pairs {
            pair.is_faulty = pair.hosts.contains(&host);
            pair.may_end |= pair.is_faulty;
            pair.is_distrusted |= pair.is_faulty && kind == FaultyKind::Lies;
        }
        if matches!(kind, FaultyKind::Floods | FaultyKind::Lies) {
            world.network.watch();
        }
        self.wake_at(world, Instant(from_ns), Wake::Fail);
    }

    /// Makes the faulty host misbehave, for the first time or again.
    pub(super) fn fail(&mut self, world: &mut World<E>) {
        let Some(FaultyPeer { host, kind, .. }) = self.plan.classes.faulty else { return };
        if self.healed {
            return;
        }
        match kind {
            FaultyKind::Stopped | FaultyKind::ReadsNothing => {
                if kind == FaultyKind::ReadsNothing {
                    fill_for(self, world, host);
                }
                let left_ns = self.plan.safety_ns.saturating_sub(world.now().0);
                self.strike(world, Disaster::Pause { host, for_ns: left_ns + 1 });
            }
            FaultyKind::NeverAcknowledges => self.mute(world, host, Some(has_acknowledgements)),
            FaultyKind::Withholds => self.mute(world, host, Some(is_withheld)),
            FaultyKind::Floods => {
                self.flood(world, host);
                self.fail_again(world, 200_000);
            }
            FaultyKind::Lies => {
                self.mute(world, host, Some(has_acknowledgements));
                for _ in 0..LIES {
                    self.lie(world, host);
                }
                self.fail_again(world, 4_000_000);
            }
            FaultyKind::NeverReceives { .. } | FaultyKind::NeverConfirms => {}
        }
    }

    fn fail_again(&mut self, world: &mut World<E>, most_ns: u64) {
        let at = world.now().after_ns(self.strangers.random.between(most_ns / 10, most_ns));
        self.wake_at(world, at, Wake::Fail);
    }

    /// Returns whether the application of this side currently posts no receives.
    pub(super) fn withholds_receives(&self, pair: usize, side: usize) -> bool {
        let Some(FaultyPeer { host, kind, .. }) = self.plan.classes.faulty else {
            return false;
        };
        let FaultyKind::NeverReceives { at_peer } = kind else { return false };
        let state = &self.pairs[pair];
        state.is_faulty && !self.healed && (state.hosts[side] == host) != at_peer
    }

    /// Mutes or unmutes a host that never confirms. The host is muted as long as it has a
    /// connection. It is unmuted before it requests one.
    pub(super) fn hush(&mut self, world: &mut World<E>, host: usize, is_hushed: bool) {
        let never =
            self.plan.classes.faulty.is_some_and(|faulty| {
                faulty.kind == FaultyKind::NeverConfirms && faulty.host == host
            });
        if never && !self.healed {
            self.mute(world, host, is_hushed.then_some(|_| true));
        }
    }

    pub(super) fn mute(&self, world: &mut World<E>, host: usize, mute: Option<Mute>) {
        for link in 0..self.plan.links.len() {
            world.network.set_mute(self.port(host, link), mute);
        }
    }

    /// Ends the faults of the faulty host. If the host lied, it restarts with new state.
    pub(super) fn mend_faulty(&mut self, world: &mut World<E>) {
        let Some(FaultyPeer { host, kind, .. }) = self.plan.classes.faulty else { return };
        self.mute(world, host, None);
        if kind == FaultyKind::Lies {
            self.strike(world, Disaster::Restart { host });
        }
    }

    /// Replays each of the host's most recent frames several times.
    fn flood(&mut self, world: &mut World<E>, host: usize) {
        let ports: Vec<PortId> = world.ports(host).to_vec();
        let heard: Vec<_> = world.network.watch().overheard().iter().cloned().collect();
        let mut left = FLOOD_FRAMES;
        for frame in heard.into_iter().filter(|frame| ports.contains(&frame.from)) {
            for _ in 0..self.strangers.random.between(1, 8) {
                let from = world.network.caps(frame.from).local;
                let delay_ns = self.strangers.random.below(200_000);
                world.inject(from, frame.to, frame.bytes.clone(), delay_ns);
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }
}

/// Returns whether a frame carries acknowledgements.
fn has_acknowledgements(frame: &[u8]) -> bool {
    wire_edge::decode(frame).is_ok_and(|frame| frame.acks.is_some())
}

/// Returns whether a frame belongs to an operation that must never arrive completely.
fn is_withheld(frame: &[u8]) -> bool {
    let Ok(frame) = wire_edge::decode(frame) else { return false };
    let (Header::Write { operation, .. }
    | Header::ReadRequest { operation, .. }
    | Header::Send { operation, .. }
    | Header::SendInvalidate { operation, .. }
    | Header::Patch { operation, .. }
    | Header::Atomic { operation, .. }) = frame.header
    else {
        return false;
    };
    operation.0 % WITHHELD_ONE_IN == 1 && frame.prefix.flags.contains(Flags::LAST)
}

const FLOOD_FRAMES: u32 = 32;

/// Number of additional connections from each host to the faulty host.
const CONNECTIONS_MORE: usize = 3;

/// Number of false statements that the host sends together.
const LIES: u32 = 4;

/// One out of 64 operations never arrives completely. The first withheld operation is the second
/// one of the connection.
const WITHHELD_ONE_IN: u32 = 64;
