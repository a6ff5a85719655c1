//! Generators of arbitrary valid frames for the tests of this crate.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::acknowledgement::{
    ACK_BLOCK_WORDS_MAX, ACK_SECTION_BYTES_MAX, AckBlock, AckDelay, encode_acks,
};
use crate::control::{CLOSE_PRIVATE_BYTES_MAX, CONTROL_BYTES_MAX, Control, LinkStatus};
use crate::datagram::Datagram;
use crate::flags::{Flags, Kind};
use crate::frame::{
    AtomicOpcode, HEADER_BYTES_MAX, Header, OPERATION_BYTES_MAX, Prefix, encode_header,
};
use crate::identity::{
    ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, PeerAddr, QueuePairNumber,
    RemoteKey,
};
use crate::parameters::{Features, Parameters};
use crate::patch::PatchRecord;
use crate::reason::{CloseReason, RejectReason};

/// A connection frame before encoding.
#[derive(Clone, Debug)]
pub(crate) struct FrameParts {
    pub(crate) prefix: Prefix,
    pub(crate) header: Header,
    pub(crate) acks: Option<(OperationNumber, MessageNumber, Vec<AckBlock>)>,
    pub(crate) payload: Vec<u8>,
}

impl FrameParts {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES_MAX];
        let length = encode_header(&self.prefix, &self.header, &mut header);
        let mut bytes = header[..length].to_vec();
        if let Some((delivered, credit, blocks)) = &self.acks {
            let mut section = [0; ACK_SECTION_BYTES_MAX];
            let length = encode_acks(*delivered, *credit, blocks, &mut section);
            bytes.extend_from_slice(&section[..length]);
        }
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

prop_compose! {
    /// Generates a valid frame of any kind, with the flags that the encoder produces.
    pub(crate) fn frame_parts()(
        (header, payload) in header_and_payload(),
        flag_bits: u8,
        link in 0..=LinkIndex::MAX,
        epoch: u16,
        connection: u32,
        packet: u32,
        section in (any::<u32>(), any::<u32>(), ack_blocks()),
    ) -> FrameParts {
        let mut flags = Flags(flag_bits).without(Flags::IMMEDIATE);
        let kind = header.kind();
        if kind == Kind::Patch {
            flags = flags.without(Flags::STRICT);
        }
        match header {
            Header::Write { immediate: Some(_), .. }
            | Header::Patch { immediate: Some(_), .. }
            | Header::Send { immediate: Some(_), .. }
            | Header::SendInvalidate { key: Some(_), .. } => {
                flags = flags.with(Flags::IMMEDIATE).with(Flags::LAST);
            }
            Header::SendInvalidate { key: None, .. } => flags = flags.without(Flags::LAST),
            Header::ReadRequest { .. } | Header::Atomic { .. } | Header::AtomicResponse { .. } => {
                flags = flags.with(Flags::LAST);
            }
            Header::Ack => flags = flags.with(Flags::ACK),
            Header::Probe => flags = flags.without(Flags::ACK),
            _ if payload.is_empty() => flags = flags.with(Flags::LAST),
            _ => {}
        }
        let prefix = Prefix {
            kind,
            link: LinkIndex(link),
            flags,
            epoch: Epoch(epoch),
            connection: ConnectionId(connection),
            packet,
        };
        let (delivered, credit, blocks) = section;
        let acks = flags
            .contains(Flags::ACK)
            .then_some((OperationNumber(delivered), MessageNumber(credit), blocks));
        FrameParts { prefix, header, acks, payload }
    }
}

/// Values that most headers contain, and bytes for a payload.
type Numbers = (OperationNumber, u32, RemoteKey, u64, Option<u32>, Vec<u8>);

fn header_and_payload() -> impl Strategy<Value = (Header, Vec<u8>)> {
    prop_oneof![
        without_operation(),
        numbers().prop_map(|(operation, offset, key, address, immediate, payload)| {
            let offset = if payload.is_empty() { 0 } else { offset };
            (Header::Write { operation, offset, key, address, immediate }, payload)
        }),
        patch_and_payload(),
        numbers().prop_map(|(operation, length, key, address, _, _)| {
            (Header::ReadRequest { operation, length, key, address }, Vec::new())
        }),
        numbers().prop_map(|(operation, offset, _, _, _, payload)| {
            let offset = if payload.is_empty() { 0 } else { offset };
            (Header::ReadResponse { operation, offset }, payload)
        }),
        numbers().prop_map(|(operation, offset, key, _, immediate, payload)| {
            let offset = if payload.is_empty() { 0 } else { offset };
            let message = MessageNumber(key.0);
            (Header::Send { operation, offset, message, immediate }, payload)
        }),
        (numbers(), any::<bool>()).prop_map(
            |((operation, offset, key, _, message, payload), last)| {
                let offset = if payload.is_empty() { 0 } else { offset };
                let message = MessageNumber(message.unwrap_or(0));
                let key = (last || payload.is_empty()).then_some(key);
                (Header::SendInvalidate { operation, offset, message, key }, payload)
            }
        ),
        (numbers(), any::<(u64, u64)>(), 0..3_usize).prop_map(
            |(numbers, (operand, compare), opcode)| {
                let (operation, _, key, address, ..) = numbers;
                let opcode =
                    [AtomicOpcode::FetchAdd, AtomicOpcode::CompareSwap, AtomicOpcode::Swap][opcode];
                let header = Header::Atomic { operation, opcode, key, address, operand, compare };
                (header, Vec::new())
            }
        ),
        any::<(u32, u64)>().prop_map(|(operation, value)| {
            let operation = OperationNumber(operation);
            (Header::AtomicResponse { operation, value }, Vec::new())
        }),
    ]
}

