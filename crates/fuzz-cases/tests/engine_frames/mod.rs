//! Runs two engines with a connection, which they have set up by a real handshake. The input bytes
//! decide what happens to the engines and their frames: an attacker between the engines drops,
//! repeats, changes and forges frames; time passes; drivers refuse frames.
//!
//! In addition to the connection, the engines open and close datagram ports, and send datagrams
//! between these ports.
//!
//! The test checks these properties:
//!
//! - No code panics.
//! - A peer changes only bytes for which it has rights.
//! - Every operation completes exactly once.
//! - After an engine has run, no timer is in the past.
//! - After the connections are closed, every record is free.
use std::sync::Arc;

use delivery::{Evidence, Instant, LinkEvent, LinkId};
use engine::{DatagramPort, Emitted, Engine, EngineConfig, OutgoingDatagram, PortRequest};
use mem::{Buffer, Rights};
use pair::{Flight, Host, LinkPlan, Pair, address, caps};
use semantics::{
    CompletionKind, CompletionQueue, OperationFlags, Order, Piece, PieceList, PoolLimits, Request,
};
use wire_edge::{
    ACK_SECTION_BYTES_MAX, AckBlock, AckDelay, Addresses, AtomicOpcode, CONTROL_BYTES_MAX,
    CloseReason, ConnectionId, Control, Epoch, Features, Flags, HANDSHAKE_BYTES_MAX,
    HEADER_BYTES_MAX, Handshake, HandshakeFrame, Header, LinkIndex, LinkStatus, MessageNumber,
    Moved, OperationNumber, Parameters, PatchRecord, PeerAddr, Prefix, QueuePairNumber,
    RejectReason, RemoteKey, encode_acks, encode_header,
};

#[path = "../../../engine/tests/pair/mod.rs"]
mod pair;

/// Size of the registered memory of each host, in bytes.
const MEMORY_BYTES: u64 = 16 * 1024;

/// Maximum number of steps of one run. With this number, a run can reach any state and is still
/// short.
const STEPS_MAX: usize = 300;

/// The input bytes that decide what happens. Reading past the last byte returns zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// Returns mostly a number below 16, sometimes any number.
    fn small(&mut self) -> u32 {
        match self.u8() {
            byte @ 0..=0xdf => u32::from(byte % 16),
            0xe0..=0xef => u32::from(self.u16()),
            _ => self.u32(),
        }
    }
}

/// The datagram ports of a host, and how many operations were posted and have completed.
struct Ports {
    open: Vec<DatagramPort>,
    queue: Arc<CompletionQueue>,
    posted: u64,
    done: u64,
}

/// Returns one of four queue pair numbers.
fn port_number(byte: u8) -> QueuePairNumber {
    QueuePairNumber::new(u32::from(byte & 3) * 0x3f_ffff + 1).unwrap()
}

fn group_address() -> PeerAddr {
    PeerAddr::from(std::net::SocketAddr::from(([239, 1, 2, 3], 5)))
}

impl Ports {
    fn new(host: &mut Host) -> Self {
        let queue = Arc::new(CompletionQueue::new(8192));
        let mut ports = Self { open: Vec::new(), queue, posted: 0, done: 0 };
        ports.open(host, 0);
        ports
    }

    fn open(&mut self, host: &mut Host, byte: u8) {
        let (send, receive) = (Arc::clone(&self.queue), Arc::clone(&self.queue));
        let number = port_number(byte);
        let request =
            PortRequest { number, key: 0, send, receive, receives_max: 8, shared_receives: None };
        if let Ok(port) = host.engine.open_datagram_port(request) {
            self.open.push(port);
            if byte & 4 == 0 {
                assert!(host.engine.join_datagram_group(port, group_address()).is_ok());
            }
        }
    }

    fn open_or_close(&mut self, host: &mut Host, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        if choice & 128 == 0 {
            return self.open(host, choice);
        }
        if let Some(port) = self.open.pop() {
            assert!(host.engine.close_datagram_port(port).is_ok());
            assert!(host.engine.close_datagram_port(port).is_err());
        }
    }

