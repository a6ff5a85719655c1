//! Loads and stores fields of frames in arrays whose length is known at compile time. The compiler
//! checks all bounds.

/// Returns the `SIZE` bytes at offset `AT`. Fails to compile if the bytes exceed the array.
#[inline(always)]
#[expect(clippy::inline_always, reason = "one load after constant folding, in every decoder")]
pub(crate) const fn load<const AT: usize, const SIZE: usize, const N: usize>(
    bytes: &[u8; N],
) -> [u8; SIZE] {
    const { assert!(AT + SIZE <= N) }
    // Do not use `copy_from_slice`: if crates are compiled separately, it remains a call of
    // `memcpy`.
    match bytes.split_at(AT).1.first_chunk() {
        Some(value) => *value,
        None => [0; SIZE],
    }
}

/// Stores `value` at offset `AT`. Fails to compile if the value exceeds the array.
#[inline(always)]
#[expect(clippy::inline_always, reason = "one store after constant folding, in every encoder")]
pub(crate) const fn store<const AT: usize, const SIZE: usize, const N: usize>(
    bytes: &mut [u8; N],
    value: [u8; SIZE],
) {
    const { assert!(AT + SIZE <= N) }
    if let Some(place) = bytes.split_at_mut(AT).1.first_chunk_mut() {
        *place = value;
    }
}

/// Returns the bytes of a field of [`crate::fields`] from an array reference. The result is an
/// array that has the size of the field.
macro_rules! get {
    ($bytes:expr, $field:expr) => {
        $crate::octets::load::<{ $field.offset }, { $field.size }, _>($bytes)
    };
}

/// Stores an array at the offset of a field. The array must have the size of the field.
macro_rules! put {
    ($bytes:expr, $field:expr, $value:expr) => {
        $crate::octets::store::<{ $field.offset }, { $field.size }, _>($bytes, $value)
    };
}

pub(crate) use {get, put};
