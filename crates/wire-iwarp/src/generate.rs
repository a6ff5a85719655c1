//! Generators of frames for property tests.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{
    BitOrder, DdpHeader, EnhancedSetup, ErrorCode, Opcode, QueueNumber, ReadRequest, Revision,
    Segment, SetupFlags, SetupKind, Stag,
};

/// The fields of a set-up frame, with private data that the test owns.
#[derive(Clone, Debug)]
pub(crate) struct AnySetup {
    pub(crate) kind: SetupKind,
    pub(crate) revision: Revision,
    pub(crate) flags: SetupFlags,
    pub(crate) enhanced: Option<EnhancedSetup>,
    pub(crate) private_data: Vec<u8>,
}

prop_compose! {
    fn flags()(bits: [bool; 5], reserved: u16) -> SetupFlags {
        let [markers, crc, reject, enhanced, gso] = bits;
        let reserved = reserved & SetupFlags::RESERVED;
        SetupFlags { markers, crc, reject, enhanced, gso, reserved }
    }
}

prop_compose! {
    fn enhanced()(ird in 0..0x4000_u16, ord in 0..0x4000_u16, bits: [bool; 4]) -> EnhancedSetup {
        let [peer_to_peer, rtr_send, rtr_write, rtr_read] = bits;
        EnhancedSetup { ird, ord, peer_to_peer, rtr_send, rtr_write, rtr_read }
    }
}

prop_compose! {
    pub(crate) fn setup()(
        kind in prop::sample::select(vec![SetupKind::Request, SetupKind::Reply]),
        revision in prop::sample::select(vec![Revision::Zero, Revision::One, Revision::Two]),
        flags in flags(),
        enhanced in enhanced(),
        private_data in vec(any::<u8>(), 0..=508),
    ) -> AnySetup {
        let has_words = revision == Revision::Two && flags.enhanced;
        AnySetup { kind, revision, flags, enhanced: has_words.then_some(enhanced), private_data }
    }
}

prop_compose! {
    pub(crate) fn segment()(
        opcode in prop::sample::select(Opcode::ALL.to_vec()),
        last: bool,
        words: [u32; 3],
        offset: u64,
        reserved: u16,
    ) -> Segment {
        let [first, msn, mo] = words;
        let ddp = match opcode.queue() {
            None => DdpHeader::Tagged { last, stag: Stag(first), offset },
            Some(queue) => DdpHeader::Untagged { last, queue, msn, mo, upper_layer: first },
        };
        Segment { ddp, opcode, reserved: reserved & Segment::RESERVED }
    }
}

prop_compose! {
    pub(crate) fn read_request()(stags: [u32; 2], offsets: [u64; 2], size: u32) -> ReadRequest {
        let [sink_stag, source_stag] = stags.map(Stag);
        let [sink_offset, source_offset] = offsets;
        ReadRequest { sink_stag, sink_offset, size, source_stag, source_offset }
    }
}

prop_compose! {
    pub(crate) fn error_code()(layer in 0..16_u8, error_type in 0..16_u8, code: u8) -> ErrorCode {
        ErrorCode { layer, error_type, code }
    }
}

pub(crate) fn order() -> impl Strategy<Value = BitOrder> {
    prop::sample::select(vec![BitOrder::Rfc, BitOrder::Swapped])
}

pub(crate) fn queue() -> impl Strategy<Value = QueueNumber> {
    prop::sample::select(vec![QueueNumber::Send, QueueNumber::ReadRequest, QueueNumber::Terminate])
}
