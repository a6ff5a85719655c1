//! Handles calls of the program that duplicate descriptors.

use libc::c_int;

use crate::closing::{forgotten, released};
use crate::next::{call_next, fail, interpose};
use crate::table::{self, Kind, is_known};
use crate::{connection_table, opening, passing, this_process};

interpose! {
    dup(fd: c_int) -> c_int,
        else -1, if true, by copied(fd);
    dup2(fd: c_int, to: c_int) -> c_int,
        else -1, if is_known(fd) || is_known(to), by copied_to(fd, to);
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int,
        else -1, if is_known(fd) || is_known(to), by copied_with(fd, to, flags);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `dup`.
unsafe fn copied(fd: c_int) -> Option<c_int> {
    anywhere(fd, || call_next!(dup(fd: c_int) -> c_int, else -1))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `dup2`.
unsafe fn copied_to(fd: c_int, to: c_int) -> Option<c_int> {
    to_number(fd, to, || call_next!(dup2(fd: c_int, to: c_int) -> c_int, else -1))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `dup3`.
unsafe fn copied_with(fd: c_int, to: c_int, flags: c_int) -> Option<c_int> {
    to_number(fd, to, || call_next!(dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, else -1))
}

/// Duplicates a descriptor to a number that the kernel chooses.
pub(crate) fn anywhere(fd: c_int, make: impl FnOnce() -> c_int) -> Option<c_int> {
    match table::kind(fd) {
        Kind::Private => Some(fail(libc::EBADF, -1)),
        Kind::Plain | Kind::Unconnected => Some(opening::made(make())),
        Kind::Socket | Kind::Epoll | Kind::OtherEpoll => {
            if !this_process::is_home() {
                return None;
            }
            let mut connection_table = connection_table::lock();
            let copy = make();
            if copy >= 0 {
                note(&mut connection_table, fd, copy);
            }
            Some(copy)
        }
    }
}

/// Duplicates a descriptor to a number that the program chooses. If a descriptor of this library
/// has that number, fails with `EBUSY`, an error that the kernel also returns.
fn to_number(fd: c_int, to: c_int, make: impl FnOnce() -> c_int) -> Option<c_int> {
    if table::kind(fd) == Kind::Private {
        return Some(fail(libc::EBADF, -1));
    }
    if table::kind(to) == Kind::Private {
        return Some(fail(libc::EBUSY, -1));
    }
    if fd == to {
        return None;
    }
    // Leave the connection to the kernel in two cases. First, if the new number is 0 to 2, because
    // functions of the C library use these numbers by calls that are not intercepted. Second, if
    // this process shares the memory of another process (`vfork`), because a process after `vfork`
    // duplicates descriptors for the program that it will execute.
    if table::kind(fd) == Kind::Socket && ((0..=2).contains(&to) || !this_process::is_home()) {
        passing::leave_to_kernel(fd);
    }
    if !this_process::is_home() {
        return None;
    }
    // Check that `fd` is open before `to` is closed, like the kernel does.
    // SAFETY: takes no pointers.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    let last = forgotten(to);
    let copy = {
        let mut connection_table = connection_table::lock();
        let copy = make();
        if copy >= 0 {
            note(&mut connection_table, fd, copy);
        }
        copy
    };
    released(last.as_ref());
    Some(copy)
}

/// Records that `copy` is a duplicate of `fd`.
fn note(connection_table: &mut connection_table::ConnectionTable, fd: c_int, copy: c_int) {
    match table::kind(fd) {
        Kind::Socket => {
            if let Some(socket) = table::socket(fd) {
                connection_table.add(copy, &socket);
            }
        }
        kind @ (Kind::Epoll | Kind::OtherEpoll) => {
            table::set(copy, kind);
        }
        Kind::Plain | Kind::Private | Kind::Unconnected => {}
    }
}
