//! The sending half of a stream: bytes from the program that go to the peer's ring.

#[cfg(all(test, loom))]
mod model;

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::atomics::{AtomicBool, AtomicU64};
use crate::transport::ring::{Ring, RingSize};
use crate::wire::Implausible;

/// Tracks which bytes the program has written, which the engine has posted, and which the peer has
/// acknowledged and consumed.
///
/// All positions count bytes since the beginning of the stream. They satisfy `consumed` ≤
/// `acknowledged` ≤ `posted` ≤ `written`. `posted` is at most `consumed` plus the size of the
/// peer's ring.
///
/// The ring keeps the bytes from `consumed` to `written`. Until the peer's program has read these
/// bytes, they may have to be retransmitted by TCP ([`crate::migration::homing`]).
///
/// The program's threads update `written` and `pushed`. The caller's lock admits one of them at a
/// time. The thread inside the engine updates the other positions. Therefore a thread of the
/// program and the engine do not wait for each other.
#[derive(Debug)]
pub(crate) struct SendHalf {
    ring: Ring,
    /// The size of the peer's ring. No bytes are posted before it is set.
    peer: OnceLock<RingSize>,
    program: ProgramSide,
    engine: EngineSide,
}

/// State that the program's threads write.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ProgramSide {
    written: AtomicU64,
    /// Bytes below this position are due: they do not wait to be coalesced with later bytes.
    pushed: AtomicU64,
    no_delay: AtomicBool,
    /// True if `TCP_CORK` is set.
    corked: AtomicBool,
    /// True if the last write announced more bytes (`MSG_MORE`).
    more: AtomicBool,
}

/// State that the thread inside the engine writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct EngineSide {
    posted: AtomicU64,
    acknowledged: AtomicU64,
    /// Number of bytes that the peer's program has read, according to the peer's last credit.
    consumed: AtomicU64,
}

/// A range of bytes to write to the peer's ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Segment {
    /// Offset of the bytes in the send ring.
    pub(crate) at: u32,
    pub(crate) length: u32,
    /// Offset of the bytes in the peer's ring.
    pub(crate) to: u32,
}

impl SendHalf {
    /// Creates a half without bytes.
    pub(crate) fn new(ring: Ring) -> Self {
        let (program, engine) = (ProgramSide::default(), EngineSide::default());
        Self { ring, peer: OnceLock::new(), program, engine }
    }

    /// Sets the size of the peer's ring. After this call, bytes may be posted.
    pub(crate) fn open(&self, peer: RingSize) {
        self.peer.get_or_init(|| peer);
    }