    /// Returns up to three entries (SGEs) of memory to which both ends have all rights.
    fn pieces(host: &Host, bytes: &mut Bytes<'_>) -> Vec<Piece> {
        let region = host.region.id;
        let piece = |bytes: &mut Bytes<'_>| {
            let (offset, length) = (u64::from(bytes.u16() % 8192), u32::from(bytes.u16() % 1500));
            Piece { region, offset, length }
        };
        (0..bytes.u8() & 3).map(|_| piece(bytes)).collect()
    }

    fn send(&mut self, host: &mut Host, index: usize, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let Some(&port) = self.open.get(usize::from(choice & 3)) else { return };
        let pieces = Self::pieces(host, bytes);
        let link = choice >> 2 & 3;
        let datagram = OutgoingDatagram {
            link: LinkId(link),
            to: address(1 - index, if choice & 16 == 0 { link } else { 7 }),
            destination: port_number(choice >> 5),
            key: 0,
            immediate: None,
            solicited: false,
            signalled: true,
            context: 0,
        };
        let (access, list) = (host.memory.access(), PieceList::new(&pieces).unwrap());
        self.posted += u64::from(host.engine.post_datagram(&access, port, &datagram, list).is_ok());
    }

    fn receive(&mut self, host: &mut Host, bytes: &mut Bytes<'_>) {
        let Some(&port) = self.open.get(usize::from(bytes.u8() & 3)) else { return };
        let pieces = Self::pieces(host, bytes);
        let (access, list) = (host.memory.access(), PieceList::new(&pieces).unwrap());
        let posted = host.engine.post_datagram_receive_list(&access, port, list, 0);
        self.posted += u64::from(posted.is_ok());
    }

    /// Closes all ports, and checks that every posted operation has completed once.
    fn end(&mut self, host: &mut Host) {
        for port in self.open.drain(..) {
            assert!(host.engine.close_datagram_port(port).is_ok());
        }
        self.done += std::iter::from_fn(|| self.queue.poll()).count() as u64;
        assert_eq!(self.done, self.posted, "datagrams and their receives");
    }
}

/// Identifiers and numbers that an attacker knows after reading all frames of one direction.
#[derive(Clone, Copy, Default)]
struct Seen {
    connection: u32,
    epoch: u16,
    /// The last packet number plus one, by link index.
    next: [u32; 16],
    operation: u32,
    message: u32,
}

struct World {
    pair: Pair,
    /// The identifiers and numbers in the frames to each host, by the host's index.
    seen: [Seen; 2],
    /// Copies of some frames that were in flight.
    kept: Vec<Flight>,
    canaries: Vec<Arc<Buffer>>,
    posted: [u64; 2],
    received: [u64; 2],
    ports: [Ports; 2],
    done: [std::collections::HashSet<(bool, u64)>; 2],
}

/// Runs this fuzz target on one input.
pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new(&mut bytes);
    for _ in 0..STEPS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        world.act(&mut bytes);
    }
    world.end();
}

