//! Costs of seeing accesses, against a fault that the kernel handles alone.

#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![expect(clippy::disallowed_methods, reason = "measures")]

use std::time::Instant;

use page_faults::{Access, Method, PageFaults, PageView, Pages, ViewOptions};

/// Makes pages writable.
struct Writable;

impl PageFaults for Writable {
    fn on_fault(&self, pages: &Pages, page: usize, _access: Access) -> bool {
        pages.map(page..page + 1, Access::Write).is_ok()
    }
}

const PAGES: usize = 8192;
const PAGE_BYTES: usize = 4096;
const ROUNDS: usize = 9;

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn first_writes_against_a_minor_fault() {
    for (method, name) in [
        (Method::Asynchronous, "asynchronous"),
        (Method::Synchronous, "synchronous"),
        (Method::Protection, "mprotect"),
    ] {
        if let Err(error) = method.check() {
            println!("skipped: {error}");
            continue;
        }
        let options = ViewOptions { pages: PAGES, address: None, method: Some(method) };
        let view = PageView::new(&options, Writable).expect("the method works here");
        let pages = view.pages();
        pages.map(0..PAGES, Access::Write).expect("the pages are in the view");
        let mut ratios: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let mut written = Vec::new();
                pages.take_written(0..PAGES, &mut written).expect("the pages are in the view");
                let seen = time_of_writes(pages.view());
                pages.take_written(0..PAGES, &mut written).expect("the pages are in the view");
                seen / time_of_minor_faults(pages.frames())
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (median, least, most) = (ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
        println!("{name}: {median:.2}, {least:.2} to {most:.2}");
        println!("figure: first write, {name}, against a minor fault: {median:.3}");
    }
}

/// Returns the nanoseconds of one write to each page.
fn time_of_writes(start: *mut u8) -> f64 {
    let begin = Instant::now();
    for page in 0..PAGES {
        // SAFETY: the page is in a mapping of the view, whose faults are handled.
        unsafe { start.add(page * PAGE_BYTES).write_volatile(1) };
    }
    begin.elapsed().as_nanos() as f64
}

/// Returns the nanoseconds of one write to each page after the kernel has forgotten where the pages
/// are mapped. The pages stay in memory, so each write costs one minor fault.
fn time_of_minor_faults(start: *mut u8) -> f64 {
    // SAFETY: the range is the shared mapping of the frames, whose bytes stay in the file.
    let result = unsafe { libc::madvise(start.cast(), PAGES * PAGE_BYTES, libc::MADV_DONTNEED) };
    assert_eq!(result, 0, "the kernel forgets the mappings of shared pages");
    time_of_writes(start)
}
