//! One network namespace: its name, entering it, removing it, and the commands that change it.
//!
//! The names contain the process id and start time of their creator, so that a later run can find
//! the namespaces that a crashed run left behind.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::clock::{self, Stopwatch};

/// Why namespaces could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// `ip` could not be started.
    #[error("run `{command}`: {source}; install iproute2, or use --loopback")]
    Start {
        /// The whole command.
        command: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The command `ip` reported an error.
    #[error(
        "`{command}` failed: {message}; network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and mounts that can be made private (a chroot has none), --loopback does not"
    )]
    Failed {
        /// The whole command.
        command: String,
        /// The error text of the command.
        message: String,
    },
    /// The link has no switch.
    #[error("link {link} has no switch, so it cannot be cut")]
    NoSwitch {
        /// Number of the link, counted from 1.
        link: u32,
    },
    /// The number of links is out of range.
    #[error("invalid number of links, {links}: it must be from 1 to {LINKS_MAX}")]
    Links {
        /// The requested number of links.
        links: u32,
    },
    /// The number of hosts of a star is out of range.
    #[error("invalid number of hosts, {hosts}: it must be from 1 to {}", HOSTS_MAX)]
    Hosts {
        /// The requested number of hosts.
        hosts: u32,
    },
    /// IPv4 on a veth pair cannot have this MTU.
    #[error("invalid MTU of {mtu} bytes: it must be from {MTU_MIN} to {MTU_MAX} bytes")]
    Mtu {
        /// The requested MTU, in bytes.
        mtu: u32,
    },
}

/// Returns whether this process has the user id of root, which is needed to make namespaces.
pub fn are_possible() -> bool {
    geteuid().is_root()
}

/// Moves the calling thread to a network namespace.
///
/// # Errors
/// Returns a text that names the namespace, if it does not exist or may not be entered.
pub fn enter(name: &str) -> Result<(), String> {
    let path = Path::new(NAMESPACE_DIRECTORY).join(name);
    let file = File::open(&path)
        .map_err(|error| format!("open network namespace {}: {error}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
        format!("enter network namespace {name}: {errno}; this needs CAP_SYS_ADMIN")
    })
}

/// Returns a function that makes names for the namespaces of one network. The argument of that
/// function is the role of the namespace, such as `client`.
pub(crate) fn name_of() -> impl Fn(&str) -> String {
    let ordinal = NEXT_ORDINAL.fetch_add(1, Ordering::Relaxed);
    let own = process::id();
    let start = start_time(own).unwrap_or_default();
    move |side| format!("{NAME_PREFIX}{own}-{start}-{ordinal}-{side}")
}

/// Removes a namespace, if it exists, and kills the processes inside. Without this kill, server
/// processes whose parent was killed would keep the namespace alive.
pub(crate) fn remove_namespace(name: &str) -> Result<(), NamespaceError> {
    if fs::exists(format!("{NAMESPACE_DIRECTORY}/{name}")).unwrap_or(true) {
        end_inhabitants(name);
        ip(&["netns", "delete", name])?;
    }
    Ok(())
}

