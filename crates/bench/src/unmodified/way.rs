//! The configurations that the benchmarks of unmodified programs compare, and the counters that
//! prove whether connections moved from kernel TCP to the edge.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A configuration of a server and its client: which of the two programs have the library, and
/// which connections the library moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Kernel TCP. Neither program has the library.
    Tcp,
    /// Both programs have the library, which moves their connections to the edge. The programs
    /// sleep while they wait.
    Edge,
    /// Both programs have the library, which moves their connections to the edge. The programs poll
    /// while they wait.
    EdgePoll,
    /// Both programs have the library, which moves only connections that become faster by moving.
    /// The one link between these hosts makes no connection faster, so no connection moves.
    Default,
    /// Only the client has the library, so the connection stays on TCP.
    ClientOnly,
    /// Only the server has the library, so the connection stays on TCP.
    ServerOnly,
    /// Both programs have the library. Its settings permit only connections of another network to
    /// move, so the connection stays on TCP.
    LeftAlone,
}

/// The role of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Accepts connections.
    Server,
    /// Makes connections.
    Client,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 7] = [
        Self::Tcp,
        Self::Edge,
        Self::EdgePoll,
        Self::Default,
        Self::ClientOnly,
        Self::ServerOnly,
        Self::LeftAlone,
    ];

    /// Returns the name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Edge => "edge",
            Self::EdgePoll => "edge-poll",
            Self::Default => "default",
            Self::ClientOnly => "client-only",
            Self::ServerOnly => "server-only",
            Self::LeftAlone => "left-alone",
        }
    }

    /// Returns whether the connections move from kernel TCP to the edge.
    pub const fn moves(self) -> bool {
        matches!(self, Self::Edge | Self::EdgePoll)
    }

    /// Returns whether the program of this side has the library.
    pub const fn has_library(self, side: Side) -> bool {
        match self {
            Self::Tcp => false,
            Self::Edge | Self::EdgePoll | Self::Default | Self::LeftAlone => true,
            Self::ClientOnly => matches!(side, Side::Client),
            Self::ServerOnly => matches!(side, Side::Server),
        }
    }

    /// Returns the command line that runs the command `words` in this configuration. If the program
    /// needs the library, the command is `ethernot run --sockets` of the executable `own_program`.
    /// The processes of the program then write their counters to `counters`.
    pub fn words(
        self,
        side: Side,
        own_program: &Path,
        counters: &Path,
        words: Vec<String>,
    ) -> Vec<String> {
        if !self.has_library(side) {
            return words;
        }
        let mut all = vec!["env".to_string(), format!("{COUNTERS}={}", counters.display())];
        if self == Self::LeftAlone {
            all.push(format!("{NETWORKS}={ELSEWHERE}"));
        }
        all.push(own_program.display().to_string());
        all.extend(["run", "--sockets"].map(str::to_string));
        if self.moves() {
            // The edge is to be measured, so move connections even if TCP is as fast.
            all.push("--move=always".to_string());
        }
        if self == Self::EdgePoll {
            all.push("--poll".to_string());
        }
        all.push("--".to_string());
        all.extend(words);
        all
    }
}

/// The library's counters, added over the processes of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTaken {
    /// Number of processes with the library.
    pub processes: u64,
    /// Number of connections that moved to the edge.
    pub moved: u64,
    /// Number of connections that stayed on TCP, by reason.
    pub left: BTreeMap<String, u64>,
    /// Bytes sent over the edge.
    pub edge_bytes_sent: u64,
    /// Bytes received over the edge.
    pub edge_bytes_received: u64,
    /// Number of connections that were reset.
    pub resets: u64,
    /// Sum of the times that the moves of all connections took, in nanoseconds; 0 if the library
    /// does not report this time.
    #[serde(default)]
    pub moving_ns: u64,
}

impl PathTaken {
    /// Reads the counters that processes have written to `folder`. Skips a file that is still being
    /// written.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut all = Self::default();
        for entry in fs::read_dir(folder)? {
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            if let Ok(one) = serde_json::from_str::<OfProcess>(&text) {
                all.add(&Self {
                    processes: 1,
                    moved: one.moved,
                    left: one.left,
                    edge_bytes_sent: one.edge_bytes_sent,
                    edge_bytes_received: one.edge_bytes_received,
                    resets: one.resets,
                    moving_ns: one.moving_ns,
                });
            }
        }
        Ok(all)
    }

    /// Adds the counters of other processes.
    pub fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.moved += other.moved;
        for (reason, count) in &other.left {
            *self.left.entry(reason.clone()).or_default() += count;
        }
        self.edge_bytes_sent += other.edge_bytes_sent;
        self.edge_bytes_received += other.edge_bytes_received;
        self.resets += other.resets;
        self.moving_ns += other.moving_ns;
    }

    /// Returns the number of connections that stayed on TCP, for all reasons together.
    pub fn left_count(&self) -> u64 {
        self.left.values().sum()
    }
}

/// The counter file of one process.
#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct OfProcess {
    moved: u64,
    left: BTreeMap<String, u64>,
    edge_bytes_sent: u64,
    edge_bytes_received: u64,
    resets: u64,
    moving_ns: u64,
}

/// Environment variable with the folder for the processes' counters.
const COUNTERS: &str = "ETHERNOT_SOCKETS_COUNTERS";

/// Environment variable with the networks whose connections may move.
const NETWORKS: &str = "ETHERNOT_SOCKETS_NETWORKS";

/// A network reserved for documentation. None of our hosts is in it.
const ELSEWHERE: &str = "192.0.2.0/24";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_requested_sides_run_with_the_library() {
        let words = |way: Way, side| {
            way.words(side, Path::new("/e"), Path::new("/c"), vec!["nginx".to_string()]).join(" ")
        };
        assert_eq!(words(Way::Tcp, Side::Server), "nginx");
        assert_eq!(words(Way::ClientOnly, Side::Server), "nginx");
        let usual = "env ETHERNOT_SOCKETS_COUNTERS=/c /e run --sockets -- nginx";
        assert_eq!(words(Way::ClientOnly, Side::Client), usual);
        assert_eq!(words(Way::ServerOnly, Side::Server), usual);
        assert_eq!(words(Way::Default, Side::Client), usual);
        assert_eq!(words(Way::ServerOnly, Side::Client), "nginx");
        let edge = usual.replace("--sockets", "--sockets --move=always");
        assert_eq!(words(Way::Edge, Side::Server), edge);
        assert!(words(Way::EdgePoll, Side::Client).ends_with("--move=always --poll -- nginx"));
        assert!(words(Way::LeftAlone, Side::Client).contains("192.0.2.0/24"));
    }

    #[test]
    fn counters_of_all_processes_are_added_up() {
        let one = PathTaken {
            processes: 1,
            moved: 3,
            left: [("no offer".to_string(), 2)].into(),
            edge_bytes_sent: 10,
            edge_bytes_received: 20,
            resets: 0,
            moving_ns: 5,
        };
        let mut all = one.clone();
        all.add(&one);
        assert_eq!((all.processes, all.moved, all.left_count()), (2, 6, 4));
        assert_eq!((all.edge_bytes_sent, all.edge_bytes_received), (20, 40));
    }

    #[test]
    fn a_file_of_a_later_library_may_have_more_fields() {
        let text = r#"{"program":"nginx","pid":7,"moved":1,"left":{"port":1},"more":true}"#;
        let one: OfProcess = serde_json::from_str(text).unwrap();
        assert_eq!((one.moved, one.left["port"], one.resets), (1, 1, 0));
    }
}
