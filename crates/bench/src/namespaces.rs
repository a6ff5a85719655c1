//! Creates two network namespaces on one machine: a client's host and a server's host, joined by
//! veth pairs. Each link may have a switch in the middle.
//!
//! The names contain the process id and start time of their creator, so that a later run can find
//! the namespaces that a crashed run left behind.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::cleanup;
use crate::lever::Lever;
use crate::process::NAMESPACE_DIRECTORY;
use crate::switched::{LinkShape, filter_at};
use crate::transport::LinkAddresses;

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
    /// `ip` failed.
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
    #[error("link {link} has no switch that could cut it")]
    NoSwitch {
        /// The link, from 1.
        link: u32,
    },
    /// The number of links is out of range.
    #[error("{links} links: between 1 and {LINKS_MAX} are possible")]
    Links {
        /// The number.
        links: u32,
    },
    /// The number of hosts of a star is out of range.
    #[error("{hosts} hosts: between 1 and {} are possible", crate::star::HOSTS_MAX)]
    Hosts {
        /// The number.
        hosts: u32,
    },
    /// IPv4 on a veth pair cannot have this MTU.
    #[error("MTU {mtu}: between {MTU_MIN} and {MTU_MAX} bytes are possible")]
    Mtu {
        /// The number.
        mtu: u32,
    },
}

/// Two namespaces. Drop removes them with their interfaces.
#[derive(Debug)]
pub struct NamespacePair {
    client: String,
    server: String,
    /// The namespace and shape of each link's switch; empty if links have no switches.
    switches: Vec<(String, LinkShape)>,
    links: Vec<LinkAddresses>,
}

/// A direction of frames through a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// Returns the port of the switch through which frames of this direction enter.
    const fn entry(self) -> &'static str {
        match self {
            Self::ToServer => CLIENT_PORT,
            Self::ToClient => SERVER_PORT,
        }
    }

    /// Returns the port of the switch through which frames of this direction leave.
    const fn exit(self) -> &'static str {
        match self {
            Self::ToServer => SERVER_PORT,
            Self::ToClient => CLIENT_PORT,
        }
    }
}

