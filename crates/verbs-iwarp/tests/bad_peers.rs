//! Tests of peers that break rules of iWARP, or end the connection at any point. The peer is a TCP
//! socket of the test.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mem::Buffer;
use nix::errno::Errno;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rdma_cm::{AcceptOptions, EventChannel, EventKind, Id, ManagedHost, PortSpace};
use verbs::{
    AccessFlags, CompletionQueue, CompletionStatus, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairInit, QueuePairLimits, QueuePairState, QueuePairType, ReceiveRequest, ScatterGather,
};
use verbs_iwarp::Settings;
use wire_iwarp::{
    Cause, Crc, EnhancedSetup, LENGTH_BYTES, Opcode, Parsed, QueueNumber, ReadRequest, Revision,
    SEGMENT_HEADER_BYTES_MAX, SETUP_FRAME_BYTES_MAX, Segment, SetupFlags, SetupFrame, SetupKind,
    Stag, Trailer, decode_segment, decode_setup, decode_terminate, encode_length,
};

/// Receives that the server posts for each connection, and their length in bytes.
const RECEIVES: u64 = 3;
const RECEIVE_BYTES: u32 = 64;

/// Reads that the server answers at a time.
const IRD: u16 = 1;

/// A program that listens.
struct Server {
    channel: Arc<EventChannel>,
    _listener: Arc<Id>,
    at: SocketAddr,
}

/// A connection of the server, and the program's objects for it.
struct Connection {
    id: Arc<Id>,
    queue_pair: Arc<QueuePair>,
    queue: Arc<CompletionQueue>,
    buffer: Arc<Buffer>,
    /// Regions that the peer may write, read, and neither.
    writable: Arc<MemoryRegion>,
    readable: Arc<MemoryRegion>,
    shut: Arc<MemoryRegion>,
    /// A region that the peer of another protection domain may write.
    foreign: Arc<MemoryRegion>,
}

impl Server {
    fn new() -> Self {
        let managed = verbs_iwarp::device(Settings::new("iwarp0")).expect("the host has one");
        let host = ManagedHost::new(vec![managed]);
        let channel = EventChannel::new(&host).expect("a channel");
        let listener = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
        listener.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        listener.listen(8).expect("it listens");
        let at = listener.local().expect("an address");
        Self { channel, _listener: listener, at }
    }

    fn peer(&self) -> TcpStream {
        let peer = TcpStream::connect(self.at).expect("it listens");
        peer.set_read_timeout(Some(Duration::from_mins(1))).expect("a time");
        peer.set_nodelay(true).expect("an option of TCP");
        peer
    }

    /// Waits for the next event, which must have this kind. Returns its id.
    fn got(&self, kind: EventKind) -> Arc<Id> {
        let event = self.channel.get().expect("there is an event");
        event.acknowledge();
        assert_eq!(event.kind, kind, "{event:?}");
        event.id
    }

    /// Connects a peer with a request that has these flags.
    fn connected(&self, flags: SetupFlags) -> (Connection, TcpStream) {
        let mut peer = self.peer();
        peer.write_all(&request(flags)).expect("it is connected");
        (self.accept(&mut peer), peer)
    }

    /// Accepts the request of a peer, with receives.
    fn accept(&self, peer: &mut TcpStream) -> Connection {
        let id = self.got(EventKind::ConnectRequest);
        let context = id.device().expect("a device").open().expect("it opens");
        let queue = context.create_completion_queue(64, None).expect("a queue");
        let domain = context.allocate_domain().expect("a domain");
        let queue_pair = domain.create_queue_pair(&init(&queue)).expect("a queue pair");
        id.take_queue_pair(&queue_pair).expect("it is in RESET");
        let buffer = Buffer::new(4096);
        let local = AccessFlags::LOCAL_WRITE;
        let writing = AccessFlags(local.0 | AccessFlags::REMOTE_WRITE.0);
        let writable = region(&domain, &buffer, writing);
        let readable = region(&domain, &buffer, AccessFlags::REMOTE_READ);
        let shut = region(&domain, &buffer, local);
        let foreign = region(&context.allocate_domain().expect("a domain"), &buffer, writing);
        let (length, key) = (RECEIVE_BYTES, shut.key());
        for number in 0..RECEIVES {
            let address = buffer.address() + 2048 + number * u64::from(RECEIVE_BYTES);
            let pieces = &[ScatterGather { address, length, key }];
            let receive = ReceiveRequest { id: number, pieces };
            queue_pair.post_receive(&[receive]).map_err(|(_, error)| error).expect("room");
        }
        let accepted = rdma_cm::ConnectOptions {
            responder_resources: Some(IRD as u8),
            initiator_depth: Some(1),
            ..rdma_cm::ConnectOptions::default()
        };
        let accepted = AcceptOptions { options: Some(accepted), ..AcceptOptions::default() };
        id.accept(&accepted).expect("a request waits");
        self.got(EventKind::Established);
        let mut reply = [0; 24];
        peer.read_exact(&mut reply).expect("a reply");
        let reply = decode_setup(SetupKind::Reply, &reply).expect("a reply");
        let Parsed::Complete { frame, .. } = reply else { panic!("half a reply") };
        assert!(!frame.flags.reject && frame.enhanced.is_some());
        Connection { id, queue_pair, queue, buffer, writable, readable, shut, foreign }
    }

