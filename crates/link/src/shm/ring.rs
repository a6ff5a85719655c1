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

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Memory shared with another process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
}

impl Mapping {
    /// Maps the first [`FILE_BYTES`] of a file, which must have that many and keep them.
    pub(super) fn new(file: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self { start }))
    }

    /// One of the two directions.
    fn direction(self: &Arc<Self>, index: usize) -> Area {
        let offset = (index % 2) * DIRECTION_BYTES;
        // SAFETY: both directions lie within the mapping of `FILE_BYTES`.
        let start = unsafe { self.start.add(offset) };
        Area { start, _mapping: Arc::clone(self) }
    }

    /// Both ends of this process: frames leave in direction `out` and come in the other one.
    pub(super) fn ends(self: &Arc<Self>, out: usize) -> (Writer, Reader) {
        (Writer::new(self.direction(out)), Reader::new(self.direction(out + 1)))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`; every pointer into it lives in an `Area`, which
        // keeps the mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), FILE_BYTES) };
    }
}

// SAFETY: the mapping is only accessed by atomics and by copies that make no claim on what others do.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The shared memory of one direction.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    _mapping: Arc<Mapping>,
}

// SAFETY: as for `Mapping`, which the area keeps alive.
unsafe impl Send for Area {}

impl Area {
    /// How many bytes the reader has read, in all.
    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: within the control part, aligned to a line. Atomics tolerate other processes.
        unsafe { AtomicU64::from_ptr(self.start.add(CONSUMED_AT).as_ptr().cast()) }
    }

    /// Not 0 while the writer waits for room.
    fn writer_waits(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.start.add(WRITER_WAITS_AT).as_ptr().cast()) }
    }

    /// Not 0 while the reader sleeps, or is about to.
    fn reader_sleeps(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.start.add(READER_SLEEPS_AT).as_ptr().cast()) }
    }

    /// The header at a position of the ring.
    #[inline]
    fn header(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(LINE_BYTES), "records begin with a line");
        // SAFETY: the remainder keeps it within the ring, and a line has room for a header.
        unsafe {
            AtomicU32::from_ptr(self.start.add(CONTROL_BYTES + at % RING_BYTES).as_ptr().cast())
        }
    }

    /// The second word of the header at a position: bytes of payload, or [`LENT`] with them.
    #[inline]
    fn second(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as for `header`: the word behind it lies in the same line.
        unsafe {
            AtomicU32::from_ptr(self.start.add(CONTROL_BYTES + at % RING_BYTES + 4).as_ptr().cast())
        }
    }

    /// What lies `behind` the beginning of the record at a position. It must lie within the ring.
    #[inline]
    fn place(&self, at: usize, behind: usize) -> *mut u8 {
        debug_assert!(at + behind < RING_BYTES, "records do not wrap");
        // SAFETY: as for `header`; the remainder keeps it within the ring.
        unsafe { self.start.add(CONTROL_BYTES + (at + behind) % RING_BYTES).as_ptr() }
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
    /// Nobody wants it: what should have filled it failed.
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

    /// Writes a frame, whose `headers` and payload `fill` copies to where it is told, headers first;
    /// unless that fails. For lent payload it is told no place.
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

    /// Tells the reader that room is waited for. Afterwards writing must be tried once more.
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

/// What there was to read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Read {
    /// A frame of so many bytes of headers, which were copied, and its payload.
    Frame(usize, Outside),
    /// Nothing.
    Nothing,
    /// Something that no writer of this protocol writes.
    Broken,
}

/// Where the payload of a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outside {
    /// There is none.
    Nowhere,
    /// In the ring, until [`Reader::release`] is called; so many bytes.
    Ring(*const u8, usize),
    /// In lent memory; so many bytes.
    Lent(LentPlace, usize),
}

/// The end of a ring that reads.
#[derive(Debug)]
pub(super) struct Reader {
    area: Area,
    /// Bytes read in all.
    read: u64,
    /// What of them the writer was told.
    told: u64,
}

impl Reader {
    const fn new(area: Area) -> Self {
        Self { area, read: 0, told: 0 }
    }

    /// Copies the headers of the next frame to the beginning of `buffer`.
    #[inline]
    pub(super) fn read(&mut self, buffer: &mut [u8; FRAME_BYTES_MAX]) -> Read {
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
            None if payload == 0 => Outside::Nowhere,
            None => Outside::Ring(self.area.place(at, shape.payload_at()), payload),
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
    /// What the writer was not told of is less than an eighth of the ring, and a largest frame with
    /// what is skipped for it finds room in the rest: a writer that waits is told when all has been
    /// read.
    #[inline]
    pub(super) fn release(&mut self) -> bool {
        if self.read - self.told < (RING_BYTES / 8) as u64 {
            return false;
        }
        self.told = self.read;
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
                if let Outside::Ring(from, len) = outside {
                    assert!(headers + len <= FRAME_BYTES_MAX);
                    // SAFETY: nothing is released before the end of the copy.
                    unsafe { mem::copy_foreign(buffer.as_mut_ptr(), from, len) };
                }
            }
            reader.release();
        }
    }
}

/// Largest frame, in bytes: one is the 64 KiB of a batch, and its payload behind the 32 bytes of
/// headers a whole number of lines, so that source and target of large operations stay aligned.
pub(super) const FRAME_BYTES_MAX: usize = 65_504;

/// Bytes of the ring of one direction: three largest frames, and both directions stay within a
/// second-level cache of 1 MiB.
pub(super) const RING_BYTES: usize = 256 * 1024;

/// Bytes of shared memory of both directions.
pub(super) const FILE_BYTES: usize = 2 * DIRECTION_BYTES;

const DIRECTION_BYTES: usize = CONTROL_BYTES + RING_BYTES;
/// A page in front of each ring, of which three lines are used.
const CONTROL_BYTES: usize = 4096;
const CONSUMED_AT: usize = 0;
const WRITER_WAITS_AT: usize = 128;
const READER_SLEEPS_AT: usize = 256;
const LINE_BYTES: usize = 64;
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
const _: () = assert!(RING_BYTES.is_multiple_of(LINE_BYTES) && CONTROL_BYTES.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::shm::socket::create_memory;

    #[test]
    fn a_reader_that_sleeps_is_called_once_and_an_awake_one_never() {
        let (mut writer, reader) = ring();
        assert_eq!(put(&mut writer, b"x"), Written::Yes);
        assert!(!writer.must_wake(), "it has not said that it sleeps");
        reader.announce_sleep();
        assert!(reader.has_frame(), "what came before is seen before the sleep");
        assert!(writer.must_wake());
        assert!(!writer.must_wake(), "one call is enough");
    }

    #[test]
    fn a_writer_that_waits_is_called_when_the_ring_has_been_read() {
        let (mut writer, mut reader) = ring();
        let frame = vec![7; FRAME_BYTES_MAX];
        while put(&mut writer, &frame) == Written::Yes {}
        writer.announce_wait();
        assert_eq!(put(&mut writer, &frame), Written::Full);
        let mut calls = 0;
        while let Read::Frame(..) = reader.read(&mut buffer()) {
            calls += u32::from(reader.release());
        }
        assert_eq!(calls, 1);
        assert_eq!(put(&mut writer, &frame), Written::Yes);
    }

    #[test]
    fn a_claim_to_have_read_what_was_never_written_is_found_out() {
        let (mut writer, _reader) = ring();
        let frame = vec![7; FRAME_BYTES_MAX];
        while put(&mut writer, &frame) == Written::Yes {}
        for lie in [u64::MAX, writer.written + 1] {
            writer.area.consumed().store(lie, Ordering::Relaxed);
            assert_eq!(put(&mut writer, &frame), Written::Broken, "{lie}");
        }
        writer.consumed = 1;
        writer.area.consumed().store(0, Ordering::Relaxed);
        assert_eq!(put(&mut writer, &frame), Written::Broken, "reading does not go backwards");
    }

    #[test]
    fn lengths_that_no_frame_has_are_refused() {
        for (at, header, second) in [
            (0, FRAME_BYTES_MAX as u32 + 1, 0),
            (0, u32::MAX - 1, 0),
            (0, WRAP, 0),
            (0, 9, FRAME_BYTES_MAX as u32 - 8),
            (0, 9, LENT - 1),
            (0, 9, LENT),
            (0, 9, u32::MAX),
            (RING_BYTES - LINE_BYTES, 57, 0),
            (RING_BYTES - LINE_BYTES, 41, LENT | 1),
            (RING_BYTES - LINE_BYTES, 1, 1),
        ] {
            let (_writer, mut reader) = ring();
            reader.read = at as u64;
            reader.area.second(at).store(second, Ordering::Relaxed);
            reader.area.header(at).store(header, Ordering::Relaxed);
            assert_eq!(reader.read(&mut buffer()), Read::Broken, "{header}, {second} at {at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_peer_writes_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            fuzz_shm_ring(&bytes);
        }

        /// Lines that begin as records do, or nearly so, over the control words and the ring.
        #[test]
        fn whatever_lines_a_peer_writes_nothing_panics(
            lines in prop::collection::vec((word(), word(), any::<u8>()), 1..200),
        ) {
            let bytes: Vec<u8> = lines
                .into_iter()
                .flat_map(|(first, second, fill)| {
                    let mut line = [fill; LINE_BYTES];
                    line[..4].copy_from_slice(&first.to_ne_bytes());
                    line[4..8].copy_from_slice(&second.to_ne_bytes());
                    line
                })
                .collect();
            fuzz_shm_ring(&bytes);
        }

        #[test]
        fn frames_come_out_as_they_went_in(
            steps in prop::collection::vec(
                (any::<bool>(), 1..=300_usize, 0..FRAME_BYTES_MAX - 300, any::<u8>(), any::<bool>()),
                1..200,
            ),
        ) {
            let (mut writer, mut reader) = ring();
            let mut model = VecDeque::new();
            let mut buffer = buffer();
            for (is_write, headers, payload, byte, is_lent) in steps {
                if is_write {
                    let place = LentPlace { memory: u64::MAX - u64::from(byte), offset: 1 << 40 };
                    let lent = (is_lent && payload > 0).then_some(place);
                    let shape = Shape { headers, payload, lent };
                    match put_shape(&mut writer, &shape, byte) {
                        Written::Yes => model.push_back((shape, byte)),
                        written => {
                            prop_assert_eq!(written, Written::Full);
                            prop_assert!(!model.is_empty(), "an empty ring has room");
                        }
                    }
                } else {
                    match (reader.read(&mut buffer), model.pop_front()) {
                        (Read::Frame(headers, outside), Some((shape, byte))) => {
                            prop_assert_eq!(headers, shape.headers);
                            prop_assert!(buffer[..headers].iter().all(|&b| b == byte));
                            match outside {
                                Outside::Nowhere => prop_assert_eq!(shape.payload, 0),
                                Outside::Lent(place, len) => {
                                    prop_assert_eq!((Some(place), len), (shape.lent, shape.payload));
                                }
                                Outside::Ring(from, len) => {
                                    prop_assert_eq!((None, len), (shape.lent, shape.payload));
                                    // SAFETY: nothing is released before the end of the copy.
                                    unsafe { mem::copy_foreign(buffer.as_mut_ptr(), from, len) };
                                    prop_assert!(buffer[..len].iter().all(|&b| b == !byte));
                                }
                            }
                            reader.release();
                        }
                        (read, expected) => prop_assert_eq!((read, expected), (Read::Nothing, None)),
                    }
                }
            }
        }

        #[test]
        fn nothing_that_a_peer_writes_leaves_the_ring(
            words in prop::collection::vec(any::<(u16, u32)>(), 1..64),
            near in prop::collection::vec((any::<u16>(), 0..70_000_u32), 1..64),
        ) {
            let (_writer, mut reader) = ring();
            for (at, word) in words.into_iter().chain(near) {
                let (line, is_second) = (usize::from(at) >> 1, at & 1 != 0);
                let at = line * LINE_BYTES % RING_BYTES;
                let area = &reader.area;
                let place = if is_second { area.second(at) } else { area.header(at) };
                place.store(word, Ordering::Relaxed);
            }
            let mut buffer = buffer();
            let ring = reader.area.place(0, 0) as usize;
            for _ in 0..RING_BYTES / LINE_BYTES {
                let Read::Frame(headers, outside) = reader.read(&mut buffer) else { break };
                prop_assert!((1..=FRAME_BYTES_MAX).contains(&headers));
                if let Outside::Ring(from, len) = outside {
                    prop_assert!(headers + len <= FRAME_BYTES_MAX);
                    prop_assert!(from as usize >= ring && from as usize + len <= ring + RING_BYTES);
                }
                reader.release();
            }
        }
    }

    /// Words that mean something at the beginning of a record, and any others.
    fn word() -> impl Strategy<Value = u32> {
        prop_oneof![
            Just(EMPTY),
            Just(WRAP),
            1..100_u32,
            0..70_000_u32,
            (0..70_000_u32).prop_map(|bytes| bytes | LENT),
            any::<u32>(),
        ]
    }

    fn ring() -> (Writer, Reader) {
        let file = create_memory().expect("memory");
        let mapping = Mapping::new(file.as_fd()).expect("a mapping");
        let (writer, _) = mapping.ends(0);
        let (_, reader) = mapping.ends(1);
        (writer, reader)
    }

    fn buffer() -> Box<[u8; FRAME_BYTES_MAX]> {
        frame_buffer()
    }

    fn put(writer: &mut Writer, frame: &[u8]) -> Written {
        let shape = Shape { headers: frame.len(), payload: 0, lent: None };
        writer.write(&shape, |headers, _| {
            // SAFETY: the record has room for the frame.
            unsafe { mem::copy_foreign(headers, frame.as_ptr(), frame.len()) };
            true
        })
    }

    /// Headers full of `byte`, and payload of its complement.
    fn put_shape(writer: &mut Writer, shape: &Shape, byte: u8) -> Written {
        writer.write(shape, |headers, payload| {
            // SAFETY: the record has room for what the shape says.
            unsafe {
                headers.write_bytes(byte, shape.headers);
                if let Some(to) = payload {
                    to.write_bytes(!byte, shape.payload);
                }
            }
            true
        })
    }
}
