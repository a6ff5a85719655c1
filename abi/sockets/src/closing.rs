//! Calls that close descriptors and copy them.

use libc::{c_int, c_uint};

use crate::next::{call_next, fail, interpose};
use crate::table::{self, Kind, is_known};

interpose! {
    dup(fd: c_int) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    dup2(fd: c_int, to: c_int) -> c_int,
        else -1, if is_known(fd) || is_known(to), by copied(fd, to);
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int,
        else -1, if is_known(fd) || is_known(to), by copied(fd, to);
    shutdown(fd: c_int, how: c_int) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int,
        else -1, if true, by range(first, last, flags);
}

#[unsafe(export_name = "ethernot_sockets_close")]
unsafe extern "C" fn close_of_program(fd: c_int) -> c_int {
    if is_known(fd)
        // SAFETY: it takes no pointers.
        && let Some(answer) = unsafe { refused(fd) }
    {
        return answer;
    }
    call_next!(close(fd: c_int) -> c_int, else -1)
}

#[unsafe(export_name = "ethernot_sockets_closefrom")]
unsafe extern "C" fn closefrom_of_program(first: c_int) {
    of_range(first.max(0) as u32, u32::MAX, 0);
}

#[unsafe(export_name = "ethernot_inside_closefrom")]
unsafe extern "C" fn closefrom_of_ours(first: c_int) {
    call_next!(closefrom(first: c_int) -> (), else ());
}

/// The answer to a call on a descriptor that the program does not have: `EBADF`.
///
/// # Safety
/// As of the call that it answers.
pub(crate) unsafe fn refused<T: From<i8>>(fd: c_int) -> Option<T> {
    (table::kind(fd) == Kind::Private).then(|| fail(libc::EBADF, T::from(-1)))
}

/// A copy with a number that the program has chosen. One that is private is in use, as the kernel may say too.
///
/// # Safety
/// As of `dup2`.
unsafe fn copied(fd: c_int, to: c_int) -> Option<c_int> {
    // SAFETY: it takes no pointers.
    let refused = unsafe { refused(fd) };
    refused.or_else(|| (table::kind(to) == Kind::Private).then(|| fail(libc::EBUSY, -1)))
}

/// Closes a range as the program asked for, without private descriptors in it.
///
/// # Safety
/// As of `close_range`.
#[expect(clippy::unnecessary_wraps, reason = "it always has the answer")]
unsafe fn range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int> {
    if first > last {
        return Some(fail(libc::EINVAL, -1));
    }
    Some(of_range(first, last, flags))
}

/// Closes the parts of a range between private descriptors.
fn of_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    let known = (first..=last).take_while(|&number| (number as usize) < table::NUMBERS);
    for number in known.filter(|&number| table::kind(number.cast_signed()) == Kind::Private) {
        if from < number && of_kernel(from, number - 1, flags) != 0 {
            return -1;
        }
        from = number + 1;
    }
    if from <= last { of_kernel(from, last, flags) } else { 0 }
}

fn of_kernel(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Not the C library's, as older ones have none.
    // SAFETY: no pointers are passed; the program closes what is its own.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}
