//! Rules of DDP and RDMAP against a scripted peer.

use wire_iwarp::{
    Cause, DdpHeader, ErrorCode, Opcode, QueueNumber, ReadRequest, Segment, SetupFlags, Stag,
    decode_terminate,
};

use super::memory::pattern;
use super::scripted::{OPEN, OWN, SHUT, Subject, depths, enhanced, fpdu, raw_fpdu, segments, send};
use crate::config::{Config, FPDU_BYTES_MAX, FPDU_BYTES_MIN};
use crate::event::{EndCause, Event, Kind, Status};
use crate::memory::{Access, Memory, Piece};
use crate::planted::{Planted, plant};
use crate::work::{Payload, Work, WorkKind};

fn write(last: bool, stag: Stag, offset: u64) -> Segment {
    Segment::tagged(Opcode::Write, last, stag, offset)
}

fn read_request(msn: u32) -> Segment {
    Segment::untagged(Opcode::ReadRequest, true, QueueNumber::ReadRequest, msn, 0)
}

fn request_of(source_stag: Stag, source_offset: u64, size: u32) -> ReadRequest {
    ReadRequest { sink_stag: Stag(3), sink_offset: 0x500, size, source_stag, source_offset }
}

/// Returns a subject that has been given these bytes, in one piece or byte by byte.
fn given(bytes: &[u8], is_cut: bool) -> Subject {
    let mut subject = Subject::open(Config::default());
    subject.add_receive(1, 0, 8);
    if is_cut {
        for byte in bytes {
            subject.give(&[*byte]);
        }
    } else {
        subject.give(bytes);
    }
    subject
}

//= RFC 5040 section 4.8: DDP reports errors of tagged placement and RDMAP those of access rights
//= RFC 5041 section 7.1: the tagged offset of the payload must not wrap
#[test]
fn a_bad_write_is_terminated_with_its_cause_and_places_nothing() {
    for (segment, cause) in [
        (write(true, Stag(0x99), 0x1000), Cause::TaggedStag),
        (write(true, OPEN, 0x1ffd), Cause::TaggedBounds),
        (write(true, OPEN, 0xfff), Cause::TaggedBounds),
        (write(true, SHUT, 0x1000), Cause::ProtectionAccess),
        (write(true, OPEN, u64::MAX - 2), Cause::TaggedWrap),
    ] {
        for is_cut in [false, true] {
            given(&fpdu(&segment, b"data", false), is_cut).assert_terminated(cause);
        }
    }
}

//= RFC 5041 section 7.1: the MSN of an untagged message is that of the next buffer
//= RFC 5041 section 5.2: segments of an untagged message arrive with contiguous MOs
#[test]
fn a_bad_send_is_terminated_with_its_cause_and_places_nothing() {
    let solicited = Segment::untagged(Opcode::SendSolicited, true, QueueNumber::Send, 1, 0);
    let after_empty = [fpdu(&send(1, 0, false), &[], false), fpdu(&solicited, b"x", false)];
    for (bytes, cause) in [
        (fpdu(&send(2, 0, true), b"x", false), Cause::UntaggedMsn),
        (fpdu(&send(0, 0, true), b"x", false), Cause::UntaggedMsn),
        (fpdu(&send(1, 1, true), b"x", false), Cause::UntaggedMo),
        (fpdu(&send(1, 0, true), b"nine byte", false), Cause::UntaggedTooLong),
        (after_empty.concat(), Cause::OperationOpcode),
    ] {
        for is_cut in [false, true] {
            given(&bytes, is_cut).assert_terminated(cause);
        }
    }
    let mut without_receive = Subject::open(Config::default());
    without_receive.give(&fpdu(&send(1, 0, true), b"x", false));
    without_receive.assert_terminated(Cause::UntaggedNoBuffer);
}

/// Returns a subject whose peer has sent a message, without a receive for it, and a Write. The bytes
/// arrive in one piece or one by one.
fn waiting(crc: bool, is_cut: bool) -> Subject {
    let config = Config { waits_for_receives: true, crc, ..Config::default() };
    let mut subject = Subject::open(config);
    let message = fpdu(&send(1, 0, true), b"message", crc);
    let behind = fpdu(&write(true, OPEN, 0x1000), b"data", crc);
    let bytes = [message, behind].concat();
    let parts: Vec<_> = if is_cut { bytes.chunks(1).collect() } else { vec![&bytes[..]] };
    for part in parts {
        subject.give(part);
    }
    subject
}

