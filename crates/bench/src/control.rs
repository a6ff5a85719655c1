//! The control protocol between client and server. They exchange JSON lines over TCP, on a
//! connection that does not use the measured path.
//!
//! The client sends a request, and waits for all replies before it sends the next request:
//!
//! * The server answers `Prepare` with `Prepared`. After the client has connected, the server also
//!   sends `Connected`.
//! * The server answers `Run` with `Started`, and then with `Finished`.
//! * The server may answer any request with `Failed`. The client then closes the control
//!   connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::transport::{Advertisement, Observed, Phase, Setup};

/// Version of the control protocol. Both sides must have the same version.
pub const VERSION: u32 = 1;

/// A message from client to server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Opens the control connection. The server checks the client's version.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
    },
    /// Asks the server to listen for a sample. The server then has a
    /// [`ServerSide`](crate::transport::ServerSide) for this sample.
    Prepare {
        /// Name of the transport.
        transport: String,
        /// The parameters of the sample.
        setup: Setup,
    },
    /// Runs a phase of the sample that the server has prepared.
    Run(Phase),
    /// Ends the sample: the server drops its [`ServerSide`](crate::transport::ServerSide).
    Close,
}

/// A message from server to client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// Answers [`Request::Hello`].
    Hello {
        /// [`VERSION`] of the server.
        version: u32,
        /// The server's host.
        machine: Machine,
        /// Names of the server's transports.
        transports: Vec<String>,
    },
    /// The server listens, and the client can connect.
    Prepared(Advertisement),
    /// The server has accepted the client's connection.
    Connected,
    /// The server enters the phase.
    Started,
    /// The server has finished the phase.
    Finished {
        /// Counters that the server recorded.
        observed: Observed,
        /// CPU seconds of the server's process in the phase.
        cpu_seconds: f64,
        /// CPU seconds of the server host's softirq threads in the phase.
        softirq_cpu_seconds: f64,
        /// Voluntary context switches of all threads of the server's process.
        #[serde(default)]
        voluntary_switches: u64,
    },
    /// The server has dropped its `ServerSide`, as [`Request::Close`] asked.
    Closed,
    /// The server could not carry out the request.
    Failed {
        /// The error text.
        message: String,
    },
}

/// Why a control connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The client could not connect.
    #[error("connect to the server at {address}: {source}; is `ethernot serve` running there?")]
    Connect {
        /// The server's address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// Reading or writing failed.
    #[error("{attempt}: {source}")]
    Io {
        /// The action that failed.
        attempt: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The other side closed the connection.
    #[error("the peer closed the control connection")]
    Closed,
    /// The other side sent a line that is not a control message.
    #[error("malformed control message from the peer ({reason}): {line:?}")]
    Malformed {
        /// The reason why the line could not be parsed.
        reason: String,
        /// The start of the line.
        line: String,
    },
    /// The other side has another version of the control protocol.
    #[error(
        "the peer has version {theirs} of the control protocol, this host has version {VERSION}; \
         install the same ethernot on both hosts"
    )]
    Version {
        /// The other side's version.
        theirs: u32,
    },
    /// The other side sent a message that does not answer the request.
    #[error("unexpected control message {got} from the peer instead of {expected}")]
    Unexpected {
        /// The message that this side expected.
        expected: &'static str,
        /// The message that arrived.
        got: String,
    },
    /// The server could not carry out the request.
    #[error("the server reports: {0}")]
    Failed(String),
}

/// One end of a control connection.
#[derive(Debug)]
pub struct Channel {
    reader: BufReader<TcpStream>,
    peer: SocketAddr,
}

