//! The testbed: two hosts and, between them, a switch for each link, all in network namespaces.
//!
//! Rates are set on the switch's ports, not on the hosts' interfaces: `AF_XDP` and packet sockets
//! that bypass the queueing discipline skip what is on the sender's interface, and in a real network
//! it is the switch that has the queue. A port has a token bucket (`tbf`) with the queue of a cheap
//! switch. A link that delays or loses has a second switch: the rate is that of the trunk between
//! them, loss (`nft`) and delay (`netem`) come behind it, so that a lost frame has used the link as a frame
//! lost on a real wire has.
//!
//! Host interfaces hand single frames to the link (`gso_max_segs 1`): a segment of many frames would
//! pass a queue that counts frames as one.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cleanup;
use crate::namespaces::{
    LINKS_MAX, MTU_MAX, MTU_MIN, NamespaceError, ip, new_names, remove_namespace, run_tool,
};
use crate::transport::LinkAddresses;

/// What a link of the testbed is like, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkShape {
    /// Rate, in bits per second, of whole frames with their Ethernet header; without preamble, check
    /// sequence and gap, which virtual Ethernet has not. `None`: what the hosts can do, and no
    /// switch.
    pub bits_per_second: Option<u64>,
    /// Delay added in each direction, in microseconds.
    pub delay_us: u32,
    /// Frames lost at random in each direction, in per cent.
    pub loss_percent: f64,
    /// Has the second switch even without delay and loss, so that both can be set later.
    pub has_trunk: bool,
}

impl LinkShape {
    /// A link of this rate that only queues.
    pub const fn of_rate(bits_per_second: u64) -> Self {
        Self {
            bits_per_second: Some(bits_per_second),
            delay_us: 0,
            loss_percent: 0.0,
            has_trunk: false,
        }
    }

    /// A link without a switch.
    pub const DIRECT: Self =
        Self { bits_per_second: None, delay_us: 0, loss_percent: 0.0, has_trunk: false };

    const fn needs_trunk(&self) -> bool {
        self.has_trunk || self.delay_us > 0 || self.loss_percent > 0.0
    }
}

/// Where frames are going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// To the client.
    Client,
    /// To the server.
    Server,
}

/// Three namespaces. Dropping it removes them, and with them everything inside.
#[derive(Debug)]
pub struct Testbed {
    client: String,
    server: String,
    switch: String,
    links: Vec<LinkAddresses>,
    shapes: Vec<LinkShape>,
}

