//! Reports of the network about the addresses of peers: a frame was too big, or the address has no
//! listener (protocol.md §7.8).
//!
//! An attacker that knows the addresses of both ends can forge such reports. If a report quotes a
//! frame that this end sent, it counts as proven, because a host that is not on the path cannot
//! know the numbers in the frame. All other reports are without proof. This end limits their rate,
//! and after such a report it only asks the peer.

use delivery::{Evidence, Instant, LinkId};
use wire_edge::PeerAddr;

use crate::connection::Connection;
use crate::engine::Engine;
use crate::event::Closed;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::PING;
use crate::phase::Phase;
use crate::refusals::Report;

impl Engine {
    //= protocol.md: report.2
    /// Handles a report that arrived on a link and concerns the address of a peer.
    #[cold]
    pub(crate) fn on_report(
        &mut self,
        now: Instant,
        link: LinkId,
        peer: PeerAddr,
        report: Report,
        evidence: Evidence,
    ) {
        match evidence {
            Evidence::Quoted(head) => match self.sender_of(link, peer, &head) {
                Some((index, packet)) => {
                    let is_dead = self.with_index(index, |parts, connection| {
                        parts.on_proven(now, connection, (link, peer), report, packet)
                    });
                    if is_dead == Some(true) {
                        self.on_address_dead(now, (link, peer));
                    }
                }
                None => self.parts().counters.reports_ignored += 1,
            },
            Evidence::Hearsay if !self.parts().reception.may_heed_hearsay(now) => {
                self.parts().counters.rate_limited += 1;
            }
            Evidence::Hearsay => self.each_at((link, peer), Which::Awake, |_, connection| {
                on_hearsay(connection, (link, peer), report);
            }),
            Evidence::Local => {
                // An idle connection sends no frames that a host could refuse, so only this report
                // shows that the peer of the connection has ended.
                let which = if report == Report::Refused { Which::All } else { Which::Awake };
                let mut is_dead = false;
                self.each_at((link, peer), which, |parts, connection| {
                    is_dead |= parts.on_proven(now, connection, (link, peer), report, None);
                });
                if is_dead {
                    self.on_address_dead(now, (link, peer));
                }
            }
        }
    }

    //= protocol.md: report.6
    /// Informs all connections that nothing listens at an address, after one connection has found
    /// this out by its questions. The other connections ask no questions of their own, because
    /// networks report only a few refusals a second.
    #[cold]
    fn on_address_dead(&mut self, now: Instant, place: (LinkId, PeerAddr)) {
        self.each_at(place, Which::All, |parts, connection| {
            let is_it = |path: &&mut Path| path.pair() == place;
            if connection.phase() == Phase::Established
                && let Some(path) = connection.paths_mut().iter_mut().find(is_it)
                && path.on_no_listener_found(now)
            {
                let index = path.index();
                parts.on_no_listener(now, connection, index);
            }
        });
    }

    //= protocol.md: report.1
    /// Returns the connection that sent a frame with these first bytes to the address, and the
    /// packet number, if the frame has one. Ignores packets that were not sent recently.
    fn sender_of(
        &mut self,
        link: LinkId,
        peer: PeerAddr,
        head: &[u8],
    ) -> Option<(u32, Option<u32>)> {
        let (connections, parts) = self.lend();
        let Ok(prefix) = wire_edge::peek_prefix(head) else {
            let preamble = wire_edge::preamble(head).ok()?;
            let index = connections.find(preamble.source)?;
            let connection = connections.at(index)?;
            return connection.attempt()?.asks_at((link, peer)).then_some((index, None));
        };
        let index = parts.peers.find((prefix.connection, prefix.epoch))?;
        // A compressed connection has no frame in flight.
        let connection = connections.at(index)?;
        let path = connection.paths().iter().find(|path| path.index() == prefix.link)?;
        let is_sent = path.pair() == (link, peer) && path.has_sent_lately(prefix.packet);
        is_sent.then_some((index, Some(prefix.packet)))
    }

    /// Runs `work` on each connection that uses or tests a link to this address.
    fn each_at(
        &mut self,
        place: (LinkId, PeerAddr),
        which: Which,
        mut work: impl FnMut(&mut Parts<'_>, &mut Connection),
    ) {
        let is_there = |connection: &Connection| {
            connection.attempt().is_some_and(|attempt| attempt.asks_at(place))
                || connection.paths().iter().any(|path| path.pair() == place)
        };
        for index in self.connections().indices() {
            let is_there = match which {
                Which::Awake => self.connections().at(index).is_some_and(is_there),
                Which::All => self.connections().look_at(index, is_there) == Some(true),
            };
            if is_there {
                self.with_index(index, &mut work);
            }
        }
    }
}

/// Which connections to visit.
#[derive(Clone, Copy, Debug)]
enum Which {
    All,
    /// Only connections that are not compressed.
    Awake,
}

impl Parts<'_> {
    //= protocol.md: report.3
    /// Handles a proven report about `packet`, or about the newest packet if `packet` is `None`.
    /// Returns true if the report shows for the first time that nothing listens at the address, and
    /// the connection is established.
    fn on_proven(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        place: (LinkId, PeerAddr),
        report: Report,
        packet: Option<u32>,
    ) -> bool {
        match (connection.phase(), report) {
            (Phase::Connecting, Report::Refused) => self.on_refused(connection, place.0, place.1),
            (Phase::Accepted, Report::Refused) => {
                self.counters.handshakes_failed += 1;
                self.end(connection, Closed::Refused(place.1), Vec::new());
            }
            (Phase::Accepted | Phase::Established, _) => {
                let is_it = |path: &&mut Path| path.pair() == place;
                let Some(path) = connection.paths_mut().iter_mut().find(is_it) else {
                    return false;
                };
                match report {
                    Report::TooBig(limit) => path.on_too_big(limit, true),
                    Report::Refused => {
                        let index = path.index();
                        if path.on_refused_packet(now, packet) {
                            self.on_no_listener(now, connection, index);
                            return true;
                        }
                    }
                }
            }
            _ => {}
        }
        false
    }

    //= protocol.md: report.4
    /// Handles repeated refusals, which show that nothing listens at the address of a link. If this
    /// holds for the peer's addresses on all links, the peer is gone.
    fn on_no_listener(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: wire_edge::LinkIndex,
    ) {
        let Some(path) = connection.path_mut(index) else { return };
        let peer = path.peer();
        if !connection.paths().iter().any(|path| path.is_validated() && path.may_be_listened_at()) {
            self.counters.unreachable += 1;
            return self.end(connection, Closed::Refused(peer), Vec::new());
        }
        let Some(path) = connection.path_mut(index) else { return };
        let change = path.on_said_broken(now);
        self.on_path_change(now, connection, index, change);
        // Send Pings on the other links. Their answers show whether only the link or the whole peer
        // has failed.
        for path in connection.paths_mut().iter_mut().filter(|path| path.may_carry_data()) {
            path.say(PING);
        }
    }
}

//= protocol.md: report.5
/// Handles a report without proof. The report may be forged, so this end only asks the peer.
fn on_hearsay(connection: &mut Connection, place: (LinkId, PeerAddr), report: Report) {
    let is_it = |path: &&mut Path| path.pair() == place && path.is_validated();
    let Some(path) = connection.paths_mut().iter_mut().find(is_it) else { return };
    match report {
        Report::TooBig(limit) => path.on_too_big(limit, false),
        // If a packet is in flight, its acknowledgement answers the question, so no Ping is needed.
        Report::Refused if path.send().in_flight_bytes() == 0 => path.say(PING),
        Report::Refused => {}
    }
}
