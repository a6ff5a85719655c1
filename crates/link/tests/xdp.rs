//! `AF_XDP` links between virtual interfaces. Needs root: each test has its own network namespaces.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use delivery::{Instant, LinkEvent, TxBatch};
use link::packet::discover;
use link::yardstick::xdp::BareXdp;
use link::{
    Interface, Link, PacketConfig, PacketLink, PayloadUnmapped, XdpConfig, XdpError, XdpLink,
    XdpMode,
};
use mem::PayloadSlice;
use wire_edge::{ENVELOPE_BYTES_COVERED, ETHERTYPE_DEFAULT, Envelope, EnvelopeKind};

const MODES: [XdpMode; 2] = [XdpMode::Generic, XdpMode::Native];

#[test]
fn frames_of_any_size_cross_unchanged() {
    for (mtu, mode) in [1500, 3498, 9000].into_iter().flat_map(|mtu| MODES.map(|m| (mtu, m))) {
        for vlan in [None, Some(7)] {
            in_namespace(move || {
                ip(&format!("link set edge0 mtu {mtu}"));
                ip(&format!("link set edge1 mtu {mtu}"));
                let open = |interface| open(&on(interface).mode(Some(mode)).vlan(vlan));
                let (mut first, mut second) = (open("edge0"), open("edge1"));
                assert_eq!(first.mode(), Some(mode));
                let caps = first.caps();
                assert_eq!(usize::from(caps.frame_bytes_max), mtu - 12);
                assert_eq!(caps.frame_bytes_safe, 1200, "the peer's MTU is not known");
                let max = mtu - 12;
                for bytes in [1, 8, 40, 46, 64, 1000, max / 2, max - 1, max] {
                    exchange(&mut first, &mut second, bytes);
                    exchange(&mut second, &mut first, bytes);
                }
                let statistics = second.statistics();
                assert_eq!(statistics.receive_frames, 9 * FRAMES as u64);
                assert_eq!(statistics.receive_calls, 0, "rings are read without system calls");
            });
        }
    }
}

#[test]
fn frames_too_big_or_without_a_receiver_are_lost_and_counted() {
    in_namespace(|| {
        let (mut first, second) = (open(&on("edge0")), open(&on("edge1")));
        let mut batch = TxBatch::new(4, 8000);
        batch.reset(second.caps().local);
        push(&mut batch, 1489, PayloadSlice::EMPTY);
        push(&mut batch, 40, PayloadSlice::EMPTY);
        assert_eq!(first.send(&batch).unwrap(), 2);
        let statistics = first.statistics();
        assert_eq!((statistics.send_too_big, statistics.send_frames), (1, 1));
        batch.reset("10.9.9.2:7".parse::<std::net::SocketAddr>().unwrap().into());
        push(&mut batch, 40, PayloadSlice::EMPTY);
        assert_eq!(first.send(&batch).unwrap(), 1);
        assert_eq!(first.statistics().send_unreachable, 1);
    });
}

#[test]
fn unmapped_payload_is_reported_and_earlier_frames_are_sent() {
    in_namespace(|| {
        let (mut first, mut second) = (open(&on("edge0")), open(&on("edge1")));
        let payload = [7_u8; 100];
        let good = PayloadSlice::at(payload.as_ptr(), 100);
        // The lowest page is never mapped, so this payload cannot be read.
        let gone = PayloadSlice::at(64 as *const u8, 100);
        let mut batch = TxBatch::new(8, 800);
        batch.reset(second.caps().local);
        for payload in [good, PayloadSlice::EMPTY, good, gone, good] {
            push(&mut batch, 40, payload);
        }
        let error = first.send(&batch).unwrap_err();
        assert_eq!(PayloadUnmapped::from_io(&error), Some(PayloadUnmapped { frame: 3 }));
        let mut lengths = vec![];
        until(|| {
            let mut on_frame = |frame: delivery::RxFrame<'_>| lengths.push(frame.bytes.len());
            second.receive(Instant(0), 64, &mut on_frame).unwrap();
            lengths.len() >= 3
        });
        assert_eq!(lengths, [140, 40, 140]);
        // These exchanges need more than the 512 slots of the link. So they work only if the link
        // frees its slots, including those of the failed batch.
        for _ in 0..600 {
            exchange(&mut first, &mut second, 300);
        }
    });
}

