//! The attached links of the endpoint, their capabilities, and which drivers have room for frames.

use delivery::{LINKS_MAX, LinkCaps, LinkId};
use thiserror::Error;
use wire_edge::PeerAddr;

/// The links that are attached to the endpoint, and the drivers that refused frames in this turn.
///
/// An attached link that is up carries frames of at least [`FRAME_BYTES_MIN`] bytes.
#[derive(Debug)]
pub(crate) struct Links {
    attached: [Option<Attached>; LINKS_MAX],
    /// Links (by bit) whose driver refused frames in this turn.
    full: u16,
    /// Links and peers for which a driver refused frames in this turn. The driver may still have
    /// room for frames to other peers.
    full_for: Vec<(LinkId, PeerAddr)>,
}

#[derive(Clone, Copy, Debug)]
struct Attached {
    caps: LinkCaps,
    is_up: bool,
}

/// Why a link could not be attached.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum EngineLinkError {
    /// The link identifier is above 15.
    #[error("link identifier {0} is not below {LINKS_MAX}; remove a link first")]
    Identifier(u8),
    /// The link does not carry frames of 256 bytes, which the protocol needs.
    #[error(
        "link {link} carries frames of {frame_bytes} bytes; the edge protocol needs 256 (raise the interface's MTU)"
    )]
    FrameTooSmall {
        /// The link.
        link: u8,
        /// The largest frame that the link carries, in bytes.
        frame_bytes: u16,
    },
}

impl Links {
    /// Creates the state without links. Allocates room to list `peers` peers for which a driver is
    /// full.
    pub(crate) fn new(peers: usize) -> Self {
        Self { attached: [None; LINKS_MAX], full: 0, full_for: Vec::with_capacity(peers) }
    }

    /// Adds a link that is up. If the link is attached already, replaces its capabilities.
    pub(crate) fn attach(&mut self, link: LinkId, caps: LinkCaps) -> Result<(), EngineLinkError> {
        if caps.frame_bytes_max < FRAME_BYTES_MIN {
            let frame_bytes = caps.frame_bytes_max;
            return Err(EngineLinkError::FrameTooSmall { link: link.0, frame_bytes });
        }
        let slot = self.attached.get_mut(usize::from(link.0));
        *slot.ok_or(EngineLinkError::Identifier(link.0))? = Some(Attached { caps, is_up: true });
        Ok(())
    }

    /// Removes a link.
    pub(crate) fn detach(&mut self, link: LinkId) {
        if let Some(slot) = self.attached.get_mut(usize::from(link.0)) {
            *slot = None;
        }
    }

    /// Handles new capabilities of a link. If the largest frame is now too small, the link counts
    /// as down. Returns whether the link is up.
    pub(crate) fn on_changed(&mut self, link: LinkId, caps: LinkCaps) -> bool {
        let is_up = caps.frame_bytes_max >= FRAME_BYTES_MIN;
        if let Some(Some(known)) = self.attached.get_mut(usize::from(link.0)) {
            known.caps = if is_up { caps } else { known.caps };
            known.is_up = is_up;
        }
        is_up
    }

    /// Handles the loss of a link's carrier.
    pub(crate) fn on_down(&mut self, link: LinkId) {
        if let Some(Some(known)) = self.attached.get_mut(usize::from(link.0)) {
            known.is_up = false;
        }
    }

    /// Returns the capabilities of a link, if it is attached.
    pub(crate) fn caps(&self, link: LinkId) -> Option<&LinkCaps> {
        self.known(link).map(|known| &known.caps)
    }

    /// Returns whether a link is attached.
    pub(crate) fn is_attached(&self, link: LinkId) -> bool {
        self.known(link).is_some()
    }

    /// Returns whether a link is attached and has a carrier.
    #[inline]
    pub(crate) fn is_usable(&self, link: LinkId) -> bool {
        self.known(link).is_some_and(|known| known.is_up)
    }

    #[inline]
    fn known(&self, link: LinkId) -> Option<&Attached> {
        self.attached.get(usize::from(link.0))?.as_ref()
    }

