//! Connections of the parent, in a forked child.

use libc::c_int;

use crate::ledger;
use crate::socket::Socket;

/// Has the parent carry the bytes of a connection, as this process begins to use it.
pub(crate) fn fetch(socket: &Socket, fd: c_int) {
    let _ = fd;
    ledger::lock().forget(socket.token);
}
