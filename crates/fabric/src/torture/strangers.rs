//! Strangers: an attacker without a host sends frames. It uses addresses that no host has, and also
//! forges the addresses of hosts. The attacker does not know the epochs and packet numbers, which
//! only the hosts know. Its frames must not harm any connection.
//!
//! In some runs, the attacker also uses frames that it overhears. The protocol does not protect
//! connections against such an attacker (protocol.md §8), but all other guarantees must hold.
//!
//! If an address has not returned a cookie, hosts must send at most three times as many bytes to
//! the address as came from it.

use std::collections::BTreeSet;

use delivery::{Evidence, Instant, LinkEvent, LinkId};
use wire_edge::{Control, Epoch, Handshake, LinkIndex, PeerAddr, Prefix};

use super::classes::calm;
use super::end::Stage;
use super::faulty::FaultyKind;
use super::forging;
use super::plan::{Disaster, Plan};
use super::run::{Run, Wake};
use crate::host::{ConnectionHandle, HostEngine, RequestHandle};
use crate::network::FRAME_BYTES_SAFE;
use crate::network::{PortId, port_address};
use crate::oracle::Violation;
use crate::random::Random;
use crate::watch::Overheard;
use crate::world::World;

/// The attacks of a run.
#[derive(Clone, Debug)]
pub(crate) struct StrangersPlan {
    /// Kinds of attacks that are used, as a bit set.
    pub(crate) attacks: u32,
    /// Whether attacks use overheard frames. If so, connections may end.
    pub(crate) uses_overheard: bool,
    /// Maximum time between two attacks, in nanoseconds.
    pub(crate) pause_ns_max: u64,
    /// Number of addresses without hosts.
    pub(crate) addresses: u8,
}

impl StrangersPlan {
    pub(super) fn draw(random: &mut Random, plan: &mut Plan) -> Self {
        if random.chance_ppm(500_000) {
            calm(random, plan);
        }
        let uses_overheard = random.chance_ppm(300_000);
        let some = random.next_u64() & random.next_u64();
        let attacks = if uses_overheard {
            some | 1 << random.below(OVERHEARING)
        } else {
            some >> OVERHEARING << OVERHEARING | 1 << random.between(OVERHEARING, ATTACKS - 1)
        };
        Self {
            attacks: attacks as u32,
            uses_overheard,
            pause_ns_max: random.pick(&[20_000, 200_000, 2_000_000]),
            addresses: random.pick(&[1, 3, 12]),
        }
    }
}

/// The state of the attackers (strangers) in a run.
#[derive(Debug)]
pub(super) struct Strangers {
    pub(super) random: Random,
    /// Number of frames that were forged in the name of a lying host.
    pub(super) lies: u32,
    /// Addresses that have returned a cookie to the host of a port.
    proved: BTreeSet<(PortId, PeerAddr)>,
    /// `accepted` has the attackers' connections that hosts have accepted, `waiting` has the
    /// attackers' requests that wait for a decision. Each entry also has the number of the host,
    /// and how often the host had been restarted.
    accepted: Vec<(usize, u32, ConnectionHandle)>,
    waiting: Vec<(usize, u32, RequestHandle)>,
}

impl Strangers {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::stream(seed, STRANGERS_STREAM),
            lies: 0,
            proved: BTreeSet::new(),
            accepted: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl<E: HostEngine> Run<'_, E> {
    pub(super) fn schedule_strangers(&mut self, world: &mut World<E>) {
        if let Some(plan) = &self.plan.classes.strangers {
            for pair in &mut self.pairs {
                pair.is_distrusted |= plan.uses_overheard;
                pair.may_end |= plan.uses_overheard;
            }
            world.network.watch();
            self.wake_at(world, Instant(1_000), Wake::Attack);
        }
    }

    /// Performs one attack, and schedules the next.
    pub(super) fn attack(&mut self, world: &mut World<E>) {
        let Some(StrangersPlan { attacks, pause_ns_max, .. }) = self.plan.classes.strangers else {
            return;
        };
        if self.healed {
            return;
        }
        self.answer_strays(world);
        let chosen: Vec<u64> = (0..ATTACKS).filter(|kind| attacks >> kind & 1 != 0).collect();
        let kind = self.strangers.random.pick(&chosen);
        match kind {
            0 => self.repeat_from_elsewhere(world),
            1..=3 => self.open_link(world, kind),
            4 => self.forge_reset(world),
            5 => self.guess_epoch(world),
            6 => self.ask(world),
            7 => self.answer_for_others(world),
            8 => self.spread_news(world),
            _ => self.send_junk(world),
        }
        let at = world.now().after_ns(self.strangers.random.between(1_000, pause_ns_max));
        self.wake_at(world, at, Wake::Attack);
    }

