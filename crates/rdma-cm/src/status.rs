//! Translates errors to the status of events.

use nix::errno::Errno;
use verbs::Error;

/// Returns the event status of an error: a negative `errno`.
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
        // The error type may get further variants later. Report them as `EIO`.
        _ => Errno::EIO,
    };
    -(errno as i32)
}
