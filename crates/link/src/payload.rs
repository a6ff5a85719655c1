//! Reading payload where a wrapper needs the bytes themselves.

use std::process;

use libc::iovec;
use mem::PayloadSlice;

/// Appends the bytes of `payload` to `out`; false and nothing appended if they cannot be read.
///
/// The memory may be written or unmapped by the application at any time, so that the kernel does
/// the copy: it answers with an error where a read of our own would be a fault. This costs a system
/// call, which is no matter in a tool of diagnosis.
#[must_use]
pub(crate) fn append(payload: PayloadSlice, out: &mut Vec<u8>) -> bool {
    let len = payload.len as usize;
    if len == 0 {
        return true;
    }
    let before = out.len();
    out.resize(before + len, 0);
    let Some(to) = out.get_mut(before..) else { return false };
    let local = iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len };
    let remote = iovec { iov_base: payload.start.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel writes `len` bytes to `to`, which is that long and borrowed by nobody else,
    // and reads `remote` with checks of its own.
    let copied = unsafe {
        libc::process_vm_readv(
            process::id().cast_signed(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    let is_whole = usize::try_from(copied) == Ok(len);
    if !is_whole {
        out.truncate(before);
    }
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_appended_or_nothing_is() {
        let memory = [1, 2, 3];
        let mut out = vec![0];
        assert!(append(PayloadSlice { start: memory.as_ptr(), len: 3 }, &mut out));
        assert!(append(PayloadSlice::EMPTY, &mut out));
        // The lowest page is never mapped.
        assert!(!append(PayloadSlice { start: 64 as *const u8, len: 3 }, &mut out));
        assert_eq!(out, [0, 1, 2, 3]);
    }
}