impl Testbed {
    /// Makes hosts with one link for each of `shapes`, and a further one between them, unshaped, for
    /// what must not disturb: [`CONTROL_SERVER`].
    ///
    /// Link `n` (from 1) is interface `link<n>` in both, 10.77.`n`.1/24 at the client and
    /// 10.77.`n`.2/24 at the server.
    pub fn create(shapes: &[LinkShape], mtu: u32) -> Result<Self, NamespaceError> {
        let links = shapes.len() as u32;
        if !(1..=LINKS_MAX).contains(&links) {
            return Err(NamespaceError::Links { links });
        }
        if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
            return Err(NamespaceError::Mtu { mtu });
        }
        let [client, server, switch] = new_names(["client", "server", "switch"]);
        // From here on, dropping `testbed` removes whatever exists.
        let mut testbed =
            Self { client, server, switch, links: Vec::new(), shapes: shapes.to_vec() };
        let mut registry = cleanup::lock();
        registry.namespaces.extend(testbed.namespaces().map(String::from));
        let built = testbed.build(mtu);
        // Dropping `testbed` locks the registry again.
        drop(registry);
        built.map(|()| testbed)
    }

    /// Name of the client's namespace.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Name of the server's namespace.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The addresses of the links.
    pub fn links(&self) -> &[LinkAddresses] {
        &self.links
    }

    /// Has link `link` (from 0), which must have a trunk, lose `percent` of the frames that go this
    /// way, silently: both hosts still have their carrier.
    pub fn set_loss(
        &self,
        link: usize,
        towards: Towards,
        percent: f64,
    ) -> Result<(), NamespaceError> {
        let chain = trunk_end(link, towards);
        self.nft(&format!("flush chain netdev loss {chain}{}", drop_rule(&chain, percent)))
    }

    /// Takes the carrier of link `link` (from 0) from both hosts, or gives it back.
    pub fn set_carrier(&self, link: usize, is_up: bool) -> Result<(), NamespaceError> {
        let state = if is_up { "up" } else { "down" };
        for towards in [Towards::Client, Towards::Server] {
            ip(&["-n", &self.switch, "link", "set", &port(link, towards), state])?;
        }
        Ok(())
    }

    /// Frames that all queues of the switches have dropped so far, without losses on purpose.
    pub fn drops(&self) -> Result<u64, NamespaceError> {
        let printed = run_tool("tc", &["-n", &self.switch, "-s", "-j", "qdisc", "show"])?;
        Ok(count_drops(&printed))
    }

    fn namespaces(&self) -> [&str; 3] {
        [&self.client, &self.server, &self.switch]
    }

    fn build(&mut self, mtu: u32) -> Result<(), NamespaceError> {
        for namespace in self.namespaces() {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        self.join("control", mtu)?;
        self.address("control", [CONTROL_CLIENT, CONTROL_SERVER])?;
        for (index, shape) in self.shapes.clone().iter().enumerate() {
            let interface = format!("link{}", index + 1);
            if shape.bits_per_second.is_some() || shape.needs_trunk() {
                self.switch_link(index, shape, mtu)?;
            } else {
                self.join(&interface, mtu)?;
            }
            let addresses = [1, 2].map(|host| Ipv4Addr::new(10, 77, index as u8 + 1, host));
            self.address(&interface, addresses)?;
            let [client, server] = addresses.map(IpAddr::V4);
            self.links.push(LinkAddresses { client: Some(client), server });
        }
        Ok(())
    }

    /// A veth pair between the hosts.
    fn join(&self, interface: &str, mtu: u32) -> Result<(), NamespaceError> {
        veth([&self.client, interface], [&self.server, interface], mtu)
    }

    /// Gives the hosts' ends their addresses and brings them up.
    fn address(&self, interface: &str, addresses: [Ipv4Addr; 2]) -> Result<(), NamespaceError> {
        for (namespace, address) in [&self.client, &self.server].into_iter().zip(addresses) {
            let address = format!("{address}/24");
            ip(&["-n", namespace, "address", "add", &address, "dev", interface])?;
            ip(&["-n", namespace, "link", "set", "dev", interface, "gso_max_segs", "1", "up"])?;
        }
        Ok(())
    }

    fn switch_link(&self, index: usize, shape: &LinkShape, mtu: u32) -> Result<(), NamespaceError> {
        let switch = self.switch.as_str();
        let interface = format!("link{}", index + 1);
        let [near, far] = [Towards::Client, Towards::Server].map(|towards| port(index, towards));
        veth([&self.client, &interface], [switch, &near], mtu)?;
        veth([&self.server, &interface], [switch, &far], mtu)?;
        let bridge = format!("switch{}", index + 1);
        self.bridge(&bridge, mtu)?;
        let mut shaped = [near.clone(), far.clone()];
        if shape.needs_trunk() {
            let [left, right] =
                [Towards::Client, Towards::Server].map(|towards| trunk_end(index, towards));
            let second = format!("second{}", index + 1);
            veth([switch, &left], [switch, &right], mtu)?;
            self.bridge(&second, mtu)?;
            self.plug(&bridge, &[&near, &left])?;
            self.plug(&second, &[&right, &far])?;
            if shape.delay_us > 0 {
                for port in [&near, &far] {
                    let delay = format!("{}us", shape.delay_us);
                    tc(&[
                        "-n",
                        switch,
                        "qdisc",
                        "add",
                        "dev",
                        port,
                        "root",
                        "netem",
                        "limit",
                        NETEM_FRAMES,
                        "delay",
                        &delay,
                    ])?;
                }
            }
            for chain in [&left, &right] {
                let rule = drop_rule(chain, shape.loss_percent);
                self.nft(&format!(
                    "add table netdev loss; add chain netdev loss {chain} {{ type filter hook \
                     ingress device {chain} priority 0; }}{rule}"
                ))?;
            }
            shaped = [left, right];
        } else {
            self.plug(&bridge, &[&near, &far])?;
        }
        let Some(bits_per_second) = shape.bits_per_second else { return Ok(()) };
        for port in &shaped {
            let words = token_bucket(bits_per_second, mtu);
            let mut arguments = vec!["-n", switch, "qdisc", "add", "dev", port, "root"];
            arguments.extend(words.iter().map(String::as_str));
            tc(&arguments)?;
        }
        Ok(())
    }

    fn nft(&self, commands: &str) -> Result<(), NamespaceError> {
        let arguments = ["netns", "exec", &self.switch, "nft", commands];
        run_tool("ip", &arguments).map(|_| ())
    }

    fn bridge(&self, name: &str, mtu: u32) -> Result<(), NamespaceError> {
        let (switch, mtu) = (self.switch.as_str(), mtu.to_string());
        // Forwards from the first frame on, and says nothing by itself.
        ip(&[
            "-n",
            switch,
            "link",
            "add",
            "name",
            name,
            "mtu",
            &mtu,
            "type",
            "bridge",
            "stp_state",
            "0",
            "forward_delay",
            "0",
        ])?;
        silence(switch, name)?;
        ip(&["-n", switch, "link", "set", name, "up"])
    }

    fn plug(&self, bridge: &str, ports: &[&str]) -> Result<(), NamespaceError> {
        for port in ports {
            ip(&["-n", &self.switch, "link", "set", port, "master", bridge, "up"])?;
        }
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let mut registry = cleanup::lock();
        for name in self.namespaces() {
            // What cannot be removed now is tried again by the next run.
            let _ = remove_namespace(name);
            registry.namespaces.retain(|registered| registered != name);
        }
    }
}

