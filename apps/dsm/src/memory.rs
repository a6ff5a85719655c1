//! The frames of the pages of a rank, their twins, and what the application may do with them.

use std::ops::Range;
use std::sync::Arc;

use dsm_protocol::diff::{Bitmap, PAGE_BYTES, PageBytes};
use dsm_protocol::{Access, PageNumber};
use page_faults::{Method, Pages, ViewError};

use crate::compare::compare;
use crate::guards::Guards;
use crate::twins::Twins;
use crate::words;
use crate::writable_groups::WritableGroups;

/// The memory of a rank. Its owner has the lock of the machine.
#[derive(Debug)]
pub(crate) struct Memory {
    pages: Arc<Pages>,
    /// What the application may do with each page.
    access: Vec<Access>,
    groups: WritableGroups,
    twins: Twins,
    /// Pages whose writes would be noted, but that have no twins. So their first write faults. None
    /// of them is writable, and none was written since it was fetched.
    guards: Guards,
    /// Copies of pages that are not in use, so that a merge allocates nothing.
    spare: Vec<Box<PageBytes>>,
    notes_writes: bool,
    /// The page behind the last one that was ever accessible.
    end: usize,
    written: Vec<Range<usize>>,
    /// How often a page changed its access.
    changes: u64,
    error: Option<ViewError>,
}

impl Memory {
    pub(crate) fn new(pages: Arc<Pages>) -> Result<Self, ViewError> {
        let count = pages.count();
        let notes_writes = notes_writes(&pages)?;
        Ok(Self {
            pages,
            access: vec![Access::None; count],
            groups: WritableGroups::new(count),
            twins: Twins::new(count),
            guards: Guards::default(),
            spare: Vec::new(),
            notes_writes,
            end: 0,
            written: Vec::new(),
            changes: 0,
            error: None,
        })
    }

    /// Returns whether writes to readable pages are noted instead of causing faults.
    pub(crate) const fn notes_writes(&self) -> bool {
        self.notes_writes
    }

    /// Returns the first byte of the frames.
    pub(crate) fn frames(&self) -> *mut u8 {
        self.pages.frames()
    }

    /// Returns the length of the region in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// Returns whether a change of pages had an error that was not taken yet.
    pub(crate) const fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the error that a change of pages had, once.
    pub(crate) fn take_error(&mut self) -> Option<ViewError> {
        self.error.take()
    }

    /// Returns how often a page changed its access.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Maps pages again. The kernel may have taken some out of the view, or a scan may have protected
    /// them, although the machine permits the access to each of them.
    pub(crate) fn map_again(&mut self, pages: Range<usize>, access: Access) {
        if access != Access::None {
            self.map(pages, access);
        }
    }

    /// Takes a page out of the view, until its next fault maps it again. What the application may do
    /// with the page does not change.
    pub(crate) fn hide(&mut self, page: PageNumber) {
        let hidden = self.pages.unmap(page.index()..page.index() + 1);
        self.note(hidden);
    }

    fn map(&mut self, pages: Range<usize>, access: Access) {
        let view_access = match access {
            Access::Write => {
                while let Some(guarded) = self.guards.overlapping(&pages) {
                    self.end_guard(guarded.start);
                }
                page_faults::Access::Write
            }
            Access::None | Access::Read => page_faults::Access::Read,
        };
        let mapped = self.pages.map(pages.clone(), view_access);
        self.note(mapped);
        self.end = self.end.max(pages.end);
        for page in pages {
            self.set(PageNumber(page as u32), access);
        }
    }

    /// Guards pages that have just been fetched and are still absent. Returns false if they need
    /// twins instead.
    fn begin_guard(&mut self, pages: &Range<usize>) -> bool {
        if self.guards.of(pages.start).is_some_and(|guard| pages.end <= guard.end) {
            return true;
        }
        if !self.guards.have_room_for(pages) {
            return false;
        }
        while let Some(other) = self.guards.overlapping(pages) {
            self.end_guard(other.start);
        }
        pages.clone().for_each(|page| self.twins.remove(page));
        match self.pages.guard(pages.clone()) {
            Ok(true) => {
                self.guards.add(pages.clone());
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.note(Err(error));
                false
            }
        }
    }

