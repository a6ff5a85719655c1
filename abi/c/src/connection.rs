//! Listeners, requests and connections.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ethernot::ConnectionRequest;

use crate::bytes::{given, hand_out, has_place, limit, put, text};
use crate::endpoint::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::options::{Options, known};

/// Takes the requests of peers for connections to one service.
pub struct Listener {
    _opaque: [u8; 0],
}

/// A peer asks for a connection.
pub struct Request {
    _opaque: [u8; 0],
}

/// A connection to a peer.
pub struct Connection {
    _opaque: [u8; 0],
}

pub(crate) static LISTENERS: Table<ethernot::Listener> = Table::new(3, "a listener");
pub(crate) static REQUESTS: Table<Mutex<Option<ConnectionRequest>>> = Table::new(4, "a request");
pub(crate) static CONNECTIONS: Table<ethernot::Connection> = Table::new(5, "a connection");

/// Options of a connection. All zero is the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ConnectOptions {
    /// `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
    pub size: usize,
    /// Bytes for the peer, sent with the request or its acceptance, at most 512 bytes.
    pub private_data: *const c_void,
    /// The length of `private_data` in bytes.
    pub private_data_length: usize,
    /// How long to try, in milliseconds; 0 for 30 s, negative for as long as the peer's host says that its program has not
    /// decided. It ends earlier if that host is silent for 5 s.
    pub timeout_ms: i64,
    /// The service of the listener of the peer; for `ethernot_connect` only.
    pub service: u32,
    /// Completions, notifications and receives that may wait to be polled; 0 for 256.
    pub completions: u32,
}

// SAFETY: it is numbers and pointers in C's layout, without padding, and begins with its size.
unsafe impl Options for ConnectOptions {
    const NAME: &'static str = "ethernot_connect_options";
    const FIRST_BYTES: usize = 40;
}

/// # Safety
/// `options` is null or valid.
pub(crate) unsafe fn options_of(
    options: *const ConnectOptions,
) -> std::result::Result<ethernot::ConnectOptions, Failure> {
    let mut made = ethernot::ConnectOptions::new();
    // SAFETY: the caller's promise.
    let Some(options) = unsafe { known(options) }? else { return Ok(made) };
    // SAFETY: the same.
    made.private_data =
        unsafe { given(options.private_data, options.private_data_length) }?.to_vec();
    made.limit = match options.timeout_ms {
        0 => None,
        timeout_ms => Some(limit(timeout_ms).unwrap_or(Duration::MAX)),
    };
    made.service = options.service;
    if options.completions != 0 {
        made.completions = options.completions as usize;
    }
    Ok(made)
}

/// Listens for requests for connections to `service`, a number that both sides agree on. Freed by
/// `ethernot_listener_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_listen(
    endpoint: *mut Endpoint,
    service: u32,
    listener: *mut *mut Listener,
) -> Result {
    call(|| {
        has_place(listener)?;
        let made = LISTENERS.add(ENDPOINTS.get(endpoint)?.listen(service)?)?;
        // SAFETY: null was refused above.
        unsafe { put(listener, made) }
    })
}

/// Stops listening, and rejects the requests that wait.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_listener_free(listener: *mut Listener) -> Result {
    call(|| LISTENERS.remove(listener).map(drop))
}

/// Waits for the next request, which is freed by being accepted or rejected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_accept(
    listener: *mut Listener,
    timeout_ms: i64,
    request: *mut *mut Request,
) -> Result {
    call(|| {
        has_place(request)?;
        let came = LISTENERS.get(listener)?.accept(limit(timeout_ms))?;
        let made = REQUESTS.add(Mutex::new(Some(came)))?;
        // SAFETY: null was refused above.
        unsafe { put(request, made) }
    })
}

/// Copies the private data of the peer, as much as fits. `length` gets how much there is, and may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_data(
    request: *mut Request,
    data: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Result {
    call(|| {
        let request = REQUESTS.get(request)?;
        let request = request.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = request.as_ref().map_or(&[][..], ConnectionRequest::private_data);
        // SAFETY: the program's promise.
        unsafe { hand_out(bytes, data, capacity, length) };
        Ok(())
    })
}

/// Accepts a request, waits until the peer knows, and frees the request. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_accept(
    request: *mut Request,
    options: *const ConnectOptions,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        // SAFETY: the program's promise.
        let options = unsafe { options_of(options) }?;
        let request = take(request)?;
        let made = CONNECTIONS.add(request.accept_with(options)?)?;
        // SAFETY: null was refused above.
        unsafe { put(connection, made) }
    })
}

/// Rejects a request, sends the peer up to 512 bytes, and frees the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_reject(
    request: *mut Request,
    data: *const c_void,
    length: usize,
) -> Result {
    call(|| {
        // SAFETY: the program's promise.
        let data = unsafe { given(data, length) }?;
        Ok(take(request)?.reject(data)?)
    })
}

pub(crate) fn take(request: *mut Request) -> std::result::Result<ConnectionRequest, Failure> {
    let request = REQUESTS.remove(request)?;
    let taken = request.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Failure::new(Result::BadHandle, "the request is answered already"))
}

/// Connects to a peer that listens, at an address such as "10.0.0.2:7000". `options` may be null. Freed by
/// `ethernot_connection_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connect(
    endpoint: *mut Endpoint,
    peer: *const c_char,
    options: *const ConnectOptions,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        // SAFETY: the program's promise.
        let (peer, options) = unsafe { (text(peer, "peer")?, options_of(options)?) };
        let made = CONNECTIONS.add(ENDPOINTS.get(endpoint)?.connect_with(peer, options)?)?;
        // SAFETY: null was refused above.
        unsafe { put(connection, made) }
    })
}

/// Copies the private data that the peer sent with its request or acceptance, as much as fits. `length` gets how
/// much there is, and may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connection_data(
    connection: *mut Connection,
    data: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Result {
    call(|| {
        let bytes = CONNECTIONS.get(connection)?.peer_data();
        // SAFETY: the program's promise.
        unsafe { hand_out(&bytes, data, capacity, length) };
        Ok(())
    })
}

/// Closes a connection and sends the peer up to 128 bytes. What is not complete fails. The handle stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connection_close(
    connection: *mut Connection,
    data: *const c_void,
    length: usize,
) -> Result {
    call(|| {
        // SAFETY: the program's promise.
        let data = unsafe { given(data, length) }?;
        Ok(CONNECTIONS.get(connection)?.close(data)?)
    })
}

/// Waits until a connection has ended. `ethernot_last_error` says why, then.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_connection_wait_closed(
    connection: *mut Connection,
    timeout_ms: i64,
) -> Result {
    call(|| {
        let (reason, _data) = CONNECTIONS.get(connection)?.wait_closed(limit(timeout_ms))?;
        Err(Failure::new(Result::Closed, reason.to_string()))
    })
}

/// Frees a connection, which is closed when the handles of its operations are freed, too.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_connection_free(connection: *mut Connection) -> Result {
    call(|| CONNECTIONS.remove(connection).map(drop))
}