#[test]
fn frames_beyond_the_ring_are_dropped_and_counted() {
    in_namespace(|| {
        let config = |interface| on(interface).receive_frames(64);
        let (mut first, mut second) = (open(&config("edge0")), open(&config("edge1")));
        let mut batch = TxBatch::new(32, 3200);
        batch.reset(second.caps().local);
        for _ in 0..32 {
            push(&mut batch, 100, PayloadSlice::EMPTY);
        }
        for _ in 0..8 {
            assert_eq!(first.send(&batch).unwrap(), 32);
        }
        until(|| second.statistics().receive_kernel_drops >= 256 - 64);
        let mut frames = 0;
        until(|| {
            frames += second.receive(Instant(0), 64, &mut |_| {}).unwrap();
            frames == 64
        });
        exchange(&mut first, &mut second, 100);
    });
}

#[test]
fn packet_links_and_xdp_links_understand_each_other() {
    for vlan in [None, Some(7)] {
        in_namespace(move || {
            let mut first = open(&on("edge0").vlan(vlan));
            let packet = PacketConfig::new("edge1").vlan(vlan);
            let mut second = PacketLink::open(&packet).unwrap();
            for bytes in [1, 46, 700, 1488] {
                exchange(&mut first, &mut second, bytes);
                exchange(&mut second, &mut first, bytes);
            }
        });
    }
}

#[test]
fn bare_frames_go_back_and_forth() {
    in_namespace(|| {
        let open = |interface| BareXdp::open(&on(interface).port(7), 64).unwrap();
        let (mut first, mut second) = (open("edge0"), open("edge1"));
        for _ in 0..1000 {
            first.send(second.station()).unwrap();
            until(|| second.poll() == Some(first.station()));
            second.send(first.station()).unwrap();
            until(|| first.poll() == Some(second.station()));
        }
        assert!(first.poll().is_none() && second.poll().is_none());
    });
}

