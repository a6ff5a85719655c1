//! Keep-alive: an idle connection finds out whether its peer is there, and whether both ends have the
//! same links (protocol.md §4.3, §7.7).

use delivery::Instant;
use wire_edge::LinkIndex;

use crate::connection::Connection;
use crate::link_set::RETIRED_NS;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::LINKS;

impl Connection {
    /// Indices (by bit) of the links that the peer should have, too.
    pub(crate) fn settled_links(&self) -> u16 {
        let settled = self.paths().iter().filter(|path| path.is_settled());
        settled.fold(0, |links, path| links | 1 << path.index().0)
    }
}

impl Parts<'_> {
    //= protocol.md: silence.3
    /// Asks the peer for a sign of life on every link, if none came lately.
    #[cold]
    pub(crate) fn keep_alive(&mut self, now: Instant, connection: &mut Connection) {
        // Of a link that does not work the peer may know nothing, however often it is heard on others.
        let is_doubtful = |path: &Path| path.is_settled() && !path.may_carry_data();
        let is_doubtful = connection.paths().iter().any(is_doubtful);
        let keep_alive_ns = connection.keep_alive_ns(self.config);
        if !connection.liveness_mut().poll_question(now, keep_alive_ns, is_doubtful) {
            return;
        }
        for path in connection.paths_mut().iter_mut().filter(|path| path.may_carry_data()) {
            path.say(LINKS);
        }
        self.tell_links(connection);
    }

    //= protocol.md: compare.4
    /// Tells on the nearest link which links there are, and where those without a part are reached.
    fn tell_links(&self, connection: &mut Connection) {
        let idle = self.links_without_part(connection);
        let nearest = connection.nearest_path();
        if let Some(path) = connection.paths_mut().get_mut(nearest) {
            path.say(LINKS);
            path.tell_addresses(idle);
        }
    }

    //= protocol.md: compare.2, compare.3
    /// The peer tells which links it has. What only one end has is no link.
    #[cold]
    pub(crate) fn on_links(&mut self, now: Instant, connection: &mut Connection, theirs: u16) {
        let is_theirs = |index: LinkIndex| theirs >> index.0 & 1 != 0;
        // The peer may not have heard yet of a new one.
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
            connection.tell_address(link);
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
            path.tell_statuses(unknown);
        }
        if self.links_without_part(connection) != 0 {
            self.tell_links(connection);
        }
    }

    /// Links (by bit) of this end that could carry frames of the connection and do not, if the peer is
    /// the one to try them.
    fn links_without_part(&self, connection: &Connection) -> u16 {
        if connection.is_initiator() {
            return 0;
        }
        let used = connection.paths().iter().filter(|path| path.may_carry_data());
        let used = used.fold(0, |links, path| links | 1_u16 << path.link().0);
        self.links.usable() & !used & !connection.pairs().unwanted()
    }
}
