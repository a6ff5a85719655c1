//! The set-up against a scripted peer.

use delivery::Instant;
use wire_iwarp::{
    Cause, EnhancedSetup, Opcode, Parsed, Revision, Segment, SetupError, SetupFlags, SetupKind,
    Stag, decode_setup,
};

use super::scripted::{NOW, Subject, depths, enhanced, fpdu, reply, request, send, setup_frame};
use crate::config::{Config, PeerKind, RtrKinds};
use crate::event::{EndCause, Event, SetupFault};
use crate::stream::Stream;
use crate::work::{Payload, PostError, Work, WorkKind};

fn offer(write: bool, read: bool, send: bool) -> EnhancedSetup {
    EnhancedSetup {
        ird: 4,
        ord: 4,
        peer_to_peer: true,
        rtr_write: write,
        rtr_read: read,
        rtr_send: send,
    }
}

//= RFC 6581 section 9: the responder picks one of the offered RTR messages
#[test]
fn a_responder_picks_write_then_read_then_send() {
    for (offered, picked) in [
        ((true, true, true), (true, false, false)),
        ((false, true, true), (false, true, false)),
        ((false, false, true), (false, false, true)),
        ((false, false, false), (false, false, false)),
    ] {
        let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
        subject.give(&request(enhanced(), Some(offer(offered.0, offered.1, offered.2))));
        subject.stream.accept(b"yes", 2, 2).expect("a request waits");
        let bytes = subject.written();
        let words = reply(&bytes).enhanced.expect("an enhanced reply");
        assert!(words.peer_to_peer);
        assert_eq!((words.rtr_write, words.rtr_read, words.rtr_send), picked);
    }
}

#[test]
fn a_responder_that_is_offered_only_a_read_answers_one() {
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    // An initiator of siw offers this also if its program reads nothing.
    let offered = EnhancedSetup { ord: 0, ..offer(false, true, false) };
    subject.give(&request(enhanced(), Some(offered)));
    subject.stream.accept(b"yes", 0, 0).expect("a request waits");
    let bytes = subject.written();
    let words = reply(&bytes).enhanced.expect("an enhanced reply");
    assert!(words.peer_to_peer && words.rtr_read);
    assert_eq!((words.ird, subject.stream.terms().ird), (1, 1));
}

//= RFC 6581 section 9: the responder lowers its ORD to the IRD of the initiator
#[test]
fn a_responder_has_no_more_reads_outstanding_than_the_initiator_answers() {
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    subject.give(&request(enhanced(), Some(depths(3, 9))));
    let expected = Event::Request { private_data: b"hello".to_vec(), ird: Some(3), ord: Some(9) };
    assert_eq!(subject.events, [expected]);
    subject.stream.accept(&[], 5, 8).expect("a request waits");
    let bytes = subject.written();
    let words = reply(&bytes).enhanced.expect("an enhanced reply");
    assert_eq!((words.ird, words.ord), (5, 3));
    assert_eq!((subject.stream.terms().ird, subject.stream.terms().ord), (5, 3));
}

//= RFC 5044 section 7.1: both ends use CRCs if either asks for them
#[test]
fn crcs_are_on_if_either_end_asks() {
    for (own, peer) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = Config { crc: own, ..Config::default() };
        let flags = SetupFlags { crc: peer, ..enhanced() };
        let mut responder = Subject::new(Stream::respond(config, NOW));
        responder.give(&request(flags, Some(depths(1, 1))));
        responder.stream.accept(&[], 1, 1).expect("a request waits");
        assert_eq!(reply(&responder.written()).flags.crc, own || peer);
        assert_eq!(responder.stream.terms().crc, own || peer);
        let initiator = Subject::initiator(config, flags, Some(depths(1, 1)));
        assert_eq!(initiator.stream.terms().crc, own || peer);
    }
}

//= RFC 5044 section 7.1: a reply sets its own bits, and reserved bits to 0
#[test]
fn a_reply_does_not_echo_other_bits_than_that_of_long_fpdus() {
    let odd = SetupFlags { reject: true, gso: true, reserved: 0x0500, ..enhanced() };
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    subject.give(&request(odd, Some(depths(1, 1))));
    subject.stream.accept(&[], 1, 1).expect("a request waits");
    let bytes = subject.written();
    let flags = reply(&bytes).flags;
    assert!(!flags.reject && flags.gso && flags.reserved == 0);
    assert!(subject.stream.terms().long_fpdus);
}

