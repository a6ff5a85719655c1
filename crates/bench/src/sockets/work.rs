//! What the two programs with ordinary sockets say to each other and to the run that started them.
//!
//! They use what the standard library offers of sockets and, for an event loop, `epoll`: nothing of
//! this project. So they can be run as they are, or with a library put before the C library.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::transport::LatencySummary;

/// How a server is to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Where it listens; port 0: as the kernel chooses.
    pub address: SocketAddr,
    /// How it serves its connections.
    pub style: Style,
}

/// How a program waits for its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// A thread for each, which blocks.
    Blocking,
    /// A thread for each, which asks again and again and never sleeps.
    Polling,
    /// One thread for all, which sleeps in `epoll_wait`; a server that only echoes.
    Events,
}

/// What a client is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The server.
    pub server: SocketAddr,
    /// How the client waits; not [`Style::Events`].
    pub style: Style,
    /// What it does on each of its connections.
    pub action: Action,
    /// Bytes of a message, at least 1.
    pub message_bytes: u64,
    /// Connections that it has at the same time, each in a thread of its own.
    pub streams: u32,
    /// How long the part that counts should take, in seconds.
    pub seconds: f64,
    /// Operations of [`Action::PingPong`] and [`Action::Send`]; without, as many as `seconds` has.
    pub iterations: Option<u64>,
}

/// What a client does on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Messages back and forth, a number that is fixed before the clock starts.
    PingPong,
    /// Messages back and forth until the time has passed: other clients do so at the same time.
    PingPongUntil,
    /// Messages to the server, a number that is fixed before the clock starts; it answers the last.
    Send,
    /// Messages to the server until the time has passed.
    SendUntil,
    /// Messages from the server until the time has passed.
    ReceiveUntil,
    /// Connections, one after the other.
    Connect,
}

/// What a client has done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// One entry for each of its connections; one for all, if it made one after the other.
    pub streams: Vec<StreamOutcome>,
    /// CPU seconds, user and system, that the process used meanwhile.
    pub cpu_seconds: f64,
}

/// What a client has done on one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// Round trips, messages or connections.
    pub operations: u64,
    /// Payload, both directions together.
    pub bytes: u64,
    /// How long it took; of messages that are answered at the end, without the way of the answer.
    pub seconds: f64,
    /// Half the round trips, or the calls of `connect`.
    pub latency_ns: Option<LatencySummary>,
    /// From the call of `connect` to the answer to the first byte.
    pub first_answer_ns: Option<LatencySummary>,
}

/// What a client asks of the server at the start of an exchange: [`Self::BYTES`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) exchange: Exchange,
    pub(super) message_bytes: u64,
    /// Messages; [`Self::ENDLESS`]: until the client closes or sends no more.
    pub(super) count: u64,
}

/// Who sends the messages of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// The client, and the server sends each back.
    Echo,
    /// The client; the server answers the last with one byte.
    Take,
    /// The server.
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

    /// Nothing if this was not written by [`Self::encoded`], or if messages are larger than
    /// [`MESSAGE_BYTES_MAX`].
    pub(super) fn decoded(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(|part| {
            part.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        });
        let exchange = *EXCHANGES.get(usize::try_from(numbers.next()?).ok()?)?;
        let message_bytes = numbers.next().filter(|n| (1..=MESSAGE_BYTES_MAX).contains(n))?;
        Some(Self { exchange, message_bytes, count: numbers.next()? })
    }
}

/// Largest message, in bytes: 16 MiB, more than any window.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// Most connections of one client, and most clients: the papers have 12.
pub const STREAMS_MAX: u32 = 64;

const EXCHANGES: [Exchange; 3] = [Exchange::Echo, Exchange::Take, Exchange::Give];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_survives_its_encoding() {
        for exchange in EXCHANGES {
            let wanted = Wanted { exchange, message_bytes: 1 << 20, count: Wanted::ENDLESS };
            assert_eq!(Wanted::decoded(&wanted.encoded()), Some(wanted));
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let wanted = Wanted { exchange: Exchange::Give, message_bytes: 1, count: 1 };
        let mut bytes = wanted.encoded();
        bytes[0] = 9;
        assert_eq!(Wanted::decoded(&bytes), None);
        for message_bytes in [0, MESSAGE_BYTES_MAX + 1] {
            assert_eq!(Wanted::decoded(&Wanted { message_bytes, ..wanted }.encoded()), None);
        }
    }
}
