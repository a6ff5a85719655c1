//! A shared object that contains this crate, for tests of several in one process.

use mem::FaultGuard;

/// Returns whether faults of this copy are caught on the calling thread, after one was.
#[unsafe(no_mangle)]
pub extern "C" fn copy_catches_a_fault() -> bool {
    let Some(guard) = FaultGuard::acquire() else { return false };
    let mut byte = 1;
    // The lowest page is never mapped.
    let nowhere = std::ptr::without_provenance(64);
    // SAFETY: there is room for a byte, and of the source nothing is required.
    unsafe { guard.copy(&raw mut byte, nowhere, 1) == 0 }
}