    /// Returns the number of bytes that can be written now. The number is exact for the thread that
    /// writes. For other threads it may be out of date.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        // Load `consumed` before `written`, because other threads advance both. The other order
        // could give a negative difference.
        let consumed = self.consumed();
        let kept = self.program.written.load(Ordering::Relaxed).saturating_sub(consumed);
        self.capacity().saturating_sub(u32::try_from(kept).unwrap_or(u32::MAX))
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.size().bytes()
    }

    /// Copies bytes into the ring, as many as the ring has room for. Returns the number of bytes
    /// copied. The caller must ensure that only one thread writes at a time.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room() as usize);
        let written = self.program.written.load(Ordering::Relaxed);
        self.ring.write(written, &bytes[..taken]);
        // With this ordering, either the thread inside the engine sees these bytes, or `is_due`
        // sees the positions that the thread inside the engine has stored.
        let order = if cfg!(loom_mutation) { Ordering::Release } else { Ordering::SeqCst };
        self.program.written.store(written + taken as u64, order);
        taken
    }

    /// Returns true if written bytes should be sent now. Bytes that are not due are sent when the
    /// peer acknowledges earlier bytes, when the program writes more, or when they are pushed.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        // Load `posted` before `written`, because other threads advance both.
        let posted = self.posted();
        self.due(self.written(), posted)
    }

    #[inline]
    fn due(&self, written: u64, posted: u64) -> bool {
        let program = &self.program;
        if written - posted >= FULL_BYTES || posted < program.pushed.load(Ordering::SeqCst) {
            return true;
        }
        if program.corked.load(Ordering::SeqCst) || program.more.load(Ordering::Relaxed) {
            return false;
        }
        program.no_delay.load(Ordering::SeqCst)
            || self.engine.acknowledged.load(Ordering::SeqCst) == posted
    }

    /// Makes all bytes that are written so far due. Returns true if there are bytes to send.
    #[inline]
    pub(crate) fn push(&self) -> bool {
        let written = self.written();
        self.program.more.store(false, Ordering::Relaxed);
        if self.engine.posted.load(Ordering::SeqCst) == written {
            return false;
        }
        self.program.pushed.fetch_max(written, Ordering::SeqCst);
        true
    }

    pub(crate) fn set_no_delay(&self, no_delay: bool) {
        self.program.no_delay.store(no_delay, Ordering::SeqCst);
    }

    pub(crate) fn set_corked(&self, corked: bool) {
        self.program.corked.store(corked, Ordering::SeqCst);
    }

    /// Records whether the last write announced more bytes (`MSG_MORE`).
    #[inline]
    pub(crate) fn set_more(&self, more: bool) {
        if self.program.more.load(Ordering::Relaxed) != more {
            self.program.more.store(more, Ordering::Relaxed);
        }
    }

    /// Returns true if small writes wait for further writes, even when the peer has acknowledged
    /// all bytes.
    pub(crate) fn is_corked(&self) -> bool {
        let program = &self.program;
        program.corked.load(Ordering::SeqCst) || program.more.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.program.written.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that the peer's program has read, according to the peer's last
    /// credit.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.engine.consumed.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn posted(&self) -> u64 {
        self.engine.posted.load(Ordering::SeqCst)
    }

    /// Copies bytes out of the ring a second time, because the peer's program has not read them.
    /// Starts at position `from` and copies as many as fit in `out`. Returns the number of bytes
    /// copied.
    pub(crate) fn again(&self, from: u64, out: &mut [u8]) -> usize {
        let length = out.len().min((self.written() - from) as usize);
        self.ring.read(from, &mut out[..length]);
        length
    }

    #[inline]
    pub(crate) fn acknowledged(&self) -> u64 {
        self.engine.acknowledged.load(Ordering::SeqCst)
    }

    /// Returns true if all written bytes were posted.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.engine.posted.load(Ordering::SeqCst) == self.written()
    }

    /// Returns true if no posted bytes are in flight.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        self.engine.posted.load(Ordering::SeqCst) == self.acknowledged()
    }

    /// Returns the number of written bytes that the peer has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        // Load `acknowledged` before `written`, because other threads advance both.
        let acknowledged = self.acknowledged();
        (self.written() - acknowledged).min(self.capacity().into())
    }

    //= sockets-protocol.md: data.1, data.2
    /// Returns the bytes to post next, and counts them as posted. For this method and all methods
    /// below it, the caller must hold the lock of the engine.
    #[inline]
    pub(crate) fn next(&self) -> Option<Segment> {
        let peer = *self.peer.get()?;
        let (engine, written) = (&self.engine, self.written());
        let posted = engine.posted.load(Ordering::Relaxed);
        let limit = engine.consumed.load(Ordering::Relaxed) + u64::from(peer.bytes());
        let length = (written - posted).min(limit - posted).min(SEGMENT_BYTES_MAX) as u32;
        if length == 0 || !self.due(written, posted) {
            return None;
        }
        let ring = self.ring.size();
        let length = length.min(ring.to_the_end(posted)).min(peer.to_the_end(posted));
        engine.posted.store(posted + u64::from(length), Ordering::SeqCst);
        Some(Segment { at: ring.offset(posted), length, to: peer.offset(posted) })
    }

    /// Undoes the last [`SendHalf::next`], because the engine could not post the segment of
    /// `length` bytes.
    pub(crate) fn take_back(&self, length: u32) {
        let posted = self.engine.posted.load(Ordering::Relaxed);
        self.engine.posted.store(posted - u64::from(length), Ordering::SeqCst);
    }

    /// Handles an acknowledgement: the oldest `length` bytes in flight have arrived in the peer's
    /// ring.
    #[inline]
    pub(crate) fn on_acknowledged(&self, length: u32) {
        let acknowledged = self.engine.acknowledged.load(Ordering::Relaxed) + u64::from(length);
        let posted = self.engine.posted.load(Ordering::Relaxed);
        assert!(acknowledged <= posted, "more bytes are acknowledged than were posted");
        self.engine.acknowledged.store(acknowledged, Ordering::SeqCst);
    }

    //= sockets-protocol.md: data.3
    /// Handles a credit: the peer's program has read `consumed` bytes since the stream began.
    /// Returns true if the number has increased.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<bool, Implausible> {
        let (posted, known) = (&self.engine.posted, &self.engine.consumed);
        let before = known.load(Ordering::Relaxed);
        if consumed < before || consumed > posted.load(Ordering::Relaxed) {
            return Err(Implausible);
        }
        known.store(consumed, Ordering::SeqCst);
        Ok(consumed > before)
    }
}

