//! Finds the link groups of a process by their handles or by the peer's process, and counts the
//! groups of each host.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use engine::ConnectionHandle;
use wire_edge::PeerAddr;

use crate::rendezvous::group::Group;
use crate::rendezvous::shares::admits_group;
use crate::wire::Incarnation;

/// All link groups of a process.
#[derive(Default)]
pub(crate) struct Groups {
    all: HashMap<ConnectionHandle, Group>,
    /// Groups that connections may join, for each peer process. Usually there is one group with
    /// each peer process.
    by_peer: HashMap<Incarnation, Vec<ConnectionHandle>>,
    /// The number of groups of each host.
    hosts: HashMap<PeerAddr, u32>,
}

impl Groups {
    /// Returns true if the host at this address may have another group.
    pub(crate) fn admits(&self, at: PeerAddr) -> bool {
        let own = self.hosts.get(&at.host()).copied().unwrap_or_default();
        admits_group(own, self.all.len() as u32)
    }

    pub(crate) fn insert(&mut self, group: Group) {
        let handle = group.handle();
        *self.hosts.entry(group.at.host()).or_default() += 1;
        self.by_peer.entry(group.peer).or_default().push(handle);
        let before = self.all.insert(handle, group);
        assert!(before.is_none(), "no two connections have the same handle");
    }

    pub(crate) fn get(&self, handle: ConnectionHandle) -> Option<&Group> {
        self.all.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: ConnectionHandle) -> Option<&mut Group> {
        self.all.get_mut(&handle)
    }

    /// Returns a group with the process `peer` that connections may join. Prefers an established
    /// group.
    pub(crate) fn with(&self, peer: Incarnation) -> Option<&Group> {
        let handles = self.by_peer.get(&peer)?.iter();
        let groups = handles.filter_map(|handle| self.all.get(handle));
        groups.max_by_key(|group| group.is_established)
    }

    /// Excludes a group that is about to end, so that no more connections join the group.
    pub(crate) fn retire(&mut self, handle: ConnectionHandle) {
        let Some(group) = self.all.get(&handle) else { return };
        if let Entry::Occupied(mut handles) = self.by_peer.entry(group.peer) {
            handles.get_mut().retain(|other| *other != handle);
            if handles.get().is_empty() {
                handles.remove();
            }
        }
    }

    pub(crate) fn remove(&mut self, handle: ConnectionHandle) -> Option<Group> {
        self.retire(handle);
        let group = self.all.remove(&handle)?;
        if let Entry::Occupied(mut count) = self.hosts.entry(group.at.host()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(group)
    }
}
