//! The guest of `cargo xtask guest`: a virtual machine whose kernel has siw, the iWARP of Linux.

use std::net::{IpAddr, Ipv4Addr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs, process};

use crate::frames::Capture;
use crate::libraries::xtask;
use crate::network::{Network, Side};
use crate::process::{Finished, Program, Running};

/// A started guest. It ends with this value and with the thread that started it, even if the
/// process of the thread is killed. Only one guest runs at a time.
#[derive(Debug)]
pub struct Guest {
    /// Dropping it ends the guest.
    running: Running,
    name: String,
    network: Network,
    ports: PortPair,
    capture: Capture,
    folder: PathBuf,
    /// Held as long as the guest runs. Emulated processors take all of the host's.
    _alone: MutexGuard<'static, ()>,
}

/// How the network card of a guest is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Card {
    /// By qemu's network in user space, which needs no rights. The host reaches the port of servers
    /// in the guest at its own loopback address.
    User,
    /// By a tap interface in a network namespace. Needs root.
    Tap,
}

impl Guest {
    /// Starts a guest and waits until it runs. `name` names its folder for captures. Returns `None`
    /// and prints the reason if no guest is built, or if this process may not create a tap.
    ///
    /// # Panics
    /// Panics if a built guest does not start.
    pub fn start(card: Card, name: &str) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let network = match card {
            Card::User => Network::Loopback,
            Card::Tap => Network::namespaces()?,
        };
        let ports = PortPair::take();
        let folder = env::temp_dir().join(format!("ethernot-guest-{name}-{}", process::id()));
        fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
        let capture = folder.join("all.pcap");
        let options = match card {
            Card::User => format!("user:{0}={0}", ports.first),
            Card::Tap => format!("tap:tap0,{}/24,{GUEST_ON_TAP}", host_on_tap()),
        };
        let (capture_shown, shared) = (capture.display(), folder.display());
        let words = format!(
            "--pdeathsig KILL {} guest run --net {options} --pcap {capture_shown} --share {shared} \
             --seconds {LIFE_SECONDS} -- echo {READY}; sleep {LIFE_SECONDS}",
            xtask().display()
        );
        let mut running =
            Program::new("setpriv", &words).by_root().start_bare(&network, Side::Client);
        running.wait_for_output(READY);
        if !running.has_said(READY) {
            let ended = running.finish();
            // The folder is left if this fails.
            let _ = fs::remove_dir_all(&folder);
            let reason = ended.output.trim().strip_prefix("xtask: ").unwrap_or_default();
            let cannot = ["no guest is built", "missing programs"];
            assert!(cannot.iter().any(|start| reason.starts_with(start)), "{ended}");
            println!("skipped: {reason}");
            return None;
        }
        // The name that `guest run` gives to its guest. `setpriv` has become this process.
        let name = format!("run-{}", running.id());
        let capture = Capture::of(&capture);
        Some(Self { running, name, network, ports, capture, folder, _alone: alone })
    }

    /// Returns the host's side of the network.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the address at which a server on this side listens.
    pub fn own_address(&self, server: Place) -> IpAddr {
        match (server, &self.network) {
            (Place::Guest, Network::Loopback) => GUEST_BY_USER,
            (Place::Guest, _) => GUEST_ON_TAP,
            (Place::Host, Network::Loopback) => Ipv4Addr::LOCALHOST,
            (Place::Host, _) => host_on_tap(),
        }
        .into()
    }

    /// Returns the address at which the other side reaches a server on this side.
    pub fn address(&self, server: Place) -> IpAddr {
        match (server, &self.network) {
            (Place::Guest, Network::Loopback) => Ipv4Addr::LOCALHOST.into(),
            (Place::Host, Network::Loopback) => HOST_BY_USER.into(),
            _ => self.own_address(server),
        }
    }

    /// Returns the port of a server on this side.
    pub const fn port(&self, server: Place) -> u16 {
        match (server, &self.network) {
            // qemu has the first port, to forward its connections to the guest.
            (Place::Host, Network::Loopback) => self.ports.first + 1,
            _ => self.ports.first,
        }
    }

    /// Starts a command in the guest. It ends when the returned value is dropped.
    pub fn start_inside(&self, command: &str) -> Running {
        let words = format!("guest exec --name {} --seconds {COMMAND_SECONDS} --", self.name);
        let program = Program::new(&xtask().display().to_string(), &words).argument(&command);
        program.start_bare(&Network::Loopback, Side::Server)
    }

    /// Runs a command in the guest.
    pub fn run_inside(&self, command: &str) -> Finished {
        self.start_inside(command).finish()
    }

    /// Waits until a program of the guest listens at a port of the connection manager. If none does,
    /// its client will show it.
    pub fn wait_for_listener(&self) {
        let _none_listens = self.run_inside("await-listener");
    }

    /// Sets parameters of siw (`NAME=VALUE`, separated by spaces).
    ///
    /// # Panics
    /// Panics if siw has no such parameter.
    pub fn set(&self, parameters: &str) {
        let set = |parameter: &str| {
            let (name, value) = parameter.split_once('=').expect("NAME=VALUE");
            format!("echo {value} > /sys/module/siw/parameters/{name}")
        };
        let commands: Vec<_> = parameters.split_whitespace().map(set).collect();
        self.run_inside(&commands.join(" && ")).expect_success();
    }

    /// Replaces the RDMA device of the network card. The new device has the name of its driver
    /// (`siw` or `rxe`), followed by 0.
    ///
    /// # Panics
    /// Panics if the kernel does not create the device.
    pub fn replace_device(&self, driver: &str) {
        // The kernel removes a device in the background, so wait until the list of devices is empty.
        let command = format!(
            "for device in $(ls /sys/class/infiniband); do rdma link delete $device || exit 1; done
             while [ -n \"$(ls /sys/class/infiniband)\" ]; do sleep 0.1; done
             rdma link add {driver}0 type {driver} netdev eth0"
        );
        self.run_inside(&command).expect_success();
    }

    /// Copies a program to the folder that the guest has as /share. Returns its path there.
    ///
    /// # Panics
    /// Panics if the program cannot be copied.
    pub fn share(&self, program: &Path) -> String {
        let name = program.file_name().expect("a program").to_string_lossy();
        fs::copy(program, self.folder.join(&*name)).expect("room for a program");
        format!("/share/{name}")
    }

    /// Moves the frames since the last call to a capture of their own. Returns its path.
    ///
    /// # Panics
    /// Panics if the frames cannot be read or written.
    pub fn take_frames(&mut self) -> PathBuf {
        let file = self.folder.join("run.pcap");
        self.capture.take(&file).expect("qemu writes the capture, and there is room for another");
        file
    }

    /// Returns the last messages of the guest's kernel.
    pub fn messages(&self) -> String {
        self.run_inside("dmesg | tail -n 20").output
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.running.signal("KILL");
        // Files are left if this fails.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Two TCP ports at which servers listen, on the host and in the guest. No other guest of this host
/// has them, so several runs of the tests may have guests.
#[derive(Debug)]
struct PortPair {
    first: u16,
    /// Bound as long as the ports are in use. Its name has the first port.
    _claim: UnixListener,
}

impl PortPair {
    /// Takes the first pair that no other guest has.
    ///
    /// # Panics
    /// Panics if all are taken.
    fn take() -> Self {
        let claim = |first| {
            let name = SocketAddr::from_abstract_name(format!("ethernot-guest-ports-{first}"));
            let claim = UnixListener::bind_addr(&name.ok()?).ok()?;
            Some(Self { first, _claim: claim })
        };
        FIRST_PORTS.step_by(2).find_map(claim).expect("fewer than 40 guests run on this host")
    }
}

/// The lower ports of all pairs. No other test of this package has any of these ports.
const FIRST_PORTS: std::ops::Range<u16> = 26_400..26_480;

/// One of the two machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// The guest, with siw.
    Guest,
    /// This host, with the libraries under test.
    Host,
}

/// The addresses in qemu's network in user space.
const GUEST_BY_USER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const HOST_BY_USER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The address of the guest on a tap.
const GUEST_ON_TAP: Ipv4Addr = Ipv4Addr::new(10, 88, 1, 2);

/// Returns the address of the host on a tap.
const fn host_on_tap() -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 1, 1)
}

/// The text that a guest prints when it runs.
const READY: &str = "guest-is-ready";

/// Longest time that a guest runs, in seconds. Tests end it earlier.
const LIFE_SECONDS: u32 = 7200;

/// Longest time that a command runs in the guest, in seconds. The longest takes less than a minute
/// on an idle host.
const COMMAND_SECONDS: u32 = 280;

/// Locked while a guest runs.
static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_guests_have_different_ports() {
        let [one, other] = [PortPair::take(), PortPair::take()];
        assert!(one.first.abs_diff(other.first) >= 2);
    }
}
