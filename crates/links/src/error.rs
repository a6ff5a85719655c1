//! Errors of links. Each error text contains the wrong value and the remedy.

use std::io;

use link::{PacketError, ShmError, UdpError, XdpError};
use runtime::{AttachError, StartError};
use thiserror::Error;

use crate::parse::LinkSpecError;

/// The reason why an endpoint could not be created, or a link could not be added to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The names of the links are invalid.
    #[error(transparent)]
    Links(#[from] LinkSpecError),
    /// The interfaces could not be listed.
    #[error(
        "cannot read the list of network interfaces from the kernel; allow this process to open rtnetlink sockets"
    )]
    Interfaces(#[source] io::Error),
    /// The program named no link, and no interface is usable.
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
        /// The name that was given.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
        /// The interfaces of this host.
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
        /// The reason why a link on raw Ethernet could not be opened.
        source: Box<BindError>,
    },
    /// A packet link could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// An XDP link could not be opened.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A link over shared memory could not be opened.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The address could not be parsed or resolved.
    #[error("cannot resolve the address {address}")]
    Resolve {
        /// The address that was given.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The socket could not be opened.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The link could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel returned no random bytes.
    #[error(
        "the kernel returns no random bytes, which protect the keys from being guessed; allow this process to call `getrandom`"
    )]
    Entropy(#[source] io::Error),
    /// The table of protection domains is full.
    #[error(
        "the table of memory regions has no room for a protection domain; configure a larger table"
    )]
    NoDomain,
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean {nearest:?}?"))
}
