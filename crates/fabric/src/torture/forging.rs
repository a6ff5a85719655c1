//! Forged frames. Strangers (attackers) and lying peers send them; engines never do.

use wire_edge::{
    ACK_SECTION_BYTES_MAX, AckBlock, AckDelay, Addresses, CONTROL_BYTES_MAX, CloseReason,
    ConnectionId, Control, Epoch, Features, Flags, HANDSHAKE_BYTES_MAX, HEADER_BYTES_MAX,
    Handshake, HandshakeFrame, Header, LinkIndex, LinkStatus, MessageNumber, OperationNumber,
    Parameters, PeerAddr, Prefix, RemoteKey, VERSION, encode_acks, encode_header,
};

use crate::random::Random;

/// Returns the common header of an overheard frame; `None` if the frame is not a connection frame.
pub(super) fn prefix_of(frame: &[u8]) -> Option<Prefix> {
    wire_edge::decode(frame).ok().map(|frame| frame.prefix)
}

/// Encodes a handshake frame.
pub(super) fn handshake(destination: u32, source: u32, body: Handshake<'_>) -> Vec<u8> {
    let (destination, source) = (ConnectionId(destination), ConnectionId(source));
    let frame = HandshakeFrame { version: VERSION, destination, source, body };
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let length = frame.encode(&mut bytes);
    bytes.truncate(length);
    bytes
}

/// Returns a Hello of an initiator with the connection id `source`. The same id always gives the
/// same parameters.
pub(super) fn hello(source: u32, cookie: [u8; 24]) -> Vec<u8> {
    let mut random = Random::new(u64::from(source));
    let parameters = parameters(&mut random);
    let body =
        Handshake::Hello { parameters, cookie, addresses: Addresses::NONE, private_data: STRANGE };
    handshake(0, source, body)
}

/// Returns a random answer to a Hello. The initiator that sent the Hello has the connection id
/// `destination`.
pub(super) fn answer(random: &mut Random, destination: u32) -> Vec<u8> {
    let mut cookie = [0; 24];
    random.fill(&mut cookie);
    let parameters = parameters(random);
    let body = match random.below(5) {
        0 => Handshake::Retry { cookie },
        1 => Handshake::Accept { parameters, addresses: Addresses::NONE, private_data: STRANGE },
        2 => Handshake::Reject {
            reason: wire_edge::RejectReason::Application,
            private_data: STRANGE,
        },
        3 => Handshake::Pending,
        _ => Handshake::VersionMismatch { lowest: 2, highest: 3 },
    };
    handshake(destination, random.next_u64() as u32, body)
}

/// Returns a frame of a version that no engine supports.
pub(super) fn other_version(random: &mut Random) -> Vec<u8> {
    let body = Handshake::Pending;
    let frame = HandshakeFrame {
        version: 2 + random.below(9) as u16,
        destination: ConnectionId(0),
        source: ConnectionId(random.next_u64() as u32),
        body,
    };
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let length = frame.encode(&mut bytes);
    bytes.truncate(length);
    // Most of these frames get the step of a Hello, because engines answer only a Hello.
    bytes[1] = if random.chance_ppm(700_000) { 1 } else { random.below(9) as u8 };
    bytes
}

/// Encodes a control frame with these messages.
pub(super) fn control(prefix: Prefix, messages: &[Control<'_>]) -> Vec<u8> {
    let mut frame = head(prefix, Header::Control);
    for message in messages {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let length = message.encode(&mut bytes);
        frame.extend_from_slice(&bytes[..length]);
    }
    frame
}

/// Returns a random control message that does harm if the receiver accepts it. The caller puts it
/// after a challenge in a frame.
pub(super) fn harmful(random: &mut Random, elsewhere: PeerAddr) -> Control<'static> {
    let link = LinkIndex(random.below(4) as u8);
    match random.below(8) {
        0 => Control::Ping,
        1 => Control::LinkStatus(link, LinkStatus::Down),
        2 => Control::LinkStatus(link, LinkStatus::Removed),
        3 => Control::LinkStatus(link, LinkStatus::Backup),
        4 => Control::Links(1 << random.below(16)),
        5 => Control::Address(elsewhere),
        6 => Control::Close {
            reason: CloseReason::Application,
            operation: OperationNumber(0),
            private_data: STRANGE,
        },
        _ => Control::CloseAck,
    }
}

/// Returns a random frame with forged content, of any kind except Control.
pub(super) fn content(
    random: &mut Random,
    prefix: Prefix,
    acknowledged: Option<Prefix>,
) -> Vec<u8> {
    let operation = OperationNumber(random.below(64) as u32);
    let (key, address) = (RemoteKey(random.next_u64() as u32), random.next_u64() >> 24);
    let last = Prefix { flags: Flags::LAST.with(Flags::ACK_NOW), ..prefix };
    let mut frame = match random.below(6) {
        0 | 1 => {
            let mut frame = head(prefix, Header::Ack);
            frame.extend(acknowledgement(random, acknowledged));
            return frame;
        }
        2 => {
            let header =
                Header::Write { operation, offset: 0, key, address: address + 1, immediate: None };
            head(last, header)
        }
        3 => {
            let message = MessageNumber(random.below(8) as u32);
            head(last, Header::Send { operation, offset: 0, message, immediate: None })
        }
        4 => head(last, Header::ReadResponse { operation, offset: 0 }),
        _ => {
            let length = random.below(1 << 20) as u32;
            return head(last, Header::ReadRequest { operation, length, key, address });
        }
    };
    let payload = random.between(1, 1_000) as usize;
    frame.resize(frame.len() + payload, 0x5a);
    frame
}

fn acknowledgement(random: &mut Random, of: Option<Prefix>) -> Vec<u8> {
    let blocks: Vec<AckBlock> = of
        .iter()
        .map(|of| AckBlock {
            link: of.link,
            marked: 0,
            delay: AckDelay(0),
            run: 1,
            largest: of.packet.wrapping_add(random.pick(&[0, 0, 0, 1_000])),
            words: 0,
            bitmap: [0; 8],
        })
        .collect();
    let mut out = [0; ACK_SECTION_BYTES_MAX];
    let delivered = OperationNumber(random.below(100) as u32);
    let length = encode_acks(delivered, MessageNumber(u32::MAX >> 2), &blocks, &mut out);
    out[..length].to_vec()
}

fn head(prefix: Prefix, header: Header) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let length = encode_header(&prefix, &header, &mut bytes);
    bytes[..length].to_vec()
}

fn parameters(random: &mut Random) -> Parameters {
    Parameters {
        incarnation: random.next_u64(),
        features: Features::NONE,
        epoch: Epoch(random.next_u64() as u16),
        links_max: random.between(1, 16) as u16,
        frame_bytes_max: random.pick(&[256, 1_472, 9_000]),
        read_depth: random.pick(&[0, 1, 64]),
        operation_window: random.pick(&[1, 256]),
        order_pool_bytes: random.pick(&[0, 65_536]),
        receive_buffer_bytes: random.pick(&[0, 65_536]),
        ack_delay_max_ns: random.pick(&[0, 25_000, u32::MAX]),
        receive_credit: MessageNumber(random.pick(&[0, 64])),
        service: 0,
    }
}

/// Private data of an attacker's request. It is not a valid invitation.
const STRANGE: &[u8] = b"strange";
