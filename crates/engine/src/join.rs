//! Which links of both ends belong together: pairs are tried until those that answer are found
//! (protocol.md §7.4).
//!
//! Addresses say little about what reaches what: prefixes of IP addresses are a good guess, those of
//! Ethernet none at all. So the initiator of a connection tries pairs of its links and the peer's
//! addresses, likely ones first, each link and each address in one pair at a time. A pair that does
//! not answer gives its index back and the next is tried; when none is left, all are tried again
//! after a pause that grows. The responder only tells its addresses, so that the two ends never open
//! one pair under two indices; but an end whose last link is gone tries the links it has left,
//! whichever it is.

use core::cmp::Reverse;
use core::net::IpAddr;

use delivery::{Instant, LinkId, PathState};
use wire_edge::{ADDRESSES_MAX, LinkIndex, PeerAddr};

use crate::connection::Connection;
use crate::engine::{Engine, EngineLink};
use crate::life::Life;
use crate::path::Path;

/// What the end that looks for pairs remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joining {
    /// Where the peer can be reached, as far as known.
    addresses: Vec<PeerAddr>,
    /// Pairs the application named, in its order: they are tried before all others.
    asked: Vec<(LinkId, PeerAddr)>,
    /// Pairs that did not answer in this round.
    failed: Vec<(LinkId, PeerAddr)>,
    /// Links (by bit) that the application does not want in this connection.
    unwanted: u16,
    /// Rounds that found nothing, one after the other.
    rounds: u8,
    /// When the next round begins; `None` while this one lasts.
    again_at: Option<Instant>,
    /// When a link index is free for the next trial, if that is what is missing.
    index_at: Option<Instant>,
}

delivery::pack_fields!(Joining { addresses, asked, failed, unwanted, rounds, again_at, index_at });

impl Joining {
    /// For a connection over `first`, whose initiator named `asked` and whose peer told `told`.
    /// Nothing if no other pair is possible.
    pub(crate) fn new(
        first: (LinkId, PeerAddr),
        asked: Vec<(LinkId, PeerAddr)>,
        told: impl Iterator<Item = PeerAddr>,
    ) -> Option<Box<Self>> {
        let mut joining = Self::default();
        for address in asked.iter().map(|&(_, address)| address).chain(told) {
            joining.learn(address, |_| true);
        }
        let has_other = joining.addresses.iter().any(|&address| address != first.1);
        joining.asked = asked;
        has_other.then(|| Box::new(joining))
    }

    /// The peer can be reached at this address, too.
    fn learn(&mut self, address: PeerAddr, is_used: impl Fn(PeerAddr) -> bool) {
        if !self.addresses.contains(&address) {
            let full = self.addresses.len() >= ADDRESSES_MAX;
            // What was told long ago may hold no longer.
            if let Some(old) = self.addresses.iter().position(|&old| full && !is_used(old)) {
                let old = self.addresses.remove(old);
                self.asked.retain(|&(_, asked)| asked != old);
                self.failed.retain(|&(_, failed)| failed != old);
            }
            if self.addresses.len() < ADDRESSES_MAX {
                self.addresses.push(address);
            }
        }
        self.failed.retain(|&(_, failed)| failed != address);
    }

    /// What was learnt of a link or an address is out of date: a new round begins at once.
    fn refresh(&mut self) {
        self.rounds = 0;
        self.again_at = None;
    }

    /// Challenges after which a pair counts as dead: more with each round, for long ways.
    fn challenges_max(&self) -> u64 {
        (TRIAL_CHALLENGES + u64::from(self.rounds)).min(TRIAL_CHALLENGES_MAX)
    }
}

impl Connection {
    /// Whether this end asked for the connection.
    pub(crate) const fn is_initiator(&self) -> bool {
        self.hello_key.is_none()
    }

    /// When [`Engine::join_links`] has something to do.
    pub(crate) fn join_deadline(&self) -> Instant {
        if self.join_due {
            return Instant::default();
        }
        let (mut most, mut again_at) = (TRIAL_CHALLENGES, Instant::NEVER);
        if let Some(joining) = &self.joining {
            most = joining.challenges_max();
            again_at = joining.again_at.unwrap_or(Instant::NEVER);
            again_at = again_at.min(joining.index_at.unwrap_or(Instant::NEVER));
        }
        let given_up_at = |path: &Path| path.trial_ends_at(most);
        self.paths.iter().map(given_up_at).fold(again_at, Instant::min)
    }