#[test]
fn a_responder_knows_its_own_kind_and_answers_only_it_with_its_bit() {
    let own = SetupFlags::ETHERNOT_REQUEST;
    for (gso, reserved, peer, bits) in [
        (false, 0, PeerKind::Unknown, 0),
        (true, 0, PeerKind::Siw, 0),
        (true, SetupFlags::ETHERNOT_REPLY, PeerKind::Siw, 0),
        (true, own, PeerKind::Ethernot, SetupFlags::ETHERNOT_REPLY),
        (false, own, PeerKind::Ethernot, SetupFlags::ETHERNOT_REPLY),
    ] {
        let flags = SetupFlags { gso, reserved, ..enhanced() };
        for accepts in [true, false] {
            let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
            subject.give(&request(flags, Some(depths(1, 1))));
            if accepts {
                subject.stream.accept(&[], 1, 1).expect("a request waits");
                assert_eq!(subject.stream.terms().peer, peer, "{flags:?}");
            } else {
                subject.stream.reject(&[]).expect("a request waits");
            }
            assert_eq!(reply(&subject.written()).flags.reserved, bits, "{flags:?}");
        }
    }
}

#[test]
fn two_ends_of_this_project_know_each_other() {
    let mut initiator = Subject::new(
        Stream::initiate(Config::default(), &[], NOW).expect("no private data is not too long"),
    );
    let mut responder = Subject::new(Stream::respond(Config::default(), NOW));
    responder.give(&initiator.written());
    responder.stream.accept(&[], 1, 1).expect("a request waits");
    initiator.give(&responder.written());
    assert_eq!(initiator.stream.terms().peer, PeerKind::Ethernot);
    assert_eq!(responder.stream.terms().peer, PeerKind::Ethernot);
}

/// siw echoes the reserved bits of the request.
#[test]
fn an_initiator_distinguishes_its_own_kind_from_an_echo() {
    let mut asking = Subject::new(
        Stream::initiate(Config::default(), &[], NOW).expect("no private data is not too long"),
    );
    let bytes = asking.written();
    let sent = match decode_setup(SetupKind::Request, &bytes) {
        Ok(Parsed::Complete { frame, .. }) => frame.flags,
        other => panic!("{other:?}"),
    };
    assert!(sent.gso);
    for (reserved, peer) in [
        (0, PeerKind::Unknown),
        (sent.reserved, PeerKind::Siw),
        (SetupFlags::ETHERNOT_REPLY, PeerKind::Ethernot),
    ] {
        let flags = SetupFlags { gso: true, reserved, ..enhanced() };
        let subject = Subject::initiator(Config::default(), flags, Some(depths(1, 1)));
        assert_eq!(subject.stream.terms().peer, peer, "{flags:?}");
    }
}

//= RFC 6581 section 9: an initiator that cannot answer the ORD of the responder terminates
#[test]
fn a_reply_with_too_many_reads_is_terminated() {
    let config = Config { ird: 4, ird_max: 8, ..Config::default() };
    let mut fits = Subject::initiator(config, enhanced(), Some(depths(4, 8)));
    assert_eq!(fits.stream.terms().ird, 8);
    assert_eq!(fits.segments(), []);
    let mut exceeds = Subject::initiator(config, enhanced(), Some(depths(4, 9)));
    exceeds.assert_terminated(Cause::MpaInsufficientIrd);
}

#[test]
fn a_reply_that_wants_another_rtr_message_is_terminated() {
    let only_write = RtrKinds { write: true, read: false, send: false };
    let config = Config { peer_to_peer: Some(only_write), ..Config::default() };
    let mut subject = Subject::initiator(config, enhanced(), Some(offer(false, true, false)));
    subject.assert_terminated(Cause::MpaNoMatchingRtr);
}

#[test]
fn an_initiator_sends_the_rtr_message_that_the_reply_names() {
    for (words, opcode) in [
        (offer(true, false, false), Opcode::Write),
        (offer(false, true, false), Opcode::ReadRequest),
        (offer(false, false, true), Opcode::Send),
    ] {
        let mut subject = Subject::initiator(Config::default(), enhanced(), Some(words));
        let sent = subject.segments();
        assert_eq!(sent.iter().map(|(segment, _)| segment.opcode).collect::<Vec<_>>(), [opcode]);
    }
}

