//! The pairs that may become links of a connection, and the links whose address this end has
//! announced. A pair is a link of this end and an address of the peer.

use delivery::{Instant, LinkId};
use wire_edge::PeerAddr;

use crate::joining::{Joining, TRIAL_CHALLENGES};
use crate::path::Path;

/// State of the search for further links of a connection, and the links of this end that the peer
/// may try.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The known addresses of the peer, and the state of the search; `None` if this end knows no
    /// pair to try.
    joining: Option<Box<Joining>>,
    /// Links (by bit) that are not part of the connection and whose address this end has announced
    /// to the peer.
    announced_addresses: u16,
    /// Whether a search for further links is due.
    is_due: bool,
}

// The engine does not compress a connection whose search is due, so the flag is false after
// expansion.
delivery::pack_fields!(Pairs { joining, announced_addresses } is_due = false);

impl Pairs {
    /// Requests a search for further links, because a link or an address has changed.
    pub(crate) const fn look(&mut self) {
        self.is_due = true;
    }

    /// Returns whether a search was requested after the last search.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Removes and returns the state of the search for one step of the search; `None` if this end
    /// knows no pair to try. The caller gives the state back with [`Pairs::go_on_with`].
    pub(crate) const fn begin_step(&mut self) -> Option<Box<Joining>> {
        self.is_due = false;
        self.joining.take()
    }

    /// Ends a step of the search, and stores the state of the search again.
    pub(crate) fn go_on_with(&mut self, joining: Box<Joining>) {
        debug_assert!(self.joining.is_none(), "one step at a time");
        self.joining = Some(joining);
    }

    /// Begins the search on an established connection.
    pub(crate) fn begin(&mut self, joining: Option<Box<Joining>>) {
        *self = Self { joining, announced_addresses: 0, is_due: true };
    }

    /// Returns the time of the next step of the search. The end of a trial of a link in `paths`
    /// also counts as a step.
    pub(crate) fn deadline(&self, paths: &[Path]) -> Instant {
        if self.is_due {
            return Instant::default();
        }
        let (mut most, mut again_at) = (TRIAL_CHALLENGES, Instant::NEVER);
        if let Some(joining) = &self.joining {
            most = joining.challenges_max();
            again_at = joining.deadline();
        }
        let given_up_at = |path: &Path| path.trial_ends_at(most);
        paths.iter().map(given_up_at).fold(again_at, Instant::min)
    }

    //= protocol.md: remove.2
    /// Removes an address at which the peer does not want to receive frames. If `unwanted` has a
    /// value, also records that the application of this end excludes this link.
    pub(crate) fn forget(&mut self, peer: PeerAddr, unwanted: Option<LinkId>) {
        if let Some(joining) = &mut self.joining {
            joining.forget(peer);
        }
        if let Some(link) = unwanted {
            self.joining.get_or_insert_default().exclude(link);
        }
        self.look();
    }

    /// Records that the application wants this link on the connection, or that the link was
    /// attached to the endpoint.
    pub(crate) fn welcome(&mut self, link: LinkId) {
        if let Some(joining) = &mut self.joining {
            joining.welcome(link);
        }
        self.look();
    }

    /// Records that this end announces the address of a link to the peer.
    pub(crate) const fn on_address_announced(&mut self, link: LinkId) {
        self.announced_addresses |= 1 << link.0;
    }

    /// Returns the links (by bit) whose address this end has announced and that the application has
    /// not excluded.
    pub(crate) fn announced_addresses(&self) -> u16 {
        self.announced_addresses & !self.unwanted()
    }

    /// Records a pair on which the peer has answered, whichever end opened the pair.
    pub(crate) fn keep(&mut self, pair: (LinkId, PeerAddr), paths: &[Path]) {
        self.announced_addresses &= !(1 << pair.0.0);
        if let Some(joining) = &mut self.joining {
            joining.keep(pair, |old| is_peer(paths, old));
        }
    }

    /// Records that the peer rejected a pair that this end tried. The peer may accept the pair
    /// later.
    pub(crate) fn on_unwanted(&mut self, pair: (LinkId, PeerAddr)) {
        if let Some(joining) = &mut self.joining {
            joining.on_failed(pair);
        }
        self.look();
    }

    /// Adds a pair that the application wants. The caller also [welcomes](Self::welcome) its link.
    pub(crate) fn ask_for(&mut self, pair: (LinkId, PeerAddr)) {
        if let Some(joining) = &mut self.joining {
            joining.ask_for(pair);
        }
    }

    /// Returns whether `address` is a known address of the peer.
    pub(crate) fn knows(&self, address: PeerAddr) -> bool {
        self.joining.as_ref().is_some_and(|joining| joining.knows(address))
    }

    //= protocol.md: control.3
    /// Adds an address of the peer.
    pub(crate) fn learn(&mut self, address: PeerAddr, paths: &[Path]) {
        let joining = self.joining.get_or_insert_default();
        joining.learn_again(address, |old| is_peer(paths, old));
        self.look();
    }

    /// Returns the links (by bit) that the application has excluded from this connection.
    pub(crate) fn unwanted(&self) -> u16 {
        self.joining.as_ref().map_or(0, |joining| joining.unwanted())
    }
}

fn is_peer(paths: &[Path], address: PeerAddr) -> bool {
    paths.iter().any(|path| path.peer() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> PeerAddr {
        PeerAddr::from(core::net::SocketAddr::from(([10, 0, 0, host], 1)))
    }

    type Change = fn(&mut Pairs, (LinkId, PeerAddr));

    #[test]
    fn every_change_of_the_pairs_requests_a_new_search() {
        let pair = (LinkId(1), at(1));
        let changes: [Change; 5] = [
            |pairs, (link, peer)| pairs.forget(peer, Some(link)),
            |pairs, (link, _)| pairs.welcome(link),
            |pairs, pair| pairs.on_unwanted(pair),
            |pairs, (_, peer)| pairs.learn(peer, &[]),
            |pairs, _| pairs.begin(None),
        ];
        for change in changes {
            let mut pairs = Pairs::default();
            assert_eq!(pairs.deadline(&[]), Instant::NEVER);
            change(&mut pairs, pair);
            assert_eq!(pairs.deadline(&[]), Instant::default());
            pairs.begin_step();
            assert!(!pairs.is_due());
        }
    }

    //= protocol.md: join.7
    #[test]
    fn an_unwanted_or_paired_link_is_not_announced_again() {
        let mut pairs = Pairs::default();
        for link in 0..3 {
            pairs.on_address_announced(LinkId(link));
        }
        pairs.forget(at(1), Some(LinkId(0)));
        pairs.keep((LinkId(1), at(2)), &[]);
        assert_eq!(pairs.announced_addresses(), 0b100);
        pairs.welcome(LinkId(0));
        assert_eq!(pairs.announced_addresses(), 0b101);
    }
}
