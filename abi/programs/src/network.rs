//! Where the two sides of a test are.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;
use std::time::Duration;

use bench::namespaces::{NamespacePair, are_possible};

/// Who is meant, of two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The one that is started first and waits.
    Server,
    /// The one that connects.
    Client,
}

/// Where the two sides of a test are.
#[derive(Debug)]
pub enum Network {
    /// Both on this host.
    Loopback,
    /// Each in a network namespace of its own, with an Ethernet between them. Programs in them run as nobody.
    Namespaces(NamespacePair),
}

impl Network {
    /// Two hosts with one link between them; nothing, and a printed reason, if this process may not make namespaces.
    pub fn namespaces() -> Option<Self> {
        if !are_possible() {
            println!("skipped: network namespaces need root");
            return None;
        }
        match NamespacePair::create(1, 1500) {
            Ok(pair) => {
                for name in [pair.client(), pair.server()] {
                    wait_for_carrier(name);
                }
                Some(Self::Namespaces(pair))
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    /// The address by which programs find the server.
    pub fn server_address(&self) -> IpAddr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST.into(),
            Self::Namespaces(pair) => pair.links()[0].server,
        }
    }

    /// The address of the client, if it is known.
    pub fn client_address(&self) -> Option<IpAddr> {
        match self {
            Self::Loopback => Some(Ipv4Addr::LOCALHOST.into()),
            Self::Namespaces(pair) => pair.links()[0].client,
        }
    }

    /// What stands before a command so that it runs on that side.
    pub(crate) fn prefix(&self, side: Side) -> Vec<String> {
        let Self::Namespaces(pair) = self else { return Vec::new() };
        let name = match side {
            Side::Server => pair.server(),
            Side::Client => pair.client(),
        };
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let words = ["ip", "netns", "exec", name].into_iter().chain(nobody);
        words.map(str::to_owned).collect()
    }

    /// Links of devices there: loopback is named, as nothing uses it by itself where there are other interfaces.
    pub(crate) const fn links(&self) -> Option<&'static str> {
        match self {
            Self::Loopback => Some("udp:127.0.0.1,shm"),
            Self::Namespaces(_) => None,
        }
    }
}

/// Waits until the link of a namespace carries frames: the kernel says so a while after both ends are there, and until
/// then a device has no other address than loopback.
fn wait_for_carrier(namespace: &str) {
    let is_up = || {
        let shown = Command::new("ip").args(["-n", namespace, "link", "show", "link1"]).output();
        shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("state UP"))
    };
    while !is_up() {
        thread::sleep(Duration::from_millis(10));
    }
}
