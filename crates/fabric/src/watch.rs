//! Observes the network. Counts the bytes between hosts and addresses. Also records frames, because
//! attackers use overheard frames in forged ones.

use std::collections::{BTreeMap, VecDeque};

use wire_edge::PeerAddr;

use crate::network::PortId;

/// Byte counts between an address and the host of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Account {
    /// Bytes of frames that came from this address.
    pub(crate) received_bytes: u64,
    /// Bytes of frames sent to this address.
    pub(crate) sent_bytes: u64,
}

/// A recorded frame between two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Overheard {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) bytes: Vec<u8>,
}

/// A frame to an address that no host has.
#[derive(Clone, Debug)]
pub(crate) struct Stray {
    pub(crate) from: PortId,
    pub(crate) to: PeerAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The byte counts and the recorded frames.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    accounts: BTreeMap<(PortId, PeerAddr), Account>,
    overheard: VecDeque<Overheard>,
    strays: VecDeque<Stray>,
}

impl Watch {
    pub(crate) fn on_sent(
        &mut self,
        from: PortId,
        to: PeerAddr,
        port: Option<PortId>,
        bytes: &[u8],
    ) {
        self.accounts.entry((from, to)).or_default().sent_bytes += bytes.len() as u64;
        match port {
            Some(to) => {
                let room = self.overheard.len() < OVERHEARD_MAX;
                let oldest = if room { None } else { self.overheard.pop_front() };
                let mut copy = oldest.map_or_else(Vec::new, |oldest| oldest.bytes);
                copy.clear();
                copy.extend_from_slice(bytes);
                self.overheard.push_back(Overheard { from, to, bytes: copy });
            }
            None if self.strays.len() < STRAYS_MAX => {
                self.strays.push_back(Stray { from, to, bytes: bytes.to_vec() });
            }
            None => {}
        }
    }

    pub(crate) fn on_arrived(&mut self, at: PortId, from: PeerAddr, bytes: usize) {
        self.accounts.entry((at, from)).or_default().received_bytes += bytes as u64;
    }

    /// Returns all byte counts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (PortId, PeerAddr, Account)> + '_ {
        self.accounts.iter().map(|(&(port, address), &account)| (port, address, account))
    }

    /// Returns the recorded frames between hosts, oldest first.
    pub(crate) fn overheard(&self) -> &VecDeque<Overheard> {
        &self.overheard
    }

    /// Removes and returns the oldest frame to an address that no host has.
    pub(crate) fn take_stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }
}

/// Maximum number of recorded frames between hosts.
const OVERHEARD_MAX: usize = 64;

/// Maximum number of recorded frames to addresses that no host has. Further frames to such
/// addresses are not recorded.
const STRAYS_MAX: usize = 256;
