//! Tests the groups on simulated hosts, whose kernels are slower or faster against their memory than
//! that of the host on which the costs were first measured: by a factor of 4 at most.

use std::slice;

use super::*;

/// Pages of the region.
const PAGES: usize = 4096;

/// Costs on a host, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// To scan another range: two system calls.
    range: u64,
    /// To fault at a write to a page that a scan has protected.
    fault: u64,
}

/// To scan a page.
const SCAN_NS: u64 = 20;

/// To write all bytes of a page, at 4 bytes a nanosecond.
const WRITE_NS: u64 = 1000;

fn hosts() -> [Host; 5] {
    [1, 2, 4, 8, 16].map(|quarters| {
        let of = |ns: u64| ns * quarters / 4;
        Host { range: of(1000), fault: of(500) }
    })
}

/// Returns the cost of a scan of a region with these writable pages, and of the faults that it
/// causes if the program then writes `rewritten` again.
fn cost(
    host: Host,
    group_pages: usize,
    writable: &[Range<usize>],
    rewritten: &Range<usize>,
) -> u64 {
    let mut groups = WritableGroups::of(PAGES, group_pages);
    for page in writable.iter().cloned().flatten() {
        groups.set(page, false, true);
    }
    let scanned: Vec<_> = groups.to_scan(PAGES).collect();
    let is_scanned = |page: &usize| scanned.iter().any(|range| range.contains(page));
    let pages: usize = scanned.iter().map(ExactSizeIterator::len).sum();
    let faults = rewritten.clone().filter(is_scanned).count();
    host.range * scanned.len() as u64 + SCAN_NS * pages as u64 + host.fault * faults as u64
}

/// A program that writes 1000 pages between two barriers, which begin at any page. Scans and faults
/// cost at most a third of the time of the writes.
fn suits_a_run(host: Host, group_pages: usize) -> bool {
    (1000..1064).all(|first| {
        let run = first..first + 1000;
        3 * cost(host, group_pages, slice::from_ref(&run), &run) <= 1000 * WRITE_NS
    })
}

/// A program with 8 writable pages after 8 readable ones, and so on, which writes few of them. A scan
/// costs at most twice as much as one of the whole region that skips nothing.
fn suits_scattered_pages(host: Host, group_pages: usize) -> bool {
    let runs: Vec<_> = (0..PAGES).step_by(16).map(|first| first + 8..first + 16).collect();
    let rewritten = 8..16;
    cost(host, group_pages, &runs, &rewritten) <= 2 * cost(host, PAGES, &runs, &rewritten)
}

#[test]
fn the_chosen_groups_suit_runs_and_scattered_pages_on_every_host() {
    for host in hosts() {
        assert!(suits_a_run(host, GROUP_PAGES), "{host:?}");
        assert!(suits_scattered_pages(host, GROUP_PAGES), "{host:?}");
    }
}

#[test]
fn without_skipping_or_with_larger_groups_runs_cost_too_much() {
    for group_pages in [PAGES, 16 * GROUP_PAGES] {
        assert!(!hosts().into_iter().all(|host| suits_a_run(host, group_pages)), "{group_pages}");
    }
}

#[test]
fn without_groups_or_with_smaller_ones_scattered_pages_cost_too_much() {
    for group_pages in [1, GROUP_PAGES / 16] {
        let suits = |host| suits_scattered_pages(host, group_pages);
        assert!(!hosts().into_iter().all(suits), "{group_pages}");
    }
}
