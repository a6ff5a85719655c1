//! Opens virtual files.

use std::ptr;

use libc::{FILE, c_char, c_int, mode_t};

use crate::descriptors;
use crate::next::interpose;
use crate::standing::{Standing, fail};
use crate::walk::{Walk, WalkPlace};

// On the supported architectures, a variadic argument is passed in the same register as a named
// one. If the caller passes no `mode`, the parameter has an arbitrary value, and the C library does
// not read it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("say how a third argument after `...` is passed on this architecture");

interpose! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| opened(walk, libc::AT_FDCWD, path, flags);
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| opened(walk, libc::AT_FDCWD, path, flags);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else -1, at (folder, path), by |walk| opened(walk, folder, path, flags);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else -1, at (folder, path), by |walk| opened(walk, folder, path, flags);
    __open_2(path: *const c_char, flags: c_int) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| opened(walk, libc::AT_FDCWD, path, flags);
    __open64_2(path: *const c_char, flags: c_int) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| opened(walk, libc::AT_FDCWD, path, flags);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| opened(walk, folder, path, flags);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| opened(walk, folder, path, flags);
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE,
        else ptr::null_mut(), at (libc::AT_FDCWD, path), by |walk| stream(walk, path, mode);
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE,
        else ptr::null_mut(), at (libc::AT_FDCWD, path), by |walk| stream(walk, path, mode);
}

/// Opens the file at a path. Returns `None` if the library leaves the path to the file system of
/// the host.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn opened(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> Option<c_int> {
    let is_exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let follows = flags & libc::O_NOFOLLOW == 0 && !is_exclusive;
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let standing = match unsafe { walk.go_quickly(folder, path, follows) } {
        WalkPlace::Host => return None,
        WalkPlace::Failed(number) => return Some(fail(number, -1)),
        WalkPlace::Ours(standing) => standing,
    };
    Some(match standing {
        Standing::Elsewhere => return None,
        Standing::Nothing if flags & libc::O_CREAT != 0 => fail(libc::EACCES, -1),
        Standing::Nothing => fail(libc::ENOENT, -1),
        _ if is_exclusive => fail(libc::EEXIST, -1),
        Standing::Folder if flags & libc::O_ACCMODE != libc::O_RDONLY => fail(libc::EISDIR, -1),
        Standing::Folder => descriptors::open(walk.path(), flags),
        Standing::Link => fail(libc::ELOOP, -1),
        _ if flags & libc::O_DIRECTORY != 0 => fail(libc::ENOTDIR, -1),
        Standing::File if flags & libc::O_ACCMODE != libc::O_RDONLY => fail(libc::EACCES, -1),
        Standing::File => file(walk.text.bytes(), flags),
        Standing::Device => {
            // SAFETY: the path ends with a zero byte.
            unsafe { libc::open(c"/dev/null".as_ptr(), flags & !libc::O_CREAT) }
        }
    })
}

/// Opens a stream for the file at a path. Returns `None` if the library leaves the path to the file
/// system of the host.
///
/// # Safety
/// `path` and `mode` must end with a zero byte.
unsafe fn stream(walk: &mut Walk, path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    let has = |wanted: c_int| {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        !unsafe { libc::strchr(mode, wanted) }.is_null()
    };
    let access = match (has(c_int::from(b'+')), has(c_int::from(b'r'))) {
        (true, _) => libc::O_RDWR,
        (false, true) => libc::O_RDONLY,
        (false, false) => libc::O_WRONLY,
    };
    let close = if has(c_int::from(b'e')) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let descriptor = unsafe { opened(walk, libc::AT_FDCWD, path, access | close) }?;
    if descriptor < 0 {
        return Some(ptr::null_mut());
    }
    // SAFETY: the caller guarantees that `mode` ends with a zero byte, and only this call knows the
    // descriptor.
    let stream = unsafe { libc::fdopen(descriptor, mode) };
    if stream.is_null() {
        // SAFETY: only this call knows the descriptor.
        unsafe { libc::close(descriptor) };
    }
    Some(stream)
}

/// Creates a file in memory that contains `text`. Its offset is 0.
fn file(text: &[u8], flags: c_int) -> c_int {
    let close = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::MFD_CLOEXEC };
    // SAFETY: the name ends with a zero byte.
    let descriptor = unsafe { libc::memfd_create(c"ethernot-path".as_ptr(), close) };
    if descriptor < 0 {
        return descriptor;
    }
    // SAFETY: the bytes are read during the call.
    let written = unsafe { libc::pwrite(descriptor, text.as_ptr().cast(), text.len(), 0) };
    if usize::try_from(written) == Ok(text.len()) {
        return descriptor;
    }
    // SAFETY: only this call knows the descriptor.
    unsafe { libc::close(descriptor) };
    fail(libc::EIO, -1)
}
