//! Reading virtual folders.

use std::mem::{offset_of, zeroed};
use std::ptr;

use libc::{DIR, c_char, c_int, c_long, dirent};

use crate::descriptors;
use crate::next::{call_next, interpose, interpose_descriptor};
use crate::standing::{Standing, Text, fail};
use crate::walk::{Numbering, PATH_BYTES_MAX, Walk, WalkPlace};

/// A virtual folder being read; programs have its address as a `DIR *`.
///
/// The first field of a virtual folder is `mark`, the address of [`MARK`]. A `DIR` of the C library
/// starts with its descriptor and a lock, whose bytes never equal this address. So the library
/// recognises virtual folders without a list. The lock of a list could stay locked in a forked
/// child.
#[repr(C)]
struct Folder {
    mark: usize,
    path: [u8; PATH_BYTES_MAX],
    length: usize,
    /// The names, in the form of [`Standing::Folder`].
    text: Text,
    /// Offset in `text` of the next name.
    at: usize,
    /// The descriptor; -1 until the program asks for it.
    descriptor: c_int,
    /// The entry returned last.
    entry: dirent,
}

/// A variable whose address identifies virtual folders.
static MARK: u64 = 0;

fn mark() -> usize {
    (&raw const MARK).addr()
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

interpose! {
    opendir(path: *const c_char) -> *mut DIR,
        else ptr::null_mut(), at (libc::AT_FDCWD, path), by |walk| opened(walk, path);
    scandir(path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| scanned(walk, path, list, filter, compare);
    scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int,
        else -1, at (libc::AT_FDCWD, path), by |walk| scanned(walk, path, list, filter, compare);
}

interpose_descriptor! {
    fdopendir(descriptor: c_int) -> *mut DIR,
        else ptr::null_mut(), at descriptor, by |walk| opened_by(walk, descriptor);
}

/// Defines functions on a `DIR`. For a virtual folder they return the result of `by`; for others
/// they call the C library.
macro_rules! of_folder {
    ($($symbol:ident ($folder:ident: *mut DIR $(, $argument:ident: $kind:ty)*) -> $result:ty,
        else $failed:expr, by $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($folder: *mut DIR $(, $argument: $kind)*) -> $result {
                // SAFETY: the caller has the folder from `opendir` and has not closed it.
                if unsafe { is_ours($folder) } {
                    let $folder = $folder.cast::<Folder>();
                    // SAFETY: a virtual folder that is not closed; the caller guarantees the other
                    // arguments.
                    return unsafe { $answer };
                }
                call_next!($symbol($folder: *mut DIR $(, $argument: $kind)*) -> $result, else $failed)
            }
        )*
    };
}

of_folder! {
    readdir(folder: *mut DIR) -> *mut dirent,
        else ptr::null_mut(), by next_entry(folder);
    readdir64(folder: *mut DIR) -> *mut dirent,
        else ptr::null_mut(), by next_entry(folder);
    readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int,
        else libc::ENOSYS, by copy_entry(folder, entry, result);
    readdir64_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int,
        else libc::ENOSYS, by copy_entry(folder, entry, result);
    closedir(folder: *mut DIR) -> c_int,
        else -1, by close(folder);
    rewinddir(folder: *mut DIR) -> (),
        else (), by (*folder).at = 0;
    telldir(folder: *mut DIR) -> c_long,
        else -1, by (*folder).at.cast_signed() as c_long;
    seekdir(folder: *mut DIR, place: c_long) -> (),
        else (), by (*folder).at = place.cast_unsigned() as usize;
    dirfd(folder: *mut DIR) -> c_int,
        else -1, by descriptor(folder);
}

/// Returns whether this is a virtual folder.
///
/// # Safety
/// `folder` is null, or was opened and is not closed.
unsafe fn is_ours(folder: *mut DIR) -> bool {
    // SAFETY: guaranteed by the caller; a `DIR` of the C library is at least as long as a `usize`.
    !folder.is_null() && unsafe { folder.cast::<usize>().read() } == mark()
}

/// Opens the virtual folder at a path; `None` if the path belongs to the host.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn opened(walk: &mut Walk, path: *const c_char) -> Option<*mut DIR> {
    // SAFETY: guaranteed by the caller.
    match unsafe { walk.go(libc::AT_FDCWD, path, true) } {
        WalkPlace::Host | WalkPlace::Ours(Standing::Elsewhere) => None,
        WalkPlace::Failed(number) => Some(fail(number, ptr::null_mut())),
        WalkPlace::Ours(Standing::Nothing) => Some(fail(libc::ENOENT, ptr::null_mut())),
        WalkPlace::Ours(Standing::File | Standing::Device | Standing::Link) => {
            Some(fail(libc::ENOTDIR, ptr::null_mut()))
        }
        WalkPlace::Ours(Standing::Folder) => Some(Box::into_raw(Folder::at(walk)).cast()),
    }
}

/// Opens the virtual folder of a descriptor, which then belongs to the `DIR`.
///
/// # Safety
/// Accepts any descriptor.
unsafe fn opened_by(walk: &mut Walk, descriptor: c_int) -> Option<*mut DIR> {
    match walk.go_to_descriptor(descriptor)? {
        Standing::Folder => {
            let mut folder = Folder::at(walk);
            folder.descriptor = descriptor;
            Some(Box::into_raw(folder).cast())
        }
        // The device has gone since the descriptor was opened.
        _ => Some(fail(libc::ENOENT, ptr::null_mut())),
    }
}

/// # Safety
/// A virtual folder that is not closed.
unsafe fn close(folder: *mut Folder) -> c_int {
    // SAFETY: guaranteed by the caller; the folder was allocated as a box, and is not used again.
    let folder = unsafe { Box::from_raw(folder) };
    if folder.descriptor >= 0 {
        // SAFETY: the descriptor belongs to the folder.
        unsafe { libc::close(folder.descriptor) };
    }
    0
}

/// Returns the next entry; null at the end.
///
/// # Safety
/// A virtual folder that is not closed.
unsafe fn next_entry(folder: *mut Folder) -> *mut dirent {
    // SAFETY: guaranteed by the caller.
    let folder = unsafe { &mut *folder };
    if folder.step() { &raw mut folder.entry } else { ptr::null_mut() }
}

/// Copies the next entry to the caller's memory; stores null in `result` at the end.
///
/// # Safety
/// A virtual folder that is not closed; `entry` and `result` may be written.
unsafe fn copy_entry(folder: *mut Folder, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { next_entry(folder) };
    if found.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { result.write(found) };
    } else {
        // SAFETY: guaranteed by the caller; the two entries do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(found, entry, 1);
            result.write(entry);
        }
    }
    0
}

