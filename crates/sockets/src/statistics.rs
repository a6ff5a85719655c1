//! Reports the outcome of this process's connections to other processes, such as `ethernot stat`.
//!
//! A process whose connections may move listens on an abstract Unix socket. The name of the socket
//! begins with [`SOCKET`] and ends with the process ID. Each client that connects receives one
//! [`Report`] in JSON, if the client runs as the same user or as root.
//!
//! [`Report`]: crate::counters::Report

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use runtime::{LocalListener, Runtime};

use crate::counters::report;

/// Prefix of the names of these sockets.
pub const SOCKET: &str = "ethernot-sockets-";

/// The socket of a process. An abstract socket ends with its process, and leaves no file behind.
#[derive(Debug)]
pub(crate) struct Statistics {
    listener: LocalListener,
}

impl Statistics {
    /// Starts to listen. Returns `None` on failure; connections can move without this socket.
    pub(crate) fn listen() -> Option<Self> {
        LocalListener::listen(SOCKET).ok().map(|listener| Self { listener })
    }

    /// Watches the socket, so that the runtime calls the hooks when a client connects.
    pub(crate) fn watch(&self, runtime: &Runtime) -> io::Result<()> {
        runtime.watch_listener(self.listener.descriptor(), KEY)
    }

    /// Sends the report to each client that may read it. Never blocks, because a report fits in the
    /// socket's send buffer.
    pub(crate) fn answer(&self) {
        while let Some(stream) = self.listener.accept() {
            // The client may have closed its socket, so ignore errors.
            let _gone = write(stream);
        }
    }
}

fn write(mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.write_all(&serde_json::to_vec(&report())?)
}

/// Key of the socket in the runtime, which passes it to the hooks when a client connects. Keys of
/// rendezvous sockets are smaller. Keys of streams do not have both bits.
pub(crate) const KEY: u64 = 1 << 62 | 1 << 40;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;
    use std::process;

    use super::*;
    use crate::counters::{FORMAT, Report};

    #[test]
    fn each_client_gets_a_report() {
        let statistics = Statistics::listen().expect("a name is free");
        statistics.answer();
        let address = statistics.listener.address().unwrap();
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
}
