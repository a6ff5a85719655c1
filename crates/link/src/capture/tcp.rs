//! Captures the bytes of TCP connections, as segments with made-up headers.
//!
//! The segments are those of the calls that read and wrote the bytes, and not those on the wire.
//! Sequence numbers, acknowledgements, lengths and checksums are right, so that Wireshark
//! reassembles the streams. A connection begins with a made-up handshake.

use std::net::{IpAddr, SocketAddr};

use super::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, HOP_LIMIT, fold, ipv4_header, put_ethernet, sum};
use super::recorder::{Recorder, wall_ns};
use crate::pcapng::Direction;

/// Captures TCP connections to a file. In the file, all connections together are an interface.
#[derive(Debug)]
pub struct TcpCapture {
    recorder: Recorder,
    packet: Vec<u8>,
}

/// A captured TCP connection: its ends, and the sequence numbers of its next bytes.
#[derive(Clone, Copy, Debug)]
pub struct CapturedConnection {
    /// This end, then the peer.
    ends: [SocketAddr; 2],
    /// The sequence number of the next byte of this end, and of the peer.
    next: [u32; 2],
}

impl TcpCapture {
    pub(super) const fn of(recorder: Recorder) -> Self {
        Self { recorder, packet: Vec::new() }
    }

    /// Writes a handshake, and returns the connection. `is_initiator` says whether this end has
    /// connected.
    pub fn begin(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        is_initiator: bool,
    ) -> CapturedConnection {
        let mut connection = CapturedConnection { ends: [local, peer], next: [0, 0] };
        let (first, second) = if is_initiator {
            (Direction::Outbound, Direction::Inbound)
        } else {
            (Direction::Inbound, Direction::Outbound)
        };
        self.write(&connection, first, SYN, &[]);
        connection.advance(first, 1);
        self.write(&connection, second, SYN | ACK, &[]);
        connection.advance(second, 1);
        self.write(&connection, first, ACK, &[]);
        connection
    }

    /// Writes the bytes that one end has sent, in segments of at most 60 000 bytes.
    /// Costs two copies of the bytes.
    pub fn add(&mut self, connection: &mut CapturedConnection, direction: Direction, bytes: &[u8]) {
        for part in bytes.chunks(SEGMENT_BYTES_MAX) {
            self.write(connection, direction, PUSH | ACK, part);
            connection.advance(direction, part.len() as u32);
        }
    }

    /// Counts bytes that cannot be read any more. In the file, they are missing from the stream.
    pub fn skip(&mut self, connection: &mut CapturedConnection, direction: Direction, bytes: u32) {
        self.recorder.record_missing();
        connection.advance(direction, bytes);
    }

    /// Writes that one end sends no more bytes.
    pub fn end(&mut self, connection: &mut CapturedConnection, direction: Direction) {
        self.write(connection, direction, FIN | ACK, &[]);
        connection.advance(direction, 1);
    }

    /// Writes that the connection was reset by one end.
    pub fn reset(&mut self, connection: &CapturedConnection, direction: Direction) {
        self.write(connection, direction, RESET | ACK, &[]);
    }

    fn write(
        &mut self,
        connection: &CapturedConnection,
        direction: Direction,
        flags: u8,
        bytes: &[u8],
    ) {
        self.packet.clear();
        if connection.put(&mut self.packet, direction, flags, bytes) {
            self.recorder.record_packet(wall_ns(), direction, &self.packet);
        } else {
            self.recorder.record_missing();
        }
    }
}

impl CapturedConnection {
    fn advance(&mut self, direction: Direction, bytes: u32) {
        let [own, peer] = &mut self.next;
        let next = if direction == Direction::Outbound { own } else { peer };
        *next = next.wrapping_add(bytes);
    }

