//! Emulates timers of a clock without high resolution.

use std::io;

use nix::libc;
use nix::sys::prctl::{set_no_new_privs, set_timerslack};

/// Makes all timers of the calling thread expire up to 4 ms late, like with a tick of 250 Hz.
/// Threads that the calling thread starts inherit this setting.
///
/// Threads of an endpoint request precise timers by a system call. A seccomp filter makes this call
/// return success without effect.
pub(crate) fn have_late_timers() -> io::Result<()> {
    set_timerslack(TICK_NS)?;
    set_no_new_privs()?;
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, NUMBER_AT),
        step(jump, 0, 3, libc::SYS_prctl as u32),
        step(load, 0, 0, ARGUMENT_AT),
        step(jump, 0, 1, libc::PR_SET_TIMERSLACK as u32),
        // Error 0 means success.
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel copies the filter before the call returns, and the length of the filter is
    // the number of `steps`.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A tick of 250 Hz, in nanoseconds.
const TICK_NS: libc::c_ulong = 4_000_000;

/// Offset of the system-call number in the filter's input (`seccomp_data`).
const NUMBER_AT: u32 = 0;

/// Offset of the lower half of the first argument.
const ARGUMENT_AT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
