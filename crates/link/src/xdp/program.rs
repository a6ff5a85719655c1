//! The program that selects our frames among those that an interface receives.

use super::bpf::SocketMap;
use super::instruction::{Assembler, Instruction, Label, Register, Width};

/// The frames that the program selects. The program passes all other frames to the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Selection {
    /// The destination station. Broadcasts are also selected.
    pub(super) station: [u8; 6],
    /// The `EtherType` before the envelope.
    pub(super) ethertype: u16,
    /// The VLAN in the IEEE 802.1Q tag. If `None`, the program selects only frames without a tag.
    pub(super) vlan: Option<u16>,
    /// The destination port in the envelope.
    pub(super) port: u16,
}

impl Selection {
    /// Returns the program for the sockets in `map`. The program redirects a selected frame to the
    /// socket of the queue that received the frame. If that queue has no socket, the program passes
    /// the frame to the kernel.
    pub(super) fn program(&self, map: &SocketMap) -> Vec<Instruction> {
        let mut code = Assembler::default();
        let pass = code.label();
        code.copy(CONTEXT, Register::R1);
        code.load(Width::Word, FRAME, CONTEXT, CONTEXT_DATA);
        code.load(Width::Word, END, CONTEXT, CONTEXT_DATA_END);
        code.copy(VALUE, FRAME);
        code.add(VALUE, i32::from(self.envelope_at() + ENVELOPE_BYTES));
        code.jump_if_greater(VALUE, END, pass);
        self.check_station(&mut code, pass);
        self.check_types(&mut code, pass);
        let envelope = self.envelope_at();
        code.load(Width::Byte, VALUE, FRAME, envelope);
        code.jump_unless_equal(VALUE, ENVELOPE_VERSION, pass);
        unless_half(&mut code, envelope + ENVELOPE_PORT, self.port, pass);
        code.load(Width::Word, Register::R2, CONTEXT, CONTEXT_QUEUE);
        code.load_map(Register::R1, map.descriptor());
        code.set(Register::R3, PASS);
        code.call(REDIRECT_MAP);
        code.exit();
        code.place(pass);
        code.set(Register::R0, PASS);
        code.exit();
        code.finish()
    }

    /// Appends code that checks that the destination is our station or broadcast.
    fn check_station(&self, code: &mut Assembler, pass: Label) {
        let (not_ours, checked) = (code.label(), code.label());
        for (offset, half) in [0, 2, 4].into_iter().zip(self.station.as_chunks::<2>().0) {
            unless_half(code, offset, u16::from_be_bytes(*half), not_ours);
        }
        code.jump(checked);
        code.place(not_ours);
        for offset in [0, 2, 4] {
            unless_half(code, offset, 0xffff, pass);
        }
        code.place(checked);
    }

    /// Appends code that checks the `EtherType`, and the tag if one is required.
    fn check_types(&self, code: &mut Assembler, pass: Label) {
        if let Some(vlan) = self.vlan {
            unless_half(code, ETHERTYPE_AT, TAG_ETHERTYPE, pass);
            code.load(Width::Half, VALUE, FRAME, ETHERTYPE_AT + 2);
            // The upper four bits are priority and drop eligibility.
            code.and(VALUE, i32::from(loaded(VLAN_MASK)));
            code.jump_unless_equal(VALUE, loaded(vlan & VLAN_MASK), pass);
        }
        unless_half(code, self.envelope_at() - 2, self.ethertype, pass);
    }

    /// Returns the offset of the envelope in a frame.
    const fn envelope_at(&self) -> i16 {
        ETHERTYPE_AT + 2 + if self.vlan.is_some() { TAG_BYTES } else { 0 }
    }
}

/// Appends code that jumps to `otherwise` if the two bytes at `offset`, in network byte order,
/// differ from `value`.
fn unless_half(code: &mut Assembler, offset: i16, value: u16, otherwise: Label) {
    code.load(Width::Half, VALUE, FRAME, offset);
    code.jump_unless_equal(VALUE, loaded(value), otherwise);
}

/// Returns the number that a load in host byte order yields for `value` in network byte order.
const fn loaded(value: u16) -> u16 {
    value.to_be()
}

