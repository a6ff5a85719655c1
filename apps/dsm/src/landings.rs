//! Memory in which pages that are fetched together arrive, before they are written to their frames.

use std::sync::Arc;

use dsm_protocol::PageNumber;
use dsm_protocol::diff::{PAGE_BYTES, PAGE_WORDS, PageBytes};
use ethernot::{Buffer, Endpoint, MemoryRegion, RegionId, RegisterError, Rights};
use page_faults::Pages;

use crate::words;

/// Places for the bytes of reads of several pages.
///
/// The kernel fills a new frame with zeros before bytes can be placed there. If the bytes are elsewhere
/// already, one system call makes the frames of all pages and copies the bytes to them, which takes two
/// thirds of the time. The places are used again and again, so that they stay in the cache.
#[derive(Debug)]
pub(crate) struct Landings {
    pages: Arc<Pages>,
    /// Keeps the places registered.
    _region: MemoryRegion,
    buffer: Arc<Buffer>,
    free: Vec<LandingPlace>,
    /// Pages that arrive alone, in frames that are allocated once their reads are in flight.
    single: Vec<PageNumber>,
}

/// A place for the bytes of one read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LandingPlace {
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
}

impl Landings {
    pub(crate) fn new(endpoint: &Endpoint, pages: Arc<Pages>) -> Result<Self, RegisterError> {
        let buffer = Buffer::new(PLACES * PLACE_BYTES as u64);
        let region = endpoint.register(Arc::clone(&buffer), Rights::LOCAL_WRITE)?;
        let id = region.region().id;
        let place = |index| LandingPlace { region: id, offset: index * PLACE_BYTES as u64 };
        let free = (0..PLACES).rev().map(place).collect();
        Ok(Self { pages, _region: region, buffer, free, single: Vec::new() })
    }

    /// Takes a place for the bytes of pages from `first` on. Returns `None` if they have to arrive in
    /// the frames, which are allocated then.
    pub(crate) fn take(&mut self, first: PageNumber, bytes: usize) -> Option<LandingPlace> {
        let count = bytes / PAGE_BYTES;
        if count < 2 {
            self.single.push(first);
            return None;
        }
        let place = self.free.pop_if(|_| bytes <= PLACE_BYTES);
        if place.is_none() {
            self.pages.allocate(first.index()..first.index() + count);
        }
        place
    }

    /// Allocates the frames of single pages whose reads are in flight. Otherwise a fault of the kernel
    /// would do so when the bytes arrive, and the thread that waits for the page would wait longer.
    pub(crate) fn allocate(&mut self) {
        for page in self.single.drain(..) {
            self.pages.allocate(page.index()..page.index() + 1);
        }
    }

    /// Writes the bytes that have arrived at a place to the frames of pages from `first` on.
    pub(crate) fn write(&self, place: LandingPlace, first: PageNumber, bytes: usize) {
        let (offset, count) = (place.offset, bytes / PAGE_BYTES);
        // SAFETY: the buffer has a place at this offset, of at least so many bytes.
        let written = unsafe {
            let from = self.buffer.as_ptr().add(offset as usize);
            self.pages.write_frames(first.index()..first.index() + count, from)
        };
        if written.is_err() {
            self.copy(offset, first, count);
        }
    }

    /// Writes bytes to frames word by word. If the host has no memory for a frame, the access faults.
    fn copy(&self, offset: u64, first: PageNumber, count: usize) {
        let mut bytes: PageBytes = [0; PAGE_BYTES];
        for page in 0..count {
            self.buffer.read(offset + (page * PAGE_BYTES) as u64, &mut bytes);
            let frame = self.pages.frames().wrapping_add((first.index() + page) * PAGE_BYTES);
            for (word, bytes) in bytes.as_chunks::<4>().0.iter().enumerate().take(PAGE_WORDS) {
                // SAFETY: the frame is a page of the mapping, because the machine fetches pages of the
                // region.
                unsafe { words::store_word(frame, word, *bytes) };
            }
        }
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, place: LandingPlace) {
        self.free.push(place);
    }
}

/// Bytes of a place: the pages that one read fetches, at most.
const PLACE_BYTES: usize = 32 * PAGE_BYTES;

/// Number of places: 1 MiB, which the machine keeps in flight.
const PLACES: u64 = 8;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use page_faults::{Access, PageFaults, PageView, ViewOptions};

    use super::*;

    struct NoFaults;

    impl PageFaults for NoFaults {
        fn on_fault(&self, _: &Pages, _: usize, _: Access) -> bool {
            false
        }
    }

    /// Returns a byte at the end of a frame.
    fn byte(pages: &Pages, page: usize) -> u8 {
        // SAFETY: the frame is mapped.
        unsafe { pages.frames().add(page * PAGE_BYTES + 4088).read_volatile() }
    }

    #[test]
    fn pages_that_have_arrived_are_written_to_their_frames() {
        let options = ViewOptions { pages: 200, address: None, method: None };
        let view = PageView::new(&options, NoFaults).unwrap();
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let mut landings = Landings::new(&endpoint, Arc::clone(view.pages())).unwrap();
        let place = landings.take(PageNumber(7), 3 * PAGE_BYTES).unwrap();
        for page in 0..3_u64 {
            let offset = place.offset + page * PAGE_BYTES as u64 + 4088;
            landings.buffer.write(offset, &[100 + page as u8]);
        }
        landings.write(place, PageNumber(7), 3 * PAGE_BYTES);
        let found = |first: usize| [0, 1, 2, 3].map(|page| byte(view.pages(), first + page));
        assert_eq!(found(7), [100, 101, 102, 0]);
        // If the kernel refuses, the bytes are copied.
        landings.copy(place.offset, PageNumber(20), 3);
        assert_eq!(found(20), [100, 101, 102, 0]);
        landings.give_back(place);
        assert_eq!(landings.take(PageNumber(7), 2 * PAGE_BYTES), Some(place));
    }

    #[test]
    fn single_pages_long_runs_and_runs_without_a_free_place_arrive_in_the_frames() {
        let options = ViewOptions { pages: 200, address: None, method: None };
        let view = PageView::new(&options, NoFaults).unwrap();
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let mut landings = Landings::new(&endpoint, Arc::clone(view.pages())).unwrap();
        assert_eq!(landings.take(PageNumber(0), PAGE_BYTES), None);
        landings.allocate();
        assert!(landings.single.is_empty());
        assert_eq!(landings.take(PageNumber(0), PLACE_BYTES + PAGE_BYTES), None);
        for _ in 0..PLACES {
            assert!(landings.take(PageNumber(0), PLACE_BYTES).is_some());
        }
        assert_eq!(landings.take(PageNumber(0), PLACE_BYTES), None);
    }
}
