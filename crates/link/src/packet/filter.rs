//! The kernel's packet filter. With it, a process wakes up only for frames of its own endpoint.

use libc::sock_filter;
use wire_edge::{ENVELOPE_BYTES, EnvelopeKind};

use crate::ethernet::{ETHERNET_BYTES, Framing};

/// Number of instructions of the program.
const LENGTH: usize = 22;

/// Returns a classic BPF program. The kernel removes a VLAN tag from each frame for the bound
/// socket, and then runs the program on the frame.
///
/// The program passes these frames:
///
/// * frames to our station and port;
/// * malformed frames to our station, so that the link counts them: frames that are too short, or
///   have another version of the envelope;
/// * broadcasts that are a Discover for our port.
pub(super) fn program(framing: &Framing) -> [sock_filter; LENGTH] {
    let [s0, s1, s2, s3, s4, s5] = framing.station;
    let start = u32::from_be_bytes([s0, s1, s2, s3]);
    let end = u32::from(u16::from_be_bytes([s4, s5]));
    let port = u32::from(framing.port);
    let discover = u32::from(u16::from_be_bytes([VERSION, EnvelopeKind::Discover as u8]));
    [
        load(libc::BPF_H, ETHERTYPE),
        jump_if_equal(1, u32::from(framing.ethertype), 2, DROP),
        load(libc::BPF_W, DESTINATION),
        jump_if_equal(3, start, 4, 12),
        load(libc::BPF_H, DESTINATION + 4),
        jump_if_equal(5, end, 6, 12),
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        jump(libc::BPF_JGE, 7, (ETHERNET_BYTES + ENVELOPE_BYTES) as u32, 8, PASS),
        load(libc::BPF_B, ENVELOPE),
        jump_if_equal(9, u32::from(VERSION), 10, PASS),
        load(libc::BPF_H, ENVELOPE + PORT),
        jump_if_equal(11, port, PASS, DROP),
        load(libc::BPF_W, DESTINATION),
        jump_if_equal(13, 0xffff_ffff, 14, DROP),
        load(libc::BPF_H, DESTINATION + 4),
        jump_if_equal(15, 0xffff, 16, DROP),
        load(libc::BPF_H, ENVELOPE),
        jump_if_equal(17, discover, 18, DROP),
        load(libc::BPF_H, ENVELOPE + PORT),
        jump_if_equal(19, port, PASS, DROP),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

/// Index of the instruction that accepts the whole frame.
const PASS: u8 = 20;

/// Index of the instruction that drops the frame.
const DROP: u8 = 21;

/// Offset of the destination in an Ethernet frame.
const DESTINATION: u32 = 0;

/// Offset of the `EtherType` in an Ethernet frame.
const ETHERTYPE: u32 = 12;

/// Offset of the envelope in an Ethernet frame; the envelope begins with its version and kind.
const ENVELOPE: u32 = ETHERNET_BYTES as u32;

/// Offset of the destination port in the envelope.
const PORT: u32 = 4;

/// Version of the envelope.
const VERSION: u8 = 1;

/// Returns the instruction that loads big-endian bytes of the frame. If the frame is too short for
/// them, the kernel drops the frame.
const fn load(size: u32, offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, offset)
}

const fn jump_if_equal(at: u8, value: u32, then: u8, otherwise: u8) -> sock_filter {
    jump(libc::BPF_JEQ, at, value, then, otherwise)
}

/// Returns the instruction with index `at`. The instruction compares the loaded value with `value`.
/// It jumps to the instruction with index `then` if the comparison is true, and to `otherwise` if
/// not.
const fn jump(condition: u32, at: u8, value: u32, then: u8, otherwise: u8) -> sock_filter {
    let code = libc::BPF_JMP | condition | libc::BPF_K;
    instruction(code, then - at - 1, otherwise - at - 1, value)
}

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::BROADCAST;

    const OURS: Framing =
        Framing { station: [2, 0, 0, 0, 0, 1], ethertype: 0x88b5, vlan: None, port: 0x0708 };

    /// Interprets the program like the kernel. Returns whether the frame passes.
    fn run(frame: &[u8]) -> bool {
        let program = program(&OURS);
        let (mut at, mut loaded) = (0_usize, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let code = u32::from(code);
            at += 1;
            let bytes = |n: usize| frame.get(k as usize..k as usize + n);
            match code & 7 {
                libc::BPF_LD if code & 0xe0 == libc::BPF_LEN => loaded = frame.len() as u32,
                libc::BPF_LD => {
                    let width = match code & 0x18 {
                        libc::BPF_W => 4,
                        libc::BPF_H => 2,
                        _ => 1,
                    };
                    let Some(bytes) = bytes(width) else { return false };
                    loaded = bytes.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
                }
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => loaded == k,
                        _ => loaded >= k,
                    };
                    at += usize::from(if holds { jt } else { jf });
                }
                _ => return k > 0,
            }
        }
    }

    #[test]
    fn the_filter_passes_only_frames_of_its_endpoint() {
        let peer = Framing { station: [2, 0, 0, 0, 0, 2], port: 9, ..OURS };
        let frame = |kind, to, port| {
            let mut bytes = vec![0; peer.header_bytes()];
            assert!(peer.put(kind, (to, port), &mut bytes));
            bytes
        };
        let (ours, port) = (OURS.station, OURS.port);
        assert!(run(&frame(EnvelopeKind::Frame, ours, port)));
        assert!(run(&frame(EnvelopeKind::Here, ours, port)));
        assert!(run(&frame(EnvelopeKind::Discover, BROADCAST, port)));
        assert!(!run(&frame(EnvelopeKind::Frame, ours, port + 1)));
        assert!(!run(&frame(EnvelopeKind::Frame, peer.station, port)));
        assert!(!run(&frame(EnvelopeKind::Frame, [2, 0, 0, 0, 0xff, 1], port)));
        assert!(!run(&frame(EnvelopeKind::Frame, BROADCAST, port)));
        assert!(!run(&frame(EnvelopeKind::Discover, BROADCAST, port + 1)));
        assert!(!run(&[]));
        let mut other = frame(EnvelopeKind::Frame, ours, port);
        other[13] ^= 1;
        assert!(!run(&other));
    }

    #[test]
    fn broken_frames_to_our_station_pass_and_are_counted() {
        let mut foreign = [0; 60];
        foreign[..6].copy_from_slice(&OURS.station);
        foreign[12..14].copy_from_slice(&OURS.ethertype.to_be_bytes());
        assert!(run(&foreign));
        assert!(run(&foreign[..15]));
        foreign[..6].copy_from_slice(&BROADCAST);
        assert!(!run(&foreign));
    }
}