/// Minimum number of unposted bytes that are sent even while other bytes are in flight. 8192 bytes
/// fill several frames on any network.
const FULL_BYTES: u64 = 8192;

/// Maximum length of one operation in bytes. After one operation of this length, the engine serves
/// other streams.
const SEGMENT_BYTES_MAX: u64 = 65_536;

#[cfg(all(test, not(loom)))]
mod tests {
    use mem::Buffer;

    use super::*;

    fn half() -> SendHalf {
        let size = RingSize::new(4 * 8192).expect("a size");
        let half = SendHalf::new(Ring::new(Buffer::new(4 * 8192), 0, size));
        half.open(size);
        half
    }

    fn lengths(half: &SendHalf) -> Vec<u32> {
        std::iter::from_fn(|| half.next().map(|segment| segment.length)).collect()
    }

    #[test]
    fn small_writes_wait_while_earlier_bytes_are_unacknowledged() {
        let half = half();
        half.write(&[1; 10]);
        assert!(half.is_due());
        assert_eq!(lengths(&half), [10]);
        half.write(&[2; 20]);
        half.write(&[3; 30]);
        assert!(!half.is_due() && lengths(&half).is_empty());
        half.on_acknowledged(10);
        assert_eq!(lengths(&half), [50]);
    }

    #[test]
    fn each_write_is_sent_at_once_with_no_delay() {
        let half = half();
        half.set_no_delay(true);
        half.write(&[1; 10]);
        assert_eq!(lengths(&half), [10]);
        half.write(&[1; 10]);
        assert_eq!(lengths(&half), [10]);
    }

    #[test]
    fn corked_bytes_are_sent_when_pushed_or_when_they_fill_a_frame() {
        let half = half();
        half.set_no_delay(true);
        half.set_corked(true);
        half.write(&[1; 10]);
        assert!(lengths(&half).is_empty());
        assert!(half.push());
        assert_eq!(lengths(&half), [10]);
        half.write(&[1; FULL_BYTES as usize]);
        assert_eq!(lengths(&half), [FULL_BYTES as u32]);
        half.write(&[1; 10]);
        assert!(lengths(&half).is_empty());
        half.set_corked(false);
        assert_eq!(lengths(&half), [10]);
        assert!(!half.push(), "nothing is left");
    }

    #[test]
    fn posted_bytes_never_exceed_the_room_of_the_peer() {
        let half = half();
        assert_eq!(half.write(&vec![1; 40_000]), 32_768);
        assert_eq!(lengths(&half), [32_768]);
        half.on_acknowledged(32_768);
        assert_eq!(half.write(&[1; 100]), 0, "it may have to go a second time");
        assert!(lengths(&half).is_empty());
        assert_eq!(half.on_credit(60), Ok(true));
        assert_eq!(half.write(&[1; 100]), 60);
        assert_eq!(lengths(&half), [60]);
        assert_eq!(half.on_credit(60), Ok(false));
        assert_eq!(half.on_credit(59), Err(Implausible));
        assert_eq!(half.on_credit(32_829), Err(Implausible));
    }
}