    /// Shows that a connection has ended with an event, with its queue pair in ERR, and with each of
    /// its receives reported once: those of `done` with these outcomes, the others flushed.
    #[track_caller]
    fn expect_ended(&self, connection: &Connection, done: &[CompletionStatus]) {
        let id = self.got(EventKind::Disconnected);
        assert!(Arc::ptr_eq(&id, &connection.id));
        assert_eq!(connection.queue_pair.state(), QueuePairState::Error);
        let mut completions = [verbs::WorkCompletion::default(); 8];
        let count = connection.queue.poll(&mut completions).expect("no overrun");
        let found: Vec<_> = completions[..count].iter().map(|one| (one.id, one.status)).collect();
        let rest = std::iter::repeat(&CompletionStatus::Flushed);
        let expected = (0..RECEIVES).zip(done.iter().chain(rest).copied());
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    /// Shows that the server still accepts connections.
    fn expect_well(&self) {
        let (connection, mut peer) = self.connected(plain());
        let hello = fpdu(&send(1, 0, true), b"hello", false);
        peer.write_all(&hello).expect("it is connected");
        peer.shutdown(Shutdown::Write).expect("it is connected");
        self.expect_ended(&connection, &[CompletionStatus::Success]);
        let mut content = [0; 5];
        connection.buffer.read(2048, &mut content);
        assert_eq!(&content, b"hello");
    }
}

impl Connection {
    /// Returns the FPDU of a Write of 4 bytes.
    fn write(&self, last: bool, stag: u32, offset: u64) -> Vec<u8> {
        let offset = self.buffer.address().wrapping_add(offset);
        fpdu(&Segment::tagged(Opcode::Write, last, Stag(stag), offset), b"data", false)
    }