/// Generates the payload of a Patch frame.
pub(crate) fn records() -> impl Strategy<Value = Vec<u8>> {
    let record = (any::<u16>(), prop_oneof![any::<u32>(), Just(0), Just(u32::MAX)]);
    proptest::collection::btree_map(record.0, record.1, 0..5).prop_map(|records| {
        let mut payload = Vec::new();
        for (block, bitmap) in records {
            let record = PatchRecord { block, bitmap };
            payload.extend_from_slice(&record.encode());
            payload.resize(payload.len() + 4 * bitmap.count_ones() as usize, block as u8);
        }
        payload
    })
}

fn without_operation() -> impl Strategy<Value = (Header, Vec<u8>)> {
    prop_oneof![
        Just((Header::Ack, Vec::new())),
        control_payload().prop_map(|payload| (Header::Control, payload)),
        (0..600_usize).prop_map(|length| (Header::Probe, std::vec![0; length])),
    ]
}

fn patch_and_payload() -> impl Strategy<Value = (Header, Vec<u8>)> {
    (numbers(), records()).prop_map(|((operation, offset, key, address, immediate, _), payload)| {
        let room = OPERATION_BYTES_MAX as u32 - payload.len() as u32;
        let offset = if payload.is_empty() { 0 } else { offset.min(room) };
        let address = address & !3;
        (Header::Patch { operation, offset, key, address, immediate }, payload)
    })
}

prop_compose! {
    fn numbers()(payload in vec(any::<u8>(), 0..300))(
        operation in any::<u32>(),
        offset in prop_oneof![
            Just(0),
            Just((OPERATION_BYTES_MAX - payload.len() as u64) as u32),
            0..=(OPERATION_BYTES_MAX - payload.len() as u64) as u32,
        ],
        key in any::<u32>(),
        address in prop_oneof![
            Just(OPERATION_BYTES_MAX),
            Just(u64::MAX - OPERATION_BYTES_MAX),
            OPERATION_BYTES_MAX..=u64::MAX - OPERATION_BYTES_MAX,
        ],
        immediate in any::<Option<u32>>(),
        payload in Just(payload),
    ) -> Numbers {
        (OperationNumber(operation), offset, RemoteKey(key), address, immediate, payload)
    }
}

/// Generates blocks for different links.
pub(crate) fn ack_blocks() -> impl Strategy<Value = Vec<AckBlock>> {
    let links: Vec<u8> = (0..=LinkIndex::MAX).collect();
    subsequence(links, 0..=16)
        .prop_flat_map(|links| links.into_iter().map(ack_block).collect::<Vec<_>>())
}

fn ack_block(link: u8) -> impl Strategy<Value = AckBlock> {
    let numbers = (any::<u16>(), any::<u16>(), 1..=u16::MAX, any::<u32>());
    let words = 0..=ACK_BLOCK_WORDS_MAX;
    (numbers, words, any::<[u64; ACK_BLOCK_WORDS_MAX]>()).prop_map(
        move |((marked, delay, run, largest), words, mut bitmap)| {
            bitmap[words..].fill(0);
            let delay = AckDelay(delay);
            let words = words as u8;
            AckBlock { link: LinkIndex(link), marked, delay, run, largest, words, bitmap }
        },
    )
}

/// A control message that owns its private data.
#[derive(Clone, Debug)]
pub(crate) enum OwnedControl {
    Plain(Control<'static>),
    Close(u16, u32, Vec<u8>),
}

impl OwnedControl {
    pub(crate) fn borrow(&self) -> Control<'_> {
        match self {
            Self::Plain(control) => *control,
            Self::Close(reason, operation, private_data) => Control::Close {
                reason: CloseReason::from_code(*reason),
                operation: OperationNumber(*operation),
                private_data,
            },
        }
    }
}

