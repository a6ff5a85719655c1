//! Removes namespaces, child processes and folders when this process ends.
//!
//! Each of them has an owner that removes it on drop, also after errors and panics. But a process
//! that a signal ends runs no destructors. Therefore all of them are also registered here. The
//! handler that [`on_signals`] installs removes them before the process ends.

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

use crate::namespace;

/// All registered namespaces, child processes and folders. A thread creates and removes namespaces
/// only while it holds the lock of the registry. Therefore the handler of a signal cannot run
/// between creation and registration.
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
/// Returns an error if the handler cannot be installed.
pub fn on_signals() -> Result<(), ctrlc::Error> {
    // Background jobs of scripts start with some of these signals ignored. The handler applies to
    // them too, because otherwise a signal would leave the namespaces behind.
    ctrlc::set_handler(|| {
        let mut registry = lock();
        for child in registry.children.drain(..) {
            // Each child leads its own process group. So this call also kills the processes that
            // the child has started. The call fails only if all these processes have already ended.
            let _ = killpg(Pid::from_raw(child.cast_signed()), Signal::SIGKILL);
        }
        for name in registry.namespaces.drain(..) {
            // If the removal fails, the next run tries again.
            let _ = namespace::remove_namespace(&name);
        }
        for folder in registry.folders.drain(..) {
            let _ = fs::remove_dir_all(folder);
        }
        // The lock stays held, so that no thread creates a namespace, child or folder while the
        // process ends.
        process::exit(STATUS_INTERRUPTED);
    })
}

/// Makes this process receive SIGTERM when its parent ends, if the variable [`ENDS_WITH`] contains
/// the parent's process id. Processes that this process starts inherit the variable, but ignore it,
/// because they have another parent.
///
/// Without this signal, the benchmark would survive a killed parent and disturb the next benchmark.
///
/// # Errors
/// Returns the error of the system call that failed.
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

/// Removes the namespaces of processes that ended without removing them. Returns the names of the
/// removed namespaces.
///
/// If a namespace cannot be removed, the next run tries again. The usual cause is that another run
/// has just removed the namespace.
pub fn remove_leftovers() -> Vec<String> {
    let _registry = lock();
    // Without this directory, no process has made a namespace yet.
    let Ok(entries) = fs::read_dir(namespace::NAMESPACE_DIRECTORY) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let leftovers = names.filter(|name| namespace::is_leftover(name));
    leftovers.filter(|name| namespace::remove_namespace(name).is_ok()).collect()
}

/// Registers a child process, which must lead its own process group.
pub fn register_child(pid: u32) {
    lock().children.push(pid);
}

/// Unregisters a child process that has been waited for.
pub fn forget_child(pid: u32) {
    lock().children.retain(|&child| child != pid);
}

/// Holds the registry's lock while it makes a folder and registers the folder. Therefore no signal
/// is handled between the two steps.
///
/// # Errors
/// Returns the error of `make`.
pub fn make_folder(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut registry = lock();
    make(path)?;
    registry.folders.push(path.to_path_buf());
    Ok(())
}

/// Removes a folder and its contents.
pub fn remove_folder(path: &Path) {
    // If this fails, the system's cleaner of temporary files removes the folder later.
    let _ = fs::remove_dir_all(path);
    lock().folders.retain(|folder| folder != path);
}

/// Returns the locked registry. The registry stays usable after another thread has panicked while
/// holding the lock.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { namespaces: Vec::new(), children: Vec::new(), folders: Vec::new() });

/// Exit status of a process that a signal has ended: 128 + SIGINT, as in shells.
pub const STATUS_INTERRUPTED: i32 = 130;
