//! Tests that frames sent over UDP links on loopback arrive, with all capabilities and with each
//! capability disabled.
#![expect(clippy::disallowed_methods, reason = "real sockets live in real time")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time;

use delivery::{Evidence, Instant, LinkEvent, TxBatch};
use link::{Link, PayloadUnmapped, UdpConfig, UdpError, UdpFeatures, UdpLink};
use mem::PayloadSlice;
use wire_edge::PeerAddr;

//= protocol.md: frame.1
#[test]
fn frames_arrive_whole_and_in_order_with_every_set_of_capabilities() {
    let with = |change: fn(&mut UdpFeatures)| {
        let mut features = UdpFeatures::ALL;
        change(&mut features);
        features
    };
    let sets = [
        UdpFeatures::ALL,
        UdpFeatures::NONE,
        with(|f| f.segmentation = false),
        with(|f| f.coalescing = false),
        with(|f| f.batching = false),
        with(|f| f.timestamps = false),
        with(|f| f.congestion_marks = false),
        with(|f| f.error_queue = false),
        with(|f| f.forced_buffers = false),
        with(|f| f.drop_count = false),
        with(|f| f.connected_peer = false),
    ];
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for features in sets {
            let Some(mut pair) = Pair::new(address, features) else { continue };
            pair.exchange(&[(40, 0); 200]);
            pair.exchange(&[(32, 1440); 60]);
            pair.exchange(&[(40, 0), (32, 900), (32, 900), (32, 100), (64, 0), (1, 0), (0, 9000)]);
            assert_eq!(pair.sender.statistics().fallbacks, 0, "{features:?}");
        }
    }
}

#[test]
fn links_of_unlike_capabilities_understand_each_other() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    pair.receiver = bind("127.0.0.1:0", UdpFeatures::NONE).unwrap();
    pair.exchange(&[(32, 1440); 100]);
    pair.sender = bind("127.0.0.1:0", UdpFeatures::NONE).unwrap();
    pair.receiver = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    pair.exchange(&[(32, 1440); 100]);
}

#[test]
fn equal_frames_travel_in_one_message() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    if !pair.sender.features().segmentation || !pair.receiver.features().coalescing {
        println!("skipped: this kernel has no UDP segmentation");
        return;
    }
    pair.exchange(&[(32, 1440); 44]);
    let (sent, received) = (pair.sender.statistics(), pair.receiver.statistics());
    assert_eq!((sent.send_calls, sent.send_messages, sent.send_frames), (1, 1, 44));
    assert_eq!((received.receive_messages, received.receive_frames), (1, 44));
}

#[test]
fn dual_stack_link_serves_both_families() {
    let Ok(dual) = bind("[::]:0", UdpFeatures::ALL) else {
        println!("skipped: this host has no IPv6");
        return;
    };
    let port = dual.caps().local.to_socket().unwrap().port();
    let mut pair =
        Pair { sender: bind("127.0.0.1:0", UdpFeatures::ALL).unwrap(), receiver: dual, to: None };
    pair.to = Some(SocketAddr::from(([127, 0, 0, 1], port)).into());
    pair.exchange(&[(32, 1000); 20]);
    core::mem::swap(&mut pair.sender, &mut pair.receiver);
    pair.to = None;
    pair.exchange(&[(32, 1000); 20]);
}

#[test]
fn the_reception_time_is_shortly_before_the_turn() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    for _ in 0..3 {
        pair.send(&[(40, 0); 3]);
        let now = clock();
        let mut seen = 0;
        while seen < 3 {
            pair.receiver
                .receive(now, 16, &mut |frame| {
                    seen += 1;
                    assert!(frame.received_at <= now);
                    assert!(now.since_ns(frame.received_at) < 1_000_000_000);
                })
                .unwrap();
        }
    }
}

