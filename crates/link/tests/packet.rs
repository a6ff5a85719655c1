//! Tests of a packet link on real interfaces. Needs root: each test has its own network namespace.

#![expect(clippy::disallowed_methods, reason = "the clock bounds a test that fails")]

mod namespace;

use std::mem::zeroed;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as HostInstant};

use delivery::{Evidence, Instant, LinkEvent, TxBatch};
use link::packet::{discover, resolve};
use link::yardstick::packet::{BarePacket, BareReceive};
use link::{Interface, Link, PacketConfig, PacketError, PacketLink, PayloadUnmapped};
use mem::PayloadSlice;
use namespace::{Carrier, await_carrier, in_namespace, ip, make_interfaces, may};
use wire_edge::{ETHERTYPE_DEFAULT, PeerAddr};

/// Time limit for a failing test. All tests take far less time.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn frames_arrive_unchanged_and_in_order_with_and_without_a_tag() {
    for vlan in [None, Some(100)] {
        in_namespace(move || {
            let (mut a, mut b) = (open_in("edge0", vlan), open_in("edge1", vlan));
            let payload: Vec<u8> = (0..1400_u32).map(|i| (i * 7) as u8).collect();
            let mut batch = TxBatch::new(100, 100 * 64);
            batch.reset(b.caps().local);
            for index in 0..100_u8 {
                batch.header_mut().extend_from_slice(&[index; 40]);
                let len = if index % 3 == 0 { 0 } else { u32::from(index) * 14 };
                batch.finish_frame(PayloadSlice::at(payload.as_ptr(), len));
            }
            assert_eq!(a.send(&batch).unwrap(), 100);
            let received = receive(&mut b, 100);
            for (index, (bytes, from)) in received.iter().enumerate() {
                let len = if index % 3 == 0 { 0 } else { index * 14 };
                assert_eq!(bytes[..40], [index as u8; 40]);
                assert_eq!(bytes[40..], payload[..len]);
                assert_eq!(*from, a.caps().local);
            }
            let (sent, received) = (a.statistics(), b.statistics());
            assert_eq!((sent.send_frames, received.receive_frames), (100, 100));
            assert_eq!(sent.send_bytes, received.receive_bytes);
            assert_eq!(receive(&mut a, 0), [], "nothing comes back");
        });
    }
}

#[test]
fn largest_frame_is_the_interfaces_without_the_envelope() {
    in_namespace(|| {
        for end in ["edge0", "edge1"] {
            ip(&format!("link set {end} mtu 9000"));
        }
        for vlan in [None, Some(7)] {
            let (mut a, mut b) = (open_in("edge0", vlan), open_in("edge1", vlan));
            let caps = a.caps();
            assert_eq!((caps.frame_bytes_max, caps.frame_bytes_safe), (8988, 1200));
            send(&mut a, b.caps().local, &[3; 8988]);
            assert_eq!(receive(&mut b, 1)[0].0, vec![3; 8988]);
            send(&mut a, b.caps().local, &[3; 8989]);
            assert_eq!(a.statistics().send_too_big, 1);
            assert!(matches!(a.poll_event(), Some(LinkEvent::TooBig(_, 8988, Evidence::Local))));
        }
    });
}

#[test]
fn endpoints_on_one_interface_see_their_own_frames_only() {
    in_namespace(|| {
        let mut a = open("edge0");
        let (mut b, mut c) = (open("edge1"), open("edge1"));
        send(&mut a, b.caps().local, b"for b");
        send(&mut a, c.caps().local, b"for c");
        assert_eq!(receive(&mut b, 1)[0].0, b"for b");
        assert_eq!(receive(&mut c, 1)[0].0, b"for c");
        // The filter dropped all frames for other receivers, so the link had none to drop.
        for link in [&b, &c] {
            let statistics = link.statistics();
            assert_eq!((statistics.receive_messages, statistics.receive_not_ours), (1, 0));
        }
        let config = PacketConfig::new("edge1").port(b.local().1);
        let error = PacketLink::open(&config).unwrap_err();
        assert!(matches!(error, PacketError::PortTaken { .. }), "{error}");
        drop(b);
        // If another test is just starting a program, the new process may have a copy of the
        // descriptor until the program runs. So the port may still be in use for a moment.
        let started = HostInstant::now();
        while let Err(error) = PacketLink::open(&config) {
            assert!(started.elapsed() < LIMIT, "the port is free again: {error}");
        }
    });
}