    /// Returns the FPDU of a Read Request of 4 bytes.
    fn read_request(&self, msn: u32, source: &MemoryRegion) -> Vec<u8> {
        let queue = QueueNumber::ReadRequest;
        let segment = Segment::untagged(Opcode::ReadRequest, true, queue, msn, 0);
        let source_offset = self.buffer.address();
        let (sink_stag, sink_offset, size) = (Stag(1), 0, 4);
        let source_stag = Stag(source.key());
        let request = ReadRequest { sink_stag, sink_offset, size, source_stag, source_offset };
        fpdu(&segment, &request.encode(), false)
    }
}

/// Returns the causes in the Terminates that the peer reads before the connection ends.
fn terminates(peer: &mut TcpStream) -> Vec<wire_iwarp::ErrorCode> {
    let mut bytes = Vec::new();
    match peer.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    let mut found = Vec::new();
    let mut rest = &bytes[..];
    while let Some((length, _)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let length = u16::from_be_bytes(*length);
        let (fpdu, after) = rest.split_at(wire_iwarp::FpduLayout::of(length).total);
        let ulpdu = &fpdu[LENGTH_BYTES..LENGTH_BYTES + usize::from(length)];
        let (segment, payload) = decode_segment(ulpdu).expect("a segment");
        if segment.opcode == Opcode::Terminate {
            found.push(decode_terminate(&ulpdu[payload], false).expect("a Terminate").error);
        }
        rest = after;
    }
    found
}

fn init(queue: &Arc<CompletionQueue>) -> QueuePairInit {
    QueuePairInit {
        service: QueuePairType::Reliable,
        send_queue: Arc::clone(queue),
        receive_queue: Arc::clone(queue),
        shared_queue: None,
        limits: QueuePairLimits {
            sends: 4,
            receives: RECEIVES as u32,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
        },
        signals_all: true,
    }
}

fn region(
    domain: &Arc<ProtectionDomain>,
    buffer: &Arc<Buffer>,
    rights: AccessFlags,
) -> Arc<MemoryRegion> {
    let start = buffer.address();
    domain.register(start as usize, 4096, start, rights).expect("it is there")
}

fn plain() -> SetupFlags {
    SetupFlags { enhanced: true, ..SetupFlags::default() }
}

/// Returns a request without peer-to-peer mode.
fn request(flags: SetupFlags) -> Vec<u8> {
    let frame = SetupFrame {
        kind: SetupKind::Request,
        revision: Revision::Two,
        flags,
        enhanced: Some(EnhancedSetup { ird: 1, ord: IRD, ..EnhancedSetup::default() }),
        private_data: &[],
    };
    let mut bytes = [0; SETUP_FRAME_BYTES_MAX];
    let length = frame.encode(&mut bytes).expect("it fits");
    bytes[..length].to_vec()
}

fn send(msn: u32, mo: u32, last: bool) -> Segment {
    Segment::untagged(Opcode::Send, last, QueueNumber::Send, msn, mo)
}

fn fpdu(segment: &Segment, payload: &[u8], has_crc: bool) -> Vec<u8> {
    let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
    let length = segment.encode(&mut header);
    raw_fpdu(&[&header[..length], payload].concat(), has_crc)
}

fn raw_fpdu(ulpdu: &[u8], has_crc: bool) -> Vec<u8> {
    let length = ulpdu.len() as u16;
    let mut bytes = encode_length(length).to_vec();
    bytes.extend(ulpdu);
    let mut crc = Crc::new();
    crc.update(&bytes);
    bytes.extend(Trailer::new(length, has_crc.then_some(crc)).as_bytes());
    bytes
}

/// Makes the kernel reset the connection of a peer.
fn reset(peer: TcpStream) {
    let at_once = linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&peer, sockopt::Linger, &at_once).expect("an option of sockets");
    drop(peer);
}

