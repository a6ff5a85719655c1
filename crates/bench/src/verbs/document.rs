//! The document that `iwarp-perf --json`, `tcp-perf --json` and `mpi-perf --json` print.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The results of one run of a program.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Document {
    /// Version of the document.
    pub version: u32,
    /// The device that was measured.
    pub device: DocumentDevice,
    /// The points in the order of the command line: for each size, all windows.
    pub points: Vec<DocumentPoint>,
}

/// The description that a device reports of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DocumentDevice {
    /// Name of the device.
    pub name: String,
    /// Transport that the device reports, such as iWARP.
    pub transport: String,
}

/// The runs at one size and window.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DocumentPoint {
    /// Bytes of a message.
    pub size: u64,
    /// Number of messages in a window.
    pub window: u32,
    /// The runs in the order of their measurement.
    pub runs: Vec<DocumentRun>,
}

/// One run of a point.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct DocumentRun {
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes moved, in tests of bandwidth.
    pub bytes: Option<u64>,
    /// Number of round trips, in tests of latency.
    pub rounds: Option<u64>,
    /// CPU seconds of the client in user mode.
    pub cpu_user_s: f64,
    /// CPU seconds of the client in the kernel.
    pub cpu_system_s: f64,
    /// CPU seconds of the server in user mode.
    pub peer_cpu_user_s: f64,
    /// CPU seconds of the server in the kernel.
    pub peer_cpu_system_s: f64,
}

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The text is not a document.
    #[error(
        "read the document of the program: {0}; the program has another version than this command, \
         so install both together"
    )]
    Json(#[from] serde_json::Error),
    /// The document has another version. Contains that version.
    #[error(
        "the document of the program has version {0}, but this command reads version {VERSION}; \
         install both together"
    )]
    Version(u32),
    /// A run has no bytes and no round trips, or no duration.
    #[error(
        "a run with messages of {size} bytes has no bytes and no round trips, or no duration; use \
         more --seconds"
    )]
    Empty {
        /// Bytes of a message.
        size: u64,
    },
}

/// Parses the first document in a text. Launchers and libraries of MPI print additional lines
/// before and after the document.
pub(super) fn first_document<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let start = text.find("{\n").unwrap_or_default();
    T::deserialize(&mut serde_json::Deserializer::from_str(&text[start..]))
}

impl Document {
    /// Parses a document. Checks that every point has a run, and that every run has bytes or round
    /// trips, and a duration.
    ///
    /// # Errors
    /// Returns [`DocumentError`]; each variant names one cause.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        let document: Self = first_document(text)?;
        if document.version != VERSION {
            return Err(DocumentError::Version(document.version));
        }
        let is_whole = |run: &DocumentRun| {
            run.seconds > 0.0 && run.bytes.or(run.rounds).is_some_and(|amount| amount > 0)
        };
        let empty =
            |point: &&DocumentPoint| point.runs.is_empty() || !point.runs.iter().all(is_whole);
        match document.points.iter().find(empty) {
            Some(point) => Err(DocumentError::Empty { size: point.size }),
            None => Ok(document),
        }
    }
}

impl Document {
    /// Returns the bytes of all runs of bandwidth tests.
    pub(super) fn bytes(&self) -> u64 {
        self.runs().filter_map(|run| run.bytes).sum()
    }

    /// Returns the round trips of all runs of latency tests.
    pub(super) fn rounds(&self) -> u64 {
        self.runs().filter_map(|run| run.rounds).sum()
    }

    fn runs(&self) -> impl Iterator<Item = &DocumentRun> {
        self.points.iter().flat_map(|point| &point.runs)
    }
}

impl DocumentRun {
    /// Returns the bytes per second. If the run counted no bytes, returns the seconds per message.
    /// A round trip has `halves` messages. A run without round trips counts as one round trip.
    pub fn value(&self, halves: f64) -> f64 {
        match (self.bytes, self.rounds) {
            (Some(bytes), _) => bytes as f64 / self.seconds,
            (None, rounds) => self.seconds / (rounds.unwrap_or(1) as f64 * halves),
        }
    }

    /// Returns the CPU seconds of client and server.
    pub fn cpu_seconds(&self) -> [f64; 2] {
        [self.cpu_user_s + self.cpu_system_s, self.peer_cpu_user_s + self.peer_cpu_system_s]
    }
}

/// Version of the document.
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: u32, run: &str) -> String {
        format!(
            r#"{{"program":"iwarp-perf","version":{version},"test":"latency","operation":"write","manner":"polling",
            "device":{{"name":"edge0","transport":"iWARP"}},"points":[{{"size":8,"window":1,"runs":[{run}]}}]}}"#
        )
    }

    fn run(seconds: f64, amount: &str) -> String {
        format!(
            r#"{{"seconds":{seconds},{amount},"cpu_user_s":1,"cpu_system_s":2,"peer_cpu_user_s":3,"peer_cpu_system_s":4}}"#
        )
    }

    #[test]
    fn latency_is_half_a_round_trip_and_bandwidth_is_bytes_per_time() {
        let document = Document::parse(&text(1, &run(2.0, r#""rounds":10"#))).unwrap();
        let taken = document.points[0].runs[0];
        assert!((taken.value(2.0) - 0.1).abs() < 1e-12 && (taken.value(1.0) - 0.2).abs() < 1e-12);
        let [client, server] = taken.cpu_seconds();
        assert!((client - 3.0).abs() < 1e-12 && (server - 7.0).abs() < 1e-12);
        let document = Document::parse(&text(1, &run(2.0, r#""bytes":10"#))).unwrap();
        assert!((document.points[0].runs[0].value(2.0) - 5.0).abs() < 1e-12);
    }

    #[test]
    fn lines_around_a_document_are_ignored() {
        let text = format!(
            "a {{ library }} speaks\n{}\ndone\n",
            text(1, &run(2.0, r#""rounds":1"#)).replacen('{', "{\n", 1)
        );
        assert_eq!(Document::parse(&text).unwrap().points.len(), 1);
    }

    #[test]
    fn a_document_without_a_result_is_refused() {
        let refused = |text: &str, expected: &str| {
            let error = Document::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("iwarp-perf: oops", "read the document");
        refused(&text(2, &run(1.0, r#""rounds":1"#)), "has version 2");
        refused(&text(1, &run(0.0, r#""rounds":1"#)), "a run with messages of 8 bytes");
        refused(&text(1, &run(1.0, r#""bytes":0"#)), "a run with messages of 8 bytes");
        refused(&text(1, ""), "a run with messages of 8 bytes");
    }
}