#[test]
fn foreign_frames_are_dropped_and_counted() {
    in_namespace(|| {
        let mut link = open("edge1");
        let (station, port) = link.local();
        let other = Interface::named("edge0").unwrap().station.unwrap();
        let [p0, p1] = port.to_be_bytes();
        let header =
            |from: [u8; 6], ethertype: [u8; 2]| [&station[..], &from[..], &ethertype[..]].concat();
        let ours = [0x88, 0xb5];
        // The envelope contains a length of five bytes and a wrong checksum.
        let envelope = [1, 1, 5, 0, p0, p1, 0, 9, 1, 2, 3, 4];
        let content = *b"bytes";
        let inject = |parts: &[&[u8]]| inject("edge0", &parts.concat());
        inject(&[&header(other, ours), &envelope, &content]);
        inject(&[&header(other, ours), &envelope]);
        inject(&[&header(other, ours), &[7; 60]]);
        inject(&[&header(other, [0x81, 0]), &[0, 5], &ours, &envelope, &content]);
        inject(&[&header(station, ours), &envelope, &content]);
        inject(&[&header(other, [0x88, 0xb6]), &envelope, &content]);
        inject(&[&header(other, ours), &[1, 1]]);
        let mut good = open("edge0");
        send(&mut good, link.caps().local, b"good");
        assert_eq!(receive(&mut link, 1)[0].0, b"good");
        let statistics = link.statistics();
        let counted = (
            statistics.receive_checksum_errors,
            statistics.receive_truncated,
            statistics.receive_foreign,
            statistics.receive_wrong_vlan,
            statistics.receive_own_station,
            statistics.receive_not_ours,
        );
        assert_eq!(counted, (1, 2, 1, 1, 1, 0), "{statistics:?}");
    });
}

#[test]
fn the_error_of_unmapped_payload_names_the_frame() {
    in_namespace(|| {
        let (mut a, mut b) = (open("edge0"), open("edge1"));
        let there = [5_u8; 100];
        let gone = PayloadSlice::at(64 as *const u8, 100);
        let mut batch = TxBatch::new(64, 4096);
        batch.reset(b.caps().local);
        for index in 0..40 {
            batch.header_mut().extend_from_slice(&[1; 40]);
            let payload = PayloadSlice::at(there.as_ptr(), 100);
            batch.finish_frame(match index {
                35 => gone,
                _ if index % 2 == 0 => PayloadSlice::EMPTY,
                _ => payload,
            });
        }
        let error = a.send(&batch).unwrap_err();
        assert_eq!(PayloadUnmapped::from_io(&error), Some(PayloadUnmapped { frame: 35 }));
        assert_eq!(receive(&mut b, 35).len(), 35);
    });
}

#[test]
fn a_frame_that_the_peer_interface_never_takes_is_lost() {
    in_namespace(|| {
        let mut link = open("edge0");
        let to = open("edge1").caps().local;
        ip("link set edge1 mtu 1300");
        let mut batch = TxBatch::new(1, 1400);
        batch.reset(to);
        batch.header_mut().extend_from_slice(&[3; 1400]);
        batch.finish_frame(PayloadSlice::EMPTY);
        // The far interface drops the frame. Some kernels do not report this, and others refuse the
        // frame. After some refusals, the link must count the frame as lost.
        let taken = (0..=10_u64).map(|ms| {
            link.receive(Instant(ms * 1_000_000), 64, &mut |_| {}).unwrap();
            link.send(&batch).unwrap()
        });
        assert!(taken.sum::<usize>() > 0, "every frame was refused");
    });
}

