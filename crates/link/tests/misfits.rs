//! Raw Ethernet frames that a link must drop: frames larger than the receiver's slots, and frames
//! from another station with our address. Needs root: each test has its own network namespace.

#![expect(clippy::disallowed_methods, reason = "the clock bounds a test that fails")]

#[expect(dead_code, reason = "other tests need more of it")]
mod namespace;

use std::time::{Duration, Instant as HostInstant};

use delivery::{Instant, TxBatch};
use link::{Link, LinkStatistics, PacketConfig, PacketLink, XdpConfig, XdpError, XdpLink, XdpMode};
use mem::PayloadSlice;
use namespace::{in_namespace, ip};
use wire_edge::PeerAddr;

#[test]
fn jumbo_frames_beyond_the_ring_slots_are_dropped_and_counted() {
    in_namespace(|| {
        let mut sender = jumbo_sender();
        let config = PacketConfig::new("edge1").frame_bytes_max(SMALL);
        let mut receiver = PacketLink::open(&config).unwrap();
        let local = receiver.caps().local;
        send_and_receive_the_small_ones(&mut sender, &mut receiver, local);
        let statistics = receiver.statistics();
        assert_eq!(statistics.receive_truncated, JUMBOS, "{statistics:?}");
    });
}

#[test]
fn jumbo_frames_beyond_the_chunks_of_an_xdp_link_are_dropped_and_counted() {
    for mode in [XdpMode::Generic, XdpMode::Native] {
        in_namespace(move || {
            let mut sender = jumbo_sender();
            let Some(mut receiver) = open_xdp("edge1", SMALL, mode) else { return };
            let local = receiver.caps().local;
            send_and_receive_the_small_ones(&mut sender, &mut receiver, local);
            let LinkStatistics { receive_truncated, receive_kernel_drops, .. } =
                receiver.statistics();
            assert_eq!(receive_truncated + receive_kernel_drops, JUMBOS, "{mode}");
        });
    }
}

//= protocol.md: envelope.2
#[test]
fn frames_of_another_station_with_our_address_are_dropped_and_counted() {
    for is_xdp in [false, true] {
        in_namespace(move || {
            ip("link set edge0 address 02:00:00:00:00:07");
            ip("link set edge1 address 02:00:00:00:00:07");
            let mut sender = PacketLink::open(&PacketConfig::new("edge0")).unwrap();
            let (mut packet, mut xdp);
            let receiver: &mut dyn Link = if is_xdp {
                let Some(opened) = open_xdp("edge1", 1488, XdpMode::Generic) else { return };
                xdp = opened;
                &mut xdp
            } else {
                packet = PacketLink::open(&PacketConfig::new("edge1")).unwrap();
                &mut packet
            };
            let local = receiver.caps().local;
            let station = |address: PeerAddr| address.to_mac().map(|(station, _)| station);
            assert_eq!(station(local), station(sender.caps().local));
            send(&mut sender, local, b"from ourselves?");
            until(|| {
                receiver.receive(Instant(0), 64, &mut |_| panic!("whose is it?")).unwrap();
                receiver.statistics().receive_own_station == 1
            });
            // If the other station has an address of its own, the receiver accepts its frames.
            ip("link set edge0 address 02:00:00:00:00:08");
            let mut sender = PacketLink::open(&PacketConfig::new("edge0")).unwrap();
            send(&mut sender, local, b"from another");
            let mut frames = 0;
            until(|| {
                let mut on_frame = |frame: delivery::RxFrame<'_>| {
                    assert_eq!(frame.bytes, b"from another");
                    assert_eq!(frame.from, sender.caps().local);
                };
                frames += receiver.receive(Instant(0), 64, &mut on_frame).unwrap();
                frames == 1
            });
            assert_eq!(receiver.statistics().receive_own_station, 1);
        });
    }
}

