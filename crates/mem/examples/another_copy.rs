//! A shared object that contains this crate, for tests with several copies in one process.

use mem::FaultGuard;

/// Makes this copy of the crate catch a fault on the calling thread. Returns whether the copy
/// caught it.
#[unsafe(no_mangle)]
pub extern "C" fn copy_catches_a_fault() -> bool {
    let Some(guard) = FaultGuard::acquire() else { return false };
    let mut byte = 1;
    // The lowest page is never mapped, so this read faults.
    let nowhere = std::ptr::without_provenance(64);
    // SAFETY: the target has one byte, and the source may be any address.
    unsafe { guard.copy(&raw mut byte, nowhere, 1) == 0 }
}