impl NamespacePair {
    /// Makes two namespaces with `links` veth pairs of `mtu` bytes between them.
    ///
    /// Link `n` (from 1) is interface `link<n>` in both namespaces, with 10.77.`n`.1/24 at the
    /// client and 10.77.`n`.2/24 at the server. The surrounding host has none of these interfaces.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn create(links: u32, mtu: u32) -> Result<Self, NamespaceError> {
        Self::create_with(links, mtu, &[])
    }

    /// Makes two namespaces as [`NamespacePair::create`] does, with a switch in the middle of each
    /// link. Each switch is in a namespace of its own; `shapes` describes the ports of each.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn create_switched(shapes: &[LinkShape], mtu: u32) -> Result<Self, NamespaceError> {
        Self::create_with(shapes.len() as u32, mtu, shapes)
    }

    fn create_with(links: u32, mtu: u32, shapes: &[LinkShape]) -> Result<Self, NamespaceError> {
        if !(1..=LINKS_MAX).contains(&links) {
            return Err(NamespaceError::Links { links });
        }
        if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
            return Err(NamespaceError::Mtu { mtu });
        }
        let name = name_of();
        // After this point, dropping `pair` removes all namespaces that exist.
        let mut pair = Self {
            client: name("client"),
            server: name("server"),
            switches: (1..)
                .zip(shapes)
                .map(|(link, shape)| (name(&format!("switch{link}")), *shape))
                .collect(),
            links: Vec::new(),
        };

        let mut registry = cleanup::lock();
        registry.namespaces.extend(pair.names().cloned());
        let built = pair.build(links, mtu);
        // Release the lock, because dropping `pair` acquires it again.
        drop(registry);
        built.map(|()| pair)
    }

    /// Returns the name of the client's namespace.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns the name of the server's namespace.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the addresses of the links.
    pub fn links(&self) -> &[LinkAddresses] {
        &self.links
    }

    /// Prepares to cut link `link` (from 1): its switch will drop all frames of these directions.
    /// With `is_cut` false, prepares to undo the cut. Hosts notice only that frames stop arriving.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn prepare_cut(
        &self,
        link: u32,
        ways: &[Direction],
        is_cut: bool,
    ) -> Result<Lever, NamespaceError> {
        let (switch, shape) = self.switch(link)?;
        // The filter drops frames when they enter the switch. Frames that are already in the
        // switch's queue still leave the switch.
        let command = |way: &Direction| {
            if is_cut {
                filter_at("delete", way.entry()).join(" ") + "\n"
            } else {
                batch_line(&shape.forwarding(way.entry(), way.exit()))
            }
        };
        let commands: String = ways.iter().map(command).collect();
        let question = format!("qdisc show dev {CLIENT_PORT}");
        Lever::start("tc", &["-n", switch, "-batch", "-"], &commands, &question)
    }

    /// Prepares to pull the cable between the client and the switch of link `link` (from 1), or to
    /// plug it in. Without the cable the client's interface has no carrier.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn prepare_plug(&self, link: u32, is_unplugged: bool) -> Result<Lever, NamespaceError> {
        let state = if is_unplugged { "down" } else { "up" };
        let command = format!("link set {CLIENT_PORT} {state}\n");
        let question = format!("link show dev {CLIENT_PORT}");
        Lever::start("ip", &["-n", self.switch(link)?.0, "-batch", "-"], &command, &question)
    }

    fn switch(&self, link: u32) -> Result<(&str, &LinkShape), NamespaceError> {
        let index = link.checked_sub(1).map(|index| index as usize);
        let switch = index.and_then(|index| self.switches.get(index));
        let (name, shape) = switch.ok_or(NamespaceError::NoSwitch { link })?;
        Ok((name, shape))
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let switches = self.switches.iter().map(|(name, _)| name);
        [&self.client, &self.server].into_iter().chain(switches)
    }

    fn build(&mut self, links: u32, mtu: u32) -> Result<(), NamespaceError> {
        let (client, server) = (self.client.as_str(), self.server.as_str());
        let mtu_text = mtu.to_string();
        for namespace in self.names() {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        for link in 1..=links {
            let interface = format!("link{link}");
            if let Some((switch, shape)) = self.switches.get(link as usize - 1) {
                for (host, port) in [(client, CLIENT_PORT), (server, SERVER_PORT)] {
                    veth(&mtu_text, (host, &interface), (switch, port))?;
                }
                build_switch(switch, mtu, shape)?;
            } else {
                veth(&mtu_text, (client, &interface), (server, &interface))?;
            }
            let [client_address, server_address] =
                [1, 2].map(|host| Ipv4Addr::new(10, 77, link as u8, host));
            for (namespace, address) in [(client, client_address), (server, server_address)] {
                let address = format!("{address}/24");
                ip(&["-n", namespace, "address", "add", &address, "dev", &interface])?;
                ip(&["-n", namespace, "link", "set", &interface, "up"])?;
            }
            self.links.push(LinkAddresses {
                client: Some(IpAddr::V4(client_address)),
                server: IpAddr::V4(server_address),
            });
        }
        Ok(())
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        let mut registry = cleanup::lock();
        for name in self.names() {
            // If the removal fails, the next run tries again.
            let _ = remove_namespace(name);
            registry.namespaces.retain(|registered| registered != name);
        }
    }
}

/// Returns whether this process has the user id of root, which is needed to make namespaces.
pub fn are_possible() -> bool {
    geteuid().is_root()
}

/// Removes the namespaces of processes that ended without removing them. Returns the names of the
/// removed namespaces.
///
/// If a namespace cannot be removed, the next run tries again. The usual cause is that another run
/// has just removed it.
pub fn remove_leftovers() -> Vec<String> {
    let _registry = cleanup::lock();
    // Without this directory, no process has made a namespace yet.
    let Ok(entries) = fs::read_dir(NAMESPACE_DIRECTORY) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_leftover =
        |name: &String| maker(name).is_some_and(|(pid, start)| start_time(pid) != Some(start));
    names.filter(is_leftover).filter(|name| remove_namespace(name).is_ok()).collect()
}