    //= protocol.md: remove.2
    /// The peer, or the application of this end, does not want this pair any more.
    pub(crate) fn forget_pair(&mut self, peer: PeerAddr, unwanted: Option<LinkId>) {
        if let Some(joining) = &mut self.joining {
            joining.addresses.retain(|&address| address != peer);
            joining.asked.retain(|&(_, address)| address != peer);
        }
        if let Some(link) = unwanted {
            let joining = self.joining.get_or_insert_default();
            joining.unwanted |= 1 << link.0;
        }
        self.join_due = true;
    }

    /// The application, or a new attachment, wants this link in the connection.
    pub(crate) fn welcome_link(&mut self, link: LinkId) {
        if let Some(joining) = &mut self.joining {
            joining.unwanted &= !(1 << link.0);
            joining.failed.retain(|&(failed, _)| failed != link);
            joining.refresh();
        }
        self.join_due = true;
    }

    /// A link without a part in the connection can carry frames again, unless it is not wanted here.
    pub(crate) fn welcome_back(&mut self, link: LinkId) {
        if self.joining.as_ref().is_none_or(|joining| joining.unwanted >> link.0 & 1 == 0) {
            self.welcome_link(link);
            self.tell_address(link);
        }
    }

    //= protocol.md: join.6
    /// The peer is to hear where it can reach a link; only the initiator looks for pairs.
    pub(crate) fn tell_address(&mut self, link: LinkId) {
        if !self.is_initiator()
            && let Some(path) = self.paths.first_mut()
        {
            path.tell_addresses(1 << link.0);
            self.told_addresses |= 1 << link.0;
        }
    }

    /// A pair answers, whichever end wanted it: it is one to be found again.
    pub(crate) fn keep_pair(&mut self, (link, peer): (LinkId, PeerAddr)) {
        let Self { joining, paths, told_addresses, .. } = self;
        *told_addresses &= !(1 << link.0);
        if let Some(joining) = joining {
            joining.unwanted &= !(1 << link.0);
            joining.learn(peer, |old| paths.iter().any(|path| path.peer() == old));
        }
    }

    /// The peer does not want a pair that was on trial: what it wants may become clear later.
    pub(crate) fn on_trial_refused(&mut self, pair: (LinkId, PeerAddr)) {
        if let Some(joining) = &mut self.joining {
            joining.failed.push(pair);
        }
        self.tell_address(pair.0);
        self.join_due = true;
    }

    /// The application wants this pair.
    pub(crate) fn ask_for(&mut self, pair: (LinkId, PeerAddr)) {
        self.welcome_link(pair.0);
        self.learn_address(pair.1);
        if self.is_initiator()
            && let Some(joining) = &mut self.joining
        {
            joining.asked.retain(|&(link, peer)| link != pair.0 && peer != pair.1);
            joining.asked.push(pair);
        }
    }

    //= protocol.md: join.7
    /// The peer has heard which links are gone: if it heard that after the address of one that is
    /// back, it has forgotten that.
    pub(crate) fn tell_addresses_again(&mut self, links: u16) {
        if self.is_initiator() {
            return;
        }
        let unwanted = self.joining.as_ref().map_or(0, |joining| joining.unwanted);
        let used = self.paths.iter().fold(0, |used, path| used | 1_u16 << path.link().0);
        if let Some(path) = self.paths.first_mut() {
            path.tell_addresses(links & self.told_addresses & !unwanted & !used);
        }
    }

    //= protocol.md: compare.4
    /// The peer tells once more where it can be reached: no reason to begin anew, if that is known.
    pub(crate) fn remember_address(&mut self, address: PeerAddr) {
        let known =
            self.joining.as_ref().is_some_and(|joining| joining.addresses.contains(&address));
        if !known {
            self.learn_address(address);
        }
    }

    /// Links (by bit) that the application does not want in this connection.
    pub(crate) fn unwanted_links(&self) -> u16 {
        self.joining.as_ref().map_or(0, |joining| joining.unwanted)
    }

