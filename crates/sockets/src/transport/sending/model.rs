//! Models a thread that writes and the thread inside the engine, in every interleaving. To run the
//! models:
//!
//! ```sh
//! ./x loom
//! ```
//!
//! With `--cfg loom_mutation` in RUSTFLAGS, the position `written` is stored with release ordering
//! only. With this fault, `deferred_bytes_are_sent_with_the_acknowledgement` must fail.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;
use mem::Buffer;

use super::*;

/// Size of the ring in bytes: the smallest valid size.
const RING: u32 = 4;

/// The state that both threads share: the sending half, its memory, and the notifications.
struct Shared {
    half: SendHalf,
    memory: Ring,
    /// True if the writer has notified the engine.
    is_called: AtomicBool,
    /// Number of wake-ups of waiting threads.
    mark: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        let size = RingSize::new(RING).expect("a size");
        let memory = Ring::new(Buffer::new(RING.into()), 0, size);
        let half = SendHalf::new(memory.clone());
        half.open(size);
        let (is_called, mark) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { half, memory, is_called, mark })
    }

    /// Writes the next `count` bytes, like a program. Returns the number of bytes that fitted.
    fn write(&self, count: usize) -> usize {
        let from = self.half.written();
        let bytes: Vec<u8> = (from..).take(count).map(byte).collect();
        self.half.write(&bytes)
    }

    /// Does the same as `Stream::on_written`.
    fn call_if_due(&self) {
        if self.half.is_due() {
            self.is_called.store(true, Ordering::Release);
        }
    }
}

/// Returns the byte at a position. All bytes of a test are different.
fn byte(position: u64) -> u8 {
    position as u8 + 1
}

/// The thread inside the engine.
struct Engine {
    shared: Arc<Shared>,
    posted: u64,
    in_flight: VecDeque<u32>,
}

impl Engine {
    fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), posted: 0, in_flight: VecDeque::new() }
    }

    /// Posts all segments that are due, and checks that they contain the next bytes.
    fn post(&mut self) {
        while let Some(Segment { at, length, .. }) = self.shared.half.next() {
            assert_eq!(at, self.shared.memory.size().offset(self.posted));
            let mut bytes = vec![0; length as usize];
            self.shared.memory.read(self.posted, &mut bytes);
            self.expect(self.posted, &bytes);
            self.posted += u64::from(length);
            self.in_flight.push_back(length);
        }
    }

    fn expect(&self, from: u64, bytes: &[u8]) {
        let expected: Vec<u8> = (from..).take(bytes.len()).map(byte).collect();
        assert_eq!(bytes, expected, "bytes from {from} on");
    }

    /// Does the same as `Stream::on_acknowledged`.
    fn acknowledge(&mut self) {
        let Some(length) = self.in_flight.pop_front() else { return };
        self.shared.half.on_acknowledged(length);
        if !self.shared.half.is_posted() {
            self.post();
        }
    }

    /// Does the same as `Stream::on_credit` for a peer whose program has read `consumed` bytes.
    fn credit(&mut self, consumed: u64) {
        assert_eq!(self.shared.half.on_credit(consumed), Ok(true));
        self.post();
        self.shared.mark.fetch_add(1, Ordering::Release);
    }

    /// Checks that the ring still has the bytes that may have to be retransmitted by TCP.
    fn expect_kept(&self) {
        let from = self.shared.half.consumed();
        let mut bytes = [0; RING as usize];
        let count = self.shared.half.again(from, &mut bytes);
        self.expect(from, &bytes[..count]);
    }

    /// Runs the engine if it was notified, and acknowledges all segments. Called after both threads
    /// have ended. Checks that all written bytes were posted.
    fn settle(&mut self) {
        if self.shared.is_called.load(Ordering::Acquire) {
            self.post();
        }
        while !self.in_flight.is_empty() {
            self.acknowledge();
        }
        assert_eq!(self.posted, self.shared.half.written(), "bytes are stuck");
    }
}

#[test]
fn deferred_bytes_are_sent_with_the_acknowledgement() {
    loom::model(|| {
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        shared.write(1);
        engine.post();
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..2 {
                    assert_eq!(shared.write(1), 1);
                    shared.call_if_due();
                }
            })
        };
        engine.acknowledge();
        writer.join().expect("no panic");
        engine.settle();
    });
}

#[test]
fn no_byte_that_may_be_retransmitted_is_overwritten() {
    loom::model(|| {
        let shared = Shared::new();
        shared.half.set_no_delay(true);
        let mut engine = Engine::new(&shared);
        shared.write(3);
        engine.post();
        engine.acknowledge();
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..2 {
                    if shared.write(2) > 0 {
                        shared.call_if_due();
                    }
                }
            })
        };
        engine.credit(2);
        engine.expect_kept();
        writer.join().expect("no panic");
        engine.expect_kept();
        engine.settle();
    });
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    loom::model(|| {
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        shared.write(RING as usize);
        engine.post();
        engine.acknowledge();
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let seen = shared.mark.load(Ordering::Acquire);
                if shared.write(1) == 1 {
                    shared.call_if_due();
                    return None;
                }
                Some(seen)
            })
        };
        engine.credit(1);
        if let Some(seen) = writer.join().expect("no panic") {
            assert_ne!(shared.mark.load(Ordering::Acquire), seen, "the writer sleeps forever");
            assert_eq!(shared.write(1), 1);
            shared.call_if_due();
        }
        engine.settle();
    });
}

#[test]
fn pushed_bytes_are_sent() {
    loom::model(|| {
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.half.set_more(true);
                for _ in 0..2 {
                    assert_eq!(shared.write(1), 1);
                    shared.call_if_due();
                }
                if shared.half.push() {
                    shared.is_called.store(true, Ordering::Release);
                }
            })
        };
        engine.post();
        engine.acknowledge();
        writer.join().expect("no panic");
        engine.settle();
    });
}

#[test]
fn counts_read_by_other_threads_are_plausible() {
    loom::model(|| {
        let shared = Shared::new();
        shared.half.set_no_delay(true);
        let mut engine = Engine::new(&shared);
        let asking = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                assert!(shared.half.unacknowledged() <= RING.into());
                assert!(shared.half.room() <= RING);
                let _either = shared.half.is_due();
            })
        };
        shared.write(2);
        engine.post();
        engine.acknowledge();
        engine.credit(2);
        asking.join().expect("no panic");
    });
}
