//! Doors: sockets beside the links, at which few datagrams come and which are looked at now and then.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use delivery::{Instant, LinkId, RxFrame};
use engine::{DatagramError, Engine};
use link::{DoorSocket, GROUP_PORT, UdpError};
use mem::{MemoryAccess, Payload};
use thiserror::Error;
use wire_edge::PeerAddr;

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
    /// What comes here was sent to this group, and passed the interface of this link.
    group: (LinkId, PeerAddr),
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
        let group_of_link = (link, group_address(group));
        if self.open.iter().any(|door| door.group == group_of_link) {
            return Ok(());
        }
        if self.open.len() >= DOORS_MAX {
            return Err(DoorError::NoneLeft);
        }
        let socket = DoorSocket::join(group, local)?;
        self.open.push(Door { socket, group: group_of_link });
        Ok(())
    }

    /// Closes the doors of groups that nobody is in.
    pub(crate) fn trim(&mut self, engine: &mut Engine) {
        self.open.retain(|door| engine.has_datagram_group(door.group.1));
    }

    /// Closes the doors that depend on a link.
    pub(crate) fn on_detached(&mut self, link: LinkId) {
        self.open.retain(|door| door.group.0 != link);
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
        for door in &mut self.open {
            let mut left = BURST;
            while left > 0
                && let Some((bytes, from)) = door.socket.receive()
            {
                left -= 1;
                let frame = RxFrame {
                    bytes,
                    outside: Payload::EMPTY,
                    received_at: now,
                    congestion_experienced: false,
                    from: PeerAddr::from(from),
                };
                engine.handle_group_frame(memory, door.group.1, frame);
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
