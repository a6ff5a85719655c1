//! Decodes every frame of the captures of Linux siw, and encodes it to the same bytes.
//!
//! `siw-` captures have siw at both ends, `siw2-` too, in two kernels. `userspace-siw-` captures have
//! a program of ours as the initiator. The names say what a capture shows.

mod frames;
mod pcap;
mod tcp;

use std::collections::BTreeSet;
use std::fs;

use frames::{Conversation, Half, Setup, conversations};
use wire_iwarp::{
    BitOrder, Cause, DdpHeader, EnhancedSetup, Opcode, ReadRequest, Revision, Segment, SetupFlags,
    Stag,
};

/// The captures, and the number of FPDUs of the initiator and of the responder of each connection.
const CAPTURES: &[(&str, &[(usize, usize)])] = &[
    ("siw-64k", &[(42, 0)]),
    ("siw-crc", &[(8, 3)]),
    ("siw-crc-term", &[(1, 1)]),
    ("siw-gso", &[(1, 0)]),
    ("siw-ird-ord", &[(2, 2)]),
    ("siw-mpa-rev0", &[(1, 0)]),
    ("siw-mpa-rev1", &[(8, 3)]),
    ("siw-ops-basic", &[(26, 6)]),
    ("siw-ops-sendinv", &[(3, 1)]),
    ("siw-p2p-no-rtr", &[(8, 3)]),
    ("siw-p2p-read-rtr", &[(9, 4)]),
    ("siw-p2p-write-rtr", &[(9, 3)]),
    ("siw-perftest-send-lat", &[(11, 11), (5, 5)]),
    ("siw-perftest-write-bw", &[(16, 16), (30, 0)]),
    ("siw-read-noremoteread-served", &[(2, 1)]),
    ("siw-reject", &[(0, 0)]),
    ("siw-rping", &[(6, 8)]),
    ("siw-rstream", &[(11, 11)]),
    ("siw-term-invalidate-bad", &[(2, 0)]),
    ("siw-term-read-badstag", &[(1, 1)]),
    ("siw-term-read-bounds", &[(1, 1)]),
    ("siw-term-send-norecv", &[(1, 1)]),
    ("siw-term-send-toolong", &[(1, 1)]),
    ("siw-term-write-badstag", &[(3, 1)]),
    ("siw-term-write-bounds", &[(1, 1)]),
    ("siw-term-write-perm", &[(1, 1)]),
    ("siw-ucmatose", &[(2, 2)]),
    ("siw2-rping", &[(6, 8)]),
    ("userspace-siw-crc-pad", &[(2, 1)]),
    ("userspace-siw-interleave", &[(4, 1)]),
    ("userspace-siw-msn-gap", &[(1, 1)]),
    ("userspace-siw-p2p-read", &[(2, 1)]),
    ("userspace-siw-packed", &[(10, 1)]),
    ("userspace-siw-read-over-ird", &[(40, 1)]),
    ("userspace-siw-rev2-crc", &[(1, 0)]),
    ("userspace-siw-sendfrag", &[(4, 1)]),
];

/// The captures in which the responder terminates the connection, and why.
const TERMINATES: &[(&str, Cause)] = &[
    ("siw-crc-term", Cause::TaggedStag),
    ("siw-ops-sendinv", Cause::TaggedStag),
    ("siw-term-read-badstag", Cause::ProtectionStag),
    ("siw-term-read-bounds", Cause::ProtectionBounds),
    ("siw-term-send-norecv", Cause::UntaggedNoBuffer),
    // Siw has no code of its own for a message that is too long.
    ("siw-term-send-toolong", Cause::UntaggedNoBuffer),
    ("siw-term-write-badstag", Cause::TaggedStag),
    ("siw-term-write-bounds", Cause::TaggedBounds),
    // Siw reports a missing right as an unknown STag.
    ("siw-term-write-perm", Cause::TaggedStag),
    ("userspace-siw-msn-gap", Cause::UntaggedMsn),
    ("userspace-siw-read-over-ird", Cause::OperationStream),
];

