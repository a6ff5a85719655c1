//! The function that the kernel calls, and the mark by which copies of this crate recognize it.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::size_of;

use libc::siginfo_t;

use super::handler::{CLAIMS, on_signal};
use super::signal::{FullHandler, SIGNALS, action_of};
use crate::claims::Claims;

/// The function that the kernel calls. It begins with a jump over data. The data are a mark, by
/// which other copies of this crate recognize this function, and the distance from the mark's end
/// to [`CLAIMS`]. After the data, the function jumps to [`on_signal`]. The first jump has two bytes,
/// so the offset of the mark is fixed.
#[unsafe(naked)]
pub(super) unsafe extern "C-unwind" fn entry(
    number: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        ".byte 0xeb, 24",
        ".ascii \"ethernot fault 3\"",
        "2:",
        ".quad {claims} - 2b",
        "jmp {on_signal}",
        ".cfi_endproc",
        claims = sym CLAIMS,
        on_signal = sym on_signal,
    )
}

/// Returns the list of claims of the handler in force. Returns `None` if the handlers of the two
/// signals are not one of a copy of this crate.
pub(super) fn claims_in_force() -> Option<&'static Claims> {
    let of = |number| claims_of(action_of(number)?.sa_sigaction);
    let [first, second] = SIGNALS.each_ref().map(|signal| of(signal.number));
    let (first, second) = (first?, second?);
    core::ptr::eq(first, second).then_some(first)
}

/// Returns the list of claims of the handler at `action`, or `None` if that handler belongs to no
/// copy of this crate. Reads through the kernel, because the memory at `action` may be of any kind.
pub(super) fn claims_of(action: usize) -> Option<&'static Claims> {
    if action == entry as FullHandler as usize {
        return Some(&CLAIMS);
    }
    let mut head = [0; HEAD_BYTES];
    read(action, &mut head)?;
    let (mark, distance) = head.split_at(MARK.len());
    if mark != MARK {
        return None;
    }
    let distance = i64::from_le_bytes(distance.try_into().ok()?);
    let list = action.wrapping_add(MARK.len()).wrapping_add_signed(distance as isize);
    // SAFETY: only copies of this crate have functions with this mark. The mark says that the list
    // has this layout. Lists are static, and the shared objects of the copies stay loaded.
    Some(unsafe { &*core::ptr::with_exposed_provenance::<Claims>(list) })
}

/// Reads memory of this process through the kernel.
fn read(address: usize, out: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(address),
        iov_len: out.len(),
    };
    // SAFETY: the kernel writes only to `out`, and checks the other address.
    let count = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (usize::try_from(count) == Ok(out.len())).then_some(())
}

/// The beginning of the handler: a jump over the data, then the mark.
const MARK: &[u8; 18] = b"\xeb\x18ethernot fault 3";

/// Length in bytes of the mark and of the distance that follows it.
const HEAD_BYTES: usize = MARK.len() + size_of::<i64>();
