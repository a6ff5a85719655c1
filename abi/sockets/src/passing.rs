//! Connections whose further calls this library does not see.

use std::time::Duration;

use libc::{c_int, msghdr};
use sockets::{Connection, Reason, Route};

use crate::answering::{Answering, answering, borrowed};
use crate::table::is_known;
use crate::{connection_table, table, this_process};

/// From now on calls on a number go to the kernel: its connection stays on TCP, or goes home. If it cannot, its bytes
/// are relayed.
pub(crate) fn leave_to_kernel(fd: c_int) {
    if let Some(socket) = table::socket(fd).filter(|socket| socket.is_unused()) {
        // The peer was asked for nothing yet.
        socket.stay(Reason::Passed);
        connection_table::lock().forget(socket.token);
        return;
    }
    let Answering::Connection(connection) = answering(fd) else { return };
    if connection.route() == Route::Undecided && connection.stay(Reason::Passed) {
        return;
    }
    // A process that shares the memory of another one (`vfork`) has descriptors of its own, where TCP would not be.
    if !this_process::is_home() || !brought_home(&connection) {
        connection.relay(borrowed(fd));
    }
}

/// Brings a connection home; returns false if it cannot go. Waits for a peer that is stopped, as TCP does: otherwise
/// bytes that the program writes meanwhile would be lost.
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
    // SAFETY: null, or what the program passed to `sendmsg`.
    unsafe { message.as_ref() }.is_some_and(|message| message.msg_controllen != 0)
}

/// Leaves connections to the kernel whose descriptors a message passes to another process.
///
/// # Safety
/// As of `sendmsg`.
pub(crate) unsafe fn give_away(message: *const msghdr) {
    let give = |fd| {
        if is_known(fd) {
            leave_to_kernel(fd);
        }
    };
    // SAFETY: the caller's.
    unsafe { of_message(message, give) };
}

/// Calls `with` for each descriptor that a message passes.
///
/// # Safety
/// As of `sendmsg`.
pub(crate) unsafe fn of_message(message: *const msghdr, mut with: impl FnMut(c_int)) {
    // SAFETY: the caller's: the message is valid.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null or within the message.
    while let Some(header) = unsafe { control.as_ref() } {
        let is_passing =
            (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        if is_passing {
            // SAFETY: takes no pointers.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            // SAFETY: the control message is that long.
            let first = unsafe { libc::CMSG_DATA(control) };
            for at in 0..count {
                // SAFETY: as above; the place need not be aligned.
                let fd =
                    unsafe { first.add(at * size_of::<c_int>()).cast::<c_int>().read_unaligned() };
                with(fd);
            }
        }
        // SAFETY: the caller's.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

/// How long to wait for a connection to go home. The peer answers at once, unless it is stopped.
pub(crate) const HOME_LIMIT: Duration = Duration::from_secs(2);