#[test]
fn the_rtr_send_takes_no_receive() {
    let mut subject =
        Subject::responder(Config::default(), enhanced(), Some(offer(false, false, true)));
    assert!(!subject.events.contains(&Event::Established { private_data: Vec::new() }));
    subject.give(&fpdu(&send(1, 0, true), &[], false));
    assert_eq!(subject.events.last(), Some(&Event::Established { private_data: Vec::new() }));
    let piece = subject.add_receive(5, 0, 4);
    subject.memory.want(&[piece], b"data", false);
    subject.give(&fpdu(&send(2, 0, true), b"data", false));
    assert!(matches!(subject.events.last(), Some(Event::ReceiveCompleted { id: 5, .. })));
}

//= RFC 5044 section 7.1: a responder sends no FPDU before it has received one
#[test]
fn a_responder_holds_its_work_until_the_first_fpdu() {
    let mut subject = Subject::responder(Config::default(), enhanced(), Some(depths(1, 1)));
    let kind = WorkKind::Send { solicited: false, invalidate: None };
    let payload = Payload::Inline(b"early");
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    subject.stream.post_send(&work).expect("room for one");
    assert_eq!(subject.segments(), []);
    subject.give(&fpdu(&Segment::tagged(Opcode::Write, true, Stag(1), 0), &[], false));
    assert_eq!(subject.segments(), [(send(1, 0, true), b"early".to_vec())]);
}

/// Returns a responder that has work before its initiator has sent an FPDU.
fn responder_with_work(words: EnhancedSetup) -> Subject {
    let mut subject = Subject::responder(Config::default(), enhanced(), Some(words));
    let kind = WorkKind::Send { solicited: false, invalidate: None };
    let payload = Payload::Inline(b"early");
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    subject.stream.post_send(&work).expect("room for one");
    subject
}

/// The programs at both ends may wait for the responder to speak, as `ucmatose` does over siw.
#[test]
fn a_responder_without_peer_to_peer_mode_speaks_first_after_a_tenth_of_a_second() {
    let mut subject = responder_with_work(depths(1, 1));
    let until = NOW.after_ns(100_000_000);
    assert_eq!(subject.stream.next_timeout(), Some(until));
    subject.stream.handle_timeout(NOW.after_ns(99_999_999));
    assert_eq!(subject.segments(), []);
    subject.stream.handle_timeout(until);
    assert_eq!(subject.segments(), [(send(1, 0, true), b"early".to_vec())]);
    assert_eq!(subject.stream.next_timeout(), None);
}

#[test]
fn a_stream_that_has_ended_waits_for_no_time() {
    let mut subject = responder_with_work(depths(1, 1));
    assert!(subject.stream.next_timeout().is_some());
    subject.stream.handle_reset();
    assert_eq!(subject.stream.next_timeout(), None);
}

#[test]
fn a_responder_in_peer_to_peer_mode_waits_for_the_rtr_message_as_long_as_it_takes() {
    let mut subject = responder_with_work(offer(true, false, false));
    assert_eq!(subject.stream.next_timeout(), None);
    subject.stream.handle_timeout(NOW.after_ns(3_600_000_000_000));
    assert_eq!(subject.segments(), []);
}

//= RFC 5044 section 7.1: the initiator sends no FPDU before it has received the reply
#[test]
fn bytes_behind_the_request_end_the_set_up() {
    let early = EndCause::Setup(SetupFault::EarlyBytes);
    let bytes = [request(enhanced(), Some(depths(1, 1))), vec![0]].concat();
    let mut at_once = Subject::new(Stream::respond(Config::default(), NOW));
    at_once.give(&bytes);
    assert_eq!(at_once.cause(), Some(early));
    let mut later = Subject::new(Stream::respond(Config::default(), NOW));
    let (last, first) = bytes.split_last().expect("a request");
    later.give(first);
    later.give(&[*last]);
    assert_eq!(later.cause(), Some(early));
    assert!(later.stream.may_close());
}

