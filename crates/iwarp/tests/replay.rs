//! Replays the initiators of the captures of Linux siw against a responder.

#[path = "../../wire-iwarp/tests/golden/pcap.rs"]
mod pcap;
#[path = "../../wire-iwarp/tests/golden/tcp.rs"]
mod tcp;

use std::fs;

use delivery::Instant;
use iwarp::{Access, Config, EndCause, Event, Gather, Memory, Piece, Refusal, Status, Stream};
use wire_iwarp::{
    Cause, FpduLayout, Opcode, Parsed, SetupKind, Stag, decode_segment, decode_setup,
};

/// Memory that permits everything and keeps nothing.
struct Anything {
    receives: u64,
}

impl Memory for Anything {
    fn check(&mut self, _: Piece, _: Access) -> Result<(), Refusal> {
        Ok(())
    }

    fn place(&mut self, _: Piece, _: Access, _: &[u8], _: bool) -> Result<(), Refusal> {
        Ok(())
    }

    fn read(&mut self, _: Piece, _: Access, _: &mut [u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn invalidate(&mut self, _: Stag) -> Result<(), Refusal> {
        Ok(())
    }

    fn take_receive(&mut self, pieces: &mut Vec<Piece>) -> Option<u64> {
        pieces.push(Piece { key: 0, address: 0, bytes: 1 << 20 });
        self.receives += 1;
        Some(self.receives - 1)
    }
}

/// Returns how many whole FPDUs behind the set-up frame a responder that reads nothing accepts, and
/// why it ends: an answer to a read that siw has made is unexpected here.
fn expect(stream: &[u8]) -> (u64, Option<EndCause>) {
    let Ok(Parsed::Complete { consumed, .. }) = decode_setup(SetupKind::Request, stream) else {
        panic!("no request");
    };
    let (mut rest, mut count) = (&stream[consumed..], 0);
    while let Some(length) = rest.first_chunk() {
        let length = u16::from_be_bytes(*length);
        let Some((fpdu, behind)) = rest.split_at_checked(FpduLayout::of(length).total) else {
            break;
        };
        let (segment, _) = decode_segment(&fpdu[2..2 + usize::from(length)]).expect("of siw");
        if segment.opcode == Opcode::ReadResponse {
            return (count, Some(EndCause::Peer(Cause::OperationOpcode)));
        }
        rest = behind;
        count += 1;
    }
    (count, None)
}

/// Gives the bytes to a responder in pieces of this length. Returns the number of FPDUs that it has
/// accepted, and why it ended.
fn replay(bytes: &[u8], cut: usize) -> (u64, Option<EndCause>) {
    let now = Instant(0);
    let (mut memory, mut out) = (Anything { receives: 0 }, Gather::new());
    let mut stream = Stream::respond(Config { ird: 128, ..Config::default() }, now);
    let mut cause = None;
    let mut completed = 0;
    let Ok(Parsed::Complete { consumed, .. }) = decode_setup(SetupKind::Request, bytes) else {
        panic!("no request");
    };
    let (request, fpdus) = bytes.split_at(consumed);
    for piece in request.chunks(cut).chain(fpdus.chunks(cut)) {
        stream.handle_received(piece, &mut memory);
        while let Some(event) = stream.poll_event() {
            match event {
                Event::Request { .. } => stream.accept(&[], 128, 128).expect("a request waits"),
                Event::ReceiveCompleted { id, status: Status::Success, .. } => {
                    assert_eq!(id, completed);
                    completed += 1;
                }
                Event::Ended { cause: why } => cause = Some(why),
                _ => {}
            }
        }
        loop {
            stream.poll_transmit(&mut memory, &mut out);
            if out.is_empty() {
                break;
            }
            stream.handle_written(now, out.total(), &out);
        }
    }
    (stream.counters().fpdus_received, cause)
}

#[test]
fn a_responder_accepts_every_initiator_of_the_captures() {
    let mut count = 0;
    for file in fs::read_dir(pcap::folder()).expect("the captures") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        for connection in tcp::connections(&pcap::frames(&name)) {
            let bytes = connection.initiator.stream();
            let expected = match name.as_str() {
                "userspace-siw-msn-gap" => (0, Some(EndCause::Peer(Cause::UntaggedMsn))),
                _ => expect(&bytes),
            };
            for cut in [usize::MAX, 1000, 1] {
                let resets = [connection.initiator.is_reset, connection.responder.is_reset];
                let found = replay(&bytes, cut);
                assert_eq!(found, expected, "{name}, pieces of {cut}, resets {resets:?}");
            }
            count += expected.0;
        }
    }
    assert!(count > 200, "{count} FPDUs");
}
