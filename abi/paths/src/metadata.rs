//! Handles calls about the metadata and access rights of paths.

use std::mem::zeroed;
use std::ptr;

use libc::{
    c_char, c_int, c_uint, c_void, size_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx,
};

use crate::next::{interpose, interpose_descriptor};
use crate::standing::{Standing, fail};
use crate::walk::{Numbering, Walk, WalkPlace};

const CWD: c_int = libc::AT_FDCWD;

interpose! {
    stat(path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, 0, into);
    lstat(path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, ITSELF, into);
    fstatat(folder: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| stat_at(walk, folder, path, flags, into);
    stat64(path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, 0, into.cast());
    lstat64(path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, ITSELF, into.cast());
    fstatat64(folder: c_int, path: *const c_char, into: *mut Stat64, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| stat_at(walk, folder, path, flags, into.cast());
    __xstat(version: c_int, path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, 0, into);
    __lxstat(version: c_int, path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, ITSELF, into);
    __fxstatat(version: c_int, folder: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| stat_at(walk, folder, path, flags, into);
    __xstat64(version: c_int, path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, 0, into.cast());
    __lxstat64(version: c_int, path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at (CWD, path), by |walk| stat_at(walk, CWD, path, ITSELF, into.cast());
    __fxstatat64(version: c_int, folder: c_int, path: *const c_char, into: *mut Stat64, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| stat_at(walk, folder, path, flags, into.cast());
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int,
        else -1, at (folder, path), by |walk| statx_at(walk, folder, path, flags, into);
    access(path: *const c_char, mode: c_int) -> c_int,
        else -1, at (CWD, path), by |walk| allowed(walk, CWD, path, mode, 0);
    euidaccess(path: *const c_char, mode: c_int) -> c_int,
        else -1, at (CWD, path), by |walk| allowed(walk, CWD, path, mode, 0);
    eaccess(path: *const c_char, mode: c_int) -> c_int,
        else -1, at (CWD, path), by |walk| allowed(walk, CWD, path, mode, 0);
    faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int,
        else -1, at (folder, path), by |walk| allowed(walk, folder, path, mode, flags);
    readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| target(walk, CWD, path, into, size);
    __readlink_chk(path: *const c_char, into: *mut c_char, size: size_t, room: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| target(walk, CWD, path, into, size.min(room));
    readlinkat(folder: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at (folder, path), by |walk| target(walk, folder, path, into, size);
    __readlinkat_chk(folder: c_int, path: *const c_char, into: *mut c_char, size: size_t, room: size_t) -> ssize_t,
        else -1, at (folder, path), by |walk| target(walk, folder, path, into, size.min(room));
    realpath(path: *const c_char, into: *mut c_char) -> *mut c_char,
        else ptr::null_mut(), at (CWD, path), by |walk| resolved(walk, path, into);
    __realpath_chk(path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char,
        else ptr::null_mut(), at (CWD, path), by |walk| resolved(walk, path, into);
    canonicalize_file_name(path: *const c_char) -> *mut c_char,
        else ptr::null_mut(), at (CWD, path), by |walk| resolved(walk, path, ptr::null_mut());
    getxattr(path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| extended(walk, path, 0, Err(libc::ENODATA));
    lgetxattr(path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| extended(walk, path, ITSELF, Err(libc::ENODATA));
    listxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| extended(walk, path, 0, Ok(0));
    llistxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at (CWD, path), by |walk| extended(walk, path, ITSELF, Ok(0));
}

interpose_descriptor! {
    fstat(descriptor: c_int, into: *mut Stat) -> c_int,
        else -1, at descriptor, by |walk| stat_of_descriptor(walk, descriptor, into);
    fstat64(descriptor: c_int, into: *mut Stat64) -> c_int,
        else -1, at descriptor, by |walk| stat_of_descriptor(walk, descriptor, into.cast());
    __fxstat(version: c_int, descriptor: c_int, into: *mut Stat) -> c_int,
        else -1, at descriptor, by |walk| stat_of_descriptor(walk, descriptor, into);
    __fxstat64(version: c_int, descriptor: c_int, into: *mut Stat64) -> c_int,
        else -1, at descriptor, by |walk| stat_of_descriptor(walk, descriptor, into.cast());
}

/// Returns the kind of file that a path leads to, or an error number if there is no file. Returns
/// `None` if the library leaves the path to the file system of the host.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn reached(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> Option<Result<Standing, c_int>> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    match unsafe { walk.go(folder, path, flags & ITSELF == 0) } {
        WalkPlace::Host | WalkPlace::Ours(Standing::Elsewhere) => None,
        WalkPlace::Failed(number) => Some(Err(number)),
        WalkPlace::Ours(Standing::Nothing) => Some(Err(libc::ENOENT)),
        WalkPlace::Ours(standing) => Some(Ok(standing)),
    }
}

/// Writes the metadata of the file at a path. Returns 0, or -1 if there is no file. Returns `None`
/// if the library leaves the path to the file system of the host. `Stat` and `Stat64` are the same
/// type on the supported architectures.
///
/// # Safety
/// `path` must end with a zero byte. `into` must be writable.
unsafe fn stat_at(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    into: *mut Stat,
) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    match unsafe { reached(walk, folder, path, flags) }? {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        Ok(standing) => unsafe { into.write(attributes(walk, standing)) },
        Err(number) => return Some(fail(number, -1)),
    }
    Some(0)
}

/// Writes the metadata of the virtual folder that a descriptor refers to, and returns 0. Returns
/// `None` for other descriptors.
///
/// # Safety
/// `into` must be writable.
unsafe fn stat_of_descriptor(walk: &mut Walk, descriptor: c_int, into: *mut Stat) -> Option<c_int> {
    walk.go_to_descriptor(descriptor)?;
    // If the device has disappeared, the descriptor still refers to a folder.
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { into.write(attributes(walk, Standing::Folder)) };
    Some(0)
}

/// Writes the metadata of the file at a path, for `statx`. Returns the same values as [`stat_at`].
///
/// # Safety
/// `path` must end with a zero byte. `into` must be writable.
unsafe fn statx_at(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    into: *mut Statx,
) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let plain = match unsafe { reached(walk, folder, path, flags) }? {
        Ok(standing) => attributes(walk, standing),
        Err(number) => return Some(fail(number, -1)),
    };
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut found: Statx = unsafe { zeroed() };
    found.stx_mask = libc::STATX_BASIC_STATS;
    found.stx_dev_minor = libc::minor(plain.st_dev);
    found.stx_ino = plain.st_ino;
    found.stx_mode = plain.st_mode as u16;
    found.stx_nlink = plain.st_nlink as u32;
    found.stx_blksize = BLOCK_BYTES as u32;
    found.stx_size = plain.st_size.cast_unsigned();
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { into.write(found) };
    Some(0)
}

/// Returns the metadata of the file, folder or link at the path of a walk.
fn attributes(walk: &Walk, standing: Standing) -> Stat {
    let mut numbering = Numbering::new();
    numbering.add(walk.path());
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut found: Stat = unsafe { zeroed() };
    found.st_dev = DEVICE;
    found.st_ino = numbering.number();
    found.st_mode = mode(standing);
    // A link count of 1 for a folder means that the file system does not count subfolders.
    found.st_nlink = 1;
    found.st_blksize = BLOCK_BYTES.into();
    found.st_size = match standing {
        Standing::File | Standing::Link => walk.text.bytes().len().cast_signed() as i64,
        _ => 0,
    };
    found
}

const fn mode(standing: Standing) -> u32 {
    match standing {
        Standing::Folder => libc::S_IFDIR | 0o555,
        Standing::File => libc::S_IFREG | 0o444,
        Standing::Device => libc::S_IFCHR | 0o666,
        Standing::Link => libc::S_IFLNK | 0o777,
        Standing::Elsewhere | Standing::Nothing => 0,
    }
}

/// Returns 0 if every user may access the file at a path in the mode `wanted`. Otherwise sets
/// `errno` and returns -1. Returns `None` if the library leaves the path to the file system of the
/// host.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn allowed(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    wanted: c_int,
    flags: c_int,
) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let standing = match unsafe { walk.go_quickly(folder, path, flags & ITSELF == 0) } {
        WalkPlace::Host | WalkPlace::Ours(Standing::Elsewhere) => return None,
        WalkPlace::Failed(number) => return Some(fail(number, -1)),
        WalkPlace::Ours(Standing::Nothing) => return Some(fail(libc::ENOENT, -1)),
        WalkPlace::Ours(standing) => standing,
    };
    let is_allowed = wanted.cast_unsigned() & !mode(standing) == 0;
    Some(if is_allowed { 0 } else { fail(libc::EACCES, -1) })
}

/// Copies the target of a symbolic link to `into`, truncated to `size` bytes. Returns the number of
/// copied bytes, or -1 if there is no link at the path. Returns `None` if the library leaves the
/// path to the file system of the host.
///
/// # Safety
/// `path` must end with a zero byte. `into` must have room for `size` bytes.
unsafe fn target(
    walk: &mut Walk,
    folder: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
) -> Option<ssize_t> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    match unsafe { reached(walk, folder, path, ITSELF) }? {
        Ok(Standing::Link) if size > 0 => {
            let target = walk.text.bytes();
            let length = target.len().min(size);
            // SAFETY: the caller guarantees that `into` has room for `size` bytes.
            unsafe { ptr::copy_nonoverlapping(target.as_ptr().cast(), into, length) };
            Some(length.cast_signed())
        }
        Ok(_) => Some(fail(libc::EINVAL, -1)),
        Err(number) => Some(fail(number, -1)),
    }
}

/// Returns the result of a call about extended attributes. If there is a virtual file at the path,
/// this is `answer`, the result for a file without extended attributes. If there is no file, this
/// is -1. Returns `None` if the library leaves the path to the file system of the host.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn extended(
    walk: &mut Walk,
    path: *const c_char,
    flags: c_int,
    answer: Result<ssize_t, c_int>,
) -> Option<ssize_t> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let reached = unsafe { reached(walk, CWD, path, flags) }?;
    Some(reached.and(answer).unwrap_or_else(|number| fail(number, -1)))
}

/// Stores the path without links, `.` and `..` in `into`, or in new memory if `into` is null.
/// Returns the address of the stored path, or null if there is no file. Returns `None` if the
/// library leaves the path to the file system of the host.
///
/// # Safety
/// `path` must end with a zero byte. `into` must be null, or have room for `PATH_MAX` bytes.
unsafe fn resolved(walk: &mut Walk, path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    if let Err(number) = unsafe { reached(walk, CWD, path, 0) }? {
        return Some(fail(number, ptr::null_mut()));
    }
    let length = walk.path().len();
    let into = if into.is_null() {
        // SAFETY: `malloc` accepts any size.
        unsafe { libc::malloc(length + 1) }.cast::<c_char>()
    } else {
        into
    };
    if !into.is_null() {
        // SAFETY: there is room for the path and the zero byte at its end.
        unsafe { ptr::copy_nonoverlapping(walk.c_path(), into, length + 1) };
    }
    Some(into)
}

/// If this flag is set, the call concerns a link itself and not its target.
const ITSELF: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// The device number of virtual files. No file system has it.
const DEVICE: u64 = 0x6e;

const BLOCK_BYTES: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_readable_and_writable_and_other_files_read_only() {
        let rights = |standing| mode(standing) & 0o777;
        assert_eq!(rights(Standing::Device), 0o666);
        assert_eq!(rights(Standing::File), 0o444);
        assert_eq!(rights(Standing::Folder), 0o555);
        assert_eq!(rights(Standing::Link), 0o777);
    }
}
