//! Errors of `AF_XDP` links.

use std::io;

use delivery::SettingError;
use thiserror::Error;

use super::config::{RING_FRAMES_MAX, RING_FRAMES_MIN, XdpMode};
use crate::ethernet::{ETHERTYPE_MIN, VLAN_MAX};

/// The reason why an `AF_XDP` link could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The host has no interface with this name.
    #[error("no interface is called {interface:?}; this host has: {}", known.join(", "))]
    NoSuchInterface {
        /// The requested name.
        interface: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The interface is not an Ethernet interface.
    #[error(
        "{interface} is not an Ethernet interface, and AF_XDP links carry Ethernet frames; use \
         another interface, or a UDP link"
    )]
    NotEthernet {
        /// The interface.
        interface: String,
    },
    /// The interface is down.
    #[error("{interface} is down; switch it on: ip link set {interface} up")]
    InterfaceDown {
        /// The interface.
        interface: String,
    },
    /// The process lacks a capability.
    #[error(
        "cannot {attempt} {interface}: permission denied; this needs {capability}. Run as root, \
         or grant all rights that an AF_XDP link needs: setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM"
    )]
    NoPermission {
        /// The operation that was refused.
        attempt: &'static str,
        /// The interface.
        interface: String,
        /// The required capability.
        capability: &'static str,
    },
    /// Another XDP program is attached to the interface.
    #[error(
        "{interface} has an XDP program already: {program}, number {id}. It was not changed. Find its \
         owner: bpftool net show; detach it: ip link set {interface} xdp off (if a process holds \
         it, as another AF_XDP link does, end that process); or use a packet link"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The program's name, or a note that the program has no name.
        program: String,
        /// The program's number.
        id: u32,
    },
    /// Another socket is bound to the queue.
    #[error(
        "queue {queue} of {interface} belongs to another AF_XDP socket; use another queue (a link \
         needs the whole interface, though), or a packet link"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u32,
    },
    /// The interface does not have this queue.
    #[error("{interface} has no queue {queue}; choose one of its {queues}, counted from 0")]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// Another endpoint uses the port.
    #[error(
        "port {port} of {interface} belongs to another endpoint (EtherType {ethertype:#06x}); \
         choose another port, or 0 for a free one"
    )]
    PortTaken {
        /// The interface.
        interface: String,
        /// The requested port; 0 if no port is free.
        port: u16,
        /// The `EtherType`.
        ethertype: u16,
    },
    /// The interface's MTU exceeds what its driver supports with XDP.
    #[error(
        "the driver of {interface} has no XDP for packets as large as its MTU, {mtu_bytes} bytes; \
         lower it: ip link set {interface} mtu {largest_bytes}"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// The interface's MTU, in bytes.
        mtu_bytes: u32,
        /// The largest MTU that every driver with XDP supports, in bytes.
        largest_bytes: u32,
    },
    /// The interface's MTU is below the smallest useful frame.
    #[error(
        "the MTU of {interface} is {mtu_bytes} bytes, and a link needs at least {least_bytes}; raise \
         it: ip link set {interface} mtu {least_bytes}"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// The interface's MTU, in bytes.
        mtu_bytes: u32,
        /// The smallest MTU that a link needs, in bytes.
        least_bytes: u32,
    },
    /// The driver or the kernel does not support the mode.
    #[error(
        "{interface} does not support AF_XDP in {mode} mode ({source}); set no mode to get the best \
         one that works"
    )]
    ModeUnsupported {
        /// The interface.
        interface: String,
        /// The requested mode.
        mode: XdpMode,
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel was built without `AF_XDP`.
    #[error(
        "this kernel has no AF_XDP ({source}); AF_XDP needs Linux 5.9 with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL; use a packet link"
    )]
    Unsupported {
        /// The error of the system call.
        source: io::Error,
    },
    /// The process may not lock the memory for frames.
    #[error(
        "the kernel does not let this process lock {bytes} bytes for frames on {interface}; raise \
         the limit (ulimit -l), grant CAP_IPC_LOCK, or ask for fewer frames"
    )]
    MemoryLimit {
        /// The interface.
        interface: String,
        /// The number of bytes to lock.
        bytes: usize,
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
    /// The number is a length and not an `EtherType`.
    #[error("EtherType {ethertype:#06x} is a length; choose {ETHERTYPE_MIN:#06x} or above")]
    Ethertype {
        /// The requested number.
        ethertype: u16,
    },
    /// The number is not a valid ring size.
    #[error(
        "a ring cannot have {frames} frames; choose a power of two from {RING_FRAMES_MIN} to \
         {RING_FRAMES_MAX}"
    )]
    RingSize {
        /// The requested number.
        frames: u32,
    },
    /// Any other error of the system.
    #[error("cannot {attempt} {interface}")]
    Io {
        /// The operation that failed.
        attempt: &'static str,
        /// The interface.
        interface: String,
        /// The error of the system call.
        source: io::Error,
    },
}
