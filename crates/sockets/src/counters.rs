//! Counters of the library. They show which route the bytes of a program took.
//!
//! The counters are a static, because a process has one copy of the library. `ethernot stat` shows
//! a [`Report`] of the counters. If `ETHERNOT_SOCKETS_COUNTERS` names a folder, the library writes
//! the report to a file there.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use link::shared_files;
use nix::sys::socket::{SockaddrStorage, getpeername};
use serde::{Deserialize, Serialize};

use crate::log::{LogLevel, note};
use crate::reasons::Reason;
use crate::rules::Role;
use crate::settings::{Settings, program};

/// The counters of a process. All numbers except `open` only increase.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Report {
    /// The format of the report, [`FORMAT`].
    pub format: String,
    /// Name of the program in the kernel (`comm`).
    pub program: String,
    /// Process ID.
    pub pid: u32,
    /// Number of connections that have moved to the edge.
    pub moved: u64,
    /// Number of connections left to TCP, for each [name](Reason::name) of a reason.
    pub left: BTreeMap<String, u64>,
    /// Number of open connections that have moved.
    pub open: u64,
    /// Number of bytes that programs sent over the edge and that peers acknowledged.
    pub edge_bytes_sent: u64,
    /// Number of bytes that programs received over the edge.
    pub edge_bytes_received: u64,
    /// Number of moved connections that were reset, because the peer or the route to the peer
    /// failed.
    pub resets: u64,
    /// Total time that moves took, in nanoseconds. The time of a move begins at the first use of
    /// its connection.
    #[serde(default)]
    pub moving_ns: u64,
}

/// Format identifier of a [`Report`].
pub const FORMAT: &str = "ethernot-sockets-1";

/// Sets the folder of the counters file. Later calls have no effect, because the library reads
/// settings once.
pub fn begin(settings: &Settings) {
    // If another copy of the library calls this a second time, the first setting stays.
    let _ = FOLDER.set(settings.counters().map(ToOwned::to_owned));
}

/// Counts and logs a connection that was left to TCP.
pub fn note_left(role: Role, local: SocketAddr, peer: SocketAddr, reason: Reason) {
    COUNTERS.add_left(reason, 1);
    let (preposition, name) = (preposition(role), reason.name());
    note(
        LogLevel::Info,
        format_args!("{local} {preposition} {peer} stays on TCP: {name}: {reason}"),
    );
    write_if_due();
}

/// Counts a connection as undecided: it is in use and may move.
pub(crate) fn note_begun() {
    COUNTERS.undecided.fetch_add(1, Ordering::Relaxed);
}

/// Subtracts one from the number of undecided connections. The caller counts the outcome
/// separately.
pub(crate) fn note_decided() {
    COUNTERS.decide(1);
}

/// The time at which a connection was first used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning(Instant);

