//! A ring of frames in memory shared with another process: one end writes, the other reads.
//!
//! Each record starts on its own cache line: two header words, then the headers of a frame, then
//! its payload from the next line on. A small frame consists of headers only. The reader polls only
//! the first word of a record. A small frame therefore moves from one processor to the other in one
//! or two cache lines. Before the writer publishes a record, it stores an empty header after the
//! record. Instead of a payload, a record can contain the location of the payload in lent memory.
//!
//! Neither end trusts the other process. Each end stores its position in private memory. Each end
//! reads a value in shared memory once, checks it, and uses the checked copy. The reader copies
//! headers before it parses them, and copies payload without parsing it. A hostile end can make the
//! ring unusable, but can cause no other harm.

mod mapping;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mem::Payload;

use self::mapping::{Area, CONTROL_BYTES, DIRECTION_BYTES, LINE_BYTES};

pub(super) use self::mapping::{FILE_BYTES, Mapping, RING_BYTES};

impl Mapping {
    /// Returns both ends for this process: the writer of direction `out` and the reader of the
    /// other direction.
    pub(super) fn ends(self: &Arc<Self>, out: usize) -> (Writer, Reader) {
        (Writer::new(self.direction(out)), Reader::new(self.direction(out + 1)))
    }
}

/// The sizes of a frame's parts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    /// Bytes of headers, at least 1.
    pub(super) headers: usize,
    /// Bytes of payload after the headers. Headers and payload together have at most
    /// [`FRAME_BYTES_MAX`] bytes.
    pub(super) payload: usize,
    /// The place of the payload in lent memory; `None` if the payload is in the ring.
    pub(super) lent: Option<LentPlace>,
}

/// A place in lent memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LentPlace {
    /// The lender's number for the memory.
    pub(super) memory: u64,
    /// Offset of the payload in the lent memory, in bytes.
    pub(super) offset: u64,
}

impl Shape {
    /// Returns the offset of the headers in the record.
    const fn headers_at(&self) -> usize {
        if self.lent.is_some() { HEADER_BYTES + LENT_PLACE_BYTES } else { HEADER_BYTES }
    }

    /// Returns the offset of the payload in the record. If the ring holds no payload of this frame,
    /// the record ends at this offset.
    const fn payload_at(&self) -> usize {
        (self.headers_at() + self.headers).next_multiple_of(LINE_BYTES)
    }

    /// Returns the size of the record in bytes, a multiple of the line size.
    const fn record_bytes(&self) -> usize {
        let inside = if self.lent.is_some() { 0 } else { self.payload };
        self.payload_at() + inside.next_multiple_of(LINE_BYTES)
    }

    /// Returns whether the sizes are those of a valid frame.
    const fn is_possible(&self) -> bool {
        let (headers, payload) = (self.headers, self.payload);
        headers >= 1
            && headers <= FRAME_BYTES_MAX
            && payload <= FRAME_BYTES_MAX - headers
            && (self.lent.is_none() || payload > 0)
    }
}

/// Result of writing a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Written {
    /// The frame is in the ring.
    Yes,
    /// The ring has no room.
    Full,
    /// The callback could not fill in the bytes, so no record was published.
    Abandoned,
    /// The reader reported that it has read more than was written.
    Broken,
}

/// The writing end of a ring.
#[derive(Debug)]
pub(super) struct Writer {
    area: Area,
    /// Total number of bytes written. This number modulo [`RING_BYTES`] is the position of the next
    /// record.
    written: u64,
    /// Total number of bytes read, as last reported by the reader; at most `written`.
    consumed: u64,
}

impl Writer {
    const fn new(area: Area) -> Self {
        Self { area, written: 0, consumed: 0 }
    }

