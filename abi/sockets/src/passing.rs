//! Leaves connections to the kernel, because this library will not see later calls on them.

use std::time::Duration;

use libc::{c_int, msghdr};
use sockets::{Connection, Reason, Route};

use crate::answering::{Answering, answering, borrowed};
use crate::table::is_known;
use crate::{connection_table, table, this_process};

/// Makes later calls on a number go to the kernel. The connection of the number stays on TCP or
/// returns to TCP. If it cannot return, the library relays its bytes between the edge and a kernel
/// socket.
pub(crate) fn leave_to_kernel(fd: c_int) {
    if let Some(socket) = table::socket(fd).filter(|socket| socket.is_unused()) {
        // This side has not begun to move the connection, so make it stay on TCP.
        socket.stay(Reason::Passed);
        connection_table::lock().forget(socket.token);
        return;
    }
    let Answering::Connection(connection) = answering(fd) else { return };
    if connection.route() == Route::Undecided && connection.stay(Reason::Passed) {
        return;
    }
    // If this process shares the memory of another process (`vfork`), it cannot put the TCP socket
    // at that process's descriptor number, because each of the two has its own descriptors.
    if !this_process::is_home() || !brought_home(&connection) {
        connection.relay(borrowed(fd));
    }
}

/// Makes a connection return to TCP. Returns false if that is impossible. If the peer's process is
/// stopped, waits for it, because otherwise bytes that the program writes during the return would
/// be lost.
pub(crate) fn brought_home(connection: &Connection) -> bool {
    while !connection.go_home(HOME_LIMIT) {
        if !connection.is_going_home() {
            return false;
        }
    }
    true
}

/// Returns true if a message has control data.
pub(crate) fn has_descriptors(message: *const msghdr) -> bool {
    // SAFETY: the pointer is null, or points to the message that the program passed to `sendmsg`.
    unsafe { message.as_ref() }.is_some_and(|message| message.msg_controllen != 0)
}

/// Leaves a connection to the kernel if the message passes a descriptor of the connection to
/// another process.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `sendmsg`.
pub(crate) unsafe fn give_away(message: *const msghdr) {
    let give = |fd| {
        if is_known(fd) {
            leave_to_kernel(fd);
        }
    };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { of_message(message, give) };
}

/// Calls `with` for each descriptor that a message passes.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `sendmsg`.
pub(crate) unsafe fn of_message(message: *const msghdr, mut with: impl FnMut(c_int)) {
    // SAFETY: the caller passes a valid message.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the pointer is null or points into the message.
    while let Some(header) = unsafe { control.as_ref() } {
        let is_passing =
            (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        if is_passing {
            // SAFETY: takes no pointers.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            // SAFETY: the control message has the length in its header.
            let first = unsafe { libc::CMSG_DATA(control) };
            for at in 0..count {
                // SAFETY: the control message has room for `count` numbers. The numbers need not be
                // aligned.
                let fd =
                    unsafe { first.add(at * size_of::<c_int>()).cast::<c_int>().read_unaligned() };
                with(fd);
            }
        }
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

/// Time for which one attempt to return a connection to TCP waits for the peer. A running peer
/// answers much sooner.
pub(crate) const HOME_LIMIT: Duration = Duration::from_secs(2);