pub(crate) fn control() -> impl Strategy<Value = OwnedControl> {
    let bare = std::vec![Control::Padding, Control::Ping, Control::CloseAck, Control::Ready];
    let statuses =
        std::vec![LinkStatus::Available, LinkStatus::Backup, LinkStatus::Down, LinkStatus::Removed];
    prop_oneof![
        proptest::sample::select(bare).prop_map(OwnedControl::Plain),
        any::<u64>().prop_map(|nonce| OwnedControl::Plain(Control::PathChallenge(nonce))),
        any::<u64>().prop_map(|nonce| OwnedControl::Plain(Control::PathResponse(nonce))),
        (0..=LinkIndex::MAX, proptest::sample::select(statuses)).prop_map(|(link, status)| {
            OwnedControl::Plain(Control::LinkStatus(LinkIndex(link), status))
        }),
        address().prop_map(|address| OwnedControl::Plain(Control::Address(address))),
        any::<u16>().prop_map(|links| OwnedControl::Plain(Control::Links(links))),
        any::<u32>().prop_map(|number| OwnedControl::Plain(Control::Gone(OperationNumber(number)))),
        any::<u32>()
            .prop_map(|number| { OwnedControl::Plain(Control::NotReady(MessageNumber(number))) }),
        (
            prop_oneof![0..12_u16, any::<u16>()],
            any::<u32>(),
            vec(any::<u8>(), 0..=CLOSE_PRIVATE_BYTES_MAX)
        )
            .prop_map(|(reason, operation, data)| OwnedControl::Close(reason, operation, data)),
    ]
}

fn control_payload() -> impl Strategy<Value = Vec<u8>> {
    vec(control(), 1..5).prop_map(|messages| {
        let mut payload = Vec::new();
        for message in messages {
            let mut out = [0; CONTROL_BYTES_MAX];
            let length = message.borrow().encode(&mut out);
            payload.extend_from_slice(&out[..length]);
        }
        payload
    })
}

pub(crate) fn address() -> impl Strategy<Value = PeerAddr> {
    let used = prop_oneof![Just((1_u8, 6_usize)), Just((2, 16)), Just((4, 4)), Just((6, 16))];
    (used, any::<[u8; 2]>(), any::<[u8; 16]>()).prop_map(|((family, used), port, host)| {
        let mut bytes = [0; 20];
        bytes[0] = family;
        bytes[2..4].copy_from_slice(&port);
        bytes[4..4 + used].copy_from_slice(&host[..used]);
        PeerAddr(bytes)
    })
}

prop_compose! {
    pub(crate) fn parameters()(
        (incarnation, features, epoch) in any::<(u64, u64, u16)>(),
        links_max in 1..=16_u16,
        frame_bytes_max in 256..=65_507_u16,
        read_depth in 0..=4096_u16,
        operation_window in 1..=65_536_u32,
        (order_pool_bytes, receive_buffer_bytes) in any::<(u32, u32)>(),
        (ack_delay_max_ns, receive_credit, service) in any::<(u32, u32, u32)>(),
    ) -> Parameters {
        Parameters {
            incarnation,
            features: Features(features),
            epoch: Epoch(epoch),
            links_max,
            frame_bytes_max,
            read_depth,
            operation_window,
            order_pool_bytes,
            receive_buffer_bytes,
            ack_delay_max_ns,
            receive_credit: MessageNumber(receive_credit),
            service,
        }
    }
}

prop_compose! {
    /// The header of a datagram.
    pub(crate) fn datagram()(
        (destination, source) in (0..1_u32 << 24, 0..1_u32 << 24),
        (key, immediate, solicited) in any::<(u32, Option<u32>, bool)>(),
    ) -> Datagram {
        let number = |number| QueuePairNumber::new(number).unwrap();
        let (destination, source) = (number(destination), number(source));
        Datagram { destination, source, key, immediate, solicited }
    }
}

pub(crate) fn reject_reason() -> impl Strategy<Value = RejectReason> {
    prop_oneof![0..7_u16, any::<u16>()].prop_map(RejectReason::from_code)
}

/// A change to the bytes of a valid frame.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Set(proptest::sample::Index, u8),
    Truncate(proptest::sample::Index),
    Append(Vec<u8>),
}

impl Mutation {
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Set(index, value) if !bytes.is_empty() => {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            Self::Set(..) => {}
            Self::Truncate(index) => bytes.truncate(index.index(bytes.len() + 1)),
            Self::Append(more) => bytes.extend_from_slice(more),
        }
    }
}

pub(crate) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let mutation = prop_oneof![
        4 => any::<(proptest::sample::Index, u8)>().prop_map(|(at, to)| Mutation::Set(at, to)),
        1 => any::<proptest::sample::Index>().prop_map(Mutation::Truncate),
        1 => vec(any::<u8>(), 1..40).prop_map(Mutation::Append),
    ];
    vec(mutation, 1..6)
}

/// The kinds of connection frames; [`frame_parts`] generates all of them.
pub(crate) const CONNECTION_KINDS: [Kind; 11] = [
    Kind::Ack,
    Kind::Control,
    Kind::Write,
    Kind::ReadRequest,
    Kind::ReadResponse,
    Kind::Send,
    Kind::Atomic,
    Kind::AtomicResponse,
    Kind::Probe,
    Kind::SendInvalidate,
    Kind::Patch,
];
