//! Translates errors of the system and of the runtime into errors of verbs.

use nix::errno::Errno;
use runtime::Forked;
use verbs::Error;

/// Returns the error for a device that does not start. If the cause is that no file descriptor is
/// left, the error contains the `errno` of the cause, because programs can handle this cause.
pub(crate) fn failed(error: impl std::error::Error + 'static) -> Error {
    let mut what = error.to_string();
    let mut number = None;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        let system = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        number = number.or(system);
        cause = error.source();
        // Some texts contain their cause.
        if let Some(cause) = cause.map(ToString::to_string).filter(|cause| !what.contains(cause)) {
            what = format!("{what}: {cause}");
        }
    }
    let no_descriptor = [Errno::EMFILE as i32, Errno::ENFILE as i32];
    match number.filter(|number| no_descriptor.contains(number)) {
        Some(number) => Error::System { what, number },
        None => Error::Failed(what),
    }
}

pub(crate) fn forked(error: Forked) -> Error {
    Error::NoDevice(error.to_string())
}