/// The captures with CRCs.
const WITH_CRC: &[&str] =
    &["siw-crc", "siw-crc-term", "userspace-siw-crc-pad", "userspace-siw-rev2-crc"];

/// The captures with other pads than 0: of siw, or of our program on purpose.
const WITH_OTHER_PADS: &[&str] = &[
    "siw-crc",
    "siw-mpa-rev1",
    "siw-ops-basic",
    "siw-p2p-no-rtr",
    "siw-p2p-read-rtr",
    "siw-p2p-write-rtr",
    "siw-perftest-send-lat",
    "siw-perftest-write-bw",
    "userspace-siw-crc-pad",
];

#[test]
fn every_frame_of_every_capture_encodes_to_the_same_bytes() {
    let mut names: Vec<String> = fs::read_dir(pcap::folder())
        .expect("the captures")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, CAPTURES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, expected) in CAPTURES {
        let counts: Vec<_> = conversations(name)
            .iter()
            .map(|found| (found.initiator.fpdus.len(), found.responder.fpdus.len()))
            .collect();
        assert_eq!(&counts, expected, "{name}");
    }
}

#[test]
fn every_fpdu_has_the_crc_that_its_connection_wants() {
    for (name, _) in CAPTURES {
        for half in halves(name) {
            assert_eq!(half.setup.flags.crc, WITH_CRC.contains(name), "{name}");
            assert!(half.fpdus.iter().all(|fpdu| fpdu.has_right_crc), "{name}");
        }
        let has_other_pads =
            halves(name).any(|half| half.fpdus.iter().any(|fpdu| !fpdu.has_zero_pads));
        assert_eq!(has_other_pads, WITH_OTHER_PADS.contains(name), "{name}");
    }
}

#[test]
fn every_terminate_has_its_cause_in_the_bit_order_of_siw() {
    for (name, _) in CAPTURES {
        for Conversation { initiator, responder } in conversations(name) {
            assert_eq!(initiator.terminates(), [], "{name}");
            let expected = TERMINATES.iter().filter(|(of, _)| of == name);
            let expected: Vec<_> = expected.map(|(_, cause)| (*cause, BitOrder::Swapped)).collect();
            assert_eq!(responder.terminates(), expected, "{name}");
        }
    }
}

#[test]
fn a_terminate_has_the_headers_of_the_segment_at_fault() {
    for (name, _) in TERMINATES {
        let Conversation { initiator, responder } = only(name);
        let fpdu = responder.fpdus.last().expect("a Terminate");
        let terminate = wire_iwarp::decode_terminate(&fpdu.payload, true).expect("a Terminate");
        let header = terminate.ddp_header.expect("headers").as_bytes();
        let at_fault = initiator.fpdus.iter().find(|fpdu| {
            let mut bytes = [0; wire_iwarp::SEGMENT_HEADER_BYTES_MAX];
            let length = fpdu.segment.encode(&mut bytes);
            // While it answers a read, siw overwrites the MSN.
            bytes[..length.min(10)] == header[..header.len().min(10)]
        });
        let at_fault = at_fault.unwrap_or_else(|| panic!("{name}: no such segment"));
        let request = name.contains("-term-read-").then_some(&at_fault.payload[..]);
        assert_eq!(terminate.read_request.as_ref().map(|request| &request[..]), request, "{name}");
    }
}

#[test]
fn the_set_up_frames_have_their_revision_flags_and_words() {
    for (name, _) in CAPTURES {
        let revision = match *name {
            "siw-mpa-rev0" => Revision::Zero,
            "siw-mpa-rev1" => Revision::One,
            _ => Revision::Two,
        };
        for Setup { revision: found, flags, enhanced, .. } in halves(name).map(|half| half.setup) {
            assert_eq!(found, revision, "{name}");
            let is_enhanced = revision == Revision::Two;
            assert_eq!(enhanced.is_some(), is_enhanced, "{name}");
            let expected = SetupFlags {
                markers: false,
                crc: WITH_CRC.contains(name),
                reject: flags.reject,
                enhanced: is_enhanced,
                gso: *name == "siw-gso",
                reserved: 0,
            };
            assert_eq!(flags, expected, "{name}");
        }
        for Conversation { initiator, responder } in conversations(name) {
            assert!(!initiator.setup.flags.reject, "{name}");
            assert_eq!(responder.setup.flags.reject, *name == "siw-reject", "{name}");
        }
    }
    assert_eq!(only("siw-mpa-rev0").initiator.setup.private_data.len(), 4);
    assert_eq!(only("siw-rstream").initiator.setup.private_data.len(), 44 - 4);
    assert_eq!(only("siw-reject").responder.setup.private_data.len(), 9);
}

