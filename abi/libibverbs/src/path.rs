//! What stands at a path, for the library that shows programs the files of devices (`libethernot_paths.so`).

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use verbs::sysfs::{self, Found, Kind, SysfsEntry};

use crate::device::files;
use crate::failure::{invalid, silent};

/// What stands at an absolute path: 0 for a folder, 1 for a file, 2 for a character device, 3 for a symbolic link, -1 for
/// nothing, -2 if the path belongs to the host. The text of a file, the target of a link, or the names in a folder is written
/// to `text`, cut to `size` bytes, and its whole length to `length`. Each name has its own line, after a letter for
/// its kind as in `ls -l`.
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
    // Without devices, as with wrong settings, the host's own files are as good as any.
    silent("ethernot_path", OF_THE_HOST, || {
        if path.is_null() || text.is_null() || length.is_null() {
            return invalid("no path, or no room for what stands there");
        }
        // SAFETY: as the caller says.
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
        // SAFETY: as the caller says.
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
