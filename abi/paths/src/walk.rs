//! Walks along paths: resolves symbolic links and `..` like a file system.

use std::ffi::CStr;

use libc::{c_char, c_int};

use crate::descriptors::{self, PATH_BYTES_MAX};
use crate::standing::{Standing, Text, look, may_be_ours};

/// The place at which a walk has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WalkPlace {
    /// The place is a virtual folder or is below one. The value describes the object at the place.
    /// The path of the walk is the full path of this object.
    Ours(Standing),
    /// The place is in the file system of the host. The path of the walk leads to this place, and
    /// contains no virtual link.
    Host,
    /// The walk has failed with this error number.
    Failed(c_int),
}

/// A walk along a path.
pub(crate) struct Walk {
    /// The path so far, without links, `.` and `..`. It is empty, or has a slash and a name for
    /// each step.
    path: [u8; PATH_BYTES_MAX],
    length: usize,
    /// The contents of the file at the path: its text, the names in a folder, or the target of a
    /// link.
    pub(crate) text: Text,
}

impl Walk {
    pub(crate) const fn new() -> Self {
        Self { path: [0; PATH_BYTES_MAX], length: 0, text: Text::new() }
    }

    /// Returns the path without links, `.` and `..`.
    pub(crate) fn path(&self) -> &[u8] {
        self.path.get(..self.length).unwrap_or_default()
    }

    /// Returns the path, followed by a zero byte. Returns a slash for the root.
    pub(crate) fn c_path(&self) -> *const c_char {
        if self.length == 0 { c"/".as_ptr() } else { self.path.as_ptr().cast() }
    }

    /// Walks along a path that [may be ours](is_candidate). If `follows` is true and a link is at
    /// the end of the path, follows the link.
    ///
    /// # Safety
    /// `path` must end with a zero byte.
    pub(crate) unsafe fn go(
        &mut self,
        folder: c_int,
        path: *const c_char,
        follows: bool,
    ) -> WalkPlace {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        self.length = 0;
        if !given.starts_with(b"/") {
            // The path of a virtual folder never contains links.
            match descriptors::path(folder, &mut self.path) {
                Some(length) => self.length = length,
                None => return WalkPlace::Failed(libc::EBADF),
            }
        }
        match self.along(given, follows) {
            Ok(place) => place,
            Err(number) => WalkPlace::Failed(number),
        }
    }

    /// Does the same as [`Walk::go`] for a caller that does not need the path. First looks up the
    /// whole path in one step, which is enough if it leads to a file or device.
    ///
    /// # Safety
    /// `path` must end with a zero byte.
    pub(crate) unsafe fn go_quickly(
        &mut self,
        folder: c_int,
        path: *const c_char,
        follows: bool,
    ) -> WalkPlace {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        let is_plain = given.starts_with(b"/")
            && !given.ends_with(b"/")
            && given.split(|&byte| byte == b'/').all(|part| part != b"." && part != b"..");
        if is_plain {
            // SAFETY: the caller fulfils the `# Safety` section of this function.
            let standing = unsafe { look(path, &mut self.text) };
            if matches!(standing, Standing::File | Standing::Device) {
                return WalkPlace::Ours(standing);
            }
        }
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { self.go(folder, path, follows) }
    }

    /// Goes to the virtual folder that a descriptor refers to. Returns `None` for other
    /// descriptors.
    pub(crate) fn go_to_descriptor(&mut self, descriptor: c_int) -> Option<Standing> {
        self.length = descriptors::path(descriptor, &mut self.path)?;
        Some(self.look())
    }

    fn along(&mut self, given: &[u8], follows: bool) -> Result<WalkPlace, c_int> {
        let mut rest = Rest::new();
        rest.put_in_front(given)?;
        let mut links = 0;
        // True if the path so far must lead to a folder, because a slash or `.` follows.
        let mut wants_folder = false;
        while let Some((start, end, is_last)) = rest.next(&mut wants_folder) {
            let mut name = [0; NAME_BYTES_MAX];
            let name = {
                let part = rest.bytes.get(start..end).unwrap_or_default();
                let room = name.get_mut(..part.len()).ok_or(libc::ENAMETOOLONG)?;
                room.copy_from_slice(part);
                &*room
            };
            if name == b".." {
                self.leave();
                continue;
            }
            let before = self.length;
            self.enter(name)?;
            let target = match self.look() {
                Standing::Link if is_last && !follows && !wants_folder => continue,
                Standing::Link => Some(self.text.length()),
                Standing::Nothing if !is_last => return Err(libc::ENOENT),
                Standing::File | Standing::Device if !is_last || wants_folder => {
                    return Err(libc::ENOTDIR);
                }
                // Follow a link of the host only before the last name. If the last name is such a
                // link, the C library follows the link.
                Standing::Elsewhere if !is_last => self.read_host_link(),
                _ => None,
            };
            if let Some(length) = target {
                links += 1;
                if links > LINKS_MAX {
                    return Err(libc::ELOOP);
                }
                let target = self.text.bytes().get(..length).unwrap_or_default();
                rest.put_in_front(target)?;
                let is_absolute = target.starts_with(b"/");
                self.length = if is_absolute { 0 } else { before };
                self.end();
            }
        }
        Ok(match self.look() {
            Standing::Elsewhere => {
                if wants_folder && self.length > 0 {
                    self.enter(b"")?;
                }
                WalkPlace::Host
            }
            standing => WalkPlace::Ours(standing),
        })
    }

