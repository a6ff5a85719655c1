//! Attempts to connect. A program has requested or accepted a connection. Until the connection is
//! established, the program can do other work.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use ethernot::{Accepting, Connecting, Error};

use crate::bytes::{has_place, limit, put, text};
use crate::connection::{CONNECTIONS, ConnectOptions, Connection, Request, options_of, take};
use crate::endpoint::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;

/// An attempt to establish a connection.
pub struct Attempt {
    _opaque: [u8; 0],
}

/// The kind of a pending attempt.
enum Pending {
    Connecting(Connecting),
    Accepting(Accepting),
}

static ATTEMPTS: Table<Mutex<Pending>> = Table::new(8, "an attempt");

impl Pending {
    fn wait_for(&mut self, limit: Duration) -> std::result::Result<ethernot::Connection, Error> {
        match self {
            Self::Connecting(connecting) => connecting.wait_for(limit).map_err(Error::from),
            Self::Accepting(accepting) => accepting.wait_for(limit).map_err(Error::from),
        }
    }
}

/// Requests a connection like `ethernot_connect`, but returns before the peer has answered.
/// `ethernot_attempt_wait` or `ethernot_attempt_test` returns the connection.
///
/// `timeout_ms` in `options` limits only the search for MAC addresses. If `peer` contains a host
/// name, this call resolves the name, which may block. Free the attempt with
/// `ethernot_attempt_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connect_start(
    endpoint: *mut Endpoint,
    peer: *const c_char,
    options: *const ConnectOptions,
    attempt: *mut *mut Attempt,
) -> Result {
    call(|| {
        has_place(attempt)?;
        // SAFETY: the program promises that each pointer is null or valid.
        let (peer, options) = unsafe { (text(peer, "peer")?, options_of(options)?) };
        let connecting = ENDPOINTS.get(endpoint)?.start_connect(peer, options)?;
        let made = ATTEMPTS.add(Mutex::new(Pending::Connecting(connecting)))?;
        // SAFETY: null was rejected above.
        unsafe { put(attempt, made) }
    })
}

/// Accepts a request like `ethernot_request_accept`, but returns before the peer has confirmed the
/// connection. Frees the request. `timeout_ms` in `options` has no effect. Free the attempt with
/// `ethernot_attempt_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_accept_start(
    request: *mut Request,
    options: *const ConnectOptions,
    attempt: *mut *mut Attempt,
) -> Result {
    call(|| {
        has_place(attempt)?;
        // SAFETY: the program promises that `options` is null or valid.
        let options = unsafe { options_of(options) }?;
        let accepting = take(request)?.start_accept(options)?;
        let made = ATTEMPTS.add(Mutex::new(Pending::Accepting(accepting)))?;
        // SAFETY: null was rejected above.
        unsafe { put(attempt, made) }
    })
}

/// Waits for the connection. After `ETHERNOT_RESULT_TIMED_OUT`, the program may call this function
/// again. Only one call returns the outcome of the attempt. Later calls return
/// `ETHERNOT_RESULT_INVALID` or `ETHERNOT_RESULT_CLOSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_attempt_wait(
    attempt: *mut Attempt,
    timeout_ms: i64,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        let attempt = ATTEMPTS.get(attempt)?;
        let mut attempt = attempt.lock().unwrap_or_else(PoisonError::into_inner);
        let made = attempt.wait_for(limit(timeout_ms).unwrap_or(Duration::MAX))?;
        // SAFETY: null was rejected above.
        unsafe { put(connection, CONNECTIONS.add(made)?) }
    })
}

/// Returns the connection if it is established. Returns `ETHERNOT_RESULT_AGAIN` if the attempt is
/// pending, or if another thread waits for it. In all other cases, returns the result of
/// `ethernot_attempt_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_attempt_test(
    attempt: *mut Attempt,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        let attempt = ATTEMPTS.get(attempt)?;
        let pending = || Failure::new(Result::Again, "there is no answer yet; wait, or test again");
        let mut attempt = match attempt.try_lock() {
            Ok(attempt) => attempt,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(pending()),
        };
        let made = attempt.wait_for(Duration::ZERO).map_err(Failure::from);
        let made = made.map_err(|failure| match failure.result {
            Result::TimedOut => pending(),
            _ => failure,
        })?;
        // SAFETY: null was rejected above.
        unsafe { put(connection, CONNECTIONS.add(made)?) }
    })
}

/// Frees an attempt. If no call has returned the outcome yet, cancels the attempt.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_attempt_free(attempt: *mut Attempt) -> Result {
    call(|| ATTEMPTS.remove(attempt).map(drop))
}
