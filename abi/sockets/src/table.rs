//! What each descriptor number of the process stands for.
//!
//! Every call of a program on any descriptor looks here first, so the look is one load of one byte from a flat array.

use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_int;

/// What a number stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Whatever the kernel says: none of our business.
    Plain = 0,
    /// A descriptor of this library: for the program, the number is not open.
    Private = 1,
}

impl Kind {
    const fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Private,
            _ => Self::Plain,
        }
    }
}

/// Whether there is anything to know of a number.
#[inline]
pub(crate) fn is_known(fd: c_int) -> bool {
    KINDS.get(fd as usize).is_some_and(|kind| kind.load(Ordering::Relaxed) != Kind::Plain as u8)
}

/// What a number stands for.
pub(crate) fn kind(fd: c_int) -> Kind {
    KINDS.get(fd as usize).map_or(Kind::Plain, |kind| Kind::of(kind.load(Ordering::Acquire)))
}

/// Notes what a number stands for. False if the number is beyond those that are looked after.
pub(crate) fn set(fd: c_int, kind: Kind) -> bool {
    KINDS.get(fd as usize).inspect(|known| known.store(kind as u8, Ordering::Release)).is_some()
}

/// Numbers that are looked after; a descriptor with a higher one is plain. One MiB of addresses, of which the kernel
/// gives memory to the pages with numbers that were known.
pub(crate) const NUMBERS: usize = 1 << 20;

static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

#[cfg(test)]
mod tests {
    use super::*;

    const BEYOND: c_int = 1 << 20;

    #[test]
    fn numbers_that_no_table_has_are_plain() {
        for fd in [-1, c_int::MIN, c_int::MAX, BEYOND] {
            assert!(!is_known(fd));
            assert!(!set(fd, Kind::Private));
            assert_eq!(kind(fd), Kind::Plain);
        }
    }

    #[test]
    fn a_number_is_what_it_was_set_to() {
        let fd = BEYOND - 1;
        assert!(!is_known(fd));
        assert!(set(fd, Kind::Private));
        assert!(is_known(fd));
        assert_eq!(kind(fd), Kind::Private);
        assert!(set(fd, Kind::Plain));
        assert!(!is_known(fd));
    }
}
