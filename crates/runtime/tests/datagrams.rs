//! Tests of datagrams between two endpoints of one host, over the link drivers that programs use.

mod pair;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use delivery::LinkId;
use engine::{DatagramError, DatagramPort, OutgoingDatagram, PortRequest};
use link::{GROUP_PORT, Link, ShmLink, UdpConfig, UdpLink};
use mem::{Buffer, Region, Rights};
use pair::Side;
use runtime::{AuxiliaryError, Interest, RuntimeConfig};
use semantics::{Completion, CompletionKind, Piece, PieceList, Receive};
use testbed::host::{in_namespace, ip};
use wire_edge::{PeerAddr, QueuePairNumber, route_header};

const KEY: u32 = 0x8001_0000;
const ROUTE_BYTES: u64 = 40;

/// An endpoint with a datagram port and registered memory.
struct End {
    side: Side,
    port: DatagramPort,
    buffer: Arc<Buffer>,
    region: Region,
}

impl End {
    fn new(link: Box<dyn Link>, number: u32) -> Self {
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = false;
        let side = Side::on(link, config);
        let (send, receive) = (Arc::clone(&side.queue), Arc::clone(&side.queue));
        let number = QueuePairNumber::new(number).expect("24 bits");
        let request = PortRequest {
            number,
            key: KEY,
            send,
            receive,
            receives_max: 256,
            shared_receives: None,
        };
        let opened = side.runtime.control(move |engine, _, _| engine.open_datagram_port(request));
        let port = opened.expect("not forked").expect("a port");
        let buffer = Buffer::new(1 << 20);
        let memory = side.runtime.memory();
        let region = memory.register(side.domain, Arc::clone(&buffer), Rights::LOCAL_WRITE);
        Self { port, buffer, region: region.expect("it is registered"), side }
    }

    fn address(&self) -> PeerAddr {
        self.side.runtime.link_addresses().expect("not forked")[0].1
    }

    fn receive(&self, offset: u64, length: u32, context: u64) {
        let receive = Receive { region: self.region.id, offset, length, context };
        let port = self.port;
        let posted = self
            .side
            .runtime
            .control(move |engine, memory, _| engine.post_datagram_receive(memory, port, receive));
        posted.expect("not forked").expect("posted");
    }

    fn send(&self, to: &Self, offset: u64, length: u32, context: u64) {
        let (link, _) = self.side.runtime.link_addresses().expect("not forked")[0];
        let datagram = OutgoingDatagram {
            link,
            to: to.address(),
            destination: to.port.number(),
            key: KEY,
            immediate: Some(context as u32),
            solicited: false,
            signalled: true,
            context,
        };
        let pieces = [Piece { region: self.region.id, offset, length }];
        let port = self.port;
        let posted = self.side.runtime.control(move |engine, memory, _| {
            let list = PieceList::new(&pieces).expect("a list");
            engine.post_datagram(memory, port, &datagram, list)
        });
        posted.expect("not forked").expect("posted");
    }

    fn done(&self) -> Completion {
        let queue = &self.side.queue;
        let waited = self.side.runtime.wait(Interest::Completion(queue), None, || queue.poll());
        waited.expect("not forked").expect("a completion")
    }

