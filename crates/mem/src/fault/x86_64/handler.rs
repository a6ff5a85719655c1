//! Claims the faults of the instructions that access foreign memory.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

/// Claims the faults.
pub(in super::super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function only compares addresses. It returns the address of a `ret`, which
        // may replace an instruction that may fault, because that instruction is the first of its
        // function.
        let is_claimed = unsafe { page_faults::catch_instructions(resume_at) }.is_ok();
        IS_INSTALLED.store(is_claimed, Ordering::Release);
        let is_fast = std::arch::is_x86_feature_detected!("ermsb");
        COPIES_FAST.store(is_claimed && is_fast, Ordering::Release);
    });
}

/// Returns whether [`install`] has claimed the faults. The program may have replaced the handler
/// after that.
#[inline]
pub(in super::super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Returns whether [`install`] has claimed the faults, and the instruction that copies is fast.
#[inline]
pub(in super::super) fn copies_fast() -> bool {
    COPIES_FAST.load(Ordering::Relaxed)
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
static COPIES_FAST: AtomicBool = AtomicBool::new(false);
