//! A ring of frames in memory shared with another process: one writes, one reads.
//!
//! Each record begins on a cache line of its own: two header words, behind them the headers of a frame,
//! and its payload from the next line on. A small frame is all headers. The first word is the only
//! thing the reader looks at to find out whether a frame is there, so that a small frame crosses from
//! one processor to the other in one or two lines. The writer puts an empty header behind a record
//! before it publishes the record. In place of a payload, a record can say where in lent memory it lies.
//!
//! The other process is not trusted. Both ends keep their position to themselves; what is read from
//! shared memory is read once, checked, and then used: headers are copied first, payload is only ever
//! copied on. What the other end writes can make the ring useless, and nothing else.

mod mapping;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mem::Payload;

use self::mapping::{Area, CONTROL_BYTES, DIRECTION_BYTES, LINE_BYTES};

pub(super) use self::mapping::{FILE_BYTES, Mapping, RING_BYTES};

impl Mapping {
    /// Both ends of this process: frames leave in direction `out` and come in the other one.
    pub(super) fn ends(self: &Arc<Self>, out: usize) -> (Writer, Reader) {
        (Writer::new(self.direction(out)), Reader::new(self.direction(out + 1)))
    }
}

/// What a frame consists of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    /// Bytes of the headers, at least 1.
    pub(super) headers: usize,
    /// Bytes of payload behind them; with the headers at most [`FRAME_BYTES_MAX`].
    pub(super) payload: usize,
    /// Where the payload lies, if not in the ring.
    pub(super) lent: Option<LentPlace>,
}

/// A place in lent memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LentPlace {
    /// What the lender calls the memory.
    pub(super) memory: u64,
    /// Bytes before it.
    pub(super) offset: u64,
}

impl Shape {
    /// Where the headers begin.
    const fn headers_at(&self) -> usize {
        if self.lent.is_some() { HEADER_BYTES + LENT_PLACE_BYTES } else { HEADER_BYTES }
    }

    /// Where the payload begins, if it is in the ring: there is where the record ends otherwise.
    const fn payload_at(&self) -> usize {
        (self.headers_at() + self.headers).next_multiple_of(LINE_BYTES)
    }

    /// Bytes of the whole record, a whole number of lines.
    const fn record_bytes(&self) -> usize {
        let inside = if self.lent.is_some() { 0 } else { self.payload };
        self.payload_at() + inside.next_multiple_of(LINE_BYTES)
    }

    /// Whether a frame may look so.
    const fn is_possible(&self) -> bool {
        let (headers, payload) = (self.headers, self.payload);
        headers >= 1
            && headers <= FRAME_BYTES_MAX
            && payload <= FRAME_BYTES_MAX - headers
            && (self.lent.is_none() || payload > 0)
    }
}

/// What became of a frame that was to be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Written {
    /// It is in the ring.
    Yes,
    /// There is no room.
    Full,
    /// Its bytes are not wanted: what should have filled it failed.
    Abandoned,
    /// The reader claims to have read what was never written.
    Broken,
}

/// The end of a ring that writes.
#[derive(Debug)]
pub(super) struct Writer {
    area: Area,
    /// Bytes written in all; modulo [`RING_BYTES`] where the next record begins.
    written: u64,
    /// What the reader had read when last looked at, at most `written`.
    consumed: u64,
}

impl Writer {
    const fn new(area: Area) -> Self {
        Self { area, written: 0, consumed: 0 }
    }

    /// Writes a frame, whose `headers` and payload `fill` copies to the place it is given, headers first; unless that
    /// fails. For lent payload it is given no place.
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
        // The line behind the record takes the empty header.
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
            // SAFETY: the record has so many bytes between its header and the frame's.
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

    /// Whether the reader sleeps and must be woken for what was written. To be called after writing.
    #[inline]
    pub(super) fn must_wake(&self) -> bool {
        // Pairs with the fence of `Reader::announce_sleep`: either that one sees the frame, or this
        // one sees that it sleeps.
        fence(Ordering::SeqCst);
        let sleeps = self.area.reader_sleeps();
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::AcqRel) != 0
    }

    /// Announces to the reader that this end waits for room. Afterwards writing must be tried once more.
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

/// What there was to read. Nothing is read or released as long as it is in use.
#[derive(Debug)]
pub(super) enum Read<'ring> {
    /// A frame of so many bytes of headers, which were copied, and its payload.
    Frame(usize, Outside<'ring>),
    /// Nothing.
    Nothing,
    /// Something that no writer of this protocol writes.
    Broken,
}

/// Where the payload of a frame is.
#[derive(Debug)]
pub(super) enum Outside<'ring> {
    /// In the ring, or there is none.
    Ring(Payload<'ring>),
    /// In lent memory; so many bytes.
    Lent(LentPlace, usize),
}

/// The end of a ring that reads.
#[derive(Debug)]
pub(super) struct Reader {
    area: Area,
    /// Bytes read in all.
    read: u64,
    /// The part of them that was reported to the writer.
    reported: u64,
}

