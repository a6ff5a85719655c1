//! Why a verb fails.

use thiserror::Error;

/// Why a verb fails: what was attempted, and which `errno` programs see.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// `EINVAL`: an argument is wrong, or the object is in no state for this.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// `ENOMEM`: a queue is full, or a limit is reached.
    #[error("no room: {0}")]
    NoRoom(String),
    /// `EBUSY`: something still uses the object.
    #[error("in use: {0}")]
    Busy(String),
    /// `EOPNOTSUPP`: the device cannot do this.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// `ENODEV`: the device is gone, as after a fork.
    #[error("no device: {0}")]
    NoDevice(String),
    /// `EAGAIN`: nothing is there now.
    #[error("nothing is there now")]
    Again,
    /// `ETIMEDOUT`: no peer answers.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// What the operating system says, by its number.
    #[error("{what}: error {number} of the operating system")]
    System {
        /// What was attempted.
        what: String,
        /// `errno`.
        number: i32,
    },
    /// `EIO`: the device has failed, by a fault of this library.
    #[error("the device has failed: {0}")]
    Failed(String),
}
