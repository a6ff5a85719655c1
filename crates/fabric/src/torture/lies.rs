//! A peer that violates every rule in its own connections. Only these connections may end.

use wire_edge::{Control, LinkIndex, Prefix};

use super::forging;
use super::run::Run;
use crate::host::HostEngine;
use crate::world::World;

impl<E: HostEngine> Run<'_, E> {
    /// Makes a host send a false statement to one of its peers.
    pub(super) fn lie(&mut self, world: &mut World<E>, host: usize) {
        let ports = world.ports(host).to_vec();
        let heard = world.network.watch().overheard();
        let of_host = |frame: &&crate::watch::Overheard| ports.contains(&frame.from);
        let newest = heard.iter().rev().filter(of_host);
        let found = newest.filter_map(|frame| Some((frame, forging::prefix_of(&frame.bytes)?)));
        let count = self.strangers.random.below(8) as usize;
        let Some((frame, prefix)) = found.take(count + 1).last() else { return };
        let (to, own) = (frame.to, frame.from);
        let heard_here = heard.iter().rev().find(|other| (other.from, other.to) == (to, own));
        let heard_here = heard_here.and_then(|other| forging::prefix_of(&other.bytes));
        let links = self.plan.links.len() as u8;
        let link = (usize::from(to.0) % self.plan.links.len()) as u8;
        let random = &mut self.strangers.random;
        let named = crate::network::port_address(NAMED_FIRST + random.below(4) as u8, link);
        let from = match random.below(8) {
            0 => named,
            _ => world.network.caps(own).local,
        };
        let index = match random.below(3) {
            0 => LinkIndex(random.below(16) as u8),
            1 => LinkIndex(random.below(u64::from(links)) as u8),
            _ => prefix.link,
        };
        // The frame has a packet number that the host has not used yet. Otherwise the receiver
        // would drop the frame as a duplicate.
        self.strangers.lies += 1;
        let packet = prefix.packet.wrapping_add(self.strangers.lies);
        let flags = wire_edge::Flags::ACK_NOW;
        let prefix = Prefix { link: index, packet, flags, ..prefix };
        let bytes = match random.below(5) {
            3 => forging::control(prefix, &[Control::Links(random.next_u64() as u16)]),
            0 => forging::control(prefix, &[Control::PathChallenge(random.next_u64())]),
            1 => forging::control(prefix, &[forging::harmful(random, named)]),
            2 => {
                let challenge = Control::PathChallenge(random.next_u64());
                let harmful = forging::harmful(random, named);
                forging::control(prefix, &[challenge, harmful, forging::harmful(random, named)])
            }
            _ => forging::content(random, prefix, heard_here),
        };
        world.inject(from, to, bytes, 1_000);
    }
}

/// Host number in the first address that the lying peer claims as its own.
const NAMED_FIRST: u8 = 240;