#[test]
fn a_malformed_request_ends_the_set_up_at_its_first_wrong_byte() {
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    subject.give(b"GET");
    let error = SetupError::Key { kind: SetupKind::Request, at: 0 };
    assert_eq!(subject.cause(), Some(EndCause::Setup(SetupFault::Malformed(error))));
    let mut third = Subject::new(Stream::respond(Config::default(), NOW));
    let mut frame = request(enhanced(), Some(depths(1, 1)));
    frame[17] = 3;
    third.give(&frame);
    let error = SetupError::Revision(3);
    assert_eq!(third.cause(), Some(EndCause::Setup(SetupFault::Malformed(error))));
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    for byte in request(enhanced(), Some(depths(1, 1))) {
        subject.give(&[byte]);
    }
    assert!(matches!(subject.events.as_slice(), [Event::Request { .. }]));
}

#[test]
fn private_data_beyond_the_limit_ends_the_set_up() {
    let config = Config { private_data_max: 4, ..Config::default() };
    let mut subject = Subject::new(Stream::respond(config, NOW));
    subject.give(&request(enhanced(), Some(depths(1, 1))));
    assert_eq!(subject.cause(), Some(EndCause::Setup(SetupFault::PrivateData(5))));
}

#[test]
fn the_set_up_has_deadlines() {
    let mut responder = Subject::new(Stream::respond(Config::default(), NOW));
    assert_eq!(responder.stream.next_timeout(), Some(NOW.after_ns(5_000_000_000)));
    responder.stream.handle_timeout(NOW.after_ns(4_999_999_999));
    responder.take_events();
    assert_eq!(responder.events, []);
    responder.stream.handle_timeout(NOW.after_ns(5_000_000_000));
    responder.take_events();
    assert_eq!(responder.cause(), Some(EndCause::Setup(SetupFault::NoRequest)));
    let stream = Stream::initiate(Config::default(), &[], NOW).expect("no private data");
    let mut initiator = Subject::new(stream);
    assert_eq!(initiator.stream.next_timeout(), Some(NOW.after_ns(10_000_000_000)));
    initiator.stream.handle_timeout(NOW.after_ns(10_000_000_000));
    initiator.take_events();
    assert_eq!(initiator.cause(), Some(EndCause::Setup(SetupFault::NoReply)));
}

#[test]
fn a_rejected_initiator_gets_the_private_data() {
    let initiated = Stream::initiate(Config::default(), &[], NOW).expect("no private data");
    let mut subject = Subject::new(initiated);
    subject.written();
    let flags = SetupFlags { reject: true, ..enhanced() };
    let words = Some(depths(0, 0));
    subject.give(&setup_frame(SetupKind::Reply, Revision::Two, flags, words, b"no"));
    let rejected = Event::Rejected { private_data: b"no".to_vec() };
    assert_eq!(subject.events, [rejected, Event::Ended { cause: EndCause::Rejected }]);
}

/// Linux siw refuses a peer that asks for markers.
#[test]
fn a_refusal_of_markers_is_a_rejection() {
    let config = Config { markers: true, ..Config::default() };
    let initiated = Stream::initiate(config, &[], NOW).expect("no private data");
    let mut subject = Subject::new(initiated);
    subject.written();
    let flags = SetupFlags { reject: true, ..enhanced() };
    subject.give(&setup_frame(SetupKind::Reply, Revision::Two, flags, Some(depths(0, 0)), &[]));
    assert_eq!(subject.cause(), Some(EndCause::Rejected));
    assert_eq!(subject.written(), []);
    assert!(subject.stream.may_close());
}

#[test]
fn a_request_whose_private_data_has_no_room_for_the_words_ends_the_set_up() {
    let mut bytes = request(enhanced(), Some(depths(1, 1)));
    bytes[18..20].copy_from_slice(&3_u16.to_be_bytes());
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    subject.give(&bytes);
    let fault = SetupFault::Malformed(SetupError::EnhancedTruncated(3));
    assert_eq!(subject.cause(), Some(EndCause::Setup(fault)));
    assert_eq!(subject.written(), []);
}

#[test]
fn a_responder_that_rejects_ends_when_the_reply_is_written() {
    let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
    subject.give(&request(enhanced(), Some(depths(1, 1))));
    subject.stream.reject(b"no").expect("a request waits");
    assert!(!subject.stream.may_close());
    let bytes = subject.written();
    assert!(reply(&bytes).flags.reject);
    assert_eq!(reply(&bytes).private_data, b"no");
    assert_eq!(subject.cause(), Some(EndCause::Rejected));
    assert!(subject.stream.may_close());
}

