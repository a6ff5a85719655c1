//! Why a link on raw Ethernet cannot be made.

use std::fmt;
use std::io;

use delivery::SettingError;
use thiserror::Error;

use crate::Interface;
use crate::ethernet::{ETHERTYPE_MIN, VLAN_MAX};

/// Why a packet link could not be made, or a neighbour not be found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The host has no interface of the name.
    #[error("no interface is called {interface:?}; this host has {known}")]
    NoSuchInterface {
        /// The name asked for.
        interface: String,
        /// The names there are.
        known: Names,
    },
    /// The interface carries no Ethernet frames.
    #[error(
        "interface {interface} is no Ethernet (a tunnel or a point-to-point link, perhaps); use a \
         UDP link there"
    )]
    NotEthernet {
        /// The interface asked for.
        interface: String,
    },
    /// The process may not open packet sockets.
    #[error(
        "interface {interface}: permission denied to {attempt}; raw Ethernet needs CAP_NET_RAW: run \
         as root, or `sudo setcap cap_net_raw+ep PROGRAM`, or use a UDP link"
    )]
    NoPermission {
        /// The interface asked for.
        interface: String,
        /// What was refused.
        attempt: &'static str,
    },
    /// The interface is switched off.
    #[error("interface {interface} is down; `sudo ip link set {interface} up` switches it on")]
    InterfaceDown {
        /// The interface asked for.
        interface: String,
    },
    /// The interface carries less than a frame.
    #[error(
        "interface {interface} has an MTU of {mtu_bytes} bytes and a frame needs at least \
         {least_bytes}; `sudo ip link set {interface} mtu 1500` raises it"
    )]
    MtuTooSmall {
        /// The interface asked for.
        interface: String,
        /// What it carries.
        mtu_bytes: u32,
        /// What it would have to carry.
        least_bytes: u32,
    },
    /// Another link of this host has the port.
    #[error(
        "port {port} on interface {interface} is in use by another endpoint; choose another, or 0 \
         for a free one"
    )]
    PortTaken {
        /// The interface asked for.
        interface: String,
        /// The port asked for.
        port: u16,
    },
    /// Nothing works with a setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Not a VLAN.
    #[error("VLAN {vlan} does not exist; choose one between 1 and {VLAN_MAX}")]
    Vlan {
        /// The number asked for.
        vlan: u16,
    },
    /// Not an `EtherType` for frames of our own.
    #[error(
        "EtherType {ethertype:#06x}: between {ETHERTYPE_MIN:#06x} and 0xffff are possible, but none \
         that the host's own protocols use (IPv4, ARP, IPv6, VLAN tags); {:#06x} is the default",
        wire_edge::ETHERTYPE_DEFAULT
    )]
    Ethertype {
        /// The number asked for.
        ethertype: u16,
    },
    /// The kernel does not let the process copy its own memory fault-safe.
    #[error(
        "the kernel refuses `process_vm_readv` to this process, which a link needs to read the \
         program's memory safely wherever it cannot catch a fault itself; allow it in the sandbox \
         (seccomp profile), or use a UDP link"
    )]
    NoFaultSafeCopies {
        /// What it said.
        source: io::Error,
    },
    /// No answer came in time.
    #[error(
        "interface {interface}: {who} did not answer within {limit_ms} ms; is it up, on the same Ethernet and VLAN?"
    )]
    NoAnswer {
        /// The interface asked on.
        interface: String,
        /// Who was asked for.
        who: String,
        /// How long was waited, in milliseconds.
        limit_ms: u128,
    },
    /// Anything else.
    #[error("interface {interface}: cannot {attempt}")]
    Io {
        /// The interface asked for.
        interface: String,
        /// What was attempted.
        attempt: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PacketError {
    /// Names what was attempted when the system refused it.
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

    /// Why the interface called `name` cannot be asked.
    pub(crate) fn of_interface(name: &str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::InvalidInput {
            let known = Names(Interface::names());
            return Self::NoSuchInterface { interface: name.to_string(), known };
        }
        Self::new(name, "ask what it is", source)
    }
}

/// Names of interfaces, shown as a list.
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
