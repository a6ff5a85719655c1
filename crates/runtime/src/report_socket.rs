//! Reports of this process to other processes of the host, such as statistics.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::local_listener::LocalListener;

/// A local socket at which other processes ask for a report.
///
/// [`ReportSocket::answer`] is for the inside of a turn, where the figures are. A separate thread
/// writes each report, because the write may block: a report may be larger than the socket's
/// buffer.
#[derive(Debug)]
pub struct ReportSocket {
    listener: LocalListener,
    /// Number of threads that are writing a report.
    writing: Arc<AtomicU32>,
}

impl ReportSocket {
    /// Listens at a name of `prefix` and the number of this process, as [`LocalListener::listen`]
    /// does.
    ///
    /// # Errors
    /// Returns the errors of [`LocalListener::listen`].
    pub fn listen(prefix: &str) -> io::Result<Self> {
        Ok(Self { listener: LocalListener::listen(prefix)?, writing: Arc::default() })
    }

    /// Returns the listener.
    pub const fn listener(&self) -> &LocalListener {
        &self.listener
    }

    /// Returns the descriptor, which is readable while a process waits for an answer.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.descriptor()
    }

    /// Answers the processes that wait and may read reports. Never blocks. `report` takes the
    /// figures, and returns the function by which a thread makes the bytes of the report. The
    /// thread drops that function, with what it holds, after the bytes are made.
    pub fn answer<W>(&self, report: impl Fn() -> W)
    where
        W: FnOnce() -> Vec<u8> + Send + 'static,
    {
        while let Some(stream) = self.listener.accept() {
            if self.writing.load(Ordering::Relaxed) < WRITING_MAX {
                self.write(stream, report());
            }
        }
    }

    fn write(&self, stream: UnixStream, bytes: impl FnOnce() -> Vec<u8> + Send + 'static) {
        let writing = Arc::clone(&self.writing);
        writing.fetch_add(1, Ordering::Relaxed);
        let is_started = link::start_thread("ethernot-stat", {
            let writing = Arc::clone(&writing);
            move || {
                // This fails if the requesting process is gone.
                let _gone = write(stream, &bytes());
                writing.fetch_sub(1, Ordering::Relaxed);
            }
        });
        if is_started.is_err() {
            writing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn write(mut stream: UnixStream, report: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(report)
}

/// Maximum number of threads that write reports at the same time. Requests are rare, and each
/// request needs one thread.
const WRITING_MAX: u32 = 4;

/// Maximum time for which the thread waits until the requesting process reads the report.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;

    use super::*;

    const PREFIX: &str = "ethernot-test-report-";

    fn ask(socket: &ReportSocket) -> UnixStream {
        let address = socket.listener.address().expect("it is bound");
        let name = address.as_abstract_name().expect("it has an abstract name");
        assert!(name.starts_with(PREFIX.as_bytes()));
        assert!(name.ends_with(std::process::id().to_string().as_bytes()));
        UnixStream::connect_addr(&address).expect("it listens")
    }

    fn read(mut stream: UnixStream) -> Vec<u8> {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("it is answered, or closed");
        text
    }

    #[test]
    fn a_report_larger_than_the_socket_buffer_arrives_completely() {
        let socket = ReportSocket::listen(PREFIX).expect("a name is free");
        let report: Vec<u8> = (0..4 << 20_u32).map(|at| (at % 251) as u8).collect();
        let stream = ask(&socket);
        socket.answer(|| {
            let report = report.clone();
            move || report
        });
        assert!(read(stream) == report);
    }

    #[test]
    fn excess_requests_are_refused() {
        let socket = ReportSocket::listen(PREFIX).expect("a name is free");
        socket.answer(|| -> fn() -> Vec<u8> { unreachable!("no process asks") });
        socket.writing.store(WRITING_MAX, Ordering::Relaxed);
        let stream = ask(&socket);
        socket.answer(|| -> fn() -> Vec<u8> { unreachable!("too many ask") });
        assert_eq!(read(stream), b"");
    }
}
