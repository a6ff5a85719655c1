//! Pairs that may become links of a connection, ranked by the likelihood that they work. A pair is
//! a link of this end and an address of the peer.

use core::cmp::Reverse;
use core::net::IpAddr;

use delivery::{Instant, LinkId};
use wire_edge::{ADDRESSES_MAX, PeerAddr};

/// State of the search for further links, at the end that tries pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joining {
    /// Known addresses of the peer.
    addresses: Vec<PeerAddr>,
    /// Pairs that the application requested, in the application's order. The engine tries these
    /// pairs before all others.
    asked: Vec<(LinkId, PeerAddr)>,
    /// Pairs that did not answer in this round.
    failed: Vec<(LinkId, PeerAddr)>,
    /// Links (by bit) that the application has excluded from this connection.
    unwanted: u16,
    /// Number of consecutive rounds of trials that did not find a pair.
    rounds: u8,
    /// When the next round of trials begins; `None` while a round runs.
    again_at: Option<Instant>,
    /// If all link indices are in use: the time at which an index becomes free for the next trial.
    /// Otherwise `None`.
    index_at: Option<Instant>,
}

delivery::pack_fields!(Joining { addresses, asked, failed, unwanted, rounds, again_at, index_at });

impl Joining {
    /// Creates the state for a connection that uses the pair `first`. `asked` are the pairs that
    /// the initiator named, and `announced` are the addresses that the peer announced. Returns
    /// `None` if no other pair is possible.
    pub(crate) fn new(
        first: (LinkId, PeerAddr),
        asked: Vec<(LinkId, PeerAddr)>,
        announced: impl Iterator<Item = PeerAddr>,
    ) -> Option<Box<Self>> {
        let mut joining = Self::default();
        for address in asked.iter().map(|&(_, address)| address).chain(announced) {
            joining.learn(address, |_| true);
        }
        let has_other = joining.addresses.iter().any(|&address| address != first.1);
        joining.asked = asked;
        has_other.then(|| Box::new(joining))
    }

    /// Returns the time at which to try pairs again. Does not include the deadlines of trials in
    /// progress.
    pub(crate) fn deadline(&self) -> Instant {
        let index_at = self.index_at.unwrap_or(Instant::NEVER);
        self.again_at.unwrap_or(Instant::NEVER).min(index_at)
    }

    /// Returns the links (by bit) that the application has excluded from this connection.
    pub(crate) const fn unwanted(&self) -> u16 {
        self.unwanted
    }