#[test]
fn congestion_marks_are_reported() {
    let mark = 3_i32;
    for (address, level, name) in [
        ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_TOS),
        ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    ] {
        let Ok(mut link) = bind(address, UdpFeatures::ALL) else { continue };
        let socket = std::net::UdpSocket::bind(address).unwrap();
        // SAFETY: the pointer and the length describe `mark`.
        let result = unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const mark).cast(), 4)
        };
        assert_eq!(result, 0);
        socket.send_to(b"marked", link.caps().local.to_socket().unwrap()).unwrap();
        let mut is_marked = None;
        while is_marked.is_none() {
            link.receive(clock(), 1, &mut |f| is_marked = Some(f.congestion_experienced)).unwrap();
        }
        assert_eq!(is_marked, Some(true), "{address}");
    }
}

#[test]
fn an_empty_receive_takes_one_system_call() {
    let mut link = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    for turn in 1..=5 {
        assert_eq!(link.receive(clock(), 64, &mut |_| unreachable!()).unwrap(), 0);
        assert_eq!(link.statistics().receive_calls, turn);
    }
}

#[test]
fn a_closed_port_is_reported_and_the_link_keeps_working() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    let gone = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    let gone_at = gone.caps().local;
    drop(gone);
    let mut batch = TxBatch::new(4, 256);
    batch.reset(gone_at);
    batch.header_mut().extend_from_slice(b"is anyone there?");
    batch.finish_frame(PayloadSlice::EMPTY);
    assert_eq!(pair.sender.send(&batch).unwrap(), 1);
    // The error report may arrive during a receive, or during a send to another peer. Neither call
    // may fail because of the report.
    pair.exchange(&[(40, 0); 10]);
    pair.sender.receive(clock(), 16, &mut |_| {}).unwrap();
    let event = pair.sender.poll_event();
    let quoted = Evidence::Quoted(*b"is anyone there?");
    let expected = |event| matches!(event, Some(LinkEvent::Refused(peer, evidence)) if peer == gone_at && evidence == quoted);
    assert!(expected(event), "{event:?}");
}

#[test]
fn a_frame_beyond_the_interface_mtu_is_lost_and_reported() {
    for features in [UdpFeatures::ALL, UdpFeatures::NONE] {
        let mut pair = Pair::new("127.0.0.1:0", features).unwrap();
        pair.send_to_peer(&[(66_000, 0), (40, 0)]);
        assert_eq!(pair.sender.statistics().send_too_big, 1);
        let event = pair.sender.poll_event();
        let to = pair.receiver.caps().local;
        assert!(
            matches!(event, Some(LinkEvent::TooBig(peer, _, Evidence::Local)) if peer == to),
            "{event:?}"
        );
        let mut sizes = vec![];
        while sizes.is_empty() {
            pair.receiver.receive(clock(), 16, &mut |f| sizes.push(f.bytes.len())).unwrap();
        }
        assert_eq!(sizes, [40]);
    }
}

#[test]
fn unmapped_payload_fails_only_its_frame() {
    for features in [UdpFeatures::ALL, UdpFeatures::NONE] {
        let mut pair = Pair::new("127.0.0.1:0", features).unwrap();
        let payload = vec![7_u8; 1000];
        let mut batch = TxBatch::new(8, 1024);
        batch.reset(pair.receiver.caps().local);
        for index in 0..4 {
            batch.header_mut().extend_from_slice(&[index; 32]);
            // The lowest page is never mapped, so this payload cannot be read.
            let start = if index == 2 { 64 as *const u8 } else { payload.as_ptr() };
            batch.finish_frame(PayloadSlice::at(start, 1000));
        }
        let error = pair.sender.send(&batch).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(PayloadUnmapped::from_io(&error), Some(PayloadUnmapped { frame: 2 }));
        let mut first = vec![];
        while first.len() < 2 {
            pair.receiver.receive(clock(), 16, &mut |f| first.push(f.bytes[0])).unwrap();
        }
        assert_eq!(first, [0, 1]);
        assert_eq!(pair.sender.features(), pair.receiver.features());
        pair.exchange(&[(32, 1000); 10]);
    }
}

