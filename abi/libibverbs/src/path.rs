//! Looks up paths for `libethernot_paths.so`. That library makes the files of the devices visible
//! to programs.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use verbs::sysfs::{self, Found, Kind, SysfsEntry};

use crate::device::files;
use crate::failure::{invalid, silent};

/// Looks up an absolute path. Returns:
///
/// - 0 for a folder. The text has a line for each name in the folder. Each line begins with a
///   character for the kind of the entry, as in `ls -l`.
/// - 1 for a file. The text is the content of the file.
/// - 2 for a character device.
/// - 3 for a symbolic link. The text is the target of the link.
/// - -1 if the path does not exist.
/// - -2 if the path is not one of this library's paths, so that the file system of the host must
///   answer.
///
/// Writes the first `size` bytes of the text to `text`. Writes the full length of the text in bytes
/// to `length`.
///
/// # Safety
/// `path` must end with a zero, `text` must have room for `size` bytes, and `length` must be
/// writable.
#[unsafe(export_name = "ethernot_path")]
pub(crate) unsafe extern "C" fn path(
    path: *const c_char,
    text: *mut c_char,
    size: usize,
    length: *mut usize,
) -> c_int {
    // If there are no devices, for example because the settings are wrong, the program gets the
    // files of the host.
    silent("ethernot_path", OF_THE_HOST, || {
        if path.is_null() || text.is_null() || length.is_null() {
            return invalid("the path, the text or the length is null");
        }
        // SAFETY: the caller meets the requirements of this function.
        let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
        if sysfs::normalized(&path).is_none() {
            return Ok(OF_THE_HOST);
        }
        let (kind, found) = match sysfs::find(&files(&path)?, &path) {
            None => (-1, String::new()),
            Some(Found::Folder(names)) => {
                let line = |(name, kind): (String, Kind)| [letter(kind), &name, "\n"].concat();
                (0, names.into_iter().map(line).collect())
            }
            Some(Found::Entry(SysfsEntry::File(text))) => (1, text),
            Some(Found::Entry(SysfsEntry::Node)) => (2, String::new()),
            Some(Found::Entry(SysfsEntry::Link(target))) => (3, target),
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ptr::copy_nonoverlapping(found.as_ptr().cast(), text, found.len().min(size));
            length.write(found.len());
        }
        Ok(kind)
    })
}

const fn letter(kind: Kind) -> &'static str {
    match kind {
        Kind::Folder => "d",
        Kind::File => "-",
        Kind::Link => "l",
        Kind::Node => "c",
    }
}

const OF_THE_HOST: c_int = -2;
