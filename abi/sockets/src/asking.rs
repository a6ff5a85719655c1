//! Calls that read or set properties of a connection and transfer no bytes.
//!
//! Before a connection has moved from TCP to the edge, the kernel handles these calls on the
//! program's descriptor number. When the connection moves, another descriptor replaces the TCP
//! socket at that number. Therefore the connection must not move while the kernel handles such a
//! call.

use std::sync::Arc;

use libc::c_int;
use sockets::{Connection, Route};

use crate::socket::Owner;
use crate::table::{self, Kind};

/// The state of a call that reads or sets properties: the kernel has handled it, or the caller must
/// still handle it.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    /// The kernel has handled the call, with this result.
    Answered(T),
    /// The call must use this connection, which has moved to the edge.
    Moved(Arc<Connection>),
    /// The kernel must handle the call, because the number has no connection of this process, or
    /// because the connection stays on TCP.
    Kernel,
    /// The call fails, because the program has no such descriptor.
    NoDescriptor,
}

/// Determines how a call must be handled. If the connection has not moved but may still move, makes
/// the call by `by_kernel`.
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
        // A query does not count as the first use of a connection, so it does not make the
        // connection move.
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
