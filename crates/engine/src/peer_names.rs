//! Finds connections by the ids and epochs that their peers chose.

use std::collections::HashMap;

use wire_edge::{ConnectionId, Epoch};

/// Maps the id and epoch in frames from this end to a connection. Resets, and reports of the
/// network, quote this id and epoch. The peers choose these values. If two peers choose equal
/// values, the newest connection gets the entry.
#[derive(Debug, Default)]
pub(crate) struct PeerNames {
    connections: HashMap<(ConnectionId, Epoch), u32>,
}

impl PeerNames {
    /// Records the id and epoch that the peer of a connection announced.
    pub(crate) fn learn(&mut self, names: (ConnectionId, Epoch), index: u32) {
        self.connections.insert(names, index);
    }

    /// Returns the index of the connection with this id and epoch; `None` if there is none.
    pub(crate) fn find(&self, names: (ConnectionId, Epoch)) -> Option<u32> {
        self.connections.get(&names).copied()
    }

    /// Removes the entry of a connection that has ended. Keeps an entry that now belongs to a newer
    /// connection.
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
    fn an_ended_connection_does_not_remove_the_name_of_a_newer_one() {
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