#[test]
fn the_words_name_the_reads_that_the_ends_have_outstanding() {
    let depths = |name| {
        let Conversation { initiator, responder } = only(name);
        [initiator, responder].map(|half| {
            let words = half.setup.enhanced.expect("words");
            (words.ird, words.ord)
        })
    };
    assert_eq!(depths("siw-ird-ord"), [(16, 8), (8, 16)]);
    assert_eq!(depths("siw-rping"), [(1, 1), (1, 1)]);
    assert_eq!(depths("siw-rstream"), [(0, 1), (1, 0)]);
    assert_eq!(depths("siw-ops-basic"), [(4, 4), (4, 4)]);
}

#[test]
fn peer_to_peer_mode_begins_with_the_rtr_that_the_reply_wants() {
    const PLAIN: EnhancedSetup = EnhancedSetup {
        ird: 4,
        ord: 4,
        peer_to_peer: true,
        rtr_send: false,
        rtr_write: false,
        rtr_read: false,
    };
    const WRITE: EnhancedSetup = EnhancedSetup { rtr_write: true, ..PLAIN };
    const READ: EnhancedSetup = EnhancedSetup { rtr_read: true, ..PLAIN };
    const BOTH: EnhancedSetup = EnhancedSetup { rtr_read: true, ..WRITE };
    for (name, offered, wanted, rtr) in [
        ("siw-p2p-write-rtr", BOTH, WRITE, Some(Opcode::Write)),
        ("siw-p2p-read-rtr", READ, READ, Some(Opcode::ReadRequest)),
        ("userspace-siw-p2p-read", READ, READ, Some(Opcode::ReadRequest)),
        // Siw wants a Write although none is offered, and the initiator sends none.
        ("siw-p2p-no-rtr", PLAIN, WRITE, None),
    ] {
        let Conversation { initiator, responder } = only(name);
        assert_eq!(initiator.setup.enhanced, Some(offered), "{name}");
        assert_eq!(responder.setup.enhanced, Some(wanted), "{name}");
        let first = &initiator.fpdus[0];
        match rtr {
            Some(Opcode::Write) => {
                assert_eq!(first.segment, Segment::tagged(Opcode::Write, true, Stag(1), 0));
                assert!(first.payload.is_empty());
            }
            Some(_) => {
                assert_eq!(first.segment.opcode, Opcode::ReadRequest, "{name}");
                assert_eq!(ReadRequest::decode(&first.payload).expect("a request").size, 0);
                assert!(responder.fpdus[0].payload.is_empty(), "{name}");
            }
            None => assert!(!first.payload.is_empty(), "{name}"),
        }
    }
}