#[test]
fn link_follows_its_interface() {
    in_namespace(|| {
        let (mut a, mut b) = (open("edge0"), open("edge1"));
        ip("link set edge0 mtu 9000");
        ip("link set edge1 mtu 9000");
        let event = next_event(&mut a);
        assert!(
            matches!(event, LinkEvent::Descriptors),
            "larger frames need larger slots: {event:?}"
        );
        let event = next_event(&mut a);
        assert!(matches!(event, LinkEvent::Changed(c) if c.frame_bytes_max == 8988), "{event:?}");
        while !matches!(next_event(&mut b), LinkEvent::Changed(_)) {}
        send(&mut a, b.caps().local, &[9; 8988]);
        assert_eq!(receive(&mut b, 1)[0].0.len(), 8988);

        ip("link set edge0 mtu 1400");
        let event = next_event(&mut a);
        assert!(matches!(event, LinkEvent::Changed(c) if c.frame_bytes_max == 1388), "{event:?}");

        ip("link set edge1 down");
        await_carrier(Carrier::Down);
        assert!(matches!(next_event(&mut a), LinkEvent::Down));
        assert!(matches!(next_event(&mut b), LinkEvent::Down));
        send(&mut b, a.caps().local, b"lost");
        ip("link set edge1 up");
        await_carrier(Carrier::Up);
        assert!(matches!(next_event(&mut a), LinkEvent::Changed(_)));
        assert!(matches!(next_event(&mut b), LinkEvent::Changed(_)));
        send(&mut b, a.caps().local, b"found");
        assert_eq!(receive(&mut a, 1)[0].0, b"found");

        ip("link set edge1 address 02:00:00:00:77:77");
        let event = next_event(&mut b);
        let local = PeerAddr::mac([2, 0, 0, 0, 0x77, 0x77], b.local().1);
        assert!(matches!(event, LinkEvent::Changed(c) if c.local == local), "{event:?}");
        send(&mut a, local, b"moved");
        assert_eq!(receive(&mut b, 1)[0].0, b"moved");
    });
}

#[test]
fn the_link_returns_with_its_interface() {
    in_namespace(|| {
        let (mut a, mut b) = (open("edge0"), open("edge1"));
        for _ in 0..2 {
            let ports = (a.local().1, b.local().1);
            ip("link delete edge0");
            for link in [&mut a, &mut b] {
                assert!(matches!(next_event(link), LinkEvent::Down));
                send(link, PeerAddr::mac([2; 6], 1), b"lost");
            }
            make_interfaces();
            for link in [&mut a, &mut b] {
                while !matches!(next_event(link), LinkEvent::Changed(_)) {}
            }
            assert_eq!(ports, (a.local().1, b.local().1));
            send(&mut a, b.caps().local, b"back");
            assert_eq!(receive(&mut b, 1)[0].0, b"back");
        }
    });
}

#[test]
fn frames_and_interface_events_wake_a_sleeper() {
    in_namespace(|| {
        let (mut a, mut b) = (open("edge0"), open("edge1"));
        assert!(!is_readable(&b, 0));
        send(&mut a, b.caps().local, b"wake");
        assert!(is_readable(&b, 10_000));
        assert_eq!(receive(&mut b, 1).len(), 1);
        assert!(!is_readable(&b, 0));
        ip("link set edge1 mtu 1400");
        assert!(is_readable(&b, 10_000));
        while !matches!(next_event(&mut b), LinkEvent::Changed(_)) {}
        ip("link set edge1 down");
        assert!(matches!(next_event(&mut b), LinkEvent::Down));
        let mut now = Instant(1 << 50);
        while is_readable(&b, 0) {
            now = now.after_ns(1_000_000);
            b.receive(now, 1, &mut |_| {}).unwrap();
        }
    });
}

