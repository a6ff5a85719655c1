//! Why ranks cannot be started or served.

use std::ffi::OsString;
use std::fmt;
use std::io;

use thiserror::Error;

use crate::error::write_with_causes;

/// Why [`Launch::run`](super::Launch::run) failed. Its `Debug` form is its text, as that of
/// [`crate::Error`].
#[derive(Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of ranks is out of range.
    #[error("{0} ranks: choose 1 to {most}", most = dsm_protocol::NODES_MAX)]
    Size(usize),
    /// A program cannot be started.
    #[error("start {}: {source}{}", .program.display(), remedy(.source))]
    Program {
        /// The program of the ranks, or the one that starts commands on hosts.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// Hosts, but no program that starts commands there.
    #[error("no program that starts commands on hosts; name one, such as ssh")]
    NoShell,
    /// The first host has no address.
    #[error(
        "find the address of host {host}: {source}; name the address at which ranks reach it: --meet ADDRESS:PORT"
    )]
    Address {
        /// The host.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// No port is free.
    #[error(
        "no UDP port from {first} to {last} of this host is free; name one: --meet 127.0.0.1:PORT"
    )]
    NoPort {
        /// First port that was tried.
        first: u16,
        /// Last port that was tried.
        last: u16,
    },
    /// A line of a rank cannot be copied.
    #[error("write what the ranks print: {0}")]
    Output(#[source] io::Error),
    /// The kernel does not say whether a rank has ended.
    #[error("wait for the ranks: {0}")]
    Wait(#[source] io::Error),
}

impl fmt::Debug for LaunchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(self, formatter)
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; name the file of the program, or add its folder to PATH",
        io::ErrorKind::PermissionDenied => "; make the file executable with chmod +x",
        _ => "",
    }
}