#[test]
fn a_message_waits_for_its_receive_with_all_that_follows_it() {
    for (crc, is_cut) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut subject = waiting(crc, is_cut);
        assert!(subject.stream.waits_for_receive());
        subject.stream.handle_receives(&mut subject.memory);
        assert!(subject.stream.waits_for_receive(), "there still is none");
        let placed = |subject: &Subject| {
            let region = subject.memory.region(OPEN.0).expect("it is there");
            region.bytes[..4] == *b"data"
        };
        assert!(!placed(&subject));
        let receive = Piece { bytes: 7, ..subject.add_receive(5, 0, 8) };
        subject.memory.want(&[receive], b"message", false);
        let target = Piece { key: OPEN.0, address: 0x1000, bytes: 4 };
        subject.memory.want(&[target], b"data", true);
        subject.stream.handle_receives(&mut subject.memory);
        subject.take_events();
        assert!(!subject.stream.waits_for_receive() && placed(&subject));
        let is_receive = |event: &Event| {
            matches!(
                event,
                Event::ReceiveCompleted { id: 5, status: Status::Success, bytes: 7, .. }
            )
        };
        assert_eq!(subject.events.iter().filter(|event| is_receive(event)).count(), 1);
        assert_eq!(subject.cause(), None);
    }
}

//= RFC 5041 section 7.1: a message without a buffer ends the stream
#[test]
fn a_message_that_has_waited_for_too_long_is_terminated() {
    for is_cut in [false, true] {
        let mut subject = waiting(false, is_cut);
        subject.stream.give_up_waiting(&mut subject.memory);
        subject.take_events();
        assert!(!subject.stream.waits_for_receive());
        subject.assert_terminated(Cause::UntaggedNoBuffer);
    }
}

#[test]
fn an_stag_of_another_queue_pair_is_terminated_and_flushes_everything() {
    let read = fpdu(&read_request(1), &request_of(OPEN, 0x1000, 4).encode(), false);
    for (bytes, cause) in [
        (fpdu(&write(true, OPEN, 0x1000), b"data", false), Cause::TaggedStream),
        (read, Cause::ProtectionStream),
    ] {
        let mut subject = busy();
        subject.memory.give_away(OPEN.0);
        subject.give(&bytes);
        assert_flushed(&subject);
        subject.assert_terminated(cause);
    }
}

//= RFC 5040 section 5.4: a Terminate ends the stream, whatever it says
#[test]
fn a_terminate_in_the_middle_of_a_message_flushes_everything() {
    let terminate = Segment::untagged(Opcode::Terminate, true, QueueNumber::Terminate, 1, 0);
    let terminate = fpdu(&terminate, &[0x12, 0x02, 0x00, 0x00], false);
    for is_cut in [false, true] {
        let mut subject = busy();
        subject.give(&fpdu(&write(false, OPEN, 0x1000), &[], false));
        if is_cut {
            for byte in &terminate {
                subject.give(&[*byte]);
            }
        } else {
            subject.give(&terminate);
        }
        let no_buffer = Cause::UntaggedNoBuffer.error_code();
        assert_eq!(subject.cause(), Some(EndCause::Terminated(no_buffer)));
        assert_flushed(&subject);
        assert_eq!(subject.segments(), []);
        assert!(subject.stream.may_close());
    }
}

#[test]
fn a_reset_at_any_byte_flushes_everything() {
    let rest = fpdu(&send(1, 4, true), b"more", false);
    for end in 0..rest.len() {
        for is_reset in [false, true] {
            let mut subject = busy();
            let piece = Piece { key: OWN, address: 0x8004, bytes: 4 };
            subject.memory.want(&[piece], b"more", false);
            subject.give(&rest[..end]);
            if is_reset {
                subject.stream.handle_reset();
            } else {
                subject.stream.handle_end();
            }
            subject.take_events();
            let cause = if is_reset { EndCause::Reset } else { EndCause::Truncated };
            assert_eq!(subject.cause(), Some(cause), "at {end}");
            assert_flushed(&subject);
            assert_eq!(subject.memory.violation, None);
            assert!(subject.stream.may_close());
        }
    }
}

