//! Converts errors and panics to error numbers for C programs.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use verbs::Error;
use verbs_edge::{LogLevel, Settings};

/// Runs the body of a call that returns 0 or an error number, like most calls.
pub(crate) fn code(call: &str, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    match caught(call, body) {
        Ok(()) => 0,
        Err(number) => number,
    }
}

/// Runs the body of a call that returns a number. Returns -1 on an error.
pub(crate) fn number(call: &str, body: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    caught(call, body).unwrap_or(-1)
}

/// Runs the body of a call that returns a 64-bit number. Returns -1 on an error.
pub(crate) fn signed(call: &str, body: impl FnOnce() -> Result<i64, Error>) -> i64 {
    caught(call, body).unwrap_or(-1)
}

/// Runs the body of a call that returns a pointer. Returns null on an error.
pub(crate) fn pointer<T>(call: &str, body: impl FnOnce() -> Result<*mut T, Error>) -> *mut T {
    caught(call, body).unwrap_or(ptr::null_mut())
}

/// Runs the body of a call that cannot report errors. Returns `otherwise` on an error.
pub(crate) fn silent<T>(call: &str, otherwise: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    caught(call, body).unwrap_or(otherwise)
}

/// Runs the body of a call. If the body fails, stores the error number in `errno`, and returns that
/// number as the error.
///
/// A panic becomes the error `EIO` and does not abort the program. After a panic, the state of the
/// devices is unreliable, so the program gets the event that the devices have failed.
fn caught<T>(call: &str, body: impl FnOnce() -> Result<T, Error>) -> Result<T, c_int> {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(_) => {
            // The message of the panic is already printed. If reporting the failure panics too,
            // ignore the second panic.
            let _ = catch_unwind(crate::device::report_failure);
            Error::Failed("a fault of the library".into())
        }
    };
    let number = errno_of(&error);
    if !matches!(error, Error::Again) {
        say(LogLevel::Debug, &format!("{call}: {error}"));
    }
    set_errno(number);
    Err(number)
}

/// Returns the `errno` value of an error.
pub(crate) fn errno_of(error: &Error) -> c_int {
    match error {
        Error::Invalid(_) => libc::EINVAL,
        Error::NoRoom(_) => libc::ENOMEM,
        Error::Busy(_) => libc::EBUSY,
        Error::NotSupported(_) => libc::EOPNOTSUPP,
        Error::NoDevice(_) => libc::ENODEV,
        Error::Again => libc::EAGAIN,
        Error::TimedOut(_) => libc::ETIMEDOUT,
        Error::System { number, .. } => *number,
        _ => libc::EIO,
    }
}

/// Returns an error about an invalid argument.
pub(crate) fn invalid<T>(what: &str) -> Result<T, Error> {
    Err(Error::Invalid(what.into()))
}

/// Returns an error about an unsupported feature.
pub(crate) fn unsupported<T>(what: &str) -> Result<T, Error> {
    Err(Error::NotSupported(what.into()))
}

/// Prints a message on standard error if the log level includes messages of level `at`.
pub(crate) fn say(at: LogLevel, what: &str) {
    if level() >= at {
        eprintln!("ethernot: {what}");
    }
}

/// Returns the log level of the settings.
fn level() -> LogLevel {
    static LEVEL: OnceLock<LogLevel> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        Settings::from_environment().map_or(LogLevel::Warn, |settings| settings.log)
    })
}

/// Sets the `errno` of this thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the pointer refers to a variable of this thread, which lives as long as the thread.
    unsafe { *libc::__errno_location() = number };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
    }

    #[test]
    fn a_panic_is_an_error_of_its_call_only() {
        assert_eq!(code("test", || panic!("on purpose")), libc::EIO);
        assert_eq!(errno(), libc::EIO);
        assert_eq!(number("test", || panic!("on purpose")), -1);
        assert!(pointer::<u8>("test", || panic!("on purpose")).is_null());
    }

    #[test]
    fn an_error_is_returned_and_stored_in_errno() {
        assert_eq!(code("test", || Err(Error::Busy("x".into()))), libc::EBUSY);
        assert_eq!(errno(), libc::EBUSY);
        assert_eq!(number("test", || Err(Error::Again)), -1);
        assert_eq!(errno(), libc::EAGAIN);
    }
}
