//! Doors: sockets beside the links, at which few datagrams come and which are looked at now and then.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use delivery::{Instant, LinkId, RxFrame};
use engine::{DOOR_ANSWER_BYTES_MAX, DatagramError, Engine};
use link::{DoorSocket, GROUP_PORT, UdpError};
use mem::{MemoryAccess, Payload};
use thiserror::Error;
use wire_edge::{Moved, PeerAddr};

use crate::fork::Forked;

/// The doors of an endpoint, at most [`DOORS_MAX`].
///
/// A look at one costs a system call, so a thread that polls looks every [`LOOK_NS`] only. Who goes to sleep on
/// the links sleeps on the doors, too.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    open: Vec<Door>,
    looked_at: Instant,
}

#[derive(Debug)]
struct Door {
    socket: DoorSocket,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// What comes here was sent to this group, and passed the interface of this link.
    Group(LinkId, PeerAddr),
    /// Services are asked for at this address that are elsewhere.
    Moved(SocketAddr, engine::Door),
}

/// Why a door could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoorError {
    /// The endpoint has as many as it may.
    #[error("the endpoint has {DOORS_MAX} doors already, the most there can be; close some")]
    NoneLeft,
    /// The link is not there, or has no IP address.
    #[error("link {0} is none of this endpoint, or carries no UDP")]
    NotUdp(u8),
    /// The system refused it.
    #[error(transparent)]
    Socket(#[from] UdpError),
    /// The engine refused it.
    #[error(transparent)]
    Port(#[from] DatagramError),
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl Doors {
    /// Opens a door for a group, unless there is one.
    pub(crate) fn join(
        &mut self,
        link: LinkId,
        local: IpAddr,
        group: IpAddr,
    ) -> Result<(), DoorError> {
        let address = group_address(group);
        let is_same = |door: &Door| matches!(door.purpose, Purpose::Group(by, to) if (by, to) == (link, address));
        if self.open.iter().any(is_same) {
            return Ok(());
        }
        self.check_room()?;
        let (socket, purpose) = (DoorSocket::join(group, local)?, Purpose::Group(link, address));
        self.open.push(Door { socket, purpose });
        Ok(())
    }

    /// Opens a door where services are asked for, and says at which address: a port 0 takes a free one.
    pub(crate) fn open(
        &mut self,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, DoorError> {
        self.check_room()?;
        let socket = DoorSocket::bind(address)?;
        let local = socket.local();
        self.open.push(Door { socket, purpose: Purpose::Moved(local, engine::Door::new(moved)) });
        Ok(local)
    }

    /// Closes the door at an address; false if there is none.
    pub(crate) fn close(&mut self, address: SocketAddr) -> bool {
        let before = self.open.len();
        self.open.retain(|door| !matches!(door.purpose, Purpose::Moved(at, _) if at == address));
        self.open.len() < before
    }

    fn check_room(&self) -> Result<(), DoorError> {
        if self.open.len() < DOORS_MAX { Ok(()) } else { Err(DoorError::NoneLeft) }
    }

    /// Closes the doors of groups that nobody is in.
    pub(crate) fn trim(&mut self, engine: &mut Engine) {
        self.open.retain(|door| match door.purpose {
            Purpose::Group(_, group) => engine.has_datagram_group(group),
            Purpose::Moved(..) => true,
        });
    }

    /// Closes the doors that depend on a link.
    pub(crate) fn on_detached(&mut self, link: LinkId) {
        self.open.retain(|door| !matches!(door.purpose, Purpose::Group(by, _) if by == link));
    }

    /// What to watch.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.open.iter().map(|door| door.socket.as_fd().as_raw_fd())
    }

    /// Whether it is time for a look.
    #[inline]
    pub(crate) fn are_due(&self, now: Instant, is_watch: bool) -> bool {
        !self.open.is_empty() && (is_watch || now.since_ns(self.looked_at) >= LOOK_NS)
    }

    /// Hands what waits to the engine. Whether anything came, and whether more waits.
    #[cold]
    pub(crate) fn receive(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        memory: &MemoryAccess<'_>,
    ) -> (bool, bool) {
        self.looked_at = now;
        let (mut came, mut more) = (false, false);
        for Door { socket, purpose } in &mut self.open {
            let mut left = BURST;
            while left > 0
                && let Some((bytes, from)) = socket.receive()
            {
                left -= 1;
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
            came |= left < BURST;
            more |= left == 0;
        }
        (came, more)
    }
}

/// Where datagrams for a group are sent.
pub(crate) fn group_address(group: IpAddr) -> PeerAddr {
    PeerAddr::from(SocketAddr::new(group, GROUP_PORT))
}

/// Doors of an endpoint: each is one more descriptor to sleep on.
pub(crate) const DOORS_MAX: usize = 64;

/// How often a thread that polls looks at the doors: 64 looks of 0.4 µs are a quarter of the time then, those of one
/// door less than a hundredth.
const LOOK_NS: u64 = 100_000;

/// Datagrams taken from a door before links have their turn.
const BURST: usize = 64;