    //= protocol.md: control.3
    /// The peer can be reached at this address, too.
    pub(crate) fn learn_address(&mut self, address: PeerAddr) {
        if self.is_initiator() {
            let Self { joining, paths, .. } = self;
            let joining = joining.get_or_insert_default();
            joining.learn(address, |old| paths.iter().any(|path| path.peer() == old));
            joining.refresh();
            self.join_due = true;
        }
    }
}

impl Engine {
    //= protocol.md: join.1
    /// Gives up pairs that did not answer and tries the next.
    #[cold]
    pub(crate) fn join_links(&mut self, now: Instant, connection: &mut Connection) {
        connection.join_due = false;
        let mut joining = match connection.joining.take() {
            Some(joining) => joining,
            // A responder looks for a way only when it has lost its last, or is told to.
            None if connection.paths.iter().any(|path| path.is_lost() || path.is_trial()) => {
                Box::default()
            }
            None => return,
        };
        self.end_trials(now, connection, &mut joining);
        if joining.again_at.is_some_and(|at| at <= now) {
            joining.again_at = None;
            joining.failed.clear();
            joining.rounds = joining.rounds.saturating_add(1).min(ROUNDS_MAX);
        }
        joining.index_at = None;
        let mut has_failed_pair = false;
        for (link, peer) in self.candidates(connection, &joining) {
            let used =
                |path: &Path| !path.is_lost() && (path.link() == link || path.peer() == peer);
            if connection.paths.iter().any(used) {
                continue;
            }
            if joining.failed.contains(&(link, peer)) {
                has_failed_pair = true;
                continue;
            }
            let Some(index) = self.free_index(connection, Some(now)) else {
                joining.index_at = connection.paths.index_rested_at().filter(|&at| at > now);
                break;
            };
            let state = PathState::new(now);
            self.open_path(now, connection, index, (link, peer), Life::Trial, state);
        }
        let is_trying = connection.paths.iter().any(Path::is_trial);
        if !has_failed_pair {
            joining.again_at = None;
        } else if joining.again_at.is_none() && !is_trying {
            let pause_ns = (ROUND_PAUSE_NS << joining.rounds).min(ROUND_PAUSE_NS_MAX);
            joining.again_at = Some(now.after_ns(pause_ns));
        }
        connection.joining = Some(joining);
    }

    //= protocol.md: join.4, join.5
    /// Takes away pairs that were challenged often enough, or whose link is down.
    fn end_trials(&mut self, now: Instant, connection: &mut Connection, joining: &mut Joining) {
        let most = joining.challenges_max();
        let is_up = |link: LinkId| self.is_usable(link);
        let over: Vec<(LinkIndex, bool)> = connection
            .paths
            .iter()
            .filter(|path| path.is_trial())
            .filter(|path| path.trial_ends_at(most) <= now || !is_up(path.link()))
            .map(|path| (path.index(), is_up(path.link())))
            .collect();
        for (index, was_challenged) in over {
            let Some(path) = connection.paths.with(index) else { continue };
            let (pair, was_heard) = (path.pair(), path.is_heard());
            if was_challenged {
                joining.failed.push(pair);
                // The initiator may know better where this link leads.
                connection.tell_address(pair.0);
            }
            if was_heard {
                // The peer may take it for a link that works.
                self.remove_path_of(connection, index);
            } else {
                self.drop_unnoticed(connection, index);
            }
        }
    }

    /// Pairs to try, best first.
    fn candidates(&self, connection: &Connection, joining: &Joining) -> Vec<(LinkId, PeerAddr)> {
        let lost = connection.paths.iter().filter(|path| path.is_lost()).map(Path::peer);
        let mut addresses = joining.addresses.clone();
        for peer in lost {
            if !addresses.contains(&peer) {
                addresses.push(peer);
            }
        }
        let links = self.links.iter().enumerate().filter_map(|(index, slot)| {
            slot.as_ref().map(|known| (LinkId(index as u8), known.caps.local))
        });
        let links: Vec<(LinkId, PeerAddr)> = links.collect();
        let is_wanted = |link: LinkId| joining.unwanted >> link.0 & 1 == 0 && self.is_usable(link);
        let mut pairs = joining.asked.clone();
        for pair in rank_pairs(&links, &addresses) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs.retain(|&(link, _)| is_wanted(link));
        pairs
    }

    /// The links (by bit) that are attached.
    pub(crate) fn attached_links(&self) -> u16 {
        let links = self.links.iter().enumerate();
        links.fold(0, |all, (index, slot)| all | u16::from(slot.is_some()) << index)
    }

