//! A few nodes that a test drives by hand.

use super::memory::Memory;
use super::network::{Event, Network, Port};
use crate::call::Call;
use crate::config::Config;
use crate::diff::PAGE_WORDS;
use crate::error::{CallError, Misuse};
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::memory::{Access, Control};
use crate::node::Node;
use crate::transport::Arrival;

pub(super) struct Cluster {
    pub(super) network: Network,
    pub(super) nodes: Vec<Node>,
}

impl Cluster {
    /// Returns nodes with these settings, apart from the rank.
    pub(super) fn new(config: Config) -> Self {
        let layout = crate::Layout::new(config.nodes, config.pages, config.log_entries);
        let memory = |_| Memory::new(config.pages, layout.bytes(), config.races);
        let mut network = Network::new((0..config.nodes).map(memory).collect(), 1);
        let nodes = (0..config.nodes).map(|rank| {
            let config = Config { rank: Rank(rank), ..config };
            Node::new(config, &mut Port { network: &mut network, me: Rank(rank) }).unwrap()
        });
        let nodes = nodes.collect();
        Self { network, nodes }
    }

    /// Begins a call of the first thread of a node.
    pub(super) fn start(&mut self, rank: u8, call: Call) -> Result<(), Misuse> {
        self.start_of(rank, 0, call)
    }

    /// Begins a call of a thread.
    pub(super) fn start_of(&mut self, rank: u8, thread: u16, call: Call) -> Result<(), Misuse> {
        let mut port = Port { network: &mut self.network, me: Rank(rank) };
        self.nodes[usize::from(rank)].start(&mut port, ThreadNumber(thread), call)
    }

    /// Returns the result of the call of the first thread of a node, if it has ended.
    pub(super) fn take(&mut self, rank: u8) -> Option<Result<u64, CallError>> {
        self.nodes[usize::from(rank)].take(ThreadNumber(0))
    }

    /// Lets time pass until nothing happens any more.
    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets time pass until something happens. Returns false if nothing happens any more.
    pub(super) fn step(&mut self) -> bool {
        let Some(event) = self.network.next_event() else { return false };
        match event {
            Event::Perform { flight, part } => self.network.perform(flight, part),
            Event::Complete { flight } => self.network.complete(flight),
            Event::Poll(rank) => {
                let mut port = Port { network: &mut self.network, me: Rank(rank) };
                self.nodes[usize::from(rank)].poll(&mut port);
            }
            _ => {}
        }
        true
    }

    /// Calls, and returns the result. Panics if the call waits for ever.
    pub(super) fn call(&mut self, rank: u8, call: Call) -> Result<u64, CallError> {
        self.start(rank, call)?;
        self.settle();
        self.take(rank).expect("the call ends")
    }

    /// Lets the first threads of all nodes meet at the barrier.
    pub(super) fn barrier(&mut self) {
        let count = self.nodes.len() as u32;
        for rank in 0..count as u8 {
            self.start(rank, Call::Barrier { address: 8, count }).unwrap();
        }
        self.settle();
        for rank in 0..count as u8 {
            assert_eq!(self.take(rank), Some(Ok(0)), "rank {rank}");
        }
    }

    pub(super) fn access(&self, rank: u8, page: u32) -> Access {
        self.network.memories[usize::from(rank)].access(PageNumber(page))
    }

    /// Reads a word as a program does.
    pub(super) fn read(&mut self, rank: u8, word: usize) -> u32 {
        let page = (word / PAGE_WORDS) as u32;
        if self.access(rank, page) == Access::None {
            self.call(rank, Call::ReadFault(PageNumber(page))).unwrap();
        }
        self.network.memories[usize::from(rank)].read(word)
    }

    /// Writes a word as a program does.
    pub(super) fn write(&mut self, rank: u8, word: usize, value: u32) {
        let page = (word / PAGE_WORDS) as u32;
        if self.access(rank, page) != Access::Write {
            self.call(rank, Call::WriteFault(PageNumber(page))).unwrap();
        }
        self.network.memories[usize::from(rank)].write(word, value);
    }

    /// Returns a word of a node's control memory.
    pub(super) fn load(&mut self, rank: u8, address: u64) -> u64 {
        Port { network: &mut self.network, me: Rank(rank) }.load(address)
    }

    /// Replaces a word of a node's control memory.
    pub(super) fn store(&mut self, rank: u8, address: u64, value: u64) {
        Port { network: &mut self.network, me: Rank(rank) }.store(address, value);
    }

    /// Lets an arrival reach a node.
    pub(super) fn arrive(&mut self, rank: u8, arrival: Arrival, bytes: Vec<u8>) {
        self.network.push(Rank(rank), arrival, bytes);
        self.settle();
    }
}
