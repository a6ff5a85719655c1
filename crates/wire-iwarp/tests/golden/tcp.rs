//! Puts the byte streams of TCP connections together from captured frames.

use std::net::{Ipv4Addr, SocketAddrV4};

/// The bytes of one connection, in both directions.
pub(crate) struct Connection {
    /// The end that opened the connection, and its bytes.
    pub(crate) initiator: Direction,
    /// The other end, and its bytes.
    pub(crate) responder: Direction,
}

/// The bytes that one end sent.
pub(crate) struct Direction {
    address: SocketAddrV4,
    /// Sequence number of the first byte.
    first: u32,
    /// Payloads with their offsets in the stream, in the order of the capture.
    payloads: Vec<(u32, Vec<u8>)>,
    /// Whether the end sent an RST.
    pub(crate) is_reset: bool,
}

impl Direction {
    /// Returns the bytes up to the first that no frame has. A retransmission must repeat the bytes.
    pub(crate) fn stream(&self) -> Vec<u8> {
        let mut payloads: Vec<_> = self.payloads.iter().collect();
        payloads.sort_by_key(|(at, _)| *at);
        let mut stream: Vec<u8> = Vec::new();
        for (at, payload) in payloads {
            let at = *at as usize;
            if at > stream.len() {
                break;
            }
            let known = payload.len().min(stream.len() - at);
            assert_eq!(stream[at..at + known], payload[..known], "a retransmission differs");
            stream.extend(&payload[known..]);
        }
        stream
    }
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A TCP segment.
struct Segment<'a> {
    from: SocketAddrV4,
    to: SocketAddrV4,
    sequence: u32,
    flags: u8,
    payload: &'a [u8],
}

/// Returns the connections whose first segments are in the capture, in the order of these.
pub(crate) fn connections(frames: &[Vec<u8>]) -> Vec<Connection> {
    let mut connections: Vec<Connection> = Vec::new();
    for segment in frames.iter().filter_map(|frame| decode(frame)) {
        if segment.flags & (SYN | ACK) == SYN {
            let direction = |address, sequence: u32| Direction {
                address,
                first: sequence.wrapping_add(1),
                payloads: Vec::new(),
                is_reset: false,
            };
            connections.push(Connection {
                initiator: direction(segment.from, segment.sequence),
                responder: direction(segment.to, 0),
            });
            continue;
        }
        // Two connections of a capture never have the same two addresses.
        let found = connections.iter_mut().find_map(|Connection { initiator, responder }| {
            match (segment.from, segment.to) {
                ends if ends == (initiator.address, responder.address) => Some(initiator),
                ends if ends == (responder.address, initiator.address) => Some(responder),
                _ => None,
            }
        });
        let Some(direction) = found else { continue };
        if segment.flags & SYN != 0 {
            direction.first = segment.sequence.wrapping_add(1);
        }
        direction.is_reset |= segment.flags & RST != 0;
        if !segment.payload.is_empty() {
            let at = segment.sequence.wrapping_sub(direction.first);
            direction.payloads.push((at, segment.payload.to_vec()));
        }
    }
    connections
}

/// Decodes an Ethernet frame. Returns `None` if it has no TCP segment over IPv4.
fn decode(frame: &[u8]) -> Option<Segment<'_>> {
    let (ethernet, packet) = frame.split_at_checked(14)?;
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let is_tcp = ethernet[12..] == [0x08, 0x00] && *packet.get(9)? == 6;
    if !is_tcp {
        return None;
    }
    // Short frames have pads behind the packet. A frame that was cut has fewer bytes.
    let packet_bytes = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let segment = packet.get(header_bytes..packet_bytes.min(packet.len()))?;
    let address = |ip: usize, port: usize| {
        let ip: [u8; 4] = packet[ip..ip + 4].try_into().expect("four bytes");
        SocketAddrV4::new(
            Ipv4Addr::from(ip),
            u16::from_be_bytes([segment[port], segment[port + 1]]),
        )
    };
    let sequence = u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?);
    let payload = segment.get(usize::from(segment.get(12)? >> 4) * 4..)?;
    let flags = segment[13];
    Some(Segment { from: address(12, 0), to: address(16, 2), sequence, flags, payload })
}
