//! Handles `fcntl` and `ioctl`.

use libc::{c_int, c_ulong};
use sockets::{Connection, Reason, Route};

use crate::answering::borrowed;
use crate::asking::{Asked, ask};
use crate::copying::anywhere;
use crate::handling::Inside;
use crate::next::{call_next, errno, fail, interpose, set_errno};
use crate::passing::leave_to_kernel;
use crate::table::{self, Kind, is_known};

// On the supported architectures, a variadic argument is passed in the same register as a named
// argument. If the caller passes no third argument, the register has an arbitrary value, which the
// kernel ignores.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("say how a third argument after `...` is passed on this architecture");

interpose! {
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int,
        else -1, if is_known(fd), by asked(fd, request, argument);
}

/// Defines `fcntl` and `fcntl64`. The C library has one function under both names.
macro_rules! descriptor_control {
    ($($symbol:ident, $program:literal;)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = $program)]
                unsafe extern "C" fn of_program(fd: c_int, command: c_int, argument: usize) -> c_int {
                    let next = || call_next!(
                        $symbol(fd: c_int, command: c_int, argument: usize) -> c_int, else -1
                    );
                    if is_known(fd) || matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                        let inside = Inside::enter();
                        // SAFETY: the caller passes the arguments that `fcntl` requires.
                        let answer = unsafe { controlled(fd, command, argument, next) };
                        let error = errno();
                        drop(inside);
                        set_errno(error);
                        if let Some(answer) = answer {
                            return answer;
                        }
                    }
                    next()
                }
            };
        )*
    };
}

descriptor_control! {
    fcntl, "ethernot_sockets_fcntl";
    fcntl64, "ethernot_sockets_fcntl64";
}

/// # Safety
/// The arguments must satisfy the contract of the C function `fcntl`.
unsafe fn controlled(
    fd: c_int,
    command: c_int,
    argument: usize,
    next: impl Fn() -> c_int,
) -> Option<c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => anywhere(fd, next),
        _ if table::kind(fd) == Kind::Private => Some(fail(libc::EBADF, -1)),
        // These commands request signals when bytes arrive. The kernel sends the signals only for
        // bytes that it handles itself.
        libc::F_SETOWN | F_SETOWN_EX | F_SETSIG => {
            stay(fd);
            None
        }
        libc::F_SETFL if argument & libc::O_ASYNC as usize != 0 => {
            stay(fd);
            None
        }
        _ => match ask(fd, next) {
            Asked::Answered(answer) => Some(answer),
            Asked::Moved(_) | Asked::Kernel | Asked::NoDescriptor => None,
        },
    }
}

/// # Safety
/// The arguments must satisfy the contract of the C function `ioctl`.
unsafe fn asked(fd: c_int, request: c_ulong, argument: usize) -> Option<c_int> {
    if matches!(request, libc::FIOASYNC | FIOSETOWN | SIOCSPGRP) {
        stay(fd);
    }
    if request == libc::FIONREAD
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        && let Some(result) = unsafe { received_undecided(fd, argument) }
    {
        return Some(result);
    }
    let by_kernel =
        || call_next!(ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int, else -1);
    let connection = match ask(fd, by_kernel) {
        Asked::Answered(result) => return Some(result),
        Asked::Moved(connection) => connection,
        Asked::Kernel => return None,
        Asked::NoDescriptor => return Some(fail(libc::EBADF, -1)),
    };
    let answer = match request {
        libc::FIONREAD => received(&connection, fd)?,
        libc::TIOCOUTQ | SIOCOUTQNSD => connection.queued().unsent,
        // The edge carries no out-of-band data, so the read position is never at the mark of such
        // data.
        SIOCATMARK => 0,
        _ => return None,
    };
    let into = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
    if into.is_null() {
        return Some(fail(libc::EFAULT, -1));
    }
    // SAFETY: for these requests, the caller passes a pointer to memory for the number.
    unsafe { into.write_unaligned(c_int::try_from(answer).unwrap_or(c_int::MAX)) };
    Some(0)
}

/// Lets the kernel count the unread bytes, and subtracts the bytes of a switch marker: the bytes of
/// the library that end the TCP part of a stream. Returns `None` if it is already decided whether
/// the connection moves.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `ioctl` with `FIONREAD`.
unsafe fn received_undecided(fd: c_int, argument: usize) -> Option<c_int> {
    let socket = table::socket(fd)?;
    let connection = socket.begun()?;
    if connection.route() != Route::Undecided {
        return None;
    }
    let request = libc::FIONREAD;
    let result = call_next!(
        ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int, else -1
    );
    if result != 0 {
        return Some(result);
    }
    let place = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
    // SAFETY: the kernel has written the number.
    let counted = usize::try_from(unsafe { place.read_unaligned() }).unwrap_or(0);
    let shown = connection.shown(borrowed(fd), counted);
    // SAFETY: the kernel has written a number to this memory.
    unsafe { place.write_unaligned(c_int::try_from(shown).unwrap_or(c_int::MAX)) };
    // If the connection moved during the query, another descriptor may already have replaced the
    // TCP socket, and the kernel may have counted the bytes of that descriptor. So use the result
    // only if the route is still undecided.
    (connection.route() == Route::Undecided).then_some(0)
}

/// Returns the number of unread bytes of a moved connection. Returns `None` if the library relays
/// the connection's bytes through a kernel socket, because then the kernel has the unread bytes.
fn received(connection: &Connection, _fd: c_int) -> Option<u64> {
    if connection.is_relayed() { None } else { Some(connection.queued().received) }
}

/// Makes a connection stay on TCP or return to TCP, because the program uses a feature that only
/// TCP has.
fn stay(fd: c_int) {
    let Some(socket) = table::socket(fd) else { return };
    match socket.begun() {
        None => leave_to_kernel(fd),
        Some(connection) if connection.route() == Route::Undecided => {
            connection.stay(Reason::OnlyTcp);
        }
        Some(_) => {}
    }
}

const F_SETOWN_EX: c_int = 15;
const F_SETSIG: c_int = 10;
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
const SIOCATMARK: c_ulong = 0x8905;
const SIOCOUTQNSD: c_ulong = 0x894b;
