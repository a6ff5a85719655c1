use std::collections::BTreeSet;
use std::io::Read as _;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::options::Method;

/// Runs a test with each method. A method that does not work here is skipped with a line.
fn with_each_method(test: impl Fn(Method)) {
    for method in Method::ALL {
        match method.check() {
            Ok(()) => test(method),
            Err(error) => println!("skipped: {error}"),
        }
    }
}

/// Maps pages as the access needs, and notes the faults.
#[derive(Default)]
struct Noting {
    faults: Mutex<Vec<(usize, Access)>>,
}

impl PageFaults for Arc<Noting> {
    fn on_fault(&self, pages: &Pages, page: usize, access: Access) -> bool {
        self.faults.lock().unwrap().push((page, access));
        if pages.is_guarded(page) {
            pages.unguard(page..page + 1).unwrap();
        }
        pages.map(page..page + 1, access).is_ok()
    }
}

/// A view whose faults are noted.
struct Noted {
    view: PageView,
    noting: Arc<Noting>,
}

impl Noted {
    fn new(method: Method, pages: usize) -> Self {
        let noting = Arc::new(Noting::default());
        let options = ViewOptions { pages, address: None, method: Some(method) };
        let view = PageView::new(&options, Arc::clone(&noting)).expect("the method works here");
        Self { view, noting }
    }

    fn pages(&self) -> &Pages {
        self.view.pages()
    }

    fn take_faults(&self) -> Vec<(usize, Access)> {
        std::mem::take(&mut *self.noting.faults.lock().unwrap())
    }

    fn take_written(&self) -> Vec<usize> {
        let mut written = Vec::new();
        self.pages().take_written(0..self.pages().count(), &mut written).unwrap();
        written.into_iter().flatten().collect()
    }