#[test]
fn a_reply_without_enhanced_set_up_or_of_another_revision_ends_the_set_up() {
    let plain = SetupFlags::default();
    for (revision, fault) in [
        (Revision::Two, SetupFault::NotEnhanced),
        (Revision::One, SetupFault::Revision(Revision::One)),
    ] {
        let initiated = Stream::initiate(Config::default(), &[], NOW).expect("no private data");
        let mut subject = Subject::new(initiated);
        subject.written();
        subject.give(&setup_frame(SetupKind::Reply, revision, plain, None, &[]));
        assert_eq!(subject.cause(), Some(EndCause::Setup(fault)));
    }
}

#[test]
fn revisions_0_and_1_are_answered_in_kind() {
    for revision in [Revision::Zero, Revision::One] {
        let mut subject = Subject::new(Stream::respond(Config::default(), NOW));
        let plain = SetupFlags::default();
        subject.give(&setup_frame(SetupKind::Request, revision, plain, None, b"old"));
        subject.stream.accept(&[], 2, 2).expect("a request waits");
        let bytes = subject.written();
        assert_eq!((reply(&bytes).revision, reply(&bytes).enhanced), (revision, None));
        assert!(subject.events.contains(&Event::Established { private_data: Vec::new() }));
    }
}

#[test]
fn a_silent_peer_is_nudged_ten_times() {
    let config = Config { peer_to_peer: None, ..Config::default() };
    let mut subject = Subject::initiator(config, enhanced(), Some(depths(1, 1)));
    assert_eq!(subject.stream.next_timeout(), None);
    let kind = WorkKind::Send { solicited: false, invalidate: None };
    let payload = Payload::Inline(b"first");
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    subject.stream.post_send(&work).expect("room for one");
    assert_eq!(subject.segments().len(), 1);
    let mut now: Instant = NOW;
    let nudge = (Segment::tagged(Opcode::Write, true, Stag(1), 0), Vec::new());
    for wait_ms in [5, 10, 20, 40, 40, 40, 40, 40, 40, 40] {
        now = now.after_ns(wait_ms * 1_000_000);
        assert_eq!(subject.stream.next_timeout(), Some(now));
        subject.stream.handle_timeout(now);
        assert_eq!(subject.segments(), std::slice::from_ref(&nudge));
    }
    assert_eq!(subject.stream.next_timeout(), None);
    assert_eq!(subject.stream.counters().nudges, 10);
}

/// The passive side of siw may have slept through the first FPDU although it sends.
#[test]
fn a_peer_that_speaks_without_an_answer_is_nudged_once() {
    for speaks_late in [false, true] {
        let config = Config { peer_to_peer: None, ..Config::default() };
        let mut subject = Subject::initiator(config, enhanced(), Some(depths(1, 1)));
        subject.add_receive(1, 0, 8);
        let kind = WorkKind::Send { solicited: false, invalidate: None };
        let payload = Payload::Inline(b"first");
        let work = Work { id: 1, kind, payload, signaled: true, fence: false };
        subject.stream.post_send(&work).expect("room for one");
        assert_eq!(subject.segments().len(), 1);
        if speaks_late {
            while let Some(due) = subject.stream.next_timeout() {
                subject.stream.handle_timeout(due);
                assert_eq!(subject.segments().len(), 1);
            }
        }
        subject.give(&fpdu(&send(1, 0, true), &[], false));
        if let Some(due) = subject.stream.next_timeout() {
            assert!(!speaks_late);
            subject.stream.handle_timeout(due);
        }
        assert_eq!(subject.segments().len(), 1, "one nudge");
        assert_eq!(subject.stream.next_timeout(), None);
    }
}

#[test]
fn a_peer_that_answers_is_not_nudged() {
    let offered = Some(offer(true, false, false));
    let mut subject = Subject::initiator(Config::default(), enhanced(), offered);
    assert_eq!(subject.segments().len(), 1);
    assert!(subject.stream.next_timeout().is_some());
    subject.give(&fpdu(&Segment::tagged(Opcode::Write, true, Stag(1), 0), &[], false));
    assert_eq!(subject.stream.next_timeout(), None);
}

#[test]
fn reads_are_refused_if_the_peer_answers_none() {
    let mut subject = Subject::initiator(Config::default(), enhanced(), Some(depths(0, 1)));
    let kind = WorkKind::Read { stag: Stag(9), offset: 0 };
    let payload = Payload::Pieces(&[]);
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    assert_eq!(subject.stream.post_send(&work), Err(PostError::NoReads));
}
