//! Converts the scatter/gather lists of C functions.

use std::io::{IoSlice, IoSliceMut};

use libc::{c_int, c_void, iovec, size_t};

/// Borrows memory of the program for writing.
///
/// # Safety
/// `into` must have room for `size` bytes, and nothing else may access them while the slice exists.
pub(crate) unsafe fn slice_mut<'a>(into: *mut c_void, size: size_t) -> IoSliceMut<'a> {
    if size == 0 || into.is_null() {
        return IoSliceMut::new(&mut []);
    }
    // SAFETY: the caller guarantees room for `size` bytes, and the pointer is not null.
    IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(into.cast(), size.min(SIZE_MAX)) })
}

/// Borrows memory of the program for reading.
///
/// # Safety
/// `from` must have `size` bytes, and nothing may write to them while the slice exists.
pub(crate) unsafe fn slice<'a>(from: *const c_void, size: size_t) -> IoSlice<'a> {
    if size == 0 || from.is_null() {
        return IoSlice::new(&[]);
    }
    // SAFETY: the caller guarantees `size` bytes, and the pointer is not null.
    IoSlice::new(unsafe { std::slice::from_raw_parts(from.cast(), size.min(SIZE_MAX)) })
}

/// Converts a list to slices that can be written, and calls `then` with them. Returns `None` if the
/// list has more entries than the kernel allows.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `readv`.
pub(crate) unsafe fn with_mut<T>(
    list: *const iovec,
    count: usize,
    then: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
) -> Option<T> {
    let made = |at: usize| {
        // SAFETY: the list has more than `at` entries, and each entry describes memory of the
        // program.
        unsafe { slice_mut((*list.add(at)).iov_base, (*list.add(at)).iov_len) }
    };
    if count <= FEW {
        let mut few: [IoSliceMut<'_>; FEW] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        few.iter_mut().take(count).enumerate().for_each(|(at, slice)| *slice = made(at));
        return Some(then(&mut few[..count]));
    }
    (count <= MANY).then(|| then(&mut (0..count).map(made).collect::<Vec<_>>()))
}

/// Converts a list to slices that can be read, and calls `then` with them. Returns `None` if the
/// list has more entries than the kernel allows.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `writev`.
pub(crate) unsafe fn with<T>(
    list: *const iovec,
    count: usize,
    then: impl FnOnce(&[IoSlice<'_>]) -> T,
) -> Option<T> {
    let made = |at: usize| {
        // SAFETY: the list has more than `at` entries, and each entry describes memory of the
        // program.
        unsafe { slice((*list.add(at)).iov_base, (*list.add(at)).iov_len) }
    };
    if count <= FEW {
        let mut few: [IoSlice<'_>; FEW] = [IoSlice::new(&[]); FEW];
        few.iter_mut().take(count).enumerate().for_each(|(at, slice)| *slice = made(at));
        return Some(then(&few[..count]));
    }
    (count <= MANY).then(|| then(&(0..count).map(made).collect::<Vec<_>>()))
}

/// Converts the number of entries that a program passes to `readv` and similar functions. A
/// negative number becomes a number that is too large, so that the call is rejected.
pub(crate) fn counted(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Maximum number of entries of a list that is converted without an allocation.
const FEW: usize = 16;

/// The longest list that the kernel accepts: `IOV_MAX`.
const MANY: usize = 1024;

/// The maximum number of bytes that the kernel transfers in one call.
const SIZE_MAX: usize = 0x7fff_f000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_slices_behave_alike() {
        for count in [0, 1, FEW, FEW + 1, MANY] {
            let mut bytes = vec![0_u8; count];
            let entry = |byte: &mut u8| iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
            let list: Vec<_> = bytes.iter_mut().map(entry).collect();
            let fill = |slices: &mut [IoSliceMut<'_>]| {
                for slice in slices.iter_mut() {
                    slice[0] = 7;
                }
                slices.len()
            };
            // SAFETY: the list has that many entries, each of one byte.
            assert_eq!(unsafe { with_mut(list.as_ptr(), count, fill) }, Some(count));
            let sum =
                |slices: &[IoSlice<'_>]| slices.iter().map(|slice| usize::from(slice[0])).sum();
            // SAFETY: the list has that many entries, each of one byte.
            assert_eq!(unsafe { with(list.as_ptr(), count, sum) }, Some(count * 7));
        }
    }

    #[test]
    fn more_slices_than_the_kernel_accepts_are_refused() {
        for count in [MANY + 1, counted(-1)] {
            // SAFETY: the list is too long, so it is not read.
            assert!(unsafe { with(std::ptr::null(), count, |_| ()) }.is_none());
            // SAFETY: the list is too long, so it is not read.
            assert!(unsafe { with_mut(std::ptr::null(), count, |_| ()) }.is_none());
        }
    }
}