/// Returns a function that makes names for the namespaces of one network from a role.
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

/// Kills the processes in a namespace made by this program.
pub(crate) fn end_inhabitants(name: &str) {
    let identity = |path: String| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(namespace) = identity(format!("{NAMESPACE_DIRECTORY}/{name}")) else { return };
    // If `ip` failed halfway, it left a file without a namespace. Such a file has the device number
    // of its folder.
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

/// Joins two interfaces by a veth pair. Each interface is given as namespace and name, and has only
/// one queue. With several queues, the switch could pass a frame to any of them, but a link over
/// `AF_XDP` reads only one queue.
fn veth(mtu: &str, one: (&str, &str), other: (&str, &str)) -> Result<(), NamespaceError> {
    let end = |(namespace, name)| {
        ["name", name, "mtu", mtu, "netns", namespace, "numtxqueues", "1", "numrxqueues", "1"]
    };
    ip(&[&["link", "add"], &end(one)[..], &["type", "veth", "peer"], &end(other)[..]].concat())
}

/// Joins the two ports in namespace `switch`. A switch with two ports needs no address learning:
/// frames that enter through one port leave through the other.
fn build_switch(switch: &str, mtu: u32, shape: &LinkShape) -> Result<(), NamespaceError> {
    for way in [Direction::ToServer, Direction::ToClient] {
        ip(&["-n", switch, "link", "set", way.entry(), "up"])?;
        tc(switch, &shape.discipline(way.entry(), mtu))?;
        tc(switch, &["qdisc", "add", "dev", way.entry(), "clsact"])?;
        tc(switch, &shape.forwarding(way.entry(), way.exit()))?;
    }
    Ok(())
}

pub(crate) fn ip(arguments: &[&str]) -> Result<(), NamespaceError> {
    call("ip", arguments)
}

pub(crate) fn tc(namespace: &str, arguments: &[impl AsRef<str>]) -> Result<(), NamespaceError> {
    let arguments = arguments.iter().map(AsRef::as_ref);
    call("tc", &["-n", namespace].into_iter().chain(arguments).collect::<Vec<_>>())
}

/// Returns the words as one line of a `tc` batch.
fn batch_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>();
    quoted.join(" ") + "\n"
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

/// Highest number of links. The link number is one byte of the addresses. No benchmark needs more
/// interfaces per host.
pub const LINKS_MAX: u32 = 16;
/// Smallest MTU that IPv4 allows on an interface.
pub const MTU_MIN: u32 = 68;
/// Largest MTU of a veth pair.
pub const MTU_MAX: u32 = 65_535;

/// The ports of a switch toward the client and toward the server.
const CLIENT_PORT: &str = "client";
const SERVER_PORT: &str = "server";

const NAME_PREFIX: &str = "ethernot-bench-";

static NEXT_ORDINAL: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_have_a_maker() {
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
    fn a_running_process_has_a_start_time() {
        assert!(start_time(process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn impossible_layouts_are_refused_before_anything_is_made() {
        assert!(matches!(NamespacePair::create(0, 1500), Err(NamespaceError::Links { links: 0 })));
        assert!(matches!(NamespacePair::create(17, 1500), Err(NamespaceError::Links { .. })));
        assert!(matches!(NamespacePair::create(1, 10), Err(NamespaceError::Mtu { mtu: 10 })));
    }

    #[test]
    fn namespaces_exist_while_the_pair_does() {
        if !are_possible() {
            eprintln!("skipped: making network namespaces needs root");
            return;
        }
        let pair = match NamespacePair::create(2, 1500) {
            Ok(pair) => pair,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let paths =
            [pair.client(), pair.server()].map(|name| format!("{NAMESPACE_DIRECTORY}/{name}"));
        assert_eq!(pair.links().len(), 2);
        assert!(paths.iter().all(|path| fs::exists(path).unwrap()));
        let removed = remove_leftovers();
        assert!(!removed.iter().any(|name| name == pair.client() || name == pair.server()));
        drop(pair);
        assert!(!paths.iter().any(|path| fs::exists(path).unwrap()));
    }
}
