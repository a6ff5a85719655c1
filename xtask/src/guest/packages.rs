//! Fetches Debian packages and unpacks them below the target folder. Nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{GuestError, output_of};

/// A downloaded package.
#[derive(Debug)]
pub(crate) struct Package {
    /// Name without version and architecture.
    pub(crate) name: String,
    /// The package's file.
    pub(crate) path: PathBuf,
}

impl Package {
    /// Unpacks the package into a folder.
    pub(crate) fn unpack(&self, folder: &Path) -> Result<(), GuestError> {
        output_of(Command::new("dpkg-deb").arg("--extract").arg(&self.path).arg(folder)).map(drop)
    }
}

/// Returns the packages that a package names as its dependencies.
pub(crate) fn dependencies(name: &str) -> Result<Vec<String>, GuestError> {
    let missing = |_| GuestError::NoPackage { name: name.into() };
    let output = output_of(Command::new("apt-cache").args(["depends", name])).map_err(missing)?;
    let text = String::from_utf8_lossy(&output);
    Ok(text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(String::from)
        .collect())
}

/// Downloads exactly these packages into a folder, unless they are there.
pub(crate) fn fetch(names: &[String], folder: &Path) -> Result<Vec<Package>, GuestError> {
    fetch_by(names, folder, &|_| {
        let mut command = Command::new("apt-get");
        command.arg("download");
        command
    })
}

/// Downloads these packages and all packages on which they depend, except where they are in the
/// folder already.
///
/// apt resolves the dependencies as if the host had no package, so the result does not depend on
/// what is installed on the host.
pub(crate) fn fetch_all(names: &[String], folder: &Path) -> Result<Vec<Package>, GuestError> {
    let none_installed = folder.join("none-installed");
    fs::write(&none_installed, "").map_err(GuestError::write(&none_installed))?;
    fetch_by(names, folder, &|archives| {
        let mut command = Command::new("apt-get");
        for (option, value) in [
            ("Dir::State::status", none_installed.as_path()),
            ("Dir::Cache::archives", archives),
            // Without these two empty paths, apt as root replaces the host's cache.
            ("Dir::Cache::pkgcache", Path::new("")),
            ("Dir::Cache::srcpkgcache", Path::new("")),
            // The locks are root's. Here no installation uses the folder.
            ("Debug::NoLocking", Path::new("1")),
            ("APT::Install-Recommends", Path::new("0")),
        ] {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        }
        command.args(["--download-only", "--yes", "install"]);
        command
    })
}

/// Downloads the files that a command of apt names, if one is missing. `apt_get` returns this
/// command, given the folder of the files.
fn fetch_by(
    names: &[String],
    folder: &Path,
    apt_get: &dyn Fn(&Path) -> Command,
) -> Result<Vec<Package>, GuestError> {
    let run = |archives: &Path, extra: &[&str]| {
        let partial = archives.join("partial");
        fs::create_dir_all(&partial).map_err(GuestError::write(&partial))?;
        let mut command = apt_get(archives);
        // apt as root would otherwise download as another user, who cannot write to the folder.
        command.args(names).args(["--quiet=2", "-o", "APT::Sandbox::User=root"]).args(extra);
        output_of(command.current_dir(archives))
    };
    // apt leaves out files that are in its folder, so the list comes from an empty one.
    let listed = run(&folder.join("empty"), &["--print-uris"])?;
    let packages: Vec<Package> = String::from_utf8_lossy(&listed)
        .lines()
        .filter_map(file_name)
        .map(|file| Package {
            name: file.split('_').next().unwrap_or_default().into(),
            path: folder.join(file),
        })
        .collect();
    if packages.iter().any(|package| !package.path.exists()) {
        run(folder, &[])?;
    }
    let is_there = |name: &String| {
        packages.iter().any(|package| package.name == *name && package.path.exists())
    };
    match names.iter().find(|name| !is_there(name)) {
        Some(name) => Err(GuestError::NoPackage { name: name.clone() }),
        None => Ok(packages),
    }
}

/// Returns the file name in a line of `--print-uris`, which is `'ADDRESS' FILE BYTES HASH`.
fn file_name(line: &str) -> Option<&str> {
    let (_, after) = line.strip_prefix('\'')?.split_once("' ")?;
    after
        .split(' ')
        .next()
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "deb"))
}

/// Returns an error that names the packages of all missing programs. Each entry is a program and
/// its package.
pub(crate) fn require(programs: &[(&str, &str)]) -> Result<(), GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exists =
        |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|(program, _)| !exists(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let joined = |words: Vec<&str>| words.join(" ");
    Err(GuestError::Missing {
        programs: joined(missing.iter().map(|(program, _)| *program).collect()),
        packages: joined(missing.iter().map(|(_, package)| *package).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_is_taken_from_a_line_of_apt() {
        let line = "'http://mirror.example/p/dash_0.5.deb' dash_0.5.12-2_amd64.deb 91848 MD5Sum:0";
        assert_eq!(file_name(line), Some("dash_0.5.12-2_amd64.deb"));
        for other in ["", "Reading package lists...", "'http://x' InRelease 0", "'http://x'"] {
            assert_eq!(file_name(other), None, "{other}");
        }
    }

    #[test]
    fn all_missing_programs_are_named_with_their_packages() {
        assert!(require(&[("sh", "dash")]).is_ok());
        let wanted = [("sh", "dash"), ("no-such-program", "p"), ("nor-this-one", "q")];
        let text = require(&wanted).expect_err("two are missing").to_string();
        assert!(text.contains("no-such-program nor-this-one; "), "{text}");
        assert!(text.ends_with("sudo apt-get install -y p q"), "{text}");
    }
}
