//! Creates two network namespaces on one machine: a client's host and a server's host, joined by
//! veth pairs. Each link may have a switch in the middle.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::cleanup;
use crate::lever::Lever;
use crate::namespace::{
    LINKS_MAX, MTU_MAX, MTU_MIN, NamespaceError, await_carriers, ip, name_of, remove_namespace, tc,
};
use crate::switched::{LinkShape, filter_at};

/// The addresses of the two ends of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAddresses {
    /// The client's address. If it is `None`, the client's kernel chooses the address.
    pub client: Option<IpAddr>,
    /// The server's address.
    pub server: IpAddr,
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
    /// Returns when all links have a carrier, or after some seconds if one gets none.
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
        built?;
        pair.names().for_each(|namespace| await_carriers(namespace));
        Ok(pair)
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

    /// Prepares to cut link `link` (counted from 1). `Lever::pull` then makes the switch of the
    /// link drop all frames in `directions`. If `is_cut` is false, prepares to undo the cut. The
    /// hosts notice a cut only because frames stop arriving.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn prepare_cut(
        &self,
        link: u32,
        directions: &[Direction],
        is_cut: bool,
    ) -> Result<Lever, NamespaceError> {
        let (switch, shape) = self.switch(link)?;
        // The filter drops frames when they enter the switch. Frames that are already in the
        // switch's queue still leave the switch.
        let command = |direction: &Direction| {
            if is_cut {
                filter_at("delete", direction.entry()).join(" ") + "\n"
            } else {
                batch_line(&shape.forwarding(direction.entry(), direction.exit()))
            }
        };
        let commands: String = directions.iter().map(command).collect();
        let question = format!("qdisc show dev {CLIENT_PORT}");
        Lever::start("tc", &["-n", switch, "-batch", "-"], &commands, &question)
    }

    /// Prepares to pull the cable between the client and the switch of link `link` (counted from
    /// 1). If `is_unplugged` is false, prepares to plug the cable in. Without the cable, the
    /// client's interface has no carrier.
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

/// Returns the words as one line of a `tc` batch.
fn batch_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>();
    quoted.join(" ") + "\n"
}

/// The ports of a switch toward the client and toward the server.
const CLIENT_PORT: &str = "client";
const SERVER_PORT: &str = "server";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::cleanup::remove_leftovers;
    use crate::namespace::{NAMESPACE_DIRECTORY, are_possible};

    #[test]
    fn impossible_layouts_are_refused_before_anything_is_created() {
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
        let words = ["-n", pair.client(), "-o", "link", "show", "up"];
        let shown = Command::new("ip").args(words).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout);
        assert_eq!(shown.matches("state UP").count(), 2, "{shown}");
        assert!(paths.iter().all(|path| fs::exists(path).unwrap()));
        let removed = remove_leftovers();
        assert!(!removed.iter().any(|name| name == pair.client() || name == pair.server()));
        drop(pair);
        assert!(!paths.iter().any(|path| fs::exists(path).unwrap()));
    }
}
