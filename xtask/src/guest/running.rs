//! Starts and ends the processes of guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::error::{GuestError, LINES_MAX, last_lines, output_of};
use super::machine::{self, QEMU};
use super::options::{MachineOptions, Network, Subnet};
use super::packages;

/// A built guest: the files that qemu starts.
#[derive(Debug)]
pub(crate) struct Built {
    /// The folder `guest` in the target folder.
    folder: PathBuf,
}

/// A guest that ends with this value, and with this process, even if this process is killed.
#[derive(Debug)]
pub(crate) struct Guest {
    child: Child,
    folder: PathBuf,
}

impl Built {
    /// Returns the guest that is built in a folder.
    pub(crate) fn find(folder: &Path) -> Result<Self, GuestError> {
        let built = Self { folder: folder.into() };
        packages::require(REQUIRED)?;
        if built.archive().exists() { Ok(built) } else { Err(GuestError::NotBuilt) }
    }

    /// Returns the place of the kernel. It is a link, so that a new version replaces it at once.
    pub(crate) fn vmlinux_in(folder: &Path) -> PathBuf {
        folder.join("vmlinux")
    }

    /// Returns the place of the file system. The build writes it last.
    pub(crate) fn archive_in(folder: &Path) -> PathBuf {
        folder.join("system.cpio")
    }

    fn archive(&self) -> PathBuf {
        Self::archive_in(&self.folder)
    }

    /// Starts a guest that ends with this process. Its command can be sent at once.
    ///
    /// Call it on the main thread: the kernel kills the guest when the calling thread ends.
    pub(crate) fn boot(&self, name: &str, options: &MachineOptions) -> Result<Guest, GuestError> {
        self.remove_leftovers();
        let folder = self.new_folder(name)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", QEMU]).args(self.arguments(name, options));
        let log = folder.join(LOG);
        let output = fs::File::create(&log).map_err(GuestError::write(&log))?;
        let child = command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(|cause| GuestError::Start { program: "setpriv".into(), cause })?;
        let mut guest = Guest { child, folder };
        guest.await_ports()?;
        set_up_tap(&options.network)?;
        Ok(guest)
    }

    /// Starts a guest that runs until [`Built::stop`].
    pub(crate) fn start(
        &self,
        name: &str,
        options: &MachineOptions,
    ) -> Result<PathBuf, GuestError> {
        let folder = self.new_folder(name)?;
        let mut command = Command::new(QEMU);
        command.args(["-daemonize", "-pidfile", machine::PROCESS]);
        // qemu returns when the machine exists, with its sockets and interfaces.
        let started =
            output_of(command.args(self.arguments(name, options)).current_dir(&folder)).map(drop);
        if let Err(error) = started.and_then(|()| set_up_tap(&options.network)) {
            self.stop(name)?;
            return Err(error);
        }
        Ok(folder)
    }

    /// Ends a started guest.
    pub(crate) fn stop(&self, name: &str) -> Result<(), GuestError> {
        let folder = self.folder_of(name);
        if !folder.exists() {
            return Err(GuestError::NotRunning { name: name.into() });
        }
        if let Some(process) = process_of(&folder) {
            // The process is no child of this one. KILL is safe: qemu has no disk, it writes
            // captures without a buffer, and its tap interface ends with it.
            output_of(Command::new("kill").args(["-KILL", &process]))?;
            while process_of(&folder).is_some() {
                std::thread::sleep(STEP);
            }
        }
        fs::remove_dir_all(&folder).map_err(GuestError::write(&folder))
    }

    /// Returns the folder of a started guest.
    pub(crate) fn started(&self, name: &str) -> Result<PathBuf, GuestError> {
        let folder = self.folder_of(name);
        if folder.exists() { Ok(folder) } else { Err(GuestError::NotRunning { name: name.into() }) }
    }

    fn folder_of(&self, name: &str) -> PathBuf {
        self.folder.join("running").join(name)
    }

    /// Removes the folders of guests that ended with their process, because that was killed. Their
    /// names contain the number of the process (`run-NUMBER`, `pair-NUMBER-a`).
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(self.folder.join("running")) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if process_in(&name).is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                // Another run may remove the same folder.
                let _removed = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Creates the folder of a guest that is to start. A guest of this name that has ended, for
    /// example because it was killed, left an old one.
    fn new_folder(&self, name: &str) -> Result<PathBuf, GuestError> {
        let folder = self.folder_of(name);
        if process_of(&folder).is_some() {
            return Err(GuestError::RunsAlready { name: name.into() });
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(GuestError::write(&folder))?;
        }
        fs::create_dir_all(&folder).map_err(GuestError::write(&folder))?;
        Ok(folder)
    }

