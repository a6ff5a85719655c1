//! Atomics among all ranks.

use dsm::AtomicOperation;

use crate::failure::{Failure, Result, call};
use crate::outputs::{has_place, put};
use crate::rank::dsm;

/// Returns the value of an atomic, a word of 8 bytes of the region at a multiple of 8. Atomics order
/// no other accesses. Do not access the word by loads and stores while ranks use it as an atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_atomic_load(atomic: *const u64, value: *mut u64) -> Result {
    call(|| {
        has_place(value)?;
        let found = perform(atomic.addr(), AtomicOperation::FetchAdd(0))?;
        // SAFETY: the program upholds that there is room at `value`.
        unsafe { put_former(value, found) };
        Ok(())
    })
}

/// Replaces the value of an atomic.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_atomic_store(atomic: *mut u64, value: u64) -> Result {
    call(|| perform(atomic.addr(), AtomicOperation::Swap(value)).map(drop))
}

/// Adds to an atomic, wrapping around. Returns the former value; `former` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_atomic_add(
    atomic: *mut u64,
    operand: u64,
    former: *mut u64,
) -> Result {
    call(|| {
        let found = perform(atomic.addr(), AtomicOperation::FetchAdd(operand))?;
        // SAFETY: the program upholds that `former` is null or has room.
        unsafe { put_former(former, found) };
        Ok(())
    })
}

/// Replaces the value of an atomic by `desired` if it is `expected`. Returns the former value, which
/// is `expected` if the value was replaced; `former` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_atomic_compare_swap(
    atomic: *mut u64,
    expected: u64,
    desired: u64,
    former: *mut u64,
) -> Result {
    call(|| {
        let operation = AtomicOperation::CompareSwap { expected, desired };
        let found = perform(atomic.addr(), operation)?;
        // SAFETY: the program upholds that `former` is null or has room.
        unsafe { put_former(former, found) };
        Ok(())
    })
}

/// Replaces the value of an atomic. Returns the former value; `former` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_atomic_swap(
    atomic: *mut u64,
    value: u64,
    former: *mut u64,
) -> Result {
    call(|| {
        let found = perform(atomic.addr(), AtomicOperation::Swap(value))?;
        // SAFETY: the program upholds that `former` is null or has room.
        unsafe { put_former(former, found) };
        Ok(())
    })
}

/// Performs an atomic at an address. Returns the former value.
fn perform(address: usize, operation: AtomicOperation) -> std::result::Result<u64, Failure> {
    if address == 0 {
        return Err(Failure::null("the address of the atomic"));
    }
    Ok(dsm()?.atomic(address, operation)?)
}

/// Writes the former value of an atomic to `former`, unless that is null. The calls hold no lock
/// here.
///
/// # Safety
/// `former` must be null or have room.
unsafe fn put_former(former: *mut u64, value: u64) {
    if !former.is_null() {
        // SAFETY: null is excluded, and the caller upholds that there is room. No lock is held.
        unsafe { put(former, value) };
    }
}
