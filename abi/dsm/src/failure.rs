//! Results of calls, and the text of the last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dsm::Error;

/// The result of a call. For each result except `ETHERNOT_DSM_RESULT_OK`,
/// `ethernot_dsm_last_error` returns a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum Result {
    /// Success.
    Ok = 0,
    /// The request is impossible, a pointer is null, or a variable of the environment has no
    /// meaning. Remedy: change the request.
    Invalid = 1,
    /// The process has not joined, or has left. Remedy: call `ethernot_dsm_init` first.
    NotJoined = 2,
    /// The process has joined before. A process can join once.
    AlreadyJoined = 3,
    /// The region has no room. Remedy: raise `region_bytes` on all ranks.
    NoRoom = 4,
    /// The object is not in a state that permits the call: for example, this thread does not hold
    /// the lock that it releases. The call has had no effect.
    Misuse = 5,
    /// A rank did not come in time. The text names it.
    Missing = 6,
    /// A rank refused this rank, because their settings differ. The text names the setting.
    Refused = 7,
    /// The network does not work. The text names the step.
    Network = 8,
    /// The operating system rejected a request. The text names the request.
    System = 9,
    /// A rank has failed. The text names its rank, process and host. All later calls return this.
    Failed = 10,
    /// The library has a bug. The rank may be in any state.
    Fault = 11,
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let result = match &error {
            Error::Joined => Result::AlreadyJoined,
            Error::NoRoom { .. } => Result::NoRoom,
            Error::Misuse(_) => Result::Misuse,
            Error::Missing { .. } => Result::Missing,
            Error::Refused { .. } => Result::Refused,
            Error::Network { .. } => Result::Network,
            Error::View(_) | Error::Thread(_) => Result::System,
            Error::Failed(_) => Result::Failed,
            _ => Result::Invalid,
        };
        Self::new(result, error.to_string())
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
pub extern "C" fn ethernot_dsm_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map(|text| text.as_ptr()).ok());
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the name of a result, such as "not joined". Returns "unknown" for a number that is not a
/// result.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_result_name(result: i32) -> *const c_char {
    let name = match result {
        0 => c"ok",
        1 => c"invalid",
        2 => c"not joined",
        3 => c"already joined",
        4 => c"no room",
        5 => c"misuse",
        6 => c"missing",
        7 => c"refused",
        8 => c"network",
        9 => c"system",
        10 => c"failed",
        11 => c"fault",
        _ => c"unknown",
    };
    name.as_ptr()
}
