//! Reads and writes of table fields in arrays of known length: checked by the compiler, not at run
//! time.

/// The `SIZE` bytes at offset `AT`; does not compile if they leave the array.
#[inline(always)]
#[expect(clippy::inline_always, reason = "one load after constant folding, in every decoder")]
pub(crate) const fn load<const AT: usize, const SIZE: usize, const N: usize>(
    bytes: &[u8; N],
) -> [u8; SIZE] {
    const { assert!(AT + SIZE <= N) }
    // Not `copy_from_slice`, which remains a call of `memcpy` where crates are compiled on their own.
    match bytes.split_at(AT).1.first_chunk() {
        Some(value) => *value,
        None => [0; SIZE],
    }
}

/// Puts `value` at offset `AT`; does not compile if it leaves the array.
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

/// The bytes of a field of [`crate::fields`] in an array reference, as an array of the field's size.
macro_rules! get {
    ($bytes:expr, $field:expr) => {
        $crate::octets::load::<{ $field.offset }, { $field.size }, _>($bytes)
    };
}

/// Stores an array of exactly the field's size at the field's offset.
macro_rules! put {
    ($bytes:expr, $field:expr, $value:expr) => {
        $crate::octets::store::<{ $field.offset }, { $field.size }, _>($bytes, $value)
    };
}

pub(crate) use {get, put};
