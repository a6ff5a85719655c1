//! Checks that a sample went over the edge, by the library's counters in each process.

use crate::unmodified::way::PathTaken;

/// The reason why the counters do not prove that a sample went over the edge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// The library wrote no counters. Probably it was not loaded.
    #[error("the library wrote no counters in the {side}, so it was probably not loaded")]
    NoCounters {
        /// Client or server.
        side: &'static str,
    },
    /// Connections stayed on TCP.
    #[error("only {moved} of {expected} connections of the {side} moved to the edge{left}")]
    Stayed {
        /// Client or server.
        side: &'static str,
        /// Number of connections that moved to the edge.
        moved: u64,
        /// Connections that should have moved.
        expected: u64,
        /// The library's reasons for leaving connections on TCP, as text.
        left: String,
    },
    /// Connections moved, but later than they should.
    #[error("only {edge} bytes of the {side} went over the edge, instead of at least {expected}")]
    Late {
        /// Client or server.
        side: &'static str,
        /// Bytes over the edge, in both directions.
        edge: u64,
        /// The recorded payload, in bytes.
        expected: u64,
    },
}

/// The lowest values of one side's counters that prove that its connections went over the edge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Client or server.
    pub(super) side: &'static str,
    /// Number of processes with the library.
    pub(super) processes: u64,
    /// Lowest number of moved connections.
    pub(super) connections: u64,
    /// Smallest number of payload bytes over the edge, in both directions.
    pub(super) bytes: u64,
}

impl Claim {
    /// Returns an error if the side's counters are lower than this claim.
    pub(super) fn check(&self, counted: &PathTaken) -> Result<(), Unproven> {
        let side = self.side;
        if counted.processes < self.processes {
            return Err(Unproven::NoCounters { side });
        }
        if counted.moved < self.connections {
            let reasons = counted.left.iter().map(|(reason, count)| format!("; {count}: {reason}"));
            let (moved, left) = (counted.moved, reasons.collect());
            return Err(Unproven::Stayed { side, moved, expected: self.connections, left });
        }
        let edge = counted.edge_bytes_sent.saturating_add(counted.edge_bytes_received);
        if edge < self.bytes {
            return Err(Unproven::Late { side, edge, expected: self.bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim { side: "client", processes: 1, connections: 3, bytes: 11 };

    fn counted() -> PathTaken {
        PathTaken {
            processes: 1,
            moved: 3,
            left: [("no offer".to_string(), 2)].into(),
            edge_bytes_sent: 5,
            edge_bytes_received: 6,
            ..PathTaken::default()
        }
    }

    #[test]
    fn connections_that_stayed_on_tcp_are_not_reported_as_moved() {
        assert_eq!(CLAIM.check(&counted()), Ok(()));
        let error = CLAIM.check(&PathTaken { moved: 1, ..counted() }).unwrap_err();
        let expected = "only 1 of 3 connections of the client moved to the edge; 2: no offer";
        assert_eq!(error.to_string(), expected);
        let late = CLAIM.check(&PathTaken { edge_bytes_sent: 4, ..counted() });
        assert!(matches!(late, Err(Unproven::Late { edge: 10, expected: 11, .. })));
        let none = CLAIM.check(&PathTaken::default());
        assert!(matches!(none, Err(Unproven::NoCounters { .. })));
    }
}