impl Reader {
    const fn new(area: Area) -> Self {
        Self { area, read: 0, reported: 0 }
    }

    /// Copies the headers of the next frame to the beginning of `buffer`.
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
            // At the beginning of the ring there is nothing to skip; and a frame follows.
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
        // SAFETY: the record ends within the ring, as checked with lengths that were read once; the
        // buffer is at least that long. The other process may write meanwhile: the bytes are then of
        // no use, as any frame's may be.
        unsafe { mem::copy_foreign(buffer.as_mut_ptr(), from, shape.headers) };
        self.read += shape.record_bytes() as u64;
        let outside = match lent {
            Some(place) => Outside::Lent(place, payload),
            None if payload == 0 => Outside::Ring(Payload::EMPTY),
            None => {
                let from = self.area.place(at, shape.payload_at());
                // SAFETY: the record ends within the ring, as above, and the result borrows this end: the mapping
                // stays, and nothing is released. What the other process writes all the same is torn; nothing has a
                // reference.
                Outside::Ring(unsafe { Payload::foreign(from, payload) })
            }
        };
        Read::Frame(shape.headers, outside)
    }

    /// Where the payload of the record at a position lies, as the writer says.
    fn lent_place(&self, at: usize) -> LentPlace {
        let mut words = [0; LENT_PLACE_BYTES];
        // SAFETY: a record begins with a line, which has so many bytes behind the header.
        unsafe {
            mem::copy_foreign(words.as_mut_ptr(), self.area.place(at, HEADER_BYTES), words.len());
        }
        let word = |from: usize| u64::from_ne_bytes(std::array::from_fn(|i| words[from + i]));
        LentPlace { memory: word(0), offset: word(8) }
    }

    /// Gives room back, when it is worth it; whether the writer waits for it and must be woken.
    ///
    /// What was not yet reported to the writer is less than an eighth of the ring, and a largest frame with what is
    /// skipped for it finds room in the rest: a writer that waits gets a report when all has been read.
    #[inline]
    pub(super) fn release(&mut self) -> bool {
        if self.read - self.reported < (RING_BYTES / 8) as u64 {
            return false;
        }
        self.reported = self.read;
        self.area.consumed().store(self.read, Ordering::Release);
        // Pairs with the fence of `Writer::announce_wait`.
        fence(Ordering::SeqCst);
        let waits = self.area.writer_waits();
        waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::AcqRel) != 0
    }

    /// Has the writer wake this end at its next frame. Afterwards [`Reader::has_frame`] must be asked
    /// once more.
    pub(super) fn announce_sleep(&self) {
        self.area.reader_sleeps().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether something waits to be read.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        let at = (self.read % RING_BYTES as u64) as usize;
        self.area.header(at).load(Ordering::Acquire) != EMPTY
    }
}

/// The other end does not keep to the protocol of the ring.
struct Broken;

/// Private memory that frames are read to.
#[expect(
    clippy::large_stack_arrays,
    reason = "once, and the compiler sees that it goes to the heap"
)]
pub(super) fn frame_buffer() -> Box<[u8; FRAME_BYTES_MAX]> {
    Box::new([0; FRAME_BYTES_MAX])
}

/// Reads and writes a ring in which the other process has written `bytes`: for fuzzing.
///
/// # Panics
/// If this process can make no shared memory.
#[doc(hidden)]
pub fn fuzz_shm_ring(bytes: &[u8]) {
    let file = super::socket::create_memory().expect("memory");
    let mapping = Mapping::new(file.as_fd()).expect("a mapping");
    let (mut writer, mut reader) = mapping.ends(0);
    let mut buffer = frame_buffer();
    for chunk in bytes.chunks(4096) {
        // What the peer writes lies over the beginning of both directions and of their rings.
        for at in [0, CONTROL_BYTES, DIRECTION_BYTES, DIRECTION_BYTES + CONTROL_BYTES] {
            // SAFETY: a chunk fits each of the four places, and no reference to them exists.
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
                // SAFETY: the record has room for what the shape says, as the buffer has.
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

/// Largest frame, in bytes: one is the 64 KiB of a batch, and its payload behind the 32 bytes of
/// headers a whole number of lines, so that source and target of large operations stay aligned.
pub(super) const FRAME_BYTES_MAX: usize = 65_504;
const HEADER_BYTES: usize = 8;
/// Header where no record has begun.
const EMPTY: u32 = 0;
/// Header of a place from which on the ring is unused: the next record is at its beginning.
const WRAP: u32 = u32::MAX;
/// Bit of the second word: the payload lies in lent memory.
const LENT: u32 = 1 << 31;
const LENT_PLACE_BYTES: usize = 16;

/// No record is longer: headers and payload may each need a line that they do not fill.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + FRAME_BYTES_MAX + 2 * LINE_BYTES;
const _: () = assert!(
    2 * RECORD_BYTES_MAX + LINE_BYTES <= RING_BYTES - RING_BYTES / 8,
    "see `Reader::release`"
);

#[cfg(test)]
mod tests;
