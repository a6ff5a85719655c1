//! Handles `select` and similar calls.

use std::time::Duration;

use libc::{c_int, fd_set, pollfd, sigset_t, timespec, timeval};
use sockets::Hiding;

use crate::connection_table;
use crate::hidden::Found;
use crate::next::{call_next, fail, interpose};
use crate::polling::{is_ours, masked, time_of};
use crate::waiting::{Awaited, beside_kernel, of_time, wait};

interpose! {
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        limit: *mut timeval) -> c_int,
        else -1, if connection_table::has_any(), by selected(count, [read, write, other], limit);
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        limit: *const timespec, mask: *const sigset_t) -> c_int,
        else -1, if connection_table::has_any(), by selected_masked(count, [read, write, other], limit, mask);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `select`.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3], limit: *mut timeval) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let wanted = unsafe { wanted(count, sets) }?;
    let _on_trial = beside_kernel(wanted.iter().map(|entry| entry.fd))?;
    // SAFETY: the caller passes null or a valid pointer.
    let time = unsafe { limit.as_mut() };
    let duration = match time.as_ref().map(|time| of_time(time.tv_sec, time.tv_usec * 1000)) {
        None => None,
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => return Some(fail(error as c_int, -1)),
    };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let found = unsafe { waited(count, sets, &wanted, duration) };
    if let Some(time) = time {
        // Linux writes the time that is left to `limit`. This library writes 0 if the time has run
        // out. In all other cases, it leaves `limit` unchanged, because it does not know how much
        // time is left.
        if found == 0 {
            (time.tv_sec, time.tv_usec) = (0, 0);
        }
    }
    Some(found)
}

/// # Safety
/// The arguments must satisfy the contract of the C function `pselect`.
unsafe fn selected_masked(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let wanted = unsafe { wanted(count, sets) }?;
    let _on_trial = beside_kernel(wanted.iter().map(|entry| entry.fd))?;
    // SAFETY: the caller passes null or a valid pointer.
    let limit = match unsafe { limit.as_ref() }.map(|time| of_time(time.tv_sec, time.tv_nsec)) {
        None => None,
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => return Some(fail(error as c_int, -1)),
    };
    if mask.is_null() {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        return Some(unsafe { waited(count, sets, &wanted, limit) });
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let asked = unsafe { Copies::of(count, sets) };
    let [read, write, other] = sets;
    Some(masked(limit, mask, |slice| {
        for entry in &wanted {
            drop(Awaited::of(entry.fd, entry.events));
        }
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { asked.put(sets) };
        let hiding = Hiding::begin();
        let slice = time_of(slice);
        let limit = &raw const slice;
        let found = call_next!(
            pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                limit: *const timespec, mask: *const sigset_t) -> c_int,
            else -1
        );
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        Found::of_numbers(found, readers(&wanted), hiding, |fd| unsafe { taken_out(read, fd) })
    }))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `select`.
unsafe fn waited(
    count: c_int,
    sets: [*mut fd_set; 3],
    wanted: &[pollfd],
    limit: Option<Duration>,
) -> c_int {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let asked = unsafe { Copies::of(count, sets) };
    let [read, write, other] = sets;
    let awaited = || {
        wanted.iter().filter_map(|entry| Awaited::of(entry.fd, entry.events)).collect::<Vec<_>>()
    };
    let look = || {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { asked.put(sets) };
        let hiding = Hiding::begin();
        let mut now = timeval { tv_sec: 0, tv_usec: 0 };
        let limit = &raw mut now;
        let found = call_next!(
            select(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                limit: *mut timeval) -> c_int,
            else -1
        );
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        Found::of_numbers(found, readers(wanted), hiding, |fd| unsafe { taken_out(read, fd) })
    };
    wait(limit, &mut wanted.to_vec(), awaited, look)
}

/// Converts the program's sets to entries of `poll`. Returns `None` if no number in the sets
/// concerns this library.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `select`.
unsafe fn wanted(count: c_int, sets: [*mut fd_set; 3]) -> Option<Vec<pollfd>> {
    let mut wanted = Vec::new();
    let mut is_any_ours = false;
    for fd in 0..count {
        let mut events = 0;
        for (set, event) in sets.iter().zip([libc::POLLIN, libc::POLLOUT, libc::POLLPRI]) {
            // The set may be longer than the type `fd_set`, so use only its address.
            // SAFETY: the caller passes null or a set of `count` bits.
            if !set.is_null() && unsafe { bit(*set, fd) } {
                events |= event;
            }
        }
        if events != 0 {
            wanted.push(pollfd { fd, events, revents: 0 });
            is_any_ours |= is_ours(fd);
        }
    }
    is_any_ours.then_some(wanted)
}

/// # Safety
/// The set must have more than `fd` bits.
unsafe fn bit(set: *const fd_set, fd: c_int) -> bool {
    let (at, of_word) = (fd as usize / WORD_BITS, fd as usize % WORD_BITS);
    // SAFETY: the caller guarantees that the set has more than `fd` bits.
    let word = unsafe { *set.cast::<usize>().add(at) };
    word >> of_word & 1 == 1
}

/// Returns the numbers from which the program waits to read.
fn readers(wanted: &[pollfd]) -> impl Iterator<Item = c_int> + '_ {
    wanted.iter().filter(|entry| entry.events & libc::POLLIN != 0).map(|entry| entry.fd)
}

