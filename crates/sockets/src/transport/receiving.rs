//! The receiving half of a stream: bytes that the peer has written to the ring and that the program
//! has not read yet.

#[cfg(all(test, loom))]
mod model;

use std::sync::atomic::Ordering;

use crate::atomics::AtomicU64;
use crate::transport::ring::Ring;
use crate::wire::Implausible;

/// Tracks which bytes have arrived, which bytes the program has read, and up to where the peer has
/// credit.
///
/// All positions count bytes since the beginning of the stream. They satisfy `credited` ≤
/// `consumed` ≤ `arrived` ≤ `credited` plus the size of the ring.
///
/// The program's threads update `consumed`. The caller's lock admits one of them at a time. The
/// thread inside the engine updates the other positions. The peer may write to the ring at any
/// time, from `arrived` to `credited` plus the size of the ring. A peer that writes elsewhere
/// corrupts only its own stream.
#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    ring: Ring,
    engine: EngineSide,
    program: ProgramSide,
}

#[derive(Debug)]
#[repr(align(64))]
struct EngineSide {
    arrived: AtomicU64,
    /// The value of `consumed` that the last credit reported to the peer.
    credited: AtomicU64,
    /// The value of `credited` before the last credit. [`ReceiveHalf::take_back`] restores this
    /// value if the engine cannot post that credit.
    credited_before: AtomicU64,
    /// The position at which the stream ends; [`NO_END`] until the peer sends End.
    end: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct ProgramSide {
    consumed: AtomicU64,
}

/// The effect of a read on the bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Taking {
    /// The read consumes bytes.
    Take,
    /// The read consumes no bytes. It skips the bytes that the same call has already peeked at; the
    /// value is their number.
    Peek(u64),
}

impl ReceiveHalf {
    pub(crate) fn new(ring: Ring) -> Self {
        let [arrived, credited, credited_before] = [0; 3].map(AtomicU64::new);
        let engine = EngineSide { arrived, credited, credited_before, end: AtomicU64::new(NO_END) };
        Self { ring, engine, program: ProgramSide::default() }
    }

