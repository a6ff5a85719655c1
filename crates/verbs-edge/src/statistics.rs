//! Statistics of a device for other processes, such as `ethernot stat`.
//!
//! A started device listens on an abstract Unix socket whose name begins with [`SOCKET`] and ends
//! with the process number. A process of the same user, or of root, that connects gets one
//! [`DeviceReport`] in JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Beginning of the socket names.
pub const SOCKET: &str = "ethernot-stat-";

/// Name of the format of the report.
pub const FORMAT: &str = "ethernot-stat-1";

/// Statistics of a device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DeviceReport {
    /// The format: [`FORMAT`].
    pub format: String,
    /// Process number.
    pub process: u32,
    /// Name of the program.
    pub program: String,
    /// User number.
    pub user: u32,
    /// Name of the device.
    pub device: String,
    /// Addresses in the order of the GID table.
    pub addresses: Vec<IpAddr>,
    /// Queue pairs by number.
    pub queue_pairs: Vec<QueuePairReport>,
    /// Completion queues.
    pub completion_queues: Vec<CompletionQueueReport>,
    /// Counters that belong to no queue pair: connections requested or refused, frames dropped.
    pub counters: BTreeMap<String, u64>,
}

/// Statistics of a queue pair.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct QueuePairReport {
    /// Queue pair number.
    pub number: u32,
    /// `RC`, `UC` or `UD`.
    pub service: String,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE` or `ERR`.
    pub state: String,
    /// The peer, once it is known.
    pub peer: Option<PeerReport>,
    /// Whether the queue pair is connected.
    pub is_connected: bool,
    /// Number of operations in flight.
    pub outstanding: u32,
    /// Number of messages that may be sent before the peer posts more receives.
    pub credits: u32,
    /// Bytes of operations sent, including retransmissions. Bytes of datagrams are counted for the
    /// whole device only.
    pub bytes_sent: u64,
    /// Bytes of operations received.
    pub bytes_received: u64,
    /// Frames of every kind sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Frames retransmitted.
    pub retransmissions: u64,
    /// Smoothed round-trip time in nanoseconds, of the link where it is shortest; `None` before it
    /// was measured.
    pub round_trip_ns: Option<u64>,
}

/// The peer of a queue pair.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PeerReport {
    /// The address in the peer's GID.
    pub address: IpAddr,
    /// Queue pair number.
    pub number: u32,
}

/// Statistics of a completion queue.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CompletionQueueReport {
    /// Minimum number of completions that the queue can hold.
    pub entries: u32,
    /// Number of completions that wait to be polled.
    pub waiting: u32,
    /// Whether a completion was lost because the queue was full.
    pub is_overrun: bool,
}
