//! Errors of links on raw Ethernet.

use std::fmt;
use std::io;

use delivery::SettingError;
use thiserror::Error;

use crate::ethernet::{ETHERTYPE_MIN, VLAN_MAX};
use crate::interface::Interface;

/// The reason why a packet link could not be opened, or no neighbour was found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The host has no interface with this name.
    #[error("no interface is called {interface:?}; this host has {known}")]
    NoSuchInterface {
        /// The requested name.
        interface: String,
        /// The existing names.
        known: Names,
    },
    /// The interface is not an Ethernet interface.
    #[error(
        "interface {interface} is not an Ethernet interface (perhaps a tunnel or a point-to-point \
         link); use a UDP link there"
    )]
    NotEthernet {
        /// The requested interface.
        interface: String,
    },
    /// The process may not open packet sockets.
    #[error(
        "interface {interface}: permission denied to {attempt}; raw Ethernet needs CAP_NET_RAW: run \
         as root, or `sudo setcap cap_net_raw+ep PROGRAM`, or use a UDP link"
    )]
    NoPermission {
        /// The requested interface.
        interface: String,
        /// The operation that was refused.
        attempt: &'static str,
    },
    /// The interface is down.
    #[error("interface {interface} is down; `sudo ip link set {interface} up` switches it on")]
    InterfaceDown {
        /// The requested interface.
        interface: String,
    },
    /// The interface's MTU is below the smallest useful frame.
    #[error(
        "interface {interface} has an MTU of {mtu_bytes} bytes and a frame needs at least \
         {least_bytes}; `sudo ip link set {interface} mtu 1500` raises it"
    )]
    MtuTooSmall {
        /// The requested interface.
        interface: String,
        /// The interface's MTU, in bytes.
        mtu_bytes: u32,
        /// The smallest MTU that a link needs, in bytes.
        least_bytes: u32,
    },
    /// Another link of this host uses the port.
    #[error(
        "port {port} on interface {interface} is in use by another endpoint; choose another, or 0 \
         for a free one"
    )]
    PortTaken {
        /// The requested interface.
        interface: String,
        /// The requested port.
        port: u16,
    },
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The VLAN number is out of range.
    #[error("VLAN {vlan} does not exist; choose one between 1 and {VLAN_MAX}")]
    Vlan {
        /// The requested number.
        vlan: u16,
    },
    /// The `EtherType` is out of range, or used by the host's own protocols.
    #[error(
        "EtherType {ethertype:#06x}: between {ETHERTYPE_MIN:#06x} and 0xffff are possible, but none \
         that the host's own protocols use (IPv4, ARP, IPv6, VLAN tags); {:#06x} is the default",
        wire_edge::ETHERTYPE_DEFAULT
    )]
    Ethertype {
        /// The requested number.
        ethertype: u16,
    },
    /// The kernel refuses the fault-safe copy of the process's own memory.
    #[error(
        "the kernel refuses `process_vm_readv` to this process, which a link needs to read the \
         program's memory safely wherever it cannot catch a fault itself; allow it in the sandbox \
         (seccomp profile), or use a UDP link"
    )]
    NoFaultSafeCopies {
        /// The error of the system call.
        source: io::Error,
    },
    /// No station answered in time.
    #[error(
        "interface {interface}: {who} did not answer within {limit_ms} ms; is it up, on the same Ethernet and VLAN?"
    )]
    NoAnswer {
        /// The interface on which the request was sent.
        interface: String,
        /// The station or endpoint that was sought.
        who: String,
        /// Length of the wait, in milliseconds.
        limit_ms: u128,
    },
    /// Any other error of the system.
    #[error("interface {interface}: cannot {attempt}")]
    Io {
        /// The requested interface.
        interface: String,
        /// The operation that failed.
        attempt: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl PacketError {
    /// Returns the error for a failed system call during `attempt`.
    pub(crate) fn new(interface: &str, attempt: &'static str, source: io::Error) -> Self {
        let interface = interface.to_string();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { interface, attempt },
            Some(libc::ENODEV | libc::ENXIO) => {
                Self::NoSuchInterface { interface, known: Names(Interface::names()) }
            }
            Some(libc::ENETDOWN) => Self::InterfaceDown { interface },
            _ => Self::Io { interface, attempt, source },
        }
    }

    /// Returns the error for a failed query of the interface called `name`.
    pub(crate) fn of_interface(name: &str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::InvalidInput {
            let known = Names(Interface::names());
            return Self::NoSuchInterface { interface: name.to_string(), known };
        }
        Self::new(name, "query its state", source)
    }
}

/// Names of interfaces, displayed as a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_interface_and_the_remedy() {
        let error = |errno| {
            PacketError::new("edge0", "open a socket", io::Error::from_raw_os_error(errno))
                .to_string()
        };
        assert!(error(libc::EPERM).contains("CAP_NET_RAW"));
        assert!(
            error(libc::ENODEV).contains("this host has") && error(libc::ENODEV).contains("lo")
        );
        assert!(error(libc::ENETDOWN).contains("ip link set edge0 up"));
        assert_eq!(error(libc::EIO), "interface edge0: cannot open a socket");
        let text = PacketError::Ethertype { ethertype: 5 }.to_string();
        assert!(text.contains("0x0005") && text.contains("0x0600"), "{text}");
    }
}