impl World {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let shape = bytes.u8();
        let links = 1 + usize::from(shape & 1);
        let plan = LinkPlan {
            frame_bytes_max: [1472, 9000, 256, 1200][usize::from(shape >> 1 & 3)],
            frame_bytes_safe: if shape & 8 == 0 { 1200 } else { 256 },
            rate: None,
            offloads: shape & 32 != 0,
        };
        let config = EngineConfig::default()
            .connections_max(8)
            .requests_max(4)
            .pools(
                PoolLimits::default()
                    .operations(64)
                    .incoming(16)
                    .responses(16)
                    .reads(16)
                    .retransmissions(256)
                    .order_blocks(8),
            )
            .operation_window(if shape & 16 == 0 { 64 } else { 4 })
            .read_depth(4)
            .order_pool_bytes(4096)
            .receives_max(16)
            .active_connections(2)
            .packets_max(256)
            // In some runs packet numbers wrap around.
            .numbers_from(if shape & 32 == 0 { 0 } else { u32::MAX - 60 });
        let plans = vec![plan; links];
        let hosts = [0, 1].map(|host| {
            Host::with_memory(host, host as u8 + 7, &plans, config.clone(), MEMORY_BYTES)
        });
        let mut pair = Pair::of(&plans, hosts);
        let mut canaries = Vec::new();
        for host in &pair.hosts {
            // Makes two buffers that peers must not change: one in the connection's protection
            // domain without remote rights, and one with all rights in another protection domain.
            let other = host.memory.allocate_domain();
            for (domain, rights) in [(host.domain, Rights::LOCAL_WRITE), (other, Rights::ALL)] {
                let buffer = Buffer::new(4096);
                buffer.write(0, &[0xc5; 4096]);
                host.memory.register(domain, Arc::clone(&buffer), rights).unwrap();
                canaries.push(buffer);
            }
        }
        pair.hosts[1].engine.listen(0);
        pair.connect();
        pair.run_for(50_000_000);
        let ports = [0, 1].map(|host| Ports::new(&mut pair.hosts[host]));
        let mut world = Self {
            pair,
            seen: [Seen::default(); 2],
            kept: Vec::new(),
            canaries,
            posted: [0; 2],
            received: [0; 2],
            ports,
            done: Default::default(),
        };
        // Sends frames in both directions, so that the attacker can read frames of both.
        for host in 0..2 {
            for _ in 0..2 {
                world.receive(host, 0, 512);
            }
            let (key, address) = world.pair.remote(1 - host, 0);
            let sink = world.pair.hosts[host].region.id;
            world.post(host, Request::Read { sink, sink_offset: 0, key, address }, 5000, 0);
            world.post(host, Request::Send { source: world.pair.source(host, 0) }, 64, 0);
        }
        world.turn();
        world
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let host = usize::from(choice >> 7);
        match choice & 0x7f {
            0..=31 => self.forge(host, bytes),
            32..=47 => self.pass(bytes),
            48..=55 => self.replay(host, bytes),
            56..=63 => self.pass_time(bytes),
            64..=75 => self.ask(host, bytes),
            76..=79 => {
                let (offset, length) = (bytes.u16(), bytes.u16());
                self.receive(host, u64::from(offset % 8192), u32::from(length % 8192));
            }
            80..=83 => {
                let limit = usize::from(bytes.u8() % 8);
                self.pair.take = Box::new(move |_, _, frames| match limit {
                    7 => Emitted::Taken(frames),
                    limit => Emitted::Taken(frames.min(limit)),
                });
            }
            84..=87 => self.link_event(host, bytes),
            88..=91 => self.handshake(host, bytes),
            92..=95 => {
                let link = bytes.u8() % 3;
                let Host { engine, connection, .. } = &mut self.pair.hosts[host];
                if let Some(handle) = *connection {
                    let peer = address(1 - host, link);
                    let _ = engine.add_path(self.pair.now, handle, LinkId(link), peer);
                }
            }
            96..=97 => {
                let Host { engine, connection, .. } = &mut self.pair.hosts[host];
                if let Some(handle) = *connection {
                    let _ = engine.remove_path(handle, bytes.u8() % 4);
                }
            }
            98 => {
                let Host { engine, connection, .. } = &mut self.pair.hosts[host];
                if let Some(handle) = *connection {
                    let _ = engine.close(self.pair.now, handle, b"enough");
                }
            }
            99 => self.pair.hosts[host].engine.hasten_acknowledgements(),
            100 => {
                if self.pair.hosts[0].engine.connection_count() < 4 {
                    self.pair.connect();
                }
            }
            101..=102 => {
                let link = bytes.u8();
                let length = usize::from(bytes.u8());
                let mut flight = Flight {
                    to: host,
                    link: link % 2,
                    from: address(1 - host, link % 2),
                    bytes: (0..length).map(|_| bytes.u8()).collect(),
                };
                self.pair.deliver(&mut flight);
            }
            103..=104 => self.pair.hosts[host].accepts = bytes.u8() & 1 == 0,
            105 => self.pair.take = Box::new(|_, _, _| Emitted::PayloadUnmapped(0)),
            106..=109 => self.ports[host].send(&mut self.pair.hosts[host], host, bytes),
            110..=111 => self.ports[host].receive(&mut self.pair.hosts[host], bytes),
            112 => self.ports[host].open_or_close(&mut self.pair.hosts[host], bytes),
            113..=115 => self.forge_datagram(host, bytes),
            _ => self.turn(),
        }
    }

    /// Runs the engines of both hosts once, and records the identifiers and numbers in the frames
    /// that they send.
    fn turn(&mut self) {
        for host in 0..2 {
            self.pair.turn(host);
            self.collect(host);
        }
        for flight in self.pair.wire.values() {
            let Ok(frame) = wire_edge::decode(&flight.bytes) else { continue };
            let seen = &mut self.seen[flight.to];
            seen.connection = frame.prefix.connection.0;
            seen.epoch = frame.prefix.epoch.0;
            seen.next[usize::from(frame.prefix.link.0 & 15)] = frame.prefix.packet.wrapping_add(1);
            match frame.header {
                Header::Write { operation, .. }
                | Header::Patch { operation, .. }
                | Header::ReadRequest { operation, .. }
                | Header::Atomic { operation, .. } => seen.operation = operation.0,
                Header::Send { operation, message, .. }
                | Header::SendInvalidate { operation, message, .. } => {
                    seen.operation = operation.0;
                    seen.message = message.0;
                }
                _ => {}
            }
        }
    }

    /// Advances time to the next frame or timer, several times, and delivers frames without faults.
    fn pass_time(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let until = self.pair.now.after_ns(1000 << (choice & 31).min(21));
        for _ in 0..=(choice >> 5) * 4 {
            self.turn();
            if !self.pair.step(until) {
                break;
            }
        }
        self.turn();
    }

    /// Delivers, drops, repeats or changes the next frame in flight.
    fn pass(&mut self, bytes: &mut Bytes<'_>) {
        let Some(entry) = self.pair.wire.first_entry() else { return self.turn() };
        self.pair.now = self.pair.now.max(entry.key().0);
        let mut flight = entry.remove();
        if self.kept.len() < 32 {
            self.kept.push(flight.clone());
        }
        match bytes.u8() {
            0..=15 => return,
            16..=31 => self.pair.deliver(&mut flight.clone()),
            32..=95 => mutate(&mut flight.bytes, bytes),
            96..=99 => flight.from = address(flight.to, flight.link),
            _ => {}
        }
        self.pair.deliver(&mut flight);
        self.turn();
    }

    /// Delivers an earlier frame again, unchanged or changed.
    fn replay(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let index = usize::from(bytes.u8()) % self.kept.len().max(1);
        let Some(mut flight) = self.kept.get(index).cloned() else { return };
        let choice = bytes.u8();
        if choice & 1 == 1 {
            mutate(&mut flight.bytes, bytes);
        }
        if choice & 6 == 6 {
            // Gives the frame a packet number that was not used yet.
            let seen = &mut self.seen[flight.to];
            if let (Some(link), Some(packet)) =
                (flight.bytes.first().map(|byte| byte >> 4), flight.bytes.get_mut(8..12))
            {
                let next = &mut seen.next[usize::from(link)];
                packet.copy_from_slice(&next.to_le_bytes());
                *next = next.wrapping_add(1);
            }
        }
        match choice & 0xf0 {
            0xf0 => flight.to = host,
            // The frame comes from a third host, which has read the frame earlier.
            0xe0 => flight.from = address(2, flight.link),
            _ => {}
        }
        self.pair.deliver(&mut flight);
    }

    fn post(&mut self, host: usize, request: Request, length: u32, flags: u8) {
        if self.pair.hosts[host].connection.is_none() {
            return;
        }
        let context = self.posted[host];
        let flags = OperationFlags {
            fence_before: flags & 1 != 0,
            fence_after: flags & 2 != 0,
            waits_for_answers: false,
            order: if flags & 4 == 0 { Order::Relaxed } else { Order::Strict },
            notify: flags & 8 != 0,
            signalled: true,
        };
        if self.pair.try_post(host, request, length, context, flags).is_ok() {
            self.posted[host] += 1;
        }
    }

    fn receive(&mut self, host: usize, offset: u64, length: u32) {
        let context = self.received[host];
        let Host { engine, memory, connection, region, .. } = &mut self.pair.hosts[host];
        let Some(handle) = *connection else { return };
        let receive = semantics::Receive { region: region.id, offset, length, context };
        if engine.post_receive(&memory.access(), handle, receive).is_ok() {
            self.received[host] += 1;
        }
    }

    fn ask(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let (kind, flags) = (bytes.u8(), bytes.u8());
        let offset = u64::from(bytes.u16() % 8192);
        let length = u32::from(bytes.u16() % 8192);
        let (mut key, address) = self.pair.remote(1 - host, offset & !7);
        if kind >= 0xf0 {
            key.0 ^= 1;
        }
        let source = self.pair.source(host, offset);
        let sink = self.pair.hosts[host].region.id;
        let (request, length) = match kind % 5 {
            // The corpus has few of these values, so its other inputs keep their meaning.
            _ if kind & 0xe0 == 0xc0 => {
                self.write_records(host, offset & !7, bytes);
                (Request::Patch { source: self.pair.source(host, offset & !7), key, address }, 24)
            }
            _ if kind & 0xf0 == 0xe0 => (Request::Swap { key, address, value: 5, sink: None }, 8),
            0 => (Request::Write { source, key, address }, length),
            1 => (Request::Read { sink, sink_offset: offset, key, address }, length),
            2 => (Request::Send { source }, length % 600),
            3 => (Request::FetchAdd { key, address, operand: 1, sink: None }, 8),
            _ => (Request::CompareSwap { key, address, compare: 0, swap: 1, sink: None }, 8),
        };
        self.post(host, request, length, flags);
    }

    /// Writes two records to the source memory of a host. They are usually valid.
    fn write_records(&self, host: usize, offset: u64, bytes: &mut Bytes<'_>) {
        let mut records = PatchRecord { block: bytes.u8().into(), bitmap: 3 }.encode().to_vec();
        records.extend([0x5a; 8]);
        records.extend(PatchRecord { block: 256, bitmap: u32::from(bytes.u8()) & 0x80 }.encode());
        records.resize(24, 0x5a);
        self.pair.hosts[host].buffer.write(offset, &records);
    }

    fn link_event(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let link = choice & 1;
        let plan = LinkPlan { frame_bytes_max: bytes.u16().max(256), ..LinkPlan::default() };
        let evidence = match choice >> 4 & 3 {
            0 => Evidence::Local,
            1 => Evidence::Hearsay,
            _ => Evidence::Quoted(core::array::from_fn(|_| bytes.u8())),
        };
        let event = match choice >> 1 & 7 {
            0..=2 => LinkEvent::Down,
            3 => LinkEvent::TooBig(address(1 - host, link), bytes.u16(), evidence),
            4 => LinkEvent::Refused(address(1 - host, link), evidence),
            _ => LinkEvent::Changed(caps(host, link, &plan)),
        };
        self.pair.hosts[host].engine.handle_link_event(self.pair.now, LinkId(link), event);
    }

    /// Delivers a forged datagram, mostly with correct numbers, to the endpoint or to a group.
    fn forge_datagram(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let group = choice & 3 == 3;
        let number = if group { QueuePairNumber::GROUP } else { port_number(choice >> 2) };
        let datagram = wire_edge::Datagram {
            destination: number,
            source: port_number(bytes.u8()),
            key: u32::from(choice >> 6 == 3),
            immediate: (choice & 16 != 0).then(|| bytes.u32()),
            solicited: choice & 32 != 0,
        };
        let mut frame = datagram.encode().to_vec();
        frame.resize(frame.len() + usize::from(bytes.u16() % 2000), 0xd6);
        if bytes.u8() >= 0xe0 {
            mutate(&mut frame, bytes);
        }
        let from = address(1 - host, 0);
        if group {
            let Host { engine, memory, .. } = &mut self.pair.hosts[host];
            let frame = delivery::RxFrame {
                bytes: &mut frame,
                outside: mem::Payload::EMPTY,
                received_at: self.pair.now,
                congestion_experienced: false,
                from,
            };
            engine.handle_group_frame(&memory.access(), group_address(), frame);
        } else {
            self.pair.deliver(&mut Flight { to: host, link: 0, from, bytes: frame });
        }
    }

    /// Delivers a forged connection frame, mostly with the correct connection id and epoch.
    fn forge(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let shape = bytes.u8();
        let index = bytes.u8();
        let link = if index < 0xf0 { index & 1 } else { index & 15 };
        let seen = &mut self.seen[host];
        let slot = &mut seen.next[usize::from(link)];
        let packet = match shape >> 4 {
            0..=11 => {
                *slot = slot.wrapping_add(1);
                slot.wrapping_sub(1)
            }
            12 => slot.wrapping_sub(bytes.small()),
            13 => slot.wrapping_add(bytes.small()),
            14 => {
                *slot = slot.wrapping_add(u32::from(bytes.u8()));
                *slot
            }
            _ => bytes.u32(),
        };
        let odd = bytes.u8();
        let prefix = Prefix {
            kind: wire_edge::Kind::Ack,
            link: LinkIndex(link),
            flags: Flags(bytes.u8()),
            epoch: Epoch(if odd < 250 { seen.epoch } else { bytes.u16() }),
            connection: ConnectionId(if odd < 254 { seen.connection } else { bytes.u32() }),
            packet,
        };
        let header = self.forge_header(host, shape, odd, bytes);
        let mut head = [0; HEADER_BYTES_MAX];
        let length = encode_header(&prefix, &header, &mut head);
        let mut frame = head[..length].to_vec();
        if frame[1] & Flags::ACK.bits() != 0 {
            frame.extend(self.acks(host, bytes));
        }
        if matches!(header, Header::Control) {
            for _ in 0..=bytes.u8() % 4 {
                let mut message = [0; CONTROL_BYTES_MAX];
                let length = control(bytes, &mut |control| control.encode(&mut message));
                frame.extend_from_slice(&message[..length]);
            }
        } else if matches!(header, Header::Patch { .. }) {
            for _ in 0..bytes.u8() % 8 {
                frame.extend(record(bytes));
            }
        } else if matches!(
            header,
            Header::Write { .. }
                | Header::Send { .. }
                | Header::SendInvalidate { .. }
                | Header::ReadResponse { .. }
        ) {
            let length = match bytes.u8() {
                0..=0x7f => 1440,
                0x80..=0xbf => 0,
                choice => usize::from(choice),
            };
            frame.resize(frame.len() + length, 0x5a);
        }
        // Sometimes the sender is a third host.
        let sender = if index & 0x70 == 0x70 { 2 } else { 1 - host };
        let mut flight = Flight { to: host, link, from: address(sender, link), bytes: frame };
        self.pair.deliver(&mut flight);
        if odd & 4 == 0 {
            self.turn();
        }
    }

    /// Returns a forged header, mostly with correct numbers, keys and addresses.
    fn forge_header(&self, host: usize, shape: u8, odd: u8, bytes: &mut Bytes<'_>) -> Header {
        let seen = &self.seen[host];
        let operation = OperationNumber(seen.operation.wrapping_add(bytes.small()).wrapping_sub(2));
        let message = MessageNumber(seen.message.wrapping_add(bytes.small()).wrapping_sub(2));
        let (mut key, mut address) = self.pair.remote(1 - host, 0);
        (key, address) = if odd & 0x18 == 0x18 {
            (RemoteKey(bytes.u32()), bytes.u64())
        } else {
            let own = self.pair.remote(host, u64::from(bytes.u16() % 20_000));
            if odd & 0x20 == 0 { own } else { (key, address + own.1 % 100) }
        };
        let immediate = (odd & 1 == 1).then(|| bytes.u32());
        let offset = match bytes.u8() {
            choice @ 0..=0xbf => u32::from(choice & 15) * 1440,
            0xc0..=0xf7 => bytes.small(),
            _ => (1_u32 << 31).saturating_sub(bytes.small()),
        };
        match shape & 15 {
            0 => Header::Ack,
            1 | 2 => Header::Control,
            3 => Header::Probe,
            4..=6 => Header::Write { operation, offset, key, address, immediate },
            7 => Header::ReadRequest { operation, length: offset, key, address },
            8 | 9 => Header::ReadResponse { operation, offset },
            10 => Header::Send { operation, offset, message, immediate },
            11 => {
                let key = immediate.map(|_| key);
                Header::SendInvalidate { operation, offset, message, key }
            }
            12 | 13 => Header::Atomic {
                operation,
                opcode: match (shape & 15, odd >> 1 & 1) {
                    (12, 0) => AtomicOpcode::Swap,
                    (_, 0) => AtomicOpcode::FetchAdd,
                    _ => AtomicOpcode::CompareSwap,
                },
                key,
                address,
                operand: 1,
                compare: 0,
            },
            14 => Header::AtomicResponse { operation, value: u64::from(offset) },
            _ => Header::Patch { operation, offset, key, address: address & !3, immediate },
        }
    }

    /// Returns an ack section about packets that the host has sent.
    fn acks(&self, host: usize, bytes: &mut Bytes<'_>) -> Vec<u8> {
        let sent = &self.seen[1 - host];
        let mut blocks = Vec::new();
        for _ in 0..bytes.u8() % 4 {
            let shape = bytes.u8();
            let link = shape & 1;
            let next = sent.next[usize::from(link)];
            let largest = match shape >> 5 {
                0..=5 => next.wrapping_sub(1 + u32::from(bytes.u8() % 8)),
                6 => next.wrapping_add(bytes.small()),
                _ => bytes.u32(),
            };
            let words = shape >> 1 & 3;
            let mut bitmap = [0; 8];
            for word in &mut bitmap[..usize::from(words)] {
                *word = bytes.u64();
            }
            let block = AckBlock {
                link: LinkIndex(if shape & 0x18 == 0x18 { bytes.u8() & 15 } else { link }),
                marked: u16::from(bytes.u8()),
                delay: AckDelay(bytes.u16()),
                run: 1 + u16::from(bytes.u8()),
                largest,
                words,
                bitmap,
            };
            if !blocks.iter().any(|other: &AckBlock| other.link == block.link) {
                blocks.push(block);
            }
        }
        let delivered = OperationNumber(sent.operation.wrapping_add(bytes.small()).wrapping_sub(3));
        let credit = MessageNumber(sent.message.wrapping_add(bytes.small()).wrapping_sub(3));
        let mut out = [0; ACK_SECTION_BYTES_MAX];
        let length = encode_acks(delivered, credit, &blocks, &mut out);
        out[..length].to_vec()
    }

    fn handshake(&mut self, host: usize, bytes: &mut Bytes<'_>) {
        let seen = &self.seen;
        let choice = bytes.u8();
        let id = |choice: u8, bytes: &mut Bytes<'_>| match choice & 3 {
            0 => seen[0].connection,
            1 => seen[1].connection,
            2 => 0,
            _ => bytes.u32(),
        };
        let parameters = Parameters {
            incarnation: 1,
            features: Features(u64::from(bytes.u8())),
            epoch: Epoch(bytes.u16()),
            links_max: 1 + u16::from(bytes.u8() & 15),
            frame_bytes_max: 256 + bytes.u16() % 9000,
            read_depth: u16::from(bytes.u8()),
            operation_window: 1 + u32::from(bytes.u16()),
            order_pool_bytes: u32::from(bytes.u16()),
            receive_buffer_bytes: bytes.small(),
            ack_delay_max_ns: bytes.small(),
            receive_credit: MessageNumber(bytes.small()),
            service: 0,
        };
        let (destination, source) =
            (ConnectionId(id(choice, bytes)), ConnectionId(id(choice >> 2, bytes)));
        let addresses: Vec<PeerAddr> = (0..bytes.u8() & 3).map(|link| address(1, link)).collect();
        let addresses = Addresses::from_slice(&addresses);
        let private_data: &[u8] = b"private";
        let moved = Moved { address: address(1, choice & 1), service: 0 }.encode();
        let mut cookie = [0; 24];
        let body = match bytes.u8() % 8 {
            0 | 1 => {
                cookie[0] = bytes.u8();
                Handshake::Hello { parameters, cookie, addresses, private_data }
            }
            2 => Handshake::Retry { cookie },
            3 => Handshake::Accept { parameters, addresses, private_data },
            4 if choice & 32 != 0 => {
                Handshake::Reject { reason: RejectReason::Moved, private_data: &moved }
            }
            4 => Handshake::Reject { reason: RejectReason::Application, private_data },
            5 => Handshake::Pending,
            6 => Handshake::Reset {
                epoch: Epoch(seen[1 - host].epoch),
                packet: seen[1 - host].next[0].wrapping_sub(bytes.small()),
            },
            _ => Handshake::VersionMismatch { lowest: 2, highest: 3 },
        };
        let version = if choice < 0xf0 { 1 } else { bytes.u16() };
        let mut out = vec![0; HANDSHAKE_BYTES_MAX];
        let length = HandshakeFrame { version, destination, source, body }.encode(&mut out);
        out.truncate(length);
        let link = choice >> 4 & 1;
        let mut flight = Flight { to: host, link, from: address(1 - host, link), bytes: out };
        self.pair.deliver(&mut flight);
        self.turn();
    }

    /// Polls all completions, and checks that each context occurs at most once.
    fn collect(&mut self, host: usize) {
        for completion in self.pair.done(host) {
            let receive = completion.kind == CompletionKind::Receive;
            if completion.kind == CompletionKind::Notification {
                continue;
            }
            assert!(
                self.done[host].insert((receive, completion.context)),
                "completed twice: {completion:?}"
            );
        }
    }

    /// Removes all faults of the network and closes all connections. Then checks that no record is
    /// in use and no operation is pending.
    fn end(&mut self) {
        self.pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
        for host in 0..2 {
            for link in 0..2 {
                let caps = caps(host, link, &LinkPlan::default());
                let event = LinkEvent::Changed(caps);
                self.pair.hosts[host].engine.handle_link_event(self.pair.now, LinkId(link), event);
            }
            self.pair.hosts[host].accepts = true;
        }
        let now = self.pair.now;
        for host in 0..2 {
            for event in self.pair.hosts[host].events.clone() {
                let (engine::Event::Established { connection, .. }
                | engine::Event::Requested { connection, .. }) = event
                else {
                    continue;
                };
                let _ = self.pair.hosts[host].engine.close(now, connection, &[]);
            }
            if let Some(handle) = self.pair.hosts[host].connection {
                let _ = self.pair.hosts[host].engine.close(now, handle, &[]);
            }
        }
        self.pair.run_for(30_000_000_000);
        for host in 0..2 {
            // Closes connections that were established only after the loop above.
            for event in self.pair.hosts[host].events.clone() {
                if let engine::Event::Established { connection, .. } = event {
                    let now = self.pair.now;
                    let _ = self.pair.hosts[host].engine.close(now, connection, &[]);
                }
            }
        }
        self.pair.run_for(30_000_000_000);
        for host in 0..2 {
            self.ports[host].end(&mut self.pair.hosts[host]);
            self.collect(host);
            let engine: &Engine = &self.pair.hosts[host].engine;
            assert_eq!(engine.connection_count(), 0, "host {host}");
            let operations = self.done[host].iter().filter(|done| !done.0).count() as u64;
            let receives = self.done[host].iter().filter(|done| done.0).count() as u64;
            assert_eq!(operations, self.posted[host], "host {host}: operations");
            assert_eq!(receives, self.received[host], "host {host}: receives");
        }
        assert!(self.pair.now > Instant(0));
        self.pair.assert_idle();
        for canary in &self.canaries {
            let mut bytes = [0; 4096];
            canary.read(0, &mut bytes);
            assert!(bytes == [0xc5; 4096], "memory changed that nobody granted");
        }
    }
}

