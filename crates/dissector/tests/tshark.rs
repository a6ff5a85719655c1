//! Compares the dissector with the decoder. For the same frames, the dissector must report the same
//! fields as the decoder.
//!
//! If `tshark` is not installed, the tests print a message and do nothing.

use std::fs;
use std::path::PathBuf;
use std::process::{self, Command};

use wire_edge::{
    ACK_SECTION_BYTES_MAX, AckBlock, AckDelay, Addresses, AtomicOpcode, CONTROL_BYTES_MAX,
    CloseReason, ConnectionId, Control, Epoch, Features, Flags, Frame, HANDSHAKE_BYTES_MAX,
    HEADER_BYTES_MAX, Handshake, HandshakeFrame, Header, LinkIndex, LinkStatus, MessageNumber,
    OperationNumber, Parameters, PatchRecord, PatchRecords, PeerAddr, Prefix, RejectReason,
    RemoteKey, VERSION, control_messages, decode, decode_handshake, encode_acks, encode_header,
};

#[test]
fn tshark_and_the_decoder_see_the_same_fields() {
    let frames = [handshakes(), connection_frames()].concat();
    // Every third connection frame uses a link on which no handshake was captured.
    let other_link = |index: usize| frames[index][0] != 0 && index.is_multiple_of(3);
    let port = |index| if other_link(index) { PORT + 1 } else { PORT };
    let Some(rows) = dissected("fields", &frames, port, &[]) else { return };
    assert_eq!(rows.len(), frames.len());
    for (row, bytes) in rows.iter().zip(&frames) {
        let expected = if bytes[0] == 0 {
            handshake_columns(&decode_handshake(bytes).expect("a valid frame"))
        } else {
            connection_columns(&decode(bytes).expect("a valid frame"))
        };
        for (column, value) in COLUMNS.iter().zip(row) {
            let wanted: Vec<u64> = expected
                .iter()
                .filter(|(name, _)| name == column)
                .map(|(_, value)| *value)
                .collect();
            assert_eq!(numbers(value), wanted, "{column} of {bytes:02x?}: {row:?}");
        }
        assert_eq!(row[COLUMNS.len()], "", "malformed: {row:?}");
        assert_ne!(row[COLUMNS.len() + 1], "", "no text for the Info column: {row:?}");
    }
}

#[test]
fn tshark_refuses_exactly_what_the_decoder_refuses() {
    let valid = [handshakes(), connection_frames()].concat();
    let mut random = Random(0x5eed);
    let frames: Vec<Vec<u8>> = (0..3000)
        .map(|index| {
            let mut bytes = valid[index % valid.len()].clone();
            for _ in 0..=random.below(3) {
                random.mutate(&mut bytes);
            }
            bytes
        })
        .collect();
    let preference = format!("ethernot.udp_port:{PORT}");
    let Some(rows) = dissected("mutated", &frames, |_| PORT, &["-o", &preference]) else { return };
    assert_eq!(rows.len(), frames.len());
    let mut refused = 0;
    for (row, bytes) in rows.iter().zip(&frames) {
        let verdict = verdict(bytes);
        refused += usize::from(verdict.is_err());
        let complaint = &row[COLUMNS.len()];
        assert_eq!(!complaint.is_empty(), verdict.is_err(), "{verdict:?} {row:?} {bytes:02x?}");
    }
    assert!((300..2700).contains(&refused), "{refused} of 3000 mutated frames are malformed");
}

/// Decodes the frame and its control messages like a receiver. Returns the first error.
fn verdict(bytes: &[u8]) -> Result<(), wire_edge::DecodeError> {
    if bytes.first().is_some_and(|byte| byte % 16 == 0) {
        return decode_handshake(bytes).map(drop);
    }
    let frame = decode(bytes)?;
    if frame.header == Header::Control {
        control_messages(frame.payload).try_for_each(|message| message.map(drop))?;
    }
    Ok(())
}

