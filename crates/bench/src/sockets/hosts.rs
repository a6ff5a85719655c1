//! The hosts of the benchmark, connected by one switch. One host has the server, and three hosts
//! have clients.

use std::net::{IpAddr, Ipv4Addr};

use super::cases::{Test, Wishes};
use crate::results::PathKind;
use crate::run::{Observer, RunError};
use testbed::cleanup;
use testbed::namespace::{self, NamespaceError};
use testbed::pair::LinkAddresses;
use testbed::star::Star;
use testbed::switched::LinkShape;

/// Hosts, or the loopback interface of this host. Drop removes the hosts.
#[derive(Debug)]
pub(super) struct Hosts {
    star: Option<Star>,
    mtu: u32,
}

impl Hosts {
    /// Creates hosts with links of `mtu` bytes. If this process lacks the privileges, uses the
    /// loopback interface.
    pub(super) fn open(
        wishes: &Wishes,
        mtu: u32,
        observer: &mut dyn Observer,
    ) -> Result<Self, RunError> {
        if wishes.loopback {
            return Ok(Self::LOOPBACK);
        }
        if !namespace::are_possible() {
            observer.on_note(
                "this process is not root, so it measures over loopback instead of network \
                 namespaces",
            );
            return Ok(Self::LOOPBACK);
        }
        for name in cleanup::remove_leftovers() {
            observer.on_note(&format!("removed {name}, which a killed run had left behind"));
        }
        let has_several = |test: &Test| test.has_clients() && *test != Test::MultiStream;
        let clients = if wishes.tests.iter().any(has_several) { CLIENT_HOSTS } else { 1 };
        match Star::create_shaped(1 + clients, mtu, wishes.rate.map(LinkShape::of_rate)) {
            Ok(star) => Ok(Self { star: Some(star), mtu }),
            // Creating namespaces fails if root lacks the necessary capabilities, for example in
            // most containers.
            Err(error @ NamespaceError::Failed { .. }) => {
                observer.on_note(&format!("{error}: measuring over loopback instead"));
                Ok(Self::LOOPBACK)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the kind of path between the hosts.
    pub(super) fn kind(&self) -> PathKind {
        if self.star.is_some() { PathKind::Namespaces } else { PathKind::Loopback }
    }

    /// Returns the MTU in bytes.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns the server's namespace; `None` on the loopback interface.
    pub(super) fn server(&self) -> Option<&str> {
        Some(self.star.as_ref()?.hosts().first()?.as_str())
    }

    /// Returns the namespace of client `client`, counted from 0; `None` on the loopback interface.
    /// Clients are assigned to the hosts in rotation.
    pub(super) fn client(&self, client: u32) -> Option<&str> {
        let (_, hosts) = self.star.as_ref()?.hosts().split_first()?;
        Some(hosts.get(client as usize % hosts.len().max(1))?.as_str())
    }

    /// Returns the addresses of the server and of the first client.
    pub(super) fn link(&self) -> LinkAddresses {
        let (server, client) = match self.star {
            Some(_) => (Star::address(0), Star::address(1)),
            None => [IpAddr::V4(Ipv4Addr::LOCALHOST); 2].into(),
        };
        LinkAddresses { client: Some(client), server }
    }

    const LOOPBACK: Self = Self { star: None, mtu: LOOPBACK_MTU };
}

/// Number of client hosts, as in the papers.
const CLIENT_HOSTS: u32 = 3;

/// MTU of the loopback interface in Linux.
const LOOPBACK_MTU: u32 = 65_536;
