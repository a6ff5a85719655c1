//! Models a thread that reads, the thread inside the engine, and the peer, in every interleaving.
//! To run the models:
//!
//! ```sh
//! ./x loom
//! ```
//!
//! With `--cfg loom_mutation` in RUSTFLAGS, the position `arrived` is stored with relaxed ordering.
//! With this fault, `bytes_are_read_once_and_in_order` must fail.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;
use mem::Buffer;

use super::*;
use crate::transport::ring::RingSize;

/// Size of the ring in bytes: the smallest valid size.
const RING: u32 = 4;

/// The state that both threads share: the receiving half, its memory, and the notifications.
struct Shared {
    half: ReceiveHalf,
    memory: Ring,
    /// True if the reader has notified the engine.
    is_called: AtomicBool,
    /// Number of wake-ups of waiting threads.
    mark: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        let size = RingSize::new(RING).expect("a size");
        let memory = Ring::new(Buffer::new(RING.into()), 0, size);
        let half = ReceiveHalf::new(memory.clone());
        Arc::new(Self { half, memory, is_called: AtomicBool::new(false), mark: AtomicU64::new(0) })
    }

    /// Reads up to `most` bytes, and checks that they are those from position `from`. Returns their
    /// number.
    fn read(&self, from: u64, most: usize) -> u64 {
        let mut bytes = vec![0; most];
        let count = self.half.read(&mut bytes, Taking::Take);
        let expected: Vec<u8> = (from..).take(count).map(byte).collect();
        assert_eq!(bytes[..count], expected, "bytes from {from} on");
        if self.half.is_credit_due() {
            self.is_called.store(true, Ordering::Release);
        }
        count as u64
    }
}

/// Returns the byte at a position. All bytes of a test are different.
fn byte(position: u64) -> u8 {
    position as u8 + 1
}

/// The thread inside the engine, together with the peer that writes the bytes.
struct Engine {
    shared: Arc<Shared>,
    sent: u64,
    /// Number of consumed bytes, as in the last credit to the peer.
    consumed: u64,
}

impl Engine {
    fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), sent: 0, consumed: 0 }
    }

    /// Writes as many bytes as the peer has credit for, up to position `total`.
    fn place(&mut self, total: u64) {
        while self.sent < total && self.sent < self.consumed + u64::from(RING) {
            self.shared.memory.write(self.sent, &[byte(self.sent)]);
            let at = self.shared.memory.size().offset(self.sent);
            self.shared.half.on_arrived(at, 1).expect("it follows and has room");
            self.sent += 1;
            self.shared.mark.fetch_add(1, Ordering::Release);
        }
    }

    fn credit(&mut self) {
        if let Some(consumed) = self.shared.half.next_credit() {
            assert!(consumed > self.consumed && consumed <= self.sent);
            self.consumed = consumed;
        }
    }

    /// Runs the engine each time it was notified, until all bytes have arrived. Called after the
    /// reading thread has ended with `read` bytes read.
    fn settle(&mut self, mut read: u64, total: u64) {
        while read < total {
            if self.shared.is_called.swap(false, Ordering::AcqRel) {
                self.credit();
            }
            self.place(total);
            let count = self.shared.read(read, 2);
            assert!(
                count > 0,
                "the reader has read {read} of {total} bytes, but the peer has no credit"
            );
            read += count;
        }
    }
}

#[test]
fn bytes_are_read_once_and_in_order() {
    loom::model(|| {
        const TOTAL: u64 = 2;
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let read = shared.read(0, 2);
                read + shared.read(read, 1)
            })
        };
        engine.place(TOTAL);
        let read = reader.join().expect("no panic");
        engine.settle(read, TOTAL);
    });
}

#[test]
fn no_unread_byte_is_overwritten() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        const TOTAL: u64 = 6;
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        engine.place(RING.into());
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let read = shared.read(0, 2);
                read + shared.read(read, 2)
            })
        };
        engine.credit();
        engine.place(TOTAL);
        let read = reader.join().expect("no panic");
        engine.settle(read, TOTAL);
    });
}

#[test]
fn a_reader_that_waits_is_woken() {
    loom::model(|| {
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let seen = shared.mark.load(Ordering::Acquire);
                (shared.read(0, 1) == 0).then_some(seen)
            })
        };
        engine.place(1);
        if let Some(seen) = reader.join().expect("no panic") {
            assert_ne!(shared.mark.load(Ordering::Acquire), seen, "the reader sleeps forever");
            assert_eq!(shared.read(0, 1), 1);
        }
    });
}

#[test]
fn the_end_arrives_after_the_last_byte() {
    loom::model(|| {
        let shared = Shared::new();
        let mut engine = Engine::new(&shared);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut read = 0;
                for _ in 0..2 {
                    read += shared.read(read, 1);
                    // Like `Stream::read`, check for the end only after a read that found no bytes.
                    assert!(!shared.half.is_at_end() || read == 1, "an early end");
                }
                read
            })
        };
        engine.place(1);
        shared.half.on_end(1).expect("that is all");
        let read = reader.join().expect("no panic");
        engine.settle(read, 1);
        assert!(shared.half.is_at_end());
    });
}
