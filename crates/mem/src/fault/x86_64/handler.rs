//! Claims the faults of the instructions that access foreign memory.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

/// Claims the faults, if the processor copies fast enough.
pub(in super::super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::arch::is_x86_feature_detected!("ermsb") {
            // SAFETY: the function only compares addresses. It returns the address of a `ret`,
            // which may replace an instruction that may fault, because that instruction is the
            // first of its function.
            let claimed = unsafe { page_faults::catch_instructions(resume_at) };
            IS_INSTALLED.store(claimed.is_ok(), Ordering::Release);
        }
    });
}

/// Returns whether [`install`] has claimed the faults. The program may have replaced the handler
/// after that.
#[inline]
pub(in super::super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Returns whether a fault on this thread would currently be caught. Costs five system calls.
pub(in super::super) fn catches_here() -> bool {
    is_installed() && page_faults::check().is_ok()
}

/// Returns where a thread goes on after a fault of an instruction.
extern "C" fn resume_at(instruction: usize) -> usize {
    if super::may_fault(instruction) { super::behind_fault() } else { 0 }
}

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