#[test]
fn two_interfaces_with_one_address_get_their_own_frames() {
    in_namespace(|| {
        ip("link add edge2 type veth peer name edge3");
        for (interface, address) in [("edge0", 1), ("edge1", 7), ("edge2", 2), ("edge3", 7)] {
            ip(&format!("link set {interface} address 02:00:00:00:00:0{address}"));
            ip(&format!("link set {interface} up"));
        }
        // Both receivers have the same station and port. Only their networks differ.
        let open = |interface: &str, port| {
            let config = PacketConfig::new(interface).port(port);
            PacketLink::open(&config).unwrap()
        };
        let mut receivers = [open("edge1", 7471), open("edge3", 7471)];
        let [first, second] = [0, 1].map(|index| receivers[index].caps().local);
        assert_eq!(first, second);
        let mut senders = [open("edge0", 0), open("edge2", 0)];
        for round in 0..50_u8 {
            for (index, sender) in senders.iter_mut().enumerate() {
                send(sender, first, &[index as u8, round]);
            }
        }
        for (index, receiver) in receivers.iter_mut().enumerate() {
            let from = senders[index].caps().local;
            let mut round = 0;
            until(|| {
                let mut on_frame = |frame: delivery::RxFrame<'_>| {
                    assert_eq!((&*frame.bytes, frame.from), (&[index as u8, round][..], from));
                    round += 1;
                };
                receiver.receive(Instant(0), 64, &mut on_frame).unwrap();
                round == 50
            });
        }
    });
}

/// Sets both ends of the pair to jumbo frames and returns a link that sends them.
fn jumbo_sender() -> PacketLink {
    for end in ["edge0", "edge1"] {
        ip(&format!("link set {end} mtu 9000"));
    }
    let sender = PacketLink::open(&PacketConfig::new("edge0")).unwrap();
    assert_eq!(sender.caps().frame_bytes_max, 8988);
    sender
}

/// Sends jumbo frames of several sizes among small frames, and checks that only the small frames
/// arrive.
fn send_and_receive_the_small_ones(
    sender: &mut PacketLink,
    receiver: &mut impl Link,
    to: PeerAddr,
) {
    let sizes = [100, 8988, usize::from(SMALL), 5000, 4200, 1];
    for bytes in sizes {
        send(sender, to, &vec![bytes as u8; bytes]);
    }
    let mut received = Vec::new();
    until(|| {
        let mut on_frame = |frame: delivery::RxFrame<'_>| {
            assert!(frame.bytes.iter().all(|&byte| byte == frame.bytes.len() as u8));
            received.push(frame.bytes.len());
        };
        receiver.receive(Instant(0), 64, &mut on_frame).unwrap();
        received.len() == 3
    });
    assert_eq!(received, [100, usize::from(SMALL), 1]);
}

/// Opens a link for frames of up to `frame_bytes_max` bytes. Returns `None` if this host permits no
/// such link.
fn open_xdp(interface: &str, frame_bytes_max: u16, mode: XdpMode) -> Option<XdpLink> {
    let mode = Some(mode);
    match XdpLink::open(&XdpConfig::new(interface).frame_bytes_max(frame_bytes_max).mode(mode)) {
        Ok(link) => Some(link),
        Err(error @ (XdpError::Unsupported { .. } | XdpError::NoPermission { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn send(link: &mut PacketLink, to: PeerAddr, frame: &[u8]) {
    let mut batch = TxBatch::new(1, frame.len());
    batch.reset(to);
    batch.header_mut().extend_from_slice(frame);
    batch.finish_frame(PayloadSlice::EMPTY);
    assert_eq!(link.send(&batch).unwrap(), 1);
}

/// Waits until `condition` is true.
fn until(mut condition: impl FnMut() -> bool) {
    let started = HostInstant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "the condition never became true");
    }
}

/// Largest frame that the receivers accept, in bytes. `JUMBOS` is the number of larger frames that
/// the test sends to them.
const SMALL: u16 = 1488;
const JUMBOS: u64 = 3;

/// Time limit for a failing test. All tests take far less time.
const LIMIT: Duration = Duration::from_secs(20);
