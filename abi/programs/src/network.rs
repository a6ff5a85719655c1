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
    /// Each in a network namespace of its own, with an Ethernet between them. Programs in them run as a user without rights.
    Namespaces(NamespacePair),
}

impl Network {
    /// Makes two hosts with one link between them. Returns `None` and prints the reason if this process may not
    /// make namespaces.
    pub fn namespaces() -> Option<Self> {
        Self::namespaces_with(1)
    }

    /// Makes two hosts with so many links, of which programs find the server by the first.
    pub fn namespaces_with(links: u32) -> Option<Self> {
        if !are_possible() {
            println!("skipped: network namespaces need root");
            return None;
        }
        match NamespacePair::create(links, 1500) {
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

    /// Returns the address by which programs find the server.
    pub fn server_address(&self) -> IpAddr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST.into(),
            Self::Namespaces(pair) => pair.links()[0].server,
        }
    }

    /// Returns the address of the client, if it is known.
    pub fn client_address(&self) -> Option<IpAddr> {
        match self {
            Self::Loopback => Some(Ipv4Addr::LOCALHOST.into()),
            Self::Namespaces(pair) => pair.links()[0].client,
        }
    }

    /// Returns what was sent on that side until now, in a network of its own: by the test alone.
    ///
    /// # Panics
    /// On loopback, which others use, too; and if the kernel does not say.
    pub fn sent(&self, side: Side) -> Sent {
        let Self::Namespaces(pair) = self else { panic!("others use it, too") };
        let name = match side {
            Side::Server => pair.server(),
            Side::Client => pair.client(),
        };
        Sent::by(name)
    }

    /// Drops all datagrams of UDP that leave either host from now on, as firewalls do.
    ///
    /// # Panics
    /// On loopback, which others use, too; and if there is no `nft`.
    pub fn block_datagrams(&self) {
        let Self::Namespaces(pair) = self else { panic!("others use it, too") };
        let rules = "add table inet ethernot; \
            add chain inet ethernot out { type filter hook output priority 0; }; \
            add rule inet ethernot out meta l4proto udp drop";
        for name in [pair.client(), pair.server()] {
            expect_run(&["ip", "netns", "exec", name, "nft", rules]);
        }
    }

    /// Takes the link down on the client's host, or up again.
    ///
    /// # Panics
    /// On loopback, which others use, too.
    pub fn set_link(&self, is_up: bool) {
        let Self::Namespaces(pair) = self else { panic!("others use it, too") };
        let state = if is_up { "up" } else { "down" };
        expect_run(&["ip", "-n", pair.client(), "link", "set", "link1", state]);
    }

    /// Drops so many of a hundred packets that each host sends from now on.
    ///
    /// # Panics
    /// On loopback, which others use, too; and if `tc` cannot do it.
    pub fn lose(&self, per_cent: f64) {
        let Self::Namespaces(pair) = self else { panic!("others use it, too") };
        let share = format!("{per_cent}%");
        for name in [pair.client(), pair.server()] {
            let how = ["qdisc", "replace", "dev", "link1", "root", "netem", "loss", &share];
            expect_run(&[&["tc", "-n", name], &how[..]].concat());
        }
    }

    /// What stands before a command so that it runs on that side: there as a user without rights, unless it is `by_root`.
    pub(crate) fn prefix(&self, side: Side, by_root: bool) -> Vec<String> {
        let Self::Namespaces(pair) = self else { return Vec::new() };
        let name = match side {
            Side::Server => pair.server(),
            Side::Client => pair.client(),
        };
        let unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let unprivileged = unprivileged.into_iter().filter(|_| !by_root);
        let words = ["ip", "netns", "exec", name].into_iter().chain(unprivileged);
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

/// What was sent on a host, by all programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sent {
    /// Datagrams of UDP, by which devices speak to each other. Many that the kernel is given at once count once.
    pub datagrams: u64,
    /// Segments of TCP.
    pub segments: u64,
}

impl Sent {
    /// What was sent in a network namespace.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub(crate) fn by(namespace: &str) -> Self {
        let shown = ["netns", "exec", namespace, "cat", "/proc/net/snmp"];
        let shown = Command::new("ip").args(shown).output().expect("it was made by this command");
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        // Two lines for each protocol: names and numbers.
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

/// Runs a command that changes a network of our own.
fn expect_run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", words.join(" ")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", words.join(" "));
}

/// Waits until a link of a namespace carries frames: the kernel says so a while after both ends are there, and until
/// then a device has no other address than loopback.
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
