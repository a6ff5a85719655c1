//! Tests how much memory hosts with the real engine use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use interconnect::edge::{EdgeConfiguration, EdgeFabric};
use interconnect::ethernet::EthernetConfiguration;
use interconnect::routing::Routing;
use interconnect::simulation::{HostCosts, Simulation};
use interconnect::topology::Topology;
use interconnect::workload::{Actions, Received, Workload};

/// An allocator that counts the allocated bytes.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, which is that of the system's
        // allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An idle host uses less than 8 KiB, and each of its connections less than 1 KiB, both before and
/// after sending. These sizes include the simulator's table of operations. A second rail adds half
/// of these sizes. The test measures 128 hosts, first with one peer each and then with eight.
#[test]
fn hosts_and_connections_use_little_memory() {
    for rails in [1, 2] {
        let setting = Setting::new(rails);
        let (network, a_host) = setting.host();
        let (fresh_one, used_one) = setting.connections(1);
        let (fresh_eight, used_eight) = setting.connections(8);
        // Each pair of hosts has two connection ends.
        let ends = 7 * 2 * setting.hosts as usize;
        let (fresh, used) = ((fresh_eight - fresh_one) / ends, (used_eight - used_one) / ends);
        println!(
            "{rails} rails: {a_host} B a host, {fresh} B a connection end, {used} B a used one; \
             {network} B the network"
        );
        assert!(a_host <= 8 << 10, "{rails} rails: {a_host} B a host");
        let limit = if rails == 1 { 1 << 10 } else { 3 << 9 };
        assert!(fresh <= limit, "{rails} rails: {fresh} B a connection end");
        assert!(used <= limit, "{rails} rails: {used} B a used connection end");
    }
}

/// A fat tree, its hosts, and the rails of each host. The test builds a new network from this value
/// for each measurement.
struct Setting {
    topology: Topology,
    hosts: u32,
    rails: u8,
}

impl Setting {
    fn new(rails: u8) -> Self {
        let topology = Topology::fat_tree(8).expect("a fat tree");
        Self { hosts: topology.hosts(), topology, rails }
    }

    fn build(&self) -> EdgeFabric {
        let rate = EthernetConfiguration::with_rate(10_000_000_000);
        let configuration = EdgeConfiguration { rails: self.rails, ..EdgeConfiguration::default() };
        EdgeFabric::new(&self.topology, Routing::Shortest, rate, configuration, 1)
            .expect("there are such hosts")
    }

    /// Returns the number of bytes that the network uses, and the number of bytes that a host uses.
    fn host(&self) -> (usize, usize) {
        let before = BYTES.load(Ordering::Relaxed);
        let fabric = self.build();
        let network: usize = fabric.network_bytes();
        (network, (BYTES.load(Ordering::Relaxed) - before - network) / self.hosts as usize)
    }

    /// Returns the number of bytes in use at two times. The first is after each host has connected
    /// to `peers` other hosts; the second is after each host has also written to its peers.
    fn connections(&self, peers: u32) -> (usize, usize) {
        let hosts = self.hosts;
        let before = BYTES.load(Ordering::Relaxed);
        let since = || BYTES.load(Ordering::Relaxed) - before;
        let mut fabric = self.build();
        let peers_of = move |host| (1..=peers).map(move |by| (host, (host + by) % hosts));
        let pairs: Vec<_> = (0..hosts).flat_map(peers_of).collect();
        fabric.connect_ahead(&pairs).expect("they reach each other");
        drop(pairs);
        let fresh = since();
        let workload = InTurn::new(hosts, peers);
        let placement: Vec<u32> = (0..hosts).collect();
        let simulation = Simulation::new(fabric, workload, &placement, HostCosts::default());
        let (_, mut fabric) = simulation.run_to_end().expect("it ends");
        assert_eq!(fabric.violations(), [""; 0]);
        assert_eq!(fabric.counts().operations, u64::from(peers * TURNS * hosts));
        fabric.rest();
        (fresh, since())
    }
}

/// A workload in which each rank sends messages to the next `peers` ranks, one after the other. A
/// rank sends its message n when it has received n messages.
struct InTurn {
    peers: u32,
    sent: Vec<u32>,
    received: Vec<u32>,
}

/// Number of messages to each peer.
const TURNS: u32 = 3;

impl InTurn {
    fn new(ranks: u32, peers: u32) -> Self {
        let none = vec![0; ranks as usize];
        Self { peers, sent: none.clone(), received: none }
    }

    fn proceed(&mut self, rank: u32, actions: &mut Actions) {
        let ranks = self.sent.len() as u32;
        let sent = &mut self.sent[rank as usize];
        while *sent < TURNS * self.peers && self.received[rank as usize] >= *sent {
            actions.send((rank + 1 + *sent % self.peers) % ranks, 20_000, 0);
            *sent += 1;
        }
    }
}

impl Workload for InTurn {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        self.proceed(rank, actions);
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, _actions: &mut Actions) {}

    fn on_received(&mut self, rank: u32, _received: Received, actions: &mut Actions) {
        self.received[rank as usize] += 1;
        self.proceed(rank, actions);
    }

    fn is_finished(&self) -> bool {
        self.received.iter().all(|&received| received == TURNS * self.peers)
    }
}
