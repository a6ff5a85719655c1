//! Statistics of a device for other processes, such as `ethernot stat`.
//!
//! A device that is driven listens on an abstract Unix socket whose name begins with [`SOCKET`] and ends with the number of
//! its process. A process of the same user or root that connects gets one [`DeviceReport`] in JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What names of sockets begin with.
pub const SOCKET: &str = "ethernot-stat-";

/// Name of the form of the report.
pub const FORMAT: &str = "ethernot-stat-1";

/// What is known of a device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DeviceReport {
    /// [`FORMAT`].
    pub format: String,
    /// Number of the process.
    pub process: u32,
    /// Name of its program.
    pub program: String,
    /// Number of its user.
    pub user: u32,
    /// Name of the device.
    pub device: String,
    /// Its addresses, in the order of the GID table.
    pub addresses: Vec<IpAddr>,
    /// Its queue pairs, by number.
    pub queue_pairs: Vec<QueuePairReport>,
    /// Its completion queues.
    pub completion_queues: Vec<CompletionQueueReport>,
    /// What concerns no queue pair: connections that were asked for or refused, frames that were dropped.
    pub counters: BTreeMap<String, u64>,
}

/// What is known of a queue pair.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct QueuePairReport {
    /// Its number.
    pub number: u32,
    /// `RC`, `UC` or `UD`.
    pub service: String,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE` or `ERR`.
    pub state: String,
    /// Its peer, once that is known.
    pub peer: Option<PeerReport>,
    /// Whether they are connected.
    pub is_connected: bool,
    /// Operations in flight.
    pub outstanding: u32,
    /// Messages that may be sent until the peer has posted more receives.
    pub credits: u32,
    /// Bytes of operations sent, retransmissions included. (Datagrams are counted for the whole device.)
    pub bytes_sent: u64,
    /// Bytes of operations received.
    pub bytes_received: u64,
    /// Frames sent, of every kind.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Frames retransmitted.
    pub retransmissions: u64,
    /// The shortest round trip of its links, smoothed, in nanoseconds; none before the first.
    pub round_trip_ns: Option<u64>,
}

/// Whom a queue pair talks to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PeerReport {
    /// The address in its GID.
    pub address: IpAddr,
    /// Number of its queue pair.
    pub number: u32,
}

/// What is known of a completion queue.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CompletionQueueReport {
    /// Completions that it holds at least.
    pub entries: u32,
    /// Completions that wait to be polled.
    pub waiting: u32,
    /// One was lost, as it was full.
    pub is_overrun: bool,
}