#[test]
fn the_operations_have_the_lengths_that_the_programs_asked_for() {
    let Conversation { initiator, responder } = only("siw-ops-basic");
    assert_eq!(initiator.lengths(Opcode::Send), [1, 2, 3, 4, 0, 7, 21, 6]);
    assert_eq!(initiator.lengths(Opcode::SendSolicited), [5]);
    assert_eq!(
        initiator.lengths(Opcode::Write),
        [0, 1, 8, 9, 1428, 2, 1428, 3, 1428, 4, 1428, 1428, 1240]
    );
    let sizes: Vec<_> = initiator
        .fpdus
        .iter()
        .filter(|fpdu| fpdu.segment.opcode == Opcode::ReadRequest)
        .map(|fpdu| ReadRequest::decode(&fpdu.payload).expect("a request").size)
        .collect();
    assert_eq!(sizes, [0, 1, 17, 4000]);
    assert_eq!(responder.lengths(Opcode::ReadResponse), [0, 1, 17, 1428, 1428, 1144]);

    let writes = only("siw-64k").initiator.lengths(Opcode::Write);
    assert!(writes.iter().all(|length| *length == 1428));
    let large = only("siw-gso").initiator;
    assert_eq!(large.lengths(Opcode::Write), [31_856 - 20]);
    assert_eq!(large.unfinished, Some(31_856), "the capture ends inside of the second FPDU");
    assert_eq!(
        only("userspace-siw-packed").initiator.lengths(Opcode::Send),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
}

#[test]
fn the_captures_have_every_opcode() {
    let seen: BTreeSet<Opcode> = CAPTURES
        .iter()
        .flat_map(|(name, _)| halves(name))
        .flat_map(|half| half.opcodes())
        .collect();
    assert_eq!(seen, BTreeSet::from(Opcode::ALL));
    let sends = only("siw-ops-sendinv").initiator;
    assert_eq!(
        sends.opcodes(),
        [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate, Opcode::Write]
    );
    let DdpHeader::Tagged { stag, .. } = sends.fpdus[2].segment.ddp else { panic!("a Write") };
    let invalidated: Vec<_> =
        sends.fpdus.iter().filter_map(|fpdu| fpdu.segment.invalidate_stag()).collect();
    assert!(invalidated.contains(&stag), "the Write is to an STag that was invalidated");
}

#[test]
fn messages_are_counted_from_1_on_each_queue_and_cut_without_a_gap() {
    for (name, _) in CAPTURES {
        for half in halves(name) {
            let mut next = [(1, 0); 3];
            for fpdu in &half.fpdus {
                let DdpHeader::Untagged { last, queue, msn, mo, .. } = fpdu.segment.ddp else {
                    continue;
                };
                let (message, offset) = &mut next[queue.number() as usize];
                // Our program skips a number on purpose.
                if *name == "userspace-siw-msn-gap" && queue.number() == 0 {
                    *message += 1;
                }
                assert_eq!((msn, mo), (*message, *offset), "{name}");
                *offset += fpdu.payload.len() as u32;
                if last {
                    (*message, *offset) = (msn + 1, 0);
                }
            }
        }
    }
    let Conversation { initiator, .. } = only("userspace-siw-sendfrag");
    assert_eq!(initiator.lengths(Opcode::Send), [8, 8, 5]);
}

#[test]
fn an_end_that_leaves_bytes_unread_resets_the_connection() {
    let reset: Vec<_> = CAPTURES
        .iter()
        .filter(|(name, _)| halves(name).any(|half| half.is_reset))
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(reset, ["siw-term-write-badstag", "userspace-siw-read-over-ird"]);
}

#[test]
fn retransmissions_and_reordering_do_not_change_a_stream() {
    let frames = pcap::frames("siw-ops-basic");
    let streams = |frames: &[Vec<u8>]| {
        let connections = tcp::connections(frames);
        let connection = connections.first().expect("a connection");
        [connection.initiator.stream(), connection.responder.stream()]
    };
    let expected = streams(&frames);
    let (handshake, rest) = frames.split_at(2);
    let mut mixed = handshake.to_vec();
    mixed.extend(rest.iter().rev().cloned());
    mixed.extend(rest.iter().cloned());
    assert_eq!(streams(&mixed), expected);

    // Frame 10 is of the middle of a stream. Without it, the stream ends there.
    let mut with_gap = frames.clone();
    with_gap.retain(|frame| *frame != frames[10]);
    let cut = streams(&with_gap);
    assert!(cut.iter().zip(&expected).all(|(cut, whole)| whole.starts_with(cut)));
    assert!(cut != expected);
}

/// Returns both ends of all connections of a capture.
fn halves(name: &str) -> impl Iterator<Item = Half> {
    conversations(name).into_iter().flat_map(|found| [found.initiator, found.responder])
}

/// Returns the only iWARP connection of a capture.
fn only(name: &str) -> Conversation {
    let mut found = conversations(name);
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0)
}