/// The columns to compare. tshark prints their numbers, and the test computes the same numbers from
/// the decoder's result.
const COLUMNS: &[&str] = &[
    "ethernot.kind",
    "ethernot.link",
    "ethernot.flags",
    "ethernot.epoch",
    "ethernot.connection",
    "ethernot.packet",
    "ethernot.operation",
    "ethernot.offset",
    "ethernot.length",
    "ethernot.opcode",
    "ethernot.message",
    "ethernot.key",
    "ethernot.address",
    "ethernot.immediate",
    "ethernot.operand",
    "ethernot.compare",
    "ethernot.value",
    "ethernot.ack.delivered",
    "ethernot.ack.credit",
    "ethernot.ack.block.link",
    "ethernot.ack.block.marked",
    "ethernot.ack.block.delay",
    "ethernot.ack.block.run",
    "ethernot.ack.block.largest",
    "ethernot.ack.block.bitmap",
    "ethernot.control.type",
    "ethernot.control.path.nonce",
    "ethernot.control.link_status.link",
    "ethernot.control.link_status.status",
    "ethernot.control.close.reason",
    "ethernot.control.close.operation",
    "ethernot.payload.length",
    "ethernot.address.port",
    "ethernot.handshake.step",
    "ethernot.handshake.version",
    "ethernot.handshake.destination",
    "ethernot.handshake.source",
    "ethernot.parameters.incarnation",
    "ethernot.parameters.features",
    "ethernot.parameters.epoch",
    "ethernot.parameters.links_max",
    "ethernot.parameters.frame_bytes_max",
    "ethernot.parameters.read_depth",
    "ethernot.parameters.operation_window",
    "ethernot.parameters.order_pool_bytes",
    "ethernot.parameters.receive_buffer_bytes",
    "ethernot.parameters.ack_delay_max_ns",
    "ethernot.parameters.receive_credit",
    "ethernot.parameters.service",
    "ethernot.handshake.reject.reason",
    "ethernot.handshake.reset.epoch",
    "ethernot.handshake.reset.packet",
    "ethernot.handshake.versions.lowest",
    "ethernot.handshake.versions.highest",
];

type Columns = Vec<(&'static str, u64)>;

fn connection_columns(frame: &Frame<'_>) -> Columns {
    let Prefix { kind, link, flags, epoch, connection, packet } = frame.prefix;
    let mut columns = vec![
        ("ethernot.kind", kind as u64),
        ("ethernot.link", link.0.into()),
        ("ethernot.flags", flags.bits().into()),
        ("ethernot.epoch", epoch.0.into()),
        ("ethernot.connection", connection.0.into()),
        ("ethernot.packet", packet.into()),
    ];
    header_columns(&frame.header, &mut columns);
    if let Some(acks) = &frame.acks {
        columns.push(("ethernot.ack.delivered", acks.delivered().0.into()));
        columns.push(("ethernot.ack.credit", acks.credit().0.into()));
        for block in acks.blocks() {
            columns.extend([
                ("ethernot.ack.block.link", block.link.0.into()),
                ("ethernot.ack.block.marked", block.marked.into()),
                ("ethernot.ack.block.delay", block.delay.0.into()),
                ("ethernot.ack.block.run", block.run.into()),
                ("ethernot.ack.block.largest", block.largest.into()),
            ]);
            let words = &block.bitmap[..block.words.into()];
            columns.extend(words.iter().map(|word| ("ethernot.ack.block.bitmap", *word)));
        }
    }
    match frame.header {
        Header::Control => {
            for message in control_messages(frame.payload) {
                control_columns(&message.expect("a valid message"), &mut columns);
            }
        }
        Header::Patch { .. } => {
            columns.push(("ethernot.payload.length", frame.payload.len() as u64));
            for (record, _) in PatchRecords::new(frame.payload) {
                columns.push(("ethernot.record.block", record.block.into()));
                columns.push(("ethernot.record.bitmap", record.bitmap.into()));
            }
        }
        Header::Write { .. }
        | Header::Send { .. }
        | Header::SendInvalidate { .. }
        | Header::ReadResponse { .. }
        | Header::Probe => {
            columns.push(("ethernot.payload.length", frame.payload.len() as u64));
        }
        _ => {}
    }
    columns
}

fn header_columns(header: &Header, columns: &mut Columns) {
    let mut column = |name, value| columns.push((name, value));
    match *header {
        Header::Ack | Header::Control | Header::Probe => {}
        Header::Write { operation, offset, key, address, immediate }
        | Header::Patch { operation, offset, key, address, immediate } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.offset", offset.into());
            column("ethernot.key", key.0.into());
            column("ethernot.address", address);
            if let Some(value) = immediate {
                column("ethernot.immediate", value.into());
            }
        }
        Header::ReadRequest { operation, length, key, address } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.length", length.into());
            column("ethernot.key", key.0.into());
            column("ethernot.address", address);
        }
        Header::ReadResponse { operation, offset } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.offset", offset.into());
        }
        Header::Send { operation, offset, message, immediate } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.offset", offset.into());
            column("ethernot.message", message.0.into());
            if let Some(value) = immediate {
                column("ethernot.immediate", value.into());
            }
        }
        Header::SendInvalidate { operation, offset, message, key } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.offset", offset.into());
            column("ethernot.message", message.0.into());
            if let Some(key) = key {
                column("ethernot.invalidated", key.0.into());
            }
        }
        Header::Atomic { operation, opcode, key, address, operand, compare } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.opcode", opcode as u64);
            column("ethernot.key", key.0.into());
            column("ethernot.address", address);
            column("ethernot.operand", operand);
            column("ethernot.compare", compare);
        }
        Header::AtomicResponse { operation, value } => {
            column("ethernot.operation", operation.0.into());
            column("ethernot.value", value);
        }
    }
}

