//! Tests that the library returns an error with a remedy if a program misuses it, and goes on.

use std::ffi::{CStr, c_void};
use std::ptr::{dangling_mut, null, null_mut, without_provenance};
use std::thread;

use ethernot_dsm_c::atomic::{
    ethernot_dsm_atomic_add, ethernot_dsm_atomic_load, ethernot_dsm_atomic_store,
};
use ethernot_dsm_c::failure::{Result, ethernot_dsm_last_error, ethernot_dsm_result_name};
use ethernot_dsm_c::joined::{
    Counters, Options, ethernot_dsm_finalize, ethernot_dsm_init, ethernot_dsm_method_in_use,
    ethernot_dsm_rank, ethernot_dsm_read_counters, ethernot_dsm_size,
};
use ethernot_dsm_c::memory::{
    ethernot_dsm_alloc, ethernot_dsm_alloc_local, ethernot_dsm_pin, ethernot_dsm_prefetch,
    ethernot_dsm_region, ethernot_dsm_unpin,
};
use ethernot_dsm_c::synchronization::{
    ethernot_dsm_barrier, ethernot_dsm_barrier_at, ethernot_dsm_condition_broadcast,
    ethernot_dsm_condition_wait, ethernot_dsm_event_wait, ethernot_dsm_lock,
    ethernot_dsm_read_lock, ethernot_dsm_read_write_unlock, ethernot_dsm_semaphore_give,
    ethernot_dsm_semaphore_take, ethernot_dsm_unlock, ethernot_dsm_write_lock,
};

fn text() -> String {
    // SAFETY: the library returns a string that is valid until the next call of this thread.
    unsafe { CStr::from_ptr(ethernot_dsm_last_error()) }.to_string_lossy().into_owned()
}

/// Checks that a call failed with a result, and that its text has each word.
#[track_caller]
fn fails(found: Result, expected: Result, words: &[&str]) {
    assert_eq!(found, expected, "{}", text());
    for word in words {
        assert!(text().contains(word), "{word}: {}", text());
    }
}

#[track_caller]
fn succeeds(found: Result) {
    assert_eq!(found, Result::Ok, "{}", text());
}

fn options() -> Options {
    Options {
        size: size_of::<Options>(),
        region_bytes: 1 << 20,
        meet: null(),
        on_failure: None,
        context: null_mut(),
        limit_ms: 300,
        local_bytes: 4096,
        watchdog_ms: 0,
        ranks: 0,
        rank: 0,
        threads: 0,
        method: 0,
        detect_races: 0,
        creates: 0,
    }
}

fn init(options: &Options) -> Result {
    // SAFETY: the options are valid, and their strings end with a zero byte.
    unsafe { ethernot_dsm_init(options) }
}

fn alloc(bytes: usize, flags: u32, alignment: usize) -> std::result::Result<*mut c_void, Result> {
    let mut memory = null_mut();
    // SAFETY: the place is a variable of this function.
    match unsafe { ethernot_dsm_alloc(bytes, flags, alignment, &raw mut memory) } {
        Result::Ok => Ok(memory),
        other => Err(other),
    }
}

/// One test, because a process joins once.
#[test]
fn misuse_is_an_error_with_a_remedy_and_the_rank_goes_on() {
    before_joining();
    joining();
    allocations();
    locks();
    atomics_and_counters();
    leaving();
}

fn before_joining() {
    assert_eq!(text(), "");
    let remedy = ["ethernot_dsm_init"];
    fails(ethernot_dsm_barrier(), Result::NotJoined, &remedy);
    fails(ethernot_dsm_lock(dangling_mut()), Result::NotJoined, &remedy);
    fails(alloc(8, 0, 0).unwrap_err(), Result::NotJoined, &remedy);
    fails(ethernot_dsm_finalize(), Result::NotJoined, &remedy);
    let numbers = (ethernot_dsm_rank(), ethernot_dsm_size(), ethernot_dsm_method_in_use());
    assert_eq!(numbers, (-1, -1, -1));
}