//= protocol.md: envelope.5
#[test]
fn endpoints_are_found_by_port_and_stations_by_address() {
    in_namespace(|| {
        let (mut b, mut c) = (open("edge1"), open("edge1"));
        let (station, port) = b.local();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut now = Instant(1);
                while !done.load(Ordering::Relaxed) {
                    now = now.after_ns(100_000);
                    b.receive(now, 64, &mut |_| {}).unwrap();
                    c.receive(now, 64, &mut |_| {}).unwrap();
                }
            });
            let found = discover("edge0", ETHERTYPE_DEFAULT, None, port, LIMIT);
            let limit = Duration::from_millis(30);
            let missing = discover("edge0", ETHERTYPE_DEFAULT, None, 1, limit);
            let elsewhere = discover("edge0", ETHERTYPE_DEFAULT, Some(4), port, limit);
            done.store(true, Ordering::Relaxed);
            assert_eq!(found.unwrap(), [station]);
            assert!(matches!(missing.unwrap_err(), PacketError::NoAnswer { .. }));
            assert!(matches!(elsewhere.unwrap_err(), PacketError::NoAnswer { .. }));
        });

        // The far interface answers address requests only if it is in another namespace. Both
        // interfaces are in one namespace here, so add the neighbour entries by hand.
        let neighbour = "02:00:00:00:00:09";
        ip(&format!("neighbour add 10.9.9.9 lladdr {neighbour} dev edge0"));
        ip(&format!("neighbour add fd00::9 lladdr {neighbour} dev edge0"));
        for address in ["10.9.9.9", "fd00::9"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(resolve("edge0", address, LIMIT).unwrap(), [2, 0, 0, 0, 0, 9]);
        }
        let missing = resolve("edge0", "10.9.9.8".parse().unwrap(), Duration::from_millis(30));
        assert!(matches!(missing.unwrap_err(), PacketError::NoAnswer { .. }));
    });
}

#[test]
fn invalid_settings_are_refused_by_name() {
    in_namespace(|| {
        let refused = |change: &dyn Fn(&mut PacketConfig)| {
            let mut config = PacketConfig::new("edge0");
            change(&mut config);
            PacketLink::open(&config).unwrap_err()
        };
        let error = refused(&|config| config.interface = "egde0".to_string());
        assert!(
            matches!(&error, PacketError::NoSuchInterface { known, .. }
                if known.0.contains(&"edge0".to_string()) || !known.0.is_empty()),
            "{error}"
        );
        let error = refused(&|config| config.vlan = Some(4095));
        assert!(matches!(error, PacketError::Vlan { vlan: 4095 }), "{error}");
        let error = refused(&|config| config.ethertype = 0x0800);
        assert!(matches!(error, PacketError::Ethertype { ethertype: 0x0800 }), "{error}");
        ip("link set edge0 mtu 200");
        let error = refused(&|_| {});
        assert!(
            matches!(error, PacketError::MtuTooSmall { mtu_bytes: 200, least_bytes: 268, .. }),
            "{error}"
        );
        ip("link set edge0 down");
        let error = refused(&|_| {});
        assert!(matches!(error, PacketError::InterfaceDown { .. }), "{error}");
        if !may("tuntap add edge2 mode tun") {
            println!("skipped in part: this host has no tunnels");
            return;
        }
        let error = refused(&|config| config.interface = "edge2".to_string());
        assert!(matches!(error, PacketError::NotEthernet { .. }), "{error}");
    });
}

#[test]
fn full_ring_drops_are_counted() {
    in_namespace(|| {
        let mut a = open("edge0");
        let small = PacketConfig::new("edge1").receive_ring_bytes(0);
        let mut b = PacketLink::open(&small).unwrap();
        let mut sent = 0;
        while b.statistics().receive_kernel_drops == 0 {
            send(&mut a, b.caps().local, &[1; 64]);
            sent += 1;
            assert!(sent < 100_000, "the ring never overflows");
        }
        let mut received = 0;
        while b.receive(Instant(1), 64, &mut |_| received += 1).unwrap() > 0 {}
        assert_eq!(received + b.statistics().receive_kernel_drops, sent);
    });
}