    /// Returns a random link, and a random address on the link's segment that no host has.
    fn stranger(&mut self) -> (usize, PeerAddr) {
        let count = self.plan.classes.strangers.as_ref().map_or(1, |plan| plan.addresses);
        let random = &mut self.strangers.random;
        let link = random.below(self.plan.links.len() as u64) as usize;
        let number = FIRST_STRANGER + random.below(u64::from(count)) as u8;
        (link, port_address(number, link as u8))
    }

    /// Returns a random frame of those that were sent recently.
    fn overheard(&mut self, world: &mut World<E>) -> Option<Overheard> {
        let heard = world.network.watch().overheard();
        let index = self.strangers.random.below(heard.len() as u64) as usize;
        heard.get(index).cloned()
    }

    /// Returns a random address of an attacker on the segment of a port.
    fn stranger_beside(&mut self, port: PortId) -> PeerAddr {
        let link = (usize::from(port.0) % self.plan.links.len()) as u8;
        let (_, address) = self.stranger();
        let host = address.0[6];
        port_address(host, link)
    }

    /// Replays a frame of a host from another address.
    fn repeat_from_elsewhere(&mut self, world: &mut World<E>) {
        let Some(heard) = self.overheard(world) else { return };
        let from = self.stranger_beside(heard.to);
        world.inject(from, heard.to, heard.bytes, 1_000);
    }

    /// Sends a challenge on a link, which the connection may or may not have. If the connection has
    /// the link, adds control messages that only the peer may send, or sends a frame of another
    /// kind.
    fn open_link(&mut self, world: &mut World<E>, kind: u64) {
        let Some(heard) = self.overheard(world) else { return };
        let Some(prefix) = forging::prefix_of(&heard.bytes) else { return };
        let from = self.stranger_beside(heard.to);
        let elsewhere = self.stranger_beside(heard.to);
        let back = world.network.watch().overheard().iter().rev();
        let mut back = back.filter(|other| (other.from, other.to) == (heard.to, heard.from));
        let back = back.find_map(|other| forging::prefix_of(&other.bytes));
        let random = &mut self.strangers.random;
        let link = LinkIndex(random.below(16) as u8);
        let packet = prefix.packet.wrapping_add(random.below(64) as u32);
        let prefix = Prefix { link, packet, flags: wire_edge::Flags::NONE, ..prefix };
        let nonce = Control::PathChallenge(random.next_u64());
        let bytes = match kind {
            1 => forging::control(prefix, &[nonce]),
            2 => forging::control(prefix, &[nonce, forging::harmful(random, elsewhere)]),
            _ => {
                world.inject(from, heard.to, forging::control(prefix, &[nonce]), 1_000);
                let packet = packet.wrapping_add(1);
                forging::content(random, Prefix { packet, ..prefix }, back)
            }
        };
        world.inject(from, heard.to, bytes, 2_000);
    }

    /// Forges a Reset of a connection. The forged Reset has a wrong epoch, packet number or
    /// connection id, or comes from another address.
    fn forge_reset(&mut self, world: &mut World<E>) {
        let Some(heard) = self.overheard(world) else { return };
        let Some(prefix) = forging::prefix_of(&heard.bytes) else { return };
        let peer = world.network.caps(heard.to).local;
        let from = self.stranger_beside(heard.from);
        let random = &mut self.strangers.random;
        let wrong_epoch = Epoch(prefix.epoch.0 ^ random.between(1, 0xffff) as u16);
        let (source, right, packet) = (prefix.connection.0, prefix.epoch, prefix.packet);
        let (from, source, epoch, packet) = match random.below(4) {
            0 => (peer, source, wrong_epoch, packet),
            1 => (peer, source, right, packet.wrapping_add(random.pick(&[100_000, 1 << 31]))),
            2 => (peer, source ^ random.between(1, 0xffff_ffff) as u32, right, packet),
            _ => (from, source, right, packet),
        };
        let bytes = forging::handshake(0, source, Handshake::Reset { epoch, packet });
        world.inject(from, heard.from, bytes, 1_000);
    }

