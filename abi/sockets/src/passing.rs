//! Connections that are left to the kernel, because this library does not see further calls on
//! them.

use std::time::Duration;

use libc::{c_int, msghdr};
use sockets::{Connection, Reason, Route};

use crate::answering::{Answering, answering, borrowed};
use crate::table::is_known;
use crate::{connection_table, table, this_process};

/// Makes calls on a number go to the kernel from now on: its connection stays on TCP or returns to
/// TCP. If it cannot return, its bytes are relayed.
pub(crate) fn leave_to_kernel(fd: c_int) {
    if let Some(socket) = table::socket(fd).filter(|socket| socket.is_unused()) {
        // The peer has not been asked to move yet.
        socket.stay(Reason::Passed);
        connection_table::lock().forget(socket.token);
        return;
    }
    let Answering::Connection(connection) = answering(fd) else { return };
    if connection.route() == Route::Undecided && connection.stay(Reason::Passed) {
        return;
    }
    // A process that shares the memory of another one (`vfork`) has its own descriptor table, into
    // which this process cannot put the TCP socket.
    if !this_process::is_home() || !brought_home(&connection) {
        connection.relay(borrowed(fd));
    }
}

/// Returns a connection to TCP. Returns false if that is impossible. Waits for a peer that is
/// stopped, as TCP does; otherwise bytes that the program writes meanwhile would be lost.
pub(crate) fn brought_home(connection: &Connection) -> bool {
    while !connection.go_home(HOME_LIMIT) {
        if !connection.is_going_home() {
            return false;
        }
    }
    true
}

/// Returns whether a message has control data.
pub(crate) fn has_descriptors(message: *const msghdr) -> bool {
    // SAFETY: null, or the message that the program passed to `sendmsg`.
    unsafe { message.as_ref() }.is_some_and(|message| message.msg_controllen != 0)
}

/// Leaves to the kernel the connections whose descriptors a message passes to another process.
///
/// # Safety
/// The contract of `sendmsg`.
pub(crate) unsafe fn give_away(message: *const msghdr) {
    let give = |fd| {
        if is_known(fd) {
            leave_to_kernel(fd);
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { of_message(message, give) };
}

/// Calls `with` for each descriptor that a message passes.
///
/// # Safety
/// The contract of `sendmsg`.
pub(crate) unsafe fn of_message(message: *const msghdr, mut with: impl FnMut(c_int)) {
    // SAFETY: the caller passes a valid message.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null or within the message.
    while let Some(header) = unsafe { control.as_ref() } {
        let is_passing =
            (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        if is_passing {
            // SAFETY: takes no pointers.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            // SAFETY: the control message has that length.
            let first = unsafe { libc::CMSG_DATA(control) };
            for at in 0..count {
                // SAFETY: as above. The number need not be aligned.
                let fd =
                    unsafe { first.add(at * size_of::<c_int>()).cast::<c_int>().read_unaligned() };
                with(fd);
            }
        }
        // SAFETY: guaranteed by the caller.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

/// The time to wait for a connection to return to TCP. The peer answers at once, unless it is
/// stopped.
pub(crate) const HOME_LIMIT: Duration = Duration::from_secs(2);
