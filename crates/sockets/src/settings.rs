//! What is set by the environment, once, when the library is loaded.

use std::net::SocketAddr;

use thiserror::Error;

use crate::reasons::Reason;

/// Settings of the library in a process.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// Why settings are not understood.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A variable has a value that is not one.
    #[error("{variable}={value} is not understood; see docs/sockets.md for its values")]
    Value {
        /// The variable.
        variable: &'static str,
        /// What it was set to.
        value: String,
    },
}

/// Which end of a TCP connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It connected.
    Connecting,
    /// It accepted.
    Accepting,
}

/// What becomes of a connection, as far as this side has a say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    /// It moves, if the peer agrees.
    Edge,
    /// It is left to TCP.
    Tcp(Reason),
}

impl Settings {
    /// Reads the environment.
    pub fn from_environment() -> Result<Self, SettingsError> {
        Ok(Self::default())
    }

    /// What becomes of a connection between these addresses.
    pub fn choice(&self, role: Role, local: SocketAddr, peer: SocketAddr) -> Choice {
        let _ = (role, local, peer);
        Choice::Edge
    }
}
