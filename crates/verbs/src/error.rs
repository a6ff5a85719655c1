//! Errors of verbs.

use thiserror::Error;

/// Error of a verb. The text of the error names the failed action. Each variant corresponds to an
/// `errno`.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// `EINVAL`: an argument is wrong, or the object is in the wrong state.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// `ENOMEM`: a queue is full, or a limit is reached.
    #[error("no room: {0}")]
    NoRoom(String),
    /// `EBUSY`: other objects still use the object that is to be destroyed.
    #[error("in use: {0}")]
    Busy(String),
    /// `EOPNOTSUPP`: the device does not support the request.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// `ENODEV`: the device is gone, for example in a forked child.
    #[error("no device: {0}")]
    NoDevice(String),
    /// `EAGAIN`: no event is queued.
    #[error("no event is available now")]
    Again,
    /// `ETIMEDOUT`: the peer does not answer.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The operating system reported an error.
    #[error("{what}: error {number} of the operating system")]
    System {
        /// The attempted action.
        what: String,
        /// The `errno` value.
        number: i32,
    },
    /// `EIO`: a fault in this library has made the device fail.
    #[error("the device has failed: {0}")]
    Failed(String),
}