fn control_columns(message: &Control<'_>, columns: &mut Columns) {
    let mut column = |name, value| columns.push((name, value));
    let kind = match *message {
        Control::Padding => 0,
        Control::Ping => 1,
        Control::PathChallenge(nonce) => {
            column("ethernot.control.path.nonce", nonce);
            2
        }
        Control::PathResponse(nonce) => {
            column("ethernot.control.path.nonce", nonce);
            3
        }
        Control::LinkStatus(link, status) => {
            column("ethernot.control.link_status.link", link.0.into());
            column("ethernot.control.link_status.status", status as u64);
            4
        }
        Control::Close { reason, operation, .. } => {
            column("ethernot.control.close.reason", reason.code().into());
            column("ethernot.control.close.operation", operation.0.into());
            5
        }
        Control::CloseAck => 6,
        Control::Address(address) => {
            let port = u16::from_be_bytes([address.0[2], address.0[3]]);
            column("ethernot.address.port", port.into());
            7
        }
        Control::Links(links) => {
            column("ethernot.control.links.links", links.into());
            8
        }
        Control::Gone(operation) => {
            column("ethernot.control.gone.operation", operation.0.into());
            9
        }
        Control::NotReady(message) => {
            column("ethernot.control.not_ready.message", message.0.into());
            10
        }
        Control::Ready => 11,
    };
    column("ethernot.control.type", kind);
}

