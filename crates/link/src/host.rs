//! Interfaces of this host, routes to peers, and rights of the process, which links need to know.
//!
//! This module changes nothing. It queries the kernel directly (rtnetlink, ethtool, generic
//! netlink). It does not read `/sys/class/net`, because that folder shows the interfaces of the
//! network namespace in which it was mounted. The process may be in another namespace.

mod interfaces;
mod probe;
mod route;
mod watch;

pub use crate::ethtool::Channels;
pub use interfaces::{AttachedProgram, Interface, InterfaceAddress, ProgramMode, interfaces};
pub use probe::{
    Capabilities, Capability, MemoryLock, ProbeError, has_file_capabilities, memory_lock,
    probe_bpf_program, probe_packet_socket, probe_shared_memory, probe_xdp_socket, program_name,
};
pub use route::{Route, route_to};
pub use watch::{InterfaceWatch, WatchStopper};