    /// Writes a frame. `fill` must copy the headers to its first argument and the payload to its
    /// second argument, and return whether it succeeded. If the payload is lent or empty, the
    /// second argument is `None`.
    #[inline]
    pub(super) fn write(
        &mut self,
        shape: &Shape,
        fill: impl FnOnce(*mut u8, Option<*mut u8>) -> bool,
    ) -> Written {
        debug_assert!(shape.is_possible(), "checked by the caller");
        let record = shape.record_bytes();
        let at = (self.written % RING_BYTES as u64) as usize;
        let to_end = RING_BYTES - at;
        let (skipped, start) = if record > to_end { (to_end, 0) } else { (0, at) };
        // Reserve one more line for the empty header that follows the record.
        match self.has_room((skipped + record + LINE_BYTES) as u64) {
            Ok(true) => {}
            Ok(false) => return Written::Full,
            Err(Broken) => return Written::Broken,
        }
        let is_inside = shape.lent.is_none() && shape.payload > 0;
        let payload = is_inside.then(|| self.area.place(start, shape.payload_at()));
        if !fill(self.area.place(start, shape.headers_at()), payload) {
            return Written::Abandoned;
        }
        let mut second = shape.payload as u32;
        if let Some(LentPlace { memory, offset }) = shape.lent {
            second |= LENT;
            let mut words = [0; LENT_PLACE_BYTES];
            words[..8].copy_from_slice(&memory.to_ne_bytes());
            words[8..].copy_from_slice(&offset.to_ne_bytes());
            // SAFETY: the record has `LENT_PLACE_BYTES` bytes between its header and the headers of
            // the frame.
            unsafe {
                mem::copy_foreign(
                    self.area.place(start, HEADER_BYTES),
                    words.as_ptr(),
                    words.len(),
                );
            }
        }
        self.area.second(start).store(second, Ordering::Relaxed);
        self.area.header((start + record) % RING_BYTES).store(EMPTY, Ordering::Relaxed);
        self.area.header(start).store(shape.headers as u32, Ordering::Release);
        if skipped > 0 {
            self.area.header(at).store(WRAP, Ordering::Release);
        }
        self.written += (skipped + record) as u64;
        Written::Yes
    }

    /// Returns whether the reader sleeps and must be woken. The writer calls this after writing.
    #[inline]
    pub(super) fn must_wake(&self) -> bool {
        // Pairs with the fence in `Reader::announce_sleep`: either the reader sees the frame, or
        // this thread sees that the reader sleeps.
        fence(Ordering::SeqCst);
        let sleeps = self.area.reader_sleeps();
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::AcqRel) != 0
    }

    /// Announces to the reader that this end waits for room. After this call, the caller must try
    /// to write once more.
    #[cold]
    pub(super) fn announce_wait(&self) {
        self.area.writer_waits().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn has_room(&mut self, bytes: u64) -> Result<bool, Broken> {
        let fits = |consumed: u64| self.written - consumed + bytes <= RING_BYTES as u64;
        if fits(self.consumed) {
            return Ok(true);
        }
        let consumed = self.area.consumed().load(Ordering::Acquire);
        if !(self.consumed..=self.written).contains(&consumed) {
            return Err(Broken);
        }
        self.consumed = consumed;
        Ok(self.written - consumed + bytes <= RING_BYTES as u64)
    }
}

/// Result of a read. The ring cannot be read or released while the result exists.
#[derive(Debug)]
pub(super) enum Read<'ring> {
    /// A frame. The first field is the number of header bytes that were copied. The second field is
    /// the payload.
    Frame(usize, Outside<'ring>),
    /// The ring is empty.
    Nothing,
    /// The ring contains bytes that no correct writer writes.
    Broken,
}

/// The location of a frame's payload.
#[derive(Debug)]
pub(super) enum Outside<'ring> {
    /// The payload is in the ring. It may be empty.
    Ring(Payload<'ring>),
    /// The payload is in lent memory. The second field is its number of bytes.
    Lent(LentPlace, usize),
}

