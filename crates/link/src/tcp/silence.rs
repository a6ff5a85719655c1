//! Finds out for how long a peer has been silent that owes an answer.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Returns for how long the peer's kernel has not acknowledged anything, although this side waits
/// for an acknowledgement: of bytes, or of a question whether the peer has room again. Returns
/// `None` if this side waits for nothing.
///
/// The kernel's own limit (`TCP_USER_TIMEOUT`) cannot be used. It also ends a connection whose peer
/// answers all questions, but whose program reads nothing.
pub(super) fn silence(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` has the length given, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let needed = offset_of!(libc::tcp_info, tcpi_last_ack_recv) + size_of::<u32>();
    if (length as usize) < needed {
        return Ok(None);
    }
    // SAFETY: all bit patterns are valid, and the memory was zeroed before the kernel wrote to it.
    let info = unsafe { info.assume_init() };
    let waits = info.tcpi_unacked > 0 || info.tcpi_probes > 0 || info.tcpi_retransmits > 0;
    Ok(waits.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into())))
}
