//! Reports the outcome of this process's connections to other processes, such as `ethernot stat`.
//!
//! A process whose connections may move listens on an abstract Unix socket. The name of the socket
//! begins with [`SOCKET`] and ends with the process ID. Each client that connects receives one
//! [`Report`] in JSON, if the client runs as the same user or as root.
//!
//! [`Report`]: crate::counters::Report

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use runtime::Runtime;

use crate::counters::report;

/// Prefix of the names of these sockets.
pub const SOCKET: &str = "ethernot-sockets-";

/// The socket of a process. An abstract socket ends with its process, and leaves no file behind.
#[derive(Debug)]
pub(crate) struct Statistics {
    listener: UnixListener,
}

impl Statistics {
    /// Starts to listen. Returns `None` on failure; connections can move without this socket.
    pub(crate) fn listen() -> Option<Self> {
        listen().ok().map(|listener| Self { listener })
    }

    /// Watches the socket, so that the runtime calls the hooks when a client connects.
    pub(crate) fn watch(&self, runtime: &Runtime) -> io::Result<()> {
        runtime.watch_listener(self.listener.as_fd(), KEY)
    }

    /// Sends the report to each client that may read it. Never blocks, because a report fits in the
    /// socket's send buffer.
    pub(crate) fn answer(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if may_know(&stream) {
                // The client may have closed its socket, so ignore errors.
                let _gone = write(stream);
            }
        }
    }
}

/// Listens under the ID of this process. A process with the same ID, in another container of this
/// network namespace, may use that name. In that case, inserts a number in the name.
fn listen() -> io::Result<UnixListener> {
    let process = process::id();
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
                return Ok(listener);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Returns true if the client runs as the user of this process or as root.
fn may_know(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|asks| asks.uid() == 0 || asks.uid() == geteuid().as_raw())
}

fn write(mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.write_all(&serde_json::to_vec(&report())?)
}

/// Key of the socket in the runtime, which passes it to the hooks when a client connects. Keys of
/// rendezvous sockets are smaller. Keys of streams do not have both bits.
pub(crate) const KEY: u64 = 1 << 62 | 1 << 40;

/// Maximum number of containers in which processes with the same ID can each have a socket.
const NAMES_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::counters::{FORMAT, Report};

    #[test]
    fn each_client_gets_a_report_and_no_client_costs_nothing() {
        let statistics = Statistics::listen().expect("a name is free");
        statistics.answer();
        let address = statistics.listener.local_addr().unwrap();
        assert!(address.as_abstract_name().unwrap().starts_with(SOCKET.as_bytes()));
        let ask = || UnixStream::connect_addr(&address).unwrap();
        let asking = [ask(), ask()];
        statistics.answer();
        for mut stream in asking {
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            let report: Report = serde_json::from_slice(&text).unwrap();
            assert_eq!((report.format.as_str(), report.pid), (FORMAT, process::id()));
        }
    }

    #[test]
    fn two_of_one_process_have_names_of_their_own() {
        let all = [Statistics::listen().unwrap(), Statistics::listen().unwrap()];
        let names = all.each_ref().map(|one| one.listener.local_addr().unwrap());
        assert_ne!(names[0].as_abstract_name(), names[1].as_abstract_name());
    }
}
