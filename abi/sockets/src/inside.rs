//! Calls of this library that make and close descriptors: what it makes is [private](table::Kind::Private).

use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_char, c_int, c_uint, mode_t};

use crate::next::call_next;
use crate::table::{self, Kind};

/// Defines calls of this library that return a descriptor.
macro_rules! making {
    ($($symbol:ident ($($argument:ident: $kind:ty),*);)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($($argument: $kind),*) -> c_int {
                    kept(call_next!($symbol($($argument: $kind),*) -> c_int, else -1))
                }
            };
        )*
    };
}

making! {
    socket(domain: c_int, kind: c_int, protocol: c_int);
    eventfd(first: c_uint, flags: c_int);
    epoll_create(size: c_int);
    epoll_create1(flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    inotify_init1(flags: c_int);
    memfd_create(name: *const c_char, flags: c_uint);
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    accept(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t);
    accept4(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t, flags: c_int);
}

/// Two descriptors at once.
#[unsafe(export_name = "ethernot_inside_socketpair")]
unsafe extern "C" fn socketpair_of_ours(
    domain: c_int,
    kind: c_int,
    of: c_int,
    ends: *mut c_int,
) -> c_int {
    let made = call_next!(
        socketpair(domain: c_int, kind: c_int, of: c_int, ends: *mut c_int) -> c_int, else -1
    );
    if made == 0 {
        for at in 0..2 {
            // SAFETY: the kernel has written two numbers there.
            unsafe { ends.add(at).write(kept(ends.add(at).read())) };
        }
    }
    made
}

#[unsafe(export_name = "ethernot_inside_fcntl")]
unsafe extern "C" fn fcntl_of_ours(fd: c_int, command: c_int, argument: usize) -> c_int {
    let answer = call_next!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else -1);
    let is_copied = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if is_copied { kept(answer) } else { answer }
}

#[unsafe(export_name = "ethernot_inside_fcntl64")]
unsafe extern "C" fn fcntl64_of_ours(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: arguments are as `fcntl` demands.
    unsafe { fcntl_of_ours(fd, command, argument) }
}

#[unsafe(export_name = "ethernot_inside_close")]
unsafe extern "C" fn close_of_ours(fd: c_int) -> c_int {
    if table::kind(fd) == Kind::Private {
        // Before, as the kernel gives the number to somebody else at once.
        table::set(fd, Kind::Plain);
    }
    call_next!(close(fd: c_int) -> c_int, else -1)
}

/// Keeps a new descriptor of this library: at a high number, where programs that count on the lowest free one do
/// not miss it.
fn kept(fd: c_int) -> c_int {
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

/// A copy of a descriptor with a number that is not below `lowest`, with the same flags.
fn copied_above(fd: c_int, lowest: c_int) -> c_int {
    let flags = control(fd, libc::F_GETFD, 0);
    let is_closed_at_exec = flags & libc::FD_CLOEXEC != 0;
    let command = if is_closed_at_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    control(fd, command, lowest as usize)
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    call_next!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else -1)
}

/// Finds out where private numbers begin: above three quarters of those that the process may have, and not higher than
/// [`LOWEST_MAX`].
pub(crate) fn choose_numbers() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills `limit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        let lowest = (limit.rlim_cur / 4 * 3).min(LOWEST_MAX);
        LOWEST.store(c_int::try_from(lowest).unwrap_or(0), Ordering::Relaxed);
    }
}

static LOWEST: AtomicI32 = AtomicI32::new(0);

/// The kernel's table of a process is as long as its highest number: 64 KiB for this one.
const LOWEST_MAX: u64 = 4096;