#[expect(clippy::disallowed_methods, reason = "how long moves take, which people look at")]
impl Beginning {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    fn passed_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Counts and logs a connection that has moved.
pub(crate) fn note_moved(role: Role, local: SocketAddr, peer: SocketAddr, began: Beginning) {
    COUNTERS.moved.fetch_add(1, Ordering::Relaxed);
    COUNTERS.moving_ns.fetch_add(began.passed_ns(), Ordering::Relaxed);
    let preposition = preposition(role);
    note(LogLevel::Info, format_args!("{local} {preposition} {peer} has moved to the edge"));
    write_if_due();
}

/// Counts and logs a moved connection that has returned to TCP.
pub(crate) fn note_home(role: Role, local: SocketAddr, peer: SocketAddr) {
    COUNTERS.add_left(Reason::Home, 1);
    let preposition = preposition(role);
    note(LogLevel::Info, format_args!("{local} {preposition} {peer} has returned to TCP"));
    write_if_due();
}

/// Counts a moved connection that has ended, by a close or a reset.
pub(crate) fn note_closed() {
    COUNTERS.closed.fetch_add(1, Ordering::Relaxed);
}

/// Counts and logs a moved connection that was reset. Reads the peer's address from `tcp`, the TCP
/// socket of the connection.
pub(crate) fn note_reset(tcp: BorrowedFd<'_>) {
    COUNTERS.resets.fetch_add(1, Ordering::Relaxed);
    let peer = getpeername::<SockaddrStorage>(tcp.as_raw_fd()).map(|peer| peer.to_string());
    let peer = peer.unwrap_or_else(|_| "an unknown peer".into());
    note(LogLevel::Info, format_args!("the moved connection with {peer} is reset"));
}

/// Counts bytes that the peer has acknowledged.
#[inline]
pub(crate) fn add_sent(bytes: u64) {
    COUNTERS.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
}

/// Counts bytes that have arrived for the program.
#[inline]
pub(crate) fn add_received(bytes: u64) {
    COUNTERS.bytes_received.fetch_add(bytes, Ordering::Relaxed);
}

/// Returns a report of the counters.
pub fn report() -> Report {
    COUNTERS.report()
}

/// Clears the counters in a forked child, because the parent counts its own connections.
pub fn restart_in_child() {
    COUNTERS.restart();
    // If a thread of the parent held this lock at the fork, the lock stays locked in the child.
    if let Ok(mut written) = WRITTEN.try_lock() {
        *written = Written::NOTHING;
    }
}

/// Returns true if the settings name a folder for counters files. The caller must then call
/// [`write_if_due`] once a second.
pub fn is_kept() -> bool {
    folder().is_some()
}

/// Writes the counters file if the settings name a folder for it. Does nothing if the last write
/// was less than a second ago, or if the report has not changed.
#[expect(clippy::disallowed_methods, reason = "how old the file is, which people look at")]
pub fn write_if_due() {
    let Some(folder) = folder() else { return };
    // If another thread holds the lock, that thread is writing.
    let Ok(mut written) = WRITTEN.try_lock() else { return };
    let now = Instant::now();
    if written.at.is_some_and(|at| now.duration_since(at) < INTERVAL) {
        return;
    }
    written.at = Some(now);
    if let Err(error) = written.write(folder) {
        // If no descriptor is free, retry after a second, and when the process ends.
        let is_passing = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if !is_passing {
            written.give_up(folder, &error);
        }
    }
}

/// Writes the counters file, if the settings name a folder for it and the report has changed. First
/// counts connections that are still undecided as left to TCP. The caller must call this function
/// when the process ends.
pub fn finish() {
    COUNTERS.end_undecided();
    let Some(folder) = folder() else { return };
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = written.write(folder) {
        written.give_up(folder, &error);
    }
}

/// The last write of the counters file.
struct Written {
    at: Option<Instant>,
    report: Option<Report>,
}

impl Written {
    const NOTHING: Self = Self { at: None, report: None };

    /// Writes the counters file. Does nothing if the report is empty or unchanged.
    fn write(&mut self, folder: &Path) -> io::Result<()> {
        let report = COUNTERS.report();
        if report.is_empty() || self.report.as_ref() == Some(&report) {
            return Ok(());
        }
        report.write(folder)?;
        self.report = Some(report);
        Ok(())
    }

    /// Logs why the counters file could not be written, once for each report.
    fn give_up(&mut self, folder: &Path, error: &io::Error) {
        let folder = folder.display();
        note(
            LogLevel::Error,
            format_args!(
                "ETHERNOT_SOCKETS_COUNTERS={folder}: {error}; make the folder writable for every user who runs programs"
            ),
        );
        self.report = Some(COUNTERS.report());
    }
}

impl Report {
    /// Returns the number of connections left to TCP, summed over all reasons.
    pub fn left_in_all(&self) -> u64 {
        self.left.values().sum()
    }

    /// Returns true if the report counts no connection.
    pub fn is_empty(&self) -> bool {
        self.moved == 0 && self.left.is_empty()
    }

    /// Writes the counters file of this process. Replaces the file atomically, so that readers see
    /// either the old or the new report.
    fn write(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(format!("{}.json", self.pid));
        shared_files::replace(&path, &serde_json::to_vec(self)?)
    }
}

/// The counters of a process.
#[derive(Debug)]
struct Counters {
    undecided: AtomicU64,
    moved: AtomicU64,
    closed: AtomicU64,
    left: [AtomicU64; Reason::ALL.len()],
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    resets: AtomicU64,
    moving_ns: AtomicU64,
}

impl Counters {
    const fn new() -> Self {
        Self {
            undecided: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            left: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            moving_ns: AtomicU64::new(0),
        }
    }

