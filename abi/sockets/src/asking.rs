//! Calls that ask something of a connection or set it, and move no bytes.
//!
//! Until the connection has moved, the kernel answers them at the program's number. When it moves, another descriptor takes
//! the place of the TCP socket there, so it does not move while the kernel is at it.

use std::sync::Arc;

use libc::c_int;
use sockets::{Connection, Route};

use crate::socket::Owner;
use crate::table::{self, Kind};

/// Who answers such a call.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    /// The kernel has answered it.
    Answered(T),
    /// The connection, which has moved.
    Moved(Arc<Connection>),
    /// The kernel: the number is not that of a connection of this process, or the connection stays on TCP.
    Kernel,
    /// Nothing: the program has no such descriptor.
    NoDescriptor,
}

/// Finds what answers a call, and has the kernel answer it if the connection may still move.
pub(crate) fn ask<T>(fd: c_int, by_kernel: impl Fn() -> T) -> Asked<T> {
    loop {
        let Some(socket) = table::socket(fd) else {
            let is_private = table::kind(fd) == Kind::Private;
            return if is_private { Asked::NoDescriptor } else { Asked::Kernel };
        };
        if socket.owner != Owner::Own {
            return Asked::Kernel;
        }
        if let Some(answer) = socket.before_it_begins(&by_kernel) {
            return Asked::Answered(answer);
        }
        // To ask is not to use.
        let Some(connection) = socket.begun() else { return Asked::Kernel };
        if matches!(connection.route(), Route::Left(_)) {
            return Asked::Kernel;
        }
        if let Some(answer) = connection.while_undecided(&by_kernel) {
            return Asked::Answered(answer);
        }
        if connection.route() == Route::Moved {
            return Asked::Moved(Arc::clone(connection));
        }
    }
}
