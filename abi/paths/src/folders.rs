//! Reads virtual folders.

use std::mem::{offset_of, zeroed};
use std::ptr;

use libc::{DIR, c_char, c_int, c_long, dirent};

use crate::descriptors::{self, PATH_BYTES_MAX};
use crate::next::{call_next, interpose, interpose_descriptor};
use crate::standing::{Standing, Text, fail};
use crate::walk::{Numbering, Walk, WalkPlace};

/// A virtual folder that a program is reading. The program has its address as a `DIR *`.
///
/// The first field of a virtual folder is `mark`, which contains the address of [`MARK`]. A `DIR`
/// of the C library begins with its descriptor and a lock, and these bytes never equal this
/// address. So the first bytes show whether a `DIR` is a virtual folder, and the library needs no
/// list of virtual folders. A list would need a lock, and that lock could stay locked in a forked
/// child.
#[repr(C)]
struct Folder {
    mark: usize,
    path: [u8; PATH_BYTES_MAX],
    length: usize,
    /// The names in the folder, in the format of [`Standing::Folder`].
    text: Text,
    /// Offset in `text` of the next name.
    at: usize,
    /// The descriptor of the folder; -1 until the program requests it.
    descriptor: c_int,
    /// The entry that was returned last.
    entry: dirent,
}

/// A variable whose address marks virtual folders.
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

/// Defines functions that take a `DIR`. For a virtual folder, each function returns the result of
/// the expression after `by`. For other folders, the function calls the C library.
macro_rules! of_folder {
    ($($symbol:ident ($folder:ident: *mut DIR $(, $argument:ident: $kind:ty)*) -> $result:ty,
        else $failed:expr, by $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($folder: *mut DIR $(, $argument: $kind)*) -> $result {
                // SAFETY: the caller got the folder from `opendir` and has not closed it.
                if unsafe { is_ours($folder) } {
                    let $folder = $folder.cast::<Folder>();
                    // SAFETY: this is a virtual folder that is not closed. The caller guarantees
                    // the other arguments.
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

/// Returns true if this is a virtual folder.
///
/// # Safety
/// `folder` must be null, or open and not closed.
unsafe fn is_ours(folder: *mut DIR) -> bool {
    // SAFETY: the caller guarantees an open folder. A `DIR` of the C library is at least as long as
    // a `usize`.
    !folder.is_null() && unsafe { folder.cast::<usize>().read() } == mark()
}

/// Opens the virtual folder at a path. Returns `None` if the library leaves the path to the file
/// system of the host.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn opened(walk: &mut Walk, path: *const c_char) -> Option<*mut DIR> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
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

/// Opens the virtual folder that a descriptor refers to. The descriptor then belongs to the `DIR`.
/// Returns `None` if the descriptor does not refer to a virtual folder.
///
/// # Safety
/// Any descriptor is allowed.
unsafe fn opened_by(walk: &mut Walk, descriptor: c_int) -> Option<*mut DIR> {
    match walk.go_to_descriptor(descriptor)? {
        Standing::Folder => {
            let mut folder = Folder::at(walk);
            folder.descriptor = descriptor;
            Some(Box::into_raw(folder).cast())
        }
        // The device has disappeared since the descriptor was opened.
        _ => Some(fail(libc::ENOENT, ptr::null_mut())),
    }
}

/// # Safety
/// `folder` must be a virtual folder that is not closed.
unsafe fn close(folder: *mut Folder) -> c_int {
    // SAFETY: the caller guarantees an open virtual folder. It was allocated as a box, and is not
    // used after this call.
    let folder = unsafe { Box::from_raw(folder) };
    if folder.descriptor >= 0 {
        // SAFETY: the descriptor belongs to the folder.
        unsafe { libc::close(folder.descriptor) };
    }
    0
}

/// Returns the next entry, or null at the end.
///
/// # Safety
/// `folder` must be a virtual folder that is not closed.
unsafe fn next_entry(folder: *mut Folder) -> *mut dirent {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let folder = unsafe { &mut *folder };
    if folder.step() { &raw mut folder.entry } else { ptr::null_mut() }
}

/// Copies the next entry to the caller's memory. At the end, stores null in `result`.
///
/// # Safety
/// `folder` must be a virtual folder that is not closed. `entry` and `result` must be writable.
unsafe fn copy_entry(folder: *mut Folder, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let found = unsafe { next_entry(folder) };
    if found.is_null() {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { result.write(found) };
    } else {
        // SAFETY: the caller guarantees that both pointers are writable. The two entries do not
        // overlap.
        unsafe {
            ptr::copy_nonoverlapping(found, entry, 1);
            result.write(entry);
        }
    }
    0
}

/// Returns the descriptor of a folder. The first call opens the descriptor.
///
/// # Safety
/// `folder` must be a virtual folder that is not closed.
unsafe fn descriptor(folder: *mut Folder) -> c_int {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let folder = unsafe { &mut *folder };
    if folder.descriptor < 0 {
        let path = folder.path.get(..folder.length).unwrap_or_default();
        folder.descriptor = descriptors::open(path, libc::O_CLOEXEC);
    }
    folder.descriptor
}

impl Folder {
    /// Creates a folder from the path and the names that a walk has found.
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

    /// Sets `entry` to the next name. Returns false at the end.
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
            // `..` gets an inode number that differs from the parent folder's inode number. This
            // does no harm, because programs do not use the inode number of `..`.
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

/// Stores a list of the entries of a virtual folder in `list`: all entries that pass the filter,
/// sorted by `compare`. Returns the number of entries, or -1 if the folder cannot be read. Returns
/// `None` if the library leaves the path to the file system of the host.
///
/// # Safety
/// The arguments must be those that `scandir` requires.
unsafe fn scanned(
    walk: &mut Walk,
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: Compare,
) -> Option<c_int> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let opened = unsafe { opened(walk, path) }?;
    if opened.is_null() {
        return Some(-1);
    }
    // SAFETY: the folder was created just above, and no other reference to it exists.
    let mut folder = unsafe { Box::from_raw(opened.cast::<Folder>()) };
    let room = folder.text.bytes().split(|&byte| byte == b'\n').count();
    // SAFETY: `calloc` accepts any size. The size is not 0, because `calloc` may return null for 0.
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
        // SAFETY: the list has `count` entries. `compare` accepts their addresses, whatever type it
        // declares.
        unsafe {
            libc::qsort(entries.cast(), count, size_of::<*mut dirent>(), Some(untyped(compare)));
        }
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { list.write(entries) };
    Some(c_int::try_from(count).unwrap_or(c_int::MAX))
}

type Untyped = unsafe extern "C" fn(*const libc::c_void, *const libc::c_void) -> c_int;

fn untyped(
    compare: unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int,
) -> Untyped {
    // SAFETY: pointers to different types are passed in the same way.
    unsafe { std::mem::transmute(compare) }
}

const _: () = assert!(offset_of!(Folder, mark) == 0, "a folder is known by what it begins with");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_entry_is_returned_once() {
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