    fn add_left(&self, reason: Reason, count: u64) {
        let left = self.left.get(usize::from(reason.number()));
        left.expect("every reason has a place").fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts `count` from the number of undecided connections, with 0 as the minimum. At an
    /// `exec`, the library counts undecided connections as closed. If the `exec` fails, the process
    /// continues, and a caller can subtract these connections a second time. Without the minimum,
    /// the number would then wrap around.
    fn decide(&self, count: u64) {
        let less = |undecided: u64| Some(undecided.saturating_sub(count));
        let _always = self.undecided.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn end_undecided(&self) {
        self.add_left(Reason::Closed, self.undecided.swap(0, Ordering::Relaxed));
    }

    fn report(&self) -> Report {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let left = Reason::ALL.iter().zip(&self.left);
        let left = left.map(|(reason, count)| (reason.name().to_owned(), of(count)));
        let moved = of(&self.moved);
        Report {
            format: FORMAT.into(),
            program: program(),
            pid: process::id(),
            moved,
            left: left.filter(|(_, count)| *count > 0).collect(),
            open: moved.saturating_sub(of(&self.closed)),
            edge_bytes_sent: of(&self.bytes_sent),
            edge_bytes_received: of(&self.bytes_received),
            resets: of(&self.resets),
            moving_ns: of(&self.moving_ns),
        }
    }

    fn restart(&self) {
        let Self { undecided, moved, closed, left, bytes_sent, bytes_received, resets, moving_ns } =
            self;
        for counter in [undecided, moved, closed, bytes_sent, bytes_received, resets, moving_ns]
            .into_iter()
            .chain(left)
        {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

fn preposition(role: Role) -> &'static str {
    match role {
        Role::Connecting => "to",
        Role::Accepting => "from",
    }
}

fn folder() -> Option<&'static Path> {
    FOLDER.get()?.as_deref()
}

static COUNTERS: Counters = Counters::new();

static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

static WRITTEN: Mutex<Written> = Mutex::new(Written::NOTHING);

/// The shortest interval between two writes of the counters file.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_are_reported_under_the_names_of_reasons() {
        let counters = Counters::new();
        assert!(counters.report().is_empty());
        counters.moved.fetch_add(2, Ordering::Relaxed);
        counters.closed.fetch_add(1, Ordering::Relaxed);
        for reason in [Reason::Network, Reason::NoOffer, Reason::NoOffer] {
            counters.add_left(reason, 1);
        }
        let report = counters.report();
        assert_eq!((report.moved, report.open, report.left_in_all()), (2, 1, 3));
        assert_eq!(report.pid, process::id());
        let left: Vec<_> =
            report.left.iter().map(|(name, &count)| (name.as_str(), count)).collect();
        assert_eq!(left, [("network", 1), ("no-offer", 2)]);
        counters.restart();
        assert!(counters.report().is_empty());
    }

    #[test]
    fn undecided_connections_count_as_left_to_tcp_when_they_close() {
        let counters = Counters::new();
        counters.undecided.fetch_add(3, Ordering::Relaxed);
        counters.decide(1);
        assert!(counters.report().is_empty());
        counters.end_undecided();
        assert_eq!(counters.report().left, [("closed".to_owned(), 2)].into());
        counters.decide(1);
        counters.end_undecided();
        assert_eq!(counters.report().left_in_all(), 2);
    }

    #[test]
    fn the_file_of_a_process_is_replaced_atomically() {
        let folder = std::env::temp_dir().join(format!("ethernot-counters-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut report = Report { format: FORMAT.into(), pid: 7, moved: 1, ..Report::default() };
        for moved in [1, 2] {
            report.moved = moved;
            report.write(&folder).unwrap();
            let text = fs::read(folder.join("7.json")).unwrap();
            assert_eq!(serde_json::from_slice::<Report>(&text).unwrap(), report);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
        assert!(report.write(&folder).is_err());
    }
}