const CONTEXT: Register = Register::R6;
const FRAME: Register = Register::R2;
const END: Register = Register::R3;
const VALUE: Register = Register::R4;

// Fields of `struct xdp_md`, in linux/bpf.h.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;
/// The result that passes a frame to the kernel. `bpf_redirect_map` also takes this value as its
/// flags argument, and returns it if the queue has no socket.
const PASS: i32 = 2;
/// Number of the function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

const ETHERTYPE_AT: i16 = 12;
const TAG_ETHERTYPE: u16 = 0x8100;
const TAG_BYTES: i16 = 4;
/// Bits of a tag's second half that contain the VLAN.
const VLAN_MASK: u16 = 0x0fff;
const ENVELOPE_BYTES: i16 = (wire_edge::ENVELOPE_BYTES as u16).cast_signed();
/// Offset of the destination port in an envelope, and the only version of envelopes.
const ENVELOPE_PORT: i16 = 4;
const ENVELOPE_VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use wire_edge::{ETHERTYPE_DEFAULT, Envelope, EnvelopeKind};

    use super::super::bpf::Program;
    use super::super::socket;
    use super::*;

    const STATION: [u8; 6] = [0x02, 0x11, 0xfe, 0x33, 0x80, 0x55];
    const BROADCAST: [u8; 6] = [0xff; 6];
    const PORT: u16 = 0x9a07;
    const REDIRECT: u32 = 4;
    const ON_TO_THE_KERNEL: u32 = PASS as u32;

    #[test]
    fn the_program_redirects_only_our_frames() {
        let Some(program) = Loaded::new(None) else { return };
        let ours = frame(STATION, &[], ETHERTYPE_DEFAULT, EnvelopeKind::Frame, PORT, 60);
        assert_eq!(program.answer(&ours), REDIRECT);
        for length in 14..26 {
            assert_eq!(program.answer(&ours[..length]), ON_TO_THE_KERNEL, "{length} bytes");
        }
        assert_eq!(program.answer(&ours[..26]), REDIRECT);
        for size in [1, 46, 1400, 1488, 2900] {
            let sized = frame(STATION, &[], ETHERTYPE_DEFAULT, EnvelopeKind::Frame, PORT, size);
            assert_eq!(program.answer(&sized), REDIRECT, "{size} bytes");
        }
        for kind in [EnvelopeKind::Discover, EnvelopeKind::Here] {
            let to_all = frame(BROADCAST, &[], ETHERTYPE_DEFAULT, kind, PORT, 0);
            assert_eq!(program.answer(&to_all), REDIRECT);
        }
        let tagged = frame(STATION, &[0x81, 0, 0, 7], 0x88b5, EnvelopeKind::Frame, PORT, 60);
        assert_eq!(program.answer(&tagged), ON_TO_THE_KERNEL);
    }

    #[test]
    fn every_checked_bit_decides() {
        for vlan in [None, Some(7)] {
            let Some(program) = Loaded::new(vlan) else { return };
            let tag: &[u8] = if vlan.is_some() { &[0x81, 0, 0, 7] } else { &[] };
            let kind = EnvelopeKind::Frame;
            let ours = frame(STATION, tag, ETHERTYPE_DEFAULT, kind, PORT, 46);
            assert_eq!(program.answer(&ours), REDIRECT);
            let envelope = 14 + tag.len();
            for bit in 0..8 * (envelope + 12) {
                let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
                let mut other = ours.clone();
                other[byte] ^= mask;
                // The program ignores these fields: the source station, the priority bits of a tag,
                // and all fields of the envelope except version and destination port.
                let is_free = (6..12).contains(&byte)
                    || (vlan.is_some() && byte == 14 && mask & 0xf0 != 0)
                    || (envelope + 1..envelope + 4).contains(&byte)
                    || byte >= envelope + 6;
                let expected = if is_free { REDIRECT } else { ON_TO_THE_KERNEL };
                assert_eq!(program.answer(&other), expected, "bit {bit}, VLAN {vlan:?}");
            }
        }
    }

    #[test]
    fn frames_of_other_protocols_go_to_the_kernel() {
        let Some(program) = Loaded::new(None) else { return };
        let Some(tagging) = Loaded::new(Some(7)) else { return };
        for ethertype in [0x0800, 0x86dd, 0x0806, 0x88cc, 0x8100, 0x0026] {
            for station in [STATION, BROADCAST] {
                let other = frame(station, &[], ethertype, EnvelopeKind::Frame, PORT, 64);
                assert_eq!(program.answer(&other), ON_TO_THE_KERNEL, "{ethertype:#x}");
                assert_eq!(tagging.answer(&other), ON_TO_THE_KERNEL, "{ethertype:#x}");
            }
        }
        let mut pattern = 1_u32;
        for length in 14..400 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                pattern = pattern.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (pattern >> 24) as u8
            })
            .take(length)
            .collect();
            assert_eq!(program.answer(&bytes), ON_TO_THE_KERNEL);
            assert_eq!(tagging.answer(&bytes), ON_TO_THE_KERNEL);
        }
    }

    #[test]
    fn a_frame_needs_the_right_vlan_tag() {
        let Some(program) = Loaded::new(Some(7)) else { return };
        let tagged = |tag: [u8; 4]| frame(STATION, &tag, 0x88b5, EnvelopeKind::Frame, PORT, 60);
        assert_eq!(program.answer(&tagged([0x81, 0, 0, 7])), REDIRECT);
        assert_eq!(program.answer(&tagged([0x81, 0, 0xe0, 7])), REDIRECT);
        assert_eq!(program.answer(&tagged([0x81, 0, 0, 8])), ON_TO_THE_KERNEL);
        assert_eq!(program.answer(&tagged([0x88, 0xa8, 0, 7])), ON_TO_THE_KERNEL);
        let bare = frame(STATION, &[], 0x88b5, EnvelopeKind::Frame, PORT, 60);
        assert_eq!(program.answer(&bare), ON_TO_THE_KERNEL);
    }

    #[test]
    fn frames_of_a_queue_without_socket_go_to_the_kernel() {
        let Some(map) = map() else { return };
        let selection =
            Selection { station: STATION, ethertype: ETHERTYPE_DEFAULT, vlan: None, port: PORT };
        let program = Program::load(&selection.program(&map)).unwrap();
        let ours = frame(STATION, &[], ETHERTYPE_DEFAULT, EnvelopeKind::Frame, PORT, 60);
        assert_eq!(program.run(&ours).unwrap(), ON_TO_THE_KERNEL);
    }

    /// A loaded program with a socket for queue 0, on which test frames arrive.
    struct Loaded {
        program: Program,
        _map: SocketMap,
        // Keep the socket open, because the map drops a closed socket.
        _socket: OwnedFd,
    }

    impl Loaded {
        fn new(vlan: Option<u16>) -> Option<Self> {
            let map = map()?;
            let socket = socket::open().unwrap();
            socket::set_ring(socket.as_fd(), libc::XDP_RX_RING, 2).unwrap();
            map.insert(0, socket.as_fd()).unwrap();
            let selection =
                Selection { station: STATION, ethertype: ETHERTYPE_DEFAULT, vlan, port: PORT };
            let program = Program::load(&selection.program(&map)).unwrap();
            Some(Self { program, _map: map, _socket: socket })
        }

        fn answer(&self, frame: &[u8]) -> u32 {
            self.program.run(frame).unwrap()
        }
    }

    fn map() -> Option<SocketMap> {
        match SocketMap::new(1) {
            Ok(map) => Some(map),
            Err(error) => {
                eprintln!("skipped: loading a program needs CAP_BPF and CAP_NET_ADMIN: {error}");
                None
            }
        }
    }

    /// Returns a frame of this endpoint after the given Ethernet header.
    fn frame(
        to: [u8; 6],
        tag: &[u8],
        ethertype: u16,
        kind: EnvelopeKind,
        port: u16,
        length: u16,
    ) -> Vec<u8> {
        let envelope =
            Envelope { kind, length, destination_port: port, source_port: 1, checksum: 0 };
        let mut bytes = to.to_vec();
        bytes.extend([2, 0, 0, 0, 0, 9]);
        bytes.extend(tag);
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(envelope.encode());
        bytes.resize(bytes.len() + usize::from(length), 0xa5);
        bytes
    }
}
