//! What paths name, and whether they may be used.

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;

use libc::{
    c_char, c_int, c_uint, size_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx,
};

use crate::next::interpose;
use crate::standing::{Standing, Text, fail, look};

interpose! {
    stat(path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at path, by told(path, into);
    lstat(path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at path, by told(path, into);
    fstatat(folder: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int,
        else -1, at path, by told(path, into);
    stat64(path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at path, by told(path, into.cast());
    lstat64(path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at path, by told(path, into.cast());
    fstatat64(folder: c_int, path: *const c_char, into: *mut Stat64, flags: c_int) -> c_int,
        else -1, at path, by told(path, into.cast());
    __xstat(version: c_int, path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at path, by told(path, into);
    __lxstat(version: c_int, path: *const c_char, into: *mut Stat) -> c_int,
        else -1, at path, by told(path, into);
    __fxstatat(version: c_int, folder: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int,
        else -1, at path, by told(path, into);
    __xstat64(version: c_int, path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at path, by told(path, into.cast());
    __lxstat64(version: c_int, path: *const c_char, into: *mut Stat64) -> c_int,
        else -1, at path, by told(path, into.cast());
    __fxstatat64(version: c_int, folder: c_int, path: *const c_char, into: *mut Stat64, flags: c_int) -> c_int,
        else -1, at path, by told(path, into.cast());
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int,
        else -1, at path, by told_extended(path, into);
    access(path: *const c_char, mode: c_int) -> c_int,
        else -1, at path, by allowed(path, mode);
    euidaccess(path: *const c_char, mode: c_int) -> c_int,
        else -1, at path, by allowed(path, mode);
    eaccess(path: *const c_char, mode: c_int) -> c_int,
        else -1, at path, by allowed(path, mode);
    faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int,
        else -1, at path, by allowed(path, mode);
    readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at path, by no_link(path);
    __readlink_chk(path: *const c_char, into: *mut c_char, size: size_t, room: size_t) -> ssize_t,
        else -1, at path, by no_link(path);
    readlinkat(folder: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t,
        else -1, at path, by no_link(path);
    __readlinkat_chk(folder: c_int, path: *const c_char, into: *mut c_char, size: size_t, room: size_t) -> ssize_t,
        else -1, at path, by no_link(path);
    realpath(path: *const c_char, into: *mut c_char) -> *mut c_char,
        else ptr::null_mut(), at path, by resolved(path, into);
    __realpath_chk(path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char,
        else ptr::null_mut(), at path, by resolved(path, into);
    canonicalize_file_name(path: *const c_char) -> *mut c_char,
        else ptr::null_mut(), at path, by resolved(path, ptr::null_mut());
}

/// Tells of what stands at one of our paths. On the architectures there are, both forms of it are one.
///
/// # Safety
/// `path` ends with a zero, `into` may be written.
#[cold]
unsafe fn told(path: *const c_char, into: *mut Stat) -> Option<c_int> {
    let mut text = Text::new();
    // SAFETY: the caller's.
    let (mode, links) = match attributes(unsafe { look(path, &mut text) })? {
        Ok(attributes) => attributes,
        Err(number) => return Some(fail(number, -1)),
    };
    // SAFETY: it is made of numbers.
    let mut found: Stat = unsafe { zeroed() };
    found.st_dev = DEVICE;
    // SAFETY: the caller's.
    found.st_ino = unsafe { number(path) };
    found.st_mode = mode;
    found.st_nlink = links.into();
    found.st_blksize = BLOCK_BYTES.into();
    found.st_size = size(mode, &text);
    // SAFETY: the caller's.
    unsafe { into.write(found) };
    Some(0)
}

/// The same in the other form.
///
/// # Safety
/// `path` ends with a zero, `into` may be written.
#[cold]
unsafe fn told_extended(path: *const c_char, into: *mut Statx) -> Option<c_int> {
    let mut text = Text::new();
    // SAFETY: the caller's.
    let (mode, links) = match attributes(unsafe { look(path, &mut text) })? {
        Ok(attributes) => attributes,
        Err(number) => return Some(fail(number, -1)),
    };
    // SAFETY: it is made of numbers.
    let mut found: Statx = unsafe { zeroed() };
    found.stx_mask = libc::STATX_TYPE
        | libc::STATX_MODE
        | libc::STATX_NLINK
        | libc::STATX_SIZE
        | libc::STATX_INO;
    found.stx_dev_minor = DEVICE as u32;
    // SAFETY: the caller's.
    found.stx_ino = unsafe { number(path) };
    found.stx_mode = mode as u16;
    found.stx_nlink = links;
    found.stx_blksize = BLOCK_BYTES as u32;
    found.stx_size = size(mode, &text) as u64;
    // SAFETY: the caller's.
    unsafe { into.write(found) };
    Some(0)
}

/// Mode and links, or the number of an error; `None` if the C library knows.
fn attributes(standing: Standing) -> Option<Result<(u32, u32), c_int>> {
    match standing {
        Standing::Elsewhere => None,
        Standing::Nothing => Some(Err(libc::ENOENT)),
        Standing::Folder => Some(Ok((libc::S_IFDIR | 0o555, 2))),
        Standing::File => Some(Ok((libc::S_IFREG | 0o444, 1))),
        Standing::Device => Some(Ok((libc::S_IFCHR | 0o666, 1))),
    }
}

/// Bytes of a file's text.
fn size(mode: u32, text: &Text) -> i64 {
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    if is_file { text.bytes().len().cast_signed() as i64 } else { 0 }
}

/// The number of what stands at a path, by which programs know two names of one thing: FNV-1a of the plain path.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn number(path: *const c_char) -> u64 {
    // SAFETY: the caller's.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut plain = [0; libc::PATH_MAX as usize];
    let length = normalize(given, &mut plain).unwrap_or(0);
    let bytes = plain.iter().take(length);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Whether everybody may do this with what stands at one of our paths.
///
/// # Safety
/// `path` ends with a zero.
#[cold]
unsafe fn allowed(path: *const c_char, mode: c_int) -> Option<c_int> {
    // SAFETY: the caller's.
    Some(match attributes(unsafe { look(path, &mut Text::new()) })? {
        Err(number) => fail(number, -1),
        Ok((is, _)) if mode.cast_unsigned() & !is != 0 => fail(libc::EACCES, -1),
        Ok(_) => 0,
    })
}

/// Nothing of ours is a symbolic link.
///
/// # Safety
/// `path` ends with a zero.
#[cold]
unsafe fn no_link(path: *const c_char) -> Option<ssize_t> {
    // SAFETY: the caller's.
    match attributes(unsafe { look(path, &mut Text::new()) })? {
        Err(number) => Some(fail(number, -1)),
        Ok(_) => Some(fail(libc::EINVAL, -1)),
    }
}

/// The path without what says nothing.
///
/// # Safety
/// `path` ends with a zero; `into` is null, or has room for `PATH_MAX` bytes.
#[cold]
unsafe fn resolved(path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: the caller's.
    if let Err(number) = attributes(unsafe { look(path, &mut Text::new()) })? {
        return Some(fail(number, ptr::null_mut()));
    }
    // SAFETY: the caller's.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut plain = [0; libc::PATH_MAX as usize];
    let Some(length) = normalize(given, &mut plain) else {
        return Some(fail(libc::ENAMETOOLONG, ptr::null_mut()));
    };
    let into = if into.is_null() {
        // SAFETY: any size may be asked for.
        unsafe { libc::malloc(length + 1) }.cast::<c_char>()
    } else {
        into
    };
    if !into.is_null() {
        // SAFETY: there is room for the path and the zero behind it.
        unsafe { ptr::copy_nonoverlapping(plain.as_ptr().cast(), into, length + 1) };
    }
    Some(into)
}

/// Writes the path without empty parts, `.` and `..`; how long it is. A zero stands behind it.
fn normalize(path: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let plain = into.get(..length)?;
                length = plain.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            }
            part => {
                *into.get_mut(length)? = b'/';
                into.get_mut(length + 1..length + 1 + part.len())?.copy_from_slice(part);
                length += 1 + part.len();
            }
        }
    }
    *into.get_mut(length)? = 0;
    Some(length)
}

/// The number of a device that no file system is on.
const DEVICE: u64 = 0x6e;

const BLOCK_BYTES: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_resolved_as_the_kernel_would() {
        let resolved = |path: &str, room: usize| {
            let mut into = vec![1; room];
            let length = normalize(path.as_bytes(), &mut into)?;
            assert_eq!(into[length], 0);
            into.truncate(length);
            String::from_utf8(into).ok()
        };
        let plain = "/sys/class/infiniband/edge0";
        for path in
            [plain, "//sys/./class/infiniband//edge0/", "/sys/class/infiniband/edge0/ports/.."]
        {
            assert_eq!(resolved(path, 64).as_deref(), Some(plain), "{path}");
        }
        assert_eq!(resolved(plain, plain.len() + 1).as_deref(), Some(plain));
        assert_eq!(resolved(plain, plain.len()), None, "no room for the zero");
        assert_eq!(resolved("/..", 8).as_deref(), Some(""));
    }

    #[test]
    fn devices_may_be_read_and_written_and_the_rest_only_read() {
        let mode =
            |standing| attributes(standing).and_then(Result::ok).map(|(mode, _)| mode & 0o777);
        assert_eq!(mode(Standing::Device), Some(0o666));
        assert_eq!(mode(Standing::File), Some(0o444));
        assert_eq!(mode(Standing::Folder), Some(0o555));
        assert_eq!(attributes(Standing::Nothing), Some(Err(libc::ENOENT)));
        assert_eq!(attributes(Standing::Elsewhere), None);
    }
}
