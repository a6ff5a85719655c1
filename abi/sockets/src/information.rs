//! Corrects `TCP_INFO` of a connection that has moved.

use libc::c_void;
use sockets::Connection;

/// Corrects the kernel's `TCP_INFO`, because the TCP connection of a moved connection is idle. Sets
/// the number of unsent bytes to the number of unsent bytes of the stream. Fields about round
/// trips, segments and losses keep the values of TCP.
///
/// # Safety
/// `value` must point to the first `length` bytes of a `tcp_info`.
pub(crate) unsafe fn correct(connection: &Connection, value: *mut c_void, length: usize) {
    if length < NOT_SENT_BYTES + size_of::<u32>() {
        return;
    }
    let unsent = u32::try_from(connection.queued().unsent).unwrap_or(u32::MAX);
    // SAFETY: the caller guarantees `length` bytes, and the check above ensures that they include
    // this field.
    unsafe { value.byte_add(NOT_SENT_BYTES).cast::<u32>().write_unaligned(unsent) };
}

/// Offset of `tcpi_notsent_bytes` in `struct tcp_info` of the kernel (`linux/tcp.h`).
const NOT_SENT_BYTES: usize = 144;