    /// The links (by bit) that are attached and whose carrier is there.
    pub(crate) fn usable_links(&self) -> u16 {
        let links = self.links.iter().enumerate();
        let is_up = |slot: &Option<EngineLink>| slot.as_ref().is_some_and(|known| known.up);
        links.fold(0, |all, (index, slot)| all | u16::from(is_up(slot)) << index)
    }

    /// Whether a link is attached and its carrier is there.
    pub(crate) fn is_usable(&self, link: LinkId) -> bool {
        self.links.get(usize::from(link.0)).and_then(Option::as_ref).is_some_and(|known| known.up)
    }
}

//= protocol.md: join.1
/// All pairs of a link of this end and an address of a peer that may reach one another, likely ones
/// first: `links` with their own addresses, `peers` as the peer told them, both in order.
///
/// Families do not mix. IP addresses are paired by the longest prefix they share, then, as Ethernet
/// addresses, by their position: hosts made alike have their interfaces in the same order. Of shared
/// memory the first 8 bytes, which name the host, must be equal.
pub fn rank_pairs(links: &[(LinkId, PeerAddr)], peers: &[PeerAddr]) -> Vec<(LinkId, PeerAddr)> {
    let mut ranked = Vec::new();
    for (at, &(link, local)) in links.iter().enumerate() {
        let family = local.0[0];
        let own_place = links[..at].iter().filter(|(_, other)| other.0[0] == family).count();
        let count = peers.iter().filter(|peer| peer.0[0] == family).count().max(1);
        for (to, &peer) in peers.iter().enumerate() {
            let Some(nearness) = nearness(&local, &peer) else { continue };
            // What goes to an address of this end does not reach the peer.
            if links.iter().any(|&(_, own)| own == peer) {
                continue;
            }
            let place = peers[..to].iter().filter(|other| other.0[0] == peer.0[0]).count();
            // Links that are shifted alike do not get in each other's way.
            let shift = (place + count - own_place % count) % count;
            ranked.push((Reverse(nearness), shift, at, (link, peer)));
        }
    }
    ranked.sort_by_key(|&(nearness, shift, at, _)| (nearness, shift, at));
    ranked.into_iter().map(|(.., pair)| pair).collect()
}