/// Returns a responder with a write, a read and a send that TCP has not taken, and with a receive of
/// which the peer has sent the first half.
fn busy() -> Subject {
    let mut subject = Subject::open(Config::default());
    let piece = subject.add_receive(1, 0, 8);
    subject.memory.want(&[Piece { bytes: 4, ..piece }], b"half", false);
    subject.give(&fpdu(&send(1, 0, false), b"half", false));
    let own = [Piece { key: OWN, address: 0x9000, bytes: 10 }];
    let (stag, offset) = (Stag(5), 0);
    for (id, kind) in [
        (10, WorkKind::Write { stag, offset }),
        (11, WorkKind::Read { stag, offset }),
        (12, WorkKind::Send { solicited: false, invalidate: None }),
    ] {
        let work = Work { id, kind, payload: Payload::Pieces(&own), signaled: false, fence: false };
        subject.stream.post_send(&work).expect("room for three");
    }
    subject
}

/// Shows that the work of [`busy`] was flushed once.
#[track_caller]
fn assert_flushed(subject: &Subject) {
    let mut ids = Vec::new();
    for event in &subject.events {
        match event {
            Event::Completed { id, status, .. } | Event::ReceiveCompleted { id, status, .. } => {
                assert_eq!(*status, Status::Flushed, "{event:?}");
                ids.push(*id);
            }
            _ => {}
        }
    }
    assert_eq!(ids, [1, 10, 11, 12]);
    assert!(subject.stream.is_idle());
}

#[test]
fn a_malformed_segment_is_terminated_with_its_cause() {
    let right = fpdu(&send(1, 0, true), b"x", false);
    let with = |at: usize, byte: u8| {
        let mut bytes = right.clone();
        bytes[2 + at] = byte;
        bytes
    };
    for (bytes, cause) in [
        (with(0, 0x42), Cause::UntaggedVersion),
        (with(0, 0xc2), Cause::TaggedVersion),
        (with(1, 0x83), Cause::OperationVersion),
        (with(1, 0x48), Cause::OperationOpcode),
        (with(9, 3), Cause::UntaggedQueueNumber),
        (with(9, 1), Cause::UntaggedQueueNumber),
        (raw_fpdu(&[0xc1], false), Cause::MpaMarkerAndLength),
        (raw_fpdu(&[], false), Cause::MpaMarkerAndLength),
    ] {
        for is_cut in [false, true] {
            given(&bytes, is_cut).assert_terminated(cause);
        }
    }
}

//= RFC 5040 section 5.2: the source of a Read Request is checked before it is answered
//= RFC 5040 section 4.8: RDMAP reports the errors of the source of a Read Request
#[test]
fn a_bad_read_request_is_terminated_with_its_cause() {
    for (request, cause) in [
        (request_of(Stag(0x99), 0x1000, 4), Cause::ProtectionStag),
        (request_of(OPEN, 0x1ffd, 4), Cause::ProtectionBounds),
        (request_of(SHUT, 0x1000, 4), Cause::ProtectionAccess),
        (request_of(OPEN, u64::MAX - 2, 4), Cause::ProtectionWrap),
    ] {
        for is_cut in [false, true] {
            let bytes = fpdu(&read_request(1), &request.encode(), false);
            given(&bytes, is_cut).assert_terminated(cause);
        }
    }
    given(&fpdu(&read_request(2), &request_of(OPEN, 0x1000, 4).encode(), false), false)
        .assert_terminated(Cause::UntaggedMsn);
}

