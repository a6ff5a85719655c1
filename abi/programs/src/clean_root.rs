//! A root file system that contains only the files that a test adds.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, process};

use crate::process::Program;

/// A folder that is the root file system of the programs started in it. The folder contains a few
/// programs, their libraries, and a list of installed packages.
#[derive(Debug)]
pub struct CleanRoot {
    folder: PathBuf,
}

impl CleanRoot {
    /// Creates a root that contains these programs of this host. Returns `None` and prints the
    /// reason if this process may not change the root of a program.
    ///
    /// # Panics
    /// Panics if files cannot be created.
    pub fn with(name: &str, programs: &[&str]) -> Option<Self> {
        let may = words_as_root("mount --bind /proc /proc && exec chroot / true");
        let tried = Command::new(&may[0]).args(&may[1..]).output();
        if !tried.is_ok_and(|output| output.status.success()) {
            println!("skipped: no other root: it needs root, or user namespaces for all");
            return None;
        }
        let folder = env::temp_dir().join(format!("ethernot-root-{}-{name}", process::id()));
        let root = Self { folder };
        for part in ["dev", "proc", "tmp", "usr/bin", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(root.path(part)).expect("a folder");
        }
        fs::write(root.path("dev/null"), "").expect("a place for the device");
        fs::write(root.path("var/lib/dpkg/status"), "").expect("a list of packages");
        // If one of these folders is a symbolic link to a folder in `usr` on this host, create the
        // same link in the root.
        for part in ["bin", "sbin", "lib", "lib64"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(part)) {
                fs::create_dir_all(root.path(&target)).expect("a folder");
                symlink(target, root.path(part)).expect("a link");
            }
        }
        for program in programs {
            let path = env::var_os("PATH").unwrap_or_default();
            let mut places = env::split_paths(&path).map(|folder| folder.join(program));
            let found = places.find(|path| path.is_file()).expect("the program is installed");
            root.copy(&found);
            root.copy_libraries_of(&found);
        }
        Some(root)
    }

    /// Returns the path on this host of a path in the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.folder.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies the shared libraries that a program or library of this host needs.
    ///
    /// # Panics
    /// Panics if files cannot be copied.
    pub fn copy_libraries_of(&self, file: &Path) {
        let output = Command::new("ldd").arg(file).output().expect("ldd comes with the C library");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let paths = line.split_whitespace().filter(|word| word.starts_with('/'));
            paths.for_each(|path| self.copy(Path::new(path)));
        }
    }

    /// Installs the shared libraries of a package of this host in the root. Returns whether this
    /// host has the package.
    ///
    /// # Panics
    /// Panics if files cannot be copied.
    pub fn copy_package(&self, package: &str) -> bool {
        let Some(about) = said("dpkg-query", &["--status", package]) else { return false };
        let status = self.path("var/lib/dpkg/status");
        let known = fs::read_to_string(&status).expect("a list of packages");
        fs::write(&status, format!("{known}{}\n\n", about.trim_end())).expect("it is written");
        let files = said("dpkg-query", &["--listfiles", package]).unwrap_or_default();
        let is_library = |path: &&str| path.contains(".so") && Path::new(path).is_file();
        files.lines().filter(is_library).for_each(|path| self.copy(Path::new(path)));
        true
    }

    fn copy(&self, from: &Path) {
        let to = self.path(from);
        fs::create_dir_all(to.parent().expect("it is below the root")).expect("a folder");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("copy {}: {error}", from.display()));
    }

    /// Returns all paths in the root, without the package database.
    pub fn content(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path == self.path("var") {
                    continue;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path.clone());
                }
                found.insert(path);
            }
        }
        found
    }

    /// Returns a program that runs with this root and without this host's environment. It must be
    /// started without libraries ([`Program::run_bare`]).
    pub fn program(&self, arguments: &str) -> Program {
        let words = words_as_root(ENTER);
        let mut program = Program::new(&words[0], "");
        for word in &words[1..] {
            program = program.argument(word);
        }
        program = program.argument(&self.folder.display());
        arguments.split_whitespace().fold(program, |program, word| program.argument(&word))
    }

    /// Runs `dpkg` on this root.
    ///
    /// # Panics
    /// Panics if `dpkg` cannot be started.
    pub fn dpkg(&self, arguments: &[&str]) -> Output {
        let words = words_as_root("exec dpkg --root=\"$0\" --log=\"$0/var/dpkg.log\" \"$@\"");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(&self.folder).args(arguments);
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
        command.output().expect("it starts")
    }
}

impl Drop for CleanRoot {
    fn drop(&mut self) {
        // If this fails, the files remain in the temporary folder, which the system cleans.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a command that runs a shell script as root, in its own mount namespace. Append the
/// arguments `$0`, `$1`, … to the returned words.
fn words_as_root(script: &str) -> Vec<String> {
    let is_root = said("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    let how: &[&str] = if is_root { &[] } else { &["--map-root-user"] };
    let words = [&["unshare", "--mount"], how, &["sh", "-c", script]].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// Returns the standard output of a command, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Shell commands that enter the root. Of the host's files only `/proc` and `/dev/null` are visible
/// in the root.
const ENTER: &str = "mount --rbind /proc \"$0/proc\" && mount --bind /dev/null \"$0/dev/null\" && \
    exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin chroot \"$0\" \"$@\"";
