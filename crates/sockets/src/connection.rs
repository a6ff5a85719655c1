//! What the calls of a program on one descriptor do.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;

use crate::flags::{ReceiveFlags, SendFlags};
use crate::place::Place;
use crate::readiness::Readiness;
use crate::reasons::Reason;
use crate::settings::Role;
use crate::stream::{Stream, StreamParts};
use crate::wire::Seal;

/// Which way the bytes of a connection take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// TCP, and perhaps the edge later. Calls are made by this crate, since a seal may be among the bytes.
    Undecided,
    /// The edge.
    Moved,
    /// TCP for good: calls go to the kernel.
    Left(Reason),
}

/// Bytes of a stream that wait.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Queued {
    /// Received and not yet read: `SIOCINQ`.
    pub received: u64,
    /// Written and not yet known to be at the peer: `SIOCOUTQ`.
    pub unsent: u64,
}

/// What came of writing a seal into the TCP connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sealing {
    /// It is written: what the program writes from now on goes by the ring.
    Done,
    /// A thread of the program is inside a TCP write. It rings the bell when it comes out; then this is to be tried
    /// again.
    Busy,
    /// It cannot be written.
    Refused(Reason),
}

/// A TCP connection of the program that may move, or has.
pub struct Connection {
    token: u64,
    role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    place: Arc<dyn Place>,
    route: Mutex<Route>,
}

impl Connection {
    pub(crate) fn new(
        token: u64,
        role: Role,
        local: SocketAddr,
        peer: SocketAddr,
        place: Arc<dyn Place>,
    ) -> Arc<Self> {
        Arc::new(Self { token, role, local, peer, place, route: Mutex::new(Route::Undecided) })
    }

    /// What [`Place`] knows it by.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Which end it is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// This side's address, as TCP has it.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address, as TCP has it.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// It is left to TCP. Without effect when it has moved.
    pub(crate) fn leave(&self, reason: Reason) {
        *self.route.lock().expect("no thread panics under it") = Route::Left(reason);
        self.place.decided(self.token);
    }

    /// Makes its stream. From now on TCP is read by this crate only, which looks for the seal.
    pub(crate) fn begin(&self, parts: StreamParts) -> Result<Arc<Stream>, Reason> {
        let tcp = self.place.duplicate(self.token).ok_or(Reason::Closed)?;
        Ok(Arc::new(Stream::new(parts, tcp)))
    }

    /// Writes the peer's seal into the TCP connection, and [opens](Stream::open) the stream.
    pub(crate) fn seal(&self, seal: Seal, peer_ring: u32) -> Sealing {
        let _ = (seal, peer_ring);
        Sealing::Refused(Reason::OnlyTcp)
    }

    /// Receives bytes, as `recvmsg` would of `fd`, the program's descriptor.
    pub fn receive(
        &self,
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        let _ = (fd, into, flags);
        Err(Errno::ENOTCONN)
    }

    /// Sends bytes, as `sendmsg` would.
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        from: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let _ = (fd, from, flags);
        Err(Errno::ENOTCONN)
    }

    /// Sends bytes of a file, as `sendfile` would.
    pub fn send_file(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize, Errno> {
        let _ = (fd, file, offset, count);
        Err(Errno::ENOTCONN)
    }

    /// As `shutdown`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        let _ = (fd, how);
        Err(Errno::ENOTCONN)
    }

    /// Which way its bytes take.
    pub fn route(&self) -> Route {
        *self.route.lock().expect("no thread panics under it")
    }

    /// Whether the calls of the program go to the kernel, and bytes are carried behind.
    pub fn is_relayed(&self) -> bool {
        false
    }

    /// Has bytes carried between the program's descriptor and the stream, so that the program's calls may go to the
    /// kernel: another process is to use the descriptor, or something that this crate does not stand before.
    pub fn relay(&self) {}

    /// What it is ready for.
    pub fn readiness(&self) -> Readiness {
        Readiness::default()
    }

    /// The program is about to have the kernel tell it when the descriptor is ready: from now on the kernel knows.
    pub fn watch(&self) {}

    /// Bytes that wait.
    pub fn queued(&self) -> Queued {
        Queued::default()
    }

    /// `TCP_NODELAY`.
    pub fn set_no_delay(&self, on: bool) {
        let _ = on;
    }

    /// `TCP_CORK`.
    pub fn set_cork(&self, on: bool) {
        let _ = on;
    }

    /// The TCP socket, once the connection has moved: it answers what the program asks of addresses and options.
    pub fn tcp(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The program has closed the last of its descriptors.
    pub fn released(&self) {}
}
