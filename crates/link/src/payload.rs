//! Reading payload where the bytes themselves are needed in user space.
//!
//! The memory may be written or unmapped by the application at any time, so that the kernel does
//! the copy: it answers with an error where a read of our own would be a fault.

use std::io;
use std::process;

use libc::iovec;
use mem::PayloadSlice;

/// Copies payloads of a batch to where its driver builds frames, in one system call.
///
/// Payloads of neighbouring frames lie back to back in registered memory most of the time and are
/// then one piece for the kernel, which takes a lock and looks up pages for each. Allocates only
/// when made.
#[derive(Debug)]
pub(crate) struct PayloadCopier {
    /// Where the payloads go, one for each.
    to: Vec<iovec>,
    /// Where they come from; neighbours are merged.
    from: Vec<iovec>,
    process: libc::pid_t,
}

/// A payload could not be read.
#[derive(Debug)]
pub(crate) struct CopyError {
    /// Payloads, in the order in which they were pushed, that were copied whole.
    pub(crate) whole: usize,
    /// What the kernel said.
    pub(crate) source: io::Error,
}

impl PayloadCopier {
    /// With room for `payloads_max` payloads, at most [`PAYLOADS_MAX`].
    pub(crate) fn new(payloads_max: usize) -> Self {
        let payloads_max = payloads_max.min(PAYLOADS_MAX);
        Self {
            to: Vec::with_capacity(payloads_max),
            from: Vec::with_capacity(payloads_max),
            process: process::id().cast_signed(),
        }
    }

    /// Whether the kernel lets this process copy its own memory so.
    pub(crate) fn probe() -> io::Result<()> {
        let (witness, mut byte) = (7_u8, 0_u8);
        let mut copier = Self::new(1);
        // SAFETY: the byte outlives the copy, and nobody else uses it.
        unsafe { copier.push(&raw mut byte, PayloadSlice { start: &raw const witness, len: 1 }) };
        copier.copy().map_err(|error| error.source)
    }

    /// Forgets what was pushed.
    pub(crate) fn clear(&mut self) {
        self.to.clear();
        self.from.clear();
    }

    /// Adds a payload to copy to `to`; an empty one is nothing to do.
    ///
    /// # Safety
    /// Until [`PayloadCopier::copy`] returns or [`PayloadCopier::clear`] is called, `to` is writable
    /// for the length of the payload and nobody else accesses it.
    #[inline]
    pub(crate) unsafe fn push(&mut self, to: *mut u8, payload: PayloadSlice) {
        let len = payload.len as usize;
        if len == 0 {
            return;
        }
        assert!(self.to.len() < self.to.capacity());
        self.to.push(iovec { iov_base: to.cast(), iov_len: len });
        let start = payload.start.cast_mut();
        match self.from.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start => {
                last.iov_len += len;
            }
            _ => self.from.push(iovec { iov_base: start.cast(), iov_len: len }),
        }
    }

    /// Copies all that was pushed, and forgets it.
    pub(crate) fn copy(&mut self) -> Result<(), CopyError> {
        if self.to.is_empty() {
            return Ok(());
        }
        let total: usize = self.to.iter().map(|piece| piece.iov_len).sum();
        let copied = loop {
            // SAFETY: the kernel writes to the pieces of `to`, as promised to `push`, and reads those
            // of `from` with checks of its own.
            let copied = unsafe {
                libc::process_vm_readv(
                    self.process,
                    self.to.as_ptr(),
                    self.to.len() as _,
                    self.from.as_ptr(),
                    self.from.len() as _,
                    0,
                )
            };
            if copied >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break usize::try_from(copied);
            }
        };
        let result = match copied {
            Ok(copied) if copied == total => Ok(()),
            // The kernel stops before the piece that it cannot read.
            Ok(copied) => {
                let mut left = copied;
                let is_whole = |piece: &&iovec| {
                    let whole = piece.iov_len <= left;
                    left = left.saturating_sub(piece.iov_len);
                    whole
                };
                let whole = self.to.iter().take_while(is_whole).count();
                Err(CopyError { whole, source: io::Error::from_raw_os_error(libc::EFAULT) })
            }
            Err(_) => Err(CopyError { whole: 0, source: io::Error::last_os_error() }),
        };
        self.clear();
        result
    }
}

