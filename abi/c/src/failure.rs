//! Results of calls, and the text of the last error.

use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ethernot::{Error, ErrorKind};

/// The result of a call. For each result except `ETHERNOT_RESULT_OK`, `ethernot_last_error` returns
/// a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum Result {
    /// Success.
    Ok = 0,
    /// The request is impossible, a pointer is null, or a string is not UTF-8. Remedy: change the
    /// request.
    Invalid = 1,
    /// The handle is null, belongs to an object of another kind, or has been freed.
    BadHandle = 2,
    /// The timeout has expired. The operation or event for which the call waited is still pending.
    /// Remedy: wait again.
    TimedOut = 3,
    /// There is no event now, or there is no room now. Remedy: poll, let operations complete, and
    /// retry.
    Again = 4,
    /// The connection or the endpoint has ended. Remedy: create a new connection or endpoint.
    Closed = 5,
    /// The peer is reachable but has rejected the connection. Remedy: check the service number.
    Refused = 6,
    /// There is no route to the peer, or no process answers at its address. Remedy: check that the
    /// peer's process is running.
    Unreachable = 7,
    /// The name or number is already in use. Remedy: choose another name or number.
    InUse = 8,
    /// An operation failed. The text says whether the peer rejected the operation, the peer was
    /// lost, or the peer had no room.
    Failed = 9,
    /// The operating system rejected a request. The text names the request.
    System = 10,
    /// The process is a forked child. Remedy: create a new endpoint in the child.
    Forked = 11,
    /// The library has a bug. The endpoint may be in any state.
    Fault = 12,
}

/// The result and the error text of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) result: Result,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(result: Result, text: impl Into<String>) -> Self {
        Self { result, text: text.into() }
    }

    /// Creates the failure for a null pointer where null is not allowed.
    pub(crate) fn null(what: &str) -> Self {
        Self::new(Result::Invalid, format!("{what} is a null pointer"))
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let result = match error.kind() {
            ErrorKind::TimedOut => Result::TimedOut,
            ErrorKind::Busy => Result::Again,
            ErrorKind::Closed => Result::Closed,
            ErrorKind::Refused => Result::Refused,
            ErrorKind::Unreachable => Result::Unreachable,
            ErrorKind::InUse => Result::InUse,
            ErrorKind::Failed => Result::Failed,
            ErrorKind::System => Result::System,
            ErrorKind::Forked => Result::Forked,
            _ => Result::Invalid,
        };
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            // If the text already contains the text of a cause, leave out that cause.
            let inner_text = inner.to_string();
            if !text.contains(&inner_text) {
                text.push_str(": ");
                text.push_str(&inner_text);
            }
            cause = inner.source();
        }
        Self { result, text }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs the body of a call. Stores the text of an error for the calling thread.
pub(crate) fn call(body: impl FnOnce() -> std::result::Result<(), Failure>) -> Result {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Result::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Result::Fault, "a fault of the library, reported on standard error"),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // Ignore errors: if the thread is exiting, its thread-local text may already be destroyed.
    let _gone = LAST.try_with(|last| last.replace(text));
    failure.result
}

/// Returns the error text of the last failed call of this thread. Returns an empty string if no
/// call has failed. The text is valid until the next call of this thread. The program must not free
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map(|text| text.as_ptr()).ok());
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the name of a result, such as "timed out". Returns "unknown" for a number that is not a
/// result.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_result_name(result: i32) -> *const c_char {
    let name = match result {
        0 => c"ok",
        1 => c"invalid",
        2 => c"bad handle",
        3 => c"timed out",
        4 => c"again",
        5 => c"closed",
        6 => c"refused",
        7 => c"unreachable",
        8 => c"in use",
        9 => c"failed",
        10 => c"system",
        11 => c"forked",
        12 => c"fault",
        _ => c"unknown",
    };
    name.as_ptr()
}
