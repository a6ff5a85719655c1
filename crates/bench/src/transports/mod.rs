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

/// Name of the transport with which all others are compared.
pub const BASELINE: &str = "tcp";

/// Name of kernel TCP with both sides polling.
pub const POLLING_BASELINE: &str = "tcp-poll";

/// Name of MPTCP with both sides blocking.
pub const MPTCP: &str = "mptcp";

/// Name of the edge protocol with this project's sending policy.
pub const EDGE: &str = "edge";

/// Name of the edge protocol over shared memory.
pub const SHM: &str = "shm";

/// Name of the edge protocol with the sending policy of `MultiEdge`.
pub const MULTIEDGE: &str = "multiedge";

/// Name of bare UDP, the yardstick for the cost of a datagram.
pub const YARDSTICK: &str = "udp";

/// Name of the yardstick for links over shared memory.
pub const MEMCPY: &str = "memcpy";

/// Returns all transports of this build, in the order in which they run and appear.
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