#[test]
fn frames_to_a_peer_of_another_family_are_lost_without_an_error() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    let to = pair.to.replace("[::1]:9".parse::<SocketAddr>().unwrap().into());
    pair.send(&[(40, 0); 3]);
    assert_eq!(pair.sender.statistics().send_unreachable, 3);
    pair.to = to;
    pair.exchange(&[(40, 0); 3]);
}

#[test]
fn errors_name_an_address_in_use_or_a_foreign_address() {
    let link = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    let taken = link.caps().local.to_socket().unwrap();
    let error = UdpLink::bind(taken, &UdpConfig::default()).unwrap_err();
    assert!(matches!(error, UdpError::AddressInUse { address } if address == taken));
    assert!(error.to_string().contains(&taken.to_string()));
    let error = bind("192.0.2.1:0", UdpFeatures::ALL).unwrap_err();
    assert!(matches!(error, UdpError::NoSuchAddress { .. }), "{error}");
}

#[test]
fn descriptor_is_readable_when_frames_wait() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    assert!(!is_readable(&pair.receiver));
    pair.send(&[(40, 0)]);
    assert!(is_readable(&pair.receiver));
    pair.receiver.receive(clock(), 16, &mut |_| {}).unwrap();
    assert!(!is_readable(&pair.receiver));
}

#[test]
fn a_full_receive_buffer_is_detected() {
    let config = UdpConfig::default().receive_buffer_bytes(4096);
    let mut receiver = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &config).unwrap();
    let sender = bind("127.0.0.1:0", UdpFeatures::NONE).unwrap();
    let to = receiver.caps().local;
    let mut pair =
        Pair { sender, receiver: bind("127.0.0.1:0", UdpFeatures::ALL).unwrap(), to: Some(to) };
    pair.send(&[(1000, 0); 100]);
    while receiver.receive(clock(), 1000, &mut |_| {}).unwrap() > 0 {}
    // The kernel reports the number of dropped frames with the next frame for which it has room.
    pair.send(&[(1000, 0); 1]);
    while receiver.receive(clock(), 1000, &mut |_| {}).unwrap() == 0 {}
    let statistics = receiver.statistics();
    assert!(statistics.receive_kernel_drops > 0);
    assert_eq!(statistics.receive_frames + statistics.receive_kernel_drops, 101);
}

#[test]
fn busy_peer_gets_a_socket_of_its_own_and_no_frame_is_lost_or_out_of_order() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Some(mut pair) = Pair::new(address, UdpFeatures::ALL) else { continue };
        // The link opens and closes the connected socket while frames are in flight: the receiver
        // is up to 50 frames behind.
        for _ in 0..20 {
            pair.exchange(&[(40, 0), (41, 0), (42, 0), (43, 0), (44, 0)].repeat(10));
        }
        assert_eq!(pair.receiver.statistics().connected, 1);
        assert!(matches!(pair.receiver.poll_event(), Some(LinkEvent::Descriptors)));
        // The reverse direction uses the connected socket.
        (pair.sender, pair.receiver) = (pair.receiver, pair.sender);
        for _ in 0..20 {
            pair.exchange(&[(40, 0); 5]);
            pair.exchange(&[(32, 1440); 44]);
        }
        assert_eq!(pair.receiver.statistics().receive_kernel_drops, 0);
    }
}

