//! TCP ports: reserves a port, listens and accepts connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::stream::{TcpStream, ip_address};

/// A TCP port of an address. The port is reserved from the start, and accepts connections after
/// [`TcpPort::listen`].
#[derive(Debug)]
pub struct TcpPort {
    socket: Socket,
    address: SocketAddr,
}

impl TcpPort {
    /// Reserves a port. Port 0 stands for a free one. The kernel refuses connections to the port
    /// until [`TcpPort::listen`].
    ///
    /// A program may reserve the port of its predecessor while old connections of that port still
    /// wait for late segments (`SO_REUSEADDR`). Two programs may therefore reserve the same port;
    /// then only one of them can listen.
    ///
    /// # Errors
    /// Returns the error of the system call that failed: `EADDRINUSE` if another socket listens at
    /// the port, `EADDRNOTAVAIL` if the host does not have the address, `EACCES` if the port needs
    /// a privilege, or `EMFILE`.
    pub fn reserve(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            // A port of an IPv6 address belongs to IPv6 alone, so that a program can reserve the
            // same port for both families.
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        let address = ip_address(&socket.local_addr()?)?;
        Ok(Self { socket, address })
    }

    /// Accepts connections from now on. Up to `backlog` connections may wait for
    /// [`TcpPort::accept`]; the kernel limits this number.
    ///
    /// # Errors
    /// Returns `EADDRINUSE` if another program listens at the port.
    pub fn listen(&self, backlog: u32) -> io::Result<()> {
        self.socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// Returns the address, with the port that the kernel chose for port 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts a connection and returns it with the address of the peer. Returns `None` if no
    /// connection waits.
    ///
    /// A connection that its peer has reset already is passed over.
    ///
    /// # Errors
    /// Returns the error of the system call that failed. After `EMFILE`, the connection still
    /// waits.
    pub fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok((socket, peer)) => {
                    let peer = ip_address(&peer)?;
                    return Ok(Some((TcpStream::adopt(socket)?, peer)));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

impl AsFd for TcpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_reserved_port_refuses_connections_until_it_listens() {
        let port = TcpPort::reserve(ANY).expect("a free port");
        let refused = std::net::TcpStream::connect(port.address());
        assert_eq!(
            refused.expect_err("no program listens").kind(),
            io::ErrorKind::ConnectionRefused
        );
        port.listen(4).expect("it is free");
        assert!(port.accept().expect("it listens").is_none());
        let client = std::net::TcpStream::connect(port.address()).expect("it listens");
        let (_stream, peer) = port.accept().expect("it listens").expect("a connection");
        assert_eq!(peer, client.local_addr().expect("it is connected"));
    }

    #[test]
    fn only_one_of_two_programs_listens_at_a_port() {
        let one = TcpPort::reserve(ANY).expect("a free port");
        let other = TcpPort::reserve(one.address()).expect("nobody listens");
        one.listen(4).expect("it is free");
        assert_eq!(other.listen(4).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        let third = TcpPort::reserve(one.address()).expect_err("taken");
        assert_eq!(third.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_of_a_listening_tcp_server_cannot_be_reserved() {
        let server = TcpListener::bind(ANY).expect("a free port");
        let error = TcpPort::reserve(server.local_addr().expect("it is bound"));
        assert_eq!(error.expect_err("taken").kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn both_families_may_have_the_same_port() {
        let six = TcpPort::reserve((Ipv6Addr::UNSPECIFIED, 0).into());
        let Ok(six) = six else {
            println!("skipped: this host has no IPv6");
            return;
        };
        let port = six.address().port();
        let four = TcpPort::reserve((Ipv4Addr::UNSPECIFIED, port).into()).expect("another family");
        six.listen(1).expect("it is free");
        four.listen(1).expect("it is free");
    }
}
