//! What a rank reports of itself to `ethernot dsm top`.
//!
//! Each rank listens at an abstract Unix socket. Its name begins with [`SOCKET`] and ends with the
//! number of the process. A client that runs as the same user or as root gets one [`RankReport`] in
//! JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;
use std::time::{Duration, Instant};

use dsm_protocol::Call;
use serde::{Deserialize, Serialize};

/// Prefix of the names of the sockets.
pub const SOCKET: &str = "ethernot-dsm-";

/// Name and version of the format.
pub const FORMAT: &str = "ethernot-dsm-1";

/// What a rank reports.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RankReport {
    /// [`FORMAT`].
    pub format: String,
    /// The address at which the ranks of the program have met. It identifies the program.
    pub meet: String,
    /// The name of the program.
    pub program: String,
    /// The number of the process.
    pub pid: u32,
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// How writes are found.
    pub method: String,
    /// Milliseconds since the rank joined.
    pub milliseconds: u64,
    /// Counters of the machine, by name.
    pub counters: BTreeMap<String, u64>,
    /// The pages that cost most: at most [`ROWS_MAX`].
    pub pages: Vec<PageReport>,
    /// What threads have waited for longest: at most [`ROWS_MAX`].
    pub waits: Vec<WaitReport>,
}

/// The costs of a page on one rank.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PageReport {
    /// The address of the page.
    pub address: u64,
    /// How often the rank has read the page from its home.
    pub fetches: u64,
    /// How often both the rank and another one have changed the page between two barriers.
    pub conflicts: u64,
    /// The lines of the program that have allocated its bytes.
    pub allocations: Vec<String>,
}

/// How long the threads of a rank have waited for something.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WaitReport {
    /// `page`, `barrier`, `lock`, `read-write lock`, `semaphore`, `event` or `atomic`.
    pub kind: String,
    /// The address or number of a lock or another object; 0 for the others.
    pub address: u64,
    /// How often a thread has waited.
    pub count: u64,
    /// How long in total, in microseconds.
    pub microseconds: u64,
}

/// How long threads have waited, by kind and address.
#[derive(Debug, Default)]
pub(crate) struct Waits(BTreeMap<(&'static str, u64), (u64, Duration)>);

impl Waits {
    /// Adds the wait of a call that did not end at once.
    pub(crate) fn add(&mut self, call: Call, time: Duration) {
        let key = match call {
            Call::ReadFault(_) | Call::WriteFault(_) | Call::Pin { .. } => ("page", 0),
            Call::Barrier { .. } => ("barrier", 0),
            Call::Lock(lock) | Call::Wait { lock, .. } => ("lock", lock),
            Call::ReadLock(lock) | Call::WriteLock(lock) => ("read-write lock", lock),
            Call::Take(semaphore) => ("semaphore", semaphore),
            Call::Await(event) => ("event", event),
            Call::Atomic { .. } => ("atomic", 0),
            _ => return,
        };
        let (count, total) = self.0.entry(key).or_default();
        *count += 1;
        *total += time;
    }

    /// Returns the longest waits, the longest first.
    pub(crate) fn report(&self) -> Vec<WaitReport> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        let row = |(&(kind, address), &(count, time)): (&(&'static str, u64), &(u64, Duration))| {
            let microseconds = time.as_micros() as u64;
            WaitReport { kind: kind.into(), address, count, microseconds }
        };
        rows.into_iter().take(ROWS_MAX).map(row).collect()
    }
}

/// The socket of a rank. It ends with the process, and leaves no file behind.
#[derive(Debug)]
pub(crate) struct Statistics {
    listener: Option<UnixListener>,
    next_look: Instant,
}

impl Statistics {
    /// Starts to listen. The rank works without the socket, too.
    pub(crate) fn listen() -> Self {
        Self { listener: listen().ok(), next_look: Instant::now() }
    }

    /// Returns the next client that may read the report.
    pub(crate) fn accept(&mut self, now: Instant) -> Option<UnixStream> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_AGAIN;
        let listener = self.listener.as_ref()?;
        while let Ok((stream, _)) = listener.accept() {
            if is_trusted(&stream) {
                return Some(stream);
            }
        }
        None
    }
}

fn listen() -> io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(format!("{SOCKET}{}", process::id()))?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns whether the client runs as root or as the user of this process.
fn is_trusted(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `peer`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    // SAFETY: the call has no arguments, and cannot fail.
    result == 0 && (peer.uid == 0 || peer.uid == unsafe { libc::geteuid() })
}

/// Sends a report. Never blocks.
pub(crate) fn send(mut stream: UnixStream, report: &RankReport) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.write_all(&serde_json::to_vec(report)?)
}

/// Rows of each list of a report. A report has at most 64 KiB, so that it fits into the send buffer
/// of a socket.
pub const ROWS_MAX: usize = 40;

/// Time between two looks for clients.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_by_object_and_the_longest_is_first() {
        let mut waits = Waits::default();
        let time = Duration::from_micros(10);
        waits.add(Call::Lock(64), time);
        waits.add(Call::Lock(72), time * 3);
        waits.add(Call::Wait { condition: 8, lock: 64 }, time);
        waits.add(Call::Unlock(64), time * 100);
        let report = waits.report();
        let row = |row: &WaitReport| (row.kind.clone(), row.address, row.count, row.microseconds);
        let rows: Vec<_> = report.iter().map(row).collect();
        assert_eq!(rows, [("lock".to_owned(), 72, 1, 30), ("lock".to_owned(), 64, 2, 20)]);
    }

    #[test]
    fn a_client_of_the_same_user_is_trusted_and_gets_the_report() {
        let mut statistics = Statistics::listen();
        let listener = statistics.listener.as_ref().expect("the name is free");
        let mut client = UnixStream::connect_addr(&listener.local_addr().unwrap()).unwrap();
        let accepted = statistics.accept(Instant::now()).unwrap();
        let report = RankReport { format: FORMAT.into(), rank: 3, ..RankReport::default() };
        send(accepted, &report).unwrap();
        let received: RankReport = serde_json::from_reader(&mut client).unwrap();
        assert_eq!(received, report);
    }
}