    /// Ends the guard of a page and of those with which it was guarded. They get their twins now.
    fn end_guard(&mut self, page: usize) {
        let Some(pages) = self.guards.of(page) else { return };
        self.guards.remove(pages.start);
        for page in pages.clone() {
            if self.access.get(page) == Some(&Access::Read) {
                self.copy_to_twin(page);
            }
        }
        let ended = self.pages.unguard(pages);
        self.note(ended);
    }

    fn copy_to_twin(&mut self, page: usize) {
        let frame = self.frame(PageNumber(page as u32));
        if let Some((twin, frame)) = self.twins.make(page).zip(frame) {
            // SAFETY: the frame is a page of the mapping.
            unsafe { words::load_page(frame, twin) };
        }
    }

    fn set(&mut self, page: PageNumber, access: Access) {
        let Some(place) = self.access.get_mut(page.index()) else { return };
        let former = std::mem::replace(place, access);
        self.groups.set(page.index(), former == Access::Write, access == Access::Write);
    }

    fn note(&mut self, outcome: Result<(), ViewError>) {
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
    }

    fn frame(&self, page: PageNumber) -> Option<*mut u8> {
        let start = page.index() * PAGE_BYTES;
        // The addition stays inside of the mapping, because the page is one of the region.
        (start < self.bytes()).then(|| self.frames().wrapping_add(start))
    }

    fn read_frame(&self, page: PageNumber, bytes: &mut PageBytes) {
        if let Some(frame) = self.frame(page) {
            // SAFETY: the frame is a page of the mapping.
            unsafe { words::load_page(frame, bytes) };
        }
    }
}

impl dsm_protocol::Pages for Memory {
    fn notes_writes(&self) -> bool {
        self.notes_writes
    }

