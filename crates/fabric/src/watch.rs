//! An observer on the wire: counts who sent how much to whom, and keeps frames for those who forge.

use std::collections::{BTreeMap, VecDeque};

use wire_edge::PeerAddr;

use crate::PortId;

/// What has passed between the host behind a port and an address.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Account {
    /// Bytes of frames that claimed to come from there.
    pub(crate) received_bytes: u64,
    /// Bytes of frames sent there.
    pub(crate) sent_bytes: u64,
}

/// A frame that somebody heard.
#[derive(Clone, Debug)]
pub(crate) struct Overheard {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) bytes: Vec<u8>,
}

/// A frame to an address behind which is no host.
#[derive(Clone, Debug)]
pub(crate) struct Stray {
    pub(crate) from: PortId,
    pub(crate) to: PeerAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Keeps accounts and listens.
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

    /// All accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (PortId, PeerAddr, Account)> + '_ {
        self.accounts.iter().map(|(&(port, address), &account)| (port, address, account))
    }

    /// The last frames between hosts, oldest first.
    pub(crate) fn overheard(&self) -> &VecDeque<Overheard> {
        &self.overheard
    }

    /// The oldest frame to an address without a host.
    pub(crate) fn take_stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }
}

/// Frames that a listener remembers.
const OVERHEARD_MAX: usize = 64;

/// Frames that wait for somebody who is no host; more are not looked at.
const STRAYS_MAX: usize = 256;
