//! Parts of scatter/gather lists that a call has not transferred yet.

use std::io::{IoSlice, IoSliceMut};

/// Returns the buffers without their first `done` bytes.
pub(crate) fn behind<'a>(into: &'a mut [IoSliceMut<'_>], done: usize) -> Vec<IoSliceMut<'a>> {
    let mut skipped = done;
    let rest = into.iter_mut().filter_map(|slice| {
        let passed = skipped.min(slice.len());
        skipped -= passed;
        let rest = &mut slice[passed..];
        (!rest.is_empty()).then(|| IoSliceMut::new(rest))
    });
    rest.collect()
}

/// Does the same as [`behind`] for buffers to send.
pub(crate) fn rest_of<'a>(from: &'a [IoSlice<'_>], done: usize) -> Vec<IoSlice<'a>> {
    let mut skipped = done;
    let rest = from.iter().filter_map(|slice| {
        let passed = skipped.min(slice.len());
        skipped -= passed;
        let rest = &slice[passed..];
        (!rest.is_empty()).then(|| IoSlice::new(rest))
    });
    rest.collect()
}
