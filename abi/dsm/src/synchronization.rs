//! Objects by which threads wait for each other. An address names an object; the memory there is not
//! used.

use std::ffi::c_void;

use crate::created;
use crate::failure::{Failure, Result, call};
use crate::rank::dsm;

/// Acquires the lock that an address names. Afterwards, the thread sees what others wrote before
/// they released the lock. Not recursive: if this thread holds the lock already, returns
/// `ETHERNOT_DSM_RESULT_MISUSE`.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_lock(lock: *const c_void) -> Result {
    call(|| Ok(dsm()?.lock(named(lock, "the lock")?)?))
}

/// Releases a lock. If this thread does not hold it, returns `ETHERNOT_DSM_RESULT_MISUSE`.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_unlock(lock: *const c_void) -> Result {
    call(|| Ok(dsm()?.unlock(named(lock, "the lock")?)?))
}

/// Acquires a reader-writer lock together with other readers. Waits behind writers that came before.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_read_lock(lock: *const c_void) -> Result {
    call(|| Ok(dsm()?.read_lock(named(lock, "the reader-writer lock")?)?))
}

/// Acquires a reader-writer lock alone.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_write_lock(lock: *const c_void) -> Result {
    call(|| Ok(dsm()?.write_lock(named(lock, "the reader-writer lock")?)?))
}

/// Releases a reader-writer lock, which this thread has acquired in either way.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_read_write_unlock(lock: *const c_void) -> Result {
    call(|| Ok(dsm()?.read_write_unlock(named(lock, "the reader-writer lock")?)?))
}

/// Waits until all threads of all ranks are at the barrier. Afterwards, each sees what the others
/// wrote before it.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_barrier() -> Result {
    call(|| {
        created::check_together("ethernot_dsm_barrier", "use ethernot_dsm_barrier_at")?;
        Ok(dsm()?.barrier()?)
    })
}

/// Waits until `count` threads are at the barrier that an address names.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_barrier_at(barrier: *const c_void, count: u32) -> Result {
    call(|| Ok(dsm()?.barrier_at(named(barrier, "the barrier")?, count)?))
}

/// Releases a lock, waits for a signal of a condition variable, and acquires the lock again. No
/// signal is lost between the first two steps. A signal without a waiter has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_condition_wait(
    condition: *const c_void,
    lock: *const c_void,
) -> Result {
    call(|| {
        let condition = named(condition, "the condition variable")?;
        Ok(dsm()?.wait(condition, named(lock, "the lock")?)?)
    })
}

/// Wakes one thread that waits at a condition variable. Does not wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_condition_signal(condition: *const c_void) -> Result {
    call(|| Ok(dsm()?.signal(named(condition, "the condition variable")?)?))
}

/// Wakes all threads that wait at a condition variable. Does not wait for them.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_condition_broadcast(condition: *const c_void) -> Result {
    call(|| Ok(dsm()?.broadcast(named(condition, "the condition variable")?)?))
}

/// Takes one from a semaphore, which begins at 0. Waits until there is one.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_semaphore_take(semaphore: *const c_void) -> Result {
    call(|| Ok(dsm()?.take(named(semaphore, "the semaphore")?)?))
}

/// Adds to a semaphore. A thread that takes some of it then sees what this thread wrote before.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_semaphore_give(semaphore: *const c_void, count: u32) -> Result {
    call(|| Ok(dsm()?.give(named(semaphore, "the semaphore")?, count)?))
}

/// Waits until an event is set. Does not clear it.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_event_wait(event: *const c_void) -> Result {
    call(|| Ok(dsm()?.await_event(named(event, "the event")?)?))
}

/// Sets an event. A thread that waits for it then sees what this thread wrote before.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_event_set(event: *const c_void) -> Result {
    call(|| Ok(dsm()?.set_event(named(event, "the event")?)?))
}

/// Clears an event.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_event_clear(event: *const c_void) -> Result {
    call(|| Ok(dsm()?.clear_event(named(event, "the event")?)?))
}

/// Sends all that this rank has written to where other ranks find it: they see it after
/// `ethernot_dsm_acquire`. Programs that use locks and barriers do not need this.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_release() -> Result {
    call(|| Ok(dsm()?.release()?))
}

/// Lets this rank see all that other ranks have released.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_acquire() -> Result {
    call(|| Ok(dsm()?.acquire()?))
}

/// Returns the number by which ranks name an object.
fn named(object: *const c_void, what: &str) -> std::result::Result<u64, Failure> {
    if object.is_null() { Err(Failure::null(what)) } else { Ok(object.addr() as u64) }
}