#[test]
fn endpoints_of_one_host_meet_on_loopback() {
    in_namespace(|| {
        ip("link set lo up");
        let (mut a, mut b) = (open("lo"), open("lo"));
        assert_eq!((a.local().0, a.caps().frame_bytes_max), ([0; 6], 9204));
        send(&mut a, b.caps().local, &[5; 9000]);
        send(&mut b, a.caps().local, &[6; 40]);
        assert_eq!(receive(&mut b, 1)[0], (vec![5; 9000], a.caps().local));
        assert_eq!(receive(&mut a, 1)[0], (vec![6; 40], b.caps().local));
        assert_eq!(a.statistics().receive_own_station, 0);
    });
}

#[test]
fn a_bare_exchange_works_with_both_ways_to_receive() {
    for receive in [BareReceive::Ring, BareReceive::Calls] {
        in_namespace(move || {
            let config = |end: &str| PacketConfig::new(end).port(5);
            let mut a = BarePacket::open(&config("edge0"), receive, 40).unwrap();
            let mut b = BarePacket::open(&config("edge1"), receive, 40).unwrap();
            for _ in 0..3 {
                a.send(b.station()).unwrap();
                assert_eq!(b.poll(), Some(a.station()));
                b.send(a.station()).unwrap();
                assert_eq!(a.poll(), Some(b.station()));
            }
            assert_eq!((a.poll(), b.poll()), (None, None));
        });
    }
}

fn open(interface: &str) -> PacketLink {
    open_in(interface, None)
}

fn open_in(interface: &str, vlan: Option<u16>) -> PacketLink {
    PacketLink::open(&PacketConfig::new(interface).vlan(vlan)).unwrap()
}

/// Sends one frame without outside payload.
fn send(link: &mut PacketLink, to: PeerAddr, frame: &[u8]) {
    let mut batch = TxBatch::new(1, frame.len());
    batch.reset(to);
    batch.header_mut().extend_from_slice(frame);
    batch.finish_frame(PayloadSlice::EMPTY);
    assert_eq!(link.send(&batch).unwrap(), 1);
}

/// Receives `count` frames with their senders, and checks that no further frame arrives.
fn receive(link: &mut PacketLink, count: usize) -> Vec<(Vec<u8>, PeerAddr)> {
    let started = HostInstant::now();
    let mut received = Vec::new();
    loop {
        link.receive(Instant(1), 64, &mut |frame| {
            received.push((frame.bytes.to_vec(), frame.from));
        })
        .unwrap();
        if received.len() >= count {
            assert_eq!(received.len(), count);
            return received;
        }
        assert!(started.elapsed() < LIMIT, "{} of {count} frames", received.len());
    }
}

fn next_event(link: &mut PacketLink) -> LinkEvent {
    let started = HostInstant::now();
    let mut now = Instant(1 << 40);
    loop {
        now = now.after_ns(10_000_000);
        link.receive(now, 64, &mut |_| {}).unwrap();
        if let Some(event) = link.poll_event() {
            return event;
        }
        assert!(started.elapsed() < LIMIT, "no event");
    }
}

/// Returns whether one of the link's descriptors is readable, or becomes readable within
/// `limit_ms`.
fn is_readable(link: &PacketLink, limit_ms: i32) -> bool {
    use std::os::fd::AsRawFd;
    let mut polled: Vec<libc::pollfd> = link
        .wait_fds()
        .into_iter()
        .flatten()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the array has the length given.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) > 0 }
}

/// Sends any bytes as an Ethernet frame.
fn inject(interface: &str, frame: &[u8]) {
    let index = Interface::named(interface).unwrap().index;
    // SAFETY: plain system calls; the address and the frame outlive them.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        let mut name: libc::sockaddr_ll = zeroed();
        name.sll_family = libc::AF_PACKET as u16;
        name.sll_ifindex = index.cast_signed();
        let sent = libc::sendto(
            socket,
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const name).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        );
        assert_eq!(sent, frame.len().cast_signed(), "{}", std::io::Error::last_os_error());
        libc::close(socket);
    }
}
