//! `TCP_INFO` of a connection that has moved.

use libc::c_void;
use sockets::Connection;

/// Corrects the information of the kernel, whose TCP connection is idle: unsent bytes are those of the stream. Fields
/// about round trips, segments and losses stay those of TCP.
///
/// # Safety
/// `length` bytes of a `tcp_info` are at `value`.
pub(crate) unsafe fn correct(connection: &Connection, value: *mut c_void, length: usize) {
    if length < NOT_SENT_BYTES + size_of::<u32>() {
        return;
    }
    let unsent = u32::try_from(connection.queued().unsent).unwrap_or(u32::MAX);
    // SAFETY: the caller's: it is long enough.
    unsafe { value.byte_add(NOT_SENT_BYTES).cast::<u32>().write_unaligned(unsent) };
}

/// Offset of `tcpi_notsent_bytes` in `struct tcp_info` of the kernel (`linux/tcp.h`).
const NOT_SENT_BYTES: usize = 144;
