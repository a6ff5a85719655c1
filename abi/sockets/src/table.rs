//! The file-descriptor table: the kind of each descriptor number of the process.
//!
//! Every interposed call looks its number up here first. Therefore a lookup is a single load of one
//! byte from a flat array.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use arc_swap::ArcSwapOption;
use libc::c_int;

use crate::socket::Socket;

/// The kind of a descriptor number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Any other descriptor, or no descriptor: the kernel handles all calls.
    Plain = 0,
    /// A descriptor of this library. Calls of the program on this number fail with `EBADF`.
    Private = 1,
    /// A TCP connection of the program that may move to the edge or has moved there.
    Socket = 2,
    /// An `epoll` set that contains or contained a connection of the kind `Socket`, or that
    /// contains another set of this kind.
    Epoll = 3,
    /// A TCP socket of the program that is not connected yet. It may already be in `epoll` sets.
    Unconnected = 4,
    /// An `epoll` set that has never contained a connection of the kind `Socket`.
    OtherEpoll = 5,
}

impl Kind {
    const fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Private,
            2 => Self::Socket,
            3 => Self::Epoll,
            4 => Self::Unconnected,
            5 => Self::OtherEpoll,
            _ => Self::Plain,
        }
    }
}

/// Returns true if the kind of the number is not `Plain`.
#[inline]
pub(crate) fn is_known(fd: c_int) -> bool {
    KINDS.get(fd as usize).is_some_and(|kind| kind.load(Ordering::Relaxed) != Kind::Plain as u8)
}

/// Returns the kind of a number.
#[inline]
pub(crate) fn kind(fd: c_int) -> Kind {
    KINDS.get(fd as usize).map_or(Kind::Plain, |kind| Kind::of(kind.load(Ordering::Acquire)))
}

/// Sets the kind of a number. Returns false if the number is too high for the table.
pub(crate) fn set(fd: c_int, kind: Kind) -> bool {
    let known = KINDS.get(fd as usize);
    if kind != Kind::Plain && known.is_some() {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    known.inspect(|known| known.store(kind as u8, Ordering::Release)).is_some()
}

/// Returns the highest number whose kind has ever been set to something else than `Plain`.
pub(crate) fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
}

/// Returns the number of descriptors that this library uses.
pub(crate) fn count_private() -> u64 {
    (0..=highest()).filter(|&fd| kind(fd) == Kind::Private).count() as u64
}

/// Returns the connection of a number, if there is one.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<Arc<Socket>> {
    if kind(fd) == Kind::Socket { SOCKETS.get(fd as usize)?.load_full() } else { None }
}

/// Records the connection of a number. Returns false if the number is too high for the table.
pub(crate) fn set_socket(fd: c_int, socket: Arc<Socket>) -> bool {
    let place = SOCKETS.get(fd as usize);
    place.inspect(|place| place.store(Some(socket))).is_some() && set(fd, Kind::Socket)
}

/// Sets the kind of a number to `Plain`.
pub(crate) fn clear(fd: c_int) {
    set(fd, Kind::Plain);
    if let Some(place) = SOCKETS.get(fd as usize) {
        place.store(None);
    }
}

/// In a forked child, closes the inherited copies of the library's sockets, event descriptors and
/// `epoll` sets, except the numbers in `kept`. Files such as the log stay open.
pub(crate) fn close_private(kept: &[c_int]) {
    let is_closed = |fd: &c_int| kind(*fd) == Kind::Private && !kept.contains(fd);
    for fd in (0..=highest()).filter(is_closed) {
        let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: there is room for the structure, for which all zero is a valid value.
        let found = unsafe {
            libc::fstat(fd, found.as_mut_ptr());
            found.assume_init()
        };
        // Event descriptors and `epoll` sets have no file type.
        if matches!(found.st_mode & libc::S_IFMT, libc::S_IFSOCK | 0) {
            // SAFETY: takes no pointers. The inherited object that owns this descriptor is never
            // dropped in the child.
            unsafe { libc::close(fd) };
        }
    }
}

/// Number of descriptor numbers in the table. Numbers beyond the table count as `Plain`. The arrays
/// take 9 MiB of address space, but the kernel allocates only the pages that are written.
pub(crate) const NUMBERS: usize = 1 << 20;

static HIGHEST: AtomicI32 = AtomicI32::new(-1);
static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];
static SOCKETS: [ArcSwapOption<Socket>; NUMBERS] =
    [const { ArcSwapOption::const_empty() }; NUMBERS];

#[cfg(test)]
mod tests {
    use super::*;

    const BEYOND: c_int = 1 << 20;

    #[test]
    fn descriptors_outside_the_table_are_plain() {
        for fd in [-1, c_int::MIN, c_int::MAX, BEYOND] {
            assert!(!is_known(fd));
            assert!(!set(fd, Kind::Private));
            assert_eq!(kind(fd), Kind::Plain);
            assert!(socket(fd).is_none());
            clear(fd);
        }
    }

    #[test]
    fn a_descriptor_has_the_kind_it_was_set_to() {
        let fd = BEYOND - 1;
        assert!(!is_known(fd));
        for wanted in
            [Kind::Private, Kind::Socket, Kind::Epoll, Kind::Unconnected, Kind::OtherEpoll]
        {
            assert!(set(fd, wanted));
            assert!(is_known(fd));
            assert_eq!(kind(fd), wanted);
        }
        clear(fd);
        assert!(!is_known(fd));
    }
}
