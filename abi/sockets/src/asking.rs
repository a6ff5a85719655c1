//! Calls that query or set properties of a connection, and transfer no bytes.
//!
//! Until the connection has moved, the kernel handles these calls at the program's number. When the
//! connection moves, another descriptor replaces the TCP socket there. Therefore it must not move
//! while the kernel handles such a call.

use std::sync::Arc;

use libc::c_int;
use sockets::{Connection, Route};

use crate::socket::Owner;
use crate::table::{self, Kind};

/// The component that handles such a call.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    /// The kernel has handled the call, with this result.
    Answered(T),
    /// The moved connection must handle the call.
    Moved(Arc<Connection>),
    /// The kernel must handle the call: the number has no connection of this process, or the
    /// connection stays on TCP.
    Kernel,
    /// No component: the program has no such descriptor.
    NoDescriptor,
}

/// Determines which component handles a call. If the connection may still move, lets the kernel
/// handle the call.
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
        // A query is not a use, so the connection does not begin to move.
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
