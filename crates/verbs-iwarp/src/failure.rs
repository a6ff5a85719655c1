//! Translates errors of the system and of the runtime into errors of verbs.

use std::io;

use nix::errno::Errno;
use runtime::Forked;
use verbs::Error;

/// Returns the error for a device that cannot do something, with all causes in its text.
pub(crate) fn failed(error: impl std::error::Error) -> Error {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some texts contain their cause.
        if !what.contains(&text) {
            what = format!("{what}: {text}");
        }
        cause = error.source();
    }
    Error::Failed(what)
}

/// Returns the error of a system call, with its `errno`. `what` names what was attempted.
pub(crate) fn system(what: String, error: &io::Error) -> Error {
    Error::System { what, number: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}

pub(crate) fn forked(error: Forked) -> Error {
    Error::NoDevice(error.to_string())
}
