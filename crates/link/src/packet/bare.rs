//! A packet socket and its rings without a link, to measure the cost of the socket alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ring::ReceiveRing;
use super::{PacketConfig, PacketError, Port, SET_UP, claim, socket, usable};
use crate::ethernet::{Framing, PortClaim};

/// A packet socket for measurements by [`crate::yardstick::packet`], and for discovery.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) framing: Framing,
    way: Way,
    _claim: PortClaim,
}

/// The way in which the socket receives frames.
#[derive(Debug)]
enum Way {
    Ring(Box<Port>),
    Calls(OwnedFd),
}

impl Bare {
    /// Opens a socket that receives through a ring, or by system calls.
    pub(crate) fn open(config: &PacketConfig, has_ring: bool) -> Result<Self, PacketError> {
        let (interface, station) = usable(config)?;
        let claim = claim(config, &interface)?;
        let (ethertype, vlan) = (config.ethertype, config.vlan);
        let framing = Framing { station, ethertype, vlan, port: claim.port() };
        let way = if has_ring {
            Port::open(config, &framing, &interface).map(|port| Way::Ring(Box::new(port)))
        } else {
            socket::prepare(&framing, config.send_buffer_bytes, config.qdisc_bypass).and_then(
                |fd| {
                    socket::bind(fd.as_fd(), interface.index, &framing)?;
                    Ok(Way::Calls(fd))
                },
            )
        };
        let way = way.map_err(|source| PacketError::new(&config.interface, SET_UP, source))?;
        Ok(Self { framing, way, _claim: claim })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Ring(port) => port.socket.as_fd(),
            Way::Calls(socket) => socket.as_fd(),
        }
    }

    pub(crate) const fn ring_mut(&mut self) -> Option<&mut ReceiveRing> {
        match &mut self.way {
            Way::Ring(port) => Some(&mut port.ring),
            Way::Calls(_) => None,
        }
    }

    /// Returns the port of a socket with a ring.
    pub(super) const fn port_mut(&mut self) -> Option<&mut Port> {
        match &mut self.way {
            Way::Ring(port) => Some(port),
            Way::Calls(_) => None,
        }
    }
}
