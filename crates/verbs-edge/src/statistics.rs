//! Statistics of a device. Other processes, such as `ethernot stat`, can read them.
//!
//! A started device listens on an abstract Unix socket. The name of the socket is [`SOCKET`]
//! followed by the process number. A process that connects receives one [`DeviceReport`] in JSON,
//! if it belongs to the same user or to root.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// First part of the socket names.
pub const SOCKET: &str = "ethernot-stat-";

/// Name of the report's format.
pub const FORMAT: &str = "ethernot-stat-1";

/// Statistics of a device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DeviceReport {
    /// The format of this report: [`FORMAT`].
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
    /// Counters of the whole device by name, such as requested connections, rejected connections
    /// and dropped frames.
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
    /// The peer; `None` if it is not known yet.
    pub peer: Option<PeerReport>,
    /// Whether the queue pair is connected.
    pub is_connected: bool,
    /// Number of operations in flight.
    pub outstanding: u32,
    /// Number of messages that the queue pair may send before the peer posts further receives.
    pub credits: u32,
    /// Number of bytes of operations that the queue pair has sent, including retransmissions. Bytes
    /// of datagrams are not included. Only the device's counters contain them.
    pub bytes_sent: u64,
    /// Number of bytes of operations that the queue pair has received.
    pub bytes_received: u64,
    /// Number of frames of every kind that the queue pair has sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Frames retransmitted.
    pub retransmissions: u64,
    /// The shortest of the smoothed round-trip times of the connection's links, in nanoseconds.
    /// `None` before the first measurement.
    pub round_trip_ns: Option<u64>,
}

/// The peer of a queue pair.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PeerReport {
    /// The IP address in the peer's GID.
    pub address: IpAddr,
    /// Queue pair number.
    pub number: u32,
}

/// Statistics of a completion queue.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CompletionQueueReport {
    /// Size of the queue: it has room for at least this number of completions.
    pub entries: u32,
    /// Number of completions that the program has not polled.
    pub waiting: u32,
    /// Whether a completion was lost because the queue was full.
    pub is_overrun: bool,
}
