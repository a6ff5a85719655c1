//! Looks up paths for `libethernot_paths.so`, which shows the files of devices to programs.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use verbs::sysfs::{self, Found, Kind, SysfsEntry};

use crate::device::files;
use crate::failure::{invalid, silent};

/// Looks up an absolute path. Returns:
///
/// - 0 for a folder; the text has a line for each name in it, after a letter for its kind as in
///   `ls -l`,
/// - 1 for a file; the text is its contents,
/// - 2 for a character device,
/// - 3 for a symbolic link; the text is its target,
/// - -1 if nothing exists there,
/// - -2 if the path belongs to the host.
///
/// Writes the text to `text`, cut to `size` bytes, and its whole length to `length`.
///
/// # Safety
/// `path` ends with a zero; `text` has room for `size` bytes; `length` may be written.
#[unsafe(export_name = "ethernot_path")]
pub(crate) unsafe extern "C" fn path(
    path: *const c_char,
    text: *mut c_char,
    size: usize,
    length: *mut usize,
) -> c_int {
    // If there are no devices, for instance because of wrong settings, the host's own files are
    // used.
    silent("ethernot_path", OF_THE_HOST, || {
        if path.is_null() || text.is_null() || length.is_null() {
            return invalid("the path, the text or the length is null");
        }
        // SAFETY: guaranteed by the caller.
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
        // SAFETY: guaranteed by the caller.
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