    fn word(&self, page: usize) -> *mut u32 {
        let address = self.pages().view().expose_provenance() + page * PAGE_BYTES + 8;
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn read(&self, page: usize) -> u32 {
        // SAFETY: the word is in the view, whose faults are handled.
        unsafe { self.word(page).read_volatile() }
    }

    fn write(&self, page: usize, value: u32) {
        // SAFETY: as for `read`.
        unsafe { self.word(page).write_volatile(value) }
    }

    /// The word as the owner of the memory has it.
    fn word_in_frame(&self, page: usize) -> *mut u32 {
        let address = self.pages().frames().expose_provenance() + page * PAGE_BYTES + 8;
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn in_frame(&self, page: usize) -> u32 {
        // SAFETY: the word is in the frames.
        unsafe { self.word_in_frame(page).read_volatile() }
    }

    fn set_in_frame(&self, page: usize, value: u32) {
        // SAFETY: the word is in the frames.
        unsafe { self.word_in_frame(page).write_volatile(value) };
    }
}

#[test]
fn an_access_to_an_absent_page_faults_once() {
    with_each_method(|method| {
        let noted = Noted::new(method, 3);
        noted.set_in_frame(1, 7);
        assert_eq!(noted.read(1), 7, "{method}");
        assert_eq!(noted.read(1), 7);
        noted.write(2, 9);
        noted.write(2, 10);
        assert_eq!(noted.in_frame(2), 10);
        assert_eq!(noted.take_faults(), [(1, Access::Read), (2, Access::Write)], "{method}");
    });
}

#[test]
fn pages_that_the_file_does_not_have_yet_fault_as_others_do() {
    with_each_method(|method| {
        let noted = Noted::new(method, 2);
        assert_eq!(noted.read(1), 0);
        assert_eq!(noted.take_faults(), [(1, Access::Read)], "{method}");
    });
}

#[test]
fn a_write_to_a_readable_page_is_seen() {
    with_each_method(|method| {
        let noted = Noted::new(method, 4);
        noted.pages().map(0..4, Access::Read).unwrap();
        noted.take_written();
        noted.write(2, 5);
        let faults = noted.take_faults();
        let expected: &[_] = if method.reports_writes() { &[(2, Access::Write)] } else { &[] };
        assert_eq!(faults, expected, "{method}");
        assert_eq!(noted.take_written(), [2], "{method}");
        assert_eq!(noted.take_written(), [0; 0], "{method}: seen once");
        noted.write(2, 6);
        assert_eq!(noted.take_written(), [2], "{method}: and seen again");
        assert_eq!(noted.in_frame(2), 6);
    });
}

#[test]
fn frames_that_are_written_by_a_system_call_have_their_bytes() {
    with_each_method(|method| {
        let noted = Noted::new(method, 4);
        noted.set_in_frame(2, 1);
        let bytes: Vec<u8> =
            [7_u32, 8].iter().flat_map(|word| word.to_ne_bytes().repeat(1024)).collect();
        // SAFETY: the bytes are those of two pages.
        unsafe { noted.pages().write_frames(1..3, bytes.as_ptr()).unwrap() };
        assert_eq!([0, 1, 2, 3].map(|page| noted.in_frame(page)), [0, 7, 8, 0]);
        assert_eq!([noted.read(1), noted.read(2)], [7, 8], "{method}");
        // SAFETY: as above.
        let outside = unsafe { noted.pages().write_frames(3..5, bytes.as_ptr()) };
        assert!(outside.is_err());
    });
}

#[test]
fn a_write_to_a_guarded_page_faults_and_is_seen_as_before_without_the_guard() {
    with_each_method(|method| {
        let noted = Noted::new(method, 6);
        let pages = noted.pages();
        assert!(pages.guard(1..4).unwrap());
        assert_eq!(pages.missing(), None, "{method}");
        pages.map(0..6, Access::Read).unwrap();
        noted.take_written();
        assert_eq!((noted.read(1), noted.read(3)), (0, 0));
        pages.unguard(3..4).unwrap();
        assert_eq!(noted.take_faults(), [], "{method}");
        noted.write(2, 5);
        assert_eq!(noted.take_faults(), [(2, Access::Write)], "{method}");
        assert_eq!((noted.read(2), noted.in_frame(2)), (5, 5));
        noted.write(3, 6);
        noted.write(4, 7);
        assert_eq!(noted.take_written(), [2, 3, 4], "{method}");
        assert_eq!(pages.missing(), None, "{method}");
    });
}

#[test]
fn pages_that_the_kernel_has_taken_out_of_the_view_are_mapped_again_with_their_neighbours() {
    with_each_method(|method| {
        let noted = Noted::new(method, 9);
        for access in [Access::Read, Access::Write] {
            noted.pages().map(0..8, access).unwrap();
            for taken in [0..1, 3..5, 7..8] {
                let start = noted.word(taken.start).addr() - 8;
                kernel::forget(start..start + taken.len() * PAGE_BYTES).unwrap();
            }
            noted.pages().map(0..9, access).unwrap();
            for page in 0..9 {
                let word = noted.read(page);
                if access == Access::Write {
                    noted.write(page, word + 1);
                }
            }
            assert_eq!(noted.take_faults(), [], "{method}, {access:?}");
        }
        assert!((0..9).all(|page| noted.in_frame(page) == 1), "{method}");
        assert_eq!(noted.take_written(), [0, 1, 2, 3, 4, 5, 6, 7, 8], "{method}");
    });
}

/// A system call fails on a page that faults, so its success shows that the page is writable.
#[test]
fn system_calls_may_write_to_pages_that_were_readable_and_then_became_writable() {
    with_each_method(|method| {
        let options = ViewOptions { pages: 3, address: None, method: Some(method) };
        for is_old in [false, true] {
            let pages = Pages::new(&options).expect("the method works here");
            let pages = if is_old { pages.without_protected_maps() } else { pages };
            pages.map(0..3, Access::Write).unwrap();
            pages.take_written(0..3, &mut Vec::new()).unwrap();
            for again in [Access::Read, Access::Read, Access::Write] {
                pages.map(0..3, again).unwrap();
            }
            // SAFETY: the memory is mapped as long as `pages` lives.
            let view = unsafe { std::slice::from_raw_parts_mut(pages.view(), pages.bytes()) };
            let read = std::fs::File::open("/dev/zero").and_then(|mut file| file.read_exact(view));
            assert!(read.is_ok(), "{method}, before Linux 6.4: {is_old}: {read:?}");
        }
    });
}

/// Replaces memory by memory without rights. Unmapped addresses could get memory of another test.
fn replace(addresses: &Range<usize>) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let start = std::ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: the addresses are those of a view of the test, which no thread accesses.
    let mapped = unsafe { libc::mmap(start, addresses.len(), libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
}

#[test]
fn changes_of_mappings_by_the_process_are_found() {
    with_each_method(|method| {
        let noted = Noted::new(method, 6);
        let pages = noted.pages();
        pages.map(2..5, Access::Write).unwrap();
        assert_eq!(pages.missing(), None, "{method}");
        let (view, frames) = (pages.view().expose_provenance(), pages.frames().expose_provenance());
        let at = |start: usize, first: usize, end: usize| {
            start + first * PAGE_BYTES..start + end * PAGE_BYTES
        };
        replace(&at(view, 4, 5));
        let missing = MissingMemory::View { addresses: at(view, 4, 5) };
        assert_eq!(pages.missing(), Some(missing.clone()), "{method}");
        if method != Method::Protection {
            // The other method takes any memory.
            let refused = pages.map(4..5, Access::Write);
            assert!(
                matches!(refused, Err(ViewError::Missing(found)) if found == missing),
                "{method}"
            );
        }
        replace(&at(frames, 1, 3));
        let (addresses, mapped) = (at(view, 1, 3), frames + PAGE_BYTES);
        assert_eq!(pages.missing(), Some(MissingMemory::Frames { addresses, mapped }), "{method}");
    });
}

#[test]
fn an_absent_page_faults_again_and_keeps_its_bytes() {
    with_each_method(|method| {
        let noted = Noted::new(method, 2);
        noted.write(0, 3);
        noted.pages().unmap(0..2).unwrap();
        noted.take_faults();
        assert_eq!(noted.read(0), 3);
        noted.pages().unmap(0..1).unwrap();
        noted.set_in_frame(0, 4);
        assert_eq!(noted.read(0), 4);
        assert_eq!(noted.take_faults(), [(0, Access::Read), (0, Access::Read)], "{method}");
    });
}

#[test]
fn pages_outside_the_view_are_refused() {
    with_each_method(|method| {
        let noted = Noted::new(method, 2);
        let refused = noted.pages().map(1..3, Access::Read);
        assert!(matches!(refused, Err(ViewError::Range { start: 1, end: 3, pages: 2 })));
        assert!(noted.pages().unmap(2..3).is_err());
        assert!(noted.pages().take_written(0..3, &mut Vec::new()).is_err());
    });
}

#[test]
fn a_view_gets_the_requested_address_and_never_one_that_is_used() {
    with_each_method(|method| {
        let used = Noted::new(method, 1);
        let taken = used.pages().view().addr();
        let options = |address| ViewOptions { pages: 1, address, method: Some(method) };
        let refused = Pages::new(&options(Some(taken)));
        assert!(matches!(refused, Err(ViewError::Address { address, .. }) if address == taken));
        let address = 0x2000_0000_0000 + (method as usize) * (1 << 30);
        let pages = Pages::new(&options(Some(address))).expect("no mapping is there");
        assert_eq!(pages.view().addr(), address);
    });
}

#[test]
fn a_view_without_pages_is_refused() {
    for pages in [0, usize::MAX] {
        let refused = Pages::new(&ViewOptions { pages, address: None, method: None });
        assert!(matches!(refused, Err(ViewError::Pages { .. })));
    }
}

#[test]
fn a_view_of_four_gibibytes_costs_nothing_for_pages_without_bytes() {
    with_each_method(|method| {
        let noted = Noted::new(method, 1 << 20);
        for page in [0, 4095, 4096, (1 << 20) - 1] {
            noted.write(page, 1);
        }
        assert_eq!(noted.take_written(), [0, 4095, 4096, (1 << 20) - 1], "{method}");
        assert_eq!(noted.take_written(), [0; 0], "{method}");
    });
}

/// Threads write to pages while another thread takes what was written. No write may be lost: its
/// page is reported after the write.
#[test]
fn no_write_is_lost_while_others_take_what_was_written() {
    const PAGES: usize = 16;
    const WRITERS: usize = 3;
    with_each_method(|method| {
        let noted = Noted::new(method, PAGES);
        let offset = |page: usize, writer: usize| page * PAGE_BYTES + 64 + writer * 4;
        let word = |base: usize, page, writer| -> *mut u32 {
            std::ptr::with_exposed_provenance_mut(base + offset(page, writer))
        };
        let view = noted.pages().view().expose_provenance();
        let frames = noted.pages().frames().expose_provenance();
        // SAFETY: the word is in the frames.
        let in_frame = |page, writer| unsafe { word(frames, page, writer).read_volatile() };
        let mut seen = [[0; WRITERS]; PAGES];
        let left = AtomicUsize::new(WRITERS);
        let mut look = || {
            for page in noted.take_written() {
                seen[page] = std::array::from_fn(|writer| in_frame(page, writer));
            }
        };
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let left = &left;
                scope.spawn(move || {
                    for round in 1..=300_u32 {
                        let page = (round as usize * 7 + writer * 5) % PAGES;
                        // SAFETY: the word is in the view, and only this thread writes it.
                        unsafe { word(view, page, writer).write_volatile(round) };
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                });
            }
            while left.load(Ordering::SeqCst) > 0 {
                look();
            }
            look();
        });
        for (page, seen) in seen.iter().enumerate() {
            let last: [u32; WRITERS] = std::array::from_fn(|writer| in_frame(page, writer));
            assert_eq!(*seen, last, "{method}: page {page}");
        }
    });
}

#[test]
fn threads_that_fault_at_the_same_page_all_go_on() {
    with_each_method(|method| {
        let noted = Noted::new(method, 64);
        let wrong = AtomicBool::new(false);
        for page in 0..64 {
            noted.set_in_frame(page, page as u32);
        }
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let is_right = (0..64).all(|page| noted.read(page) == page as u32);
                    wrong.fetch_or(!is_right, Ordering::SeqCst);
                });
            }
        });
        assert!(!wrong.load(Ordering::SeqCst));
        let pages: BTreeSet<usize> = noted.take_faults().iter().map(|&(page, _)| page).collect();
        assert_eq!(pages.len(), 64, "{method}");
    });
}