    /// Sends a frame in the name of the peer, with a wrong epoch or connection id.
    fn guess_epoch(&mut self, world: &mut World<E>) {
        let Some(mut heard) = self.overheard(world) else { return };
        if forging::prefix_of(&heard.bytes).is_none() {
            return;
        }
        let random = &mut self.strangers.random;
        let at = random.pick(&[2, 3, 4, 5, 6, 7]);
        heard.bytes[at] ^= random.between(1, 255) as u8;
        let from = world.network.caps(heard.from).local;
        world.inject(from, heard.to, heard.bytes, 1_000);
    }

    /// Makes an attacker request a connection from a host.
    fn ask(&mut self, world: &mut World<E>) {
        let (link, from) = self.stranger();
        let host = self.strangers.random.below(self.plan.hosts as u64) as usize;
        let source = self.strangers.random.below(40) as u32 + 1;
        let mut cookie = [0; 24];
        if self.strangers.random.chance_ppm(200_000) {
            self.strangers.random.fill(&mut cookie);
        }
        world.inject(from, self.port(host, link), forging::hello(source, cookie), 1_000);
    }

    /// Makes attackers return the cookies that they have received.
    fn answer_strays(&mut self, world: &mut World<E>) {
        while let Some(stray) = world.network.watch().take_stray() {
            let Ok(frame) = wire_edge::decode_handshake(&stray.bytes) else { continue };
            if let Handshake::Retry { cookie } = frame.body {
                self.strangers.proved.insert((stray.from, stray.to));
                let bytes = forging::hello(frame.destination.0, cookie);
                world.inject(stray.to, stray.from, bytes, 5_000);
            }
        }
    }

    /// Makes an attacker answer a request that was sent to a host.
    fn answer_for_others(&mut self, world: &mut World<E>) {
        let Some(heard) = self.overheard(world) else { return };
        let random = &mut self.strangers.random;
        let asked = wire_edge::decode_handshake(&heard.bytes).map(|frame| frame.source.0);
        let destination = asked.unwrap_or(random.next_u64() as u32);
        let bytes = forging::answer(random, destination);
        let from = self.stranger_beside(heard.from);
        world.inject(from, heard.from, bytes, 500);
    }

    /// Reports falsely that the network does not carry some frames.
    fn spread_news(&mut self, world: &mut World<E>) {
        let Some(heard) = self.overheard(world) else { return };
        let links = self.plan.links.len();
        let (host, link) = (usize::from(heard.from.0) / links, usize::from(heard.from.0) % links);
        let peer = world.network.caps(heard.to).local;
        let random = &mut self.strangers.random;
        let event = match random.below(3) {
            0 => LinkEvent::Refused(peer, Evidence::Hearsay),
            _ => LinkEvent::TooBig(
                peer,
                random.pick(&[0, 68, 255, 256, 300, 576, 1_231]),
                Evidence::Hearsay,
            ),
        };
        if !world.is_paused(host) {
            world.notify(host, LinkId(link as u8), event);
        }
    }

    /// Sends random bytes, or a frame of a version that no engine supports.
    fn send_junk(&mut self, world: &mut World<E>) {
        let (link, from) = self.stranger();
        let random = &mut self.strangers.random;
        let host = random.below(self.plan.hosts as u64) as usize;
        let bytes = if random.chance_ppm(500_000) {
            forging::other_version(random)
        } else {
            let mut bytes = vec![0; random.between(0, 200) as usize];
            random.fill(&mut bytes);
            bytes
        };
        world.inject(from, self.port(host, link), bytes, 1_000);
    }

