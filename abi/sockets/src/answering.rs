//! Determines whether the kernel or this library handles a call that the program makes on a
//! descriptor number.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use libc::c_int;
use sockets::{Connection, Route};

use crate::counted::Counted;
use crate::table::{self, Kind};

/// The way to handle a call of the program.
#[derive(Debug)]
pub(crate) enum Answering {
    /// The kernel handles the call.
    Kernel,
    /// The call fails, because the program has no such descriptor.
    NoDescriptor,
    /// The kernel handles the call, and this library counts the bytes. The connection is on trial:
    /// it uses TCP, and moves to the edge when it has lasted long enough.
    Trial(Counted),
    /// The library handles the call on this connection.
    Connection(Arc<Connection>),
}

/// Returns how a call of the program on the descriptor number `fd` must be handled. The table must
/// [know](table::is_known) the number.
#[inline]
pub(crate) fn answering(fd: c_int) -> Answering {
    let Some(socket) = table::socket(fd) else {
        return if table::kind(fd) == Kind::Private {
            Answering::NoDescriptor
        } else {
            Answering::Kernel
        };
    };
    if socket.begun().is_none()
        && let Some(counted) = Counted::enter(&socket, fd)
    {
        return Answering::Trial(counted);
    }
    let Some(connection) = socket.used(fd) else { return Answering::Kernel };
    match connection.route() {
        Route::Left(_) => Answering::Kernel,
        Route::Moved if connection.is_relayed() => Answering::Kernel,
        Route::Undecided | Route::Moved => Answering::Connection(Arc::clone(connection)),
    }
}

/// Borrows a descriptor number of the program for calls of this library.
pub(crate) fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    assert!(fd >= 0, "only numbers of the table are borrowed");
    // SAFETY: the number is not -1, and the program is within a call on it. If another thread
    // closes the number during this call, the kernel rejects the number or uses the new descriptor
    // that has it, like in any system call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
