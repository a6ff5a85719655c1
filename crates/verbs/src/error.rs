//! Errors of verbs.

use thiserror::Error;

/// Error of a verb, with what was attempted and the `errno` that programs get.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// `EINVAL`: an argument is wrong, or the object is in the wrong state.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// `ENOMEM`: a queue is full, or a limit is reached.
    #[error("no room: {0}")]
    NoRoom(String),
    /// `EBUSY`: other objects still use this one.
    #[error("in use: {0}")]
    Busy(String),
    /// `EOPNOTSUPP`: the device does not support this.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// `ENODEV`: the device is gone, as after a fork.
    #[error("no device: {0}")]
    NoDevice(String),
    /// `EAGAIN`: there is no event now.
    #[error("no event is available now")]
    Again,
    /// `ETIMEDOUT`: no peer answers.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// An error of the operating system, with its `errno`.
    #[error("{what}: error {number} of the operating system")]
    System {
        /// What was attempted.
        what: String,
        /// `errno`.
        number: i32,
    },
    /// `EIO`: the device has failed because of a fault in this library.
    #[error("the device has failed: {0}")]
    Failed(String),
}
