//! A shared object that contains this crate, for tests with several copies in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use page_faults::{Access, Fault, FaultHandler, RangeClaim};

/// Makes a page accessible at its first fault.
struct Opener {
    faults: AtomicUsize,
}

impl FaultHandler for Opener {
    fn on_fault(&self, fault: Fault) -> bool {
        self.faults.fetch_add(1, Ordering::SeqCst);
        let page = std::ptr::with_exposed_provenance_mut(fault.address & !4095);
        // SAFETY: the claim is for a page of the caller of `copy_handles_faults_at`.
        fault.access == Access::Write
            && unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0 }
    }
}

/// Claims the faults of a page without access, writes to it, and ends the claim. Returns the number
/// of faults that this copy of the crate handled.
///
/// # Safety
/// The page at `page` must be mapped without access.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_handles_faults_at(page: *mut u8) -> usize {
    let opener = Arc::new(Opener { faults: AtomicUsize::new(0) });
    let start = page.expose_provenance();
    let Ok(_claim) = RangeClaim::new(start..start + 4096, Arc::clone(&opener)) else { return 0 };
    // SAFETY: the handler makes the page writable.
    unsafe { page.write_volatile(1) };
    opener.faults.load(Ordering::SeqCst)
}
