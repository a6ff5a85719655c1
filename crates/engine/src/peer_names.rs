//! Connections by the names that their peers gave them.

use std::collections::HashMap;

use wire_edge::{ConnectionId, Epoch};

/// Connections by the id and epoch that this end puts into its frames: a reset and a report quote both.
/// Peers choose them; if two choose the same, the newest connection has them.
#[derive(Debug, Default)]
pub(crate) struct PeerNames {
    connections: HashMap<(ConnectionId, Epoch), u32>,
}

impl PeerNames {
    /// The peer of a connection has announced its names.
    pub(crate) fn learn(&mut self, names: (ConnectionId, Epoch), index: u32) {
        self.connections.insert(names, index);
    }

    /// The connection with these names.
    pub(crate) fn find(&self, names: (ConnectionId, Epoch)) -> Option<u32> {
        self.connections.get(&names).copied()
    }

    /// A connection that may have these names has ended.
    pub(crate) fn forget(&mut self, names: (ConnectionId, Epoch), index: u32) {
        if self.find(names) == Some(index) {
            self.connections.remove(&names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_connection_takes_no_name_from_a_newer_one() {
        let names = (ConnectionId(3), Epoch(4));
        let mut peers = PeerNames::default();
        peers.learn(names, 0);
        peers.learn(names, 1);
        peers.forget(names, 0);
        assert_eq!(peers.find(names), Some(1));
        peers.forget(names, 1);
        assert_eq!(peers.find(names), None);
    }
}
