//! Why an `AF_XDP` link cannot be made.

use std::io;

use delivery::SettingError;
use thiserror::Error;

use super::config::{RING_FRAMES_MAX, RING_FRAMES_MIN, XdpMode};
use crate::ethernet::{ETHERTYPE_MIN, VLAN_MAX};

/// Why an `AF_XDP` link could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// Nothing is called so.
    #[error("no interface is called {interface:?}; there are: {}", known.join(", "))]
    NoSuchInterface {
        /// The name asked for.
        interface: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The interface has no Ethernet addresses.
    #[error(
        "{interface} is not an Ethernet interface, and AF_XDP links carry Ethernet frames; use \
         another interface, or a UDP link"
    )]
    NotEthernet {
        /// The interface.
        interface: String,
    },
    /// The administrator has switched the interface off.
    #[error("{interface} is down; switch it on: ip link set {interface} up")]
    InterfaceDown {
        /// The interface.
        interface: String,
    },
    /// The process may not.
    #[error(
        "cannot {attempt} {interface}: permission denied; it takes {capability}. Run as root, or \
         grant an AF_XDP link all it needs: setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM"
    )]
    NoPermission {
        /// What was attempted.
        attempt: &'static str,
        /// The interface.
        interface: String,
        /// What the kernel wants to see.
        capability: &'static str,
    },
    /// Another program takes the interface's frames.
    #[error(
        "{interface} has an XDP program already: {program}, number {id}. It was left alone. See who \
         put it there: bpftool net show; take it off: ip link set {interface} xdp off (if it is a \
         process that holds it, as another AF_XDP link does, end that); or use a packet link"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The program's name, or that it has none.
        program: String,
        /// The program's number.
        id: u32,
    },
    /// Another socket receives from the queue.
    #[error(
        "queue {queue} of {interface} belongs to another AF_XDP socket; use another queue (a link \
         needs the whole interface, though), or a packet link"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue asked for.
        queue: u32,
    },
    /// The interface has fewer queues.
    #[error("{interface} has no queue {queue}; choose one of its {queues}, counted from 0")]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue asked for.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// Another endpoint has the port.
    #[error(
        "port {port} of {interface} belongs to another endpoint (EtherType {ethertype:#06x}); \
         choose another port, or 0 for a free one"
    )]
    PortTaken {
        /// The interface.
        interface: String,
        /// The port asked for; 0 if all are taken.
        port: u16,
        /// The `EtherType`.
        ethertype: u16,
    },
    /// The interface is set to larger packets than its driver can hand out.
    #[error(
        "the driver of {interface} has no XDP for packets as large as its MTU, {mtu_bytes} bytes; \
         lower it: ip link set {interface} mtu {largest_bytes}"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// What surely goes.
        largest_bytes: u32,
    },
    /// The interface is set to smaller packets than the protocol can do with.
    #[error(
        "the MTU of {interface} is {mtu_bytes} bytes, and a link takes at least {least_bytes}; raise \
         it: ip link set {interface} mtu {least_bytes}"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// What a link needs.
        least_bytes: u32,
    },
    /// The driver or the kernel does not have what was asked for.
    #[error(
        "{interface} cannot do AF_XDP in {mode} mode ({source}); leave the mode open to get the \
         best that works"
    )]
    ModeUnsupported {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: XdpMode,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel was built without it.
    #[error(
        "this kernel has no AF_XDP ({source}); it takes Linux 5.9 with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL; use a packet link"
    )]
    Unsupported {
        /// What the kernel said.
        source: io::Error,
    },
    /// The memory for frames must not be locked.
    #[error(
        "the kernel does not let this process lock {bytes} bytes for frames on {interface}; raise \
         the limit (ulimit -l), grant CAP_IPC_LOCK, or ask for fewer frames"
    )]
    MemoryLimit {
        /// The interface.
        interface: String,
        /// Bytes wanted.
        bytes: usize,
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
    /// Not an `EtherType`.
    #[error("EtherType {ethertype:#06x} is a length; choose {ETHERTYPE_MIN:#06x} or above")]
    Ethertype {
        /// The number asked for.
        ethertype: u16,
    },
    /// Not a size that rings can have.
    #[error(
        "a ring cannot have {frames} frames; choose a power of two from {RING_FRAMES_MIN} to \
         {RING_FRAMES_MAX}"
    )]
    RingSize {
        /// The number asked for.
        frames: u32,
    },
    /// Anything else.
    #[error("cannot {attempt} {interface}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
}
