//! What the library says of itself: whether the connections of a process have moved.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;

use crate::cleanup;

/// The variable that names the folder in which each process keeps its counters.
pub(super) const VARIABLE: &str = "ETHERNOT_SOCKETS_COUNTERS";

/// A folder for the counters of the processes of one sample. Dropping it removes it.
#[derive(Debug)]
pub(super) struct CounterFolder {
    path: PathBuf,
}

impl CounterFolder {
    pub(super) fn create() -> io::Result<Self> {
        let ordinal = NEXT_ORDINAL.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("ethernot-bench-{}-{ordinal}", process::id()));
        let mut registry = cleanup::lock();
        fs::create_dir(&path)?;
        registry.folders.push(path.clone());
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The counters of process `pid`, which has ended.
    pub(super) fn read(&self, pid: u32) -> Result<Counters, Unproven> {
        let path = self.path.join(format!("{pid}.json"));
        let text = fs::read_to_string(&path)
            .map_err(|error| Unproven::NoCounters { path: path.clone(), reason: error.to_string() })?;
        serde_json::from_str(&text)
            .map_err(|error| Unproven::NoCounters { path, reason: error.to_string() })
    }
}

impl Drop for CounterFolder {
    fn drop(&mut self) {
        let mut registry = cleanup::lock();
        // What cannot be removed is a few hundred bytes in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.path);
        registry.folders.retain(|folder| *folder != self.path);
    }
}

/// What the library has counted in one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Counters {
    /// Connections that have moved.
    pub(super) moved: u64,
    /// Connections that were left to TCP, by reason.
    #[serde(default)]
    left: BTreeMap<String, u64>,
    edge_bytes_sent: u64,
    edge_bytes_received: u64,
    #[serde(default)]
    resets: u64,
    /// Sum of the times until connections had moved, in nanoseconds, where it is counted.
    #[serde(default)]
    pub(super) upgrade_ns: Option<u64>,
}

/// Why a sample is not said to have gone over the edge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// The library has written nothing, as if it was not there.
    #[error("the library's counters cannot be read from {}: {reason}", path.display())]
    NoCounters {
        /// Where they should be.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Connections stayed on TCP.
    #[error("{moved} of {expected} connections of the {who} moved to the edge{left}")]
    Stayed {
        /// Client or server.
        who: &'static str,
        /// Connections that moved.
        moved: u64,
        /// Connections that should.
        expected: u64,
        /// The library's reasons.
        left: String,
    },
    /// They moved, but later than they should.
    #[error("{edge} of at least {expected} bytes of the {who} went over the edge")]
    Late {
        /// Client or server.
        who: &'static str,
        /// Bytes over the edge, both directions.
        edge: u64,
        /// Bytes that count.
        expected: u64,
    },
    /// Connections were reset.
    #[error("{resets} connections of the {who} were reset")]
    Resets {
        /// Client or server.
        who: &'static str,
        /// Connections.
        resets: u64,
    },
}

impl Counters {
    /// Whether `connections` of this process have moved, and carried at least `bytes` of payload after
    /// that. The server of clients that go away in the middle of a stream may see them reset.
    pub(super) fn prove(
        &self,
        who: &'static str,
        connections: u64,
        bytes: u64,
        may_be_reset: bool,
    ) -> Result<(), Unproven> {
        if self.moved < connections {
            let reasons = self.left.iter().map(|(reason, count)| format!("; {count}: {reason}"));
            let left = reasons.collect();
            return Err(Unproven::Stayed { who, moved: self.moved, expected: connections, left });
        }
        let edge = self.edge_bytes_sent.saturating_add(self.edge_bytes_received);
        if edge < bytes {
            return Err(Unproven::Late { who, edge, expected: bytes });
        }
        if self.resets > 0 && !may_be_reset {
            return Err(Unproven::Resets { who, resets: self.resets });
        }
        Ok(())
    }
}

static NEXT_ORDINAL: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(text: &str) -> Counters {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_stayed_on_tcp_is_not_said_to_have_moved() {
        let found = counters(
            r#"{"program":"x","pid":1,"moved":1,"left":{"no offer":2},"edge_bytes_sent":5,
                "edge_bytes_received":6,"resets":0}"#,
        );
        let error = found.prove("client", 3, 0, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 of 3 connections of the client moved to the edge; 2: no offer"
        );
        assert!(found.prove("client", 1, 11, false).is_ok());
        assert!(matches!(found.prove("client", 1, 12, false), Err(Unproven::Late { .. })));
    }

    #[test]
    fn a_reset_counts_only_where_nobody_goes_away() {
        let text = r#"{"moved":1,"left":{},"edge_bytes_sent":5,"edge_bytes_received":6,"resets":1}"#;
        let found = counters(text);
        assert!(matches!(found.prove("server", 1, 0, false), Err(Unproven::Resets { .. })));
        assert!(found.prove("server", 1, 0, true).is_ok());
    }

    #[test]
    fn a_folder_is_there_as_long_as_it_is_needed() {
        let folder = CounterFolder::create().unwrap();
        let path = folder.path().to_path_buf();
        fs::write(path.join("7.json"), "{\"moved\":2,\"edge_bytes_sent\":1,\"edge_bytes_received\":0}")
            .unwrap();
        assert_eq!(folder.read(7).unwrap().moved, 2);
        assert!(matches!(folder.read(8), Err(Unproven::NoCounters { .. })));
        drop(folder);
        assert!(!path.exists());
    }
}
