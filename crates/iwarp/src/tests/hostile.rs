//! Hostile peers: any bytes, and valid streams that were changed.

use proptest::prelude::*;
use wire_iwarp::{Opcode, QueueNumber, ReadRequest, Segment, Stag};

use super::random::Random;
use super::scripted::{OPEN, Subject, fpdu, send};
use crate::config::Config;
use crate::stream::Stream;

/// Returns a stream of valid FPDUs.
fn valid_stream(random: &mut Random, has_crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut sends, mut reads) = (1, 1);
    for _ in 0..12 {
        let payload = vec![7; random.below(60)];
        let fpdu = match random.below(3) {
            0 => {
                let segment = Segment::tagged(Opcode::Write, true, OPEN, 0x1000);
                fpdu(&segment, &payload, has_crc)
            }
            1 => {
                sends += 1;
                fpdu(&send(sends - 1, 0, true), &payload, has_crc)
            }
            _ => {
                let queue = QueueNumber::ReadRequest;
                let segment = Segment::untagged(Opcode::ReadRequest, true, queue, reads, 0);
                reads += 1;
                let request = ReadRequest {
                    sink_stag: Stag(4),
                    sink_offset: random.next() >> 1,
                    size: random.below(5000) as u32,
                    source_stag: OPEN,
                    source_offset: 0x1000,
                };
                fpdu(&segment, &request.encode(), has_crc)
            }
        };
        bytes.extend(fpdu);
    }
    bytes
}

/// Gives the bytes in random cuts, and shows that nothing is placed after a check was refused.
fn give_cut(subject: &mut Subject, mut bytes: &[u8], random: &mut Random) {
    subject.memory.takes_any_bytes = true;
    while !bytes.is_empty() {
        let (now, rest) = bytes.split_at(1 + random.below(bytes.len()));
        subject.give(now);
        subject.written();
        bytes = rest;
    }
    subject.stream.handle_end();
    subject.take_events();
    assert!(subject.cause().is_some());
    assert_eq!(subject.memory.violation, None);
}

proptest! {
    #[test]
    fn a_changed_stream_places_nothing_outside_of_regions(seed: u64, changes in 0_usize..6, crc: bool) {
        let mut random = Random::new(seed);
        let mut bytes = valid_stream(&mut random, crc);
        for _ in 0..changes {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        let mut subject = Subject::open(Config { crc, ..Config::default() });
        for id in 0..12 {
            subject.add_receive(id, id * 100, 60);
        }
        give_cut(&mut subject, &bytes, &mut random);
    }

    #[test]
    fn any_bytes_place_nothing_outside_of_regions(bytes in prop::collection::vec(any::<u8>(), 1..400), seed: u64) {
        let mut random = Random::new(seed);
        let mut open = Subject::open(Config::default());
        give_cut(&mut open, &bytes, &mut random);
        let mut marked = Subject::open(Config { markers: true, ..Config::default() });
        give_cut(&mut marked, &bytes, &mut random);
        let mut fresh = Subject::new(Stream::respond(Config::default(), super::scripted::NOW));
        give_cut(&mut fresh, &bytes, &mut random);
    }
}
