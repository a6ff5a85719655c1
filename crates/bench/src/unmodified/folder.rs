//! A folder for the files of one run, removed at its end.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use testbed::cleanup;

/// A folder inside the system's folder for temporary files. Drop and Ctrl-C remove it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the folder. All users may read its files, because some servers switch to another
    /// user.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn create(purpose: &str) -> io::Result<Self> {
        let ordinal = NEXT_ORDINAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("ethernot-{purpose}-{}-{ordinal}", process::id());
        let path = std::env::temp_dir().join(name);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("make the folder {}: {error}", path.display()))
        };
        // Fails if the folder exists.
        let make = |path: &Path| DirBuilder::new().mode(0o755).create(path);
        cleanup::make_folder(&path, make).map_err(named)?;
        let made = Self { path };
        made.allow(&made.path, 0o755)?;
        Ok(made)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new subfolder for the counters of one run of a program. All users may write to it.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn counters(&self) -> io::Result<PathBuf> {
        let ordinal = NEXT_ORDINAL.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("counters{ordinal}"));
        fs::create_dir(&path)?;
        self.allow(&path, 0o1777)?;
        Ok(path)
    }

    /// Writes a file that all users may read.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        fs::write(&path, bytes)?;
        self.allow(&path, 0o644)?;
        Ok(path)
    }

    /// Sets the permissions of `path`, independent of this process's umask.
    fn allow(&self, path: &Path, mode: u32) -> io::Result<()> {
        debug_assert!(path.starts_with(&self.path));
        fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove_folder(&self.path);
    }
}

static NEXT_ORDINAL: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_removed_with_its_contents() {
        let folder = Folder::create("test").unwrap();
        let file = folder.write("below/file", "x").unwrap();
        let open = folder.counters().unwrap();
        assert_eq!(fs::metadata(&open).unwrap().permissions().mode() & 0o7777, 0o1777);
        assert!(file.is_file());
        let path = folder.path().to_path_buf();
        drop(folder);
        assert!(!path.exists());
    }
}
