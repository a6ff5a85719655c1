//! Prefetching: hints that announce the next reads to the processor.

/// Makes the processor load the value into its cache, without waiting for the load. Has an effect
/// only on `x86_64` processors.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that the program can observe, and faults at no address.
    // Every processor of this architecture supports it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
