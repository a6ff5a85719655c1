//! Keep-alive: on an idle connection, an end asks its peer at intervals. The answer shows whether
//! the peer still runs, and whether both ends have the same links (protocol.md §4.3, §7.7).

use delivery::Instant;
use wire_edge::LinkIndex;

use crate::connection::Connection;
use crate::link_set::RETIRED_NS;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::LINKS;
use crate::watch::Question;

impl Connection {
    /// Returns the indices (by bit) of the links that the peer should also have.
    pub(crate) fn settled_links(&self) -> u16 {
        let settled = self.paths().iter().filter(|path| path.is_settled());
        settled.fold(0, |links, path| links | 1 << path.index().0)
    }
}

impl Parts<'_> {
    //= protocol.md: silence.3
    /// Asks the peer for a sign of life on every link, if no frame of the peer arrived recently.
    #[cold]
    pub(crate) fn keep_alive(&mut self, now: Instant, connection: &mut Connection) {
        // If a link does not work, the peer may not know that link, even if the peer answers on
        // other links. In that case, this connection must ask for itself and must not rely on the
        // questions of other connections.
        let is_doubtful = |path: &Path| path.is_settled() && !path.may_carry_data();
        let is_doubtful = connection.paths().iter().any(is_doubtful);
        if !is_doubtful && self.others_ask(now, connection) {
            return;
        }
        let keep_alive_ns = connection.keep_alive_ns(self.config);
        if !connection.liveness_mut().poll_question(now, keep_alive_ns, is_doubtful) {
            return;
        }
        let asks_for_all = connection.asks_for_all();
        for path in connection.paths_mut().iter_mut().filter(|path| path.may_carry_data()) {
            path.say(LINKS);
            if asks_for_all {
                self.watch.on_asked(now, path.pair());
            }
        }
        self.announce_links(connection);
    }

    //= protocol.md: silence.4
    /// Returns whether this connection need not ask now, because another connection asks at the
    /// same addresses.
    ///
    /// The result can be true only for connections with a shorter keep-alive time than their
    /// endpoint, such as queue pairs. After the keep-alive time of the endpoint, each connection
    /// asks for itself, because the peer may have forgotten only this connection.
    fn others_ask(&self, now: Instant, connection: &mut Connection) -> bool {
        let own_ns = connection.keep_alive_ns(self.config);
        let liveness = connection.liveness();
        let must_ask = liveness.compares_links()
            || liveness.heard_at().after_ns(self.config.keep_alive_ns) <= now;
        let asks_often = own_ns < self.config.keep_alive_ns;
        if !asks_often || must_ask || liveness.heard_at().after_ns(own_ns) > now {
            return false;
        }
        let used = connection.paths().iter().filter(|path| path.may_carry_data());
        let until = match self.watch.judge(now, used.map(Path::pair), own_ns) {
            Question::Ask => return false,
            Question::Await(until) => until,
        };
        connection.liveness_mut().defer(until);
        true
    }

    /// Handles a sign of life of the peer, if this connection asked on behalf of all connections.
    #[cold]
    pub(crate) fn on_answer_for_all(&mut self, now: Instant, connection: &Connection) {
        for path in connection.paths().iter().filter(|path| path.may_carry_data()) {
            self.watch.on_answered(now, path.pair());
        }
    }

    //= protocol.md: compare.4
    /// Queues two reports on the link with the shortest round trip: the list of this end's links,
    /// and the addresses of links that are not part of the connection.
    fn announce_links(&self, connection: &mut Connection) {
        let idle = self.links_without_part(connection);
        let nearest = connection.nearest_path();
        if let Some(path) = connection.paths_mut().get_mut(nearest) {
            path.say(LINKS);
            path.announce_addresses(idle);
        }
    }

    //= protocol.md: compare.2, compare.3
    /// Compares this end's links with the links that the peer lists in `theirs`. Removes links that
    /// only one end has.
    #[cold]
    pub(crate) fn on_links(&mut self, now: Instant, connection: &mut Connection, theirs: u16) {
        let is_theirs = |index: LinkIndex| theirs >> index.0 & 1 != 0;
        // The peer may not know a new link yet.
        let is_new = |path: &Path| path.opened_at().after_ns(2 * RETIRED_NS) > now;
        let is_missing = |path: &Path| path.is_settled() && !is_theirs(path.index());
        let is_gone = |path: &Path| is_missing(path) && !is_new(path);
        while let Some((index, link)) = connection
            .paths()
            .iter()
            .find(|path| is_gone(path))
            .map(|path| (path.index(), path.link()))
            && self.drop_path(connection, index)
        {
            connection.announce_address(link);
            connection.pairs_mut().look();
        }
        if connection.paths().iter().any(is_missing) {
            connection.liveness_mut().compare_links_soon(now);
        }
        let is_here = |index: LinkIndex| {
            let retired = connection.paths().retired(index);
            retired.is_some_and(|retired| retired.at.after_ns(2 * RETIRED_NS) > now)
                || connection.paths().with(index).is_some()
        };
        let unknown = (0..=LinkIndex::MAX)
            .filter(|&index| is_theirs(LinkIndex(index)) && !is_here(LinkIndex(index)))
            .fold(0, |links, index| links | 1_u32 << index);
        if let Some(path) = connection.paths_mut().first_mut() {
            path.report_statuses(unknown);
        }
        if self.links_without_part(connection) != 0 {
            self.announce_links(connection);
        }
    }

    /// Returns the usable links (by bit) of this end on which the connection carries no data,
    /// without links that the application excludes. Returns 0 at the initiator, because its peer
    /// tries no pairs.
    fn links_without_part(&self, connection: &Connection) -> u16 {
        if connection.is_initiator() {
            return 0;
        }
        let used = connection.paths().iter().filter(|path| path.may_carry_data());
        let used = used.fold(0, |links, path| links | 1_u16 << path.link().0);
        self.links.usable() & !used & !connection.pairs().unwanted()
    }
}
