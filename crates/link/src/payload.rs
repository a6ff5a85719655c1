//! Copies of payload into user space.
//!
//! The application may write or unmap payload memory at any time. A driver therefore works only on
//! a copy of the payload. If the memory is unmapped, the copy returns an error instead of raising a
//! signal.

use std::io;
use std::process;

use libc::iovec;
use mem::{FaultGuard, PayloadSlice};

/// Copies the payloads of a batch into the frames that the driver builds.
///
/// If this thread can catch faults ([`FaultGuard`]), [`PayloadCopier::push`] copies each payload
/// immediately. Otherwise the kernel copies all payloads in one system call. For each entry of that
/// call, the kernel takes a lock and looks up pages. Payloads of consecutive frames are usually
/// adjacent in registered memory, so the copier merges them into one entry.
///
/// If a program has registered its whole address space, the kernel copies the payloads even if this
/// thread can catch faults. The reason is that the address space may include memory of devices,
/// where a read may have side effects. The kernel refuses to read such memory.
///
/// Allocates only when created.
#[derive(Debug)]
pub(crate) struct PayloadCopier {
    way: Way,
    /// Destinations of the payloads that the kernel will copy, one per payload.
    to: Vec<iovec>,
    /// Sources of the payloads in `to`. Adjacent sources are merged into one entry.
    from: Vec<iovec>,
    process: libc::pid_t,
}

/// The way in which the payloads of a batch are copied.
#[derive(Debug)]
enum Way {
    /// No payload was pushed yet.
    Undecided,
    /// [`PayloadCopier::push`] copies each payload immediately, and the guard catches faults.
    /// `whole` payloads were copied in full. `is_broken`: a copy has failed, so no further payload
    /// is copied.
    Caught { guard: FaultGuard, whole: usize, is_broken: bool },
    /// The kernel copies all payloads in [`PayloadCopier::copy`].
    Kernel,
}

impl Way {
    fn of_batch() -> Self {
        match mem::is_payload_promised().then(FaultGuard::acquire).flatten() {
            Some(guard) => Self::Caught { guard, whole: 0, is_broken: false },
            None => Self::Kernel,
        }
    }
}

/// A payload could not be read.
#[derive(Debug)]
pub(crate) struct CopyError {
    /// Number of payloads, in the order of their pushes, that were copied in full.
    pub(crate) whole: usize,
    /// The kernel's error. If the guard caught a fault, this is the error that the kernel would
    /// have returned.
    pub(crate) source: io::Error,
}

impl PayloadCopier {
    /// Creates a copier for `payloads_max` payloads, at most [`PAYLOADS_MAX`].
    pub(crate) fn new(payloads_max: usize) -> Self {
        let payloads_max = payloads_max.min(PAYLOADS_MAX);
        Self {
            way: Way::Undecided,
            to: Vec::with_capacity(payloads_max),
            from: Vec::with_capacity(payloads_max),
            process: process::id().cast_signed(),
        }
    }

    /// Checks that the kernel lets this process copy its own memory. This is necessary if faults
    /// cannot be caught.
    pub(crate) fn probe() -> io::Result<()> {
        let (witness, mut byte) = (7_u8, 0_u8);
        let mut copier = Self { way: Way::Kernel, ..Self::new(1) };
        // SAFETY: the byte outlives the copy, and nothing else uses it.
        unsafe { copier.push(&raw mut byte, PayloadSlice::at(&raw const witness, 1)) };
        copier.copy().map_err(|error| error.source)
    }

    /// Discards the pushed payloads.
    pub(crate) fn clear(&mut self) {
        self.way = Way::Undecided;
        self.to.clear();
        self.from.clear();
    }

    /// Adds a payload to copy to `to`. An empty payload is ignored.
    ///
    /// # Safety
    /// Until [`PayloadCopier::copy`] returns or [`PayloadCopier::clear`] is called, `to` must be
    /// writable for the length of the payload, and no other code may access it.
    #[inline]
    pub(crate) unsafe fn push(&mut self, to: *mut u8, payload: PayloadSlice<'_>) {
        let len = payload.len as usize;
        if len == 0 {
            return;
        }
        if matches!(self.way, Way::Undecided) {
            self.way = Way::of_batch();
        }
        let Way::Caught { guard, whole, is_broken } = &mut self.way else {
            return self.push_for_kernel(to, payload);
        };
        if !*is_broken {
            // SAFETY: the caller guarantees `to`. Source and destination do not overlap, because a
            // driver's own memory is never registered.
            let copied = unsafe { guard.copy(to, payload.start, len) };
            *is_broken = copied < len;
            *whole += usize::from(!*is_broken);
        }
    }