    /// Returns the number of bytes that the program can read now.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        let consumed = self.program.consumed.load(Ordering::Relaxed);
        self.engine.arrived.load(Ordering::SeqCst) - consumed
    }

    /// Returns the number of bytes that the program has consumed.
    pub(crate) fn consumed(&self) -> u64 {
        self.program.consumed.load(Ordering::SeqCst)
    }

    /// Returns true if the ring is full. The peer can then write only after the program has read.
    pub(crate) fn is_full(&self) -> bool {
        self.available() == u64::from(self.ring.size().bytes())
    }

    /// Returns true if the program has read all bytes and the peer has ended the stream.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.program.consumed.load(Ordering::Relaxed) == self.engine.end.load(Ordering::SeqCst)
    }

    /// Returns true if the peer has sent End.
    pub(crate) fn has_end(&self) -> bool {
        self.engine.end.load(Ordering::SeqCst) != NO_END
    }

    /// Reads bytes that have arrived, as many as fit in `out`. The caller must ensure that only one
    /// thread reads at a time.
    #[inline]
    pub(crate) fn read(&self, out: &mut [u8], taking: Taking) -> usize {
        let consumed = self.program.consumed.load(Ordering::Relaxed);
        let arrived = self.engine.arrived.load(Ordering::SeqCst);
        let from = match taking {
            Taking::Take => consumed,
            Taking::Peek(passed) => consumed + passed.min(arrived - consumed),
        };
        let length = out.len().min((arrived - from) as usize);
        self.ring.read(from, &mut out[..length]);
        if taking == Taking::Take {
            self.program.consumed.store(consumed + length as u64, Ordering::SeqCst);
        }
        length
    }

    /// Returns true if a credit should be sent to the peer, because the program has read a quarter
    /// of the ring since the last credit. With this interval, the peer usually has credit when it
    /// wants to send, and few credits are sent.
    #[inline]
    pub(crate) fn is_credit_due(&self) -> bool {
        let credited = self.engine.credited.load(Ordering::SeqCst);
        let consumed = self.program.consumed.load(Ordering::SeqCst);
        consumed - credited >= u64::from(self.ring.size().bytes() / 4) && !self.has_end()
    }

    /// Returns the credit to send now, and counts it as sent. For this method and all methods below
    /// it, the caller must hold the lock of the engine.
    #[inline]
    pub(crate) fn next_credit(&self) -> Option<u64> {
        if !self.is_credit_due() {
            return None;
        }
        let consumed = self.program.consumed.load(Ordering::SeqCst);
        let before = self.engine.credited.swap(consumed, Ordering::SeqCst);
        self.engine.credited_before.store(before, Ordering::Relaxed);
        Some(consumed)
    }

    /// Undoes the last [`ReceiveHalf::next_credit`], because the engine could not post the credit.
    pub(crate) fn take_back(&self) {
        let before = self.engine.credited_before.load(Ordering::Relaxed);
        self.engine.credited.store(before, Ordering::SeqCst);
    }

    //= sockets-protocol.md: data.1, data.2
    /// Handles a write by the peer to the ring. Checks that the bytes begin where the last write
    /// ended, and that the peer has credit for them.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Implausible> {
        let arrived = self.engine.arrived.load(Ordering::Relaxed);
        let credited = self.engine.credited.load(Ordering::Relaxed);
        let size = self.ring.size();
        let room = credited + u64::from(size.bytes()) - arrived;
        if at != size.offset(arrived)
            || length > size.to_the_end(arrived)
            || u64::from(length) > room
            || self.has_end()
        {
            return Err(Implausible);
        }
        let order = if cfg!(loom_mutation) { Ordering::Relaxed } else { Ordering::SeqCst };
        self.engine.arrived.store(arrived + u64::from(length), order);
        Ok(())
    }

    //= sockets-protocol.md: data.4
    /// Handles End from the peer. `bytes` is the number of bytes that the peer has sent since the
    /// stream began.
    pub(crate) fn on_end(&self, bytes: u64) -> Result<(), Implausible> {
        if self.has_end() || bytes != self.engine.arrived.load(Ordering::Relaxed) {
            return Err(Implausible);
        }
        self.engine.end.store(bytes, Ordering::SeqCst);
        Ok(())
    }
}

const NO_END: u64 = u64::MAX;

#[cfg(all(test, not(loom)))]
mod tests {
    use mem::Buffer;
    use proptest::prelude::*;

    use super::*;
    use crate::transport::ring::RingSize;
    use crate::transport::sending::{Segment, SendHalf};

    const RING: u32 = 4096;

    fn ring(memory: &std::sync::Arc<Buffer>) -> Ring {
        Ring::new(std::sync::Arc::clone(memory), 0, RingSize::new(RING).expect("a size"))
    }

    #[test]
    fn a_peer_writes_only_the_next_bytes_within_the_room() {
        let half = ReceiveHalf::new(ring(&Buffer::new(u64::from(RING))));
        assert_eq!(half.on_arrived(1, 10), Err(Implausible));
        assert_eq!(half.on_arrived(0, RING + 1), Err(Implausible));
        assert_eq!(half.on_arrived(0, RING), Ok(()));
        assert_eq!(half.on_arrived(0, 1), Err(Implausible), "nothing was consumed");
        assert_eq!(half.read(&mut [0; 1500], Taking::Take), 1500);
        assert_eq!(half.on_arrived(0, 1), Err(Implausible), "the peer has no credit for it");
        assert_eq!(half.next_credit(), Some(1500));
        half.take_back();
        assert_eq!(half.next_credit(), Some(1500));
        assert_eq!(half.on_arrived(0, 1501), Err(Implausible));
        assert_eq!(half.on_arrived(0, 1500), Ok(()));
        assert_eq!(half.on_end(RING.into()), Err(Implausible));
        assert_eq!(half.on_end(u64::from(RING) + 1500), Ok(()));
        assert_eq!(half.on_arrived(1500, 1), Err(Implausible), "behind the end");
    }

