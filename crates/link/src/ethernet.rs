//! Edge frames in Ethernet frames: the envelope of docs/protocol.md, §1.1, encoded and checked.

mod answers;
mod checksum;
mod claim;

use wire_edge::{ENVELOPE_BYTES, Envelope, EnvelopeKind, PeerAddr};

use crate::LinkStatistics;

pub(crate) use self::answers::AnswerLimit;
use self::checksum::checksum;
pub(crate) use self::claim::PortClaim;

/// Bytes of an Ethernet header: two addresses and an `EtherType`.
pub(crate) const ETHERNET_BYTES: usize = 14;

/// Bytes of an IEEE 802.1Q tag.
pub(crate) const TAG_BYTES: usize = 4;

/// Maximum number of header bytes before an edge frame.
pub(crate) const HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + TAG_BYTES + ENVELOPE_BYTES;

/// The broadcast address.
pub(crate) const BROADCAST: Station = [0xff; 6];

/// Highest VLAN number. 4095 is reserved, and 0 means that the frame has no VLAN.
pub(crate) const VLAN_MAX: u16 = 4094;

/// Lowest value that is an `EtherType`. Lower values are lengths (IEEE 802.3, 3.2.6).
pub(crate) const ETHERTYPE_MIN: u16 = 0x0600;

/// Frame size in bytes that nearly every path carries (RFC 9000, section 14). A link starts with
/// this size, because the largest frame of this host's interface may be too large for the path:
/// tunnels, switches and the peer's interface have their own limits, and drop larger frames without
/// a report. If the path carries 1500 bytes, one path-MTU probe is enough to find this out.
pub(crate) const FRAME_BYTES_SAFE: u16 = 1200;

/// `EtherType` of an IEEE 802.1Q tag.
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;

/// The Ethernet (MAC) address of a network interface.
pub type Station = [u8; 6];

/// The bytes between the addresses of a raw Ethernet frame and its envelope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EthernetHeader {
    /// The `EtherType` that distinguishes edge frames from all other frames.
    pub ethertype: u16,
    /// The VLAN of the frame's tag, if the frame has a tag.
    pub vlan: Option<u16>,
}

/// Format of the frames of one endpoint on one interface: the header values to write and to check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Framing {
    /// Address of the interface.
    pub(crate) station: Station,
    /// The `EtherType` that distinguishes edge frames from all other frames.
    pub(crate) ethertype: u16,
    /// The VLAN, 1 to [`VLAN_MAX`]. Frames of another VLAN are dropped.
    pub(crate) vlan: Option<u16>,
    /// The port of the endpoint on this host.
    pub(crate) port: u16,
}

/// The content of a received Ethernet frame.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Arrival<'a> {
    /// An edge frame.
    Frame {
        /// The sender's address.
        from: PeerAddr,
        /// The edge frame, without padding.
        bytes: &'a mut [u8],
    },
    /// A request for the station that receives at our port. The answer is a frame of kind Here,
    /// which [`Framing::put`] writes.
    Discover {
        /// The address to which the answer goes.
        from: (Station, u16),
    },
    /// The answer to a request that this endpoint sent.
    Here {
        /// The sender of the answer.
        from: (Station, u16),
    },
}

/// The reason why the link drops a received Ethernet frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// The frame is valid, but for another receiver: it has another `EtherType`, destination
    /// station or port.
    NotOurs,
    /// The frame is shorter than its headers, or than the length in its envelope.
    Truncated,
    /// The frame has our `EtherType`, but no known envelope.
    Foreign,
    /// The frame has another VLAN, no VLAN, or a VLAN although this endpoint uses none.
    WrongVlan,
    /// The checksum is wrong.
    Checksum,
    /// The frame has our own source address, but we did not send it. Either another station uses
    /// the address, or the network has a loop.
    OwnStation,
}

impl Framing {
    /// Returns the header fields that all frames share.
    pub(crate) const fn ethernet_header(&self) -> EthernetHeader {
        EthernetHeader { ethertype: self.ethertype, vlan: self.vlan }
    }

    /// Returns the number of bytes before an edge frame.
    #[inline]
    pub(crate) const fn header_bytes(&self) -> usize {
        let tag = if self.vlan.is_some() { TAG_BYTES } else { 0 };
        ETHERNET_BYTES + tag + ENVELOPE_BYTES
    }