    /// Skips groups of writable pages. With synchronous write protection, skips all writable pages:
    /// one of them may be pinned, and a system call that writes to a protected page fails.
    fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        let mut written = std::mem::take(&mut self.written);
        let skips_pages = self.pages.method() == Method::Synchronous;
        for range in self.groups.to_scan(self.end) {
            let mut start = range.start;
            let accesses = self.access.get(range).unwrap_or_default();
            let is_skipped = |access: &Access| skips_pages && *access == Access::Write;
            for run in accesses.chunk_by(|one, next| is_skipped(one) == is_skipped(next)) {
                let scanned = start..start + run.len();
                start = scanned.end;
                if run.first().is_some_and(is_skipped) {
                    continue;
                }
                if let Err(error) = self.pages.take_written(scanned, &mut written) {
                    self.error.get_or_insert(error);
                }
            }
        }
        for page in written.drain(..).flatten() {
            let page = PageNumber(page as u32);
            self.set(page, Access::Read);
            pages.push(page);
        }
        self.written = written;
    }

    fn protect(&mut self, page: PageNumber, access: Access) {
        let Some(&now) = self.access.get(page.index()) else { return };
        self.changes += 1;
        let range = page.index()..page.index() + 1;
        match (now, access) {
            (Access::None, Access::None) | (Access::Read, Access::Read) => {}
            (_, Access::None) => {
                let unmapped = self.pages.unmap(range);
                self.note(unmapped);
                self.set(page, Access::None);
            }
            (Access::Write, Access::Read) => {
                let mut written = std::mem::take(&mut self.written);
                let taken = self.pages.take_written(range, &mut written);
                self.note(taken);
                written.clear();
                self.written = written;
                self.set(page, Access::Read);
            }
            (Access::None, Access::Read) | (_, Access::Write) => self.map(range, access),
        }
    }

    /// Maps the pages by one system call. Many pages are guarded instead of getting twins: most pages
    /// that are fetched together are only read, and the twin of a page takes longer to make than the
    /// page takes to arrive.
    fn permit_reads(&mut self, first: PageNumber, count: u32) {
        let range = first.index()..first.index() + count as usize;
        let are_absent = self
            .access
            .get(range.clone())
            .is_some_and(|run| run.iter().all(|access| *access == Access::None));
        if !are_absent {
            for page in (first.0..first.0.saturating_add(count)).map(PageNumber) {
                if self.notes_writes {
                    self.make_twin(page);
                }
                self.protect(page, Access::Read);
            }
            return;
        }
        if self.notes_writes && !self.begin_guard(&range) {
            for page in range.clone() {
                self.end_guard(page);
                self.copy_to_twin(page);
            }
        }
        self.changes += u64::from(count);
        let mapped = self.pages.map(range.clone(), page_faults::Access::Read);
        self.note(mapped);
        self.end = self.end.max(range.end);
        for page in (first.0..first.0 + count).map(PageNumber) {
            self.set(page, Access::Read);
        }
    }

    fn clear(&mut self, page: PageNumber) {
        if let Some(frame) = self.frame(page) {
            // SAFETY: the frame is a page of the mapping.
            unsafe { words::clear_page(frame) };
        }
    }

    fn make_twin(&mut self, page: PageNumber) {
        self.end_guard(page.index());
        self.copy_to_twin(page.index());
    }

    fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap {
        let Some(frame) = self.frame(page) else { return Bitmap::EMPTY };
        let compared = self.twins.replace(page.index(), |now, twin| {
            // SAFETY: the frame is a page of the mapping.
            unsafe { words::load_page(frame, now) };
            compare(now, twin, words)
        });
        compared.unwrap_or(Bitmap::EMPTY)
    }

    fn drop_twin(&mut self, page: PageNumber) {
        self.twins.remove(page.index());
    }

    fn merge(&mut self, page: PageNumber, bytes: &PageBytes) {
        let Some(frame) = self.frame(page) else { return };
        let mut now = self.spare.pop().unwrap_or_else(new_page);
        self.read_frame(page, &mut now);
        let twin = self.twins.get_mut(page.index());
        let old = twin.as_deref().unwrap_or(&now);
        let pairs = now.as_chunks::<4>().0.iter().zip(old.as_chunks::<4>().0);
        for (word, ((now, old), new)) in pairs.zip(bytes.as_chunks::<4>().0).enumerate() {
            if now == old && now != new {
                // SAFETY: the frame is a page of the mapping, which has the word.
                unsafe { words::store_word(frame, word, *new) };
            }
        }
        if let Some(twin) = twin {
            *twin = *bytes;
        }
        self.spare.push(now);
    }
}

/// Returns whether writes to readable pages are noted: always with asynchronous write protection,
/// and with synchronous write protection before Linux 6.4. Tries it on the first page.
fn notes_writes(pages: &Pages) -> Result<bool, ViewError> {
    if pages.method() == Method::Asynchronous {
        return Ok(true);
    }
    let mut written = Vec::new();
    pages.map(0..1, page_faults::Access::Read)?;
    pages.take_written(0..1, &mut written)?;
    pages.unmap(0..1)?;
    Ok(!written.is_empty())
}