fn joining() {
    let wrong = Options { size: 8, ..options() };
    fails(init(&wrong), Result::Invalid, &["sizeof(ethernot_dsm_options)"]);
    let wrong = Options { method: 9, ..options() };
    fails(init(&wrong), Result::Invalid, &["method 9", "ethernot_dsm_method"]);
    let wrong = Options { rank: 1, ..options() };
    fails(init(&wrong), Result::Invalid, &["rank 1", "set ranks"]);
    let meet = c"127.0.0.1:0".as_ptr();
    let wrong = Options { rank: 2, ranks: 2, meet, ..options() };
    fails(init(&wrong), Result::Invalid, &["rank 2 of 2 ranks"]);
    let wrong = Options { ranks: 2, ..options() };
    fails(init(&wrong), Result::Invalid, &["ETHERNOT_DSM_MEET"]);
    let wrong = Options { ranks: 2, meet, ..options() };
    fails(init(&wrong), Result::Missing, &["rank 1 did not come within 300ms", "check"]);
    let wrong = Options { ranks: 1, threads: 100_000, ..options() };
    fails(init(&wrong), Result::Invalid, &["100000 threads"]);
    let wrong = Options { ranks: 1, region_bytes: 1 << 50, ..options() };
    fails(init(&wrong), Result::Invalid, &["64 GiB"]);
    succeeds(init(&options()));
    fails(init(&options()), Result::AlreadyJoined, &["once"]);
    assert_eq!((ethernot_dsm_rank(), ethernot_dsm_size()), (0, 1));
}

fn allocations() {
    // SAFETY: null is permitted in that the call rejects it.
    let no_place = unsafe { ethernot_dsm_alloc(8, 0, 0, null_mut()) };
    fails(no_place, Result::Invalid, &["null"]);
    fails(alloc(8, 8, 0).unwrap_err(), Result::Invalid, &["flags 0x8", "OWN_PAGES"]);
    fails(alloc(8, 0, 24).unwrap_err(), Result::Invalid, &["24 bytes", "power of two"]);
    fails(alloc(8, 6, 0).unwrap_err(), Result::Invalid, &["flags 0x6", "OWN_PAGES"]);
    fails(alloc(8, 0, 1 << 46).unwrap_err(), Result::Invalid, &["1 GiB"]);
    fails(alloc(2 << 20, 0, 0).unwrap_err(), Result::NoRoom, &["2097152 bytes", "region_bytes"]);
    fails(alloc(usize::MAX, 1, 0).unwrap_err(), Result::NoRoom, &["region_bytes"]);
    let own = &raw const OUTSIDE;
    fails(ethernot_dsm_prefetch(own.cast(), 8), Result::Invalid, &["0x200000000000"]);
    let start = alloc(4096, 0, 0).expect("there is room");
    fails(ethernot_dsm_prefetch(start, usize::MAX), Result::Invalid, &["not in the shared region"]);
    succeeds(ethernot_dsm_prefetch(start, 0));
    succeeds(ethernot_dsm_prefetch(start, 4096));
    fails(ethernot_dsm_unpin(start, 4096), Result::Misuse, &["is not pinned", "unpin"]);
    succeeds(ethernot_dsm_pin(start, 4096, 1));
    succeeds(ethernot_dsm_unpin(start, 4096));
    fails(ethernot_dsm_pin(own.cast(), 8, 0), Result::Invalid, &["not in the shared region"]);
    let mut local = null_mut();
    // SAFETY: the place is a variable of this function, or null.
    unsafe {
        fails(ethernot_dsm_alloc_local(8, null_mut()), Result::Invalid, &["null"]);
        succeeds(ethernot_dsm_alloc_local(4096, &raw mut local));
        let full = ethernot_dsm_alloc_local(8, &raw mut local);
        fails(full, Result::NoRoom, &["local_bytes"]);
    }
    // SAFETY: null is permitted here.
    succeeds(unsafe { ethernot_dsm_region(null_mut(), null_mut()) });
}