/// The switch's port to a host.
fn port(link: usize, towards: Towards) -> String {
    let host = match towards {
        Towards::Client => "client",
        Towards::Server => "server",
    };
    format!("{host}{}", link + 1)
}

/// A veth pair that says nothing by itself.
fn veth(one: [&str; 2], other: [&str; 2], mtu: u32) -> Result<(), NamespaceError> {
    let mtu = mtu.to_string();
    let [[namespace, name], [peer_namespace, peer]] = [one, other];
    ip(&[
        "link",
        "add",
        "name",
        name,
        "mtu",
        &mtu,
        "netns",
        namespace,
        "type",
        "veth",
        "peer",
        "name",
        peer,
        "mtu",
        &mtu,
        "netns",
        peer_namespace,
    ])?;
    silence(namespace, name)?;
    silence(peer_namespace, peer)
}

/// Takes the IPv6 addresses that an interface would give itself, where the kernel has IPv6.
fn silence(namespace: &str, interface: &str) -> Result<(), NamespaceError> {
    if !std::fs::exists("/proc/net/if_inet6").unwrap_or(false) {
        return Ok(());
    }
    ip(&["-n", namespace, "link", "set", "dev", interface, "addrgenmode", "none"])
}

/// The end of the trunk at which frames arrive that go this way.
fn trunk_end(link: usize, towards: Towards) -> String {
    let end = match towards {
        Towards::Client => "left",
        Towards::Server => "right",
    };
    format!("{end}{}", link + 1)
}

/// A command of `nft`, behind others, that adds a rule to lose so many of the frames at `chain`.
fn drop_rule(chain: &str, percent: f64) -> String {
    let ten_thousandths = (percent * 100.0).round() as u32;
    match ten_thousandths {
        0 => String::new(),
        10_000.. => format!("; add rule netdev loss {chain} drop"),
        some => format!("; add rule netdev loss {chain} numgen random mod 10000 < {some} drop"),
    }
}

/// A rate with a queue of [`QUEUE_FRAMES`], in words of `tc`.
fn token_bucket(bits_per_second: u64, mtu: u32) -> Vec<String> {
    let frame_bytes = u64::from(mtu) + ETHERNET_HEADER_BYTES;
    let burst = (bits_per_second / 8 * BURST_US / 1_000_000).max(2 * frame_bytes);
    let limit = QUEUE_FRAMES * frame_bytes;
    [
        "tbf".to_string(),
        "rate".to_string(),
        format!("{bits_per_second}bit"),
        "burst".to_string(),
        burst.to_string(),
        "limit".to_string(),
        limit.to_string(),
    ]
    .to_vec()
}

