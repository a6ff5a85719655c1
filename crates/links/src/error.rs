//! What can go wrong with links, each with the value at fault and the remedy.

use std::io;

use link::{PacketError, ShmError, UdpError, XdpError};
use runtime::{AttachError, StartError};
use thiserror::Error;

use crate::LinkSpecError;

/// Why an endpoint could not be made, or given a further link.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The links could not be understood.
    #[error(transparent)]
    Links(#[from] LinkSpecError),
    /// The interfaces could not be listed.
    #[error(
        "cannot ask the kernel for its network interfaces (rtnetlink); allow this process netlink sockets, or name addresses"
    )]
    Interfaces(#[source] io::Error),
    /// No link was named, and there is none to choose.
    #[error(
        "no interface of this host is up with a carrier and an IP address; name links such as \
         packet:eth1, or see what `ethernot doctor` says"
    )]
    NoUsableInterface,
    /// The interface does not exist.
    #[error(
        "there is no interface {name:?}{}; this host has {}",
        meant(.nearest.as_deref()),
        .existing.join(", ")
    )]
    NoInterface {
        /// What was asked for.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
        /// Those there are.
        existing: Vec<String>,
    },
    /// The interface has no IP address.
    #[error(
        "interface {interface:?} has no IP address, which UDP needs; give it one \
         (`sudo ip address add 10.0.0.1/24 dev {interface}`), or use packet:{interface}"
    )]
    NoIpAddress {
        /// The interface.
        interface: String,
    },
    /// No kind of link works on the interface.
    #[error(
        "interface {interface:?} has no IP address for UDP, and raw Ethernet does not work there: \
         {source}"
    )]
    NoKind {
        /// The interface.
        interface: String,
        /// What happened to the link on raw Ethernet.
        source: Box<BindError>,
    },
    /// A packet link could not be made.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// An XDP link could not be made.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A link over shared memory could not be made.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The address could not be understood or resolved.
    #[error("cannot resolve the address {address}")]
    Resolve {
        /// What was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The socket could not be made.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The link could not be put to use.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel has no randomness.
    #[error(
        "the kernel gives no random bytes, without which keys could be guessed; allow this process `getrandom`"
    )]
    Entropy(#[source] io::Error),
    /// There are too many protection domains.
    #[error("the table of memory regions has no room for a protection domain; allow for one more")]
    NoDomain,
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean {nearest:?}?"))
}
