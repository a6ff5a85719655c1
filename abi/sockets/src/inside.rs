//! Calls that this library makes to create and close its own descriptors. These descriptors are
//! [private](table::Kind::Private).

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

use crate::next::call_next;
use crate::table::{self, Kind};

#[unsafe(export_name = "ethernot_inside_fcntl")]
unsafe extern "C" fn fcntl_of_ours(fd: c_int, command: c_int, argument: usize) -> c_int {
    if !matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return control(fd, command, argument);
    }
    // Duplicate directly to a high number, because otherwise a program could find a low number in
    // use for a moment.
    let lowest = LOWEST.load(Ordering::Relaxed).cast_unsigned() as usize;
    let high = control(fd, command, argument.max(lowest));
    kept(if high < 0 { control(fd, command, argument) } else { high })
}

#[unsafe(export_name = "ethernot_inside_fcntl64")]
unsafe extern "C" fn fcntl64_of_ours(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller passes the arguments that `fcntl` requires.
    unsafe { fcntl_of_ours(fd, command, argument) }
}

#[unsafe(export_name = "ethernot_inside_close")]
unsafe extern "C" fn close_of_ours(fd: c_int) -> c_int {
    if table::kind(fd) == Kind::Private {
        // Clear the number in the table before the close, because another thread may get the number
        // as soon as it is closed.
        table::set(fd, Kind::Plain);
    }
    call_next!(close(fd: c_int) -> c_int, else -1)
}

/// Moves a new descriptor of this library to a high number, and makes it private. Without this,
/// programs that expect certain low numbers for their descriptors would fail.
pub(crate) fn kept(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let lowest = LOWEST.load(Ordering::Relaxed);
    let moved = if fd < lowest { copied_above(fd, lowest) } else { -1 };
    let kept = if moved < 0 {
        fd
    } else {
        call_next!(close(fd: c_int) -> c_int, else -1);
        moved
    };
    table::set(kept, Kind::Private);
    kept
}

/// Duplicates a descriptor to a number that is at least `lowest`, with the same flags.
fn copied_above(fd: c_int, lowest: c_int) -> c_int {
    let flags = control(fd, libc::F_GETFD, 0);
    let is_closed_at_exec = flags & libc::FD_CLOEXEC != 0;
    let command = if is_closed_at_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    control(fd, command, lowest as usize)
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    call_next!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else -1)
}

/// Chooses the lowest private number: three quarters of the process's limit on descriptors, but at
/// most [`LOWEST_MAX`].
pub(crate) fn choose_numbers() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes `limit`, which is valid during the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        let lowest = (limit.rlim_cur / 4 * 3).min(LOWEST_MAX);
        LOWEST.store(c_int::try_from(lowest).unwrap_or(0), Ordering::Relaxed);
    }
}

static LOWEST: AtomicI32 = AtomicI32::new(0);

/// Upper bound of the lowest private number. The kernel's descriptor table of a process grows with
/// the highest number in use. With numbers around this bound, the table takes 64 KiB.
const LOWEST_MAX: u64 = 4096;
