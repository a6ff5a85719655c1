//! Auxiliary sockets: UDP sockets that are not links. Each is either the multicast socket of a
//! group or a redirect port. Few datagrams arrive at these sockets, so the runtime polls them at
//! intervals.

use std::io;
use std::net::{IpAddr, SocketAddr};

use delivery::{Instant, LinkId, RxFrame};
use engine::{DatagramError, Engine, REDIRECT_ANSWER_BYTES_MAX};
use link::{AuxiliarySocket, GROUP_PORT, UdpError};
use mem::{MemoryAccess, Payload};
use thiserror::Error;
use wire_edge::{Moved, PeerAddr};

use crate::auxiliary::{Auxiliary, Readiness};
use crate::fork::Forked;

/// The auxiliary sockets of an endpoint, at most [`AUXILIARY_SOCKETS_MAX`]. Each is watched under a
/// key of its own.
#[derive(Debug, Default)]
pub(crate) struct AuxiliarySockets {
    open: Vec<OpenSocket>,
    /// Number of sockets opened so far.
    opened: u64,
}

#[derive(Debug)]
struct OpenSocket {
    key: u64,
    socket: AuxiliarySocket,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// A multicast socket. It receives datagrams to the group with this address, at the interface
    /// of this link.
    Group(LinkId, PeerAddr),
    /// A redirect port. At this address, it receives requests for services that now have another
    /// address, and answers with the address of the requested service.
    Moved(SocketAddr, engine::RedirectPort),
}

/// The reason why an auxiliary socket could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuxiliaryError {
    /// The endpoint already has the maximum number of auxiliary sockets.
    #[error(
        "the endpoint already has {AUXILIARY_SOCKETS_MAX} auxiliary sockets, the maximum; close some"
    )]
    NoneLeft,
    /// The link does not exist or has no IP address.
    #[error("link {0} does not belong to this endpoint, or does not carry UDP")]
    NotUdp(u8),
    /// The kernel refused the socket.
    #[error(transparent)]
    Socket(#[from] UdpError),
    /// The socket cannot be watched.
    #[error("cannot watch an auxiliary socket")]
    Watch(#[source] io::Error),
    /// The engine refused the port.
    #[error(transparent)]
    Port(#[from] DatagramError),
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl AuxiliarySockets {
    /// Opens the multicast socket of a group on a link, if it is not open yet.
    pub(crate) fn join(
        &mut self,
        watched: &Auxiliary,
        link: LinkId,
        local: IpAddr,
        group: IpAddr,
    ) -> Result<(), AuxiliaryError> {
        let address = group_address(group);
        let is_same = |one: &OpenSocket| matches!(one.purpose, Purpose::Group(by, to) if (by, to) == (link, address));
        if self.open.iter().any(is_same) {
            return Ok(());
        }
        let open = || AuxiliarySocket::join(group, local);
        self.add(watched, open, |_| Purpose::Group(link, address)).map(|_| ())
    }

    /// Opens a redirect port, and returns its address. Port 0 picks a free port.
    pub(crate) fn open(
        &mut self,
        watched: &Auxiliary,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, AuxiliaryError> {
        let open = || AuxiliarySocket::bind(address);
        self.add(watched, open, |local| Purpose::Moved(local, engine::RedirectPort::new(moved)))
    }

    fn add(
        &mut self,
        watched: &Auxiliary,
        open: impl FnOnce() -> Result<AuxiliarySocket, UdpError>,
        purpose: impl FnOnce(SocketAddr) -> Purpose,
    ) -> Result<SocketAddr, AuxiliaryError> {
        if self.open.len() >= AUXILIARY_SOCKETS_MAX {
            return Err(AuxiliaryError::NoneLeft);
        }
        let socket = open()?;
        let (key, local) = (AUXILIARY_KEYS + self.opened, socket.local());
        let ready = Readiness::READABLE;
        watched.watch(socket.as_fd(), key, ready).map_err(AuxiliaryError::Watch)?;
        self.opened += 1;
        self.open.push(OpenSocket { key, socket, purpose: purpose(local) });
        Ok(local)
    }

    /// Closes the redirect port at an address. Returns false if there is no such port.
    pub(crate) fn close(&mut self, watched: &Auxiliary, address: SocketAddr) -> bool {
        let before = self.open.len();
        self.retain(watched, |purpose| !matches!(purpose, Purpose::Moved(at, _) if *at == address));
        self.open.len() < before
    }

    /// Closes the multicast sockets of groups that no port is a member of.
    pub(crate) fn trim(&mut self, watched: &Auxiliary, engine: &mut Engine) {
        self.retain(watched, |purpose| match purpose {
            Purpose::Group(_, group) => engine.has_datagram_group(*group),
            Purpose::Moved(..) => true,
        });
    }

    /// Closes the multicast sockets of a link.
    pub(crate) fn on_detached(&mut self, watched: &Auxiliary, link: LinkId) {
        self.retain(watched, |purpose| !matches!(purpose, Purpose::Group(by, _) if *by == link));
    }

    fn retain(&mut self, watched: &Auxiliary, mut stays: impl FnMut(&Purpose) -> bool) {
        self.open.retain(|one| {
            let stays = stays(&one.purpose);
            if !stays {
                watched.unwatch(one.socket.as_fd());
            }
            stays
        });
    }

    /// Receives datagrams at the socket with this key.
    pub(crate) fn receive(
        &mut self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        key: u64,
    ) {
        let Some(one) = self.open.iter_mut().find(|one| one.key == key) else { return };
        let OpenSocket { socket, purpose, .. } = one;
        // If datagrams are left, the next turn receives them.
        for _ in 0..BURST {
            let Some((bytes, from)) = socket.receive() else { return };
            match purpose {
                Purpose::Group(_, group) => {
                    let frame = RxFrame {
                        bytes,
                        outside: Payload::EMPTY,
                        received_at: now,
                        congestion_experienced: false,
                        from: PeerAddr::from(from),
                    };
                    engine.handle_group_frame(memory, *group, frame);
                }
                Purpose::Moved(_, redirect_port) => {
                    let mut out = [0; REDIRECT_ANSWER_BYTES_MAX];
                    let len = redirect_port.answer(now, PeerAddr::from(from), bytes, &mut out);
                    if let Some(answer) = len.and_then(|len| out.get(..len)) {
                        socket.answer(answer, from);
                    }
                }
            }
        }
    }
}

/// Returns the address to which peers send datagrams for a group.
pub(crate) fn group_address(group: IpAddr) -> PeerAddr {
    PeerAddr::from(SocketAddr::new(group, GROUP_PORT))
}

/// Maximum number of auxiliary sockets of an endpoint. Each has a buffer of 64 KiB, so all take at
/// most 4 MiB.
const AUXILIARY_SOCKETS_MAX: usize = 64;

/// First key of auxiliary sockets.
pub(crate) const AUXILIARY_KEYS: u64 = 1 << 63;

/// Maximum number of datagrams that one turn receives at a socket. After that, the turn reads the
/// links again.
const BURST: usize = 64;
