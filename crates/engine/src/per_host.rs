//! Counts objects for each host of peers, so that a limit per host can apply in addition to a
//! common limit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use wire_edge::PeerAddr;

/// The count of each host ([`PeerAddr::host`]), and the sum of all counts. Hosts with count 0 have
/// no entry.
#[derive(Debug, Default)]
pub(crate) struct PerHost {
    all: u32,
    hosts: HashMap<PeerAddr, u32>,
}

impl PerHost {
    /// Increments the count of the host at this address.
    pub(crate) fn add(&mut self, at: PeerAddr) {
        self.all += 1;
        *self.hosts.entry(at.host()).or_default() += 1;
    }

    /// Decrements the count of the host at this address.
    pub(crate) fn remove(&mut self, at: PeerAddr) {
        self.all -= 1;
        if let Entry::Occupied(mut host) = self.hosts.entry(at.host()) {
            *host.get_mut() -= 1;
            if *host.get() == 0 {
                host.remove();
            }
        }
    }

    /// Returns the count of the host at this address.
    pub(crate) fn of(&self, at: PeerAddr) -> u32 {
        self.hosts.get(&at.host()).copied().unwrap_or_default()
    }

    /// Returns the sum over all hosts.
    pub(crate) const fn all(&self) -> u32 {
        self.all
    }
}