//= RFC 5040 section 5.2: a Read Request is one untagged segment, and at most IRD are outstanding
#[test]
fn more_reads_than_the_ird_and_divided_requests_are_terminated() {
    let request = request_of(OPEN, 0x1000, 4).encode();
    let mut subject = Subject::open(Config::default());
    for msn in 1..=2 {
        subject.give(&fpdu(&read_request(msn), &request, false));
    }
    assert_eq!(subject.cause(), None);
    subject.give(&fpdu(&read_request(3), &request, false));
    subject.assert_terminated(Cause::UntaggedNoBuffer);
    let part = Segment::untagged(Opcode::ReadRequest, false, QueueNumber::ReadRequest, 1, 0);
    given(&fpdu(&part, &request[..20], false), false)
        .assert_terminated(Cause::OperationUnspecified);
    given(&fpdu(&part, &request, false), false).assert_terminated(Cause::UntaggedTooLong);
}

//= RFC 5040 section 5.2: an answer has the STag and the offset that the Read Request names
#[test]
fn a_read_is_answered_to_its_sink() {
    let mut subject = Subject::open(Config { mss: 200, ..Config::default() });
    let request = request_of(OPEN, 0x1010, 300);
    subject.give(&fpdu(&read_request(1), &request.encode(), false));
    let empty = request_of(Stag(0x99), 0, 0);
    subject.give(&fpdu(&read_request(2), &empty.encode(), false));
    let content: Vec<u8> = (0x10..0x10 + 300).map(|at| pattern(OPEN.0, at)).collect();
    let answer = |last, offset| Segment::tagged(Opcode::ReadResponse, last, Stag(3), offset);
    let sent = subject.segments();
    assert_eq!(sent[0], (answer(false, 0x500), content[..180].to_vec()));
    assert_eq!(sent[1], (answer(true, 0x500 + 180), content[180..].to_vec()));
    assert_eq!(sent[2], (answer(true, 0x500), Vec::new()));
    assert_eq!(sent.len(), 3);
}

#[test]
fn a_region_that_ends_before_the_answer_is_terminated_with_the_read_request() {
    let mut subject = Subject::open(Config::default());
    let request = request_of(OPEN, 0x1010, 300);
    let bytes = fpdu(&read_request(1), &request.encode(), false);
    subject.give(&bytes);
    subject.memory.remove(OPEN.0);
    let sent = subject.segments();
    let [(_, payload)] = sent.as_slice() else { panic!("{sent:?}") };
    let terminate = decode_terminate(payload, false).expect("our own Terminate");
    assert_eq!(terminate.error, Cause::ProtectionStag.error_code());
    assert_eq!(terminate.read_request, Some(request.encode()));
    assert_eq!(terminate.segment_length, Some(46));
    assert_eq!(
        terminate.ddp_header.map(|header| header.as_bytes().to_vec()),
        Some(bytes[2..20].to_vec())
    );
}

//= RFC 5040 section 4.8: the Terminate has the headers of the segment at fault
//= RFC 5040 section 4.8: M, D and R say which headers follow
#[test]
fn a_terminate_has_the_headers_of_the_segment_at_fault() {
    let bad_write = fpdu(&write(true, Stag(0x99), 7), b"data", false);
    for is_cut in [false, true] {
        let sent = given(&bad_write, is_cut).segments();
        let terminate = decode_terminate(&sent[0].1, false).expect("our own Terminate");
        assert_eq!(terminate.segment_length, Some(18));
        let header = terminate.ddp_header.expect("the header of the Write");
        assert_eq!(header.as_bytes(), &bad_write[2..16]);
        assert_eq!(terminate.read_request, None);
    }
    let request = request_of(SHUT, 0x1000, 4).encode();
    let sent = given(&fpdu(&read_request(1), &request, false), false).segments();
    let terminate = decode_terminate(&sent[0].1, false).expect("our own Terminate");
    assert_eq!(terminate.read_request, Some(request));
    let short = given(&raw_fpdu(&[], false), false).segments();
    assert_eq!(short[0].1, [0x20, 0x03, 0, 0]);
}

/// Returns an initiator with one read of 8 bytes outstanding.
fn reading() -> (Subject, Piece) {
    let config = Config { peer_to_peer: None, ..Config::default() };
    let mut subject = Subject::initiator(config, enhanced(), Some(depths(1, 1)));
    let piece = Piece { key: OWN, address: 0x8100, bytes: 8 };
    let kind = WorkKind::Read { stag: Stag(5), offset: 0x77 };
    let payload = Payload::Pieces(&[piece]);
    for id in 1..=2 {
        let work = Work { id, kind, payload, signaled: true, fence: false };
        subject.stream.post_send(&work).expect("room for two");
    }
    (subject, piece)
}