/// Removes a number from a set. Returns true if the set contained it.
///
/// # Safety
/// The set must have more than `fd` bits.
unsafe fn taken_out(set: *mut fd_set, fd: c_int) -> bool {
    // SAFETY: the caller guarantees that the set has more than `fd` bits.
    let was_there = unsafe { bit(set, fd) };
    let (at, of_word) = (fd as usize / WORD_BITS, fd as usize % WORD_BITS);
    // SAFETY: the caller guarantees that the set has more than `fd` bits.
    unsafe { *set.cast::<usize>().add(at) &= !(1 << of_word) };
    was_there
}

/// Copies of the program's sets. A second call of the kernel needs them, because the kernel
/// overwrites the sets with its answer.
struct Copies {
    words: [Vec<usize>; 3],
}

impl Copies {
    /// # Safety
    /// The arguments must satisfy the contract of the C function `select`.
    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        let length = (count.max(0) as usize).div_ceil(WORD_BITS);
        let words = sets.map(|set| {
            if set.is_null() {
                return Vec::new();
            }
            // SAFETY: the caller passes null or a set of `count` bits. Whole words may be accessed,
            // because the kernel also reads and writes whole words.
            (0..length).map(|at| unsafe { *set.cast::<usize>().add(at) }).collect()
        });
        Self { words }
    }

    /// # Safety
    /// The sets must be those that were copied, and satisfy the contract of `select`.
    unsafe fn put(&self, sets: [*mut fd_set; 3]) {
        for (words, set) in self.words.iter().zip(sets) {
            for (at, &word) in words.iter().enumerate() {
                // SAFETY: the caller fulfils the `# Safety` section of this function.
                unsafe { set.cast::<usize>().add(at).write(word) };
            }
        }
    }
}

const WORD_BITS: usize = usize::BITS as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_set_are_read_and_restored() {
        let mut words = [0_usize; 3];
        words[1] = 1 << 6;
        let set = words.as_mut_ptr().cast::<fd_set>();
        // SAFETY: the set has that many bits.
        unsafe {
            assert!(bit(set, 70));
            assert!(!bit(set, 69) && !bit(set, 6) && !bit(set, 134));
            let copies = Copies::of(129, [set, std::ptr::null_mut(), std::ptr::null_mut()]);
            set.cast::<usize>().add(1).write(0);
            copies.put([set, std::ptr::null_mut(), std::ptr::null_mut()]);
            assert!(bit(set, 70));
            assert!(taken_out(set, 70));
            assert!(!taken_out(set, 70));
        }
    }
}
