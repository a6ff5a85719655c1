//! Enlarges receive buffers of stream sockets.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, socklen_t};

/// Makes the receive buffer of a TCP socket large enough for `bytes` bytes that the program has not
/// read yet. A buffer size that the program has set (`SO_RCVBUF`) does not change.
///
/// An unread byte keeps its whole packet buffer allocated, up to some hundred kilobytes. In a small
/// receive buffer, such packet buffers can close the connection's receive window for ever. The
/// bytes for which the reader waits would then never arrive.
///
/// # Errors
/// Returns the errors of `getsockopt` and `setsockopt`.
pub fn make_room(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let before = low_water(socket)?;
    // The kernel grows the buffer to the low-water mark, and does not shrink it afterwards.
    set_low_water(socket, c_int::try_from(bytes).unwrap_or(c_int::MAX))?;
    set_low_water(socket, before)
}

fn low_water(socket: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // SAFETY: both pointers point to variables that outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw mut value).cast::<c_void>(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn set_low_water(socket: BorrowedFd<'_>, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer points to a variable of the length given, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn making_room_restores_the_low_water_mark_of_one_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        make_room(socket.as_fd(), 1 << 20).expect("a socket");
        assert_eq!(low_water(socket.as_fd()).expect("a socket"), 1);
    }
}
