//! Endpoints.

use std::ffi::c_char;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use ethernot::Polling;

use crate::bytes::{hand_out, has_place, limit, put, text};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::options::{Options, known};

/// One side of remote memory access: links, memory and connections of a process.
pub struct Endpoint {
    _opaque: [u8; 0],
}

pub(crate) static ENDPOINTS: Table<ethernot::Endpoint> = Table::new(1, "an endpoint");

/// How threads of the library wait that serve peers while the program does something else.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum Waiting {
    /// They spin for as long as that costs less than the sleeps that it saves.
    Adaptive = 0,
    /// They sleep at once.
    Sleep = 1,
    /// They spin for `spin_us` of the options after the last work.
    SpinFor = 2,
    /// They spin all the time.
    SpinAlways = 3,
}

/// Options of an endpoint. All zero is the default: UDP on every usable interface, on free ports.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndpointOptions {
    /// `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
    pub size: usize,
    /// Links by name, such as "eth0,packet:eth1"; null for the default, or for what `address` says.
    pub links: *const c_char,
    /// The address of a UDP link, such as "127.0.0.1:0", beside those of `links`; null for none.
    pub address: *const c_char,
    /// The port of links that name none; 0 for any.
    pub port: u16,
    /// Not 0: no thread of the library serves the endpoint, only calls do.
    pub without_progress_thread: u8,
    /// Not 0: that thread keeps to `progress_processor`.
    pub is_pinned: u8,
    /// One of `ethernot_waiting`.
    pub waiting: i32,
    /// How long they spin, in microseconds; for `ETHERNOT_WAITING_SPIN_FOR`.
    pub spin_us: u32,
    /// The processor to which that thread keeps, counted from 0 as the kernel does.
    pub progress_processor: u32,
}

// SAFETY: it is numbers and pointers in C's layout, without padding, and begins with its size.
unsafe impl Options for EndpointOptions {
    const NAME: &'static str = "ethernot_endpoint_options";
    const FIRST_BYTES: usize = 40;
}

/// Makes an endpoint. `options` may be null. It is freed by `ethernot_endpoint_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_endpoint_open(
    options: *const EndpointOptions,
    endpoint: *mut *mut Endpoint,
) -> Result {
    call(|| {
        has_place(endpoint)?;
        let mut builder = ethernot::Endpoint::builder();
        // SAFETY: null, or valid for the call.
        if let Some(options) = unsafe { known(options) }? {
            if !options.links.is_null() {
                // SAFETY: as `options`.
                builder = builder.links(unsafe { text(options.links, "links") }?);
            }
            if !options.address.is_null() {
                // SAFETY: as `options`.
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
        // SAFETY: null was refused above.
        unsafe { put(endpoint, made) }
    })
}

/// Frees an endpoint. It lives on while connections, listeners or operations of it do; the last of them that is freed closes
/// what is open. It waits a millisecond at most for peers to hear of it; a thread of the library waits for others, for a second
/// at most.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_free(endpoint: *mut Endpoint) -> Result {
    call(|| ENDPOINTS.remove(endpoint).map(drop))
}

/// Waits until the operations of all connections are complete, and closes these.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_shutdown(endpoint: *mut Endpoint, timeout_ms: i64) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.shutdown(limit(timeout_ms))?))
}

/// Makes progress, unless another thread is at it. For endpoints without a progress thread.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_drive(endpoint: *mut Endpoint) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.drive().map(drop)?))
}

/// Returns a descriptor for event loops: it becomes readable, after `ethernot_endpoint_arm`, when something comes.
/// It belongs to the endpoint: it must not be read or closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_endpoint_descriptor(
    endpoint: *mut Endpoint,
    descriptor: *mut i32,
) -> Result {
    // SAFETY: the program's promise.
    call(|| unsafe { put(descriptor, ENDPOINTS.get(endpoint)?.as_raw_fd()) })
}

/// Makes the descriptor readable when something comes from now on: a completion, the end of an operation, a request,
/// an end. `ETHERNOT_RESULT_AGAIN` if something has come since the last call: look at it before sleeping; this is always so
/// without a progress thread.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_arm(endpoint: *mut Endpoint) -> Result {
    call(|| {
        let is_armed = ENDPOINTS.get(endpoint)?.arm()?;
        let came = || Failure::new(Result::Again, "something has come: look at it before sleeping");
        is_armed.then_some(()).ok_or_else(came)
    })
}

/// Makes the descriptor unreadable again. `ethernot_endpoint_arm` does it as well.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_endpoint_drain(endpoint: *mut Endpoint) -> Result {
    call(|| Ok(ENDPOINTS.get(endpoint)?.drain()?))
}

/// Writes the address at which peers can reach the UDP link of this number, as text that ends with a zero:
/// "127.0.0.1:7000". `ETHERNOT_RESULT_INVALID` if there is none, or no room for it; 64 bytes are enough.
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
        // SAFETY: the program's promise, and null was refused.
        unsafe { hand_out(written.as_bytes(), text.cast(), capacity, std::ptr::null_mut()) };
        Ok(())
    })
}
