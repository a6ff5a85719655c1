//! Which number an event has for an error.

use nix::errno::Errno;
use verbs::Error;

/// What an event says of an error.
pub(crate) fn status_of(error: &Error) -> i32 {
    let errno = match error {
        Error::System { number, .. } => return -number,
        Error::Invalid(_) => Errno::EINVAL,
        Error::NoRoom(_) => Errno::ENOMEM,
        Error::Busy(_) => Errno::EBUSY,
        Error::NotSupported(_) => Errno::EOPNOTSUPP,
        Error::NoDevice(_) => Errno::ENODEV,
        Error::Again => Errno::EAGAIN,
        Error::TimedOut(_) => Errno::ETIMEDOUT,
        // Also what later kinds of errors are, until they have a number here.
        _ => Errno::EIO,
    };
    -(errno as i32)
}