#[test]
fn reception_times_are_requested_only_while_frames_arrive_close_together() {
    let mut pair = busy_pair();
    let stamped_before = |pair: &mut Pair, frames: &[(usize, usize)]| {
        let mut left = pair.send(frames).len();
        let mut stamped_before = 0;
        // Wait longer than the error of the conversion between the kernel's clock and the engine's
        // clock.
        let sent_at = clock();
        while clock().since_ns(sent_at) < 500_000 {}
        while left > 0 {
            let now = clock();
            let came = pair.receiver.receive(now, 64, &mut |frame| {
                stamped_before += usize::from(frame.received_at < now);
            });
            left -= came.unwrap();
        }
        // A call without a frame counts as a pause.
        assert_eq!(pair.receiver.receive(clock(), 64, &mut |_| {}).unwrap(), 0);
        stamped_before
    };
    for _ in 0..200 {
        stamped_before(&mut pair, &[(40, 0)]);
    }
    assert_eq!(stamped_before(&mut pair, &[(40, 0)]), 0);
    stamped_before(&mut pair, &[(40, 0); 44]);
    assert_eq!(stamped_before(&mut pair, &[(40, 0); 44]), 44);
}

#[test]
fn other_peers_are_received_beside_the_busy_one_and_can_replace_it() {
    let mut pair = busy_pair();
    let (first, second) = (pair.sender, bind("127.0.0.1:0", UdpFeatures::ALL).unwrap());
    pair.sender = second;
    for _ in 0..60 {
        pair.exchange(&[(40, 0)]);
    }
    assert_eq!(pair.receiver.statistics().connected, 1, "a few frames are no reason to change");
    for _ in 0..300 {
        pair.exchange(&[(40, 0)]);
    }
    assert_eq!(pair.receiver.statistics().connected, 2);
    pair.sender = first;
    pair.exchange(&[(40, 0); 10]);
    let events: Vec<_> = std::iter::from_fn(|| pair.receiver.poll_event()).collect();
    assert_eq!(events.len(), 3, "opened, closed, opened: {events:?}");
}

#[test]
fn frames_of_the_busy_peer_make_a_descriptor_readable() {
    let mut pair = busy_pair();
    assert!(!is_readable(&pair.receiver));
    pair.send_to_peer(&[(40, 0)]);
    assert!(is_readable(&pair.receiver));
    pair.receiver.receive(clock(), 16, &mut |_| {}).unwrap();
    assert!(!is_readable(&pair.receiver));
}

#[test]
fn a_busy_peer_that_closed_its_port_is_reported() {
    let mut pair = busy_pair();
    let gone_at = pair.sender.caps().local;
    pair.sender = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    while pair.receiver.poll_event().is_some() {}
    let mut batch = TxBatch::new(4, 256);
    batch.reset(gone_at);
    batch.header_mut().extend_from_slice(b"is anyone there?");
    batch.finish_frame(PayloadSlice::EMPTY);
    assert_eq!(pair.receiver.send(&batch).unwrap(), 1);
    pair.exchange(&[(40, 0); 10]);
    let event = pair.receiver.poll_event();
    let quoted = Evidence::Quoted(*b"is anyone there?");
    let expected = |event| matches!(event, Some(LinkEvent::Refused(peer, evidence)) if peer == gone_at && evidence == quoted);
    assert!(expected(event), "{event:?}");
    // Open the link again at the same address.
    let address = gone_at.to_socket().unwrap();
    pair.sender = UdpLink::bind(address, &UdpConfig::default()).unwrap();
    pair.exchange(&[(40, 0); 10]);
}

#[test]
fn no_other_socket_gets_the_address_of_a_link_with_a_busy_peer() {
    let pair = busy_pair();
    let taken = pair.receiver.caps().local.to_socket().unwrap();
    let error = UdpLink::bind(taken, &UdpConfig::default()).unwrap_err();
    assert!(matches!(error, UdpError::AddressInUse { .. }), "{error}");
}

#[test]
fn link_on_all_addresses_has_no_connected_socket() {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    pair.receiver = bind("0.0.0.0:0", UdpFeatures::ALL).unwrap();
    let port = pair.receiver.caps().local.to_socket().unwrap().port();
    pair.to = Some(PeerAddr::from(SocketAddr::from(([127, 0, 0, 1], port))));
    for _ in 0..200 {
        pair.exchange(&[(40, 0)]);
    }
    assert!(!pair.receiver.features().connected_peer);
    assert_eq!(pair.receiver.statistics().connected, 0);
}

