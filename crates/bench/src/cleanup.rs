//! What must not outlive this process: namespaces, child processes and folders.
//!
//! Values that own such things remove them when they are dropped, on errors and panics too. For
//! signals, which run no destructors, everything is also registered here, and
//! [`on_signals`] removes it all before the process ends.

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

/// Everything registered. The holder of the lock may make or remove namespaces, so that a signal
/// never comes between making one and registering it.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Names of network namespaces.
    pub(crate) namespaces: Vec<String>,
    children: Vec<u32>,
    folders: Vec<PathBuf>,
}

/// Removes everything registered and ends the process with status 130 when SIGINT, SIGTERM or
/// SIGHUP arrives. To be called once, early.
///
/// # Errors
/// The handler of the signal cannot be installed.
pub fn on_signals() -> Result<(), ctrlc::Error> {
    // Also where they are ignored so far, as in background jobs of scripts: namespaces must go.
    ctrlc::set_handler(|| {
        let mut registry = lock();
        for child in registry.children.drain(..) {
            // With what it has started: each child leads a group of its own. Fails only for those that
            // have ended by themselves.
            let _ = killpg(Pid::from_raw(child.cast_signed()), Signal::SIGKILL);
        }
        for name in registry.namespaces.drain(..) {
            // There is no one left to report to; the next run tries again.
            let _ = namespaces::remove_namespace(&name);
        }
        for folder in registry.folders.drain(..) {
            let _ = fs::remove_dir_all(folder);
        }
        // The lock stays held: no thread makes anything new while the process ends.
        process::exit(STATUS_INTERRUPTED);
    })
}

/// Ends this process, as at SIGTERM, when its parent does, if the parent asks for it: by its process id in the
/// variable [`ENDS_WITH`]. Processes that this one starts have another parent and are not affected.
///
/// A parent that was killed notifies none of its children, and a benchmark whose parent is gone disturbs the
/// next.
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

/// The process id of a parent whose end is to end its children too.
pub const ENDS_WITH: &str = "ETHERNOT_ENDS_WITH";

/// Adds a child process.
pub(crate) fn register_child(pid: u32) {
    lock().children.push(pid);
}

/// Removes a child process that has been waited for.
pub(crate) fn forget_child(pid: u32) {
    lock().children.retain(|&child| child != pid);
}

/// Makes a folder and adds it, so that no signal comes between.
pub(crate) fn make_folder(
    path: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut registry = lock();
    make(path)?;
    registry.folders.push(path.to_path_buf());
    Ok(())
}

/// Removes a folder with all that is in it.
pub(crate) fn remove_folder(path: &Path) {
    // What cannot be removed is left to the system's cleaner of temporary files.
    let _ = fs::remove_dir_all(path);
    lock().folders.retain(|folder| folder != path);
}

/// The registry. A panic elsewhere does not make it unusable.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { namespaces: Vec::new(), children: Vec::new(), folders: Vec::new() });

/// 128 + SIGINT, as shells have it.
pub const STATUS_INTERRUPTED: i32 = 130;
