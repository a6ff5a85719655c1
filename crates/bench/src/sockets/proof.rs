//! What makes a sample one over the edge: the counters that the library keeps in each process.

use crate::unmodified::way::PathTaken;

/// Why a sample is not said to have gone over the edge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// The library has written nothing, as if it was not there.
    #[error("the library has left no counters in the {side}")]
    NoCounters {
        /// Client or server.
        side: &'static str,
    },
    /// Connections stayed on TCP.
    #[error("{moved} of {expected} connections of the {side} moved to the edge{left}")]
    Stayed {
        /// Client or server.
        side: &'static str,
        /// Connections that moved.
        moved: u64,
        /// Connections that should.
        expected: u64,
        /// The library's reasons.
        left: String,
    },
    /// They moved, but later than they should.
    #[error("{edge} of at least {expected} bytes of the {side} went over the edge")]
    Late {
        /// Client or server.
        side: &'static str,
        /// Bytes over the edge, both directions.
        edge: u64,
        /// Bytes that count.
        expected: u64,
    },
}

/// What a side must have done to be over the edge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Client or server.
    pub(super) side: &'static str,
    /// Processes with the library.
    pub(super) processes: u64,
    /// Connections that have moved, at least.
    pub(super) connections: u64,
    /// Payload over the edge, both directions, at least.
    pub(super) bytes: u64,
}

impl Claim {
    /// Whether the counters of the side bear it out.
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
    fn what_stayed_on_tcp_is_not_said_to_have_moved() {
        assert_eq!(CLAIM.check(&counted()), Ok(()));
        let error = CLAIM.check(&PathTaken { moved: 1, ..counted() }).unwrap_err();
        let expected = "1 of 3 connections of the client moved to the edge; 2: no offer";
        assert_eq!(error.to_string(), expected);
        let late = CLAIM.check(&PathTaken { edge_bytes_sent: 4, ..counted() });
        assert!(matches!(late, Err(Unproven::Late { edge: 10, expected: 11, .. })));
        let none = CLAIM.check(&PathTaken::default());
        assert!(matches!(none, Err(Unproven::NoCounters { .. })));
    }
}