    /// Appends the headers of a segment and its bytes, at most [`SEGMENT_BYTES_MAX`]. Returns false
    /// and appends nothing if the ends have different address families.
    fn put(&self, out: &mut Vec<u8>, direction: Direction, flags: u8, bytes: &[u8]) -> bool {
        let ([mut from, mut to], [mut sequence, mut acknowledged]) = (self.ends, self.next);
        if direction == Direction::Inbound {
            std::mem::swap(&mut from, &mut to);
            std::mem::swap(&mut sequence, &mut acknowledged);
        }
        // The first segment of a connection acknowledges nothing.
        if flags & ACK == 0 {
            acknowledged = 0;
        }
        let mut header = [0; TCP_HEADER_BYTES];
        header[..2].copy_from_slice(&from.port().to_be_bytes());
        header[2..4].copy_from_slice(&to.port().to_be_bytes());
        header[4..8].copy_from_slice(&sequence.to_be_bytes());
        header[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        header[12] = (TCP_HEADER_BYTES as u8 / 4) << 4;
        header[13] = flags;
        header[14..16].copy_from_slice(&WINDOW.to_be_bytes());
        let length = (TCP_HEADER_BYTES + bytes.len()) as u16;
        let start = u64::from(PROTOCOL_TCP) + u64::from(length) + sum(&header) + sum(bytes);
        let (source, destination) = (from.ip().to_canonical(), to.ip().to_canonical());
        match (source, destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let checksum = fold(start + sum(&from.octets()) + sum(&to.octets()));
                header[16..18].copy_from_slice(&checksum);
                put_ethernet(out, source, destination, ETHERTYPE_IPV4);
                out.extend_from_slice(&ipv4_header(from, to, PROTOCOL_TCP, length + 20, 0));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let checksum = fold(start + sum(&from.octets()) + sum(&to.octets()));
                header[16..18].copy_from_slice(&checksum);
                put_ethernet(out, source, destination, ETHERTYPE_IPV6);
                out.extend_from_slice(&[0x60, 0, 0, 0]);
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(&[PROTOCOL_TCP, HOP_LIMIT]);
                out.extend_from_slice(&from.octets());
                out.extend_from_slice(&to.octets());
            }
            _ => return false,
        }
        out.extend_from_slice(&header);
        out.extend_from_slice(bytes);
        true
    }
}

/// Maximum number of bytes in a made-up segment. With the headers, it fits into an IP datagram.
const SEGMENT_BYTES_MAX: usize = 60_000;

const TCP_HEADER_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const WINDOW: u16 = u16::MAX;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RESET: u8 = 0x04;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(local: &str, peer: &str) -> CapturedConnection {
        let ends = [local, peer].map(|end| end.parse().unwrap());
        CapturedConnection { ends, next: [5, 7] }
    }

    fn put(connection: &CapturedConnection, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(connection.put(&mut out, direction, PUSH | ACK, bytes));
        out
    }

    #[test]
    fn checksums_of_ipv4_and_tcp_hold() {
        let out = put(&connection("10.0.0.1:5", "10.0.0.2:6"), Direction::Outbound, b"bytes");
        assert_eq!(fold(sum(&out[14..34])), [0, 0]);
        let pseudo = sum(&out[26..34]) + 6 + 25;
        assert_eq!(fold(pseudo + sum(&out[34..])), [0, 0]);
        assert_eq!(out.len(), 14 + 20 + 20 + 5);
    }

    #[test]
    fn checksum_of_tcp_over_ipv6_holds() {
        let out = put(&connection("[fd00::1]:5", "[fd00::2]:6"), Direction::Inbound, b"bytes");
        let pseudo = sum(&out[22..54]) + 6 + 25;
        assert_eq!(fold(pseudo + sum(&out[54..])), [0, 0]);
    }

    #[test]
    fn each_end_counts_its_bytes_and_acknowledges_those_of_the_other() {
        let mut connection = connection("10.0.0.1:5", "10.0.0.2:6");
        connection.advance(Direction::Outbound, 10);
        connection.advance(Direction::Inbound, u32::MAX);
        let ours = put(&connection, Direction::Outbound, b"");
        assert_eq!(ours[34..46], [0, 5, 0, 6, 0, 0, 0, 15, 0, 0, 0, 6]);
        let theirs = put(&connection, Direction::Inbound, b"");
        assert_eq!(theirs[34..46], [0, 6, 0, 5, 0, 0, 0, 6, 0, 0, 0, 15]);
    }

    #[test]
    fn the_longest_segment_fits_into_a_datagram() {
        let bytes = vec![7; SEGMENT_BYTES_MAX];
        let out = put(&connection("10.0.0.1:5", "10.0.0.2:6"), Direction::Outbound, &bytes);
        let total = usize::from(u16::from_be_bytes([out[16], out[17]]));
        assert_eq!(total, out.len() - 14);
    }
}
