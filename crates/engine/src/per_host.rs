//! Counts for each host of peers, so that none takes more than its share of what all of them share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use wire_edge::PeerAddr;

/// How many of something each host has ([`PeerAddr::host`]), and all together. Hosts that have none take
/// no room.
#[derive(Debug, Default)]
pub(crate) struct PerHost {
    all: u32,
    hosts: HashMap<PeerAddr, u32>,
}

impl PerHost {
    /// The host at this address has one more.
    pub(crate) fn add(&mut self, at: PeerAddr) {
        self.all += 1;
        *self.hosts.entry(at.host()).or_default() += 1;
    }

    /// It has one less.
    pub(crate) fn remove(&mut self, at: PeerAddr) {
        self.all -= 1;
        if let Entry::Occupied(mut host) = self.hosts.entry(at.host()) {
            *host.get_mut() -= 1;
            if *host.get() == 0 {
                host.remove();
            }
        }
    }

    /// How many the host at this address has.
    pub(crate) fn of(&self, at: PeerAddr) -> u32 {
        self.hosts.get(&at.host()).copied().unwrap_or_default()
    }

    /// How many all hosts have.
    pub(crate) const fn all(&self) -> u32 {
        self.all
    }
}
