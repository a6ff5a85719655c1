//! Hosts connected by one switch. Each host is a network namespace. The switch is another network
//! namespace with a bridge.

use std::net::{IpAddr, Ipv4Addr};

use crate::cleanup;
use crate::namespace::{
    HOSTS_MAX, NamespaceError, await_carriers, ip, name_of, remove_namespace, tc,
};
use crate::switched::LinkShape;

/// Hosts that reach each other through one switch. Drop removes all namespaces.
#[derive(Debug)]
pub struct Star {
    switch: String,
    hosts: Vec<String>,
}

impl Star {
    /// Creates `hosts` hosts (at most [`HOSTS_MAX`]). Each host has one interface, `link1`, of
    /// `mtu` bytes.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn create(hosts: u32, mtu: u32) -> Result<Self, NamespaceError> {
        Self::create_shaped(hosts, mtu, None)
    }

    /// Creates hosts like [`Star::create`]. The hosts and the ports of the switch send at the rate
    /// of `shape`.
    ///
    /// The shaper of a host limits only traffic that passes the kernel's queueing discipline, such
    /// as UDP and TCP. `AF_XDP` bypasses the queueing discipline.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn create_shaped(
        hosts: u32,
        mtu: u32,
        shape: Option<LinkShape>,
    ) -> Result<Self, NamespaceError> {
        if !(1..=HOSTS_MAX).contains(&hosts) {
            return Err(NamespaceError::Hosts { hosts });
        }
        let names = name_of();
        // After this point, dropping `star` removes all namespaces that exist.
        let star = Self {
            switch: names("switch1"),
            hosts: (1..=hosts).map(|host| names(&format!("host{host}"))).collect(),
        };
        let mut registry = cleanup::lock();
        registry.namespaces.extend(star.names().cloned());
        let built = star.build(mtu, shape.as_ref());
        // Release the lock, because dropping `star` acquires it again.
        drop(registry);
        built?;
        star.names().for_each(|namespace| await_carriers(namespace));
        Ok(star)
    }

    /// Returns the names of the namespaces of the hosts.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the address of host `index`, from 0.
    pub fn address(index: usize) -> IpAddr {
        // `HOSTS_MAX` addresses fit in this byte.
        IpAddr::V4(Ipv4Addr::new(10, 78, 0, index as u8 + 1))
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        [&self.switch].into_iter().chain(&self.hosts)
    }

    fn build(&self, mtu: u32, shape: Option<&LinkShape>) -> Result<(), NamespaceError> {
        let (switch, bytes, mtu) = (self.switch.as_str(), mtu, mtu.to_string());
        for namespace in self.names() {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&["-n", switch, "link", "add", BRIDGE, "mtu", &mtu, "type", "bridge"])?;
        ip(&["-n", switch, "link", "set", BRIDGE, "up"])?;
        for (index, host) in self.hosts.iter().enumerate() {
            let port = format!("port{}", index + 1);
            ip(&[
                "link", "add", "name", INTERFACE, "mtu", &mtu, "netns", host, "type", "veth",
                "peer", "name", &port, "mtu", &mtu, "netns", switch,
            ])?;
            ip(&["-n", switch, "link", "set", &port, "master", BRIDGE, "up"])?;
            let address = format!("{}/24", Self::address(index));
            ip(&["-n", host, "address", "add", &address, "dev", INTERFACE])?;
            ip(&["-n", host, "link", "set", INTERFACE, "up"])?;
            if let Some(shape) = shape {
                tc(host, &shape.discipline(INTERFACE, bytes))?;
                tc(switch, &shape.discipline(&port, bytes))?;
            }
        }
        Ok(())
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        let mut registry = cleanup::lock();
        for name in self.names() {
            // If the removal fails, the next run tries again.
            let _ = remove_namespace(name);
            registry.namespaces.retain(|registered| registered != name);
        }
    }
}

const BRIDGE: &str = "bridge";
/// Name of the interface of each host.
pub const INTERFACE: &str = "link1";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::namespace::NAMESPACE_DIRECTORY;
    use crate::namespace::are_possible;

    #[test]
    fn hosts_exist_while_the_star_does() {
        assert!(matches!(Star::create(0, 1500), Err(NamespaceError::Hosts { hosts: 0 })));
        if !are_possible() {
            eprintln!("skipped: making network namespaces needs root");
            return;
        }
        let star = match Star::create(3, 1500) {
            Ok(star) => star,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let paths: Vec<_> =
            star.names().map(|name| format!("{NAMESPACE_DIRECTORY}/{name}")).collect();
        assert_eq!(paths.len(), 4);
        assert!(paths.iter().all(|path| fs::exists(path).unwrap()));
        drop(star);
        assert!(!paths.iter().any(|path| fs::exists(path).unwrap()));
    }
}