    fn read(&self, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

/// Sends datagrams in both directions: small ones, which are copied, and large ones, which are not.
fn exchange(links: [Box<dyn Link>; 2]) {
    let [one, two] = links;
    let (one, two) = (End::new(one, 0x00_1234), End::new(two, 0xf0_0001));
    let pattern: Vec<u8> = (0..5000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    one.buffer.write(0, &pattern);
    for (round, length) in [0, 1, 64, 256, 257, 1024, 4096].into_iter().enumerate() {
        let (context, from) = (round as u64, round as u64 * 100);
        two.receive(10_000, length + ROUTE_BYTES as u32, context);
        one.send(&two, from, length, context);
        assert_eq!(one.done().kind, CompletionKind::Send);
        let done = two.done();
        assert_eq!((done.kind, done.context), (CompletionKind::Receive, context));
        assert_eq!((done.bytes, done.value), (length + ROUTE_BYTES as u32, 0x00_1234));
        assert_eq!(done.immediate, Some(round as u32));
        let header = route_header(one.address(), two.address(), length as u16);
        assert_eq!(two.read(10_000, ROUTE_BYTES as u32), header);
        assert_eq!(two.read(10_000 + ROUTE_BYTES, length), one.read(from, length));
        // An answer goes to the queue pair that the first datagram names.
        one.receive(20_000, 1000, context);
        two.send(&one, 10_000 + ROUTE_BYTES, length.min(900), context);
        assert_eq!(two.done().kind, CompletionKind::Send);
        assert_eq!(one.done().value, 0xf0_0001);
        assert_eq!(
            one.read(20_000 + ROUTE_BYTES, length.min(900)),
            one.read(from, length.min(900))
        );
    }
}

#[test]
fn two_endpoints_exchange_datagrams_over_udp() {
    let udp = || {
        let bound = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
        Box::new(bound.expect("a socket on loopback")) as Box<dyn Link>
    };
    exchange([udp(), udp()]);
}

#[test]
fn two_endpoints_exchange_datagrams_over_shared_memory() {
    let shm = || Box::new(ShmLink::open().expect("shared memory")) as Box<dyn Link>;
    exchange([shm(), shm()]);
}

/// If datagrams are posted together, a link sends them together, even if their sizes differ.
#[test]
fn a_burst_of_datagrams_of_all_sizes_arrives_over_udp() {
    let udp = || {
        let bound = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
        Box::new(bound.expect("a socket on loopback")) as Box<dyn Link>
    };
    let (one, two) = (End::new(udp(), 1), End::new(udp(), 2));
    for context in 0..64 {
        two.receive(context * 2000, 2000, context);
    }
    let pattern: Vec<u8> = (0..5000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    one.buffer.write(0, &pattern);
    let length_of = |context: u64| [64, 64, 700, 1024, 5][context as usize % 5];
    let (link, _) = one.side.runtime.link_addresses().expect("not forked")[0];
    let (to, destination, region, port) =
        (two.address(), two.port.number(), one.region.id, one.port);
    let posted = one.side.runtime.control(move |engine, memory, _| {
        for context in 0..64 {
            let (immediate, solicited, signalled) = (None, false, true);
            let key = KEY;
            let datagram = OutgoingDatagram {
                link,
                to,
                destination,
                key,
                immediate,
                solicited,
                signalled,
                context,
            };
            let pieces = [Piece { region, offset: context, length: length_of(context) }];
            let list = PieceList::new(&pieces).expect("a list");
            engine.post_datagram(memory, port, &datagram, list).expect("posted");
        }
    });
    posted.expect("not forked");
    for context in 0..64 {
        assert_eq!(one.done().context, context);
        let done = two.done();
        assert_eq!((done.context, done.bytes), (context, length_of(context) + ROUTE_BYTES as u32));
        let placed = two.read(context * 2000 + ROUTE_BYTES, length_of(context));
        assert_eq!(placed, one.read(context, length_of(context)));
    }
}

/// Posts as many receives as a port can have, and reposts each of them when its datagram has
/// arrived. Stops when `stops` is set. Returns the number of datagrams that arrived.
fn receive_all(end: &End, stops: &AtomicBool) -> u64 {
    let (port, region) = (end.port, end.region.id);
    let receive =
        move |at: u64| Receive { region, offset: at % 256 * 128, length: 104, context: at };
    let post_from = |first: u64, count: u64| {
        let posted = end.side.runtime.control(move |engine, memory, _| {
            for at in first..first + count {
                engine.post_datagram_receive(memory, port, receive(at)).expect("posted");
            }
        });
        posted.expect("not forked");
    };
    post_from(0, 256);
    let mut received = 0;
    while !stops.load(Ordering::Relaxed) {
        end.side.runtime.drive().expect("not forked");
        let came = std::iter::from_fn(|| end.side.queue.poll()).count() as u64;
        if came > 0 {
            post_from(received, came);
            received += came;
        }
    }
    received
}

/// Posts bursts of datagrams of 64 bytes. Returns the rate at which they were handed to the
/// network, in millions a second.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn rate_of_sending(from: &End, to: &End, bursts: u64) -> f64 {
    let (link, _) = from.side.runtime.link_addresses().expect("not forked")[0];
    let datagram = OutgoingDatagram {
        link,
        to: to.address(),
        destination: to.port.number(),
        key: KEY,
        immediate: None,
        solicited: false,
        signalled: true,
        context: 0,
    };
    let (port, region) = (from.port, from.region.id);
    let began = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < bursts * BURST {
        if posted < bursts * BURST && posted - done < 2 * BURST {
            let burst = from.side.runtime.control(move |engine, memory, _| {
                for at in 0..BURST {
                    let pieces = [Piece { region, offset: at * 64, length: 64 }];
                    let list = PieceList::new(&pieces).expect("a list");
                    engine.post_datagram(memory, port, &datagram, list).expect("posted");
                }
            });
            burst.expect("not forked");
            posted += BURST;
        }
        from.side.runtime.drive().expect("not forked");
        done += std::iter::from_fn(|| from.side.queue.poll()).count() as u64;
    }
    done as f64 / began.elapsed().as_secs_f64() / 1e6
}

/// Number of datagrams that are posted together.
const BURST: u64 = 64;

#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints a figure"]
fn datagrams_that_one_thread_sends() {
    let udp = || {
        let bound = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
        Box::new(bound.expect("a socket on loopback")) as Box<dyn Link>
    };
    let (one, two) = (End::new(udp(), 1), End::new(udp(), 2));
    let (rounds, bursts) = (9, 4_000);
    let stops = AtomicBool::new(false);
    let (mut rates, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_all(&two, &stops));
        let rates: Vec<f64> = (0..rounds).map(|_| rate_of_sending(&one, &two, bursts)).collect();
        stops.store(true, Ordering::Relaxed);
        (rates, receiver.join().expect("it receives"))
    });
    rates.sort_by(f64::total_cmp);
    let sent = rounds * bursts * BURST;
    println!("from {:.2} to {:.2}; {received} of {sent} received", rates[0], rates[8]);
    println!("figure: datagrams sent: {:.3}", rates[4]);
}

/// Sends a datagram to all members of a group.
fn send_to_group(from: &End, group: IpAddr, context: u64, length: u32) {
    let (link, _) = from.side.runtime.link_addresses().expect("not forked")[0];
    let datagram = OutgoingDatagram {
        link,
        to: PeerAddr::from(SocketAddr::new(group, GROUP_PORT)),
        destination: QueuePairNumber::GROUP,
        key: KEY,
        immediate: None,
        solicited: false,
        signalled: true,
        context,
    };
    let (pieces, port) = ([Piece { region: from.region.id, offset: 0, length }], from.port);
    let posted = from.side.runtime.control(move |engine, memory, _| {
        let list = PieceList::new(&pieces).expect("a list");
        engine.post_datagram(memory, port, &datagram, list)
    });
    posted.expect("not forked").expect("posted");
    assert_eq!(from.done().kind, CompletionKind::Send);
}

/// One endpoint sends to a group. Two others have joined the group, and leave it one after the
/// other.
fn share_a_group(local: IpAddr, group: IpAddr) {
    let udp = || {
        let bound = UdpLink::bind((local, 0).into(), &UdpConfig::default());
        Box::new(bound.expect("a socket")) as Box<dyn Link>
    };
    let ends = [End::new(udp(), 1), End::new(udp(), 2), End::new(udp(), 3)];
    let [sender, members @ ..] = &ends;
    for member in members {
        for context in 0..3 {
            member.receive(context * 1000, 1000, context);
        }
        member.side.runtime.join_group(member.port, LinkId(0), group).expect("joined");
        member.side.runtime.join_group(member.port, LinkId(0), group).expect("it is in");
    }
    sender.buffer.write(0, b"for all");
    let to = PeerAddr::from(SocketAddr::new(group, GROUP_PORT));
    for context in 0..2 {
        send_to_group(sender, group, context, 7);
        for member in members {
            let done = member.done();
            assert_eq!((done.context, done.value), (context, 1));
            let header = route_header(sender.address(), to, 7);
            assert_eq!(member.read(context * 1000, 40), header);
            assert_eq!(member.read(context * 1000 + 40, 7), b"for all");
        }
    }
    let [left, stays] = members;
    left.side.runtime.leave_group(left.port, group).expect("left");
    send_to_group(sender, group, 2, 7);
    assert_eq!(stays.done().context, 2);
    left.side.runtime.drive().expect("not forked");
    assert_eq!(left.side.queue.poll(), None);
    stays.side.runtime.close_datagram_port(stays.port).expect("open");
    let refused = stays.side.runtime.join_group(stays.port, LinkId(0), group);
    assert!(matches!(refused, Err(AuxiliaryError::Port(DatagramError::Closed))), "{refused:?}");
    let refused = left.side.runtime.join_group(left.port, LinkId(0), local);
    assert!(matches!(refused, Err(AuxiliaryError::Socket(_))), "{refused:?}");
    let refused = left.side.runtime.join_group(left.port, LinkId(1), group);
    assert!(matches!(refused, Err(AuxiliaryError::NotUdp(1))), "{refused:?}");
}

//= protocol.md: datagram.6, datagram.8
#[test]
fn members_of_an_ipv4_group_get_its_datagrams() {
    // Use a group that no other test uses.
    share_a_group(Ipv4Addr::LOCALHOST.into(), [239, 83, 2, 1].into());
}

//= protocol.md: datagram.8
#[test]
fn members_of_an_ipv6_group_get_its_datagrams() {
    // Loopback has no route to IPv6 groups, but a pair of virtual interfaces has one.
    in_namespace(|| {
        let own = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 1);
        ip("link add edge0 type veth peer name edge1");
        ip(&format!("address add {own}/64 dev edge0 nodad"));
        ip("link set edge0 up");
        ip("link set edge1 up");
        share_a_group(own.into(), Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x83, 1).into());
    });
}