fn handshake_columns(frame: &HandshakeFrame<'_>) -> Columns {
    let mut columns = vec![
        ("ethernot.handshake.step", frame.body.step().into()),
        ("ethernot.handshake.version", frame.version.into()),
        ("ethernot.handshake.destination", frame.destination.0.into()),
        ("ethernot.handshake.source", frame.source.0.into()),
    ];
    match &frame.body {
        Handshake::Hello { parameters, addresses, .. }
        | Handshake::Accept { parameters, addresses, .. } => {
            columns.extend([
                ("ethernot.parameters.incarnation", parameters.incarnation),
                ("ethernot.parameters.features", parameters.features.0),
                ("ethernot.parameters.epoch", parameters.epoch.0.into()),
                ("ethernot.parameters.links_max", parameters.links_max.into()),
                ("ethernot.parameters.frame_bytes_max", parameters.frame_bytes_max.into()),
                ("ethernot.parameters.read_depth", parameters.read_depth.into()),
                ("ethernot.parameters.operation_window", parameters.operation_window.into()),
                ("ethernot.parameters.order_pool_bytes", parameters.order_pool_bytes.into()),
                (
                    "ethernot.parameters.receive_buffer_bytes",
                    parameters.receive_buffer_bytes.into(),
                ),
                ("ethernot.parameters.ack_delay_max_ns", parameters.ack_delay_max_ns.into()),
                ("ethernot.parameters.receive_credit", parameters.receive_credit.0.into()),
                ("ethernot.parameters.service", parameters.service.into()),
            ]);
            let ports = addresses.iter().map(|a| u16::from_be_bytes([a.0[2], a.0[3]]));
            columns.extend(ports.map(|port| ("ethernot.address.port", port.into())));
        }
        Handshake::Reject { reason, .. } => {
            columns.push(("ethernot.handshake.reject.reason", reason.code().into()));
        }
        Handshake::Reset { epoch, packet } => {
            columns.push(("ethernot.handshake.reset.epoch", epoch.0.into()));
            columns.push(("ethernot.handshake.reset.packet", (*packet).into()));
        }
        Handshake::VersionMismatch { lowest, highest } => {
            columns.push(("ethernot.handshake.versions.lowest", (*lowest).into()));
            columns.push(("ethernot.handshake.versions.highest", (*highest).into()));
        }
        Handshake::Retry { .. } | Handshake::Pending => {}
    }
    columns
}

