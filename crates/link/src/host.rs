//! What this host offers to links: its interfaces, the ways to peers, and what the process may do.
//!
//! Everything here asks and changes nothing. It asks the kernel directly (rtnetlink, ethtool, generic
//! netlink), because `/sys/class/net` shows the interfaces of the network namespace that mounted it,
//! which need not be that of the process.

mod ethtool;
mod interfaces;
pub(crate) mod netlink;
mod probe;
mod route;
mod watch;

pub use ethtool::Channels;
pub use interfaces::{AttachedProgram, Interface, InterfaceAddress, ProgramMode, interfaces};
pub use probe::{
    Capabilities, Capability, MemoryLock, ProbeError, has_file_capabilities, memory_lock,
    probe_bpf_program, probe_packet_socket, probe_shared_memory, probe_xdp_socket, program_name,
};
pub use route::{Route, route_to};
pub use watch::{InterfaceWatch, WatchStopper};