/// Kills the processes in a namespace that this program made.
pub fn end_inhabitants(name: &str) {
    let identity = |path: String| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(namespace) = identity(format!("{NAMESPACE_DIRECTORY}/{name}")) else { return };
    // If `ip` failed halfway, the file is an ordinary file that names no namespace. It then has the
    // device number of its folder, unlike files that name a namespace.
    if identity("/proc/self/ns/net".to_string())
        .is_none_or(|own| own.0 != namespace.0 || own == namespace)
    {
        return;
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        if identity(format!("/proc/{pid}/ns/net")) == Some(namespace) {
            // Fails only if the process has already ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

pub(crate) fn ip(arguments: &[&str]) -> Result<(), NamespaceError> {
    call("ip", arguments)
}

pub(crate) fn tc(namespace: &str, arguments: &[impl AsRef<str>]) -> Result<(), NamespaceError> {
    let arguments = arguments.iter().map(AsRef::as_ref);
    call("tc", &["-n", namespace].into_iter().chain(arguments).collect::<Vec<_>>())
}

/// Waits until all interfaces of a namespace have a carrier. Until then, the kernel drops what they
/// send, and an endpoint has no link there. If that takes too long, returns anyway, and what uses
/// the interface will report the error.
pub(crate) fn await_carriers(namespace: &str) {
    let words = ["-n", namespace, "-o", "link", "show"];
    let are_up = || {
        let shown = Command::new("ip").args(words).stdin(Stdio::null()).output();
        shown.is_ok_and(|shown| have_carriers(&String::from_utf8_lossy(&shown.stdout)))
    };
    let started = Stopwatch::start();
    while !are_up() && !started.has_passed(CARRIERS_WITHIN) {
        clock::sleep_until(clock::monotonic_ns() + LOOK_NS);
    }
}

/// Returns whether a list of interfaces, a line each, has a carrier for each but the loopback.
fn have_carriers(list: &str) -> bool {
    list.lines().all(|interface| interface.contains("LOOPBACK") || interface.contains("state UP"))
}

fn call(program: &'static str, arguments: &[&str]) -> Result<(), NamespaceError> {
    let command = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| NamespaceError::Start { command: command(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(NamespaceError::Failed { command: command(), message })
}

/// Returns whether a name is of a namespace whose creator has ended.
pub(crate) fn is_leftover(name: &str) -> bool {
    maker(name).is_some_and(|(pid, start)| start_time(pid) != Some(start))
}

/// Returns the process id and start time of a namespace's creator, if [`name_of`] made the name.
fn maker(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(NAME_PREFIX)?.split('-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let _ordinal: u32 = parts.next()?.parse().ok()?;
    let side = parts.next()?;
    let is_numbered =
        |kind| side.strip_prefix(kind).is_some_and(|n: &str| n.parse::<u32>().is_ok());
    let is_side =
        matches!(side, "client" | "server") || is_numbered("switch") || is_numbered("host");
    (is_side && parts.next().is_none()).then_some((pid, start))
}

/// Returns the start time of a process in clock ticks since boot, or `None` if there is no such
/// process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the process name, may contain spaces and parentheses. The start time is
    // field 22.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Directory in which `ip netns` keeps named namespaces.
pub const NAMESPACE_DIRECTORY: &str = "/run/netns";

/// Highest number of links. Addresses have one byte for the link number, but no benchmark needs
/// more than 16 interfaces per host.
pub const LINKS_MAX: u32 = 16;
/// Smallest MTU that IPv4 allows on an interface.
pub const MTU_MIN: u32 = 68;
/// Largest MTU of a veth pair.
pub const MTU_MAX: u32 = 65_535;

/// Highest number of hosts. One byte of the address is the number of the host, and one machine must
/// do the work of all hosts.
pub const HOSTS_MAX: u32 = 64;

/// Time limit for carriers to appear. The kernel reports those of several interfaces at intervals of
/// up to 1 s.
const CARRIERS_WITHIN: Duration = Duration::from_secs(5);

/// Interval between two looks for carriers: 5 ms.
const LOOK_NS: u64 = 5_000_000;

const NAME_PREFIX: &str = "ethernot-bench-";

static NEXT_ORDINAL: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespace_names_contain_a_process_id() {
        assert_eq!(maker("ethernot-bench-12-345-0-client"), Some((12, 345)));
        assert_eq!(maker("ethernot-bench-12-345-0-switch2"), Some((12, 345)));
        assert_eq!(maker("ethernot-bench-12-345-0-host16"), Some((12, 345)));
        for foreign in [
            "blue",
            "ethernot-bench-",
            "ethernot-bench-12-345-0-other",
            "ethernot-bench-12-345-0-client-x",
        ] {
            assert_eq!(maker(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn each_interface_needs_a_carrier() {
        let (lo, up) = ("1: lo: <LOOPBACK,UP> state UNKNOWN\n", "2: link1: <UP> state UP\n");
        let down = "3: link2: <NO-CARRIER,UP> state DOWN\n";
        assert!(have_carriers(&[lo, up].concat()));
        assert!(!have_carriers(&[lo, up, down].concat()));
    }

    #[test]
    fn a_running_process_has_a_start_time() {
        assert!(start_time(process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }
}