/// Returns the descriptor of a folder; opens one the first time.
///
/// # Safety
/// A virtual folder that is not closed.
unsafe fn descriptor(folder: *mut Folder) -> c_int {
    // SAFETY: guaranteed by the caller.
    let folder = unsafe { &mut *folder };
    if folder.descriptor < 0 {
        let path = folder.path.get(..folder.length).unwrap_or_default();
        folder.descriptor = descriptors::open(path, libc::O_CLOEXEC);
    }
    folder.descriptor
}

impl Folder {
    /// Creates a folder from the path and the names found by a walk.
    fn at(walk: &Walk) -> Box<Self> {
        // SAFETY: all fields are numbers, for which zeros are valid.
        let entry = unsafe { zeroed() };
        let (mut path, length) = ([0; PATH_BYTES_MAX], walk.path().len());
        if let Some(room) = path.get_mut(..length) {
            room.copy_from_slice(walk.path());
        }
        let mut text = Text::new();
        text.push(b"d.\nd..\n");
        text.push(walk.text.bytes());
        Box::new(Self { mark: mark(), path, length, text, at: 0, descriptor: -1, entry })
    }

    /// Sets `entry` to the next name; returns false at the end.
    fn step(&mut self) -> bool {
        let rest = self.text.bytes().get(self.at..).unwrap_or(&[]);
        let Some([letter, name @ ..]) = rest.split(|&byte| byte == b'\n').next() else {
            return false;
        };
        self.at += name.len() + 2;
        let mut numbering = Numbering::new();
        numbering.add(self.path.get(..self.length).unwrap_or_default());
        match name {
            b"." => {}
            // The number of `..` is not that of the parent folder, because programs do not use it.
            name => {
                numbering.add(b"/");
                numbering.add(name);
            }
        }
        self.entry.d_ino = numbering.number();
        self.entry.d_off = self.at.cast_signed() as i64;
        self.entry.d_reclen = size_of::<dirent>() as u16;
        self.entry.d_type = match letter {
            b'd' => libc::DT_DIR,
            b'l' => libc::DT_LNK,
            b'c' => libc::DT_CHR,
            _ => libc::DT_REG,
        };
        let room = self.entry.d_name.len() - 1;
        self.entry.d_name.fill(0);
        for (into, &byte) in self.entry.d_name.iter_mut().take(room).zip(name) {
            *into = c_char::from_ne_bytes([byte]);
        }
        true
    }
}

