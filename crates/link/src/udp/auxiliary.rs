//! UDP sockets beside the links, for the few datagrams of multicast groups and unknown peers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::address::{Family, SocketName};
use super::error::UdpError;
use super::{interface, socket};

/// A UDP socket that is read occasionally, one datagram at a time, and never blocks.
///
/// An endpoint uses such sockets for datagrams that do not arrive on its links. These are datagrams
/// to a group that the endpoint joined, and requests at a port at which it has no link.
#[derive(Debug)]
pub struct AuxiliarySocket {
    socket: UdpSocket,
    local: SocketAddr,
    buffer: Box<[u8]>,
}

impl AuxiliarySocket {
    /// Opens a socket at this address. After that, no other socket of the host can bind the
    /// address. If another socket already has the address, [`give_way`] must have been called for
    /// that socket.
    ///
    /// # Errors
    /// Returns the errors of [`UdpLink::bind`](crate::UdpLink::bind).
    pub fn bind(address: SocketAddr) -> Result<Self, UdpError> {
        let set = |socket: BorrowedFd<'_>, shares| {
            socket::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, shares)
        };
        let auxiliary = Self::open(address, |socket| set(socket, 1))?;
        // Stop sharing the address. When another socket binds the address, the kernel reads this
        // option of each socket that has the address.
        let failed = |source| UdpError::new("reserve the address of", address, source);
        set(auxiliary.socket.as_fd(), 0).map_err(failed)?;
        Ok(auxiliary)
    }

    //= protocol.md: datagram.8
    /// Opens a socket for datagrams to a group that arrive on the interface with the address
    /// `local`. Any number of processes of the host may open such a socket, and each receives all
    /// datagrams.
    ///
    /// # Errors
    /// Returns an error if `group` is not a group address, or if the interface has no route to the
    /// group.
    pub fn join(group: IpAddr, local: IpAddr) -> Result<Self, UdpError> {
        let address = SocketAddr::new(group, GROUP_PORT);
        let failed = |source| UdpError::new("join the group of", address, source);
        let auxiliary = Self::open(address, |socket| {
            socket::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            // Without this, the socket would also receive datagrams of groups that other processes
            // joined on other interfaces.
            match Family::of(&address) {
                Family::V4 => {
                    socket::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)
                }
                Family::V6 => {
                    socket::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)
                }
            }
        })?;
        match group {
            IpAddr::V4(group) => {
                let local = if let IpAddr::V4(v4) = local { v4 } else { Ipv4Addr::UNSPECIFIED };
                auxiliary.socket.join_multicast_v4(&group, &local).map_err(failed)?;
            }
            IpAddr::V6(group) => {
                let index = interface::index_of(local);
                auxiliary.socket.join_multicast_v6(&group, index).map_err(failed)?;
            }
        }
        Ok(auxiliary)
    }

    /// Opens a socket at `address`. `prepare` sets its options before it is bound.
    fn open(
        address: SocketAddr,
        prepare: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<Self, UdpError> {
        let failed = |attempt| move |source| UdpError::new(attempt, address, source);
        let socket = socket::open(Family::of(&address)).map_err(failed("open a socket for"))?;
        prepare(socket.as_fd()).map_err(failed("set the options of"))?;
        socket::bind(socket.as_fd(), &SocketName::new(&address)).map_err(failed("bind"))?;
        let socket = UdpSocket::from(socket);
        let local = socket.local_addr().map_err(failed("read the address of the socket for"))?;
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Self { socket, local, buffer })
    }

    /// Returns the bound address.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the next datagram and the address of its sender. Returns `None` if no datagram
    /// waits. Also returns `None` after several errors that earlier answers caused; the next call
    /// continues.
    pub fn receive(&mut self) -> Option<(&mut [u8], SocketAddr)> {
        for _ in 0..ERRORS_MAX {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, from)) => return Some((self.buffer.get_mut(..len)?, from)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Sends an answer, or drops it if the socket has no room.
    pub fn answer(&self, bytes: &[u8], to: SocketAddr) {
        // Ignore errors, because a peer that gets no answer retries.
        let _ = self.socket.send_to(bytes, to);
    }

    /// Returns the descriptor, which is readable when a datagram waits.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Lets an [`AuxiliarySocket`](AuxiliarySocket::bind) of the same user bind the address of `socket`
/// while `socket` is still open. `socket` only reserves the address. If `socket` had to be closed
/// first, a peer could find no listener before the new socket is bound. No socket of another user
/// can bind the address.
///
/// # Errors
/// Returns the error of the system call.
pub fn give_way(socket: &UdpSocket) -> io::Result<()> {
    socket::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

/// UDP port of datagrams to groups. The ports of the slots of queue pairs follow it.
pub const GROUP_PORT: u16 = 0xefff;

/// Size of the largest datagram, in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Maximum number of errors skipped per call.
const ERRORS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_at_an_auxiliary_socket_is_answered_from_its_address() {
        let mut auxiliary = AuxiliarySocket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert!(auxiliary.receive().is_none());
        let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        asks.connect(auxiliary.local()).unwrap();
        asks.send(b"question").unwrap();
        let (bytes, from) = auxiliary.receive().expect("loopback is quick");
        assert_eq!((&*bytes, from), (&b"question"[..], asks.local_addr().unwrap()));
        auxiliary.answer(b"answer", from);
        let mut answer = [0; 16];
        assert_eq!(asks.recv(&mut answer).unwrap(), 6);
        let again = AuxiliarySocket::bind(auxiliary.local());
        assert!(matches!(again, Err(UdpError::AddressInUse { .. })), "{again:?}");
        // The address has no listener any more, which the socket reports as an error.
        drop(asks);
        auxiliary.answer(b"late", from);
        assert!(auxiliary.receive().is_none());
    }

    #[test]
    fn an_auxiliary_socket_shares_an_address_only_with_a_socket_that_permits_it() {
        let keeps = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, keeps.local_addr().unwrap().port()));
        assert!(AuxiliarySocket::bind(at).is_err());
        give_way(&keeps).unwrap();
        let auxiliary = AuxiliarySocket::bind(at).expect("there is room");
        drop(keeps);
        assert!(AuxiliarySocket::bind(at).is_err());
        assert!(UdpSocket::bind(at).is_err());
        drop(auxiliary);
        UdpSocket::bind(at).expect("it is free");
    }

    //= protocol.md: datagram.8
    #[test]
    fn all_sockets_of_a_multicast_group_get_its_datagrams() {
        // Use groups that no other test uses.
        let group = IpAddr::from([239, 83, 1, 7]);
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut sockets = [0, 1].map(|_| AuxiliarySocket::join(group, local).unwrap());
        let mut stranger = AuxiliarySocket::join([239, 83, 1, 8].into(), local).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.send_to(b"all", (group, GROUP_PORT)).unwrap();
        for auxiliary in &mut sockets {
            let (bytes, from) = auxiliary.receive().expect("loopback is quick");
            assert_eq!((&*bytes, from), (&b"all"[..], sender.local_addr().unwrap()));
        }
        assert!(stranger.receive().is_none());
        assert!(AuxiliarySocket::join(local, local).is_err());
    }
}
