//! Blocks of the pcapng format (draft-ietf-opsawg-pcapng), little-endian.

/// The direction of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// The packet was received.
    Inbound,
    /// The packet was sent.
    Outbound,
}

/// Appends the section header, which begins a file.
pub(crate) fn put_section_header(out: &mut Vec<u8>) {
    put_block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1_u16.to_le_bytes());
        out.extend_from_slice(&0_u16.to_le_bytes());
        // Unknown section length.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        put_option(out, SHB_USER_APPLICATION, b"ethernot");
        put_option(out, OPTION_END, &[]);
    });
}

/// Appends the next interface, with its name and its description: Ethernet, timestamps in
/// nanoseconds. Interfaces are numbered from 0.
pub(crate) fn put_interface(out: &mut Vec<u8>, name: &str, description: &str) {
    put_block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&0_u32.to_le_bytes());
        let name = name.as_bytes();
        put_option(out, IF_NAME, name.get(..NAME_BYTES_MAX).unwrap_or(name));
        put_option(out, IF_DESCRIPTION, description.as_bytes());
        put_option(out, IF_TSRESOL, &[9]);
        put_option(out, OPTION_END, &[]);
    });
}

/// Appends one complete packet of an interface, captured at `at_ns` nanoseconds since 1970.
pub(crate) fn put_packet(
    out: &mut Vec<u8>,
    interface: u32,
    at_ns: u64,
    direction: Direction,
    packet: &[u8],
) {
    put_block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        put_time(out, at_ns);
        let len = packet.len() as u32;
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(packet);
        pad(out);
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        put_option(out, EPB_FLAGS, &flags.to_le_bytes());
        put_option(out, OPTION_END, &[]);
    });
}

/// Appends the counters of an interface: the number of packets seen, and the number of those that
/// are missing from the file.
pub(crate) fn put_statistics(
    out: &mut Vec<u8>,
    interface: u32,
    at_ns: u64,
    seen: u64,
    missing: u64,
) {
    put_block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        put_time(out, at_ns);
        put_option(out, ISB_IFRECV, &seen.to_le_bytes());
        put_option(out, ISB_IFDROP, &missing.to_le_bytes());
        put_option(out, OPTION_END, &[]);
    });
}

/// Appends a block: type, total length, the body that `put_body` appends, total length again.
fn put_block(out: &mut Vec<u8>, kind: u32, put_body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    put_body(out);
    let total = ((out.len() - start + 4) as u32).to_le_bytes();
    out.extend_from_slice(&total);
    out[start + 4..start + 8].copy_from_slice(&total);
}

fn put_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out);
}

/// Appends a timestamp, high half first.
fn put_time(out: &mut Vec<u8>, at_ns: u64) {
    out.extend_from_slice(&((at_ns >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(at_ns as u32).to_le_bytes());
}

/// Pads `out` to a multiple of four bytes, where the next block or option starts.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPTION_END: u16 = 0;
const SHB_USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
/// Description of an interface. The Wireshark dissector of this project recognises this text, and
/// treats all datagrams of the interface as edge frames. It then also recognises connections whose
/// handshake is not in the file.
pub(crate) const EDGE: &str = "Ethernot edge protocol";
/// Description of an interface for TCP connections, whose headers are made up.
pub(crate) const TCP: &str = "TCP connections with made-up headers";
/// Longest name of an interface in bytes; longer names are truncated. The kernel's names have at
/// most 15 bytes.
const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_multiples_of_four_bytes_and_repeat_their_length() {
        let mut out = Vec::new();
        put_section_header(&mut out);
        put_interface(&mut out, "udp 127.0.0.1:4791", EDGE);
        for len in 0..9 {
            put_packet(&mut out, 0, 1 << 40, Direction::Inbound, &[7; 9][..len]);
        }
        put_statistics(&mut out, 0, 5, 9, 0);
        let mut rest = out.as_slice();
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let total = word(4) as usize;
            assert_eq!(total % 4, 0);
            assert_eq!(word(total - 4) as usize, total);
            kinds.push(word(0));
            rest = &rest[total..];
        }
        assert_eq!(kinds[..2], [SECTION_HEADER, INTERFACE_DESCRIPTION]);
        assert_eq!(kinds[2..11], [ENHANCED_PACKET; 9]);
        assert_eq!(kinds[11..], [INTERFACE_STATISTICS]);
    }
}