/// Returns the handshake frames of a connection, each kind once. They contain the connection id and
/// epoch of [`connection_frames`].
fn handshakes() -> Vec<Vec<u8>> {
    let parameters = Parameters {
        incarnation: 0x0123_4567_89ab_cdef,
        features: Features::WHOLE_ADDRESS_SPACE,
        epoch: EPOCH,
        links_max: 4,
        frame_bytes_max: 1472,
        read_depth: 16,
        operation_window: 256,
        order_pool_bytes: 1 << 20,
        receive_buffer_bytes: 1 << 18,
        ack_delay_max_ns: 100_000,
        receive_credit: MessageNumber(32),
        service: 0,
    };
    let addresses = [
        PeerAddr::from(std::net::SocketAddr::from(([10, 0, 0, 1], 4791))),
        PeerAddr::from(std::net::SocketAddr::from(([0xfe80, 0, 0, 0, 0, 0, 0, 1], 5000))),
        PeerAddr([1, 0, 0, 0, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    let addresses = Addresses::from_slice(&addresses);
    let cookie = [0xc0; 24];
    let hello_parameters = Parameters { service: 7, ..parameters };
    let bodies = [
        Handshake::Hello {
            parameters: hello_parameters,
            cookie: [0; 24],
            addresses: Addresses::NONE,
            private_data: b"",
        },
        Handshake::Retry { cookie },
        Handshake::Hello {
            parameters: hello_parameters,
            cookie,
            addresses,
            private_data: b"from the application",
        },
        Handshake::Pending,
        Handshake::Accept { parameters, addresses, private_data: b"welcome" },
        Handshake::Reject { reason: RejectReason::NoListener, private_data: b"sorry" },
        Handshake::Reject { reason: RejectReason::Other(99), private_data: b"" },
        Handshake::Reset { epoch: EPOCH, packet: 77 },
        Handshake::VersionMismatch { lowest: 1, highest: 3 },
    ];
    let frames = bodies.map(|body| {
        let frame = HandshakeFrame {
            version: VERSION,
            destination: ConnectionId(0),
            source: CONNECTION,
            body,
        };
        let mut out = [0; HANDSHAKE_BYTES_MAX];
        let length = frame.encode(&mut out);
        out[..length].to_vec()
    });
    frames.to_vec()
}

/// Returns connection frames of every kind, with and without all optional parts.
fn connection_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (packet, (flags, header, payload)) in (0..).zip(headers_and_payloads()) {
        for block_count in [None, Some(0), Some(2), Some(16)] {
            if block_count.is_some() && header == Header::Probe
                || block_count.is_none() && header == Header::Ack
            {
                continue;
            }
            let flags = if block_count.is_some() { flags.with(Flags::ACK) } else { flags };
            let prefix = Prefix {
                kind: header.kind(),
                link: LinkIndex((packet % 16) as u8),
                flags,
                epoch: EPOCH,
                connection: CONNECTION,
                packet,
            };
            let mut out = [0; HEADER_BYTES_MAX];
            let length = encode_header(&prefix, &header, &mut out);
            let mut frame = out[..length].to_vec();
            if let Some(count) = block_count {
                frame.extend(ack_section(count));
            }
            frame.extend_from_slice(&payload);
            frames.push(frame);
        }
    }
    frames
}

/// Returns headers of every kind, each with a payload that is permitted after this header.
fn headers_and_payloads() -> Vec<(Flags, Header, Vec<u8>)> {
    let (operation, key, address) = (OperationNumber(9), RemoteKey(0xdead_beef), 0x7fff_1234_5678);
    let (message, offset) = (MessageNumber(5), 1440);
    let (last, none) = (Flags::LAST, Flags::NONE);
    let bytes = || vec![0xa5; 100];
    let write = |immediate| Header::Write { operation, offset, key, address, immediate };
    let patch = |immediate| Header::Patch { operation, offset, key, address, immediate };
    let records = || {
        let one = PatchRecord { block: 3, bitmap: 0x8000_0001 }.encode();
        let two = PatchRecord { block: u16::MAX, bitmap: 1 << 4 }.encode();
        [&one[..], &[0xa5; 8], &two, &[0x5a; 4]].concat()
    };
    let send = |immediate| Header::Send { operation, offset, message, immediate };
    let invalidate = |key| Header::SendInvalidate { operation, offset, message, key };
    let atomic = |opcode, compare| Header::Atomic {
        operation,
        opcode,
        key,
        address,
        operand: u64::MAX,
        compare,
    };
    let empty = Header::Write { operation, offset: 0, key, address, immediate: Some(0) };
    let read = Header::ReadRequest { operation, length: 1 << 31, key, address };
    vec![
        (none, Header::Ack, vec![]),
        (none, Header::Control, every_control_message()),
        (none, write(None), bytes()),
        (last.with(Flags::FENCE_BEFORE).with(Flags::FENCE_AFTER), write(None), bytes()),
        (last.with(Flags::SOLICITED), write(Some(42)), bytes()),
        (last, empty, vec![]),
        (Flags::STRICT, read, vec![]),
        (Flags::ACK_NOW, Header::ReadResponse { operation, offset }, bytes()),
        (none, send(None), bytes()),
        (last, send(Some(u32::MAX)), bytes()),
        (none, invalidate(None), bytes()),
        (last, invalidate(Some(key)), bytes()),
        (none, atomic(AtomicOpcode::FetchAdd, 0), vec![]),
        (none, atomic(AtomicOpcode::CompareSwap, 3), vec![]),
        (none, atomic(AtomicOpcode::Swap, 0), vec![]),
        (none, patch(None), records()),
        (last, patch(Some(42)), records()),
        (none, Header::AtomicResponse { operation, value: 1 << 63 }, vec![]),
        (none, Header::Probe, bytes()),
        (none, Header::Probe, vec![]),
    ]
}

/// Returns control messages of every kind, one after another.
fn every_control_message() -> Vec<u8> {
    let mut control = Vec::new();
    for message in [
        Control::Padding,
        Control::Ping,
        Control::PathChallenge(0xfeed_f00d_0bad_cafe),
        Control::PathResponse(1),
        Control::LinkStatus(LinkIndex(3), LinkStatus::Backup),
        Control::Close {
            reason: CloseReason::UnknownKey,
            operation: OperationNumber(12),
            private_data: b"why",
        },
        Control::CloseAck,
        Control::Address(PeerAddr::from(std::net::SocketAddr::from(([10, 0, 0, 2], 99)))),
        Control::Links(0b1001),
        Control::Gone(OperationNumber(7)),
        Control::NotReady(MessageNumber(3)),
        Control::Ready,
    ] {
        let mut out = [0; CONTROL_BYTES_MAX];
        let length = message.encode(&mut out);
        control.extend_from_slice(&out[..length]);
    }
    control
}

fn ack_section(blocks: u8) -> Vec<u8> {
    let blocks: Vec<AckBlock> = (0..blocks)
        .map(|link| {
            let words = link % 9;
            let mut bitmap = [0; 8];
            bitmap[..words.into()].fill(0xffff_0000_ffff_fffe);
            let (marked, delay, run) = (u16::from(link), AckDelay(300), 1 + u16::from(link));
            AckBlock { link: LinkIndex(link), marked, delay, run, largest: 1000, words, bitmap }
        })
        .collect();
    let mut out = [0; ACK_SECTION_BYTES_MAX];
    let length = encode_acks(OperationNumber(8), MessageNumber(40), &blocks, &mut out);
    out[..length].to_vec()
}

const EPOCH: Epoch = Epoch(0xbeef);
const CONNECTION: ConnectionId = ConnectionId(0x00c0_ffee);
/// UDP port of the frames in the capture. No socket uses it.
const PORT: u16 = 47_910;

/// Returns the text that tshark prints for each frame: [`COLUMNS`], messages about errors, and the
/// Info column. Returns `None` if tshark is not installed.
fn dissected(
    name: &str,
    frames: &[Vec<u8>],
    port: impl Fn(usize) -> u16,
    options: &[&str],
) -> Option<Vec<Vec<String>>> {
    let capture = std::env::temp_dir().join(format!("ethernot-{}-{name}.pcap", process::id()));
    fs::write(&capture, pcap(frames, port)).expect("the capture can be written");
    let script: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "tools", "wireshark", "ethernot.lua"]
            .iter()
            .collect();
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(&capture);
    command.arg("-X").arg(format!("lua_script:{}", script.display()));
    command.args(options).args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
    for column in COLUMNS.iter().chain(&["_ws.expert.message", "_ws.col.Info"]) {
        command.args(["-e", column]);
    }
    let result = command.output();
    fs::remove_file(&capture).expect("the capture can be removed");
    let output = match result {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: tshark does not start: {error}");
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaints.contains("Lua"), "tshark: {complaints}");
    let printed = String::from_utf8(output.stdout).expect("tshark prints UTF-8");
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    Some(printed.lines().map(row).collect())
}

/// Returns the numbers in a column, which are decimal or hexadecimal and separated by commas.
fn numbers(column: &str) -> Vec<u64> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
        None => text.parse(),
    };
    let texts = column.split(',').filter(|text| !text.is_empty());
    texts.map(|text| number(text).unwrap_or_else(|_| panic!("{text:?} is no number"))).collect()
}

