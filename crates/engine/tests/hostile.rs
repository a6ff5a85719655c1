//! What peers and strangers can do to an endpoint, and what they cannot (protocol.md §4.5, §7.3, §8).

mod pair;

use std::cell::RefCell;
use std::rc::Rc;

use pair::{Flight, Pair, address};
use wire_edge::{
    CONTROL_BYTES_MAX, Control, Flags, HEADER_BYTES_MAX, Header, LinkIndex, Prefix, decode,
    encode_header,
};

/// The first host, from now on in the hands of somebody who sends what it likes in its name.
struct Rogue {
    /// Of the last frame that was sent.
    prefix: Prefix,
}

impl Rogue {
    /// Takes the place of the first host of a connected pair, which says nothing any more.
    fn replace(pair: &mut Pair) -> Self {
        let prefix = Rc::new(RefCell::new(None));
        let spied = Rc::clone(&prefix);
        pair.filter = Box::new(move |_, flight| {
            if flight.to == 1
                && let Ok(frame) = decode(&flight.bytes)
            {
                *spied.borrow_mut() = Some(frame.prefix);
            }
            true
        });
        pair.write(0, 0, 8, 0);
        pair.run_for(1_000_000_000);
        pair.filter = Box::new(|_, _| true);
        pair.hosts[0].paused = true;
        let prefix = prefix.borrow_mut().take();
        Self { prefix: prefix.expect("the write was sent") }
    }

    /// A frame with these control messages on a link, as the second host gets it.
    fn control(&mut self, link: u8, from: wire_edge::PeerAddr, messages: &[Control<'_>]) -> Flight {
        self.prefix.packet = self.prefix.packet.wrapping_add(1);
        let prefix = Prefix {
            kind: Header::Control.kind(),
            link: LinkIndex(link),
            flags: Flags::NONE,
            ..self.prefix
        };
        let mut bytes = vec![0; HEADER_BYTES_MAX];
        let len = encode_header(
            &prefix,
            &Header::Control,
            bytes.as_mut_slice().first_chunk_mut().unwrap(),
        );
        bytes.truncate(len);
        for message in messages {
            let mut encoded = [0; CONTROL_BYTES_MAX];
            let len = message.encode(&mut encoded);
            bytes.extend_from_slice(&encoded[..len]);
        }
        Flight { to: 1, link: 0, from, bytes }
    }
}

#[test]
fn questions_that_are_asked_again_and_again_have_few_answers_in_flight() {
    let mut pair = Pair::connected(1);
    let mut rogue = Rogue::replace(&mut pair);
    let mut most = 0;
    for turn in 0..70_000_u32 {
        let mut question = rogue.control(0, address(0, 0), &[Control::Links(1 | 1 << 5)]);
        pair.deliver(&mut question);
        pair.turn(1);
        pair.wire.clear();
        pair.now = pair.now.after_ns(1_000);
        if turn % 1000 == 0 {
            most = most.max(pair.hosts[1].info().paths[0].in_flight_bytes);
        }
    }
    assert!(most <= 4096, "{most} bytes that nobody acknowledges");
}
