//! Descriptors of virtual folders.
//!
//! The descriptor of a virtual folder refers to a file in memory (`memfd`), which contains the
//! folder's path and is sealed against changes. So the library needs no table of descriptors: it
//! recognises every descriptor by this file, including duplicates and, in a forked child, the
//! descriptors of the parent. `close` need not be intercepted.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int};

/// True if this process has ever opened a descriptor of a virtual folder. While this value is
/// false, the library checks no descriptor.
static ARE_ANY: AtomicBool = AtomicBool::new(false);

/// The first bytes of the memory file (`memfd`) that stands for a virtual folder. By these bytes,
/// the library distinguishes this file from other memory files.
const MARK: &[u8] = b"folder of libethernot_paths.so\0";

const MARK_BYTES: libc::off_t = 31;
const _: () = assert!(MARK.len() == MARK_BYTES as usize);

const SEALS: c_int =
    libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Opens the virtual folder with this path. If no descriptor is free, sets `errno` and returns -1.
pub(crate) fn open(path: &[u8], flags: c_int) -> c_int {
    let close = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::MFD_CLOEXEC };
    let parts = [MARK, path]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: the name ends with a zero byte. The parts are read during the call. Only this
    // function knows the descriptor.
    unsafe {
        let made = libc::memfd_create(c"ethernot-folder".as_ptr(), close | libc::MFD_ALLOW_SEALING);
        if made < 0 {
            return made;
        }
        let written = libc::pwritev(made, parts.as_ptr(), 2, 0);
        if usize::try_from(written) != Ok(MARK.len() + path.len())
            || libc::fcntl(made, libc::F_ADD_SEALS, SEALS) != 0
        {
            libc::close(made);
            return crate::standing::fail(libc::EIO, -1);
        }
        ARE_ANY.store(true, Ordering::Relaxed);
        made
    }
}

/// Returns true if `path` is relative to the descriptor of a virtual folder.
///
/// # Safety
/// `path` must be null or end with a zero byte.
#[inline]
pub(crate) unsafe fn is_of_ours(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller guarantees that the text ends with a zero byte, so it has at least one
    // byte.
    let is_relative = || !path.is_null() && unsafe { path.read() } as u8 != b'/';
    ARE_ANY.load(Ordering::Relaxed) && folder >= 0 && is_relative() && is_ours(folder)
}

/// Returns true if the descriptor refers to a virtual folder.
#[inline]
pub(crate) fn is_ours(descriptor: c_int) -> bool {
    ARE_ANY.load(Ordering::Relaxed) && has_mark(descriptor)
}

#[cold]
fn has_mark(descriptor: c_int) -> bool {
    let mut found = [0; MARK.len()];
    read(descriptor, &mut found, 0) == Some(MARK.len()) && found == MARK
}

/// Stores the path of a virtual folder in `into`, followed by a zero byte. Returns the length of
/// the path. Returns `None` for other descriptors.
pub(crate) fn path(descriptor: c_int, into: &mut [u8; PATH_BYTES_MAX]) -> Option<usize> {
    if !is_ours(descriptor) {
        return None;
    }
    let length = read(descriptor, into, MARK_BYTES)?;
    *into.get_mut(length)? = 0;
    Some(length)
}

/// Reads from a sealed file in memory. Returns `None` for other files. Leaves `errno` unchanged.
fn read(descriptor: c_int, into: &mut [u8], at: libc::off_t) -> Option<usize> {
    let errno = crate::standing::errno();
    // SAFETY: the first call passes no memory. The second call passes a buffer with its length.
    let length = unsafe {
        if libc::fcntl(descriptor, libc::F_GET_SEALS) == SEALS {
            libc::pread(descriptor, into.as_mut_ptr().cast(), into.len(), at)
        } else {
            -1
        }
    };
    crate::standing::set_errno(errno);
    usize::try_from(length).ok()
}

/// The kernel's limit on the length of a path, including the zero byte at the end.
pub(crate) const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
