//! Translates errors of the system and of the runtime into errors of verbs.

use std::io;

use nix::errno::Errno;
use runtime::Forked;
use verbs::Error;

/// Returns the error of a system call, with its `errno`. `what` names what was attempted.
pub(crate) fn system(what: String, error: &io::Error) -> Error {
    Error::System { what, number: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}

pub(crate) fn forked(error: Forked) -> Error {
    Error::NoDevice(error.to_string())
}