/// The reading end of a ring.
#[derive(Debug)]
pub(super) struct Reader {
    area: Area,
    /// Total number of bytes read.
    read: u64,
    /// Total number of bytes read, as last reported to the writer.
    reported: u64,
}

impl Reader {
    const fn new(area: Area) -> Self {
        Self { area, read: 0, reported: 0 }
    }

    /// Copies the headers of the next frame to the start of `buffer`.
    #[inline]
    pub(super) fn read(&mut self, buffer: &mut [u8; FRAME_BYTES_MAX]) -> Read<'_> {
        let mut at = (self.read % RING_BYTES as u64) as usize;
        let mut header = self.area.header(at).load(Ordering::Acquire);
        if header == EMPTY {
            return Read::Nothing;
        }
        if header == WRAP {
            let to_end = RING_BYTES - at;
            let first = self.area.header(0).load(Ordering::Acquire);
            // `WRAP` at the start of the ring is invalid, because there is nothing to skip. After a
            // skipped end, a frame must follow.
            if at == 0 || first == EMPTY {
                return Read::Broken;
            }
            self.read += to_end as u64;
            (at, header) = (0, first);
        }
        let second = self.area.second(at).load(Ordering::Relaxed);
        let (is_lent, payload) = (second & LENT != 0, (second & !LENT) as usize);
        let lent = is_lent.then(|| self.lent_place(at));
        let shape = Shape { headers: header as usize, payload, lent };
        if !shape.is_possible() || shape.record_bytes() > RING_BYTES - at {
            return Read::Broken;
        }
        let from = self.area.place(at, shape.headers_at());
        // SAFETY: the record ends within the ring, as checked with lengths that were read once, and
        // the buffer is at least that long. If the other process writes at the same time, the
        // copied bytes are arbitrary. The decoder checks them, like the bytes of every frame.
        unsafe { mem::copy_foreign(buffer.as_mut_ptr(), from, shape.headers) };
        self.read += shape.record_bytes() as u64;
        let outside = match lent {
            Some(place) => Outside::Lent(place, payload),
            None if payload == 0 => Outside::Ring(Payload::EMPTY),
            None => {
                let from = self.area.place(at, shape.payload_at());
                // SAFETY: the record ends within the ring, as checked above. The result borrows
                // this end, so the mapping stays and no room is released. If the other process
                // writes nevertheless, the copy is torn. No reference to the bytes exists.
                Outside::Ring(unsafe { Payload::foreign(from, payload) })
            }
        };
        Read::Frame(shape.headers, outside)
    }

    /// Returns the place in lent memory that the record at `at` contains.
    fn lent_place(&self, at: usize) -> LentPlace {
        let mut words = [0; LENT_PLACE_BYTES];
        // SAFETY: a record starts on a line, which has `LENT_PLACE_BYTES` bytes after the header.
        unsafe {
            mem::copy_foreign(words.as_mut_ptr(), self.area.place(at, HEADER_BYTES), words.len());
        }
        let word = |from: usize| u64::from_ne_bytes(std::array::from_fn(|i| words[from + i]));
        LentPlace { memory: word(0), offset: word(8) }
    }

    /// Reports the number of read bytes to the writer, when at least an eighth of the ring was read
    /// since the last report. Returns whether the writer waits for room and must be woken.
    ///
    /// A waiting writer always gets room. If the reader has read everything, less than an eighth
    /// of the ring is read but not yet reported. The last report has shown the rest of the ring to
    /// the writer as free. The rest has room for the largest frame, even if the writer must skip
    /// the end of the ring.
    #[inline]
    pub(super) fn release(&mut self) -> bool {
        if self.read - self.reported < (RING_BYTES / 8) as u64 {
            return false;
        }
        self.reported = self.read;
        self.area.consumed().store(self.read, Ordering::Release);
        // Pairs with the fence in `Writer::announce_wait`.
        fence(Ordering::SeqCst);
        let waits = self.area.writer_waits();
        waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::AcqRel) != 0
    }

    /// Makes the writer wake this end at its next frame. The caller must then check
    /// [`Reader::has_frame`] once more.
    pub(super) fn announce_sleep(&self) {
        self.area.reader_sleeps().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a frame waits.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        let at = (self.read % RING_BYTES as u64) as usize;
        self.area.header(at).load(Ordering::Acquire) != EMPTY
    }
}