fn locks() {
    let lock = dangling_mut();
    fails(ethernot_dsm_lock(null()), Result::Invalid, &["the lock is a null pointer"]);
    fails(ethernot_dsm_unlock(null()), Result::Invalid, &["the lock is a null pointer"]);
    fails(ethernot_dsm_unlock(lock), Result::Misuse, &["never locked"]);
    succeeds(ethernot_dsm_lock(lock));
    fails(ethernot_dsm_lock(lock), Result::Misuse, &["holds the lock", "already"]);
    succeeds(ethernot_dsm_unlock(lock));
    fails(
        ethernot_dsm_unlock(lock),
        Result::Misuse,
        &["unlocked twice", "lock before each unlock"],
    );
    fails(ethernot_dsm_semaphore_take(null()), Result::Invalid, &["the semaphore"]);
    fails(ethernot_dsm_read_write_unlock(READERS), Result::Misuse, &["holds the lock"]);
    succeeds(ethernot_dsm_read_lock(READERS));
    fails(ethernot_dsm_write_lock(READERS), Result::Misuse, &["already", "unlock it first"]);
    succeeds(ethernot_dsm_read_write_unlock(READERS));
    succeeds(ethernot_dsm_semaphore_give(SEMAPHORE, 1));
    succeeds(ethernot_dsm_semaphore_take(SEMAPHORE));
    fails(ethernot_dsm_event_wait(SEMAPHORE), Result::Misuse, &["another kind"]);
    fails(ethernot_dsm_condition_wait(CONDITION, lock), Result::Misuse, &["holds the lock"]);
    succeeds(ethernot_dsm_condition_broadcast(CONDITION));
    fails(ethernot_dsm_barrier_at(BARRIER, 0), Result::Misuse, &["a barrier of 0 threads"]);
    fails(ethernot_dsm_barrier_at(BARRIER, 2), Result::Misuse, &["a barrier of 2 threads"]);
    succeeds(ethernot_dsm_barrier_at(BARRIER, 1));
    // The options permit one thread.
    let other = thread::spawn(|| (ethernot_dsm_barrier(), text())).join().expect("no panic");
    assert_eq!(other.0, Result::Invalid);
    assert!(other.1.contains("more than 1 threads"), "{}", other.1);
    succeeds(ethernot_dsm_barrier());
}

fn atomics_and_counters() {
    let mut value = 0;
    let word: *mut u64 = alloc(16, 0, 0).expect("there is room").cast();
    let own = (&raw const OUTSIDE).cast::<u64>();
    // SAFETY: the output is a variable of this function, or null.
    unsafe {
        let place = &raw mut value;
        let found = ethernot_dsm_atomic_load(null(), place);
        fails(found, Result::Invalid, &["address of the atomic"]);
        fails(ethernot_dsm_atomic_load(word, null_mut()), Result::Invalid, &["null pointer"]);
        fails(ethernot_dsm_atomic_load(own, place), Result::Invalid, &["not in the shared region"]);
        let odd = word.wrapping_byte_add(4);
        fails(ethernot_dsm_atomic_load(odd, place), Result::Misuse, &["multiple of 8"]);
        succeeds(ethernot_dsm_atomic_store(word, 5));
        succeeds(ethernot_dsm_atomic_add(word, u64::MAX, null_mut()));
        succeeds(ethernot_dsm_atomic_load(word, place));
        assert_eq!(value, 4);
        let mut counters: Counters = std::mem::zeroed();
        succeeds(ethernot_dsm_read_counters(&raw mut counters));
        assert_eq!(counters.size, size_of::<Counters>());
        counters.size = 8;
        let found = ethernot_dsm_read_counters(&raw mut counters);
        fails(found, Result::Invalid, &["sizeof(ethernot_dsm_counters)"]);
        fails(ethernot_dsm_read_counters(null_mut()), Result::Invalid, &["null"]);
        assert_eq!(CStr::from_ptr(ethernot_dsm_result_name(77)), c"unknown");
        assert_eq!(CStr::from_ptr(ethernot_dsm_result_name(Result::Misuse as i32)), c"misuse");
    }
}

fn leaving() {
    succeeds(ethernot_dsm_finalize());
    fails(ethernot_dsm_finalize(), Result::NotJoined, &["has left"]);
    fails(ethernot_dsm_barrier(), Result::NotJoined, &["has left"]);
    fails(init(&options()), Result::AlreadyJoined, &["once"]);
}

/// Names of objects.
const READERS: *const c_void = without_provenance(16);
const SEMAPHORE: *const c_void = without_provenance(32);
const CONDITION: *const c_void = without_provenance(48);
const BARRIER: *const c_void = without_provenance(64);

/// Memory that is not in the region.
static OUTSIDE: [u64; 2] = [0; 2];
