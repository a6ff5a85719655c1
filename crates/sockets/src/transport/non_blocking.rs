//! The non-blocking mode of descriptors.

use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Returns true if `O_NONBLOCK` is set.
pub(crate) fn is_non_blocking(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}

/// Sets or clears `O_NONBLOCK`.
pub(crate) fn set_non_blocking(fd: BorrowedFd<'_>, is_set: bool) {
    let Ok(flags) = fcntl(fd, FcntlArg::F_GETFL) else { return };
    let mut flags = OFlag::from_bits_retain(flags);
    flags.set(OFlag::O_NONBLOCK, is_set);
    // The kernel accepts this flag for every socket, so the call cannot fail.
    let _set = fcntl(fd, FcntlArg::F_SETFL(flags));
}
