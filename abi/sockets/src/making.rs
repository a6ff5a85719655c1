//! Handles calls of the program that create connections.

use std::net::SocketAddr;

use libc::{c_int, sockaddr, socklen_t};
use sockets::{Choice, Role};

use crate::asking::{Asked, ask};
use crate::handling::{Inside, outside};
use crate::next::{call_next, errno, fail, interpose, set_errno};
use crate::socket::{Owner, Socket};
use crate::table::{self, Kind, is_known};
use crate::{addresses, closing, connection_table, inside, instance, opening, this_process};

interpose! {
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        else -1, if is_known(fd) || addresses::is_internet(address, length),
        by connected(fd, address, length);
    listen(fd: c_int, waiting: c_int) -> c_int,
        else -1, if is_known(fd), by listening(fd);
}

#[unsafe(export_name = "ethernot_sockets_socket")]
unsafe extern "C" fn socket_of_program(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = call_next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else -1);
    opening::made(fd);
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    if fd >= 0
        && is_stream
        && matches!(domain, libc::AF_INET | libc::AF_INET6)
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
        && this_process::is_home()
    {
        table::set(fd, Kind::Unconnected);
    }
    fd
}

#[unsafe(export_name = "ethernot_inside_socket")]
unsafe extern "C" fn socket_of_ours(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    inside::kept(call_next!(
        socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else -1
    ))
}

/// Handles `listen`: removes the socket from the table, because a listening socket is never
/// connected.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `listen`.
unsafe fn listening(fd: c_int) -> Option<c_int> {
    match table::kind(fd) {
        Kind::Private => return Some(fail(libc::EBADF, -1)),
        Kind::Unconnected if this_process::is_home() => {
            connection_table::lock().forget_unconnected(fd);
        }
        _ => {}
    }
    None
}

#[unsafe(export_name = "ethernot_sockets_accept")]
unsafe extern "C" fn accept_of_program(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    accepted(call_next!(
        accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, else -1
    ))
}

#[unsafe(export_name = "ethernot_inside_accept")]
unsafe extern "C" fn accept_of_ours(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    inside::kept(call_next!(
        accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, else -1
    ))
}

#[unsafe(export_name = "ethernot_inside_accept4")]
unsafe extern "C" fn accept4_of_ours(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    inside::kept(call_next!(
        accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int,
        else -1
    ))
}

#[unsafe(export_name = "ethernot_sockets_accept4")]
unsafe extern "C" fn accept4_of_program(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    accepted(call_next!(
        accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int,
        else -1
    ))
}

/// Begins to track a connection that the kernel has just accepted. The connection may move when the
/// program uses it.
fn accepted(fd: c_int) -> c_int {
    if fd >= 0 && this_process::is_home() {
        let before = errno();
        let inside = Inside::enter();
        opening::made(fd);
        if let Some((local, peer)) = addresses::local(fd).zip(addresses::peer(fd)) {
            begin(fd, Role::Accepting, local, peer, false);
        }
        drop(inside);
        set_errno(before);
    }
    fd
}

/// Handles `connect`. The move of the connection begins only when the program uses the connection,
/// so that `connect` stays fast.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `connect`.
#[expect(clippy::unnecessary_wraps, reason = "it always has the answer")]
unsafe fn connected(fd: c_int, address: *const sockaddr, length: socklen_t) -> Option<c_int> {
    if table::kind(fd) == Kind::Private {
        return Some(fail(libc::EBADF, -1));
    }
    // SAFETY: the caller passes an address of `length` bytes.
    let peer = unsafe { addresses::parsed(address, length) };
    let connect = || {
        let result = call_next!(
            connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, else -1
        );
        (result, errno())
    };
    let (result, errno) = match connected_again(fd, connect) {
        Again::First => match outside(connect) {
            answer @ (0, _) => answer,
            // Another thread may have used the connection since the first look, and the connection may
            // have moved. Then the kernel's error is about the socket pair that has the number now.
            answer => match connected_again(fd, connect) {
                Again::First => answer,
                Again::Kernel(answer) => answer,
                Again::Moved(answer) => return Some(answer),
            },
        },
        Again::Kernel(answer) => answer,
        Again::Moved(answer) => return Some(answer),
    };
    if (result == 0 || errno == libc::EINPROGRESS) && this_process::is_home() {
        if let Some(peer) = peer {
            consider(fd, peer, result != 0);
        }
        if table::kind(fd) == Kind::Unconnected {
            connection_table::lock().forget_unconnected(fd);
        }
    }
    Some(if result == 0 { 0 } else { fail(errno, result) })
}

/// The answer to a `connect` on a socket that may already be connected.
enum Again {
    /// No answer, because this is the first `connect`. The kernel must connect the socket, and may
    /// wait for the peer.
    First,
    /// The kernel's result and `errno`. The connection is still on TCP.
    Kernel((c_int, c_int)),
    /// The result for a moved connection, equal to the kernel's result for TCP. The kernel itself
    /// cannot answer, because the number no longer refers to the TCP socket.
    Moved(c_int),
}

fn connected_again(fd: c_int, connect: impl Fn() -> (c_int, c_int)) -> Again {
    let Some(socket) = table::socket(fd) else { return Again::First };
    let answer = || if socket.ends_to_connect() { 0 } else { fail(libc::EISCONN, -1) };
    if socket.owner == Owner::Other {
        return Again::Moved(answer());
    }
    if socket.begun().is_none() {
        return Again::First;
    }
    // The connection has begun to move, so it is already connected, and the kernel answers without
    // waiting.
    match ask(fd, connect) {
        Asked::Answered(answer) => Again::Kernel(answer),
        Asked::Moved(_) => Again::Moved(answer()),
        Asked::Kernel | Asked::NoDescriptor => Again::First,
    }
}

fn consider(fd: c_int, peer: SocketAddr, is_connecting: bool) {
    // Any other socket is a datagram socket, or a TCP socket that stays on TCP.
    if !matches!(table::kind(fd), Kind::Unconnected | Kind::Socket) {
        return;
    }
    let Some(local) = addresses::local(fd) else { return };
    let known = table::socket(fd);
    if known.as_ref().is_some_and(|known| (known.local, known.peer) == (local, peer)) {
        // The program has repeated `connect` to find out whether the socket is connected, and the
        // kernel has reported success. Record this, because a further `connect` must not report
        // success again.
        let _first = known.is_some_and(|known| known.ends_to_connect());
        return;
    }
    if known.is_some() {
        // The earlier connection of this socket has failed, and this is a new connection.
        let known = connection_table::lock().remove(fd);
        closing::released(known.as_ref());
    }
    begin(fd, Role::Connecting, local, peer, is_connecting);
}

/// Begins to track a connection if it may move to the edge. Does not track other connections, so
/// that calls on them stay fast.
fn begin(fd: c_int, role: Role, local: SocketAddr, peer: SocketAddr, is_connecting: bool) {
    match instance::choice(role, local, peer) {
        Choice::Edge if is_tcp(fd) => {
            let socket = Socket::new(role, local, peer);
            if is_connecting {
                socket.begin_to_connect();
            }
            connection_table::lock().add(fd, &socket);
        }
        Choice::Edge => {}
        Choice::Tcp(reason) => sockets::counters::note_left(role, local, peer, reason),
    }
}

fn is_tcp(fd: c_int) -> bool {
    let (mut protocol, mut length) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        let value = (&raw mut protocol).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, value, &raw mut length)
    };
    result == 0 && protocol == libc::IPPROTO_TCP
}
