//! The libraries under test.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, process};

/// A folder with the libraries, readable by every user.
#[derive(Clone, Debug)]
pub struct Libraries {
    folder: PathBuf,
}

impl Libraries {
    /// Builds the libraries once per test program, and copies them to a folder that other users can
    /// read.
    ///
    /// # Panics
    /// Panics if the libraries cannot be built.
    pub fn built() -> &'static Self {
        static BUILT: OnceLock<Libraries> = OnceLock::new();
        BUILT.get_or_init(Self::build)
    }

    fn build() -> Self {
        let source = testbed::built::libraries();
        let folder = env::temp_dir().join(format!("ethernot-libraries-{}", process::id()));
        copy_libraries(&source, &folder).unwrap_or_else(|error| {
            panic!("libraries of {} were not copied: {error}", source.display())
        });
        Self { folder }
    }

    /// Returns the libraries of another commit, from the folder that the environment variable
    /// `variable` names. If the variable is not set, prints that the test is skipped, and returns
    /// `None`.
    ///
    /// # Panics
    /// Panics if the libraries cannot be copied.
    pub fn of_other_commit(variable: &str) -> Option<Self> {
        let Some(source) = env::var_os(variable) else {
            println!(
                "skipped: {variable} names no libraries of another commit; `./x acceptance faults` sets it"
            );
            return None;
        };
        let source = PathBuf::from(source);
        let folder = Self::built().folder.join("other");
        copy_libraries(&source, &folder).unwrap_or_else(|error| {
            panic!("libraries of {} were not copied: {error}", source.display())
        });
        Some(Self { folder })
    }

    /// Returns the folder of the libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the value of `LD_PRELOAD` with which the loader loads the libraries before all
    /// others. `ethernot run` sets the same value.
    pub fn preload(&self) -> String {
        let names = ["libibverbs.so.1", "librdmacm.so.1", "libethernot_paths.so"];
        let paths = names.iter().map(|name| self.folder.join(name)).filter(|path| path.exists());
        paths.map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
    }
}

/// Returns the path of the `ethernot` program, built once per test program.
pub fn ethernot() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::build("ethernot-cli", &[]).join("ethernot"))
}

/// Returns the path of the `xtask` program, built once per test program.
pub fn xtask() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::build("xtask", &[]).join("xtask"))
}

/// Copies the libraries and the programs of `tools/perf`, but not the symbolic links that give the
/// libraries other names. Also removes the folders of test programs that have ended, because a test
/// program cannot remove its own folder.
fn copy_libraries(source: &Path, folder: &Path) -> std::io::Result<()> {
    for old in fs::read_dir(env::temp_dir())?.flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("ethernot-libraries-");
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Ignore errors: another test program may remove the same folder at the same time.
            let _ = fs::remove_dir_all(old.path());
        }
    }
    // Set the modes explicitly: this user's umask may exclude other users.
    let for_all = || fs::Permissions::from_mode(0o755);
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, for_all())?;
    for file in fs::read_dir(source)?.flatten() {
        if file.file_name().to_string_lossy().contains(".so") {
            let copy = folder.join(file.file_name());
            fs::copy(file.path(), &copy)?;
            fs::set_permissions(&copy, for_all())?;
        }
    }
    // Libraries of another commit may come without the programs of `tools/perf`.
    let Ok(programs) = fs::read_dir(source.join(PERF)) else { return Ok(()) };
    let copies = folder.join(PERF);
    fs::create_dir_all(&copies)?;
    fs::set_permissions(&copies, for_all())?;
    for file in programs.flatten() {
        fs::copy(file.path(), copies.join(file.file_name()))?;
    }
    Ok(())
}

/// The folder of the `tools/perf` programs, beside the libraries.
const PERF: &str = "perf";