// SAFETY: the pieces are addresses that are only used between `push` and `copy`, whose callers
// answer for them.
unsafe impl Send for PayloadCopier {}

/// What was last found mapped.
///
/// A program that unmaps registered memory without saying so gets an error for it, not a signal, if it
/// did so before this look. The look costs a system call of 0.2 µs where a copy by the kernel would
/// cost 7 µs for 64 KiB, mostly for looking up each page.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    start: usize,
    end: usize,
}

impl Mapped {
    /// Whether all pages of the payload are mapped.
    #[inline]
    pub(crate) fn has(&mut self, payload: PayloadSlice) -> bool {
        let start = payload.start as usize;
        let end = start.saturating_add(payload.len as usize);
        (self.start <= start && end <= self.end) || self.look(start, end)
    }

    fn look(&mut self, start: usize, end: usize) -> bool {
        let start = start & !(PAGE_BYTES - 1);
        let Some(end) = end.checked_next_multiple_of(PAGE_BYTES) else { return false };
        let address = std::ptr::without_provenance_mut(start);
        // SAFETY: the kernel checks the range; asked to write nothing back at once, it does nothing else.
        let is_mapped = unsafe { libc::msync(address, end - start, libc::MS_ASYNC) } == 0;
        if is_mapped {
            *self = Self { start, end };
        }
        is_mapped
    }
}

/// The page that is looked for, in bytes. Where pages are larger the kernel refuses the look, and then
/// copies itself.
const PAGE_BYTES: usize = 4096;

/// Most payloads in one system call (`UIO_MAXIOV`).
const PAYLOADS_MAX: usize = 1024;

/// Appends the bytes of `payload` to `out`; false and nothing appended if they cannot be read.
///
/// This costs a system call for each, which is no matter in a tool of diagnosis.
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

    #[test]
    fn what_is_not_mapped_is_found_before_it_is_read() {
        let memory = vec![1_u8; 3 * PAGE_BYTES];
        let slice = |from: usize, len| PayloadSlice { start: memory[from..].as_ptr(), len };
        let mut mapped = Mapped::default();
        assert!(mapped.has(slice(0, 3 * PAGE_BYTES as u32)));
        assert!(mapped.has(slice(5, 7)), "known by now");
        assert!(!mapped.has(PayloadSlice { start: 64 as *const u8, len: 3 }));
        assert!(!mapped.has(PayloadSlice { start: (usize::MAX - 8) as *const u8, len: 300 }));
    }

    #[test]
    fn neighbouring_payloads_are_one_piece_and_go_to_places_of_their_own() {
        PayloadCopier::probe().unwrap();
        let memory: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut slots = [[0_u8; 4]; 4];
        let mut copier = PayloadCopier::new(4);
        for (slot, (offset, len)) in slots.iter_mut().zip([(0, 3), (3, 2), (0, 0), (7, 1)]) {
            let payload = PayloadSlice { start: memory[offset..].as_ptr(), len };
            // SAFETY: each slot has room for the payload and is used again only after the copy.
            unsafe { copier.push(slot.as_mut_ptr(), payload) };
        }
        assert_eq!((copier.to.len(), copier.from.len()), (3, 2));
        copier.copy().unwrap();
        assert_eq!(slots, [[1, 2, 3, 0], [4, 5, 0, 0], [0; 4], [8, 0, 0, 0]]);
    }

    #[test]
    fn payloads_before_one_that_is_gone_are_copied() {
        let memory = [1, 2, 3];
        let mut slots = [[0_u8; 3]; 3];
        let mut copier = PayloadCopier::new(3);
        let gone = PayloadSlice { start: 64 as *const u8, len: 3 };
        let there = PayloadSlice { start: memory.as_ptr(), len: 3 };
        for (slot, payload) in slots.iter_mut().zip([there, gone, there]) {
            // SAFETY: as above.
            unsafe { copier.push(slot.as_mut_ptr(), payload) };
        }
        let error = copier.copy().unwrap_err();
        assert_eq!((error.whole, error.source.raw_os_error()), (1, Some(libc::EFAULT)));
        assert_eq!(slots[0], memory);
    }
}