//= RFC 5040 section 5.2: at most ORD reads are outstanding
#[test]
fn a_read_waits_for_the_answer_to_an_earlier_one() {
    let (mut subject, piece) = reading();
    let sent = subject.segments();
    let request = ReadRequest {
        sink_stag: Stag(OWN),
        sink_offset: 0x8100,
        size: 8,
        source_stag: Stag(5),
        source_offset: 0x77,
    };
    assert_eq!(sent, [(read_request(1), request.encode().to_vec())]);
    subject.memory.want(&[piece], b"answered", true);
    let answer = Segment::tagged(Opcode::ReadResponse, true, Stag(OWN), 0x8100);
    subject.give(&fpdu(&answer, b"answered", false));
    let completed = Event::Completed { id: 1, kind: Kind::Read, status: Status::Success, bytes: 8 };
    assert_eq!(subject.events.last(), Some(&completed));
    assert_eq!(subject.memory.violation, None);
    assert_eq!(subject.segments().len(), 1);
}

/// Returns the cause with which an answer of these fields ends a stream that waits for 8 bytes.
fn cause_of_answer(stag: Stag, offset: u64, last: bool, bytes: usize) -> Option<EndCause> {
    let (mut subject, _) = reading();
    subject.segments();
    let answer = Segment::tagged(Opcode::ReadResponse, last, stag, offset);
    subject.give(&fpdu(&answer, &vec![1; bytes], false));
    subject.cause()
}

//= RFC 5040 section 5.5: Read Responses answer the oldest outstanding read, in order
#[test]
fn an_answer_that_is_not_the_expected_one_is_terminated() {
    let own = Stag(OWN);
    for (stag, offset, last, bytes, cause) in [
        (Stag(OWN + 1), 0x8100, true, 8, Cause::TaggedStag),
        (own, 0x8101, true, 8, Cause::TaggedBounds),
        (own, 0x8100, true, 7, Cause::TaggedBounds),
        (own, 0x8100, true, 9, Cause::TaggedBounds),
        (own, 0x8100, false, 9, Cause::TaggedBounds),
    ] {
        let found = cause_of_answer(stag, offset, last, bytes);
        assert_eq!(found, Some(EndCause::Peer(cause)));
    }
    let unasked = Segment::tagged(Opcode::ReadResponse, true, Stag(1), 0);
    given(&fpdu(&unasked, &[], false), false).assert_terminated(Cause::OperationOpcode);
}

#[test]
fn planted_faults_of_answers_are_found() {
    let own = Stag(OWN);
    for (fault, offset, bytes) in
        [(Planted::IgnoresAnswerOffset, 0x8101, 8), (Planted::AcceptsShortAnswer, 0x8100, 7)]
    {
        let expected = Some(EndCause::Peer(Cause::TaggedBounds));
        plant(Some(fault));
        let found = cause_of_answer(own, offset, true, bytes);
        plant(None);
        assert_ne!(found, expected, "{fault:?} changes nothing");
        assert_eq!(cause_of_answer(own, offset, true, bytes), expected);
    }
}

//= RFC 5040 section 5.3: a Send with Invalidate invalidates its STag before it is delivered
#[test]
fn a_send_with_invalidate_invalidates_or_is_terminated() {
    let invalidating = |stag: Stag| {
        let ddp = DdpHeader::Untagged {
            last: true,
            queue: QueueNumber::Send,
            msn: 1,
            mo: 0,
            upper_layer: stag.0,
        };
        Segment { ddp, opcode: Opcode::SendSolicitedInvalidate, reserved: 0 }
    };
    let subject = given(&fpdu(&invalidating(OPEN), &[], false), false);
    assert_eq!(subject.memory.invalidated, [OPEN]);
    let completed = Event::ReceiveCompleted {
        id: 1,
        status: Status::Success,
        bytes: 0,
        solicited: true,
        invalidated: Some(OPEN),
    };
    assert_eq!(subject.events.last(), Some(&completed));
    let mut unknown = given(&fpdu(&invalidating(Stag(0x99)), &[], false), false);
    unknown.assert_terminated(Cause::ProtectionInvalidate);
    let flushed = unknown.events.iter().any(|event| {
        matches!(event, Event::ReceiveCompleted { id: 1, status: Status::Flushed, .. })
    });
    assert!(flushed);
}

