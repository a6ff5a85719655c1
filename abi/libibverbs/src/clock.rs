//! The clock of the device, for completion timestamps and for `ibv_query_rt_values_ex`.

/// Returns the device time in ticks, which are nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Converts a recent device time to wall-clock time, in nanoseconds since 1970.
pub(crate) fn wall_ns(at_ns: u64) -> u64 {
    let ago_ns = now_ns().saturating_sub(at_ns);
    read(libc::CLOCK_REALTIME).saturating_sub(ago_ns)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Frequency of the clock in kHz, for `hca_core_clock`.
pub(crate) const KILOHERTZ: u64 = 1_000_000;
