//! Corrects `TCP_INFO` of a connection that has moved from TCP to the edge.

use libc::c_void;
use sockets::Connection;

/// Corrects the kernel's `TCP_INFO` of a connection that has moved to the edge. Sets the number of
/// unsent bytes to that of the stream on the edge, because the TCP connection is idle. The fields
/// about round trips, segments and losses keep the values of TCP.
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
