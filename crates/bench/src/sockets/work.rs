//! The messages between a run of the benchmark and the two programs with ordinary sockets that the
//! run starts.
//!
//! These programs use only the sockets of the standard library and, for the event loop, `epoll`.
//! The programs use nothing of this project. Therefore they run over kernel TCP without the
//! library, and over the edge with the preloaded library.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::transport::LatencySummary;

/// The task of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// The address to listen on. With port 0 the kernel chooses the port.
    pub address: SocketAddr,
    /// The way to serve connections.
    pub style: Style,
}

/// How a program waits for its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// One thread per connection, which blocks.
    Blocking,
    /// One thread per connection, which polls and never sleeps.
    Polling,
    /// One thread for all connections, which sleeps in `epoll_wait`. A server with this style only
    /// echoes.
    Events,
}

/// The task of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The server's address.
    pub server: SocketAddr,
    /// How the client waits; not [`Style::Events`].
    pub style: Style,
    /// The action on each connection.
    pub action: Action,
    /// Bytes of a message, at least 1.
    pub message_bytes: u64,
    /// Number of concurrent connections, each with its own thread.
    pub streams: u32,
    /// Intended length of the recorded part, in seconds.
    pub seconds: f64,
    /// Fixed number of operations of [`Action::PingPong`] and [`Action::Send`]; `None` derives the
    /// number from `seconds`.
    pub iterations: Option<u64>,
}

/// What a client does on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Exchanges a number of messages that is fixed before the clock starts.
    PingPong,
    /// Exchanges messages until the time is up, for tests with concurrent clients.
    PingPongUntil,
    /// Sends a number of messages that is fixed before the clock starts. The server answers the
    /// last message.
    Send,
    /// Sends messages until the time is up.
    SendUntil,
    /// Receives messages until the time is up.
    ReceiveUntil,
    /// Makes one connection after another.
    Connect,
}

/// The results of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// One entry for each concurrent connection; a single entry for [`Action::Connect`].
    pub streams: Vec<StreamOutcome>,
    /// CPU seconds of the process, user and system.
    pub cpu_seconds: f64,
}

/// The results of one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// Round trips, messages or connections.
    pub operations: u64,
    /// Payload bytes, both directions together.
    pub bytes: u64,
    /// Duration in seconds. In [`Action::Send`] the one-way time of the final answer is subtracted.
    pub seconds: f64,
    /// One-way latencies (half the round trips), or durations of `connect`.
    pub latency_ns: Option<LatencySummary>,
    /// Times from the call of `connect` to the answer to the first byte.
    pub first_answer_ns: Option<LatencySummary>,
}

/// A client's request to the server at the start of an exchange, encoded in [`Self::BYTES`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) exchange: Exchange,
    pub(super) message_bytes: u64,
    /// Number of messages. With [`Self::ENDLESS`], the exchange lasts until the client closes the
    /// connection or shuts down its direction.
    pub(super) count: u64,
}

/// The roles of client and server in an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// The client sends; the server sends each message back.
    Echo,
    /// The client sends; the server answers the last message with one byte.
    Take,
    /// The server sends.
    Give,
}

impl Wanted {
    /// Three numbers of 64 bits.
    pub(super) const BYTES: usize = 24;
    pub(super) const ENDLESS: u64 = u64::MAX;

    pub(super) fn encoded(self) -> [u8; Self::BYTES] {
        let exchange = EXCHANGES.iter().position(|known| *known == self.exchange);
        let numbers = [exchange.unwrap_or_default() as u64, self.message_bytes, self.count];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a request. Returns `None` if the bytes are not from [`Self::encoded`], or if
    /// messages are larger than [`MESSAGE_BYTES_MAX`].
    pub(super) fn decoded(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(|part| {
            part.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        });
        let exchange = *EXCHANGES.get(usize::try_from(numbers.next()?).ok()?)?;
        let message_bytes = numbers.next().filter(|n| (1..=MESSAGE_BYTES_MAX).contains(n))?;
        Some(Self { exchange, message_bytes, count: numbers.next()? })
    }
}

/// Largest message in bytes: 16 MiB, which is more than the receive window of any connection.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// Highest number of connections of one client, and also the highest number of clients. The papers
/// have at most 12.
pub const STREAMS_MAX: u32 = 64;

const EXCHANGES: [Exchange; 3] = [Exchange::Echo, Exchange::Take, Exchange::Give];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_decodes_from_its_encoding() {
        for exchange in EXCHANGES {
            let wanted = Wanted { exchange, message_bytes: 1 << 20, count: Wanted::ENDLESS };
            assert_eq!(Wanted::decoded(&wanted.encoded()), Some(wanted));
        }
    }

    #[test]
    fn an_invalid_request_is_refused() {
        let wanted = Wanted { exchange: Exchange::Give, message_bytes: 1, count: 1 };
        let mut bytes = wanted.encoded();
        bytes[0] = 9;
        assert_eq!(Wanted::decoded(&bytes), None);
        for message_bytes in [0, MESSAGE_BYTES_MAX + 1] {
            assert_eq!(Wanted::decoded(&Wanted { message_bytes, ..wanted }.encoded()), None);
        }
    }
}
