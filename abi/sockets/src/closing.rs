//! Handles calls of the program that close descriptors.

use std::sync::Arc;

use libc::{FILE, c_int, c_uint};
use sockets::Reason;

use crate::handling::Inside;
use crate::next::{call_next, errno, fail, interpose, set_errno};
use crate::socket::Socket;
use crate::table::{self, Kind, is_known};
use crate::{connection_table, services, this_process};

interpose! {
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int,
        else -1, if true, by range(first, last, flags);
    fclose(stream: *mut FILE) -> c_int,
        else libc::EOF, if connection_table::has_any(), by stream_closed(stream);
}

#[unsafe(export_name = "ethernot_sockets_close")]
unsafe extern "C" fn close_of_program(fd: c_int) -> c_int {
    if !is_known(fd) {
        return call_next!(close(fd: c_int) -> c_int, else -1);
    }
    if table::kind(fd) == Kind::Private {
        return fail(libc::EBADF, -1);
    }
    let before = errno();
    let inside = Inside::enter();
    let last = forgotten(fd);
    set_errno(before);
    let result = call_next!(close(fd: c_int) -> c_int, else -1);
    let after = errno();
    released(last.as_ref());
    drop((last, inside));
    set_errno(after);
    result
}

#[unsafe(export_name = "ethernot_sockets_closefrom")]
unsafe extern "C" fn closefrom_of_program(first: c_int) {
    let _inside = Inside::enter();
    of_range(first.max(0).cast_unsigned(), c_uint::MAX, 0);
}

#[unsafe(export_name = "ethernot_inside_closefrom")]
unsafe extern "C" fn closefrom_of_ours(first: c_int) {
    call_next!(closefrom(first: c_int) -> (), else ());
}

/// Records that the program is about to close a descriptor number. If this is the last number of a
/// connection, returns the connection.
pub(crate) fn forgotten(fd: c_int) -> Option<Arc<Socket>> {
    if !this_process::is_home() {
        return None;
    }
    let last = match table::kind(fd) {
        Kind::Socket => connection_table::lock().remove(fd),
        Kind::Epoll | Kind::OtherEpoll => {
            connection_table::lock().forget_set(fd);
            None
        }
        Kind::Unconnected => {
            connection_table::lock().forget_unconnected(fd);
            None
        }
        Kind::Plain | Kind::Private => None,
    };
    // Notify the connection now, because another thread may be within a call on it.
    if let Some(connection) = last.as_ref().and_then(|last| last.begun()) {
        connection.closing();
    }
    last
}

/// Handles the close of a connection's last descriptor number.
pub(crate) fn released(last: Option<&Arc<Socket>>) {
    let Some(last) = last else { return };
    if last.is_shared() {
        // Another process, a forked child or the parent, still has the connection open.
        last.trial.end();
    } else {
        last.stay(Reason::Short);
    }
    if let Some(connection) = last.begun() {
        services::note_ended(last);
        connection.released();
    }
}

/// Handles `fclose`. The C library closes the descriptor by a call that is not interposed.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `fclose`.
unsafe fn stream_closed(stream: *mut FILE) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let fd = unsafe { libc::fileno(stream) };
    if !is_known(fd) {
        return None;
    }
    let last = forgotten(fd);
    let result = call_next!(fclose(stream: *mut FILE) -> c_int, else libc::EOF);
    released(last.as_ref());
    Some(result)
}

/// Closes a range of numbers for the program, except the library's own descriptors in the range.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `close_range`.
#[expect(clippy::unnecessary_wraps, reason = "it always has the answer")]
unsafe fn range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int> {
    if first > last {
        return Some(fail(libc::EINVAL, -1));
    }
    Some(of_range(first, last, flags))
}

/// Closes the parts of a range that lie between the library's own descriptors.
fn of_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let is_closing = flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC == 0;
    let mut from = first;
    let mut gone = Vec::new();
    let highest = last.min(c_uint::try_from(table::highest()).unwrap_or(0));
    for number in (first..=highest).filter(|&number| is_known(number.cast_signed())) {
        let fd = number.cast_signed();
        if table::kind(fd) == Kind::Private {
            if from < number && of_kernel(from, number - 1, flags) != 0 {
                return -1;
            }
            from = number + 1;
        } else if is_closing {
            gone.extend(forgotten(fd));
        }
    }
    let result = if from <= last { of_kernel(from, last, flags) } else { 0 };
    for last in &gone {
        released(Some(last));
    }
    result
}

fn of_kernel(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Call the kernel, because older C libraries do not have this function.
    // SAFETY: no pointers are passed, and the range contains only descriptors of the program.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}
