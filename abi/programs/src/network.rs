//! The networks between the two sides of a test.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;
use std::time::Duration;

use testbed::namespace::are_possible;
use testbed::pair::NamespacePair;

/// One of the two processes of a test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The process that is started first and waits.
    Server,
    /// The process that connects.
    Client,
}

/// The network between the two sides of a test.
#[derive(Debug)]
pub enum Network {
    /// Both sides run on this host.
    Loopback,
    /// Each side runs in its own network namespace, with Ethernet links between them. Programs run
    /// there as an unprivileged user.
    Namespaces(NamespacePair),
}

impl Network {
    /// Creates two hosts with one link between them. Returns `None` and prints the reason if this
    /// process may not create namespaces.
    pub fn namespaces() -> Option<Self> {
        Self::namespaces_with(1)
    }

    /// Makes two hosts with `links` links between them. Programs find the server by the address of
    /// the first link.
    pub fn namespaces_with(links: u32) -> Option<Self> {
        Self::namespaces_of(links, MTU)
    }

    /// Creates two hosts with one link between them that carries frames of up to `mtu` bytes,
    /// without the Ethernet header.
    pub fn namespaces_with_mtu(mtu: u32) -> Option<Self> {
        Self::namespaces_of(1, mtu)
    }

    fn namespaces_of(links: u32, mtu: u32) -> Option<Self> {
        if !are_possible() {
            println!("skipped: network namespaces need root");
            return None;
        }
        match NamespacePair::create(links, mtu) {
            Ok(pair) => {
                for name in [pair.client(), pair.server()] {
                    (1..=links).for_each(|link| wait_for_carrier(name, link));
                }
                Some(Self::Namespaces(pair))
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    /// Returns the address by which clients reach the server.
    pub fn server_address(&self) -> IpAddr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST.into(),
            Self::Namespaces(pair) => pair.links()[0].server,
        }
    }

    /// Returns the address of the client.
    pub fn client_address(&self) -> Option<IpAddr> {
        match self {
            Self::Loopback => Some(Ipv4Addr::LOCALHOST.into()),
            Self::Namespaces(pair) => pair.links()[0].client,
        }
    }

    /// Returns the traffic that a side has sent so far. In a namespace only the test sends.
    ///
    /// # Panics
    /// Panics on loopback, where other programs send too, and if the kernel does not report the
    /// traffic.
    pub fn sent(&self, side: Side) -> Sent {
        let Self::Namespaces(pair) = self else { panic!("other programs use loopback too") };
        let name = match side {
            Side::Server => pair.server(),
            Side::Client => pair.client(),
        };
        Sent::by(name)
    }

    /// Makes both hosts drop all UDP datagrams that they send after this call, like a firewall.
    ///
    /// # Panics
    /// Panics on loopback, which other programs use too, and if `nft` is missing.
    pub fn block_datagrams(&self) {
        let Self::Namespaces(pair) = self else { panic!("other programs use loopback too") };
        let rules = "add table inet ethernot; \
            add chain inet ethernot out { type filter hook output priority 0; }; \
            add rule inet ethernot out meta l4proto udp drop";
        for name in [pair.client(), pair.server()] {
            expect_run(&["ip", "netns", "exec", name, "nft", rules]);
        }
    }

    /// Sets the client's first link up or down.
    ///
    /// # Panics
    /// Panics on loopback, which other programs use too.
    pub fn set_link(&self, is_up: bool) {
        let Self::Namespaces(pair) = self else { panic!("other programs use loopback too") };
        let state = if is_up { "up" } else { "down" };
        expect_run(&["ip", "-n", pair.client(), "link", "set", "link1", state]);
    }

    /// Makes each host drop `per_cent` per cent of the packets that it sends after this call.
    ///
    /// # Panics
    /// Panics on loopback, which other programs use too, and if `tc` fails.
    pub fn lose(&self, per_cent: f64) {
        let Self::Namespaces(pair) = self else { panic!("other programs use loopback too") };
        let share = format!("{per_cent}%");
        for name in [pair.client(), pair.server()] {
            let how = ["qdisc", "replace", "dev", "link1", "root", "netem", "loss", &share];
            expect_run(&[&["tc", "-n", name], &how[..]].concat());
        }
    }

    /// Returns the words to put before a command so that the command runs on that side. In a
    /// namespace, the command runs as root if `by_root` is true, and otherwise as an unprivileged
    /// user.
    pub(crate) fn prefix(&self, side: Side, by_root: bool) -> Vec<String> {
        let Self::Namespaces(pair) = self else { return Vec::new() };
        let name = match side {
            Side::Server => pair.server(),
            Side::Client => pair.client(),
        };
        let unprivileged = UNPRIVILEGED.into_iter().filter(|_| !by_root);
        let words = ["ip", "netns", "exec", name].into_iter().chain(unprivileged);
        words.map(str::to_owned).collect()
    }

    /// Returns the names of the device's links, or `None` for the default links. Names loopback
    /// explicitly, because the device uses loopback by default only if there is no other interface.
    pub(crate) const fn links(&self) -> Option<&'static str> {
        match self {
            Self::Loopback => Some("udp:127.0.0.1,shm"),
            Self::Namespaces(_) => None,
        }
    }
}

/// The traffic that all programs of a host have sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sent {
    /// Number of UDP datagrams; devices communicate by datagrams. Several datagrams of one system
    /// call may count as one.
    pub datagrams: u64,
    /// Number of TCP segments.
    pub segments: u64,
}

impl Sent {
    /// Returns the traffic sent in a network namespace.
    ///
    /// # Panics
    /// Panics if the kernel does not report the traffic.
    pub(crate) fn by(namespace: &str) -> Self {
        let shown = ["netns", "exec", namespace, "cat", "/proc/net/snmp"];
        let shown = Command::new("ip").args(shown).output().expect("it was made by this command");
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        // The file has two lines for each protocol: a line of names, and a line of values.
        let counter = |protocol: &str, name: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with(protocol));
            let (names, numbers) = (lines.next()?, lines.next()?);
            let at = names.split_whitespace().position(|word| word == name)?;
            numbers.split_whitespace().nth(at)?.parse().ok()
        };
        let of = |protocol, name| counter(protocol, name).expect("the kernel counts it");
        Self { datagrams: of("Udp:", "OutDatagrams"), segments: of("Tcp:", "OutSegs") }
    }
}

impl std::ops::Sub for Sent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            datagrams: self.datagrams - before.datagrams,
            segments: self.segments - before.segments,
        }
    }
}

/// Runs a command that changes a network namespace of the test.
fn expect_run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", words.join(" ")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", words.join(" "));
}

/// Waits until a link of a namespace has carrier. The kernel reports the carrier some time after it
/// has created both ends. Before that, a device has only the loopback address.
fn wait_for_carrier(namespace: &str, link: u32) {
    let link = format!("link{link}");
    let is_up = || {
        let shown = Command::new("ip").args(["-n", namespace, "link", "show", &link]).output();
        shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("state UP"))
    };
    while !is_up() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The words before a command that an unprivileged user is to run.
pub(crate) const UNPRIVILEGED: [&str; 4] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Longest frame of a link unless a test asks for another, in bytes without the Ethernet header.
const MTU: u32 = 1500;
