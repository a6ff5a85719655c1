//! Removes namespaces, child processes and folders, because they must not outlive this process.
//!
//! Each of them has an owner that removes it on drop, also after errors and panics. Signals run no
//! destructors. Therefore all of them are also registered here, and the handler that [`on_signals`]
//! installs removes them before the process ends.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getppid};

use crate::namespaces;

/// All registered namespaces, child processes and folders. A thread makes and removes namespaces
/// only with the lock held, so that no signal arrives between creation and registration.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Names of network namespaces.
    pub(crate) namespaces: Vec<String>,
    children: Vec<u32>,
    folders: Vec<PathBuf>,
}

/// Installs a handler for SIGINT, SIGTERM and SIGHUP. The handler removes everything registered,
/// and ends the process with status 130. Call it once, at the start of the program.
///
/// # Errors
/// The handler of the signal cannot be installed.
pub fn on_signals() -> Result<(), ctrlc::Error> {
    // The handler applies even where these signals were ignored, as in background jobs of scripts,
    // because namespaces must be removed.
    ctrlc::set_handler(|| {
        let mut registry = lock();
        for child in registry.children.drain(..) {
            // Each child leads a process group of its own, so this also kills the processes it has
            // started. Fails only if they have already ended.
            let _ = killpg(Pid::from_raw(child.cast_signed()), Signal::SIGKILL);
        }
        for name in registry.namespaces.drain(..) {
            // If the removal fails, the next run tries again.
            let _ = namespaces::remove_namespace(&name);
        }
        for folder in registry.folders.drain(..) {
            let _ = fs::remove_dir_all(folder);
        }
        // The lock stays held, so that no thread makes anything while the process ends.
        process::exit(STATUS_INTERRUPTED);
    })
}

/// Makes this process receive SIGTERM when its parent ends, if the parent has put its own process
/// id into the variable [`ENDS_WITH`]. The variable does not affect processes that this process
/// starts, because they have another parent.
///
/// Without this, the benchmark would survive a killed parent and disturb the next benchmark.
///
/// # Errors
/// The error of the system call that failed.
pub fn end_with_parent() -> Result<(), Errno> {
    let parent = env::var(ENDS_WITH).ok().and_then(|text| text.parse::<i32>().ok());
    if parent != Some(getppid().as_raw()) {
        return Ok(());
    }
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    if parent != Some(getppid().as_raw()) {
        process::exit(STATUS_INTERRUPTED);
    }
    Ok(())
}

/// Environment variable with the process id of a parent whose children end with it.
pub const ENDS_WITH: &str = "ETHERNOT_ENDS_WITH";

/// Registers a child process.
pub(crate) fn register_child(pid: u32) {
    lock().children.push(pid);
}

/// Unregisters a child process that has been waited for.
pub(crate) fn forget_child(pid: u32) {
    lock().children.retain(|&child| child != pid);
}

/// Makes a folder and registers it under the lock, so that no signal arrives between the two steps.
pub(crate) fn make_folder(
    path: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut registry = lock();
    make(path)?;
    registry.folders.push(path.to_path_buf());
    Ok(())
}

/// Removes a folder and its contents.
pub(crate) fn remove_folder(path: &Path) {
    // If this fails, the system's cleaner of temporary files removes the folder later.
    let _ = fs::remove_dir_all(path);
    lock().folders.retain(|folder| folder != path);
}

/// Returns the locked registry. It stays usable after a panic in another thread.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { namespaces: Vec::new(), children: Vec::new(), folders: Vec::new() });

/// 128 + SIGINT, as in shells.
pub const STATUS_INTERRUPTED: i32 = 130;