    /// Returns whether `address` is a known address of the peer.
    pub(crate) fn knows(&self, address: PeerAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Returns whether a pair did not answer in this round.
    pub(crate) fn has_failed(&self, pair: (LinkId, PeerAddr)) -> bool {
        self.failed.contains(&pair)
    }

    /// Returns the pairs to try, best first: pairs of `links` and the peer's addresses, without
    /// excluded links. `lost` are the addresses of the peer on lost links.
    pub(crate) fn pairs(
        &self,
        links: &[(LinkId, PeerAddr)],
        lost: impl Iterator<Item = PeerAddr>,
    ) -> Vec<(LinkId, PeerAddr)> {
        let mut addresses = self.addresses.clone();
        for peer in lost {
            if !addresses.contains(&peer) {
                addresses.push(peer);
            }
        }
        let mut pairs = self.asked.clone();
        for pair in rank_pairs(links, &addresses) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs.retain(|&(link, _)| self.unwanted >> link.0 & 1 == 0);
        pairs
    }

    /// Removes an address at which the peer does not want to receive frames.
    pub(crate) fn forget(&mut self, peer: PeerAddr) {
        self.addresses.retain(|&address| address != peer);
        self.asked.retain(|&(_, address)| address != peer);
    }

    /// Records that the application excludes this link from the connection.
    pub(crate) const fn exclude(&mut self, link: LinkId) {
        self.unwanted |= 1 << link.0;
    }

    /// Records that the application wants this link, or that the link was attached to the endpoint.
    /// A new round of trials begins.
    pub(crate) fn welcome(&mut self, link: LinkId) {
        self.unwanted &= !(1 << link.0);
        self.failed.retain(|&(failed, _)| failed != link);
        self.refresh();
    }

    /// Adds a pair that the application wants. The caller also [welcomes](Self::welcome) its link.
    pub(crate) fn ask_for(&mut self, pair: (LinkId, PeerAddr)) {
        self.asked.retain(|&(link, peer)| link != pair.0 && peer != pair.1);
        self.asked.push(pair);
    }

    /// Records a pair on which the peer has answered, whichever end opened the pair.
    pub(crate) fn keep(
        &mut self,
        (link, peer): (LinkId, PeerAddr),
        is_used: impl Fn(PeerAddr) -> bool,
    ) {
        self.unwanted &= !(1 << link.0);
        self.learn(peer, is_used);
    }

    /// Records a pair that did not answer, or that the peer has rejected for now.
    pub(crate) fn on_failed(&mut self, pair: (LinkId, PeerAddr)) {
        self.failed.push(pair);
    }

    /// Adds an address of the peer. A new round of trials begins.
    pub(crate) fn learn_again(&mut self, address: PeerAddr, is_used: impl Fn(PeerAddr) -> bool) {
        self.learn(address, is_used);
        self.refresh();
    }

    /// Begins the next round of trials, if it is due.
    pub(crate) fn go_on(&mut self, now: Instant) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.failed.clear();
            self.rounds = self.rounds.saturating_add(1).min(ROUNDS_MAX);
        }
        self.index_at = None;
    }

    /// Defers the next trial until this time, because no link index is free before it.
    pub(crate) const fn wait_for_index(&mut self, at: Option<Instant>) {
        self.index_at = at;
    }

    /// Ends a step of the search, in which this end tried all pairs that it could try. If pairs
    /// have failed and no trial is in progress, the next round begins after a pause.
    pub(crate) fn end_step(&mut self, now: Instant, has_failed_pair: bool, is_trying: bool) {
        if !has_failed_pair {
            self.again_at = None;
        } else if self.again_at.is_none() && !is_trying {
            let pause_ns = (ROUND_PAUSE_NS << self.rounds).min(ROUND_PAUSE_NS_MAX);
            self.again_at = Some(now.after_ns(pause_ns));
        }
    }

    /// Adds an address of the peer.
    fn learn(&mut self, address: PeerAddr, is_used: impl Fn(PeerAddr) -> bool) {
        if !self.addresses.contains(&address) {
            let full = self.addresses.len() >= ADDRESSES_MAX;
            // If the list is full, remove an address that no link uses, because the peer may have
            // withdrawn this address.
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

    /// Begins a new round immediately, because earlier failures may no longer apply to a link or an
    /// address.
    const fn refresh(&mut self) {
        self.rounds = 0;
        self.again_at = None;
    }

    /// Returns the number of unanswered challenges after which a trial ends. The number grows with
    /// each round, because the route may have a long round trip.
    pub(crate) fn challenges_max(&self) -> u64 {
        (TRIAL_CHALLENGES + u64::from(self.rounds)).min(TRIAL_CHALLENGES_MAX)
    }
}

//= protocol.md: join.1
/// Returns all pairs of a local link and a peer address that may reach each other, likely pairs
/// first. `links` are local links with their addresses. `peers` are the addresses that the peer
/// announced. Both lists are in order of preference.
///
/// The two addresses of a pair belong to the same family. The rank of a pair depends on the family:
///
/// * IP addresses are ranked by the length of their common prefix, then by their position.
/// * Ethernet addresses are ranked by position alone, because identical hosts list their interfaces
///   in the same order.
/// * Addresses of shared memory form a pair if their first 8 bytes, which identify the host, are
///   equal.
pub fn rank_pairs(links: &[(LinkId, PeerAddr)], peers: &[PeerAddr]) -> Vec<(LinkId, PeerAddr)> {
    let mut ranked = Vec::new();
    for (at, &(link, local)) in links.iter().enumerate() {
        let family = local.0[0];
        let own_place = links[..at].iter().filter(|(_, other)| other.0[0] == family).count();
        let count = peers.iter().filter(|peer| peer.0[0] == family).count().max(1);
        for (to, &peer) in peers.iter().enumerate() {
            let Some(nearness) = nearness(&local, &peer) else { continue };
            // The address belongs to this end, so a frame to it does not reach the peer.
            if links.iter().any(|&(_, own)| own == peer) {
                continue;
            }
            let place = peers[..to].iter().filter(|other| other.0[0] == peer.0[0]).count();
            // Two pairs with the same value of `shift` never have the same link or the same
            // address, so this end can try all of them at the same time.
            let shift = (place + count - own_place % count) % count;
            ranked.push((Reverse(nearness), shift, at, (link, peer)));
        }
    }
    ranked.sort_by_key(|&(nearness, shift, at, _)| (nearness, shift, at));
    ranked.into_iter().map(|(.., pair)| pair).collect()
}

//= protocol.md: join.2
/// Returns a score for the likelihood that two addresses reach each other: the number of bits in
/// their common prefix. Returns `None` if they cannot reach each other.
fn nearness(local: &PeerAddr, peer: &PeerAddr) -> Option<u32> {
    // A group address belongs to several hosts, so a frame to it would also reach other hosts.
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
                // A socket that is bound to all IPv6 addresses can also exchange frames with IPv4
                // addresses.
                (IpAddr::V6(local), IpAddr::V4(_)) if local.is_unspecified() => Some(0),
                _ if local.is_ipv4() != peer.is_ipv4() => None,
                _ if local.is_unspecified() => Some(0),
                // A loopback address reaches no other host.
                _ if local.is_loopback() != peer.is_loopback() => None,
                (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
                (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
                _ => None,
            }
        }
    }
}