//= RFC 5040 section 5.4: a Terminate ends the stream, whatever it says
#[test]
fn a_terminate_ends_the_stream_in_both_bit_orders() {
    let terminate = Segment::untagged(Opcode::Terminate, true, QueueNumber::Terminate, 1, 0);
    let no_buffer = Cause::UntaggedNoBuffer.error_code();
    let setup = Cause::MpaInvalidSetup.error_code();
    let ird = Cause::MpaInsufficientIrd.error_code();
    let mut of_siw = vec![0x21, 0x02, 0x03, 0x00, 0, 18];
    of_siw.extend(&fpdu(&send(1, 0, true), &[], false)[2..20]);
    for (payload, error) in [
        (vec![0x12, 0x02, 0x00, 0x00], no_buffer),
        (of_siw, no_buffer),
        (vec![0x02, 0x04, 0x00, 0x00], setup),
        (vec![0x20, 0x04, 0x00, 0x00], setup),
        (vec![0x02, 0x06, 0x00, 0x00], ird),
        (vec![0x20, 0x06, 0x00, 0x00], ird),
        (vec![0xff, 0xff, 0x00, 0x00], ErrorCode { layer: 15, error_type: 15, code: 255 }),
    ] {
        let mut subject = given(&fpdu(&terminate, &payload, false), false);
        assert_eq!(subject.cause(), Some(EndCause::Terminated(error)));
        assert_eq!(subject.segments(), []);
    }
    let mut truncated = given(&fpdu(&terminate, &[0x12], false), false);
    assert_eq!(truncated.cause(), Some(EndCause::Peer(Cause::OperationUnspecified)));
    assert_eq!(truncated.segments(), []);
}

//= RFC 5040 section 5.4: no message follows a Terminate
#[test]
fn the_rest_of_an_fpdu_precedes_the_terminate_and_nothing_follows_it() {
    let mut subject = Subject::open(Config { long_fpdus: true, ..Config::default() });
    let piece = Piece { key: OWN, address: 0x8000, bytes: 5000 };
    for id in 1..=2 {
        let kind = WorkKind::Write { stag: Stag(5), offset: 0 };
        let payload = Payload::Pieces(&[piece]);
        let work = Work { id, kind, payload, signaled: true, fence: false };
        subject.stream.post_send(&work).expect("room for two");
    }
    subject.stream.poll_transmit(&mut subject.memory, &mut subject.out);
    let first = subject.out.bytes()[..16].to_vec();
    subject.stream.handle_written(super::scripted::NOW, 16, &subject.out);
    subject.give(&fpdu(&send(7, 0, true), &[], false));
    let flushed = subject
        .events
        .iter()
        .filter(|event| matches!(event, Event::Completed { status: Status::Flushed, .. }));
    assert_eq!(flushed.count(), 2);
    // The application may reuse the memory now. The FPDU ends as it was.
    let mut content = vec![0; 5000];
    subject.memory.read(piece, Access::LocalRead, &mut content).expect("an own region");
    subject.memory.remove(OWN);
    let sent = segments(&[first, subject.written()].concat());
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0], (write(true, Stag(5), 0), content));
    assert_eq!(sent[1].0.opcode, Opcode::Terminate);
    assert!(subject.stream.may_close());
    subject.give(&fpdu(&send(1, 0, true), &[], false));
    assert_eq!(subject.cause(), Some(EndCause::Peer(Cause::UntaggedMsn)));
    assert_eq!(subject.segments(), []);
}

