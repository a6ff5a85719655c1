//! Where a path leads: symbolic links and `..` by the rules of the file system.

use std::ffi::CStr;

use libc::{c_char, c_int};

use crate::descriptors;
use crate::standing::{Standing, Text, look, may_be_ours};

/// Where a path has led.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WalkPlace {
    /// Something of ours, at the path of the walk.
    Ours(Standing),
    /// A path of the host: that of the walk, which has no links of ours in it.
    Host,
    /// Nowhere; the number of the error.
    Failed(c_int),
}

/// A walk along a path.
pub(crate) struct Walk {
    /// What the path has led to so far, without links, `.` and `..`: empty, or a slash and a name for each step.
    path: [u8; PATH_BYTES_MAX],
    length: usize,
    /// Of what stands there.
    pub(crate) text: Text,
}

impl Walk {
    pub(crate) const fn new() -> Self {
        Self { path: [0; PATH_BYTES_MAX], length: 0, text: Text::new() }
    }

    /// The path without links, `.` and `..`.
    pub(crate) fn path(&self) -> &[u8] {
        self.path.get(..self.length).unwrap_or_default()
    }

    /// The same, with a zero behind it; the root is a slash.
    pub(crate) fn c_path(&self) -> *const c_char {
        if self.length == 0 { c"/".as_ptr() } else { self.path.as_ptr().cast() }
    }

    /// Walks along a path that [may be ours](is_candidate); a link at its end is followed if `follows`.
    ///
    /// # Safety
    /// `path` ends with a zero.
    pub(crate) unsafe fn go(
        &mut self,
        folder: c_int,
        path: *const c_char,
        follows: bool,
    ) -> WalkPlace {
        // SAFETY: the caller's.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        self.length = 0;
        if !given.starts_with(b"/") {
            // A path of a folder of ours has no links in it.
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

    /// The same for a caller that does not need the path: asks once, unless the path may lead on from where it leads.
    ///
    /// # Safety
    /// `path` ends with a zero.
    pub(crate) unsafe fn go_quickly(
        &mut self,
        folder: c_int,
        path: *const c_char,
        follows: bool,
    ) -> WalkPlace {
        // SAFETY: the caller's.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        let is_plain = given.starts_with(b"/")
            && !given.ends_with(b"/")
            && given.split(|&byte| byte == b'/').all(|part| part != b"." && part != b"..");
        if is_plain {
            // SAFETY: the caller's.
            let standing = unsafe { look(path, &mut self.text) };
            if matches!(standing, Standing::File | Standing::Device) {
                return WalkPlace::Ours(standing);
            }
        }
        // SAFETY: the caller's.
        unsafe { self.go(folder, path, follows) }
    }

    /// Goes to the virtual folder that a descriptor refers to.
    pub(crate) fn go_to_descriptor(&mut self, descriptor: c_int) -> Option<Standing> {
        self.length = descriptors::path(descriptor, &mut self.path)?;
        Some(self.look())
    }

    fn along(&mut self, given: &[u8], follows: bool) -> Result<WalkPlace, c_int> {
        let mut rest = Rest::new();
        rest.put_in_front(given)?;
        let mut links = 0;
        // Whether the path goes on as only that of a folder does: with a slash, or `.`.
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
                // The C library goes the last step by itself.
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

    /// What stands at the path so far.
    fn look(&mut self) -> Standing {
        let path = self.c_path();
        // SAFETY: the path ends with a zero.
        unsafe { if may_be_ours(path) { look(path, &mut self.text) } else { Standing::Elsewhere } }
    }

    /// Reads a symbolic link of the host into the text; its length, or `None` if it is none.
    fn read_host_link(&mut self) -> Option<usize> {
        let path = self.c_path();
        let room = self.text.room();
        // SAFETY: the path ends with a zero; the buffer has the length that is passed.
        let length = unsafe {
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path, room.as_mut_ptr(), room.len())
        };
        let length = usize::try_from(length).ok().filter(|&length| length < PATH_BYTES_MAX)?;
        self.text.set_length(length);
        Some(length)
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), c_int> {
        let end = self.length + 1 + name.len();
        // One more, for the zero behind it.
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

    /// Puts the zero behind the path.
    fn end(&mut self) {
        if let Some(zero) = self.path.get_mut(self.length) {
            *zero = 0;
        }
    }
}

/// The number of what stands at a path, by which programs know two names of one thing: FNV-1a of the path.
pub(crate) struct Numbering(u64);

impl Numbering {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a part of the path.
    pub(crate) fn add(&mut self, part: &[u8]) {
        for &byte in part {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.0
    }
}

/// What is left of a path.
struct Rest {
    bytes: [u8; PATH_BYTES_MAX],
    at: usize,
    length: usize,
}

impl Rest {
    const fn new() -> Self {
        Self { bytes: [0; PATH_BYTES_MAX], at: 0, length: 0 }
    }

    /// Puts the target of a link before the rest.
    fn put_in_front(&mut self, target: &[u8]) -> Result<(), c_int> {
        let kept = self.at..self.length;
        // A slash between them.
        let end = target.len() + 1 + kept.len();
        if end > self.bytes.len() {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes.copy_within(kept.clone(), target.len() + 1);
        let front = self.bytes.get_mut(..=target.len()).ok_or(libc::ENAMETOOLONG)?;
        let (last, front) = front.split_last_mut().ok_or(libc::ENAMETOOLONG)?;
        front.copy_from_slice(target);
        *last = b'/';
        // At the end of a path the slash would ask for a folder.
        (self.at, self.length) = (0, if kept.is_empty() { target.len() } else { end });
        Ok(())
    }

    /// Where the next name begins and ends, and whether it is the last one.
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

/// Does something with a walk, which takes more memory of the stack than a function should that mostly does without.
#[cold]
#[inline(never)]
pub(crate) fn walking<R>(work: impl FnOnce(&mut Walk) -> R) -> R {
    work(&mut Walk::new())
}

/// Whether a path has to be looked at.
///
/// # Safety
/// `path` is null or ends with a zero.
#[inline]
pub(crate) unsafe fn is_candidate(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's.
    unsafe { may_be_ours(path) || descriptors::is_of_ours(folder, path) }
}

/// As the kernel's limit of a path; with the zero.
pub(crate) const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

const NAME_BYTES_MAX: usize = 255;

/// As the kernel's limit.
const LINKS_MAX: u32 = 40;