    /// Adds a payload of at least one byte for the kernel to copy.
    fn push_for_kernel(&mut self, to: *mut u8, payload: PayloadSlice<'_>) {
        let len = payload.len as usize;
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

    /// Finishes copying all pushed payloads, and removes them from the copier.
    #[inline]
    pub(crate) fn copy(&mut self) -> Result<(), CopyError> {
        let result = match self.way {
            Way::Undecided | Way::Caught { is_broken: false, .. } => Ok(()),
            Way::Caught { whole, .. } => {
                Err(CopyError { whole, source: io::Error::from_raw_os_error(libc::EFAULT) })
            }
            Way::Kernel => self.copy_by_kernel(),
        };
        self.clear();
        result
    }

    fn copy_by_kernel(&self) -> Result<(), CopyError> {
        let total: usize = self.to.iter().map(|piece| piece.iov_len).sum();
        let copied = loop {
            // SAFETY: the callers of `push` guarantee the entries of `to`, to which the kernel
            // writes. The kernel checks its reads of `from`.
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
        match copied {
            Ok(copied) if copied == total => Ok(()),
            // The kernel stops before an entry that it cannot read.
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
        }
    }
}

// SAFETY: the pointers are used only between `push` and `copy`, and the callers of `push` guarantee
// that they are valid. The guard exists only from the first `push` of a batch to `copy` or `clear`.
// Both happen within one method of a driver, on one thread.
unsafe impl Send for PayloadCopier {}

/// Maximum number of payloads in one system call (`UIO_MAXIOV`).
const PAYLOADS_MAX: usize = 1024;

/// Appends the bytes of `payload` to `out`. If they cannot be read, returns false and appends
/// nothing.
///
/// Costs one system call per payload, which is acceptable because only diagnosis uses it.
#[must_use]
pub(crate) fn append(payload: PayloadSlice<'_>, out: &mut Vec<u8>) -> bool {
    let len = payload.len as usize;
    if len == 0 {
        return true;
    }
    let before = out.len();
    out.resize(before + len, 0);
    let Some(to) = out.get_mut(before..) else { return false };
    let local = iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len };
    let remote = iovec { iov_base: payload.start.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel writes `len` bytes to `to`, which has this length and no other borrow. The
    // kernel checks its reads of `remote`.
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
    fn bytes_are_appended_completely_or_not_at_all() {
        let memory = [1, 2, 3];
        let mut out = vec![0];
        assert!(append(PayloadSlice::at(memory.as_ptr(), 3), &mut out));
        assert!(append(PayloadSlice::EMPTY, &mut out));
        // The lowest page is never mapped, so this payload cannot be read.
        assert!(!append(PayloadSlice::at(64 as *const u8, 3), &mut out));
        assert_eq!(out, [0, 1, 2, 3]);
    }

    #[test]
    fn payloads_are_copied_to_their_own_slots_by_both_copy_methods() {
        PayloadCopier::probe().unwrap();
        let memory: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
        for by_kernel in [false, true] {
            let mut slots = [[0_u8; 4]; 4];
            let mut copier = copier(4, by_kernel);
            for (slot, (offset, len)) in slots.iter_mut().zip([(0, 3), (3, 2), (0, 0), (7, 1)]) {
                let payload = PayloadSlice::at(memory[offset..].as_ptr(), len);
                // SAFETY: each slot has room for the payload and is not used before the copy.
                unsafe { copier.push(slot.as_mut_ptr(), payload) };
            }
            if by_kernel {
                assert_eq!(
                    (copier.to.len(), copier.from.len()),
                    (3, 2),
                    "neighbours are one piece"
                );
            }
            copier.copy().unwrap();
            assert_eq!(slots, [[1, 2, 3, 0], [4, 5, 0, 0], [0; 4], [8, 0, 0, 0]]);
            copier.copy().unwrap();
        }
    }

    #[test]
    fn only_payloads_before_an_unmapped_one_are_copied() {
        let memory = [1, 2, 3];
        for by_kernel in [false, true] {
            let mut slots = [[0_u8; 3]; 3];
            let mut copier = copier(3, by_kernel);
            let gone = PayloadSlice::at(64 as *const u8, 3);
            let there = PayloadSlice::at(memory.as_ptr(), 3);
            for (slot, payload) in slots.iter_mut().zip([there, gone, there]) {
                // SAFETY: each slot has room for the payload and is not used before the copy.
                unsafe { copier.push(slot.as_mut_ptr(), payload) };
            }
            let error = copier.copy().unwrap_err();
            assert_eq!((error.whole, error.source.raw_os_error()), (1, Some(libc::EFAULT)));
            assert_eq!(slots, [memory, [0; 3], [0; 3]]);
            // SAFETY: the slot has room for the payload and is not used before the copy.
            unsafe { copier.push(slots[1].as_mut_ptr(), there) };
            copier.copy().expect("the next batch knows nothing of it");
            assert_eq!(slots[1], memory);
        }
    }

    fn copier(payloads_max: usize, by_kernel: bool) -> PayloadCopier {
        let mut copier = PayloadCopier::new(payloads_max);
        if by_kernel {
            copier.way = Way::Kernel;
        }
        copier
    }
}
