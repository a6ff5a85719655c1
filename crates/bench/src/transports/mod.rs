//! The transports that can be measured.

mod edge;
pub(crate) mod idle_limit;
mod tcp;
mod udp;

use crate::transport::Transport;
use crate::yardsticks::bare::Bare;
use crate::yardsticks::bare_stream::BareStream;
use crate::yardsticks::memcpy::Memcpy;
use crate::yardsticks::udp_segments::UdpSegments;

pub use edge::Edge;
pub use tcp::Tcp;
pub use udp::{EDGE_HEADER_BYTES, Udp};

/// The name of the transport that the others are compared with.
pub const BASELINE: &str = "tcp";

/// The name of kernel TCP with both sides polling.
pub const POLLING_BASELINE: &str = "tcp-poll";

/// The name of MPTCP with both sides blocking.
pub const MPTCP: &str = "mptcp";

/// The name of the edge protocol as it is.
pub const EDGE: &str = "edge";

/// The name of the edge protocol over shared memory.
pub const SHM: &str = "shm";

/// The name of the edge protocol by the rules of `MultiEdge`.
pub const MULTIEDGE: &str = "multiedge";

/// The name of the transport that shows what a datagram costs.
pub const YARDSTICK: &str = "udp";

/// The name of the yardstick of links over shared memory.
pub const MEMCPY: &str = "memcpy";

/// Returns every transport of this build, in the order in which they are run and shown.
pub fn all() -> Vec<Box<dyn Transport>> {
    vec![
        Box::new(Edge::new()),
        Box::new(Edge::shm()),
        Box::new(Edge::multiedge()),
        Box::new(Tcp::blocking()),
        Box::new(Tcp::polling()),
        Box::new(Tcp::multipath()),
        Box::new(Udp),
        Box::new(Bare::Packet),
        Box::new(Bare::Xdp),
        Box::new(Bare::Shm),
        Box::new(BareStream),
        Box::new(Memcpy),
        Box::new(UdpSegments),
    ]
}

/// Returns the transport called `name`.
pub fn by_name(name: &str) -> Option<Box<dyn Transport>> {
    all().into_iter().find(|transport| transport.name() == name)
}
