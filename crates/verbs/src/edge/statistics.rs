//! Tells whoever asks from outside the process what becomes of the device: the serving side of [`crate::statistics`].

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;

use crate::statistics::{DeviceReport, SOCKET};

/// The socket of a device. It is gone with the process, and leaves nothing.
#[derive(Debug)]
pub(crate) struct Statistics {
    listener: UnixListener,
    /// Threads that write.
    writing: Arc<AtomicU32>,
}

impl Statistics {
    /// Listens under the number of this process.
    ///
    /// Another device of it, or a process of the same number in another container of this network namespace, may
    /// have the name already: then with one more number before.
    pub(crate) fn listen() -> io::Result<Self> {
        let process = std::process::id();
        let names = (1..=NAMES_MAX).map(|place| match place {
            1 => format!("{SOCKET}{process}"),
            place => format!("{SOCKET}{place}-{process}"),
        });
        let mut refused = io::ErrorKind::AddrInUse.into();
        for name in names {
            let address = SocketAddr::from_abstract_name(name)?;
            match UnixListener::bind_addr(&address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Self { listener, writing: Arc::default() });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Readable when somebody asks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers whoever asks and may know. It is called inside the engine, where `report` is made; it is written
    /// by a thread that lives for that long, since it may be larger than what a socket takes at once.
    pub(crate) fn answer(&self, report: impl FnOnce() -> DeviceReport) {
        // One at a time: if another waits the descriptor stays readable.
        let Ok((stream, _)) = self.listener.accept() else { return };
        if !may_know(&stream) || self.writing.load(Ordering::Relaxed) >= WRITING_MAX {
            return;
        }
        let report = report();
        let writing = Arc::clone(&self.writing);
        writing.fetch_add(1, Ordering::Relaxed);
        let is_started = link::start_thread("ethernot-stat", {
            let writing = Arc::clone(&writing);
            move || {
                // Who asks may have gone.
                let _gone = write(stream, &report);
                writing.fetch_sub(1, Ordering::Relaxed);
            }
        });
        if is_started.is_err() {
            writing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The same user, or root.
fn may_know(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|asks| asks.uid() == 0 || asks.uid() == geteuid().as_raw())
}

fn write(mut stream: UnixStream, report: &DeviceReport) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(report)?)
}

/// What the hooks are told when somebody asks.
pub(crate) const KEY: u64 = 0x7374_6174;

/// Devices of one process that have a name, and containers with a process of the same number.
const NAMES_MAX: u32 = 64;

/// Threads that write at a time: each is one that asks, and there are few.
const WRITING_MAX: u32 = 4;

/// How long whoever asks may take to read.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::statistics::QueuePairReport;

    fn ask(statistics: &Statistics) -> UnixStream {
        let address = statistics.listener.local_addr().expect("it is bound");
        let name = address.as_abstract_name().expect("it has an abstract name");
        assert!(name.starts_with(SOCKET.as_bytes()));
        assert!(name.ends_with(std::process::id().to_string().as_bytes()));
        UnixStream::connect_addr(&address).expect("it listens")
    }

    fn read(mut stream: UnixStream) -> Vec<u8> {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("it is answered, or closed");
        text
    }

    #[test]
    fn a_report_larger_than_a_socket_takes_arrives_whole() {
        let statistics = Statistics::listen().expect("a name is free");
        let queue_pairs = (0..4096)
            .map(|number| QueuePairReport { number, service: "RC".into(), ..Default::default() })
            .collect();
        let report = DeviceReport { process: 7, queue_pairs, ..DeviceReport::default() };
        let stream = ask(&statistics);
        statistics.answer(|| report.clone());
        let told: DeviceReport = serde_json::from_slice(&read(stream)).expect("it is a report");
        assert_eq!(told, report);
    }

    #[test]
    fn several_devices_of_a_process_have_names_of_their_own() {
        let all = [Statistics::listen(), Statistics::listen(), Statistics::listen()];
        assert!(all.iter().all(Result::is_ok));
    }

    #[test]
    fn nobody_who_asks_costs_nothing_and_many_are_turned_away() {
        let statistics = Statistics::listen().expect("a name is free");
        statistics.answer(|| unreachable!("nobody asks"));
        statistics.writing.store(WRITING_MAX, Ordering::Relaxed);
        let stream = ask(&statistics);
        statistics.answer(|| unreachable!("too many ask"));
        assert_eq!(read(stream), b"");
    }
}