/// What may happen to a page.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(usize),
    Write(usize),
    Map(usize, usize, bool),
    Unmap(usize, usize),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..MODEL_PAGES;
    let range = (0..MODEL_PAGES, 1..=3_usize);
    prop_oneof![
        page.clone().prop_map(Step::Read),
        page.prop_map(Step::Write),
        (range.clone(), any::<bool>()).prop_map(|((at, count), write)| Step::Map(at, count, write)),
        range.prop_map(|(at, count)| Step::Unmap(at, count)),
        Just(Step::Take),
    ]
}

const MODEL_PAGES: usize = 6;

/// What a page of the model is.
#[derive(Clone, Copy, Debug, Default)]
struct ModelPage {
    is_mapped: bool,
    /// Written, or mapped as writable, since it was taken last.
    may_be_reported: bool,
    must_be_reported: bool,
    value: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_view_behaves_like_its_model(steps in prop::collection::vec(step(), 1..60)) {
        for method in Method::ALL.into_iter().filter(|method| method.check().is_ok()) {
            let noted = Noted::new(method, MODEL_PAGES);
            let mut model = [ModelPage::default(); MODEL_PAGES];
            for (number, &step) in steps.iter().enumerate() {
                apply(&noted, &mut model, step, number as u32 + 1)?;
            }
        }
    }
}

