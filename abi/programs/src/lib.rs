//! Runs unmodified RDMA programs with the project's libraries, on loopback and between two network
//! namespaces, for system tests and for acceptance figures.
//!
//! If a test cannot run here, it prints a line that begins with `skipped` and gives the reason: a
//! program is missing, or this process may not create namespaces.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "processes are waited for by looking at them, within a limit"
)]

mod clean_root;
mod client;
mod frames;
mod guest;
mod libfabric;
mod libraries;
mod meeting;
mod mpi;
mod network;
mod ports;
mod process;
mod pyverbs;
mod ranks;
mod sockets;
mod sockets_conformance;
mod sockets_documents;
mod sockets_http;
mod sockets_services;
mod wheels;

pub use clean_root::CleanRoot;
pub use client::{
    build_client, build_mpi_client, build_mpi_tool, build_plain_client,
    serves_behind_a_lingering_client,
};
pub use frames::{Dissection, unusual_frames};
pub use guest::{Card, Guest, Place};
pub use libfabric::{fi_pingpong, fi_pingpong_with};
pub use libraries::{Libraries, ethernot, xtask};
pub use meeting::{Ends, Meeting};
pub use mpi::Mpi;
pub use network::{Network, Sent, Side};
pub use process::{Finished, Program, Running, expect_both};
pub use pyverbs::pyverbs_suite;
pub use ranks::{Hosts, Launcher, over_us};
pub use sockets::{Counters, Loaded, Stage, WARM_UPS_MS};
pub use sockets_conformance::Subject;
pub use sockets_documents::{Document, Documents};
pub use sockets_http::{HttpClient, HttpServer};
pub use sockets_services::{Service, python_client, python_store};
pub use wheels::wheel;

/// Returns whether all these programs are installed. If not, prints the name of the first missing
/// program.
pub fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs
        .iter()
        .find(|program| !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if let Some(program) = missing {
        println!(
            "skipped: `{program}` is not installed (`./x test` installs it where there is apt)"
        );
    }
    missing.is_none()
}