    /// Handles a request that an application received. Returns false if the request is from a host,
    /// and not from an attacker.
    pub(super) fn take_strange_request(
        &mut self,
        world: &mut World<E>,
        host: usize,
        request: RequestHandle,
        private_data: &[u8],
    ) -> bool {
        if self.plan.classes.strangers.is_none() || private_data.len() == INVITATION_BYTES {
            return false;
        }
        let (now, life) = (world.now(), self.hosts[host].life);
        world.engine_mut(host).turn_to(0);
        if self.healed {
            // The attacks have ended. If an application accepted a late request, nothing would
            // close the connection.
            world.engine_mut(host).reject(now, request);
            return true;
        }
        match self.strangers.random.below(3) {
            0 if self.strangers.waiting.len() < WAITING_MAX => {
                self.strangers.waiting.push((host, life, request));
            }
            1 => {
                if let Ok(connection) = world.engine_mut(host).accept(now, request) {
                    self.strangers.accepted.push((host, life, connection));
                }
            }
            _ => world.engine_mut(host).reject(now, request),
        }
        true
    }

    /// Ends the attacks, and closes the connections and requests of attackers. If they used
    /// overheard frames, also restarts all hosts, because the attackers know everything about the
    /// connections.
    pub(super) fn send_strangers_away(&mut self, world: &mut World<E>) {
        if self.plan.classes.strangers.as_ref().is_some_and(|plan| plan.uses_overheard) {
            for host in 0..self.plan.hosts {
                self.strike(world, Disaster::Restart { host });
            }
        }
        let now = world.now();
        for (host, life, request) in core::mem::take(&mut self.strangers.waiting) {
            if self.hosts[host].life == life {
                world.engine_mut(host).reject(now, request);
            }
        }
        for (host, life, connection) in core::mem::take(&mut self.strangers.accepted) {
            if self.hosts[host].life == life {
                world.engine_mut(host).close(now, connection);
            }
        }
    }

    /// Checks the byte counts. If an address has not returned a cookie, hosts may have sent at most
    /// three times as many bytes to the address as came from it.
    pub(super) fn check_accounts(&mut self, world: &mut World<E>) {
        let Some(plan) = &self.plan.classes.strangers else { return };
        let lies = self.plan.classes.faulty.is_some_and(|faulty| faulty.kind == FaultyKind::Lies);
        // A lying peer, and an attacker that overhears frames, can claim an address as its own.
        // Hosts may send some more bytes to such an address.
        let named_bytes = if plan.uses_overheard || lies { NAMED_BYTES } else { 0 };
        let mut excess = None;
        for (port, address, account) in world.network.watch().accounts() {
            let is_stranger = address.0[6] >= FIRST_STRANGER;
            if is_stranger
                && !self.strangers.proved.contains(&(port, address))
                && account.sent_bytes > 3 * account.received_bytes + named_bytes
            {
                let host = usize::from(port.0) / self.plan.links.len();
                let (sent, received) = (account.sent_bytes, account.received_bytes);
                excess = Some(Violation::Amplified { host, address, sent, received });
            }
        }
        self.check(excess.map_or(Ok(()), Err));
    }

    /// Checks that false reports have no lasting effect: every link carries frames of full size
    /// again.
    pub(super) fn check_frame_bytes(&mut self, world: &World<E>) {
        if self.plan.churn.is_some() {
            return;
        }
        for (number, pair) in self.pairs.iter().enumerate() {
            for end in pair.ends.iter().flatten().filter(|end| end.stage == Stage::Open) {
                let least = world.engine(end.host).frame_bytes(end.connection);
                if let Some(bytes) = least.filter(|&bytes| bytes < FRAME_BYTES_SAFE) {
                    let violation = Violation::FrameBytes { pair: number, bytes };
                    return self.check(Err(violation));
                }
            }
        }
    }
}

/// Usually, hosts may send to an unproven address at most three times the bytes that came from it.
/// If a peer may have claimed the address as its own, hosts may send this many bytes more. The
/// reason is that each connection repeatedly tests a claimed address, with four to eight challenges
/// of 26 bytes each time.
const NAMED_BYTES: u64 = 2_000;

/// Number of kinds of attacks. The first [`OVERHEARING`] kinds use overheard frames.
const ATTACKS: u64 = 10;
const OVERHEARING: u64 = 4;

/// Host number in the first attacker's address. Hosts have lower numbers.
const FIRST_STRANGER: u8 = 200;

/// Size of the private data of hosts' requests, in bytes.
const INVITATION_BYTES: usize = 8;

/// Maximum number of attackers' requests that wait for a decision.
const WAITING_MAX: usize = 8;

const STRANGERS_STREAM: u64 = 0x7374_7261;