/// The other end violated the protocol of the ring.
struct Broken;

/// Allocates private memory for copies of frame headers.
#[expect(
    clippy::large_stack_arrays,
    reason = "once, and the compiler sees that it goes to the heap"
)]
pub(super) fn frame_buffer() -> Box<[u8; FRAME_BYTES_MAX]> {
    Box::new([0; FRAME_BYTES_MAX])
}

/// Overwrites a ring with `bytes`, like a hostile process, and then reads and writes the ring (for
/// fuzzing).
///
/// # Panics
/// Panics if this process cannot create shared memory.
#[doc(hidden)]
pub fn fuzz_shm_ring(bytes: &[u8]) {
    let file = super::socket::create_memory().expect("memory");
    let mapping = Mapping::new(file.as_fd()).expect("a mapping");
    let (mut writer, mut reader) = mapping.ends(0);
    let mut buffer = frame_buffer();
    for chunk in bytes.chunks(4096) {
        // Overwrite the start of both directions and of their rings.
        for at in [0, CONTROL_BYTES, DIRECTION_BYTES, DIRECTION_BYTES + CONTROL_BYTES] {
            // SAFETY: a chunk fits at each of the four places, and no reference to them exists.
            unsafe {
                let to = mapping.start.add(at).as_ptr();
                mem::copy_foreign(to, chunk.as_ptr(), chunk.len());
            }
        }
        let place = LentPlace { memory: 1, offset: 0 };
        for (payload, lent) in [(0, None), (chunk.len(), None), (FRAME_BYTES_MAX - 9, Some(place))]
        {
            let shape = Shape { headers: 9, payload, lent };
            let written = writer.write(&shape, |headers, payload| {
                // SAFETY: the record has room for the sizes in the shape, and so does the buffer.
                unsafe {
                    mem::copy_foreign(headers, buffer.as_ptr(), 9);
                    if let Some(to) = payload {
                        mem::copy_foreign(to, buffer.as_ptr(), shape.payload);
                    }
                }
                true
            });
            assert_ne!(written, Written::Abandoned);
            if let Read::Frame(headers, outside) = reader.read(&mut buffer) {
                assert!((1..=FRAME_BYTES_MAX).contains(&headers));
                if let Outside::Ring(payload) = outside {
                    assert!(headers + payload.len() <= FRAME_BYTES_MAX);
                    payload.copy_to(&mut buffer[..payload.len()]);
                }
            }
            reader.release();
        }
    }
}

/// Largest frame in bytes: about 64 KiB, as much as a batch holds. With 32 bytes of headers, the
/// payload is a multiple of the line size. Each frame of a large operation therefore starts at the
/// same alignment in its source and target as the operation.
pub(super) const FRAME_BYTES_MAX: usize = 65_504;
const HEADER_BYTES: usize = 8;
/// Header value at the position of the next record, before the writer has published that record.
const EMPTY: u32 = 0;
/// Header value which means that the rest of the ring is unused. The next record is at the start of
/// the ring.
const WRAP: u32 = u32::MAX;
/// Bit of the second word: the payload is in lent memory.
const LENT: u32 = 1 << 31;
const LENT_PLACE_BYTES: usize = 16;

/// Bytes of the largest record. Headers and payload may each leave part of a line unused.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + FRAME_BYTES_MAX + 2 * LINE_BYTES;
const _: () = assert!(
    2 * RECORD_BYTES_MAX + LINE_BYTES <= RING_BYTES - RING_BYTES / 8,
    "see `Reader::release`"
);

#[cfg(test)]
mod tests;