/// A fault of a peer: its FPDUs, and the cause that the Terminate must name.
type Fault = (&'static str, fn(&Connection) -> Vec<u8>, Cause);

const FAULTS: [Fault; 20] = [
    ("version of DDP", |_| raw_fpdu(&[0x42; 40], false), Cause::UntaggedVersion),
    ("length below a header", |_| raw_fpdu(&[0xc1], false), Cause::MpaMarkerAndLength),
    (
        "opcode 8",
        |_| raw_fpdu(&[&[0x41, 0x48][..], &[0; 16]].concat(), false),
        Cause::OperationOpcode,
    ),
    ("unknown STag", |on| on.write(true, on.writable.key() ^ 0x5a5a_5a00, 0), Cause::TaggedStag),
    ("bounds", |on| on.write(true, on.writable.key(), 4093), Cause::TaggedBounds),
    (
        "offset that wraps",
        |on| on.write(true, on.writable.key(), (u64::MAX - 1).wrapping_sub(on.buffer.address())),
        Cause::TaggedWrap,
    ),
    ("right to read", |on| on.read_request(1, &on.writable), Cause::ProtectionAccess),
    ("right to write", |on| on.write(true, on.readable.key(), 0), Cause::ProtectionAccess),
    ("no right at all", |on| on.write(true, on.shut.key(), 0), Cause::ProtectionAccess),
    (
        "STag of another protection domain",
        |on| on.write(true, on.foreign.key(), 0),
        Cause::TaggedStream,
    ),
    (
        "read of another protection domain",
        |on| on.read_request(1, &on.foreign),
        Cause::ProtectionStream,
    ),
    (
        "more reads than granted",
        |on| [on.read_request(1, &on.readable), on.read_request(2, &on.readable)].concat(),
        Cause::UntaggedNoBuffer,
    ),
    ("MSN behind", |_| fpdu(&send(0, 0, true), b"x", false), Cause::UntaggedMsn),
    ("MSN ahead", |_| fpdu(&send(2, 0, true), b"x", false), Cause::UntaggedMsn),
    ("MO with a gap", |_| fpdu(&send(1, 1, true), b"x", false), Cause::UntaggedMo),
    ("MSN of a Read Request ahead", |on| on.read_request(2, &on.readable), Cause::UntaggedMsn),
    (
        "answer to no read",
        |on| {
            let stag = Stag(on.writable.key());
            fpdu(&Segment::tagged(Opcode::ReadResponse, true, stag, 0), b"data", false)
        },
        Cause::OperationOpcode,
    ),
    (
        "invalidation of an unknown STag",
        |_| {
            let segment = Segment::untagged(Opcode::SendInvalidate, true, QueueNumber::Send, 1, 0);
            fpdu(&segment, b"x", false)
        },
        Cause::ProtectionInvalidate,
    ),
    (
        "Send on the queue of Read Requests",
        |_| {
            fpdu(
                &Segment::untagged(Opcode::Send, true, QueueNumber::ReadRequest, 1, 0),
                b"x",
                false,
            )
        },
        Cause::UntaggedQueueNumber,
    ),
    (
        "Read Request that is too short",
        |_| {
            let queue = QueueNumber::ReadRequest;
            fpdu(&Segment::untagged(Opcode::ReadRequest, true, queue, 1, 0), &[0; 20], false)
        },
        Cause::OperationUnspecified,
    ),
];

#[test]
fn a_fault_of_the_peer_is_named_in_a_terminate_and_flushes_everything() {
    let server = Server::new();
    for (name, bytes, cause) in FAULTS {
        println!("{name}");
        let (connection, mut peer) = server.connected(plain());
        let bytes = bytes(&connection);
        peer.write_all(&bytes).expect("it is connected");
        assert_eq!(terminates(&mut peer), [cause.error_code()], "{name}");
        server.expect_ended(&connection, &[]);
    }
    server.expect_well();
}

#[test]
fn a_wrong_crc_is_named_in_a_terminate_and_flushes_everything() {
    let server = Server::new();
    let (connection, mut peer) = server.connected(SetupFlags { crc: true, ..plain() });
    let mut bytes = fpdu(&send(1, 0, true), b"data", true);
    bytes[21] ^= 1;
    peer.write_all(&bytes).expect("it is connected");
    assert_eq!(terminates(&mut peer), [Cause::MpaCrc.error_code()]);
    server.expect_ended(&connection, &[]);
    server.expect_well();
}

#[test]
fn a_message_without_a_receive_ends_the_connection() {
    let server = Server::new();
    let (connection, mut peer) = server.connected(plain());
    for msn in 1..=RECEIVES as u32 + 1 {
        let bytes = fpdu(&send(msn, 0, true), b"x", false);
        peer.write_all(&bytes).expect("it is connected");
    }
    assert_eq!(terminates(&mut peer), [Cause::UntaggedNoBuffer.error_code()]);
    server.expect_ended(&connection, &[CompletionStatus::Success; RECEIVES as usize]);
}

#[test]
fn a_message_waits_until_the_program_posts_a_receive() {
    let server = Server::new();
    let (connection, mut peer) = server.connected(plain());
    let last = RECEIVES as u32 + 1;
    for msn in 1..=last {
        let bytes = fpdu(&send(msn, 0, true), b"x", false);
        peer.write_all(&bytes).expect("it is connected");
    }
    let mut completions = [verbs::WorkCompletion::default(); 8];
    let mut done = 0;
    while done < RECEIVES as usize {
        done += connection.queue.poll(&mut completions).expect("no overrun");
    }
    let receive = ReceiveRequest { id: 77, pieces: &[] };
    connection.queue_pair.post_receive(&[receive]).map_err(|(_, error)| error).expect("room");
    // The message is too long for this receive, which shows that the receive was used.
    assert_eq!(terminates(&mut peer), [Cause::UntaggedTooLong.error_code()]);
    let count = connection.queue.poll(&mut completions).expect("no overrun");
    let found: Vec<_> = completions[..count].iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(found, [(77, CompletionStatus::LocalLength)]);
}

#[test]
fn a_message_that_is_too_long_ends_its_receive_with_the_reason() {
    let server = Server::new();
    let (connection, mut peer) = server.connected(plain());
    let bytes = fpdu(&send(1, 0, true), &[7; RECEIVE_BYTES as usize + 1], false);
    peer.write_all(&bytes).expect("it is connected");
    assert_eq!(terminates(&mut peer), [Cause::UntaggedTooLong.error_code()]);
    server.expect_ended(&connection, &[CompletionStatus::LocalLength]);
    let mut content = [0; 1];
    connection.buffer.read(2048, &mut content);
    assert_eq!(content, [0], "nothing is placed");
}

#[test]
fn a_terminate_in_the_middle_of_a_message_flushes_everything() {
    let server = Server::new();
    let (connection, mut peer) = server.connected(plain());
    let terminate = Segment::untagged(Opcode::Terminate, true, QueueNumber::Terminate, 1, 0);
    let bytes = [
        fpdu(&send(1, 0, false), b"half", false),
        connection.write(false, connection.writable.key(), 0),
        fpdu(&terminate, &[0x12, 0x02, 0, 0], false),
    ];
    peer.write_all(&bytes.concat()).expect("it is connected");
    assert_eq!(terminates(&mut peer), []);
    server.expect_ended(&connection, &[]);
    server.expect_well();
}

#[test]
fn a_connection_that_the_peer_half_closes_or_resets_at_any_byte_is_flushed() {
    let server = Server::new();
    let bytes = fpdu(&send(1, 0, true), b"message", false);
    for end in 0..bytes.len() {
        for is_reset in [false, true] {
            let (connection, mut peer) = server.connected(plain());
            peer.write_all(&bytes[..end]).expect("it is connected");
            if is_reset {
                reset(peer);
            } else {
                peer.shutdown(Shutdown::Write).expect("it is connected");
                assert_eq!(terminates(&mut peer), []);
            }
            server.expect_ended(&connection, &[]);
        }
    }
    server.expect_well();
}

#[test]
fn a_request_that_dribbles_in_is_answered() {
    let server = Server::new();
    let mut peer = server.peer();
    for byte in request(plain()) {
        peer.write_all(&[byte]).expect("it is connected");
    }
    let connection = server.accept(&mut peer);
    peer.shutdown(Shutdown::Write).expect("it is connected");
    server.expect_ended(&connection, &[]);
}

#[test]
fn a_request_that_never_ends_is_given_up() {
    let server = Server::new();
    let mut peer = server.peer();
    peer.write_all(&request(plain())[..23]).expect("it is connected");
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).expect("the device closes the connection");
    assert_eq!(answer, [0_u8; 0]);
    server.expect_well();
}

