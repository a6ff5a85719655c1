//! Statistics of a device. Other processes, such as `ethernot stat`, can read them.
//!
//! A started device listens on an abstract Unix socket. The name of the socket is [`SOCKET`]
//! followed by the process number. A process that connects receives one [`DeviceReport`] in JSON,
//! if it belongs to the same user or to root.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::attributes::QueuePairState;
use crate::completion_queue::CompletionQueue;
use crate::queue_pair::QueuePair;
use crate::services::QueuePairType;

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
    /// The TCP connection of a queue pair of an iWARP device; `None` if it has none, or for another
    /// device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamReport>,
}

/// The TCP connection of a queue pair, and what both ends have agreed on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamReport {
    /// The address and TCP port of this end.
    pub local: SocketAddr,
    /// The address and TCP port of the peer.
    pub peer: SocketAddr,
    /// Whether this end has initiated the connection.
    pub is_initiator: bool,
    /// The revision of MPA, 0 to 2.
    pub revision: u8,
    /// Whether frames (FPDUs) have CRCs.
    pub has_crc: bool,
    /// Whether this end sends markers.
    pub sends_markers: bool,
    /// Whether this end receives markers.
    pub receives_markers: bool,
    /// Whether the peer takes FPDUs that are longer than a TCP segment. Adapters do not, and Linux
    /// siw says so only as a responder, or with its option `try_gso`.
    pub takes_long_fpdus: bool,
    /// The software of the peer.
    #[serde(default)]
    pub peer_kind: StreamPeerKind,
}

/// The software of the peer of a TCP connection, as far as the set-up of the connection shows it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamPeerKind {
    /// A device of this project.
    Ours,
    /// Linux siw.
    Siw,
    /// Anything else, for example an adapter.
    #[default]
    Other,
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

impl DeviceReport {
    /// Returns a report about this process without queue pairs, for the device with this name.
    pub fn of_this_process(device: &str) -> Self {
        Self {
            format: FORMAT.into(),
            process: std::process::id(),
            program: program(),
            user: geteuid().as_raw(),
            device: device.into(),
            ..Self::default()
        }
    }
}

impl QueuePairReport {
    /// Returns a report with the number, the service and the state of a queue pair.
    pub fn of(queue_pair: &QueuePair) -> Self {
        let service = match queue_pair.service() {
            QueuePairType::Reliable => "RC",
            QueuePairType::Unreliable => "UC",
            QueuePairType::Datagram => "UD",
        };
        let state = match queue_pair.state() {
            QueuePairState::Reset => "RESET",
            QueuePairState::Init => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::SendQueueDrained => "SQD",
            QueuePairState::SendQueueError => "SQE",
            QueuePairState::Error => "ERR",
        };
        Self {
            number: queue_pair.number(),
            service: service.into(),
            state: state.into(),
            ..Self::default()
        }
    }
}

impl CompletionQueueReport {
    /// Returns the report about a completion queue.
    pub fn of(queue: &CompletionQueue) -> Self {
        Self {
            entries: queue.entries(),
            waiting: queue.work().len() as u32,
            is_overrun: queue.work().is_overrun(),
        }
    }
}

/// Returns the name of this process's program. If the process has set a name for itself, returns
/// that name.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().into()
}
