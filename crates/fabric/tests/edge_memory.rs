//! What hosts with the real engine take in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric::interconnect::collective::{Collective, CollectiveConfiguration, CollectiveLoop};
use fabric::interconnect::edge::{EdgeConfiguration, EdgeFabric};
use fabric::interconnect::ethernet::EthernetConfiguration;
use fabric::interconnect::routing::Routing;
use fabric::interconnect::simulation::{HostCosts, Simulation};
use fabric::interconnect::topology::Topology;

/// Counts the bytes that are allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A host at rest takes less than 8 KiB and each of its connections 2.25 KiB, the ledger of the simulator
/// included; measured with 1024 hosts, and with one and then eight peers each.
#[test]
fn a_host_is_small_and_so_is_a_connection() {
    let topology = Topology::fat_tree(16).expect("a fat tree");
    let hosts = topology.hosts() as usize;
    let rate = EthernetConfiguration::with_rate(10_000_000_000);
    let build = || {
        EdgeFabric::new(&topology, Routing::Shortest, rate, EdgeConfiguration::default(), 1)
            .expect("there are such hosts")
    };
    // The network and what all hosts share is there with few hosts, too.
    let pairs = |peers: u32| {
        let peers_of = move |host| (1..=peers).map(move |by| (host, (host + by) % hosts as u32));
        (0..hosts as u32).flat_map(peers_of).collect::<Vec<_>>()
    };
    let before = BYTES.load(Ordering::Relaxed);
    let fabric = build();
    let network: usize = fabric.network_bytes();
    let a_host = (BYTES.load(Ordering::Relaxed) - before - network) / hosts;
    drop(fabric);

    let connected = |peers| {
        let before = BYTES.load(Ordering::Relaxed);
        let mut fabric = build();
        fabric.connect_ahead(&pairs(peers)).expect("they reach each other");
        (BYTES.load(Ordering::Relaxed) - before, fabric)
    };
    let (one, fabric) = connected(1);
    drop(fabric);
    let (eight, fabric) = connected(8);
    // Both ends of a pair are connections.
    let a_connection = (eight - one) / (7 * 2 * hosts);

    let ring = CollectiveLoop::new(CollectiveConfiguration {
        collective: Collective::Ring { bytes: 20_000, distance: 1 },
        ranks: hosts as u32,
        iterations: 2,
        compute_ps: 0,
        reduce_ps_per_byte: 0,
    });
    let placement: Vec<u32> = (0..hosts as u32).collect();
    let before_run = BYTES.load(Ordering::Relaxed);
    let simulation = Simulation::new(fabric, ring, &placement, HostCosts::default());
    let (_, fabric) = simulation.run_to_end().expect("it ends");
    let grown = BYTES.load(Ordering::Relaxed).saturating_sub(before_run) / hosts;
    assert_eq!(fabric.violations(), [""; 0]);
    println!(
        "{a_host} B a host, {a_connection} B a connection, {grown} B a host more after traffic"
    );
    assert!(a_host <= 8 << 10, "{a_host} B a host");
    assert!(a_connection <= 9 << 8, "{a_connection} B a connection");
}
