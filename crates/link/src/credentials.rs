//! The credentials of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Returns whether the process that connected this Unix socket runs as the same user as the calling
/// process, or as root.
///
/// # Errors
/// Returns the error of `getsockopt`.
pub fn is_trusted(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is passed.
    let own = unsafe { libc::geteuid() };
    Ok(peer.uid == own || peer.uid == 0)
}