    /// Looks up what is at the path so far.
    fn look(&mut self) -> Standing {
        let path = self.c_path();
        // SAFETY: the path ends with a zero byte.
        unsafe { if may_be_ours(path) { look(path, &mut self.text) } else { Standing::Elsewhere } }
    }

    /// Reads a symbolic link of the host into the text. Returns the length of its target. Returns
    /// `None` if the path is not a link.
    fn read_host_link(&mut self) -> Option<usize> {
        let path = self.c_path();
        let room = self.text.room();
        // SAFETY: the path ends with a zero byte, and the buffer has the length that is passed.
        let length = unsafe {
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path, room.as_mut_ptr(), room.len())
        };
        let length = usize::try_from(length).ok().filter(|&length| length < PATH_BYTES_MAX)?;
        self.text.set_length(length);
        Some(length)
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), c_int> {
        let end = self.length + 1 + name.len();
        // One byte is added for the zero byte at the end.
        let room = self.path.get_mut(self.length..=end).ok_or(libc::ENAMETOOLONG)?;
        if let [slash, room @ .., zero] = room {
            *slash = b'/';
            room.copy_from_slice(name);
            *zero = 0;
        }
        self.length = end;
        Ok(())
    }

    fn leave(&mut self) {
        self.length = self.path().iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.end();
    }

    /// Writes a zero byte after the path.
    fn end(&mut self) {
        if let Some(zero) = self.path.get_mut(self.length) {
            *zero = 0;
        }
    }
}

/// Computes the inode number of a virtual file: the FNV-1a hash of its path. Programs compare inode
/// numbers to find out whether two paths lead to the same file.
pub(crate) struct Numbering(u64);

impl Numbering {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a part of the path to the hash.
    pub(crate) fn add(&mut self, part: &[u8]) {
        for &byte in part {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.0
    }
}

/// The part of a path along which the walk must still go.
struct Rest {
    bytes: [u8; PATH_BYTES_MAX],
    at: usize,
    length: usize,
}

impl Rest {
    const fn new() -> Self {
        Self { bytes: [0; PATH_BYTES_MAX], at: 0, length: 0 }
    }

    /// Puts the target of a link in front of the rest of the path.
    fn put_in_front(&mut self, target: &[u8]) -> Result<(), c_int> {
        let kept = self.at..self.length;
        // One byte is added for the slash between the two parts.
        let end = target.len() + 1 + kept.len();
        if end > self.bytes.len() {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes.copy_within(kept.clone(), target.len() + 1);
        let front = self.bytes.get_mut(..=target.len()).ok_or(libc::ENAMETOOLONG)?;
        let (last, front) = front.split_last_mut().ok_or(libc::ENAMETOOLONG)?;
        front.copy_from_slice(target);
        *last = b'/';
        // Add no slash at the end of a path, because that slash would require a folder there.
        (self.at, self.length) = (0, if kept.is_empty() { target.len() } else { end });
        Ok(())
    }

    /// Returns the start and end of the next name, and true if it is the last name. Sets
    /// `wants_folder` to true if a slash follows the name.
    fn next(&mut self, wants_folder: &mut bool) -> Option<(usize, usize, bool)> {
        let is_name = |part: &[u8]| !part.is_empty() && part != b".";
        loop {
            let left = self.bytes.get(self.at..self.length).filter(|left| !left.is_empty())?;
            let end = left.iter().position(|&byte| byte == b'/').unwrap_or(left.len());
            let start = self.at;
            let (part, behind) = left.split_at(end);
            self.at = (start + end + 1).min(self.length);
            if is_name(part) {
                *wants_folder = !behind.is_empty();
                let is_last = !behind.split(|&byte| byte == b'/').any(is_name);
                return Some((start, start + end, is_last));
            }
        }
    }
}

/// Calls `work` with a new walk. This function is not inlined, because a walk takes much stack and
/// most calls do not need one.
#[cold]
#[inline(never)]
pub(crate) fn walking<R>(work: impl FnOnce(&mut Walk) -> R) -> R {
    work(&mut Walk::new())
}

/// Returns true if a path may lead to a virtual file.
///
/// # Safety
/// `path` must be null or end with a zero byte.
#[inline]
pub(crate) unsafe fn is_candidate(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { may_be_ours(path) || descriptors::is_of_ours(folder, path) }
}

const NAME_BYTES_MAX: usize = 255;

/// The kernel's limit on the number of links followed along a path.
const LINKS_MAX: u32 = 40;