impl Channel {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn connect(address: SocketAddr) -> Result<Self, ControlError> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX)
            .map_err(|source| ControlError::Connect { address, source })?;
        let channel = Self::new(stream)?;
        channel.limit_silence(Some(SILENCE_MAX))?;
        Ok(channel)
    }

    /// Sets up the channel over an accepted stream.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn new(stream: TcpStream) -> Result<Self, ControlError> {
        let io = |source| ControlError::Io { attempt: "set up the control connection", source };
        stream.set_nodelay(true).map_err(io)?;
        stream.set_write_timeout(Some(SILENCE_MAX)).map_err(io)?;
        let peer = stream.peer_addr().map_err(io)?;
        Ok(Self { reader: BufReader::new(stream), peer })
    }

    /// Returns the other side's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the address by which the other side reaches this host.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn own_address(&self) -> Result<IpAddr, ControlError> {
        let address = self.reader.get_ref().local_addr();
        address.map(|address| address.ip()).map_err(|source| ControlError::Io {
            attempt: "read the local address of the control connection",
            source,
        })
    }

    /// Sets the read timeout of [`receive`](Self::receive); `None` waits without limit.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn limit_silence(&self, limit: Option<Duration>) -> Result<(), ControlError> {
        self.reader.get_ref().set_read_timeout(limit).map_err(|source| ControlError::Io {
            attempt: "set the time limit for reads of the control connection",
            source,
        })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), ControlError> {
        write_line(self.reader.get_mut(), message)
            .map_err(|source| ControlError::Io { attempt: "send a control message", source })
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ControlError> {
        read_line(&mut self.reader)
    }

    /// Waits for a reply. If the reply is [`Reply::Failed`], returns an error.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn reply(&mut self) -> Result<Reply, ControlError> {
        match self.receive()? {
            Reply::Failed { message } => Err(ControlError::Failed(message)),
            reply => Ok(reply),
        }
    }

    /// Sends `request` and waits for the reply.
    ///
    /// # Errors
    /// Returns [`ControlError`]; each variant names one cause.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ControlError> {
        self.send(request)?;
        self.reply()
    }
}

/// Writes `message` as one line.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn write_line<T: Serialize>(writer: &mut impl Write, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

/// Reads one message of at most 1 MiB.
///
/// # Errors
/// Returns [`ControlError`]; each variant names one cause.
pub fn read_line<T: DeserializeOwned>(reader: &mut impl BufRead) -> Result<T, ControlError> {
    let mut line = Vec::new();
    reader
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .map_err(|source| ControlError::Io { attempt: "receive a control message", source })?;
    if line.is_empty() {
        return Err(ControlError::Closed);
    }
    serde_json::from_slice(&line).map_err(|error| ControlError::Malformed {
        reason: error.to_string(),
        line: String::from_utf8_lossy(&line).chars().take(80).collect(),
    })
}

/// Returns the error for a reply of the wrong kind.
pub fn unexpected(expected: &'static str, reply: &Reply) -> ControlError {
    ControlError::Unexpected { expected, got: format!("{reply:?}") }
}

/// Time limit for connecting. A host on a local network answers within milliseconds.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Longest time that an end waits for a message before it gives up. This limit exceeds
/// [`PHASE_TIME_MAX`](crate::transport::PHASE_TIME_MAX). Therefore an end whose phase times out can
/// still report the reason.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Longest line, in bytes. A `Prepare` with 255 links of IPv6 addresses has 24 KiB of JSON. The
/// timeline of a minute has 600 KiB.
const LINE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_decodes_from_its_line() {
        let mut line = Vec::new();
        write_line(&mut line, &Request::Run(Phase { operations: 7 })).unwrap();
        assert_eq!(line, b"{\"request\":\"run\",\"operations\":7}\n");
        let request: Request = read_line(&mut line.as_slice()).unwrap();
        assert!(matches!(request, Request::Run(Phase { operations: 7 })));
    }

    #[test]
    fn the_error_quotes_garbage_and_truncates_it() {
        let garbage = [b'x'; 1000];
        let error = read_line::<Request>(&mut garbage.as_slice()).unwrap_err();
        let ControlError::Malformed { line, .. } = error else { panic!("{error}") };
        assert_eq!(line.len(), 80);
    }

    #[test]
    fn an_endless_line_is_truncated_at_the_limit() {
        let mut endless = BufReader::new(io::repeat(b'x'));
        assert!(matches!(read_line::<Reply>(&mut endless), Err(ControlError::Malformed { .. })));
    }

    #[test]
    fn the_end_of_the_stream_is_distinguished() {
        assert!(matches!(read_line::<Reply>(&mut [].as_slice()), Err(ControlError::Closed)));
    }
}