    /// A step of the sender, of the receiver, or of the network between them.
    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Push,
        /// Posts the bytes that are due. The value is the number of times that the engine refuses
        /// them first.
        Post(u8),
        /// The oldest segment arrives.
        Arrive,
        /// The oldest segment that has arrived is acknowledged.
        Acknowledge,
        Read(usize),
        Peek(usize),
        Credit,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1_usize..3000).prop_map(Step::Write),
            Just(Step::Push),
            (0_u8..3).prop_map(Step::Post),
            Just(Step::Arrive),
            Just(Step::Arrive),
            Just(Step::Acknowledge),
            Just(Step::Acknowledge),
            (1_usize..3000).prop_map(Step::Read),
            (1_usize..3000).prop_map(Step::Peek),
            Just(Step::Credit),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// A sender, a receiver, and the segments in flight between them. Also a model: the bytes that
    /// were written and not yet read.
    struct World {
        sender: SendHalf,
        receiver: ReceiveHalf,
        memory: [std::sync::Arc<Buffer>; 2],
        in_flight: Vec<Segment>,
        arrived: Vec<u32>,
        model: Vec<u8>,
        written: u64,
    }

    impl World {
        fn new() -> Self {
            let memory = [(); 2].map(|()| Buffer::new(u64::from(RING)));
            let sender = SendHalf::new(ring(&memory[0]));
            sender.open(RingSize::new(RING).expect("a size"));
            let receiver = ReceiveHalf::new(ring(&memory[1]));
            let (in_flight, arrived, model) = (Vec::new(), Vec::new(), Vec::new());
            Self { sender, receiver, memory, in_flight, arrived, model, written: 0 }
        }

        fn run(&mut self, step: &Step) {
            match *step {
                Step::Write(length) => {
                    let bytes: Vec<u8> =
                        (self.written..).take(length).map(|at| (at * 7 % 251) as u8).collect();
                    let taken = self.sender.write(&bytes);
                    self.model.extend_from_slice(&bytes[..taken]);
                    self.written += taken as u64;
                }
                Step::Push => drop(self.sender.push()),
                Step::Post(refused) => {
                    for _ in 0..refused {
                        if let Some(Segment { length, .. }) = self.sender.next() {
                            self.sender.take_back(length);
                        }
                    }
                    self.in_flight.extend(std::iter::from_fn(|| self.sender.next()));
                }
                Step::Arrive if !self.in_flight.is_empty() => {
                    let Segment { at, length, to } = self.in_flight.remove(0);
                    let mut bytes = vec![0; length as usize];
                    self.memory[0].read(at.into(), &mut bytes);
                    self.memory[1].write(to.into(), &bytes);
                    self.receiver.on_arrived(to, length).expect("it follows and has room");
                    self.arrived.push(length);
                }
                Step::Acknowledge if !self.arrived.is_empty() => {
                    self.sender.on_acknowledged(self.arrived.remove(0));
                }
                Step::Read(length) => {
                    let mut out = vec![0; length];
                    let count = self.receiver.read(&mut out, Taking::Take);
                    let expected: Vec<u8> = self.model.drain(..count).collect();
                    assert_eq!(out[..count], expected);
                }
                Step::Peek(length) => {
                    let mut out = vec![0; length];
                    let count = self.receiver.read(&mut out, Taking::Peek(5));
                    let passed = 5.min(self.receiver.available() as usize);
                    assert_eq!(out[..count], self.model[passed..passed + count]);
                }
                Step::Credit => {
                    if let Some(consumed) = self.receiver.next_credit() {
                        assert_eq!(self.sender.on_credit(consumed), Ok(true));
                    }
                }
                Step::Arrive | Step::Acknowledge => {}
            }
        }

        /// Delivers all bytes in flight.
        fn settle(&mut self) {
            for _ in 0..64 {
                for step in [Step::Push, Step::Post(0), Step::Arrive, Step::Acknowledge] {
                    self.run(&step);
                }
                self.run(&Step::Read(5000));
                self.run(&Step::Credit);
            }
        }
    }

    proptest! {
        #[test]
        fn written_bytes_are_read_once_in_order(steps in steps()) {
            let mut world = World::new();
            for step in &steps {
                world.run(step);
            }
            world.settle();
            prop_assert!(world.model.is_empty(), "{} bytes are lost", world.model.len());
            prop_assert_eq!(world.receiver.on_end(world.written), Ok(()));
            prop_assert!(world.receiver.is_at_end());
        }
    }
}