//= RFC 5044 section 4.4: an FPDU with a wrong CRC is not passed to DDP
//= RFC 5044 section 4.4: the CRC covers the markers inside of the FPDU
#[test]
fn an_fpdu_with_a_wrong_crc_is_terminated_and_places_nothing() {
    for markers in [false, true] {
        let config = Config { crc: true, markers, ..Config::default() };
        let mut subject = Subject::responder(config, enhanced(), Some(depths(4, 4)));
        let mut bytes = fpdu(&write(true, OPEN, 0x1000), b"data", true);
        if markers {
            // The FPDU begins with a marker, which belongs to it.
            let covered = [&[0; 4], &bytes[..bytes.len() - 4]].concat();
            let mut crc = wire_iwarp::Crc::new();
            crc.update(&covered);
            bytes = [&covered, crc.encode().as_slice()].concat();
        }
        let mut wrong = bytes.clone();
        wrong[if markers { 1 } else { 18 }] ^= 1;
        let content = Piece { key: OPEN.0, address: 0x1000, bytes: 4 };
        subject.memory.want(&[content], b"data", true);
        let mut corrupt = Subject::responder(config, enhanced(), Some(depths(4, 4)));
        corrupt.give(&wrong);
        assert_eq!(corrupt.cause(), Some(EndCause::Peer(Cause::MpaCrc)));
        assert_eq!(corrupt.memory.violation, None);
        subject.give(&bytes);
        assert_eq!((subject.cause(), &subject.memory.violation), (None, &None));
        assert!(subject.memory.is_placed(&[content]));
    }
}

#[test]
fn a_misplaced_marker_is_terminated() {
    let config = Config { markers: true, ..Config::default() };
    let mut subject = Subject::responder(config, enhanced(), Some(depths(4, 4)));
    subject.give(&[0, 0, 0, 4]);
    assert_eq!(subject.cause(), Some(EndCause::Peer(Cause::MpaMarkerAndLength)));
}

//= RFC 5044 section 5: an FPDU fits into a TCP segment unless the peer is known to take longer ones
//= RFC 5041 section 4.3: the first message of each queue has the MSN 1
#[test]
fn fpdus_are_as_long_as_the_peer_takes() {
    for (long_fpdus, lengths) in [(false, vec![1424, 1424, 1152]), (true, vec![4000])] {
        let mut subject = Subject::open(Config { long_fpdus, ..Config::default() });
        let piece = Piece { key: OWN, address: 0x8000, bytes: 4000 };
        let kind = WorkKind::Send { solicited: false, invalidate: None };
        let payload = Payload::Pieces(&[piece]);
        let work = Work { id: 1, kind, payload, signaled: true, fence: false };
        subject.stream.post_send(&work).expect("room for one");
        subject.stream.poll_transmit(&mut subject.memory, &mut subject.out);
        assert!(long_fpdus || subject.out.frame_lengths().all(|length| length <= 1448));
        let sent = subject.segments();
        assert_eq!(sent.iter().map(|sent| sent.1.len()).collect::<Vec<_>>(), lengths);
        let msn = |segment: Segment| match segment.ddp {
            DdpHeader::Untagged { msn, .. } => msn,
            DdpHeader::Tagged { .. } => 0,
        };
        assert!(sent.iter().all(|sent| msn(sent.0) == 1));
    }
}

#[test]
fn a_setting_gives_the_length_of_fpdus_whatever_the_peer_takes() {
    for (fpdu_bytes, lengths) in [
        (0, (104, 15)),
        (FPDU_BYTES_MIN, (104, 15)),
        (1000, (976, 2)),
        (FPDU_BYTES_MAX, (1500, 1)),
        (u16::MAX, (1500, 1)),
    ] {
        for long_fpdus in [false, true] {
            let fpdu_bytes = Some(fpdu_bytes);
            let mut subject = Subject::open(Config { long_fpdus, fpdu_bytes, ..Config::default() });
            let piece = Piece { key: OWN, address: 0x8000, bytes: 1500 };
            let kind = WorkKind::Send { solicited: false, invalidate: None };
            let payload = Payload::Pieces(&[piece]);
            let work = Work { id: 1, kind, payload, signaled: true, fence: false };
            subject.stream.post_send(&work).expect("room for one");
            let sent = subject.segments();
            let longest = sent.iter().map(|sent| sent.1.len()).max();
            assert_eq!((longest, sent.len()), (Some(lengths.0), lengths.1), "{fpdu_bytes:?}");
        }
    }
}

