//! Parses the names of links and peers that users write, opens links, and adapts the links when
//! interfaces change.
//!
//! A library for programs uses these types together with a [`runtime::Runtime`]:
//!
//! * [`LinkSpec`] parses names.
//! * [`NamedLinks`] opens links for names, and adapts them when interfaces change.
//! * [`Follower`] is the thread that watches the interfaces.
//! * [`rank_pairs`] decides which link to try for which address of a peer.
#![forbid(unsafe_code)]

mod error;
mod follow;
mod nearest;
mod open;
mod pairs;
mod parse;
mod peers;
mod problem;
mod spec;

pub use error::BindError;
pub use follow::{Follower, Linked, NamedLinks, Wanted};
pub use open::Opener;
pub use pairs::rank_pairs;
pub use parse::{LinkSpecError, LinkSpecProblem};
pub use peers::{IntoPeers, PeerSpec, PeerSpecError};
pub use problem::LinkProblem;
pub use spec::{LinkSpec, RawOptions, UdpPlace, XdpOptions};