    fn arguments(&self, name: &str, options: &MachineOptions) -> Vec<std::ffi::OsString> {
        machine::arguments(&Self::vmlinux_in(&self.folder), &self.archive(), name, options)
    }
}

impl Guest {
    /// Returns the guest's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits until qemu has created its sockets. qemu creates them after the network.
    fn await_ports(&mut self) -> Result<(), GuestError> {
        let last = self.folder.join(machine::port(machine::PORTS - 1));
        let deadline = Instant::now() + QEMU_START;
        while !last.exists() {
            if !matches!(self.child.try_wait(), Ok(None)) || Instant::now() > deadline {
                let (what, console) = ("qemu does not start".into(), last_words(&self.folder));
                return Err(GuestError::Lost { what, console });
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Failures mean that the process has ended, or that its files are gone already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
        let _removed = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the number of the process that a guest of `run` or `pair` belongs to, given its name.
fn process_in(name: &str) -> Option<&str> {
    let (kind, rest) = name.split_once('-')?;
    let process = rest.split('-').next()?;
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    (["run", "pair"].contains(&kind) && is_number).then_some(process)
}

/// Returns the end of what qemu and the guest's kernel printed.
pub(crate) fn last_words(folder: &Path) -> String {
    let read = |name| fs::read(folder.join(name)).unwrap_or_default();
    let all = [read(LOG), read(machine::CONSOLE)].concat();
    last_lines(&String::from_utf8_lossy(&all), LINES_MAX)
}

/// Gives the tap interface its address. qemu created the interface, which therefore ends with qemu.
fn set_up_tap(network: &Network) -> Result<(), GuestError> {
    let Network::Tap { interface, host: Subnet { address, prefix }, .. } = network else {
        return Ok(());
    };
    let deadline = Instant::now() + QEMU_START;
    while !Path::new("/sys/class/net").join(interface).exists() && Instant::now() < deadline {
        std::thread::sleep(STEP);
    }
    let ip = |line: &str| output_of(Command::new("ip").args(line.split(' '))).map(drop);
    ip(&format!("address replace {address}/{prefix} dev {interface}"))?;
    ip(&format!("link set {interface} up"))
}

/// Returns the process of a started guest, or `None` if it has ended.
fn process_of(folder: &Path) -> Option<String> {
    let process = fs::read_to_string(folder.join(machine::PROCESS)).ok()?.trim().to_owned();
    // Another process may have got the number.
    let name = fs::read_link(Path::new("/proc").join(&process).join("exe")).ok()?;
    name.file_name().is_some_and(|name| name == QEMU).then_some(process)
}

/// Programs that start a guest, with their packages.
const REQUIRED: &[(&str, &str)] =
    &[(QEMU, "--no-install-recommends qemu-system-x86"), ("setpriv", "util-linux")];

/// Standard error of qemu.
const LOG: &str = "qemu.log";

/// Time that qemu may take until its machine exists; a fraction of a second on an idle host.
const QEMU_START: Duration = Duration::from_secs(30);

/// Time between two checks of a file that another process creates.
const STEP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guests_of_run_and_pair_belong_to_a_process() {
        assert_eq!(process_in("run-12"), Some("12"));
        assert_eq!(process_in("pair-12-b"), Some("12"));
        for name in ["guest", "run", "run-", "run-x", "start-12", "pair--12"] {
            assert_eq!(process_in(name), None, "{name}");
        }
    }

    #[test]
    fn folders_of_ended_processes_are_removed_and_others_stay() {
        let folder = std::env::temp_dir().join(format!("xtask-guests-{}", std::process::id()));
        let running = folder.join("running");
        let alive = format!("run-{}", std::process::id());
        // Numbers of processes stay below 2^22.
        for name in ["run-4194305", "pair-4194305-a", alive.as_str(), "guest"] {
            fs::create_dir_all(running.join(name)).expect("a folder");
        }
        Built { folder: folder.clone() }.remove_leftovers();
        let is_there = |name: &str| running.join(name).exists();
        let left = (
            is_there("run-4194305"),
            is_there("pair-4194305-a"),
            is_there(&alive),
            is_there("guest"),
        );
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(left, (false, false, true, true));
    }
}