/// Returns all entries of a virtual folder that pass the filter, sorted by `compare`.
///
/// # Safety
/// The arguments must be as `scandir` requires.
unsafe fn scanned(
    walk: &mut Walk,
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: Compare,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    let opened = unsafe { opened(walk, path) }?;
    if opened.is_null() {
        return Some(-1);
    }
    // SAFETY: created just above; no other reference to it exists.
    let mut folder = unsafe { Box::from_raw(opened.cast::<Folder>()) };
    let room = folder.text.bytes().split(|&byte| byte == b'\n').count();
    // SAFETY: the size is not 0, for which the result might be null.
    let entries =
        unsafe { libc::calloc(room.max(1), size_of::<*mut dirent>()) }.cast::<*mut dirent>();
    if entries.is_null() {
        return Some(-1);
    }
    let mut count = 0;
    while count < room && folder.step() {
        // SAFETY: the filter accepts any entry.
        if filter.is_some_and(|filter| unsafe { filter(&raw const folder.entry) } == 0) {
            continue;
        }
        // SAFETY: `malloc` accepts any size.
        let entry = unsafe { libc::malloc(size_of::<dirent>()) }.cast::<dirent>();
        if entry.is_null() {
            break;
        }
        // SAFETY: there is room for the entry, and the list has room for all names.
        unsafe {
            ptr::copy_nonoverlapping(&raw const folder.entry, entry, 1);
            entries.add(count).write(entry);
        }
        count += 1;
    }
    if let Some(compare) = compare {
        // SAFETY: the list has `count` entries; `compare` accepts their addresses, whatever the
        // declared type.
        unsafe {
            libc::qsort(entries.cast(), count, size_of::<*mut dirent>(), Some(untyped(compare)));
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { list.write(entries) };
    Some(c_int::try_from(count).unwrap_or(c_int::MAX))
}

type Untyped = unsafe extern "C" fn(*const libc::c_void, *const libc::c_void) -> c_int;

fn untyped(
    compare: unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int,
) -> Untyped {
    // SAFETY: pointers to different types are passed alike.
    unsafe { std::mem::transmute(compare) }
}

const _: () = assert!(offset_of!(Folder, mark) == 0, "a folder is known by what it begins with");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_returned_once() {
        let mut walk = Walk::new();
        walk.text.push(b"ledge0\n-abi_version\n");
        let mut folder = Folder::at(&walk);
        let mut names = Vec::new();
        while folder.step() {
            let name = folder.entry.d_name.iter().take_while(|&&byte| byte != 0);
            let name = name.map(|&byte| byte as u8 as char).collect::<String>();
            names.push((folder.entry.d_type, name));
        }
        let (folders, link, file) = (libc::DT_DIR, libc::DT_LNK, libc::DT_REG);
        let expected = [(folders, "."), (folders, ".."), (link, "edge0"), (file, "abi_version")];
        assert_eq!(names, expected.map(|(kind, name)| (kind, name.to_owned())));
        assert!(!folder.step());
        folder.at = usize::MAX;
        assert!(!folder.step(), "a place that never was");
    }
}
