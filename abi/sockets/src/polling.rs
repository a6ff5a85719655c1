//! Handles `poll` and similar calls.

use std::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use sockets::Hiding;

use crate::connection_table;
use crate::handling::with_other_mask;
use crate::hidden::Found;
use crate::next::{call_next, fail, interpose};
use crate::table::{self, Kind};
use crate::waiting::{
    Awaited, MARKER_SLICE, UNDECIDED_SLICE, beside_kernel, of_milliseconds, of_time, wait,
};

interpose! {
    poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int,
        else -1, if connection_table::has_any(), by polled(list, count, of_milliseconds(limit));
    __poll_chk(list: *mut pollfd, count: nfds_t, limit: c_int, room: size_t) -> c_int,
        else -1, if connection_table::has_any() && is_within(count, room),
        by polled(list, count, of_milliseconds(limit));
    ppoll(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int,
        else -1, if connection_table::has_any(), by polled_masked(list, count, limit, mask);
    __ppoll_chk(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t,
        room: size_t) -> c_int,
        else -1, if connection_table::has_any() && is_within(count, room),
        by polled_masked(list, count, limit, mask);
}

fn is_within(count: nfds_t, room: size_t) -> bool {
    room / size_of::<pollfd>() >= count as usize
}

/// # Safety
/// The arguments must satisfy the contract of the C function `poll`.
unsafe fn polled(list: *mut pollfd, count: nfds_t, limit: Option<Duration>) -> Option<c_int> {
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let entries = unsafe { std::slice::from_raw_parts_mut(list, count as usize) };
    if !entries.iter().any(|entry| is_ours(entry.fd)) {
        return None;
    }
    let _on_trial = beside_kernel(entries.iter().map(|entry| entry.fd))?;
    let mut wanted = entries.to_vec();
    let numbers: Vec<_> = wanted.iter().map(|entry| (entry.fd, entry.events)).collect();
    let awaited = || numbers.iter().filter_map(|&(fd, events)| Awaited::of(fd, events)).collect();
    let look = || {
        let hiding = Hiding::begin();
        let list = entries.as_mut_ptr();
        let limit: c_int = 0;
        let found =
            call_next!(poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int, else -1);
        Found::of_entries(found, entries, hiding)
    };
    Some(wait(limit, &mut wanted, awaited, look))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `ppoll`.
unsafe fn polled_masked(
    list: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the caller passes null or a valid pointer.
    let limit = match unsafe { limit.as_ref() }.map(|time| of_time(time.tv_sec, time.tv_nsec)) {
        None => None,
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => return Some(fail(error as c_int, -1)),
    };
    if mask.is_null() {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        return unsafe { polled(list, count, limit) };
    }
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let entries = unsafe { std::slice::from_raw_parts_mut(list, count as usize) };
    if !entries.iter().any(|entry| is_ours(entry.fd)) {
        return None;
    }
    let _on_trial = beside_kernel(entries.iter().map(|entry| entry.fd))?;
    // Let the kernel wait, because only the kernel can change the signal mask and begin the wait in
    // one atomic step.
    Some(masked(limit, mask, |slice| {
        for entry in &*entries {
            drop(Awaited::of(entry.fd, entry.events));
        }
        let hiding = Hiding::begin();
        let list = entries.as_mut_ptr();
        let slice = time_of(slice);
        let limit = &raw const slice;
        let found = call_next!(
            ppoll(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t)
                -> c_int,
            else -1
        );
        Found::of_entries(found, entries, hiding)
    }))
}

/// Lets the kernel wait with another signal mask. Waits in time slices, because connections may
/// move in the meantime, and the kernel's wait would not notice this.
pub(crate) fn masked(
    limit: Option<Duration>,
    mask: *const sigset_t,
    by: impl FnMut(Duration) -> Found,
) -> c_int {
    with_other_mask(|| in_slices(limit, mask, by))
}

fn in_slices(
    limit: Option<Duration>,
    mask: *const sigset_t,
    mut by: impl FnMut(Duration) -> Found,
) -> c_int {
    if let Some(sockets) = crate::instance::started() {
        sockets.drive();
    }
    let mut rest = limit;
    loop {
        let mut slice = rest.map_or(UNDECIDED_SLICE, |rest| rest.min(UNDECIDED_SLICE));
        let found = by(slice);
        if found.count != 0 {
            return found.count;
        }
        if found.is_all_hidden() {
            slice = slice.min(MARKER_SLICE);
            let time = time_of(slice);
            // SAFETY: there are no entries, and `time` is valid during the call. The caller
            // guarantees that `mask` is null or valid.
            let slept = unsafe { libc::ppoll(std::ptr::null_mut(), 0, &raw const time, mask) };
            if slept < 0 {
                return slept;
            }
        }
        rest = rest.map(|rest| rest.saturating_sub(slice));
        if rest == Some(Duration::ZERO) {
            return 0;
        }
    }
}

/// Converts a duration to a `timespec`.
pub(crate) fn time_of(limit: Duration) -> timespec {
    timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}

/// Returns true if a wait for this number may be a wait for bytes from the edge.
pub(crate) fn is_ours(fd: c_int) -> bool {
    matches!(table::kind(fd), Kind::Socket | Kind::Epoll)
}
