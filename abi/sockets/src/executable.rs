//! Predicts whether an `exec` call will succeed.
//!
//! Before an `exec`, this library ends connections or leaves them to the kernel, and cannot undo
//! these changes. If the `exec` fails, the program continues and needs its connections. For
//! example, a program that tries each folder of a search path makes `exec` calls that fail.
//! Therefore the library changes connections only if the `exec` will succeed.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use libc::{c_char, c_int};
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{AccessFlags, faccessat};

/// Returns true if `execve` would start the program at this path.
///
/// # Safety
/// `path` must be null or end with a zero byte.
pub(crate) unsafe fn begins(path: *const c_char) -> bool {
    // SAFETY: the caller guarantees that the path ends with a zero byte.
    !path.is_null() && is_program(unsafe { CStr::from_ptr(path) }, false, INTERPRETERS_MAX)
}

/// Returns true if `execvp` would start a program with this name. The program may also be a shell
/// script without an interpreter line.
///
/// # Safety
/// `file` must be null or end with a zero byte.
pub(crate) unsafe fn begins_on_path(file: *const c_char) -> bool {
    if file.is_null() {
        return false;
    }
    // SAFETY: the caller guarantees that the name ends with a zero byte.
    let file = unsafe { CStr::from_ptr(file) };
    if file.to_bytes().contains(&b'/') {
        return is_program(file, true, INTERPRETERS_MAX);
    }
    // SAFETY: the name ends with a zero byte. The value stays valid while the program does not
    // change its environment.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = if path.is_null() {
        USUAL_PATH
    } else {
        // SAFETY: the string ends with a zero byte.
        unsafe { CStr::from_ptr(path) }
    };
    let folders = path.to_bytes().split(|&byte| byte == b':');
    let mut candidates = folders.map(|folder| {
        let folder = if folder.is_empty() { b".".as_slice() } else { folder };
        CString::new([folder, b"/", file.to_bytes()].concat())
    });
    candidates.any(|candidate| {
        candidate.is_ok_and(|candidate| is_program(&candidate, true, INTERPRETERS_MAX))
    })
}

/// Returns true if `fexecve` would start the open program.
pub(crate) fn begins_open(fd: c_int) -> bool {
    if fd < 0 {
        return false;
    }
    let path = format!("/proc/self/fd/{fd}");
    match CString::new(path) {
        Ok(path) => is_program(&path, false, INTERPRETERS_MAX),
        Err(_) => false,
    }
}

/// Returns true if `execveat` would start the program.
///
/// # Safety
/// `path` must be null or end with a zero byte.
pub(crate) unsafe fn begins_at(folder: c_int, path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller guarantees that the path ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) };
    if path.is_empty() {
        return begins_open(folder);
    }
    if folder == libc::AT_FDCWD || path.to_bytes().starts_with(b"/") {
        return is_program(path, false, INTERPRETERS_MAX);
    }
    let inside = [format!("/proc/self/fd/{folder}/").as_bytes(), path.to_bytes()].concat();
    CString::new(inside).is_ok_and(|path| is_program(&path, false, INTERPRETERS_MAX))
}

fn is_program(path: &CStr, may_be_script: bool, interpreters: u32) -> bool {
    let access = AccessFlags::X_OK;
    if faccessat(nix::fcntl::AT_FDCWD, path, access, AtFlags::AT_EACCESS).is_err() {
        return false;
    }
    let file = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty());
    let Ok(file) = file else {
        // The file can be executed but not read, so its format cannot be checked.
        return true;
    };
    let is_file = fstat(&file).is_ok_and(|found| {
        SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG
    });
    is_file && begins_with(file, may_be_script, interpreters)
}

/// Returns true if the kernel can execute a file of this format. If `may_be_script` is true, also
/// accepts a shell script without an interpreter line.
fn begins_with(file: OwnedFd, may_be_script: bool, interpreters: u32) -> bool {
    let mut first = [0; FIRST_BYTES];
    let count = File::from(file).read(&mut first).unwrap_or(0);
    let first = &first[..count];
    if first.starts_with(b"\x7fELF") {
        return true;
    }
    let Some(line) = first.strip_prefix(b"#!") else { return may_be_script };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let interpreter = words.next().and_then(|word| CString::new(word).ok());
    interpreters > 0 && interpreter.is_some_and(|path| is_program(&path, false, interpreters - 1))
}

/// The search path of `execvp` if `PATH` is not set.
const USUAL_PATH: &CStr = c"/bin:/usr/bin";

/// Number of bytes at the beginning of a file that the kernel reads to find its format.
const FIRST_BYTES: usize = 256;

/// Maximum length of a chain of scripts in which each script is the interpreter of the script
/// before it.
const INTERPRETERS_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_executable_programs_are_accepted() {
        let folder =
            std::env::temp_dir().join(format!("ethernot-executable-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let made = |name: &str, text: &str, mode: u32| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .expect("a file of our own");
            CString::new(path.as_os_str().as_bytes()).expect("no zero in it")
        };
        let begins_at = |path: &CStr| {
            // SAFETY: the string ends with a zero byte.
            unsafe { (begins(path.as_ptr()), begins_on_path(path.as_ptr())) }
        };
        assert_eq!(begins_at(c"/bin/sh"), (true, true));
        assert_eq!(begins_at(c"/there/is/none"), (false, false));
        assert_eq!(begins_at(c"/"), (false, false));
        let script = made("script", "#! /bin/sh -e\necho\n", 0o755);
        assert_eq!(begins_at(&script), (true, true));
        assert_eq!(begins_at(&made("plain", "echo\n", 0o755)), (false, true));
        assert_eq!(begins_at(&made("forbidden", "#!/bin/sh\n", 0o644)), (false, false));
        assert_eq!(begins_at(&made("lost", "#!/there/is/none\n", 0o755)), (false, false));
        // SAFETY: both strings end with a zero byte.
        assert!(unsafe { begins_on_path(c"sh".as_ptr()) && !begins_on_path(c"no such".as_ptr()) });
        let open = File::open("/bin/sh").expect("a shell");
        assert!(begins_open(open.as_raw_fd()) && !begins_open(-1));
        fs::remove_dir_all(folder).expect("a folder of our own");
    }
}
