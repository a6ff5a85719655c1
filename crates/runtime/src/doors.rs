//! Doors: sockets besides the links, on which few datagrams arrive and which are polled at
//! intervals. A door is either the multicast socket of a group or a redirect port.

use std::io;
use std::net::{IpAddr, SocketAddr};

use delivery::{Instant, LinkId, RxFrame};
use engine::{DOOR_ANSWER_BYTES_MAX, DatagramError, Engine};
use link::{DoorSocket, GROUP_PORT, UdpError};
use mem::{MemoryAccess, Payload};
use thiserror::Error;
use wire_edge::{Moved, PeerAddr};

use crate::auxiliary::{Auxiliary, Readiness};
use crate::fork::Forked;

/// The doors of an endpoint, at most [`DOORS_MAX`]. Each is watched under a key of its own.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    open: Vec<Door>,
    /// Doors opened so far.
    opened: u64,
}

#[derive(Debug)]
struct Door {
    key: u64,
    socket: DoorSocket,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// A multicast socket: its datagrams were sent to this group and arrived at the interface of
    /// this link.
    Group(LinkId, PeerAddr),
    /// A redirect port: peers ask at this address for services that have moved elsewhere.
    Moved(SocketAddr, engine::Door),
}

/// Why a door could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoorError {
    /// The endpoint has the most doors it may have.
    #[error("the endpoint has {DOORS_MAX} doors already, the most there can be; close some")]
    NoneLeft,
    /// The link does not exist or has no IP address.
    #[error("link {0} is none of this endpoint, or carries no UDP")]
    NotUdp(u8),
    /// The system refused the socket.
    #[error(transparent)]
    Socket(#[from] UdpError),
    /// The socket cannot be watched.
    #[error("cannot watch the socket of a door")]
    Watch(#[source] io::Error),
    /// The engine refused the port.
    #[error(transparent)]
    Port(#[from] DatagramError),
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl Doors {
    /// Opens the multicast socket of a group on a link, unless it is open.
    pub(crate) fn join(
        &mut self,
        watched: &Auxiliary,
        link: LinkId,
        local: IpAddr,
        group: IpAddr,
    ) -> Result<(), DoorError> {
        let address = group_address(group);
        let is_same = |door: &Door| matches!(door.purpose, Purpose::Group(by, to) if (by, to) == (link, address));
        if self.open.iter().any(is_same) {
            return Ok(());
        }
        let open = || DoorSocket::join(group, local);
        self.add(watched, open, |_| Purpose::Group(link, address)).map(|_| ())
    }

    /// Opens a redirect port; port 0 picks a free port. Returns its address.
    pub(crate) fn open(
        &mut self,
        watched: &Auxiliary,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, DoorError> {
        let open = || DoorSocket::bind(address);
        self.add(watched, open, |local| Purpose::Moved(local, engine::Door::new(moved)))
    }

    fn add(
        &mut self,
        watched: &Auxiliary,
        open: impl FnOnce() -> Result<DoorSocket, UdpError>,
        purpose: impl FnOnce(SocketAddr) -> Purpose,
    ) -> Result<SocketAddr, DoorError> {
        if self.open.len() >= DOORS_MAX {
            return Err(DoorError::NoneLeft);
        }
        let socket = open()?;
        let (key, local) = (DOOR_KEYS + self.opened, socket.local());
        let ready = Readiness::READABLE;
        watched.watch(socket.as_fd(), key, ready).map_err(DoorError::Watch)?;
        self.opened += 1;
        self.open.push(Door { key, socket, purpose: purpose(local) });
        Ok(local)
    }

    /// Closes the redirect port at an address. Returns false if there is none.
    pub(crate) fn close(&mut self, watched: &Auxiliary, address: SocketAddr) -> bool {
        let before = self.open.len();
        self.retain(watched, |purpose| !matches!(purpose, Purpose::Moved(at, _) if *at == address));
        self.open.len() < before
    }

    /// Closes the multicast sockets of groups without members.
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
        self.open.retain(|door| {
            let stays = stays(&door.purpose);
            if !stays {
                watched.unwatch(door.socket.as_fd());
            }
            stays
        });
    }

    /// Receives datagrams at the door with this key.
    pub(crate) fn receive(
        &mut self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        key: u64,
    ) {
        let Some(door) = self.open.iter_mut().find(|door| door.key == key) else { return };
        let Door { socket, purpose, .. } = door;
        // Datagrams that are left are reported in the next turn.
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
                Purpose::Moved(_, door) => {
                    let mut out = [0; DOOR_ANSWER_BYTES_MAX];
                    let len = door.answer(now, PeerAddr::from(from), bytes, &mut out);
                    if let Some(answer) = len.and_then(|len| out.get(..len)) {
                        socket.answer(answer, from);
                    }
                }
            }
        }
    }
}

/// Returns the address to which datagrams for a group are sent.
pub(crate) fn group_address(group: IpAddr) -> PeerAddr {
    PeerAddr::from(SocketAddr::new(group, GROUP_PORT))
}

/// Most doors of an endpoint; each has a buffer of 64 KiB, 4 MiB in all.
const DOORS_MAX: usize = 64;

/// First key of doors.
pub(crate) const DOOR_KEYS: u64 = 1 << 63;

/// Most datagrams received at a door before the links have their turn.
const BURST: usize = 64;
