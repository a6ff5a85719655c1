//! Tests of the memory and the processor time that an idle connection costs.

mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use pair::Pair;

/// Maximum heap bytes of an idle connection at one end, after the connection was used.
const BYTES_MAX: usize = 1024;

const CONNECTIONS: usize = 10_000;

/// The allocator of the system, with counts of its calls and bytes.
struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: this type passes every call to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller obeys the contract of `GlobalAlloc::alloc`. `System.alloc` has the
        // same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller obeys the contract of `GlobalAlloc::dealloc`. `System.dealloc` has the
        // same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// This file has only one test, because the counts cover the whole process.
#[test]
fn idle_connections_cost_little_memory_and_no_work() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    let first = pair.hosts[0].connection;
    let before = BYTES.load(Ordering::Relaxed);
    let mut connected = 1;
    while connected <= CONNECTIONS {
        let handles: Vec<_> = (0..500).map(|_| pair.connect()).collect();
        connected += 500;
        pair.run_for(500_000_000);
        for handle in handles {
            pair.hosts[0].connection = Some(handle);
            pair.write(0, 0, 3_000, 1);
        }
        pair.run_for(500_000_000);
        assert_eq!(pair.done(0).len(), 500);
        for host in &mut pair.hosts {
            assert_eq!(host.closed(), []);
            host.events = Vec::new();
        }
    }
    pair.hosts[0].connection = first;
    pair.run_for(2_000_000_000);
    let each = (BYTES.load(Ordering::Relaxed) - before) / (2 * CONNECTIONS);
    println!("{each} bytes for each of {CONNECTIONS} idle connections at each end");
    for host in &pair.hosts {
        assert_eq!(host.engine.connection_count() as usize, CONNECTIONS + 1);
        assert!(host.engine.is_idle());
        assert!(!host.engine.has_work());
    }
    pair.assert_idle();
    assert!(each <= BYTES_MAX, "{each} bytes");

    // While one connection works, the engine does not visit the other connections and does not
    // allocate.
    pair.write(0, 0, 4_000_000, 1);
    pair.run_for(1_000_000_000);
    assert_eq!(pair.done(0).len(), 1);
    let calls = CALLS.load(Ordering::Relaxed);
    for _ in 0..100 {
        for host in 0..2 {
            pair.hosts[host].engine.hasten_acknowledgements();
            pair.turn(host);
        }
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), calls);
    for host in &pair.hosts {
        assert!(!host.engine.has_work());
    }
}