#[test]
fn the_longest_fpdu_of_the_settings_has_room_for_markers() {
    let config = Config { fpdu_bytes: Some(FPDU_BYTES_MAX), ..Config::default() };
    let flags = SetupFlags { markers: true, ..enhanced() };
    let mut subject = Subject::responder(config, flags, Some(depths(4, 4)));
    subject.give(&fpdu(&write(true, Stag(1), 0), &[], false));
    let piece = Piece { key: OWN, address: 0x8000, bytes: 0x20000 };
    let kind = WorkKind::Write { stag: Stag(5), offset: 0 };
    let payload = Payload::Pieces(&[piece]);
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    subject.stream.post_send(&work).expect("room for one");
    subject.stream.poll_transmit(&mut subject.memory, &mut subject.out);
    let longest = subject.out.frame_lengths().max().expect("an FPDU");
    let limit = usize::from(FPDU_BYTES_MAX);
    assert!((limit - 16..=limit).contains(&longest), "{longest} bytes");
}

#[test]
fn an_empty_write_is_not_checked() {
    let mut subject = given(&fpdu(&write(true, Stag(0x99), u64::MAX), &[], false), false);
    assert_eq!(subject.cause(), None);
    assert_eq!(subject.segments(), []);
}

#[test]
fn a_send_between_two_segments_of_a_write_is_placed() {
    let mut subject = Subject::open(Config::default());
    let piece = subject.add_receive(1, 0, 4);
    subject.memory.want(&[piece], b"send", false);
    let target = Piece { key: OPEN.0, address: 0x1000, bytes: 8 };
    subject.memory.want(&[target], b"writeend", true);
    subject.give(&fpdu(&write(false, OPEN, 0x1000), b"", false));
    subject.give(&fpdu(&send(1, 0, true), b"send", false));
    subject.give(&fpdu(&write(true, OPEN, 0x1000), b"writeend", false));
    assert_eq!((subject.cause(), &subject.memory.violation), (None, &None));
    assert!(subject.memory.is_placed(&[target, piece]));
}

#[test]
fn the_end_of_the_connection_inside_of_a_message_is_an_error() {
    let half_write = fpdu(&write(false, OPEN, 0x1000), &[], false);
    let half_send = fpdu(&send(1, 0, false), &[], false);
    let whole = fpdu(&send(1, 0, true), &[], false);
    for (bytes, cause) in [
        (half_write, EndCause::Truncated),
        (half_send, EndCause::Truncated),
        (whole[..1].to_vec(), EndCause::Truncated),
        (whole[..whole.len() - 1].to_vec(), EndCause::Truncated),
        (whole, EndCause::Closed),
    ] {
        let mut subject = given(&bytes, false);
        subject.stream.handle_end();
        subject.take_events();
        assert_eq!(subject.cause(), Some(cause));
        assert!(subject.stream.may_close());
    }
}

#[test]
fn an_operation_whose_memory_is_gone_ends_the_stream_behind_earlier_ones() {
    let mut subject = Subject::open(Config::default());
    for (id, key) in [(1, OWN), (2, 0x99), (3, OWN)] {
        let pieces = [Piece { key, address: 0x8000, bytes: 10 }];
        let kind = WorkKind::Write { stag: Stag(5), offset: 0 };
        let payload = Payload::Pieces(&pieces);
        let work = Work { id, kind, payload, signaled: true, fence: false };
        subject.stream.post_send(&work).expect("room for three");
    }
    let sent = subject.segments();
    let opcodes: Vec<Opcode> = sent.iter().map(|sent| sent.0.opcode).collect();
    assert_eq!(opcodes, [Opcode::Write, Opcode::Terminate]);
    let statuses: Vec<Status> = subject
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Completed { status, .. } => Some(*status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [Status::Success, Status::LocalProtection, Status::Flushed]);
    assert!(matches!(subject.cause(), Some(EndCause::Local(_))));
}