/// Returns a capture file with one UDP datagram per frame.
fn pcap(frames: &[Vec<u8>], port: impl Fn(usize) -> u16) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0x0004_0000, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for (index, frame) in frames.iter().enumerate() {
        let datagram = datagram(frame, port(index));
        let length = datagram.len() as u32;
        for word in [index as u32, 0, length, length] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&datagram);
    }
    file
}

/// Returns a packet with Ethernet, IPv4 and UDP headers without checksums, followed by the frame.
fn datagram(frame: &[u8], port: u16) -> Vec<u8> {
    let udp_bytes = 8 + frame.len() as u16;
    let ip_bytes = 20 + udp_bytes;
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    bytes.extend_from_slice(&[0x45, 0]);
    bytes.extend_from_slice(&ip_bytes.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    for half in [port, port, udp_bytes, 0] {
        bytes.extend_from_slice(&half.to_be_bytes());
    }
    bytes.extend_from_slice(frame);
    bytes
}

/// A xorshift generator, so that every run makes the same mutations.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len().max(1));
        // Half of the mutations change the first 50 bytes, because most rules concern headers.
        let at = if self.below(2) == 0 { at.min(self.below(50)) } else { at };
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.resize(bytes.len() + 1 + self.below(20), 0),
            2 => {
                let end = bytes.len().min(at + [4, 8][self.below(2)]);
                bytes[at..end].fill([0, 0xff][self.below(2)]);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = [0, 1, 0xff, *byte ^ 0x80, self.below(256) as u8][self.below(5)];
                }
            }
        }
        // Avoid an empty datagram, which tshark does not pass to the dissector.
        if bytes.is_empty() {
            bytes.push(1);
        }
    }
}