#[test]
fn buffer_sizes_beyond_the_limit_produce_a_hint() {
    let features = UdpFeatures::ALL.forced_buffers(false);
    let config = UdpConfig::default().receive_buffer_bytes(1 << 30).features(features);
    let link = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &config).unwrap();
    if link.hints().is_empty() {
        println!("skipped: this host allows buffers of 1 GiB");
        return;
    }
    assert!(link.hints()[0].contains("sysctl -w net.core.rmem_max=1073741824"));
}

#[test]
fn loopback_frames_use_the_large_mtu() {
    let caps = bind("127.0.0.1:0", UdpFeatures::ALL).unwrap().caps();
    assert_eq!((caps.frame_bytes_max, caps.frame_bytes_safe), (9200, 9200));
    assert!(caps.receive_buffer_bytes > 0);
}

struct Pair {
    sender: UdpLink,
    receiver: UdpLink,
    /// Destination of the frames; `None` stands for the receiver's own address.
    to: Option<PeerAddr>,
}

impl Pair {
    fn new(address: &str, features: UdpFeatures) -> Option<Self> {
        let bind = || match bind(address, features) {
            Ok(link) => Some(link),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        };
        Some(Self { sender: bind()?, receiver: bind()?, to: None })
    }

    /// Sends frames, each given as (header bytes, payload bytes), and checks that they arrive
    /// unchanged.
    fn exchange(&mut self, frames: &[(usize, usize)]) {
        let sent = self.send(frames);
        let from = self.sender.caps().local;
        let mut received = Vec::new();
        while received.len() < sent.len() {
            self.receiver
                .receive(clock(), 64, &mut |frame| {
                    assert!(from.to_socket().unwrap().ip().is_unspecified() || frame.from == from);
                    assert!(!frame.congestion_experienced);
                    received.push(frame.bytes.to_vec());
                })
                .unwrap();
        }
        assert!(received == sent, "{frames:?}");
    }

    fn send_to_peer(&mut self, frames: &[(usize, usize)]) {
        self.send(frames);
    }

    fn send(&mut self, frames: &[(usize, usize)]) -> Vec<Vec<u8>> {
        let memory: Vec<u8> = (0..20_000_u32).map(|i| (i * 7 / 3) as u8).collect();
        let mut batch = TxBatch::new(frames.len(), 1 << 16);
        batch.reset(self.to.unwrap_or(self.receiver.caps().local));
        let mut expected = Vec::new();
        for (index, &(header, payload)) in frames.iter().enumerate() {
            let header = vec![index as u8; header];
            let payload = &memory[index * 13..index * 13 + payload];
            batch.header_mut().extend_from_slice(&header);
            batch.finish_frame(PayloadSlice::at(payload.as_ptr(), payload.len() as u32));
            expected.push([&header, payload].concat());
        }
        assert_eq!(self.sender.send(&batch).unwrap(), frames.len());
        expected
    }
}

/// Returns a pair whose receiver has a socket connected to the sender.
fn busy_pair() -> Pair {
    let mut pair = Pair::new("127.0.0.1:0", UdpFeatures::ALL).unwrap();
    for _ in 0..200 {
        pair.exchange(&[(40, 0)]);
    }
    assert_eq!(pair.receiver.statistics().connected, 1);
    pair
}

fn bind(address: &str, features: UdpFeatures) -> Result<UdpLink, UdpError> {
    UdpLink::bind(address.parse().unwrap(), &UdpConfig::default().features(features))
}

/// Returns the nanoseconds since the first call.
fn clock() -> Instant {
    static START: std::sync::LazyLock<time::Instant> = std::sync::LazyLock::new(time::Instant::now);
    Instant(START.elapsed().as_nanos() as u64)
}

fn is_readable(link: &UdpLink) -> bool {
    link.wait_fds().into_iter().flatten().any(|fd| {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, and a timeout of zero.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    })
}
