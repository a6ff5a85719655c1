//! What ethernot is measured against: bare exchanges of frames, and other programs.

pub mod bare;
mod sockperf;
mod tool;
mod ucx;

use std::net::IpAddr;
use std::path::Path;

use crate::results::Sample;
pub use tool::{ToolError, become_tool};

/// Another program that measures its own ping-pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum External {
    /// `ucx_perftest -t ucp_put_lat` over TCP.
    UcxTcp,
    /// `sockperf ping-pong --tcp`.
    SockperfTcp,
}

/// All of them.
pub const EXTERNAL: [External; 2] = [External::UcxTcp, External::SockperfTcp];

/// Bytes of the messages they are compared with. The smallest message of `sockperf` has 14.
pub const EXTERNAL_BYTES: u64 = 8;

/// Where a program's two halves run.
#[derive(Debug, Clone, Copy)]
pub struct Hosts<'a> {
    /// This program, which becomes the other one.
    pub program: &'a Path,
    /// The client's namespace.
    pub client: &'a str,
    /// The server's namespace.
    pub server: &'a str,
    /// The server's address.
    pub address: IpAddr,
    /// CPUs of client and server, if each is restricted to one.
    pub pinned_to: Option<[usize; 2]>,
}

impl External {
    /// Its name in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UcxTcp => "ucx-tcp",
            Self::SockperfTcp => "sockperf-tcp",
        }
    }

    /// Measures once.
    pub fn ping_pong(self, hosts: &Hosts<'_>) -> Result<Sample, ToolError> {
        match self {
            Self::UcxTcp => ucx::ping_pong(hosts),
            Self::SockperfTcp => sockperf::ping_pong(hosts),
        }
    }
}
