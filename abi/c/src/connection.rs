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

/// Receives the connection requests of peers for one service.
pub struct Listener {
    _opaque: [u8; 0],
}

/// A connection request of a peer.
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

/// Options of a connection. If all fields are zero, all options have their defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ConnectOptions {
    /// `sizeof` of this structure in the program. The size shows the library which fields the
    /// program's version of the structure has. 0 means the size in the library's first version.
    pub size: usize,
    /// Private data for the peer, at most 512 bytes. The request or its acceptance carries the
    /// data.
    pub private_data: *const c_void,
    /// The length of `private_data` in bytes.
    pub private_data_length: usize,
    /// Maximum duration of the attempt in milliseconds.
    ///
    /// 0 means 30 s. With a negative value, there is no limit as long as the peer's host reports
    /// that the peer's program has not decided. If the peer's host is silent for 5 s, the attempt
    /// ends in any case.
    pub timeout_ms: i64,
    /// Service number of the peer's listener. Only `ethernot_connect` uses it.
    pub service: u32,
    /// Maximum number of completions, notifications and receives that may wait until the program
    /// polls for them. 0 means 256.
    pub completions: u32,
}

// SAFETY: the structure consists of numbers and pointers in C layout, has no padding, and begins
// with its size.
unsafe impl Options for ConnectOptions {
    const NAME: &'static str = "ethernot_connect_options";
    const FIRST_BYTES: usize = 40;
}

/// # Safety
/// `options` must be null or valid.
pub(crate) unsafe fn options_of(
    options: *const ConnectOptions,
) -> std::result::Result<ethernot::ConnectOptions, Failure> {
    let mut made = ethernot::ConnectOptions::new();
    // SAFETY: the caller meets the requirements of this function.
    let Some(options) = unsafe { known(options) }? else { return Ok(made) };
    // SAFETY: the caller promises that the options are valid.
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

/// Listens for connection requests to the service with the number `service`. Programs that connect
/// must use the same number. Free the listener with `ethernot_listener_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_listen(
    endpoint: *mut Endpoint,
    service: u32,
    listener: *mut *mut Listener,
) -> Result {
    call(|| {
        has_place(listener)?;
        let made = LISTENERS.add(ENDPOINTS.get(endpoint)?.listen(service)?)?;
        // SAFETY: null was rejected above.
        unsafe { put(listener, made) }
    })
}

/// Stops listening and rejects the pending requests.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_listener_free(listener: *mut Listener) -> Result {
    call(|| LISTENERS.remove(listener).map(drop))
}

/// Waits for the next request. A call that accepts or rejects the request also frees it.
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
        // SAFETY: null was rejected above.
        unsafe { put(request, made) }
    })
}

/// Copies at most `capacity` bytes of the private data in the peer's request. If `length` is not
/// null, writes the full length of the data to `length`.
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
        // SAFETY: the program promises that each pointer is null or valid.
        unsafe { hand_out(bytes, data, capacity, length) };
        Ok(())
    })
}

/// Accepts a request and waits until the peer has confirmed the connection. Frees the request.
/// `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_accept(
    request: *mut Request,
    options: *const ConnectOptions,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        // SAFETY: the program promises that `options` is null or valid.
        let options = unsafe { options_of(options) }?;
        let request = take(request)?;
        let made = CONNECTIONS.add(request.accept_with(options)?)?;
        // SAFETY: null was rejected above.
        unsafe { put(connection, made) }
    })
}

/// Rejects a request and sends up to 512 bytes of private data to the peer. Frees the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_request_reject(
    request: *mut Request,
    data: *const c_void,
    length: usize,
) -> Result {
    call(|| {
        // SAFETY: the program promises that `data` points to `length` bytes.
        let data = unsafe { given(data, length) }?;
        Ok(take(request)?.reject(data)?)
    })
}

pub(crate) fn take(request: *mut Request) -> std::result::Result<ConnectionRequest, Failure> {
    let request = REQUESTS.remove(request)?;
    let taken = request.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Failure::new(Result::BadHandle, "the request is answered already"))
}

/// Connects to a peer that listens at an address such as "10.0.0.2:7000". `options` may be null.
/// Free the connection with `ethernot_connection_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connect(
    endpoint: *mut Endpoint,
    peer: *const c_char,
    options: *const ConnectOptions,
    connection: *mut *mut Connection,
) -> Result {
    call(|| {
        has_place(connection)?;
        // SAFETY: the program promises that each pointer is null or valid.
        let (peer, options) = unsafe { (text(peer, "peer")?, options_of(options)?) };
        let made = CONNECTIONS.add(ENDPOINTS.get(endpoint)?.connect_with(peer, options)?)?;
        // SAFETY: null was rejected above.
        unsafe { put(connection, made) }
    })
}

/// Copies at most `capacity` bytes of the private data in the peer's request or acceptance. If
/// `length` is not null, writes the full length of the data to `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connection_data(
    connection: *mut Connection,
    data: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Result {
    call(|| {
        let bytes = CONNECTIONS.get(connection)?.peer_data();
        // SAFETY: the program promises that each pointer is null or valid.
        unsafe { hand_out(&bytes, data, capacity, length) };
        Ok(())
    })
}

/// Closes a connection and sends up to 128 bytes of private data to the peer. Pending operations
/// and receives fail. The handle of the connection stays valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_connection_close(
    connection: *mut Connection,
    data: *const c_void,
    length: usize,
) -> Result {
    call(|| {
        // SAFETY: the program promises that `data` points to `length` bytes.
        let data = unsafe { given(data, length) }?;
        Ok(CONNECTIONS.get(connection)?.close(data)?)
    })
}

/// Waits until a connection has ended, and then returns `ETHERNOT_RESULT_CLOSED`.
/// `ethernot_last_error` returns the reason for the end.
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

/// Frees a connection. The connection closes when the program has also freed the handles of its
/// operations.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_connection_free(connection: *mut Connection) -> Result {
    call(|| CONNECTIONS.remove(connection).map(drop))
}