/// Address families other than IP (protocol.md §2.2).
const ETHERNET: u8 = 1;
const SHARED_MEMORY: u8 = 2;

/// Number of challenges of a trial in the first round. These challenges take 150 ms in total.
pub(crate) const TRIAL_CHALLENGES: u64 = 4;
/// Maximum number of challenges of a trial, in late rounds. These challenges take 910 ms in total.
const TRIAL_CHALLENGES_MAX: u64 = 8;
/// Pause before this end tries failed pairs again, in nanoseconds. The pause doubles after each
/// round.
const ROUND_PAUSE_NS: u64 = 1_000_000_000;
/// Longest pause between rounds, in nanoseconds. With this pause, the trials of a pair cost eight
/// small frames a minute.
const ROUND_PAUSE_NS_MAX: u64 = 60_000_000_000;
/// Number of rounds of trials after which the pause between rounds does not grow any more.
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
    fn addresses_of_the_same_network_come_first() {
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
    fn multicast_and_broadcast_addresses_are_not_paired() {
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
    fn a_failed_round_is_retried_after_a_growing_delay() {
        let pair = (LinkId(0), ip("10.0.0.2:1"));
        let first = (LinkId(1), ip("10.0.1.2:1"));
        let mut joining = Joining::new(first, vec![first, pair], core::iter::empty()).unwrap();
        let mut now = Instant(1);
        let mut pauses = Vec::new();
        for _ in 0..3 {
            assert!(!joining.has_failed(pair));
            joining.on_failed(pair);
            joining.end_step(now, true, false);
            pauses.push(joining.deadline().since_ns(now) / ROUND_PAUSE_NS);
            now = joining.deadline();
            joining.go_on(now);
        }
        assert_eq!(pauses, [1, 2, 4]);
        // If a peer announces an address again, the trials start again.
        joining.on_failed(pair);
        joining.learn_again(pair.1, |_| true);
        assert_eq!(joining.deadline(), Instant::NEVER);
        assert!(!joining.has_failed(pair));
        joining.on_failed(pair);
        joining.end_step(now, true, false);
        assert_eq!(joining.deadline(), now.after_ns(ROUND_PAUSE_NS));
    }

    #[test]
    fn pairs_requested_by_the_application_come_first_and_excluded_links_are_never_paired() {
        let (near, far) = (ip("10.0.0.2:1"), ip("10.9.0.2:1"));
        let links = [(LinkId(0), ip("10.0.0.1:1")), (LinkId(1), ip("10.0.0.3:1"))];
        let mut joining =
            Joining::new((LinkId(0), far), Vec::new(), [near, far].into_iter()).unwrap();
        joining.ask_for((LinkId(1), far));
        joining.exclude(LinkId(0));
        let wanted = |joining: &Joining| joining.pairs(&links, core::iter::empty());
        assert_eq!(wanted(&joining), [(LinkId(1), far), (LinkId(1), near)]);
        joining.forget(far);
        assert_eq!(wanted(&joining), [(LinkId(1), near)]);
        joining.welcome(LinkId(0));
        assert_eq!(wanted(&joining).len(), 2);
    }

    #[test]
    fn forgetting_an_address_also_forgets_its_failures() {
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
    fn own_and_loopback_addresses_are_not_paired_with_other_links() {
        let links = [ip("10.0.0.1:1"), ip("127.0.0.1:1"), ip("172.17.0.1:1")];
        assert_eq!(ranks(&links, &[ip("172.17.0.1:1"), ip("0.0.0.0:1")]), []);
        assert_eq!(ranks(&links, &[ip("127.0.0.1:2")]), [(1, 0)]);
        assert_eq!(ranks(&[ip("0.0.0.0:1")], &[ip("127.0.0.1:2")]), [(0, 0)]);
        assert_eq!(ranks(&[ip("[::]:1")], &[ip("10.0.0.2:2")]), [(0, 0)]);
    }
}
