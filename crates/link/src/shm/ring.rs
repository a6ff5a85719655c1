//! A ring of frames in memory shared with another process: one writes, one reads.
//!
//! Each record is a header word and a frame behind it, and begins on a cache line of its own. The
//! header is the only thing the reader looks at to find out whether a frame is there, so that a small
//! frame crosses from one processor to the other in one or two lines. The writer puts an empty header
//! behind a record before it publishes the record.
//!
//! The other process is not trusted. Both ends keep their position to themselves; what is read from
//! shared memory is read once, checked, and then used. What the other end writes can make the ring
//! useless, and nothing else.

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

    /// The frame behind the header at a position. The record must end within the ring.
    #[inline]
    fn frame(&self, at: usize) -> *mut u8 {
        // SAFETY: as for `header`: the line has more bytes than a header.
        unsafe { self.start.add(CONTROL_BYTES + at % RING_BYTES + HEADER_BYTES).as_ptr() }
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

    /// Writes a frame of `len` bytes, 1 to [`FRAME_BYTES_MAX`], which `fill` copies to where it is
    /// told; unless that fails.
    #[inline]
    pub(super) fn write(&mut self, len: usize, fill: impl FnOnce(*mut u8) -> bool) -> Written {
        debug_assert!((1..=FRAME_BYTES_MAX).contains(&len), "checked by the caller");
        let record = record_bytes(len);
        let at = (self.written % RING_BYTES as u64) as usize;
        let to_end = RING_BYTES - at;
        let (skipped, start) = if record > to_end { (to_end, 0) } else { (0, at) };
        // The line behind the record takes the empty header.
        match self.has_room((skipped + record + LINE_BYTES) as u64) {
            Ok(true) => {}
            Ok(false) => return Written::Full,
            Err(Broken) => return Written::Broken,
        }
        if !fill(self.area.frame(start)) {
            return Written::Abandoned;
        }
        self.area.header((start + record) % RING_BYTES).store(EMPTY, Ordering::Relaxed);
        self.area.header(start).store(len as u32, Ordering::Release);
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
    /// A frame of this many bytes.
    Frame(usize),
    /// Nothing.
    Nothing,
    /// Something that no writer of this protocol writes.
    Broken,
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

    /// Copies the next frame to the beginning of `buffer`.
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
        let len = header as usize;
        if !(1..=FRAME_BYTES_MAX).contains(&len) || record_bytes(len) > RING_BYTES - at {
            return Read::Broken;
        }
        // SAFETY: the record ends within the ring, as checked with the length that was read once;
        // the buffer is at least that long. The other process may write meanwhile: the bytes are
        // then of no use, as any frame's may be.
        unsafe { mem::copy_foreign(buffer.as_mut_ptr(), self.area.frame(at), len) };
        self.read += record_bytes(len) as u64;
        Read::Frame(len)
    }

    /// Gives room back, when it is worth it; whether the writer waits for it and must be woken.
    ///
    /// A writer that finds no room for a frame has written more than three quarters of the ring,
    /// so that it is always told when all of that has been read.
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
        for len in [1, chunk.len(), FRAME_BYTES_MAX] {
            let written = writer.write(len, |to| {
                // SAFETY: the record has room for so many bytes, as the buffer has.
                unsafe { mem::copy_foreign(to, buffer.as_ptr(), len) };
                true
            });
            assert_ne!(written, Written::Abandoned);
            match reader.read(&mut buffer) {
                Read::Frame(len) => assert!((1..=FRAME_BYTES_MAX).contains(&len)),
                Read::Nothing | Read::Broken => {}
            }
            reader.release();
        }
    }
}

/// Bytes of a frame with its header, as whole lines.
const fn record_bytes(len: usize) -> usize {
    (HEADER_BYTES + len).next_multiple_of(LINE_BYTES)
}

/// Largest frame, in bytes: a whole number of lines with its header. Two of them are the 64 KiB of a
/// batch, and one leaves room in a first-level cache of 48 KiB, where it is copied on from.
pub(super) const FRAME_BYTES_MAX: usize = 32_704;

/// Bytes of the ring of one direction: an eighth takes a largest frame, and both directions with
/// what is copied from and to stay within a second-level cache of 1 MiB.
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

const _: () = assert!(record_bytes(FRAME_BYTES_MAX) <= RING_BYTES / 8, "see `Reader::release`");
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
        while let Read::Frame(_) = reader.read(&mut buffer()) {
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
        for (at, header) in [
            (0, FRAME_BYTES_MAX as u32 + 1),
            (0, u32::MAX - 1),
            (0, WRAP),
            (RING_BYTES - LINE_BYTES, 57),
        ] {
            let (_writer, mut reader) = ring();
            reader.read = at as u64;
            reader.area.header(at).store(header, Ordering::Relaxed);
            assert_eq!(reader.read(&mut buffer()), Read::Broken, "{header} at {at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_peer_writes_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            fuzz_shm_ring(&bytes);
        }

        #[test]
        fn frames_come_out_as_they_went_in(
            steps in prop::collection::vec((any::<bool>(), 1..=FRAME_BYTES_MAX, any::<u8>()), 1..200),
        ) {
            let (mut writer, mut reader) = ring();
            let mut model = VecDeque::new();
            let mut buffer = buffer();
            for (is_write, len, byte) in steps {
                if is_write {
                    match put(&mut writer, &vec![byte; len]) {
                        Written::Yes => model.push_back((len, byte)),
                        written => {
                            prop_assert_eq!(written, Written::Full);
                            prop_assert!(!model.is_empty(), "an empty ring has room");
                        }
                    }
                } else {
                    let expected = model.pop_front();
                    match reader.read(&mut buffer) {
                        Read::Frame(len) => {
                            let frame = expected.filter(|&(expected, _)| expected == len);
                            let Some((_, byte)) = frame else { panic!("{len} bytes, not {expected:?}") };
                            prop_assert!(buffer[..len].iter().all(|&b| b == byte));
                            reader.release();
                        }
                        read => prop_assert_eq!((read, expected), (Read::Nothing, None)),
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
                let at = usize::from(at) * LINE_BYTES % RING_BYTES;
                reader.area.header(at).store(word, Ordering::Relaxed);
            }
            let mut buffer = buffer();
            for _ in 0..RING_BYTES / LINE_BYTES {
                if !matches!(reader.read(&mut buffer), Read::Frame(1..=FRAME_BYTES_MAX)) {
                    break;
                }
                reader.release();
            }
        }
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
        writer.write(frame.len(), |to| {
            // SAFETY: the record has room for the frame.
            unsafe { mem::copy_foreign(to, frame.as_ptr(), frame.len()) };
            true
        })
    }
}
