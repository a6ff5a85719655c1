//! Calls that query or set something of a connection and transfer no bytes.
//!
//! Until the connection has moved, the kernel handles them at the program's number. When it moves, another descriptor
//! replaces the TCP socket there. So it does not move while the kernel handles such a call.

use std::sync::Arc;

use libc::c_int;
use sockets::{Connection, Route};

use crate::socket::Owner;
use crate::table::{self, Kind};

/// Which component handles such a call.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    /// The kernel has handled it.
    Answered(T),
    /// The connection, which has moved.
    Moved(Arc<Connection>),
    /// The kernel: the number is not that of a connection of this process, or the connection stays on TCP.
    Kernel,
    /// None: the program has no such descriptor.
    NoDescriptor,
}

/// Finds out which component handles a call, and lets the kernel handle it if the connection may still move.
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
        // A query does not count as a use.
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
