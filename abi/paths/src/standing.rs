//! Looks up paths in `libibverbs.so.1`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_void, size_t};

/// The object at a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Standing {
    /// The library leaves the path to the file system of the host.
    Elsewhere,
    /// There is no object at the path, and the path is below a virtual folder.
    Nothing,
    /// A folder. The text has a line for each name; the first character of the line is the kind of
    /// the file.
    Folder,
    /// A file. The text is its contents.
    File,
    /// A character device.
    Device,
    /// A symbolic link. The text is its target.
    Link,
}

/// The contents of a file, or the names in a folder. The size is sufficient, because a GID table
/// has at most a few hundred entries.
pub(crate) struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; TEXT_BYTES_MAX], length: 0 }
    }

    /// Appends `text`, truncated to the free space.
    pub(crate) fn push(&mut self, text: &[u8]) {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let length = text.len().min(room.len());
        for (into, &byte) in room.iter_mut().zip(text) {
            *into = byte;
        }
        self.length += length;
    }

    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// Returns the whole buffer. The caller must fill it and then call [`Text::set_length`].
    pub(crate) const fn room(&mut self) -> &mut [u8; TEXT_BYTES_MAX] {
        &mut self.bytes
    }

    pub(crate) fn set_length(&mut self, length: usize) {
        self.length = length.min(TEXT_BYTES_MAX);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// Looks up a path that [may be ours](may_be_ours), and stores the contents in `text`.
///
/// # Safety
/// `path` must end with a zero byte.
pub(crate) unsafe fn look(path: *const c_char, text: &mut Text) -> Standing {
    let Some(ask) = library() else { return Standing::Elsewhere };
    let mut length = 0;
    // This lookup must leave `errno` unchanged.
    let errno = errno();
    // SAFETY: the path ends with a zero byte, and `text` has room for that many bytes.
    let answer =
        unsafe { ask(path, text.bytes.as_mut_ptr().cast(), text.bytes.len(), &raw mut length) };
    set_errno(errno);
    text.length = length.min(text.bytes.len());
    match answer {
        0 => Standing::Folder,
        1 => Standing::File,
        2 => Standing::Device,
        3 => Standing::Link,
        -1 => Standing::Nothing,
        _ => Standing::Elsewhere,
    }
}

/// Returns true if a path starts with the path of a virtual folder.
///
/// # Safety
/// `path` must be null or end with a zero byte.
#[inline]
pub(crate) unsafe fn may_be_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    let begins_with = |root: &[u8]| {
        root.iter().enumerate().all(|(at, &byte)| {
            // SAFETY: all bytes before this one equal bytes of the root, which are not zero, so the
            // path has not ended.
            let there = unsafe { *path.add(at) };
            there as u8 == byte
        })
    };
    begins_with(b"/sys/class/infiniband")
        || begins_with(b"/sys/devices/virtual/infiniband")
        || begins_with(b"/dev/infiniband")
}

/// Returns the function `ethernot_path` of `libibverbs.so.1`. Returns `None` if that library is not
/// loaded. The result of the function is the kind of the object at a path. 0 is a folder, 1 a file,
/// 2 a character device, and 3 a symbolic link. -1 means that nothing is at the path. -2 means that
/// the library leaves the path to the file system of the host.
fn library() -> Option<Ask> {
    let known = LIBRARY.load(Ordering::Acquire);
    let found = if known.is_null() {
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, ASK.as_ptr()) }
    } else {
        known
    };
    if found.is_null() {
        return None;
    }
    LIBRARY.store(found, Ordering::Release);
    // SAFETY: the function with this name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Ask>(found) })
}

pub(crate) type Ask =
    unsafe extern "C" fn(*const c_char, *mut c_char, size_t, *mut size_t) -> c_int;

static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

const ASK: &CStr = c"ethernot_path";

/// Replaces `ethernot_path` in tests.
#[cfg(test)]
pub(crate) fn answer_by(function: Ask) {
    LIBRARY.store(function as *mut c_void, Ordering::Release);
}

/// Sets `errno` and returns `value`.
pub(crate) fn fail<T>(number: c_int, value: T) -> T {
    set_errno(number);
    value
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address belongs to this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address belongs to this thread's `errno`.
    unsafe { *libc::__errno_location() = number };
}

const TEXT_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_rdma_devices_are_intercepted() {
        // SAFETY: the paths end with a zero byte.
        let is_ours = |path: &CStr| unsafe { may_be_ours(path.as_ptr()) };
        for path in [c"/sys/class/infiniband", c"/sys/class/infiniband_mad/x", c"/dev/infiniband/"]
        {
            assert!(is_ours(path), "{path:?}");
        }
        for path in [c"", c"/", c"/sys/class/infinib", c"/dev/null", c"/dev/infinibanD/uverbs0"] {
            assert!(!is_ours(path), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { may_be_ours(std::ptr::null()) });
    }
}
