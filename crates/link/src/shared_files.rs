//! Files in folders to which other users can write, such as counters, logs and traces.
//!
//! In such a folder, another user may have created a symbolic link or a pipe with the name of one
//! of our files. This module does not write through such a link, and does not block on a pipe
//! without a reader.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a file to append to, and creates it if it does not exist.
///
/// # Errors
/// Returns the errors of `open`. Also returns [`io::ErrorKind::PermissionDenied`] if everyone may
/// write to the folder, and the path is a link or not a regular file.
pub fn append_to(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().append(true).create(true))
}

/// Replaces a file atomically: a reader sees either the whole old content or the whole new content.
///
/// # Errors
/// Returns the errors of `open`, `write` and `rename`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    // The name is unpredictable, so another user cannot create the file first.
    let fresh = path.with_file_name(format!(".{name}.{:016x}", RandomState::new().hash_one(0)));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&fresh)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&fresh, path));
    written.inspect_err(|_| drop(fs::remove_file(&fresh)))
}

fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let careful = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let is_shared = is_shared(path)?;
    let file = match how.custom_flags(careful).open(path) {
        // Follow the link, because only trusted users can write to the folder.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) && !is_shared => {
            how.custom_flags(careful & !libc::O_NOFOLLOW).open(path)?
        }
        opened => opened?,
    };
    let found = file.metadata()?;
    if is_shared && (!found.is_file() || found.nlink() != 1) {
        let what = "the path is a link or not a regular file, in a folder that everyone may write to; name a file in a folder of your own";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(file)
}

/// Returns whether everyone may write to the folder of `path`.
fn is_shared(path: &Path) -> io::Result<bool> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok(fs::metadata(folder)?.mode() & 0o002 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Creates a folder with this mode, and a file outside of it.
    fn folder(name: &str, mode: u32) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("ethernot-{name}-{}", std::process::id()));
        let _none = fs::remove_dir_all(&folder);
        let inside = folder.join("inside");
        fs::create_dir_all(&inside).expect("a folder");
        fs::set_permissions(&inside, fs::Permissions::from_mode(mode)).expect("one of ours");
        let outside = folder.join("outside");
        fs::write(&outside, "as it is").expect("a file");
        (inside, outside)
    }

    fn is_as_it_is(outside: &Path) {
        assert_eq!(fs::read_to_string(outside).expect("a file"), "as it is");
        fs::remove_dir_all(outside.parent().expect("a folder")).expect("one of ours");
    }

    #[test]
    fn symbolic_links_in_a_shared_folder_are_not_followed() {
        let (inside, outside) = folder("links", 0o1777);
        symlink(&outside, inside.join("link")).expect("a link");
        fs::hard_link(&outside, inside.join("same")).expect("a link");
        for name in ["link", "same"] {
            assert!(append_to(&inside.join(name)).is_err(), "{name}");
            replace(&inside.join(name), b"another").expect("it takes the place of the link");
            assert_eq!(fs::read(inside.join(name)).expect("a file"), b"another");
        }
        is_as_it_is(&outside);
    }

    #[test]
    fn an_own_symbolic_link_is_followed() {
        let (inside, outside) = folder("own-links", 0o755);
        symlink(&outside, inside.join("link")).expect("a link");
        append_to(&inside.join("link")).expect("it is followed");
        is_as_it_is(&outside);
    }

    #[test]
    fn opening_a_pipe_does_not_block() {
        for mode in [0o755, 0o1777] {
            let (inside, outside) = folder(&format!("pipes-{mode:o}"), mode);
            let pipe = inside.join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(made.expect("mkfifo runs").success());
            assert!(append_to(&pipe).is_err());
            replace(&pipe, b"a file").expect("it takes the place of the pipe");
            is_as_it_is(&outside);
        }
    }

    #[test]
    fn files_are_appended_or_replaced() {
        let (inside, outside) = folder("files", 0o1777);
        let path = inside.join("file");
        let text = || fs::read_to_string(&path).expect("a file");
        append_to(&path).expect("a file").write_all(b"one").expect("room");
        append_to(&path).expect("a file").write_all(b"two").expect("room");
        assert_eq!(text(), "onetwo");
        replace(&path, b"another").expect("a file");
        assert_eq!(text(), "another");
        assert_eq!(fs::read_dir(&inside).expect("a folder").count(), 1);
        is_as_it_is(&outside);
    }
}