    /// Returns the attached links with their capabilities.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &LinkCaps)> {
        let links = self.attached.iter().enumerate();
        links.filter_map(|(index, slot)| Some((LinkId(index as u8), &slot.as_ref()?.caps)))
    }

    /// Returns the attached links (by bit).
    pub(crate) fn attached(&self) -> u16 {
        self.iter().fold(0, |all, (link, _)| all | 1 << link.0)
    }

    /// Returns the attached links that have a carrier (by bit).
    pub(crate) fn usable(&self) -> u16 {
        let usable = self.iter().filter(|&(link, _)| self.is_usable(link));
        usable.fold(0, |all, (link, _)| all | 1 << link.0)
    }

    /// Begins a turn. Drivers that refused frames in the last turn may have room again.
    pub(crate) fn begin_turn(&mut self) {
        self.full = 0;
        self.full_for.clear();
    }

    /// Records that the driver of a link refused frames for a peer.
    pub(crate) fn on_refused(&mut self, link: LinkId, to: PeerAddr) {
        if is_full_alone(to) {
            self.full_for.push((link, to));
        } else if usize::from(link.0) < LINKS_MAX {
            self.full |= 1 << link.0;
        }
    }

    /// Returns whether any driver has refused frames in this turn.
    pub(crate) const fn has_refused(&self) -> bool {
        self.full != 0 || !self.full_for.is_empty()
    }

    /// Returns whether the driver of a link accepts no frame for a peer now.
    #[inline]
    pub(crate) fn is_blocked(&self, link: LinkId, to: PeerAddr) -> bool {
        !self.is_usable(link) || self.has_no_room(link, to)
    }

    /// Returns whether a link is full. The driver of a full link will have room soon, but gives no
    /// signal when it has room. Returns false for a link that is down, because a driver reports
    /// when its link is up again.
    #[inline]
    pub(crate) fn is_full(&self, link: LinkId, to: PeerAddr) -> bool {
        self.is_usable(link) && self.has_no_room(link, to)
    }

    /// Returns whether a driver has refused frames for a peer in this turn.
    #[inline]
    fn has_no_room(&self, link: LinkId, to: PeerAddr) -> bool {
        self.full >> link.0 & 1 != 0 || self.full_for.contains(&(link, to))
    }
}

/// Returns whether the driver has separate room for this peer. Over shared memory, each peer has
/// its own ring, so a peer that does not read fills only one ring. Other drivers have one queue for
/// all peers.
pub(crate) const fn is_full_alone(to: PeerAddr) -> bool {
    to.is_shared_memory()
}

/// The smallest frame size that a link must support, in bytes (protocol.md §2.2).
pub(crate) const FRAME_BYTES_MIN: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(frame_bytes: u16) -> LinkCaps {
        LinkCaps {
            frame_bytes_max: frame_bytes,
            frame_bytes_safe: frame_bytes,
            segments: 1,
            offloads: false,
            receive_buffer_bytes: 1 << 20,
            rate: None,
            local: PeerAddr([0; 20]),
        }
    }

    fn with(links: &[u8]) -> Links {
        let mut all = Links::new(0);
        for &link in links {
            all.attach(LinkId(link), caps(1472)).unwrap();
        }
        all
    }

    #[test]
    fn a_link_whose_mtu_fits_no_frame_is_refused_or_down() {
        let mut links = with(&[3]);
        let narrow = caps(FRAME_BYTES_MIN - 1);
        let refused = EngineLinkError::FrameTooSmall { link: 4, frame_bytes: FRAME_BYTES_MIN - 1 };
        assert_eq!(links.attach(LinkId(4), narrow), Err(refused));
        assert_eq!(links.attach(LinkId(16), caps(1472)), Err(EngineLinkError::Identifier(16)));
        assert!(!links.on_changed(LinkId(3), narrow));
        assert_eq!((links.attached(), links.usable()), (1 << 3, 0));
        assert!(links.on_changed(LinkId(3), caps(9000)));
        assert_eq!(links.usable(), 1 << 3);
        assert_eq!(links.caps(LinkId(3)).map(|caps| caps.frame_bytes_max), Some(9000));
    }

    #[test]
    fn a_detached_link_does_not_come_back_by_itself() {
        let mut links = with(&[0, 15]);
        links.detach(LinkId(15));
        links.on_changed(LinkId(15), caps(1472));
        assert_eq!((links.attached(), links.usable()), (1, 1));
        links.on_down(LinkId(0));
        assert_eq!((links.attached(), links.usable()), (1, 0));
    }

    #[test]
    fn a_driver_without_room_is_full_for_the_rest_of_the_turn() {
        let mut links = with(&[0, 1]);
        let (here, there) = (PeerAddr([0; 20]), PeerAddr([3; 20]));
        links.on_refused(LinkId(0), here);
        assert!(links.has_refused());
        assert!(links.is_full(LinkId(0), there) && !links.is_full(LinkId(1), here));
        // A link that is down does not count as full, because its driver reports when the link is
        // up again.
        links.on_down(LinkId(0));
        assert!(links.is_blocked(LinkId(0), here) && !links.is_full(LinkId(0), here));
        links.begin_turn();
        assert!(!links.has_refused() && !links.is_blocked(LinkId(1), here));
    }

    #[test]
    fn a_full_shared_memory_ring_blocks_only_its_own_peer() {
        let mut links = with(&[0]);
        let memory = |last| {
            let mut bytes = [0; 20];
            (bytes[0], bytes[19]) = (2, last);
            PeerAddr(bytes)
        };
        links.on_refused(LinkId(0), memory(1));
        assert!(links.is_full(LinkId(0), memory(1)) && !links.is_full(LinkId(0), memory(2)));
        assert!(links.has_refused());
    }
}
