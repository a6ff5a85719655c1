//! Errors of verbs.

use nix::errno::Errno;
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

impl Error {
    /// Returns the error for a device that cannot do something, with all causes in its text. If the
    /// cause is that no file descriptor is left, the error contains the `errno` of the cause, because
    /// programs can handle this cause.
    pub fn of_cause(error: impl std::error::Error + 'static) -> Self {
        let mut what = error.to_string();
        let mut number = None;
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(error) = cause {
            let system = error.downcast_ref::<std::io::Error>();
            number = number.or(system.and_then(std::io::Error::raw_os_error));
            // Some texts contain their cause.
            let text = error.to_string();
            if !what.contains(&text) {
                what = format!("{what}: {text}");
            }
            cause = error.source();
        }
        let no_descriptor = [Errno::EMFILE as i32, Errno::ENFILE as i32];
        match number.filter(|number| no_descriptor.contains(number)) {
            Some(number) => Self::System { what, number },
            None => Self::Failed(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, Error)]
    #[error("cannot open")]
    struct Opening(#[source] io::Error);

    #[derive(Debug, Error)]
    #[error("cannot pin: {0}")]
    struct Pinning(#[source] io::Error);

    #[test]
    fn each_cause_is_in_the_text_once_and_only_missing_descriptors_keep_their_number() {
        let of = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        let text = |errno| of(errno).to_string();
        let opening = Error::of_cause(Opening(of(Errno::EMFILE)));
        let what = format!("cannot open: {}", text(Errno::EMFILE));
        assert_eq!(opening, Error::System { what, number: Errno::EMFILE as i32 });
        let pinning = Error::of_cause(Pinning(of(Errno::EINVAL)));
        assert_eq!(pinning, Error::Failed(format!("cannot pin: {}", text(Errno::EINVAL))));
    }
}
