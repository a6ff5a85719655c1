//! Frames that no sender of this version produces. A decoder must ignore some of their fields, and
//! must reject other fields.

use wire_edge::{
    Addresses, ConnectionId, DecodeError, Epoch, Features, Flags, HANDSHAKE_BYTES_MAX,
    HEADER_BYTES_MAX, Handshake, HandshakeFrame, Header, LinkIndex, MessageNumber, OperationNumber,
    Parameters, PeerAddr, Prefix, VERSION, decode, decode_handshake, encode_header,
};

/// Size of the preamble of a handshake frame in bytes. The parameters follow the preamble.
const PREAMBLE_BYTES: usize = 16;

/// Returns a Hello with one address.
fn hello(address: PeerAddr) -> Vec<u8> {
    let parameters = Parameters {
        incarnation: 1,
        features: Features::NONE,
        epoch: Epoch(7),
        links_max: 1,
        frame_bytes_max: 1472,
        read_depth: 1,
        operation_window: 16,
        order_pool_bytes: 0,
        receive_buffer_bytes: 65_536,
        ack_delay_max_ns: 0,
        receive_credit: MessageNumber(0),
        service: 0,
    };
    let addresses = [address];
    let body = Handshake::Hello {
        parameters,
        cookie: [0; 24],
        addresses: Addresses::from_slice(&addresses),
        private_data: &[],
    };
    let frame = HandshakeFrame {
        version: VERSION,
        destination: ConnectionId(0),
        source: ConnectionId(1),
        body,
    };
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let len = frame.encode(&mut bytes);
    bytes.truncate(len);
    bytes
}

/// Returns a frame without payload, and the offset of its flags.
fn frame(header: &Header) -> (Vec<u8>, usize) {
    let prefix = Prefix {
        kind: header.kind(),
        link: LinkIndex(0),
        flags: Flags::NONE,
        epoch: Epoch(1),
        connection: ConnectionId(2),
        packet: 3,
    };
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = encode_header(&prefix, header, &mut bytes);
    (bytes[..len].to_vec(), 1)
}

fn ethernet() -> PeerAddr {
    PeerAddr::mac([2, 0, 0, 0, 0, 1], 7)
}

//= protocol.md: frame.2
#[test]
fn reserved_bytes_are_sent_as_zero_and_ignored() {
    let sent = hello(ethernet());
    let reserved = PREAMBLE_BYTES + 48..PREAMBLE_BYTES + 64;
    assert_eq!(sent[reserved.clone()], [0; 16]);
    let mut odd = sent.clone();
    odd[reserved].fill(0xff);
    assert_eq!(decode_handshake(&odd), decode_handshake(&sent));
}

//= protocol.md: feature.1
#[test]
fn unknown_features_are_no_error() {
    let mut odd = hello(ethernet());
    odd[PREAMBLE_BYTES + 8..PREAMBLE_BYTES + 16].fill(0xff);
    let Handshake::Hello { parameters, .. } = decode_handshake(&odd).unwrap().body else {
        panic!()
    };
    assert_eq!(parameters.features.intersection(Features::NONE), Features::NONE);
}

//= protocol.md: address.1
#[test]
fn an_address_with_bytes_beyond_its_family_is_malformed() {
    let good = ethernet().0;
    assert!(decode_handshake(&hello(PeerAddr(good))).is_ok());
    // Change the family, the zero byte, and bytes after the six bytes of a MAC address.
    for (at, value) in [(0, 3), (1, 1), (10, 1), (19, 1)] {
        let mut odd = good;
        odd[at] = value;
        assert_eq!(decode_handshake(&hello(PeerAddr(odd))), Err(DecodeError::Address(odd)), "{at}");
    }
}

//= protocol.md: flag.1
#[test]
fn a_frame_without_a_mandatory_flag_is_malformed() {
    let last = Header::AtomicResponse { operation: OperationNumber(1), value: 2 };
    let (mut bytes, flags) = frame(&last);
    assert!(decode(&bytes).is_ok());
    bytes[flags] &= !Flags::LAST.bits();
    assert!(matches!(decode(&bytes), Err(DecodeError::FlagMissing { flag: Flags::LAST, .. })));

    let (mut bytes, flags) = frame(&Header::Ack);
    bytes[flags] &= !Flags::ACK.bits();
    assert!(matches!(decode(&bytes), Err(DecodeError::FlagMissing { flag: Flags::ACK, .. })));

    let (mut bytes, flags) = frame(&Header::Probe);
    assert!(decode(&bytes).is_ok());
    bytes[flags] |= Flags::ACK.bits();
    assert!(matches!(decode(&bytes), Err(DecodeError::FlagForbidden { flag: Flags::ACK, .. })));
}
