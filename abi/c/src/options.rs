//! Structures of options, which programs pass by pointer. A program may have been compiled for
//! another version of the library.

use std::mem::MaybeUninit;

use crate::failure::{Failure, Result};

/// A structure of options. Later versions of the library add fields at its end. If such a field is
/// zero, the library behaves as in earlier versions.
///
/// # Safety
/// * The structure must be `repr(C)` and begin with a `usize`.
/// * It must have no padding after the last field of its first version.
/// * All zeros must be a valid value.
pub(crate) unsafe trait Options: Copy {
    /// Name of the structure in C.
    const NAME: &'static str;

    /// Length of the structure in the first version of the library, in bytes.
    const FIRST_BYTES: usize;
}

/// Returns the options that a program passes. Returns `None` if `options` is null. If the program's
/// version does not have a field, the field is zero in the result.
///
/// # Safety
/// `options` must be null, or valid for the number of bytes in its first field. If that number is
/// 0, it must be valid for `FIRST_BYTES` bytes.
pub(crate) unsafe fn known<T: Options>(
    options: *const T,
) -> std::result::Result<Option<T>, Failure> {
    if options.is_null() {
        return Ok(None);
    }
    let bytes = options.cast::<u8>();
    // SAFETY: the structure begins with its size.
    let given = match unsafe { options.cast::<usize>().read() } {
        0 => T::FIRST_BYTES,
        given => given,
    };
    if !(T::FIRST_BYTES..=BYTES_MAX).contains(&given) {
        let (name, first) = (T::NAME, T::FIRST_BYTES);
        let text = format!(
            "size {given} of {name}, which has {first} to {BYTES_MAX} bytes; set it to sizeof({name}), or to 0"
        );
        return Err(Failure::new(Result::Invalid, text));
    }
    let shared = given.min(size_of::<T>());
    // SAFETY: the caller promises that the options are valid for `given` bytes.
    let unknown = unsafe { std::slice::from_raw_parts(bytes.add(shared), given - shared) };
    if unknown.iter().any(|&byte| byte != 0) {
        let text = format!(
            "{} sets an option that this library does not know, {} of which is older than the program's header; install \
             that of the header, or leave the option zero",
            T::NAME,
            env!("CARGO_PKG_VERSION"),
        );
        return Err(Failure::new(Result::Invalid, text));
    }
    let mut known = MaybeUninit::<T>::zeroed();
    // SAFETY: both structures have at least `shared` bytes. All zeros are a valid value. The first
    // part of valid options, followed by zeros, is also a valid value.
    unsafe {
        known.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes, shared);
        Ok(Some(known.assume_init()))
    }
}

/// Maximum size of options in any version, in bytes. A larger size means that the program has not
/// initialized the structure.
const BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The current version of the structure, which this library has.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Now {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: the structure consists of numbers in C layout and begins with its size.
    unsafe impl Options for Now {
        const NAME: &'static str = "now";
        const FIRST_BYTES: usize = 16;
    }

    fn known_of(words: &[u64]) -> std::result::Result<(u64, u64), String> {
        // SAFETY: the slice has the number of bytes in its first word, or 16.
        let known = unsafe { known(words.as_ptr().cast::<Now>()) };
        match known {
            Ok(known) => known.map(|known| (known.first, known.second)).ok_or_else(String::new),
            Err(failure) => Err(failure.text),
        }
    }

    #[test]
    fn fields_unknown_to_earlier_programs_are_zero() {
        for size in [0, 16] {
            // The third word is outside the program's structure.
            assert_eq!(known_of(&[size, 7, 9]), Ok((7, 0)));
        }
        assert_eq!(known_of(&[24, 7, 9]), Ok((7, 9)));
    }

    #[test]
    fn programs_of_later_versions_may_set_only_known_fields() {
        assert_eq!(known_of(&[40, 7, 9, 0, 0]), Ok((7, 9)));
        let refused = known_of(&[40, 7, 9, 0, 1]).expect_err("it is not known");
        assert!(refused.contains("install"), "{refused}");
    }

    #[test]
    fn an_unknown_structure_size_is_an_error() {
        let refused = known_of(&[8, 7, 9]).expect_err("it is too small");
        assert!(refused.contains("size 8 of now"), "{refused}");
        let refused = known_of(&[u64::MAX, 7, 9]).expect_err("it was never set");
        assert!(refused.contains("sizeof"), "{refused}");
        // SAFETY: the pointer is null.
        assert!(matches!(unsafe { known::<Now>(std::ptr::null()) }, Ok(None)));
    }
}