fn apply(
    noted: &Noted,
    model: &mut [ModelPage; MODEL_PAGES],
    step: Step,
    number: u32,
) -> Result<(), TestCaseError> {
    let method = noted.pages().method();
    let clip = |at: usize, count: usize| at..(at + count).min(MODEL_PAGES);
    match step {
        Step::Read(page) => {
            prop_assert_eq!(noted.read(page), model[page].value);
            let faults = noted.take_faults();
            prop_assert_eq!(faults.is_empty(), model[page].is_mapped, "{} {:?}", method, step);
            model[page].is_mapped = true;
        }
        Step::Write(page) => {
            noted.write(page, number);
            let faults = noted.take_faults();
            let wants_fault =
                !model[page].is_mapped || (method.reports_writes() && !model[page].may_be_reported);
            prop_assert_eq!(!faults.is_empty(), wants_fault, "{} {:?}", method, step);
            model[page] = ModelPage {
                is_mapped: true,
                may_be_reported: true,
                must_be_reported: true,
                value: number,
            };
        }
        Step::Map(at, count, write) => {
            let access = if write { Access::Write } else { Access::Read };
            noted.pages().map(clip(at, count), access).unwrap();
            for page in &mut model[clip(at, count)] {
                page.is_mapped = true;
                page.may_be_reported |= write;
            }
        }
        Step::Unmap(at, count) => {
            noted.pages().unmap(clip(at, count)).unwrap();
            for page in &mut model[clip(at, count)] {
                (page.is_mapped, page.may_be_reported, page.must_be_reported) =
                    (false, false, false);
            }
        }
        Step::Take => {
            let written = noted.take_written();
            for (at, page) in model.iter_mut().enumerate() {
                let is_reported = written.contains(&at);
                prop_assert!(is_reported || !page.must_be_reported, "{} page {}", method, at);
                prop_assert!(!is_reported || page.may_be_reported, "{} page {}", method, at);
                (page.may_be_reported, page.must_be_reported) = (false, false);
            }
        }
    }
    for (at, page) in model.iter().enumerate() {
        prop_assert_eq!(noted.in_frame(at), page.value);
    }
    Ok(())
}

#[test]
fn allocated_frames_are_in_memory_and_keep_their_bytes() {
    with_each_method(|method| {
        let noted = Noted::new(method, 6);
        let frames = noted.pages().frames();
        // SAFETY: the byte is in the mapping of the frames.
        unsafe { frames.add(2 * 4096).write_volatile(7) };
        noted.pages().allocate(1..5);
        noted.pages().allocate(4..9);
        let mut resident = [0; 6];
        // SAFETY: the mapping has these bytes, and the vector a byte for each page.
        let result = unsafe { libc::mincore(frames.cast(), 6 * 4096, resident.as_mut_ptr()) };
        assert_eq!(result, 0);
        assert_eq!(resident.map(|state| state & 1)[1..], [1, 1, 1, 1, 0], "{method}");
        // SAFETY: the byte is in the mapping of the frames.
        assert_eq!(unsafe { frames.add(2 * 4096).read_volatile() }, 7);
        assert_eq!(noted.take_faults(), []);
    });
}
