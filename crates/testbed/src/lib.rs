//! Hosts for measurements and tests on one machine: network namespaces, the links and switches
//! between them, and the clean-up when the process ends.
//!
//! [`pair::NamespacePair`] joins a client's and a server's host by links, [`star::Star`] joins
//! many hosts by one switch, and [`host::Host`] is a thread of a test with its own namespace.

#![forbid(unsafe_code)]

pub mod built;
pub mod cleanup;
pub mod clock;
pub mod host;
pub mod lever;
pub mod mptcp;
pub mod namespace;
pub mod pair;
pub mod star;
pub mod switched;