//= protocol.md: join.2
/// How likely two addresses reach one another: bits of a common prefix; `None` if they cannot.
fn nearness(local: &PeerAddr, peer: &PeerAddr) -> Option<u32> {
    // A peer has addresses of its own; what goes to many hosts would be for others.
    if peer.is_group() {
        return None;
    }
    match (local.0[0], peer.0[0]) {
        (SHARED_MEMORY, SHARED_MEMORY) => (local.0[4..12] == peer.0[4..12]).then_some(u32::MAX),
        (ETHERNET, ETHERNET) => Some(0),
        _ => {
            let local = local.to_socket()?.ip();
            let peer = peer.to_socket()?.ip().to_canonical();
            if peer.is_unspecified() {
                return None;
            }
            match (local, peer) {
                // A socket on all addresses of IPv6 carries IPv4 as well.
                (IpAddr::V6(local), IpAddr::V4(_)) if local.is_unspecified() => Some(0),
                _ if local.is_ipv4() != peer.is_ipv4() => None,
                _ if local.is_unspecified() => Some(0),
                // Loopback leads to no other host.
                _ if local.is_loopback() != peer.is_loopback() => None,
                (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
                (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
                _ => None,
            }
        }
    }
}

/// Families of addresses beside those of IP (protocol.md §2.2).
const ETHERNET: u8 = 1;
const SHARED_MEMORY: u8 = 2;

/// Challenges of a pair in the first round, 150 ms in all.
const TRIAL_CHALLENGES: u64 = 4;
/// Challenges of a pair in late rounds, 910 ms in all.
const TRIAL_CHALLENGES_MAX: u64 = 8;
/// Pause before pairs that did not answer are tried again; doubles with each round.
const ROUND_PAUSE_NS: u64 = 1_000_000_000;
/// Longest pause between rounds: eight small frames a minute for each pair.
const ROUND_PAUSE_NS_MAX: u64 = 60_000_000_000;
/// The pause is at its longest by then.
const ROUNDS_MAX: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> PeerAddr {
        PeerAddr::from(text.parse::<core::net::SocketAddr>().expect("a literal address"))
    }

    fn ethernet(last: u8) -> PeerAddr {
        let mut bytes = [0; 20];
        bytes[0] = ETHERNET;
        bytes[4..10].copy_from_slice(&[2, 0, 0, 0, 0, last]);
        PeerAddr(bytes)
    }

    fn ranks(links: &[PeerAddr], peers: &[PeerAddr]) -> Vec<(u8, usize)> {
        let links: Vec<_> =
            links.iter().enumerate().map(|(link, &at)| (LinkId(link as u8), at)).collect();
        let place = |pair: (LinkId, PeerAddr)| {
            (pair.0.0, peers.iter().position(|&peer| peer == pair.1).expect("one of them"))
        };
        rank_pairs(&links, peers).into_iter().map(place).collect()
    }

    //= protocol.md: join.1
    #[test]
    fn addresses_of_one_network_come_first() {
        let links = [ip("10.0.1.1:7"), ip("10.0.2.1:7")];
        let peers = [ip("10.0.2.9:1"), ip("10.0.1.9:1")];
        assert_eq!(ranks(&links, &peers), [(0, 1), (1, 0), (0, 0), (1, 1)]);
    }

    //= protocol.md: join.1
    #[test]
    fn ethernet_addresses_are_paired_by_position_and_then_shifted() {
        let links = [1, 2, 3].map(ethernet);
        let peers = [11, 12, 13].map(ethernet);
        let expected = [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)];
        assert_eq!(ranks(&links, &peers), expected);
    }

    //= protocol.md: join.2
    #[test]
    fn families_do_not_mix() {
        let mut here = PeerAddr([0; 20]);
        here.0[0] = SHARED_MEMORY;
        here.0[4] = 7;
        let (mut neighbour, mut elsewhere) = (here, here);
        neighbour.0[12] = 1;
        elsewhere.0[4] = 8;
        let links = [ethernet(1), ip("10.0.0.1:1"), ip("[fe80::1]:1"), here];
        let peers = [neighbour, elsewhere, ip("[fe80::2]:1"), ip("10.0.0.2:1"), ethernet(2)];
        let mut found = ranks(&links, &peers);
        found.sort_unstable();
        assert_eq!(found, [(0, 4), (1, 3), (2, 2), (3, 0)]);
    }

    //= protocol.md: join.2
    #[test]
    fn addresses_of_many_hosts_are_left_out() {
        let links = [ip("10.0.0.1:1"), ip("[fe80::1]:1"), ip("[::]:1"), ethernet(1)];
        let mut group = ethernet(2);
        group.0[4] |= 1;
        let mut everybody = ethernet(2);
        everybody.0[4..10].fill(0xff);
        let peers = [
            ip("224.0.0.1:1"),
            ip("239.255.1.2:1"),
            ip("255.255.255.255:1"),
            ip("[ff02::1]:1"),
            ip("[::ffff:224.0.0.1]:1"),
            group,
            everybody,
        ];
        assert_eq!(ranks(&links, &peers), []);
    }

    #[test]
    fn addresses_forgotten_are_forgotten_where_they_failed_too() {
        let mut joining = Joining::default();
        for host in 0..10_000_u32 {
            let [.., high, low] = host.to_be_bytes();
            let address = ip(&format!("10.0.{high}.{low}:1"));
            joining.learn(address, |_| false);
            joining.failed.push((LinkId(0), address));
        }
        assert!(joining.failed.len() <= ADDRESSES_MAX, "{}", joining.failed.len());
    }

    //= protocol.md: join.2
    #[test]
    fn addresses_that_lead_nowhere_else_are_left_out() {
        let links = [ip("10.0.0.1:1"), ip("127.0.0.1:1"), ip("172.17.0.1:1")];
        assert_eq!(ranks(&links, &[ip("172.17.0.1:1"), ip("0.0.0.0:1")]), []);
        assert_eq!(ranks(&links, &[ip("127.0.0.1:2")]), [(1, 0)]);
        assert_eq!(ranks(&[ip("0.0.0.0:1")], &[ip("127.0.0.1:2")]), [(0, 0)]);
        assert_eq!(ranks(&[ip("[::]:1")], &[ip("10.0.0.2:2")]), [(0, 0)]);
    }
}
