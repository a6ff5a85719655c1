//! Runs two iWARP streams that talk to each other. The input bytes decide what their users post, in
//! which cuts the bytes of their TCP connection travel, and what an attacker does with these bytes:
//! flips, inserts, drops, repeats and swaps them, and forges frames with a right CRC.
//!
//! The test checks these properties:
//!
//! - No code panics.
//! - A peer changes and reads only regions to which it has the right. Other memory changes only
//!   where an outstanding read or receive of this end has its pieces.
//! - Nothing is placed after a refused check, and nothing after the stream has ended.
//! - Every operation, and every receive that the stream has taken, ends exactly once, in order.
//! - After the end, a stream reports nothing, accepts no work, and its socket can be closed.
//! - No timer is in the past after a stream has handled the time.
//! - If the bytes arrive as they were sent, no stream ends because of its peer.

mod end;
mod memory;
mod pipe;

use delivery::Instant;
use iwarp::{Config, EndCause, Gather, RtrKinds, SetupFault, Stream};
use wire_iwarp::Revision;

use end::End;

use crate::input::Input;

/// Maximum number of steps of one run. With this number, a run can reach any state and is still
/// short.
const STEPS_MAX: usize = 300;

/// Maximum number of rounds until two streams have written all that they have to write. Each round
/// moves at least an FPDU, and a run posts far less.
const ROUNDS_MAX: usize = 4_000;

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    if input.one_in(8) {
        // The attacker may change the set-up too.
    } else {
        world.exchange();
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
    }
    world.finish();
}

/// Two ends of a connection.
struct World {
    /// The initiator, then the responder.
    ends: [End; 2],
    now: Instant,
    out: Gather,
    /// Whether all bytes arrived as they were sent so far, and all work is such that a peer has
    /// nothing to refuse.
    is_honest: bool,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let now = Instant(1_000_000_000);
        let (options, kinds, depths) = (input.u8(), input.u8(), input.u8());
        let config = |shift: u8| Config {
            crc: options >> shift & 1 != 0,
            markers: options >> shift & 2 != 0,
            long_fpdus: options >> shift & 4 != 0,
            mss: if options >> shift & 8 == 0 { 128 } else { 300 },
            ird: (depths >> shift & 3).into(),
            ord: (depths >> shift >> 2 & 3).into(),
            ird_max: 4,
            revision: match kinds >> 6 {
                0 => Revision::Zero,
                1 => Revision::One,
                _ => Revision::Two,
            },
            peer_to_peer: (kinds & 0x38 != 0x38).then_some(RtrKinds {
                write: kinds & 1 != 0,
                read: kinds & 2 != 0,
                send: kinds & 4 != 0,
            }),
            waits_for_receives: kinds & 8 != 0,
            work_capacity: 6,
            pieces_capacity: 12,
            inline_capacity: 300,
            ..Config::default()
        };
        let initiator = Stream::initiate(config(0), b"private", now).expect("it is short");
        let responder = Stream::respond(config(4), now);
        let depths = config(4);
        let ends = [
            End::new(initiator, (depths.ird, depths.ord)),
            End::new(responder, (depths.ird, depths.ord)),
        ];
        Self { ends, now, out: Gather::new(), is_honest: true }
    }

    /// Performs the step that the next bytes of the input describe.
    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let index = usize::from(choice >> 7);
        let (end, peer) = pair(&mut self.ends, index);
        match choice & 15 {
            0 | 1 => self.is_honest &= end.post(input, peer),
            2 => end.post_receive(input),
            3 | 4 => {
                let share = if choice & 16 == 0 { 0xff } else { input.u8() };
                end.transmit(self.now, &mut self.out, share, &mut peer.pipe);
            }
            5..=7 => {
                let count = if choice & 16 == 0 { usize::MAX } else { input.u8().into() };
                end.deliver(count);
            }
            8 => end.deliver_directly(input.u8().into()),
            9 => {
                self.is_honest = false;
                end.pipe.change(input);
            }
            10 => {
                self.is_honest = false;
                end.pipe.change_frame(input);
            }
            11 | 12 => {
                self.is_honest = false;
                end.forge(input);
            }
            13 => {
                self.now = self.now.after_ns(u64::from(input.u8()) * 4_000_000);
                end.pass_time(self.now);
            }
            14 => {
                self.is_honest = false;
                end.memory.remove(input);
            }
            _ => {
                self.is_honest = false;
                match input.u8() {
                    0..0x10 => end.stream.handle_reset(),
                    0x10..0x20 => end.stream.handle_end(),
                    0x20..0x40 => end.stream.close(&mut end.memory),
                    _ => end.stream.release_buffers(),
                }
            }
        }
    }

    /// Takes the events of both ends, and checks what they promise.
    fn check(&mut self) {
        for end in &mut self.ends {
            end.take_events();
            let is_slow = matches!(
                end.cause,
                Some(EndCause::Setup(SetupFault::NoRequest | SetupFault::NoReply))
            );
            self.is_honest &= !is_slow;
            let cause = end.cause.filter(|_| self.is_honest);
            assert!(cause.is_none(), "an honest peer is blamed: {cause:?}");
        }
    }

    /// Lets both ends write and receive all that they have to write.
    fn exchange(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut is_quiet = true;
            for index in 0..2 {
                let (end, peer) = pair(&mut self.ends, index);
                is_quiet &= !end.transmit(self.now, &mut self.out, 0xff, &mut peer.pipe);
                is_quiet &= end.pipe.is_empty() && !end.stream.waits_for_receive();
                end.deliver(usize::MAX);
            }
            self.check();
            if is_quiet {
                return;
            }
        }
        panic!("the streams do not come to rest");
    }

    /// Ends the connection, and checks that both ends have ended as they must.
    fn finish(&mut self) {
        self.exchange();
        for end in &mut self.ends {
            if end.cause.is_some() {
                assert!(end.stream.may_close(), "an ended stream keeps its socket");
            }
            end.stream.handle_end();
            end.take_events();
            end.expect_ended(self.now, &mut self.out);
        }
    }
}

/// Returns the end with this index, and its peer.
fn pair(ends: &mut [End; 2], index: usize) -> (&mut End, &mut End) {
    let [first, second] = ends;
    if index == 0 { (first, second) } else { (second, first) }
}
