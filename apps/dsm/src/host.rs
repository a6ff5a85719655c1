//! What the machine of this rank stands on: its memory and its network.

use dsm_protocol::diff::{Bitmap, PageBytes};
use dsm_protocol::{
    Access, Arrival, Control, Operation, PageNumber, Pages, Rank, Ticket, Transport,
};

use crate::memory::Memory;
use crate::network::Network;

/// The memory and the network of this rank.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) memory: Memory,
    pub(crate) network: Network,
}

impl Transport for Host {
    fn post(&mut self, peer: Rank, ticket: Ticket, fence: bool, operation: Operation<'_>) {
        self.network.post(peer, ticket, fence, &operation);
    }

    fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<Arrival> {
        self.network.poll(buffer)
    }

    fn now(&self) -> u64 {
        self.network.now()
    }
}

impl Pages for Host {
    fn notes_writes(&self) -> bool {
        self.memory.notes_writes()
    }

    fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        self.memory.take_written(pages);
    }

    fn protect(&mut self, page: PageNumber, access: Access) {
        self.memory.protect(page, access);
    }

    fn permit_reads(&mut self, first: PageNumber, count: u32) {
        self.memory.permit_reads(first, count);
    }

    fn clear(&mut self, page: PageNumber) {
        self.memory.clear(page);
    }

    fn make_twin(&mut self, page: PageNumber) {
        self.memory.make_twin(page);
    }

    fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap {
        self.memory.diff(page, words)
    }

    fn drop_twin(&mut self, page: PageNumber) {
        self.memory.drop_twin(page);
    }

    fn merge(&mut self, page: PageNumber, bytes: &PageBytes) {
        self.memory.merge(page, bytes);
    }
}

impl Control for Host {
    fn load(&self, address: u64) -> u64 {
        self.network.local().load(address)
    }

    fn store(&mut self, address: u64, value: u64) {
        self.network.local().store(address, value);
    }
}
