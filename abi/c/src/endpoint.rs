//! Endpoints.

use std::ffi::c_char;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use ethernot::Polling;

use crate::bytes::{hand_out, has_place, limit, put, text};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::options::{Options, known};

/// One side of remote memory access: the links, registered memory and connections of a process.
pub struct Endpoint {
    _opaque: [u8; 0],
}

pub(crate) static ENDPOINTS: Table<ethernot::Endpoint> = Table::new(1, "an endpoint");

/// How the library's threads wait for frames if no thread of the program waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum Waiting {
    /// Adaptive: the threads spin as long as this costs less than the sleeps that it saves.
    Adaptive = 0,
    /// The threads sleep at once.
    Sleep = 1,
    /// After the last work, the threads spin for the time in `spin_us` of the options.
    SpinFor = 2,
    /// The threads spin all the time.
    SpinAlways = 3,
}

/// Options of an endpoint. If all fields are zero, all options have their defaults: UDP on every
/// usable interface, on free ports.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndpointOptions {
    /// `sizeof` of this structure in the program. The size shows the library which fields the
    /// program's version of the structure has. 0 means the size in the library's first version.
    pub size: usize,
    /// Names of links, such as "eth0,packet:eth1". If `links` is null, the endpoint uses only the
    /// link in `address`. If `links` and `address` are null, the endpoint uses the default links.
    pub links: *const c_char,
    /// Address of another UDP link, in addition to the links in `links`, such as "127.0.0.1:0".
    /// Null means no such link.
    pub address: *const c_char,
    /// Port of the links whose name contains no port. 0 means a free port.
    pub port: u16,
    /// If not 0, the endpoint has no progress thread. Progress then happens only in calls of the
    /// program.
    pub without_progress_thread: u8,
    /// If not 0, the progress thread runs only on the processor `progress_processor`.
    pub is_pinned: u8,
    /// A value of `ethernot_waiting`.
    pub waiting: i32,
    /// Spin time in microseconds, for `ETHERNOT_WAITING_SPIN_FOR`.
    pub spin_us: u32,
    /// If `is_pinned` is not 0, the processor on which the progress thread runs: the number that
    /// the kernel gives to this processor.
    pub progress_processor: u32,
}

// SAFETY: the structure consists of numbers and pointers in C layout, has no padding, and begins
// with its size.
unsafe impl Options for EndpointOptions {
    const NAME: &'static str = "ethernot_endpoint_options";
    const FIRST_BYTES: usize = 40;
}

/// Creates an endpoint. `options` may be null. Free the endpoint with `ethernot_endpoint_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_endpoint_open(
    options: *const EndpointOptions,
    endpoint: *mut *mut Endpoint,
) -> Result {
    call(|| {
        has_place(endpoint)?;
        let mut builder = ethernot::Endpoint::builder();
        // SAFETY: `options` is null, or valid for the call.
        if let Some(options) = unsafe { known(options) }? {
            if !options.links.is_null() {
                // SAFETY: the string is valid for the call, because `options` is valid.
                builder = builder.links(unsafe { text(options.links, "links") }?);
            }
            if !options.address.is_null() {
                // SAFETY: the string is valid for the call, because `options` is valid.
                builder = builder.bind(unsafe { text(options.address, "address") }?);
            }
            let polling = match options.waiting {
                0 => Polling::ADAPTIVE,
                1 => Polling::NEVER,
                2 => Polling::for_at_most(Duration::from_micros(options.spin_us.into())),
                3 => Polling::ALWAYS,
                other => {
                    let text = format!("waiting {other} is none of ethernot_waiting");
                    return Err(Failure::new(Result::Invalid, text));
                }
            };
            builder = builder.port(options.port).polling(polling);
            builder = builder.progress_thread(options.without_progress_thread == 0);
            if options.is_pinned != 0 {
                builder = builder.progress_processor(options.progress_processor as usize);
            }
        }
        let made = ENDPOINTS.add(builder.build()?)?;
        // SAFETY: null was rejected above.
        unsafe { put(endpoint, made) }
    })
}

/// Frees an endpoint. The endpoint stays open as long as its connections, listeners or operations
/// exist. The call that frees the last of them closes the connections of the endpoint.
///
/// That call waits at most one millisecond for the peers' confirmations. If peers are silent, a
/// thread of the library waits for them, for at most one second.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_free(endpoint: *mut Endpoint) -> Result {
    call(|| ENDPOINTS.remove(endpoint).map(drop))
}

/// Waits until the operations of all connections are complete. Then closes the connections, and
/// waits until the peers have confirmed that they are closed.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_shutdown(endpoint: *mut Endpoint, timeout_ms: i64) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.shutdown(limit(timeout_ms))?))
}

/// Makes progress. Does nothing if another thread makes progress. A program must call this function
/// if its endpoint has no progress thread.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_drive(endpoint: *mut Endpoint) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.drive().map(drop)?))
}

/// Returns a descriptor for event loops. After `ethernot_endpoint_arm`, the next event makes the
/// descriptor readable. The endpoint owns the descriptor: the program must not read from it or
/// close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_endpoint_descriptor(
    endpoint: *mut Endpoint,
    descriptor: *mut i32,
) -> Result {
    // SAFETY: the program promises that `descriptor` is null or valid.
    call(|| unsafe { put(descriptor, ENDPOINTS.get(endpoint)?.as_raw_fd()) })
}

/// Arms the descriptor. The next of these events makes it readable: a completion, the end of an
/// operation, a connection request, or the end of a connection.
///
/// Returns `ETHERNOT_RESULT_AGAIN` if an event has occurred since the last call. The program must
/// then check for events before it sleeps. If the endpoint has no progress thread, always returns
/// `ETHERNOT_RESULT_AGAIN`.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_arm(endpoint: *mut Endpoint) -> Result {
    call(|| {
        let is_armed = ENDPOINTS.get(endpoint)?.arm()?;
        let came = || {
            Failure::new(Result::Again, "an event has already arrived: handle it before sleeping")
        };
        is_armed.then_some(()).ok_or_else(came)
    })
}

/// Makes the descriptor unreadable. `ethernot_endpoint_arm` does this too.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_drain(endpoint: *mut Endpoint) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.drain()?))
}

/// Writes the address of a UDP link to `text`, such as "127.0.0.1:7000". Peers connect to this
/// address. The text ends with a zero byte.
///
/// Returns `ETHERNOT_RESULT_INVALID` if there is no UDP link with the number `link`, or if
/// `capacity` is too small. 64 bytes are always enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_endpoint_address(
    endpoint: *mut Endpoint,
    link: u32,
    text: *mut c_char,
    capacity: usize,
) -> Result {
    call(|| {
        has_place(text)?;
        let addresses = ENDPOINTS.get(endpoint)?.local_addresses()?;
        let missing = || Failure::new(Result::Invalid, format!("there is no UDP link {link}"));
        let address = addresses.get(link as usize).ok_or_else(missing)?;
        let written = format!("{address}\0");
        if written.len() > capacity {
            let text = format!("the address needs {} bytes, not {capacity}", written.len());
            return Err(Failure::new(Result::Invalid, text));
        }
        // SAFETY: null was rejected above, and the program promises room for `capacity` bytes.
        unsafe { hand_out(written.as_bytes(), text.cast(), capacity, std::ptr::null_mut()) };
        Ok(())
    })
}