fn tc(arguments: &[&str]) -> Result<(), NamespaceError> {
    run_tool("tc", arguments).map(|_| ())
}

/// The sum of `drops` in what `tc -s -j qdisc show` prints.
fn count_drops(printed: &[u8]) -> u64 {
    let queues: Value = serde_json::from_slice(printed).unwrap_or_default();
    let queues = queues.as_array().into_iter().flatten();
    queues.filter_map(|queue| queue.get("drops")?.as_u64()).sum()
}

/// The client's address beside the links.
pub const CONTROL_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The server's address beside the links.
pub const CONTROL_SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// Full frames that a port of the switch queues: about what a cheap switch has for a port, 300 kB.
pub const QUEUE_FRAMES: u64 = 200;

/// What `netem` holds: what a 10 Gb/s link carries in 10 ms.
const NETEM_FRAMES: &str = "10000";

/// How long a token bucket may be served late without falling behind its rate, in microseconds: what
/// timers of a virtual machine are late. Over a second it is 0.01 % of the rate.
const BURST_US: u64 = 100;

const ETHERNET_HEADER_BYTES: u64 = 14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::are_possible;

    #[test]
    fn drops_of_all_queues_are_added_up() {
        let printed =
            br#"[{"kind":"tbf","drops":3},{"kind":"netem","drops":4},{"kind":"noqueue"}]"#;
        assert_eq!(count_drops(printed), 7);
        assert_eq!(count_drops(b"no json"), 0);
    }

    #[test]
    fn loss_is_a_rule_between_none_and_all() {
        assert_eq!(drop_rule("left1", 0.0), "");
        assert!(drop_rule("left1", 5.0).ends_with("mod 10000 < 500 drop"));
        assert!(drop_rule("left1", 100.0).ends_with("left1 drop"));
    }

    #[test]
    fn a_bucket_holds_at_least_two_frames() {
        let words = token_bucket(100_000_000, 9000).join(" ");
        assert_eq!(words, "tbf rate 100000000bit burst 18028 limit 1802800");
    }

    #[test]
    fn impossible_testbeds_are_refused_before_anything_is_made() {
        let links = |count| vec![LinkShape::DIRECT; count];
        assert!(matches!(Testbed::create(&links(0), 1500), Err(NamespaceError::Links { .. })));
        assert!(matches!(Testbed::create(&links(17), 1500), Err(NamespaceError::Links { .. })));
        assert!(matches!(Testbed::create(&links(1), 10), Err(NamespaceError::Mtu { mtu: 10 })));
    }

    #[test]
    fn a_testbed_carries_frames_until_it_is_cut_and_is_gone_afterwards() {
        if !are_possible() {
            eprintln!("skipped: making network namespaces needs root");
            return;
        }
        let shape = LinkShape { has_trunk: true, ..LinkShape::of_rate(1_000_000_000) };
        let testbed = match Testbed::create(&[LinkShape::of_rate(1_000_000_000), shape], 1500) {
            Ok(testbed) => testbed,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let answers = |address: &str| {
            let client = testbed.client();
            let ping = ["netns", "exec", client, "ping", "-c", "1", "-W", "1", "-q", address];
            run_tool("ip", &ping).is_ok()
        };
        if run_tool("ping", &["-V"]).is_ok() {
            assert!(answers("10.77.1.2") && answers("10.77.2.2"));
            testbed.set_loss(1, Towards::Client, 100.0).unwrap();
            assert!(!answers("10.77.2.2"));
            testbed.set_loss(1, Towards::Client, 0.0).unwrap();
            assert!(answers("10.77.2.2"));
            testbed.set_carrier(1, false).unwrap();
            assert!(!answers("10.77.2.2"));
        } else {
            eprintln!("skipped: no ping");
        }
        let names = testbed.namespaces().map(String::from);
        drop(testbed);
        for name in names {
            assert!(!std::fs::exists(format!("/run/netns/{name}")).unwrap());
        }
    }
}
