//! `cargo xtask guest`: a virtual machine whose Linux kernel has the RDMA devices `siw` (iWARP) and
//! `rxe` (RoCE). Tests measure Ethernot against these devices.
//!
//! The guest is made of Debian packages alone. Its kernel and file system are below the target
//! folder; nothing is installed on the host, and only `--net tap` needs root. Commands run in it
//! through serial ports (`tools/guest/agent.c`), so a test may change the guest's network.

mod answer;
mod archive;
mod error;
mod exec;
mod help;
mod kernel;
mod machine;
mod modules;
mod options;
mod packages;
mod running;
mod siw;
mod system;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use self::error::GuestError;
use self::exec::{Ending, exec};
use self::options::{GuestCommand, MachineOptions, Network, Side, parse};
use self::running::Built;
use crate::workspace::Workspace;

/// Exit status after a command that ran for longer than its limit, as of `timeout`.
const TIMED_OUT: u8 = 124;

/// Exit status if the guest is lost or cannot start, which a caller can thus distinguish from a
/// failure of the command.
const LOST: u8 = 125;

/// Runs a command of `cargo xtask guest`. The exit status is that of the command in the guest, or
/// for `pair` of the command on the host.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> ExitCode {
    if let Some(text) = help::requested(arguments) {
        println!("{text}");
        return ExitCode::SUCCESS;
    }
    let folder = workspace.target_dir.join("guest");
    let result = parse(arguments).and_then(|command| match command {
        GuestCommand::Build => build(&folder, &workspace.root.join("tools/guest")),
        GuestCommand::Run { machine, command, limit } => {
            let name = format!("run-{}", std::process::id());
            let guest = Built::find(&folder)?.boot(&name, &machine)?;
            exec(guest.folder(), &command, limit).map(status_of)
        }
        GuestCommand::Pair { machine, command } => run_pair(&folder, &machine, &command),
        GuestCommand::Start { name, machine } => {
            let built = Built::find(&folder)?;
            let started = built.start(&name, &machine)?;
            let ending = exec(&started, "true", SETUP);
            if ending.is_err() {
                built.stop(&name)?;
            }
            ending.map(status_of)
        }
        GuestCommand::Exec { name, command, limit } => {
            let started = Built::find(&folder)?.started(&name)?;
            exec(&started, &command, limit).map(status_of)
        }
        GuestCommand::Stop { name } => Built::find(&folder)?.stop(&name).map(|()| 0),
    });
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(LOST)
        }
    }
}

fn status_of(ending: Ending) -> u8 {
    match ending {
        Ending::Status(status) => status,
        Ending::TimedOut => {
            eprintln!("xtask: the command ran for longer than its limit and was killed");
            TIMED_OUT
        }
    }
}

/// Builds kernel and file system. Results of an earlier build are kept as far as the package lists
/// still name the same versions.
fn build(folder: &Path, tools: &Path) -> Result<u8, GuestError> {
    packages::require(BUILD_PROGRAMS)?;
    let [debs, kernels, trees] = ["packages", "kernel", "unpacked"].map(|name| folder.join(name));
    for needed in [&debs, &kernels, &trees] {
        fs::create_dir_all(needed).map_err(GuestError::write(needed))?;
    }
    let release = kernel::Release::newest()?;
    println!("kernel {} and siw", release.version);
    let kernel = release.build(&kernels, &debs)?;
    println!("file system");
    let content = system::build(&kernel, tools, &trees, &debs)?;
    let vmlinux = Built::vmlinux_in(folder);
    let _earlier = fs::remove_file(&vmlinux);
    std::os::unix::fs::symlink(&kernel.vmlinux, &vmlinux).map_err(GuestError::write(&vmlinux))?;
    let archive = Built::archive_in(folder);
    let partial = archive.with_extension("partial");
    fs::write(&partial, &content).map_err(GuestError::write(&partial))?;
    fs::rename(&partial, &archive).map_err(GuestError::write(&archive))?;
    println!("{} ({} MiB)", archive.display(), content.len() >> 20);
    Ok(0)
}

/// Starts two guests, and runs a command on the host. The variables `A` and `B` of the command
/// contain the beginning of a command line that runs a command in one of the guests.
fn run_pair(folder: &Path, machine: &MachineOptions, command: &str) -> Result<u8, GuestError> {
    let built = Built::find(folder)?;
    let pair = format!("pair-{}", std::process::id());
    let this = std::env::current_exe()
        .map_err(|cause| GuestError::Start { program: "xtask".into(), cause })?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    let mut guests = Vec::new();
    for (side, variable) in [(Side::A, "A"), (Side::B, "B")] {
        // One capture contains the frames of both.
        let capture = machine.capture.clone().filter(|_| side == Side::A);
        let network = Network::Wire(side);
        let options = MachineOptions { network, capture, ..machine.clone() };
        let name = machine::name_in_pair(&pair, side);
        guests.push(built.boot(&name, &options)?);
        shell.env(variable, format!("{} guest exec --name {name} --", this.display()));
    }
    for guest in &guests {
        exec(guest.folder(), "true", SETUP)?;
    }
    let status =
        shell.status().map_err(|cause| GuestError::Start { program: "sh".into(), cause })?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(LOST))
}

/// Limit of the first command in a guest, which does nothing.
const SETUP: Duration = Duration::from_secs(30);

/// Programs that the build needs, with their packages.
const BUILD_PROGRAMS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("bash", "bash"),
    ("dpkg-deb", "dpkg"),
    ("gcc", "gcc libc6-dev"),
    ("make", "make"),
    ("strip", "binutils"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
];
