//! Results of calls, and the text of the last error.

use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ethernot::{Error, ErrorKind};

/// The result of a call. `ethernot_last_error` has the text of all but the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum Result {
    /// Done.
    Ok = 0,
    /// What was asked for is impossible, a pointer is null or a string is not UTF-8: ask for something else.
    Invalid = 1,
    /// The handle is null, of another kind, or was freed.
    BadHandle = 2,
    /// The limit of a wait has passed, and what was waited for goes on: wait again.
    TimedOut = 3,
    /// There is nothing, or no room, at the moment: poll, finish something, and try again.
    Again = 4,
    /// The connection or the endpoint has ended: make another.
    Closed = 5,
    /// The peer is there and refused the connection: is the service right?
    Refused = 6,
    /// No route leads to the peer, or no process answers there: is it running?
    Unreachable = 7,
    /// It is in use already: choose another.
    InUse = 8,
    /// An operation failed: the text says whether the peer refused it, went away, or had no room.
    Failed = 9,
    /// The operating system refused something: the text says what.
    System = 10,
    /// In a forked child, which makes endpoints of its own.
    Forked = 11,
    /// A fault of the library. Nothing is certain of the endpoint any more.
    Fault = 12,
}

/// Why a call did not do what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) result: Result,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(result: Result, text: impl Into<String>) -> Self {
        Self { result, text: text.into() }
    }

    /// A pointer that must not be is null.
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
            // Many texts contain that of their cause.
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

/// Does what a call is to do, and keeps the text of an error for the thread.
pub(crate) fn call(body: impl FnOnce() -> std::result::Result<(), Failure>) -> Result {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Result::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Result::Fault, "a fault of the library, reported on standard error"),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // At the end of a thread there may be no place for it any more.
    let _gone = LAST.try_with(|last| last.replace(text));
    failure.result
}

/// Returns the text of the last error of a call of this thread; empty if there was none. It is good until the next
/// call of the thread, and must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map(|text| text.as_ptr()).ok());
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the name of a result, as in "timed out"; "unknown" of a number that is none.
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
