//! Capture and fault wrappers around an in-memory link.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use delivery::{Instant, LinkCaps, LinkEvent, RxFrame, TxBatch};
use link::{
    Capture, CaptureClock, CaptureOutput, Cut, Fault, FaultConfig, Link, LinkStatistics,
    PayloadUnmapped, WaitFds,
};
use mem::{Payload, PayloadSlice};
use wire_edge::PeerAddr;

fn faulty(link: Memory, config: FaultConfig) -> Fault<Memory> {
    Fault::new(link, config).expect("such faults are possible")
}

#[test]
fn without_faults_everything_passes_in_order() {
    let mut link = faulty(Memory::with(0..100), FaultConfig::default());
    assert_eq!(receive(&mut link, 0), (0..100).collect::<Vec<_>>());
}

#[test]
fn the_loss_rate_is_the_configured_one() {
    let config = FaultConfig::default().receive_loss(0.2);
    let mut link = faulty(Memory::with(0..10_000), config);
    let lost = 10_000 - receive(&mut link, 0).len();
    assert!((1800..2200).contains(&lost), "{lost}");
    assert_eq!(link.fault_statistics().receive_lost, lost as u64);
}

#[test]
fn equal_seeds_give_equal_faults_and_unequal_ones_do_not() {
    let run = |seed| {
        let config = FaultConfig::default()
            .seed(seed)
            .receive_loss(0.1)
            .duplication(0.1)
            .reordering(0.1)
            .corruption(0.1);
        receive(&mut faulty(Memory::with(0..1000), config), 0)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn reordered_frames_arrive_later_and_none_is_lost() {
    let config = FaultConfig::default().reordering(0.3).duplication(0.2);
    let mut link = faulty(Memory::with(0..1000), config);
    let mut seen = receive(&mut link, 0);
    assert!(!seen.is_sorted());
    // At this time, all frames that are still held back are due, so the link delivers them.
    seen.extend(receive(&mut link, 10_000_000));
    let statistics = link.fault_statistics();
    assert_eq!(seen.len() as u64, 1000 + statistics.duplicated);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
}

#[test]
fn corruption_inverts_one_bit() {
    let config = FaultConfig::default().corruption(1.0);
    let mut link = faulty(Memory::with(0..100), config);
    for (sent, seen) in (0..100_u32).zip(receive(&mut link, 0)) {
        assert_eq!((sent ^ seen).count_ones(), 1);
    }
}

#[test]
fn a_cut_affects_one_direction_and_ends() {
    let mut link = faulty(Memory::with(0..10), FaultConfig::default());
    link.set_cut(Cut::Incoming);
    assert_eq!(link.send(&batch(3)).unwrap(), 3);
    assert_eq!(receive(&mut link, 0), []);
    link.set_cut(Cut::Outgoing);
    assert_eq!(link.send(&batch(3)).unwrap(), 3);
    assert_eq!(link.fault_statistics().cut, 13);
    link.set_cut(Cut::None);
    assert_eq!(link.into_inner().sent.len(), 3);
}

#[test]
fn frames_lost_before_sending_count_as_sent() {
    let config = FaultConfig::default().send_loss(0.5);
    let mut link = faulty(Memory::with(0..0), config);
    assert_eq!(link.send(&batch(1000)).unwrap(), 1000);
    let lost = link.fault_statistics().send_lost as usize;
    assert!((400..600).contains(&lost), "{lost}");
    let sent = link.into_inner().sent;
    assert_eq!(sent.len(), 1000 - lost);
    assert!(sent.is_sorted());
}

#[test]
fn full_link_and_unmapped_payload_are_reported_in_frames_of_the_whole_batch() {
    let config = FaultConfig::default().send_loss(0.5).seed(3);
    let mut memory = Memory::with(0..0);
    memory.room = Some(10);
    let mut link = faulty(memory, config);
    let taken = link.send(&batch(1000)).unwrap();
    let sent = link.into_inner().sent;
    assert_eq!(sent.len(), 10);
    // `taken` counts the frames of the batch, including the lost ones. So each frame that reached
    // the inner link has a number below `taken`.
    assert!(sent.iter().all(|&frame| (frame as usize) < taken));

    let mut memory = Memory::with(0..0);
    memory.unmapped = Some(10);
    let error = faulty(memory, config).send(&batch(1000)).unwrap_err();
    assert_eq!(PayloadUnmapped::from_io(&error), Some(PayloadUnmapped { frame: taken }));
}

#[test]
fn an_invalid_probability_is_refused_by_name() {
    let refused =
        |config| Fault::new(Memory::with(0..1), config).map(|_| ()).unwrap_err().to_string();
    for share in [-0.1, 1.5, f64::NAN] {
        let message = refused(FaultConfig::default().receive_loss(share));
        assert_eq!(message, format!("the setting `receive_loss` is {share}; 0 to 1 would do"));
    }
    let message = refused(FaultConfig::default().distance_frames(0));
    assert!(message.starts_with("the setting `distance_frames` is 0"), "{message}");
}

#[test]
fn capture_has_every_frame_with_its_direction_and_time() {
    let output = Shared::default();
    let mut link = Capture::new(Memory::with(0..3), output.clone(), CaptureClock::Engine).unwrap();
    assert_eq!(receive(&mut link, 5_000_000_123), [0, 1, 2]);
    assert_eq!(link.send(&batch(2)).unwrap(), 2);
    let statistics = link.capture_statistics();
    assert_eq!((statistics.frames, statistics.frames_missing), (5, 0));
    drop(link);

    let file = output.0.lock().unwrap().clone();
    let packets = packets(&file);
    assert_eq!(packets.len(), 5);
    for (index, (at_ns, flags, packet)) in packets.iter().enumerate() {
        assert_eq!(*at_ns, 5_000_000_123);
        assert_eq!(*flags, if index < 3 { 1 } else { 2 });
        assert_eq!(packet[12..14], [8, 0], "IPv4");
        // The capture has read the payload from memory: four bytes after a header of four.
        let frame = (index % 3) as u32;
        assert_eq!(packet[42..46], frame.to_le_bytes());
        assert_eq!(packet.len(), 42 + if index < 3 { 4 } else { 8 });
    }
}

#[test]
fn links_of_one_capture_are_interfaces_of_one_file() {
    let output = Shared::default();
    let capture = CaptureOutput::new(output.clone(), CaptureClock::Engine).unwrap();
    let mut links = [3, 2].map(|frames| capture.capture(Memory::with(0..frames)));
    drop(capture);
    for link in links.iter_mut().rev() {
        receive(link, 5);
    }
    drop(links);
    let file = output.0.lock().unwrap().clone();
    let interfaces = |kind| -> Vec<u32> {
        let of_kind = blocks(&file).into_iter().filter(|block| word(block, 0) == kind);
        of_kind.map(|block| word(block, 8)).collect()
    };
    let (description, packet, statistics) = (1, 6, 5);
    assert_eq!(interfaces(description).len(), 2);
    assert_eq!(interfaces(packet), [1, 1, 0, 0, 0]);
    assert_eq!(interfaces(statistics), [0, 1]);
}

#[test]
fn capture_survives_an_output_that_fails() {
    struct Failing;
    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let mut link = Capture::new(Memory::with(0..100), Failing, CaptureClock::Wall).unwrap();
    assert_eq!(receive(&mut link, 0).len(), 100);
}

#[test]
fn wireshark_reads_a_capture() {
    let path = std::env::temp_dir().join(format!("ethernot-capture-{}.pcapng", std::process::id()));
    let mut link = Capture::create(Memory::with(0..3), &path, CaptureClock::Wall).unwrap();
    receive(&mut link, 0);
    link.send(&batch(1)).unwrap();
    drop(link);
    let fields = ["udp.length", "frame.packet_flags_direction", "ip.checksum.status"];
    let mut command = std::process::Command::new("tshark");
    command.args(["-o", "ip.check_checksum:TRUE", "-T", "fields", "-r"]).arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output();
    std::fs::remove_file(&path).unwrap();
    let Ok(output) = output else {
        println!("skipped: tshark is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{}", String::from_utf8_lossy(&output.stderr));
    for line in lines {
        let values: Vec<&str> = line.split('\t').collect();
        assert!(values[0] == "12" || values[0] == "16", "{line}");
        assert_eq!(values[2], "1", "good checksum");
    }
}

/// A link that receives the given frames and records sent frames.
struct Memory {
    waiting: VecDeque<u32>,
    sent: Vec<u32>,
    room: Option<usize>,
    unmapped: Option<usize>,
}

impl Memory {
    fn with(frames: core::ops::Range<u32>) -> Self {
        Self { waiting: frames.collect(), sent: Vec::new(), room: None, unmapped: None }
    }
}

impl Link for Memory {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            frame_bytes_max: 1472,
            frame_bytes_safe: 1472,
            segments: 1,
            offloads: false,
            receive_buffer_bytes: 1 << 20,
            rate: None,
            local: address(1),
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let frames = limit.min(self.waiting.len());
        for number in self.waiting.drain(..frames) {
            on_frame(RxFrame {
                bytes: &mut number.to_le_bytes(),
                outside: Payload::EMPTY,
                received_at: now,
                congestion_experienced: false,
                from: address(2),
            });
        }
        Ok(frames)
    }

    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        if let Some(frame) = self.unmapped {
            return Err(PayloadUnmapped { frame }.into());
        }
        let frames = self.room.unwrap_or(usize::MAX).min(batch.len());
        for index in 0..frames {
            self.sent.push(u32::from_le_bytes(batch.frame(index).header.try_into().unwrap()));
        }
        Ok(frames)
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        None
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        [None, None]
    }

    fn statistics(&self) -> LinkStatistics {
        LinkStatistics::default()
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn address(host: u8) -> PeerAddr {
    std::net::SocketAddr::from(([10, 0, 0, host], 4791)).into()
}

/// Returns the numbers of all frames that arrive at `now_ns`.
fn receive(link: &mut impl Link, now_ns: u64) -> Vec<u32> {
    let mut seen = Vec::new();
    while link
        .receive(Instant(now_ns), 64, &mut |frame| {
            seen.push(u32::from_le_bytes(frame.bytes.as_ref().try_into().unwrap()));
        })
        .unwrap()
        > 0
    {}
    seen
}

/// Returns frames. Each contains its number and four bytes of payload.
fn batch(frames: u32) -> TxBatch {
    static PAYLOAD: [u8; 4] = *b"data";
    let mut batch = TxBatch::new(frames as usize, 4 * frames as usize);
    batch.reset(address(2));
    for number in 0..frames {
        batch.header_mut().extend_from_slice(&number.to_le_bytes());
        batch.finish_frame(PayloadSlice::at(PAYLOAD.as_ptr(), 4));
    }
    batch
}

/// Returns the time, flags and bytes of every packet in a pcapng file.
fn packets(file: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
    let packets = blocks(file).into_iter().filter(|block| word(block, 0) == 6);
    let packet = |block: &[u8]| {
        let len = word(block, 20) as usize;
        let flags = word(block, 28 + len.next_multiple_of(4) + 4);
        let time = u64::from(word(block, 12)) << 32 | u64::from(word(block, 16));
        (time, flags, block[28..28 + len].to_vec())
    };
    packets.map(packet).collect()
}

/// Returns the blocks of a pcapng file.
fn blocks(mut file: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !file.is_empty() {
        let (block, rest) = file.split_at(word(file, 4) as usize);
        found.push(block);
        file = rest;
    }
    found
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