//= protocol.md: envelope.5
#[test]
fn broadcast_requests_are_answered() {
    in_namespace(|| {
        let mut link = open(&on("edge0"));
        let (station, port) = link.caps().local.to_mac().unwrap();
        let asking = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let asker = thread::spawn(move || {
            // SAFETY: the call takes no pointers, and only this thread changes its namespace.
            assert_eq!(unsafe { libc::setns(asking.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            discover("edge1", ETHERTYPE_DEFAULT, None, port, Duration::from_secs(20))
        });
        let mut clock = 0;
        until(|| {
            clock += 5_000_000;
            link.receive(Instant(clock), 64, &mut |_| panic!("no frame")).unwrap();
            asker.is_finished()
        });
        assert_eq!(asker.join().unwrap().unwrap(), [station]);
    });
}

//= protocol.md: envelope.6
#[test]
fn repeated_requests_are_answered_within_the_rate_limit() {
    in_namespace(|| {
        let mut link = open(&on("edge0"));
        let (_, port) = link.caps().local.to_mac().unwrap();
        let (kind, length) = (EnvelopeKind::Discover, 0);
        let unsure = Envelope { kind, length, destination_port: port, source_port: 9, checksum: 0 };
        let checksum = crc32c::crc32c(&unsure.encode()[..ENVELOPE_BYTES_COVERED]);
        let mut question = [0xff; 6].to_vec();
        question.extend([2, 0, 0, 0, 0, 9]);
        question.extend(ETHERTYPE_DEFAULT.to_be_bytes());
        question.extend(Envelope { checksum, ..unsure }.encode());
        // Send one request every 2 ms of the link's time, for less than 100 ms. In this time, the
        // protocol permits 32 answers.
        let mut now = Instant(1_000_000_000);
        for asked in 1..=48 {
            inject("edge1", &question);
            until(|| {
                link.receive(now, 64, &mut |_| panic!("no frame")).unwrap();
                now = now.after_ns(1);
                link.statistics().send_calls >= asked.min(32)
            });
            now = now.after_ns(2_000_000);
        }
        // The link counts this frame after it has handled the last request.
        *question.last_mut().unwrap() ^= 1;
        inject("edge1", &question);
        until(|| {
            link.receive(now, 64, &mut |_| panic!("no frame")).unwrap();
            link.statistics().receive_checksum_errors == 1
        });
        assert_eq!(link.statistics().send_calls, 32);
    });
}

#[test]
fn malformed_frames_are_dropped_and_counted() {
    in_namespace(|| {
        let mut link = open(&on("edge0"));
        let (station, port) = link.caps().local.to_mac().unwrap();
        let frame = |station: [u8; 6], kind: u8, length: u16, content: &[u8]| {
            let mut bytes = station.to_vec();
            bytes.extend([2, 0, 0, 0, 0, 9]);
            bytes.extend(ETHERTYPE_DEFAULT.to_be_bytes());
            bytes.extend([1, kind]);
            bytes.extend(length.to_le_bytes());
            bytes.extend(port.to_be_bytes());
            bytes.extend([0; 6]);
            bytes.extend(content);
            bytes
        };
        inject("edge1", &frame(station, 1, 64, &[0; 64]));
        inject("edge1", &frame(station, 1, 65, &[0; 64]));
        inject("edge1", &frame(station, 9, 64, &[0; 64]));
        inject("edge1", &frame([0xff; 6], 1, 64, &[0; 1480]));
        inject("edge1", &frame([2; 6], 1, 64, &[0; 64]));
        // A frame with our own address arrives if another station uses our address, or the network
        // has a loop.
        let mut own = frame(station, 1, 64, &[0; 64]);
        own[6..12].copy_from_slice(&station);
        inject("edge1", &own);
        // The program ignores frames of another VLAN.
        let mut tagged = frame(station, 1, 64, &[0; 64]);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        inject("edge1", &tagged);
        // The program also ignores a truncated envelope, and another protocol under our
        // `EtherType`.
        inject("edge1", &frame(station, 1, 64, &[])[..20]);
        let mut other = frame(station, 1, 64, &[0; 64]);
        other[14] = 7;
        inject("edge1", &other);
        until(|| {
            link.receive(Instant(0), 64, &mut |_| panic!("no frame is whole")).unwrap();
            link.statistics().receive_checksum_errors == 2
        });
        let statistics = link.statistics();
        assert_eq!(statistics.receive_own_station, 1);
        assert_eq!((statistics.receive_truncated, statistics.receive_foreign), (1, 1));
        assert_eq!((statistics.receive_not_ours, statistics.receive_frames), (0, 0));
    });
}

#[test]
fn other_traffic_still_reaches_the_kernel() {
    for mode in MODES {
        in_namespace(move || {
            let Some(neighbour) = Neighbour::with("edge1") else { return };
            ip("address add 10.9.9.1/24 dev edge0");
            neighbour.ip("address add 10.9.9.2/24 dev edge1");
            let listener = TcpListener::bind("10.9.9.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut link = open(&on("edge0").mode(Some(mode)));
            if Command::new("ping").arg("-V").output().is_ok() {
                assert!(neighbour.run("ping", &["-c", "2", "-i", "0.01", "-W", "5", "10.9.9.1"]));
            }
            let script =
                format!("cat < /dev/zero | head -c 300000 > /dev/tcp/10.9.9.1/{}", address.port());
            let sender = neighbour.spawn("bash", &["-c", &script]);
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert_eq!(received.len(), 300_000);
            drop(sender);
            assert_eq!(link.receive(Instant(0), 64, &mut |_| panic!("not ours")).unwrap(), 0);
        });
    }
}

#[test]
fn the_interface_is_restored_however_the_process_ends() {
    if let Some(interface) = env::var_os(HELD_INTERFACE) {
        return hold(interface.to_str().unwrap());
    }
    for mode in MODES {
        for signal in [libc::SIGKILL, libc::SIGINT, libc::SIGTERM, libc::SIGSEGV] {
            in_namespace(move || {
                let before = [describe("edge0"), describe("edge1")];
                // Use the default action. In the background of a script, SIGINT would otherwise be
                // ignored.
                let mut child = Command::new("env")
                    .arg("--default-signal=INT")
                    .arg(env::current_exe().unwrap())
                    .args(["--exact", "the_interface_is_restored_however_the_process_ends"])
                    .arg("--nocapture")
                    .env(HELD_INTERFACE, format!("edge0 {mode}"))
                    .stdout(Stdio::piped())
                    .stdin(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut said = Vec::new();
                let mut output = child.stdout.take().unwrap();
                let mut byte = [0];
                while !said.ends_with(b"holding") && output.read(&mut byte).unwrap() == 1 {
                    said.push(byte[0]);
                }
                assert!(describe("edge0").contains("xdp"), "{}", describe("edge0"));
                // SAFETY: the call takes no pointers. The process is our child, and no thread has
                // waited for it yet.
                assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
                child.wait().unwrap();
                until(|| [describe("edge0"), describe("edge1")] == before);
            });
        }
        in_namespace(move || {
            let before = [describe("edge0"), describe("edge1")];
            drop(open(&on("edge0").mode(Some(mode))));
            until(|| [describe("edge0"), describe("edge1")] == before);
        });
    }
}

/// Runs in the child process of the test above, and keeps a link open.
fn hold(what: &str) {
    let (interface, mode) = what.split_once(' ').unwrap();
    let mode = MODES.into_iter().find(|known| known.to_string() == mode);
    let link = XdpLink::open(&on(interface).mode(mode)).unwrap();
    print!("holding");
    std::io::stdout().flush().unwrap();
    // Block until the process is killed, or until the parent ends.
    let _ = std::io::stdin().read(&mut [0]);
    drop(link);
}

#[test]
fn an_attached_program_is_named_and_left_unchanged() {
    for (first, second) in MODES.into_iter().flat_map(|a| MODES.map(|b| (a, b))) {
        in_namespace(move || {
            let holder = open(&on("edge0").mode(Some(first)));
            let before = describe("edge0");
            for mode in [Some(second), None] {
                let config = on("edge0").mode(mode);
                for error in
                    [XdpLink::open(&config).unwrap_err(), XdpLink::check(&config).unwrap_err()]
                {
                    let text = error.to_string();
                    assert!(matches!(error, XdpError::Occupied { id: 1.., .. }), "{text}");
                    assert!(text.contains("edge0") && text.contains("\"ethernot_rx\""), "{text}");
                }
            }
            assert_eq!(describe("edge0"), before);
            drop(holder);
            XdpLink::check(&on("edge0")).unwrap();
            drop(open(&on("edge0").mode(Some(second))));
        });
    }
}

#[test]
fn impossible_settings_are_refused_with_a_reason() {
    in_namespace(|| {
        let error = |config: XdpConfig| XdpLink::open(&config).map(drop).unwrap_err();
        let missing = error(on("edge7"));
        assert!(matches!(missing, XdpError::NoSuchInterface { .. }), "{missing}");
        assert!(matches!(error(on("lo")), XdpError::NotEthernet { .. }));
        let queue = error(on("edge0").queue(5));
        assert!(matches!(queue, XdpError::NoSuchQueue { queue: 5, queues: 1, .. }), "{queue}");
        for vlan in [0, 4095, u16::MAX] {
            let vlan = error(on("edge0").vlan(Some(vlan)));
            assert!(matches!(vlan, XdpError::Vlan { .. }), "{vlan}");
        }
        for frames in [0, 63, 100, 1 << 20] {
            let ring = error(on("edge0").receive_frames(frames));
            assert!(matches!(ring, XdpError::RingSize { .. }), "{ring}");
        }
        let ethertype = error(on("edge0").ethertype(1500));
        assert!(matches!(ethertype, XdpError::Ethertype { ethertype: 1500 }), "{ethertype}");
        // Virtual interfaces have no hardware queues, so no hardware can receive into the memory of
        // the process.
        for mtu in [1500, 9000] {
            ip(&format!("link set edge0 mtu {mtu}"));
            let mode = error(on("edge0").mode(Some(XdpMode::ZeroCopy)));
            assert!(matches!(mode, XdpError::ModeUnsupported { .. }), "{mode}");
        }
        assert!(!describe("edge0").contains("xdp"));
        assert_eq!(open(&on("edge0")).hints(), [""; 0]);
        ip("link set edge0 mtu 200");
        let mtu = error(on("edge0"));
        assert!(matches!(mtu, XdpError::MtuTooSmall { mtu_bytes: 200, .. }), "{mtu}");
        ip("link set edge0 down");
        let down = error(on("edge0"));
        assert!(matches!(down, XdpError::InterfaceDown { .. }), "{down}");
        assert!(down.to_string().contains("ip link set edge0 up"), "{down}");
    });
}

//= protocol.md: envelope.7
#[test]
fn a_port_has_one_owner() {
    in_namespace(|| {
        let holder = open(&on("edge0").port(7));
        assert_eq!(holder.port(), 7);
        let error = XdpLink::open(&on("edge0").port(7)).unwrap_err();
        assert!(matches!(error, XdpError::PortTaken { port: 7, .. }), "{error}");
        assert_eq!(open(&on("edge1").port(7)).port(), 7);
    });
}

#[test]
fn an_interface_with_several_queues_is_served_on_the_configured_one() {
    in_namespace(|| {
        ip("link delete edge0");
        ip("link add edge0 numrxqueues 2 numtxqueues 2 type veth peer name edge1 numrxqueues 2");
        put_up();
        let (mut first, mut second) = (open(&on("edge0")), open(&on("edge1")));
        let hints = first.hints();
        assert!(hints.len() == 1 && hints[0].contains("ethtool -L edge0 combined 1"), "{hints:?}");
        exchange(&mut second, &mut first, 100);
        drop(first);
        assert_eq!(open(&on("edge0").queue(1)).caps().frame_bytes_max, 1488);
    });
}

#[test]
fn missing_rights_are_named() {
    in_namespace(|| {
        for (bits, wanted) in [(CAP_NET_RAW, "CAP_NET_RAW"), (CAP_BPF | CAP_SYS_ADMIN, "CAP_BPF")] {
            let refused = thread::spawn(move || {
                drop_rights(bits);
                XdpLink::open(&on("edge0")).map(drop).unwrap_err().to_string()
            });
            let refused = refused.join().unwrap();
            assert!(refused.contains("permission denied") && refused.contains(wanted), "{refused}");
            assert!(refused.contains("setcap"), "{refused}");
        }
        let without = thread::spawn(|| {
            drop_rights(CAP_SYS_ADMIN);
            XdpLink::open(&on("edge0")).map(drop)
        });
        without.join().unwrap().unwrap();
    });
}

#[test]
fn a_queue_taken_by_another_program_is_retried_without_traffic() {
    in_namespace(|| {
        let mut link = open(&on("edge0").port(7));
        let mut clock = 0;
        let mut turn = |link: &mut XdpLink| {
            clock += 60_000_000;
            link.receive(Instant(clock), 64, &mut |_| {}).unwrap();
            std::iter::from_fn(|| link.poll_event()).collect::<Vec<_>>()
        };
        ip("link delete edge0");
        until(|| turn(&mut link).iter().any(|event| matches!(event, LinkEvent::Down)));
        add_pair();
        let holder = open(&on("edge0").port(8));
        // The link has handled all notifications, but another link still owns the queue.
        for _ in 0..10 {
            let events = turn(&mut link);
            assert!(!events.iter().any(|event| matches!(event, LinkEvent::Changed(_))));
            thread::park_timeout(Duration::from_millis(5));
        }
        drop(holder);
        // Run a turn only when a descriptor is readable.
        until(|| {
            let mut polled = link.wait_fds().map(|fd| libc::pollfd {
                fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: the array has the length given and outlives the call.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, 1000) };
            ready > 0 && turn(&mut link).iter().any(|event| matches!(event, LinkEvent::Changed(_)))
        });
        let mut other = open(&on("edge1"));
        exchange(&mut other, &mut link, 100);
    });
}

#[test]
fn the_link_follows_its_interface() {
    for mode in MODES {
        in_namespace(move || {
            let config = |interface| on(interface).mode(Some(mode));
            let (mut first, mut second) = (open(&config("edge0")), open(&config("edge1")));
            let mut clock = 0;
            let mut turn = |link: &mut XdpLink| {
                clock += 10_000_000;
                link.receive(Instant(clock), 64, &mut |_| {}).unwrap();
                while let Some(event) = link.poll_event() {
                    if !matches!(event, LinkEvent::Descriptors) {
                        return Some(event);
                    }
                }
                None
            };
            for mtu in [9000, 1400, 2000] {
                for (interface, link) in [("edge0", &mut first), ("edge1", &mut second)] {
                    ip(&format!("link set {interface} mtu {mtu}"));
                    until(|| matches!(turn(link), Some(LinkEvent::Changed(_))));
                    assert_eq!(link.caps().frame_bytes_max, mtu - 12);
                }
                exchange(&mut first, &mut second, usize::from(mtu) - 12);
            }
            ip("link set edge1 address 02:00:00:00:00:77");
            until(|| matches!(turn(&mut second), Some(LinkEvent::Changed(_))));
            exchange(&mut first, &mut second, 1000);
            ip("link set edge1 down");
            until(|| matches!(turn(&mut first), Some(LinkEvent::Down)));
            until(|| matches!(turn(&mut second), Some(LinkEvent::Down)));
            ip("link set edge1 up");
            until(|| matches!(turn(&mut first), Some(LinkEvent::Changed(_))));
            until(|| matches!(turn(&mut second), Some(LinkEvent::Changed(_))));
            exchange(&mut second, &mut first, 1000);
            ip("link delete edge0");
            until(|| matches!(turn(&mut first), Some(LinkEvent::Down)));
            assert_eq!(first.mode(), None);
            until(|| matches!(turn(&mut second), Some(LinkEvent::Down)));
            add_pair();
            until(|| matches!(turn(&mut first), Some(LinkEvent::Changed(_))));
            until(|| matches!(turn(&mut second), Some(LinkEvent::Changed(_))));
            exchange(&mut first, &mut second, 1000);
        });
    }
}

/// Sends a few frames of `bytes` bytes, partly payload, and compares the received frames with them.
fn exchange(from: &mut impl Link, to: &mut impl Link, bytes: usize) {
    let header_bytes = bytes.min(40);
    let payload: Vec<u8> = (0..bytes - header_bytes).map(|i| (i * 7 + bytes) as u8).collect();
    let slice = PayloadSlice::at(payload.as_ptr(), payload.len() as u32);
    let mut batch = TxBatch::new(FRAMES, FRAMES * 40);
    batch.reset(to.caps().local);
    for frame in 0..FRAMES {
        let end = batch.header_mut().len() + header_bytes;
        batch.header_mut().resize(end, frame as u8);
        batch.finish_frame(slice);
    }
    assert_eq!(from.send(&batch).unwrap(), FRAMES);
    let mut frame = 0;
    let sender = from.caps().local;
    until(|| {
        to.receive(Instant(0), 64, &mut |received| {
            let (header, rest) = received.bytes.split_at(header_bytes);
            assert!(header.iter().all(|&byte| byte == frame as u8), "{bytes} bytes: {header:?}");
            assert_eq!(rest, payload);
            assert_eq!(received.from, sender);
            frame += 1;
        })
        .unwrap();
        frame == FRAMES
    });
}

fn push(batch: &mut TxBatch, header_bytes: usize, payload: PayloadSlice<'_>) {
    let end = batch.header_mut().len() + header_bytes;
    batch.header_mut().resize(end, 1);
    batch.finish_frame(payload);
}

fn on(interface: &str) -> XdpConfig {
    XdpConfig::new(interface)
}

/// Opens a link. Retries, because the child processes of other tests may have copies of descriptors
/// that a test has just closed.
fn open(config: &XdpConfig) -> XdpLink {
    let mut link = None;
    until(|| match XdpLink::open(config) {
        Ok(opened) => {
            link = Some(opened);
            true
        }
        Err(XdpError::QueueBusy { .. } | XdpError::PortTaken { .. }) => false,
        Err(error) => panic!("{error}"),
    });
    link.unwrap()
}

/// Returns the kernel's description of an interface, without counters.
fn describe(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Another network namespace. It has one end of the pair of interfaces.
struct Neighbour(Child);

impl Neighbour {
    fn with(interface: &str) -> Option<Self> {
        let child = Command::new("unshare").args(["-n", "sleep", "1000"]).spawn();
        let Ok(child) = child else {
            println!("skipped: the command `unshare` is not installed");
            return None;
        };
        let neighbour = Self(child);
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", neighbour.0.id());
        until(|| std::fs::read_link(&theirs).is_ok_and(|theirs| theirs != own));
        ip(&format!("link set {interface} netns {}", neighbour.0.id()));
        neighbour.ip("link set lo up");
        neighbour.ip(&format!("link set {interface} up"));
        Some(neighbour)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.id().to_string(), "-n", program]).args(arguments);
        command.stdout(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        self.command(program, arguments).status().unwrap().success()
    }

    fn spawn(&self, program: &str, arguments: &[&str]) -> Killed {
        Killed(self.command(program, arguments).spawn().unwrap())
    }

    fn ip(&self, arguments: &str) {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        assert!(self.run("ip", &arguments), "ip {arguments:?}");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends any bytes as an Ethernet frame.
fn inject(interface: &str, frame: &[u8]) {
    let index = Interface::named(interface).unwrap().index;
    // SAFETY: the call takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all-zero bytes are a valid address.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = index.cast_signed();
    // SAFETY: the frame and the address have the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    assert_eq!(sent, frame.len().cast_signed(), "{}", std::io::Error::last_os_error());
}

/// Removes capabilities from the calling thread.
fn drop_rights(bits: u64) {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the kernel reads the header and writes two records of three numbers each.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    assert_eq!(result, 0);
    // Change the effective sets: the first element is the low word, and the fourth element is the
    // high word.
    sets[0] &= !(bits as u32);
    sets[3] &= !((bits >> 32) as u32);
    // SAFETY: the kernel reads the header and two records of three numbers each.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(result, 0);
}

/// Runs `test` in a new namespace with two connected interfaces `edge0` and `edge1`. The namespace
/// ends with the thread.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        // SAFETY: the call takes no pointers, and only this thread changes its namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: a network namespace needs root");
            return;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return;
        }
        add_pair();
        match XdpLink::check(&on("edge0")) {
            Err(error @ (XdpError::Unsupported { .. } | XdpError::NoPermission { .. })) => {
                println!("skipped: {error}");
            }
            _ => test(),
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn add_pair() {
    ip("link add edge0 type veth peer name edge1");
    put_up();
}

/// Sets both interfaces up and waits until they run. If a link were opened before its interface
/// runs, it would drop the frames that it should send.
fn put_up() {
    ip("link set edge0 up");
    ip("link set edge1 up");
    until(|| ["edge0", "edge1"].iter().all(|interface| describe(interface).contains("state UP")));
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Waits until `condition` is true, for at most about 20 seconds.
fn until(mut condition: impl FnMut() -> bool) {
    for attempt in 0..4000 {
        if condition() {
            return;
        }
        if attempt > 100 {
            thread::park_timeout(Duration::from_millis(5));
        }
    }
    panic!("the condition never became true");
}

const FRAMES: usize = 5;
const HELD_INTERFACE: &str = "XDP_TEST_HOLDS";
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_BPF: u64 = 1 << 39;
