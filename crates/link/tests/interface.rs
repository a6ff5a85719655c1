//! Tests that a UDP link follows its interface. Needs root: each test has its own network
//! namespace.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod namespace;

use std::os::fd::AsRawFd;

use delivery::{Evidence, Instant, LinkEvent, TxBatch};
use link::{Link, UdpConfig, UdpFeatures, UdpLink};
use mem::PayloadSlice;
use wire_edge::PeerAddr;

use namespace::{Carrier, await_carrier, in_namespace, ip};

#[test]
fn frame_sizes_and_carrier_are_those_of_the_interface() {
    in_namespace(|| {
        let mut link = bind("10.9.9.1:0", UdpFeatures::ALL);
        let caps = link.caps();
        assert_eq!((caps.frame_bytes_max, caps.frame_bytes_safe, caps.rate), (1472, 1472, None));
        let mut now = Instant(0);
        let mut turn = |link: &mut UdpLink| {
            now = now.after_ns(200_000_000);
            link.receive(now, 64, &mut |_| {}).unwrap();
            link.poll_event()
        };
        assert!(turn(&mut link).is_none());
        ip("link set edge0 mtu 9000");
        let event = turn(&mut link);
        assert!(
            matches!(event, Some(LinkEvent::Changed(caps))
                if (caps.frame_bytes_max, caps.frame_bytes_safe) == (8972, 1472)),
            "{event:?}"
        );
        ip("link set edge1 down");
        await_carrier(Carrier::Down);
        assert!(matches!(turn(&mut link), Some(LinkEvent::Down)));
        assert!(turn(&mut link).is_none());
        ip("link set edge1 up");
        await_carrier(Carrier::Up);
        assert!(matches!(turn(&mut link), Some(LinkEvent::Changed(_))));
        ip("link delete edge0");
        assert!(matches!(turn(&mut link), Some(LinkEvent::Down)));
    });
}

#[test]
fn frames_that_the_interface_queue_never_accepts_are_lost() {
    in_namespace(|| {
        let mut link = bind("10.9.9.1:0", UdpFeatures::ALL);
        // The token bucket is too small for any of the frames, so the interface refuses all of
        // them.
        let shaper = "qdisc replace dev edge0 root tbf rate 100mbit burst 1200 latency 10ms";
        let tc = std::process::Command::new("tc").args(shaper.split(' ')).status();
        if !tc.is_ok_and(|status| status.success()) {
            println!("skipped: the kernel or `tc` knows no token buckets");
            return;
        }
        ip("neigh replace 10.9.9.77 lladdr 02:00:00:00:00:07 dev edge0");
        let mut batch = TxBatch::new(2, 2800);
        batch.reset(PeerAddr::from("10.9.9.77:7".parse::<std::net::SocketAddr>().unwrap()));
        for _ in 0..2 {
            batch.header_mut().extend_from_slice(&[3; 1400]);
            batch.finish_frame(PayloadSlice::EMPTY);
        }
        assert_eq!(link.send(&batch).unwrap(), 0);
        let taken = (0..=10_u64).map(|ms| {
            link.receive(Instant(ms * 1_000_000), 64, &mut |_| {}).unwrap();
            link.send(&batch).unwrap()
        });
        assert!(taken.sum::<usize>() > 0, "every frame was refused");
    });
}

#[test]
fn interface_events_wake_a_sleeper() {
    in_namespace(|| {
        let mut link = bind("10.9.9.1:0", UdpFeatures::ALL);
        let mut now = Instant(1_000_000);
        link.receive(now, 64, &mut |_| {}).unwrap();
        ip("link set edge0 mtu 1400");
        assert!(is_readable(&link, 10_000));
        while is_readable(&link, 0) {
            now = now.after_ns(1_000_000);
            link.receive(now, 64, &mut |_| {}).unwrap();
        }
        let event = link.poll_event();
        assert!(
            matches!(event, Some(LinkEvent::Changed(caps)) if caps.frame_bytes_max == 1372),
            "{event:?}"
        );
    });
}

#[test]
fn a_link_on_all_addresses_uses_the_smallest_mtu() {
    in_namespace(|| {
        ip("link set edge1 mtu 1400");
        let caps = bind("0.0.0.0:0", UdpFeatures::ALL).caps();
        assert_eq!((caps.frame_bytes_max, caps.frame_bytes_safe), (1372, 1200));
    });
}

#[test]
fn frames_beyond_the_interface_mtu_are_lost_and_reported() {
    for features in [UdpFeatures::ALL, UdpFeatures::NONE] {
        in_namespace(move || {
            let mut link = bind("10.9.9.1:0", features);
            let peer = PeerAddr::from("10.9.9.2:4791".parse::<std::net::SocketAddr>().unwrap());
            let mut batch = TxBatch::new(4, 4 * 1473);
            batch.reset(peer);
            for _ in 0..4 {
                let end = batch.header_mut().len() + 1473;
                batch.header_mut().resize(end, 0);
                batch.finish_frame(PayloadSlice::EMPTY);
            }
            assert_eq!(link.send(&batch).unwrap(), 4);
            assert_eq!(link.statistics().send_too_big, 4);
            assert_eq!(link.features(), features, "the frames were at fault, not segmentation");
            let event = link.poll_event();
            assert!(
                matches!(event, Some(LinkEvent::TooBig(to, 1472, Evidence::Local)) if to == peer),
                "{event:?}"
            );
        });
    }
}

#[test]
fn frames_without_a_route_are_lost_and_the_link_continues() {
    in_namespace(|| {
        let mut link = bind("10.9.9.1:0", UdpFeatures::ALL);
        let mut batch = TxBatch::new(1, 40);
        batch.reset("192.0.2.1:9".parse::<std::net::SocketAddr>().unwrap().into());
        batch.header_mut().resize(40, 0);
        batch.finish_frame(PayloadSlice::EMPTY);
        assert_eq!(link.send(&batch).unwrap(), 1);
        assert_eq!(link.statistics().send_unreachable, 1);
        assert_eq!(link.receive(Instant(0), 1, &mut |_| {}).unwrap(), 0);
    });
}

fn bind(address: &str, features: UdpFeatures) -> UdpLink {
    let config = UdpConfig::default().features(features);
    UdpLink::bind(address.parse().unwrap(), &config).unwrap()
}

/// Returns whether one of the link's descriptors is readable, or becomes readable within
/// `limit_ms`.
fn is_readable(link: &UdpLink, limit_ms: i32) -> bool {
    let mut polled: Vec<libc::pollfd> = link
        .wait_fds()
        .into_iter()
        .flatten()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the array has the length given.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) > 0 }
}