    /// Writes all headers before an edge frame.
    ///
    /// `slot` is the whole Ethernet frame. Before the call, its content must already be at offset
    /// [`Framing::header_bytes`], because the checksum covers the content. This method does not
    /// change the content. Returns false and writes nothing if the slot is too short for the
    /// headers, or the content is too long for the length field.
    #[inline]
    #[must_use]
    pub(crate) fn put(
        &self,
        kind: EnvelopeKind,
        (station, port): (Station, u16),
        slot: &mut [u8],
    ) -> bool {
        let Some((headers, content)) = slot.split_at_mut_checked(self.header_bytes()) else {
            return false;
        };
        let Ok(length) = u16::try_from(content.len()) else { return false };
        let envelope =
            Envelope { kind, length, destination_port: port, source_port: self.port, checksum: 0 };
        let checksum = checksum(&envelope.encode(), content);
        let envelope = Envelope { checksum, ..envelope }.encode();
        let Some((ethernet, room)) = headers.split_last_chunk_mut::<ENVELOPE_BYTES>() else {
            return false;
        };
        *room = envelope;
        let [t0, t1] = self.ethertype.to_be_bytes();
        let ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]) = (station, self.station);
        if let Some(vlan) = self.vlan {
            let ([p0, p1], [v0, v1]) = (ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes());
            ethernet.copy_from_slice(&[
                d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, p0, p1, v0, v1, t0, t1,
            ]);
        } else {
            ethernet.copy_from_slice(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]);
        }
        true
    }

    //= protocol.md: envelope.1, envelope.2, envelope.3, envelope.4
    /// Checks a received Ethernet frame. `bytes` must not contain the frame check sequence.
    ///
    /// `stripped` is the VLAN tag, if the kernel or the network card has already removed the tag
    /// from the frame. The value is the two bytes that follow the `EtherType` of an IEEE 802.1Q
    /// tag: priority and VLAN.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        bytes: &'a mut [u8],
        stripped: Option<u16>,
    ) -> Result<Arrival<'a>, Refused> {
        let Some((ethernet, mut rest)) = bytes.split_first_chunk_mut::<ETHERNET_BYTES>() else {
            return Err(Refused::Truncated);
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *ethernet;
        let to = [d0, d1, d2, d3, d4, d5];
        let from = [s0, s1, s2, s3, s4, s5];
        let mut ethertype = u16::from_be_bytes([t0, t1]);
        let mut tag = stripped;
        if ethertype == ETHERTYPE_VLAN && stripped.is_none() {
            let Some((inline, behind)) = rest.split_first_chunk_mut::<TAG_BYTES>() else {
                return Err(Refused::Truncated);
            };
            let [v0, v1, t0, t1] = *inline;
            tag = Some(u16::from_be_bytes([v0, v1]));
            ethertype = u16::from_be_bytes([t0, t1]);
            rest = behind;
        }
        if ethertype != self.ethertype || (to != self.station && to != BROADCAST) {
            return Err(Refused::NotOurs);
        }
        // A tag with VLAN 0 carries only a priority.
        if tag.map(|tag| tag & 0x0fff).filter(|&vlan| vlan != 0) != self.vlan {
            return Err(Refused::WrongVlan);
        }
        // On a loopback interface all stations have the address zero.
        if from == self.station && from != [0; 6] {
            return Err(Refused::OwnStation);
        }
        self.check_envelope(from, to, rest)
    }

    //= protocol.md: envelope.1
    #[inline]
    fn check_envelope<'a>(
        &self,
        from: Station,
        to: Station,
        bytes: &'a mut [u8],
    ) -> Result<Arrival<'a>, Refused> {
        let envelope = match Envelope::decode(bytes) {
            Ok((envelope, _)) => envelope,
            Err(wire_edge::DecodeError::Truncated { .. }) => return Err(Refused::Truncated),
            Err(_) => return Err(Refused::Foreign),
        };
        if envelope.destination_port != self.port {
            return Err(Refused::NotOurs);
        }
        let Some((header, rest)) = bytes.split_first_chunk_mut::<ENVELOPE_BYTES>() else {
            return Err(Refused::Truncated);
        };
        let Some(content) = rest.get_mut(..usize::from(envelope.length)) else {
            return Err(Refused::Truncated);
        };
        if checksum(header, content) != envelope.checksum {
            return Err(Refused::Checksum);
        }
        match envelope.kind {
            EnvelopeKind::Frame if to == BROADCAST => Err(Refused::Foreign),
            EnvelopeKind::Frame => Ok(Arrival::Frame {
                from: PeerAddr::mac(from, envelope.source_port),
                bytes: content,
            }),
            EnvelopeKind::Discover => Ok(Arrival::Discover { from: (from, envelope.source_port) }),
            EnvelopeKind::Here => Ok(Arrival::Here { from: (from, envelope.source_port) }),
        }
    }
}

impl Refused {
    /// Increments the counter of this cause.
    #[cold]
    pub(crate) fn count(self, statistics: &mut LinkStatistics) {
        let counter = match self {
            Self::NotOurs => &mut statistics.receive_not_ours,
            Self::Truncated => &mut statistics.receive_truncated,
            Self::Foreign => &mut statistics.receive_foreign,
            Self::WrongVlan => &mut statistics.receive_wrong_vlan,
            Self::Checksum => &mut statistics.receive_checksum_errors,
            Self::OwnStation => &mut statistics.receive_own_station,
        };
        *counter += 1;
    }
}

/// Fuzzes the envelope in two ways. Checks arbitrary bytes as a received Ethernet frame for a fixed
/// endpoint. Also sends the bytes as the content of a frame, and receives that frame.
#[doc(hidden)]
pub fn fuzz_ethernet_frame(bytes: &mut [u8]) {
    let from = PeerAddr::mac([4; 6], 9);
    let mut whole = vec![0; HEADERS_BYTES_MAX];
    whole.extend_from_slice(bytes);
    for (vlan, stripped) in [(None, None), (Some(1), None), (Some(1), Some(1)), (None, Some(0))] {
        let framing = Framing { station: [2; 6], ethertype: 0x88b5, vlan, port: 1 };
        let len = bytes.len();
        if let Ok(Arrival::Frame { bytes, .. }) = framing.check(bytes, stripped) {
            assert!(bytes.len() + ETHERNET_BYTES + ENVELOPE_BYTES <= len);
        }
        let sender = Framing { station: [4; 6], port: 9, ..framing };
        let slot = whole.get_mut(HEADERS_BYTES_MAX - sender.header_bytes()..).unwrap_or_default();
        if sender.put(EnvelopeKind::Frame, ([2; 6], 1), slot) {
            assert_eq!(framing.check(slot, None), Ok(Arrival::Frame { from, bytes }));
        }
    }
}

#[cfg(test)]
mod tests;