fn new_page() -> Box<PageBytes> {
    Box::new([0; PAGE_BYTES])
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::io::Read as _;

    use dsm_protocol::Pages as _;
    use page_faults::{PageFaults, PageView, ViewOptions};

    use super::*;
    use crate::writable_groups::GROUP_PAGES;

    struct NoFaults;

    impl PageFaults for NoFaults {
        fn on_fault(&self, _: &Pages, _: usize, _: page_faults::Access) -> bool {
            false
        }
    }

    /// Runs a test of four pages with each method that works here.
    fn with_each_method(test: impl Fn(Memory, *mut u32)) {
        with_pages(4, test);
    }

    fn with_pages(pages: usize, test: impl Fn(Memory, *mut u32)) {
        for method in Method::ALL {
            let options = ViewOptions { pages, address: None, method: Some(method) };
            match PageView::new(&options, NoFaults) {
                Ok(view) => {
                    let memory = Memory::new(Arc::clone(view.pages())).unwrap();
                    test(memory, view.pages().view().cast());
                }
                Err(error) => println!("skipped: {error}"),
            }
        }
    }

    const PAGE: PageNumber = PageNumber(1);

    fn write(view: *mut u32, word: usize, value: u32) {
        write_to(PAGE, view, word, value);
    }

    fn write_to(page: PageNumber, view: *mut u32, word: usize, value: u32) {
        // SAFETY: the word is in the view, and the page is accessible.
        unsafe { view.add(page.index() * PAGE_BYTES / 4 + word).write_volatile(value) };
    }

    #[test]
    fn a_diff_has_the_words_that_changed_since_the_twin_and_then_since_the_diff() {
        with_each_method(|mut memory, view| {
            memory.make_twin(PAGE);
            memory.protect(PAGE, Access::Write);
            write(view, 3, 7);
            write(view, 900, 8);
            let mut words = Vec::new();
            let found = memory.diff(PAGE, &mut words);
            assert!(found.words().eq([3, 900]));
            assert_eq!(words, [7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
            write(view, 4, 9);
            words.clear();
            assert!(memory.diff(PAGE, &mut words).words().eq([4]));
        });
    }

    #[test]
    fn system_calls_write_to_a_writable_page_after_a_scan() {
        with_each_method(|mut memory, view| {
            if memory.pages.method() == Method::Protection {
                // No page is scanned with this method.
                return;
            }
            for page in [0, 2, 3] {
                memory.protect(PageNumber(page), Access::Read);
            }
            memory.protect(PAGE, Access::Write);
            memory.take_written(&mut Vec::new());
            // SAFETY: the page is in the view, which lives as long as `memory`.
            let page = unsafe { std::slice::from_raw_parts_mut(view.add(1024).cast(), PAGE_BYTES) };
            let read = std::fs::File::open("/dev/zero").and_then(|mut file| file.read_exact(page));
            assert!(read.is_ok(), "{}: {read:?}", memory.pages.method());
            assert!(memory.take_error().is_none());
        });
    }

    #[test]
    fn reads_of_several_pages_are_permitted_at_once_and_their_writes_are_seen() {
        with_each_method(|mut memory, view| {
            memory.protect(PageNumber(2), Access::Write);
            write_to(PageNumber(2), view, 3, 7);
            let before = memory.changes();
            // Page 2 stays as it is, the others are absent.
            memory.permit_reads(PageNumber(0), 2);
            memory.permit_reads(PageNumber(2), 2);
            assert!(memory.changes() > before);
            let read = |page: usize| {
                // SAFETY: the word is in the view, and the page is accessible.
                unsafe { view.add(page * PAGE_BYTES / 4 + 3).read_volatile() }
            };
            assert_eq!([0, 1, 2, 3].map(read), [0, 0, 7, 0]);
            assert_eq!(memory.access, [Access::Read; 4]);
            let mut written = Vec::new();
            if memory.notes_writes() {
                memory.take_written(&mut written);
                written.clear();
                write_to(PageNumber(1), view, 0, 1);
                memory.take_written(&mut written);
                assert_eq!(written, [PageNumber(1)]);
            }
            assert!(memory.take_error().is_none());
        });
    }

    #[test]
    fn pages_that_are_fetched_together_get_their_twins_at_the_first_write_to_one_of_them() {
        with_pages(64, |mut memory, view| {
            if !memory.notes_writes() {
                return;
            }
            let frame = |memory: &Memory, page: u32, value: u32| {
                let frame = memory.frame(PageNumber(page)).unwrap();
                // SAFETY: the frame is a page of the mapping, which has the word.
                unsafe { words::store_word(frame, 3, value.to_ne_bytes()) };
            };
            (8..40).for_each(|page| frame(&memory, page, page));
            memory.permit_reads(PageNumber(8), 32);
            assert!((8..40).all(|page| memory.twins.get_mut(page).is_none()));
            // A notice makes two pages absent. They have no changes, and one of them is fetched again.
            let mut words = Vec::new();
            for page in [20, 21].map(PageNumber) {
                memory.protect(page, Access::None);
                assert!(memory.diff(page, &mut words).is_empty());
                memory.drop_twin(page);
            }
            frame(&memory, 20, 99);
            memory.permit_reads(PageNumber(20), 1);
            assert!(memory.twins.get_mut(20).is_none());
            // What a fault of a write does, and a write that is noted.
            memory.protect(PageNumber(9), Access::Write);
            write_to(PageNumber(9), view, 3, 1000);
            write_to(PageNumber(10), view, 3, 1001);
            write_to(PageNumber(20), view, 4, 1002);
            let mut written = Vec::new();
            memory.take_written(&mut written);
            written.sort_unstable();
            assert_eq!(written, [9, 10, 20].map(PageNumber));
            let mut changes = |page| {
                words.clear();
                memory.diff(PageNumber(page), &mut words).words().collect::<Vec<_>>()
            };
            assert_eq!([9, 10, 20, 11].map(&mut changes), [vec![3], vec![3], vec![4], vec![]]);
            assert!(memory.take_error().is_none());
        });
    }

    #[test]
    fn a_guard_covers_pages_that_are_fetched_again_in_another_run() {
        with_pages(128, |mut memory, view| {
            memory.permit_reads(PageNumber(0), 64);
            for page in (16..80).map(PageNumber) {
                memory.protect(page, Access::None);
                memory.drop_twin(page);
            }
            memory.permit_reads(PageNumber(16), 16);
            memory.permit_reads(PageNumber(48), 32);
            if memory.notes_writes() {
                assert_eq!(memory.guards.of(47), None);
                assert_eq!(memory.guards.of(79), Some(48..80));
            }
            for page in [0, 31, 48, 79].map(PageNumber) {
                memory.protect(page, Access::Write);
                write_to(page, view, 5, page.0 + 1);
                if !memory.notes_writes() {
                    continue;
                }
                let mut words = Vec::new();
                assert!(memory.diff(page, &mut words).words().eq([5]), "{page:?}");
            }
            assert!(memory.take_error().is_none());
        });
    }

    /// Returns the nanoseconds for each of `pages` pages: finding and encoding the changes of words
    /// for which `is_changed` returns true, and copying a page.
    #[expect(clippy::disallowed_methods, reason = "measures")]
    fn cost_of_changes(pages: u32, is_changed: fn(usize) -> bool) -> (f64, f64) {
        use std::time::Instant;

        let options =
            ViewOptions { pages: pages as usize, address: None, method: Some(Method::Protection) };
        let view = PageView::new(&options, NoFaults).unwrap();
        let mut memory = Memory::new(Arc::clone(view.pages())).unwrap();
        (0..pages).for_each(|page| memory.make_twin(PageNumber(page)));
        let mut copies = vec![[0_u8; PAGE_BYTES]; pages as usize];
        let (mut words, mut payload) = (Vec::new(), Vec::new());
        let (mut found, mut copied) = (Vec::new(), Vec::new());
        let rounds = if pages > 64 { 30 } else { 3000 };
        for round in 0..rounds {
            for page in (0..pages).map(PageNumber) {
                for word in (0..PAGE_BYTES / 4).filter(|word| is_changed(*word)) {
                    let frame = memory.frame(page).unwrap();
                    // SAFETY: the frame is a page of the mapping, which has the word.
                    unsafe { words::store_word(frame, word, u32::to_ne_bytes(round + 1)) };
                }
            }
            let begin = Instant::now();
            for page in (0..pages).map(PageNumber) {
                words.clear();
                payload.clear();
                let bitmap = memory.diff(page, &mut words);
                dsm_protocol::diff::encode(&bitmap, &words, &mut payload);
                std::hint::black_box(&payload);
            }
            found.push(begin.elapsed().as_nanos() as f64 / f64::from(pages));
            let begin = Instant::now();
            for (page, copy) in (0..pages).map(PageNumber).zip(&mut copies) {
                let frame = memory.frame(page).unwrap();
                // SAFETY: the frame is a page of the mapping, and nothing writes it meanwhile.
                unsafe { frame.copy_to_nonoverlapping(copy.as_mut_ptr(), PAGE_BYTES) };
                std::hint::black_box(&copy);
            }
            copied.push(begin.elapsed().as_nanos() as f64 / f64::from(pages));
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        (median(found), median(copied))
    }

    #[test]
    #[ignore = "slow: run by `./x acceptance dsm`; measures"]
    fn finding_and_encoding_changes_against_copying() {
        type Pattern = (&'static str, fn(usize) -> bool);
        let patterns: [Pattern; 3] = [
            ("one word", |word| word == 500),
            ("every second word", |word| word % 2 == 0),
            ("all words", |_| true),
        ];
        for (pages, set) in [(4, "in the cache"), (4096, "of 16 MiB")] {
            for (name, is_changed) in patterns {
                let (found, copied) = cost_of_changes(pages, is_changed);
                println!("pages {set}, {name}: {found:.0} ns, a copy {copied:.0} ns");
                println!("figure: changes of a page {set} against a copy: {:.3}", found / copied);
            }
        }
    }

    #[test]
    fn noted_writes_are_reported_once() {
        with_each_method(|mut memory, view| {
            if !memory.notes_writes() {
                return;
            }
            memory.make_twin(PAGE);
            memory.protect(PAGE, Access::Read);
            write(view, 0, 1);
            let mut pages = Vec::new();
            memory.take_written(&mut pages);
            assert_eq!(pages, [PAGE]);
            pages.clear();
            memory.take_written(&mut pages);
            assert_eq!(pages, []);
        });
    }

    #[test]
    fn a_scan_skips_groups_of_writable_pages_and_no_other_page() {
        let count = 3 * GROUP_PAGES + 1;
        let number = |page: usize| PageNumber(page as u32);
        let all = 0..count;
        for (writable, skipped) in [
            (all.clone(), 0..3 * GROUP_PAGES),
            (GROUP_PAGES..3 * GROUP_PAGES, GROUP_PAGES..3 * GROUP_PAGES),
            (1..2 * GROUP_PAGES, GROUP_PAGES..2 * GROUP_PAGES),
            (1..GROUP_PAGES, 0..0),
        ] {
            with_pages(count, |mut memory, view| {
                if !memory.notes_writes() {
                    return;
                }
                for page in all.clone() {
                    let is_writable = writable.contains(&page);
                    let access = if is_writable { Access::Write } else { Access::Read };
                    memory.protect(number(page), access);
                    write_to(number(page), view, 0, 1);
                }
                let mut pages = Vec::new();
                memory.take_written(&mut pages);
                let reported = all.clone().filter(|page| !skipped.contains(page));
                assert_eq!(pages, reported.map(number).collect::<Vec<_>>(), "{writable:?}");
                // A page that becomes readable is reported after its next write, and with it the
                // other pages of its group, whose writes may have been noted.
                let again = number(GROUP_PAGES + 1);
                memory.protect(again, Access::Read);
                write_to(again, view, 0, 2);
                pages.clear();
                memory.take_written(&mut pages);
                assert!(pages.contains(&again), "{writable:?}");
            });
        }
    }

    #[test]
    fn a_merge_keeps_own_changes_and_takes_the_others() {
        with_each_method(|mut memory, view| {
            memory.make_twin(PAGE);
            memory.protect(PAGE, Access::Write);
            write(view, 1, 5);
            let mut bytes = [0; PAGE_BYTES];
            bytes[4..8].copy_from_slice(&6_u32.to_ne_bytes());
            bytes[8..12].copy_from_slice(&7_u32.to_ne_bytes());
            memory.merge(PAGE, &bytes);
            let mut now = [0; PAGE_BYTES];
            memory.read_frame(PAGE, &mut now);
            assert_eq!(now[4..12], [5_u32.to_ne_bytes(), 7_u32.to_ne_bytes()].concat());
            // What the application has changed differs from the new twin.
            let mut words = Vec::new();
            assert!(memory.diff(PAGE, &mut words).words().eq([1]));
        });
    }
}
