//! Finds out which links of the two ends reach each other, by trials of pairs (protocol.md §7.4). A
//! pair is a link of this end and an address of the peer.
//!
//! Addresses only hint at which links reach each other. Two IP addresses with the same prefix
//! probably reach each other; Ethernet addresses give no hint. So the initiator tries pairs, likely
//! pairs first. At any time, each link and each address is in at most one trial.
//!
//! If a pair does not answer, its link index becomes free and the initiator tries the next pair.
//! When the initiator has tried all pairs, it pauses, and then begins a new round. The pause grows
//! with each round.
//!
//! Normally, the responder only announces its addresses. If both ends tried pairs, they could open
//! the same pair under two indices. The responder tries pairs in two cases:
//! * The interface of the connection's last link is gone.
//! * The application of the responder has named a pair.

use delivery::{Instant, LinkId, PathState};
use wire_edge::{LinkIndex, PeerAddr};

use crate::connection::Connection;
use crate::joining::Joining;
use crate::life::Life;
use crate::parts::Parts;
use crate::path::Path;

impl Connection {
    /// Returns whether this end asked for the connection.
    pub(crate) const fn is_initiator(&self) -> bool {
        self.names().is_initiator()
    }

    /// Returns when to call [`Parts::join_links`].
    pub(crate) fn join_deadline(&self) -> Instant {
        self.pairs().deadline(self.paths())
    }

    /// Handles a link that can carry frames again and is not part of the connection. Does nothing
    /// if the application has excluded the link from the connection.
    pub(crate) fn welcome_back(&mut self, link: LinkId) {
        if self.pairs().unwanted() >> link.0 & 1 == 0 {
            self.pairs_mut().welcome(link);
            self.announce_address(link);
        }
    }

    //= protocol.md: join.6
    /// Announces the address of a link to the peer. Does nothing at the initiator, because its peer
    /// tries no pairs.
    pub(crate) fn announce_address(&mut self, link: LinkId) {
        if !self.is_initiator()
            && let Some(path) = self.paths_mut().first_mut()
        {
            path.announce_addresses(1 << link.0);
            self.pairs_mut().on_address_announced(link);
        }
    }

    /// Records a pair on which the peer has answered, whichever end opened the pair. If the pair
    /// fails later, this end can try it again.
    pub(crate) fn keep_pair(&mut self, (link, peer): (LinkId, PeerAddr)) {
        let (pairs, paths) = self.pairs_and_paths();
        pairs.keep((link, peer), paths);
    }

    /// Handles the peer's rejection of a pair that this end tried. The peer may accept the pair
    /// later.
    pub(crate) fn on_trial_refused(&mut self, pair: (LinkId, PeerAddr)) {
        self.pairs_mut().on_unwanted(pair);
        self.announce_address(pair.0);
    }

    /// Records that the application wants this pair.
    pub(crate) fn ask_for(&mut self, pair: (LinkId, PeerAddr)) {
        self.pairs_mut().welcome(pair.0);
        self.learn_address(pair.1);
        if self.is_initiator() {
            self.pairs_mut().ask_for(pair);
        }
    }

    //= protocol.md: join.7
    /// Announces addresses again after the peer has received a report about removed links. The
    /// report makes the peer forget the addresses of the removed links, if they reached the peer
    /// before the report.
    pub(crate) fn announce_addresses_again(&mut self, links: u16) {
        if self.is_initiator() {
            return;
        }
        let used = self.paths().iter().fold(0, |used, path| used | 1_u16 << path.link().0);
        let announced = self.pairs().announced_addresses();
        if let Some(path) = self.paths_mut().first_mut() {
            path.announce_addresses(links & announced & !used);
        }
    }

    //= protocol.md: compare.4
    /// Handles an address that the peer repeats. Does not start the search again if this end knows
    /// the address already.
    pub(crate) fn remember_address(&mut self, address: PeerAddr) {
        if !self.pairs().knows(address) {
            self.learn_address(address);
        }
    }

    //= protocol.md: control.3
    /// Adds an address of the peer.
    pub(crate) fn learn_address(&mut self, address: PeerAddr) {
        if self.is_initiator() {
            let (pairs, paths) = self.pairs_and_paths();
            pairs.learn(address, paths);
        }
    }
}

impl Parts<'_> {
    //= protocol.md: join.1
    /// Drops pairs that did not answer, and tries the next pairs.
    #[cold]
    pub(crate) fn join_links(&mut self, now: Instant, connection: &mut Connection) {
        let mut joining = match connection.pairs_mut().begin_step() {
            Some(joining) => joining,
            // A responder tries pairs only if it has lost its last link, or if its application
            // requested a pair.
            None if connection.paths().iter().any(|path| path.is_lost() || path.is_trial()) => {
                Box::default()
            }
            None => return,
        };
        self.end_trials(now, connection, &mut joining);
        joining.go_on(now);
        let mut has_failed_pair = false;
        for (link, peer) in self.candidates(connection, &joining) {
            let used =
                |path: &Path| !path.is_lost() && (path.link() == link || path.peer() == peer);
            if connection.paths().iter().any(used) {
                continue;
            }
            if joining.has_failed((link, peer)) {
                has_failed_pair = true;
                continue;
            }
            let Some(index) = self.free_index(connection, Some(now)) else {
                joining
                    .wait_for_index(connection.paths().index_reusable_at().filter(|&at| at > now));
                break;
            };
            let state = PathState::new(now);
            self.open_path(now, connection, index, (link, peer), Life::Trial, state);
        }
        let is_trying = connection.paths().iter().any(Path::is_trial);
        joining.end_step(now, has_failed_pair, is_trying);
        connection.pairs_mut().go_on_with(joining);
    }

    //= protocol.md: join.4, join.5
    /// Ends the trials of pairs that got the maximum number of challenges or whose link is down.
    fn end_trials(&mut self, now: Instant, connection: &mut Connection, joining: &mut Joining) {
        let most = joining.challenges_max();
        let is_up = |link: LinkId| self.links.is_usable(link);
        let over: Vec<(LinkIndex, bool)> = connection
            .paths()
            .iter()
            .filter(|path| path.is_trial())
            .filter(|path| path.trial_ends_at(most) <= now || !is_up(path.link()))
            .map(|path| (path.index(), is_up(path.link())))
            .collect();
        for (index, was_challenged) in over {
            let Some(path) = connection.paths().with(index) else { continue };
            let (pair, was_heard) = (path.pair(), path.is_heard());
            if was_challenged {
                joining.on_failed(pair);
                // The pair failed, but the initiator may find another pair for this link.
                connection.announce_address(pair.0);
            }
            if was_heard {
                // The peer has received frames on the link and may assume that the link works, so
                // report the removal.
                self.remove_path_of(connection, index);
            } else {
                self.drop_unnoticed(connection, index);
            }
        }
    }

    /// Returns the pairs to try, best first.
    fn candidates(&self, connection: &Connection, joining: &Joining) -> Vec<(LinkId, PeerAddr)> {
        let lost = connection.paths().iter().filter(|path| path.is_lost()).map(Path::peer);
        let links: Vec<(LinkId, PeerAddr)> =
            self.links.iter().map(|(link, caps)| (link, caps.local)).collect();
        let mut pairs = joining.pairs(&links, lost);
        pairs.retain(|&(link, _)| self.links.is_usable(link));
        pairs
    }
}