fn mutate(frame: &mut Vec<u8>, bytes: &mut Bytes<'_>) {
    match bytes.u8() {
        0..=0x1f => frame.truncate(usize::from(bytes.u8())),
        0x20..=0x2f => {
            let longer = frame.len() + usize::from(bytes.u8());
            frame.resize(longer, 0);
        }
        choice => {
            for _ in 0..=choice % 4 {
                let (at, value) = (usize::from(bytes.u8()), bytes.u8());
                let length = frame.len().min(96);
                if let Some(byte) = frame.get_mut(at % length.max(1)) {
                    *byte ^= value;
                }
            }
        }
    }
}

/// Returns a record of a patch. Its blocks mostly do not ascend, so most frames have one record.
fn record(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let bitmap = if bytes.u8() < 0xf0 { bytes.u8().into() } else { bytes.u32() };
    let record = PatchRecord { block: bytes.u8().into(), bitmap };
    let mut record = record.encode().to_vec();
    record.resize(record.len() + 4 * bitmap.count_ones() as usize, 0x5a);
    record
}

fn control(bytes: &mut Bytes<'_>, encode: &mut dyn FnMut(Control<'_>) -> usize) -> usize {
    let link = LinkIndex(bytes.u8() & 3);
    match bytes.u8() & 31 {
        0 => encode(Control::Padding),
        1..=3 => encode(Control::Ping),
        4..=10 => encode(Control::PathChallenge(bytes.u64())),
        11..=12 => encode(Control::PathResponse(bytes.u64())),
        13..=14 => encode(Control::LinkStatus(link, LinkStatus::Available)),
        15..=16 => encode(Control::LinkStatus(link, LinkStatus::Backup)),
        17..=20 => encode(Control::LinkStatus(link, LinkStatus::Down)),
        21..=23 => encode(Control::LinkStatus(link, LinkStatus::Removed)),
        24 => encode(Control::Close {
            reason: CloseReason::from_code(bytes.u16() % 12),
            operation: OperationNumber(bytes.small()),
            private_data: b"bye",
        }),
        25 => encode(Control::CloseAck),
        26..=27 => encode(Control::Links(bytes.u16())),
        28 => encode(Control::Gone(OperationNumber(bytes.small()))),
        29 => encode(Control::NotReady(MessageNumber(bytes.small()))),
        30 => encode(Control::Ready),
        _ => encode(Control::Address(address(1, 5))),
    }
}