#[test]
fn a_bad_request_and_bytes_behind_a_request_are_not_answered() {
    let server = Server::new();
    let right = request(plain());
    let with = |at: usize, byte: u8| {
        let mut bytes = right.clone();
        bytes[at] = byte;
        bytes
    };
    let fpdu = fpdu(&send(1, 0, true), b"early", false);
    let early = [right.clone(), fpdu].concat();
    // A byte of the key, the revision, lengths that are too short for the words and too long.
    for bytes in [with(7, b'x'), with(17, 3), with(19, 3), with(18, 3), early] {
        let mut peer = server.peer();
        peer.write_all(&bytes).expect("it is connected");
        let mut answer = Vec::new();
        match peer.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert_eq!(answer, [0_u8; 0]);
    }
    server.expect_well();
}

#[test]
fn a_reset_at_any_byte_of_the_request_does_not_disturb_the_server() {
    let server = Server::new();
    let request = request(plain());
    for end in 0..request.len() {
        let mut peer = server.peer();
        peer.write_all(&request[..end]).expect("it is connected");
        reset(peer);
    }
    server.expect_well();
}

#[test]
fn a_port_of_another_tcp_server_is_in_use() {
    let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let managed = verbs_iwarp::device(Settings::new("iwarp0")).expect("the host has one");
    let host = ManagedHost::new(vec![managed]);
    let channel = EventChannel::new(&host).expect("a channel");
    let id = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
    let refused = id.bind(stranger.local_addr().expect("it is bound"));
    let Err(verbs::Error::System { number, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(number, Errno::EADDRINUSE as i32);
}
