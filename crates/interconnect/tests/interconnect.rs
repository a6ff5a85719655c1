//! Tests the interconnect simulator as a whole: equal results, complete delivery, and deadlocks.

use interconnect::benchmark;
use interconnect::ethernet::{Ethernet, EthernetConfiguration, Forwarding};
use interconnect::flit::{FlitConfiguration, FlitFabric, PortConfiguration};
use interconnect::paper::Reproduction;
use interconnect::paper::configurations::Configurations;
use interconnect::paper::reference::Interconnect;
use interconnect::routing::{Choice, LanePolicy, Paths, RouteTable, Routing};
use interconnect::simulation::{HostCosts, Limits, Outcome, Simulation, Stuck};
use interconnect::topology::Topology;
use interconnect::workload::{OpenLoad, Pattern, Sizes};
use interconnect::wormhole::{Arbiter, LaneSelection, Wormhole, WormholeConfiguration};

/// The hash of all results is equal in debug and release builds and on every machine, so the test
/// compares it with a constant.
#[test]
fn the_reproduction_of_the_paper_matches_its_pinned_hash() {
    let result = Reproduction::new(&Configurations::default()).expect("it runs");
    assert_eq!(format!("{:016x}", result.hash), "ecea307bae5f2071");
    assert_eq!(result.table1_exact(), 12);
    assert_eq!(result.minima_exact(), 20);
    assert!(result.cells_within(10.0) >= 67, "{}", result.cells_within(10.0));
    for (interconnect, bound) in
        [(Interconnect::Myrinet, 7.5), (Interconnect::Avici, 9.0), (Interconnect::Ethernet, 9.5)]
    {
        let error = result.rms_log_error_percent(interconnect);
        assert!(error <= bound, "{interconnect:?}: {error}");
    }
    for statement in &result.statements {
        assert!(statement.holds || statement.note.is_some(), "{statement:?}");
    }
    for cost in &result.costs {
        assert!(cost.bill.is_total(cost.formula), "{}", cost.bill.total());
        assert!(cost.is_as_quoted());
    }
    assert_eq!(result.findings.len(), 2);
}

#[test]
fn runs_of_the_same_seed_have_the_same_pinned_hash() {
    let run = || {
        let benchmark = benchmark::fat_tree(8, 20_000_000).expect("a fat tree");
        benchmark.simulation.run().expect("it ends")
    };
    let (first, second) = (run(), run());
    assert_eq!(first.hash, second.hash);
    assert_eq!(format!("{:016x}", first.hash), FAT_TREE_HASH);
    assert_eq!(first.dropped, 0);
}

/// Over every fabric, topology, routing and choice, all posted messages arrive.
#[test]
fn everything_posted_is_delivered() {
    let topologies = [
        Topology::star(9),
        Topology::cascade(3, 4, 2),
        Topology::leaf_spine(4, 4, 2, 2),
        Topology::fat_tree(4),
        Topology::torus(&[4, 3], 2, 2),
        Topology::mesh(&[3, 2, 2], 1, 2),
        Topology::hyperx(&[3, 3], 2, 1),
        Topology::dragonfly(3, 2, 1),
    ];
    for topology in topologies {
        let topology = topology.expect("a topology");
        for choice in [Choice::PerFlow, Choice::PerSource, Choice::LeastLoaded, Choice::Spray] {
            for forwarding in
                [Forwarding::StoreAndForward, Forwarding::CutThrough { header_bytes: 64 }]
            {
                let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
                let configuration = EthernetConfiguration {
                    choice,
                    forwarding,
                    latency_ps: 300_000,
                    host_frame_interval_ps: 50_000,
                    ..EthernetConfiguration::with_rate(10_000_000_000)
                };
                let outcome = flood(Ethernet::new(&topology, routes, configuration), &topology);
                assert_is_all(&outcome.expect("it ends"), &topology);
            }
        }
    }
}

#[test]
fn worms_and_flits_are_delivered_too() {
    for sizes in [&[4_u32, 3][..], &[5], &[2, 2, 4]] {
        let topology = Topology::torus(sizes, 2, 2).expect("a torus");
        let outcome = flood(wormhole(&topology, LanePolicy::Dateline), &topology);
        assert_is_all(&outcome.expect("no deadlock"), &topology);
        let topology = Topology::torus(sizes, 2, 1).expect("a torus");
        let outcome = flood(flits(&topology, LanePolicy::Dateline), &topology);
        assert_is_all(&outcome.expect("no deadlock"), &topology);
    }
}

/// With free lanes, worms and flits on a ring wait for each other in a circle. The run reports this
/// circle. With datelines, all messages of the same load arrive.
#[test]
fn free_lanes_on_a_torus_deadlock_and_the_cycle_is_reported() {
    let cables = Topology::torus(&[8], 4, 2).expect("a ring");
    match flood(wormhole(&cables, LanePolicy::Free), &cables) {
        Err(Stuck::Deadlock { circle }) => {
            assert!(circle.len() >= 3, "{circle:?}");
            assert!(circle.iter().all(|line| line.contains("holds") && line.contains("waits for")));
        }
        other => panic!("{other:?}"),
    }
    assert!(flood(wormhole(&cables, LanePolicy::Dateline), &cables).is_ok());

    let channels = Topology::torus(&[8], 4, 1).expect("a ring");
    match flood(flits(&channels, LanePolicy::Free), &channels) {
        Err(Stuck::Deadlock { circle }) => assert!(circle.len() >= 3, "{circle:?}"),
        other => panic!("{other:?}"),
    }
    assert!(flood(flits(&channels, LanePolicy::Dateline), &channels).is_ok());
}

#[test]
fn full_queues_drop_packets_and_undelivered_messages_are_counted() {
    let topology = Topology::star(9).expect("a star");
    let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
    let configuration = EthernetConfiguration {
        buffer_bytes: 20_000,
        ..EthernetConfiguration::with_rate(1_000_000_000)
    };
    let ethernet = Ethernet::new(&topology, routes, configuration);
    let load =
        OpenLoad::new(9, Pattern::Incast(0), Sizes::Fixed(1_000), 20_000_000, 1_000_000_000, 1);
    let placement: Vec<u32> = (0..9).collect();
    let outcome = Simulation::new(ethernet, load, &placement, HostCosts::default()).run();
    let outcome = outcome.expect("an open load ends");
    assert!(outcome.dropped > 0);
    // In a millisecond, 1 Gb/s carries at most 120 frames of 1000 bytes, and the queue stores 20
    // more.
    assert!(outcome.delivered < 150, "{}", outcome.delivered);
}

#[test]
fn a_run_that_does_not_end_is_stopped() {
    let topology = Topology::star(4).expect("a star");
    let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
    let ethernet =
        Ethernet::new(&topology, routes, EthernetConfiguration::with_rate(1_000_000_000));
    let load = OpenLoad::new(4, Pattern::Uniform, Sizes::Fixed(100), 1_000, u64::MAX / 2, 1);
    let limits = Limits { events: 10_000, ..Limits::default() };
    let simulation =
        Simulation::new(ethernet, load, &[0, 1, 2, 3], HostCosts::default()).with_limits(limits);
    assert!(matches!(simulation.run(), Err(Stuck::Endless { events: 10_000, .. })));
}

/// Runs a load in which every host posts several packets at the same time to random hosts. The load
/// exceeds the rates of the links.
fn flood<F: interconnect::simulation::Fabric>(
    fabric: F,
    topology: &Topology,
) -> Result<Outcome, Stuck> {
    let hosts = topology.hosts();
    let sizes = Sizes::Mix(vec![(1, 1), (100, 2), (4_000, 3)]);
    let load = OpenLoad::new(hosts, Pattern::Uniform, sizes, 500_000, FLOOD_PS, 5);
    let placement: Vec<u32> = (0..hosts).collect();
    Simulation::new(fabric, load, &placement, HostCosts::symmetric(1_000, 0)).run()
}

/// Checks that about 50 messages per host were delivered.
fn assert_is_all(outcome: &Outcome, topology: &Topology) {
    let expected = u64::from(topology.hosts()) * 50;
    assert!(outcome.delivered > expected * 3 / 4, "{} of {expected}", outcome.delivered);
    assert_eq!(outcome.latency.count(), outcome.delivered);
    assert_eq!(outcome.dropped, 0);
}

fn paths(topology: &Topology, policy: LanePolicy, channels: usize) -> Paths {
    let routing = Routing::DimensionOrder { is_reversed: false };
    let table = RouteTable::new(topology, routing).expect("a grid");
    Paths::new(topology, &table, policy, channels).expect("two lanes")
}

fn wormhole(topology: &Topology, policy: LanePolicy) -> Wormhole {
    let configuration = WormholeConfiguration {
        character_ps: 6_250,
        character_bytes: 1,
        header_characters: 4,
        hop_characters: 38,
        exit_characters: 20,
        turnaround_characters: 0,
        storage_characters: 100,
        arbiter: Arbiter::Fair,
        lanes: LaneSelection::FirstFree,
        direction_order: [0, 1, 2, 3],
    };
    Wormhole::new(topology, paths(topology, policy, 1), configuration)
}

fn flits(topology: &Topology, policy: LanePolicy) -> FlitFabric {
    let configuration = FlitConfiguration {
        router: None,
        flit_ps: 10_000,
        hop_ps: 20_000,
        entry_ps: 20_000,
        exit_ps: 20_000,
        credit_ps: 10_000,
        flit_payload_bytes: 64,
        packet_overhead_bytes: 8,
        channels: 2,
        buffer_flits: 4,
        clock_ps: 0,
        ports: PortConfiguration {
            rate_bps: 0,
            mtu_bytes: 2_048,
            payload_min_bytes: 0,
            overhead_bytes: 0,
            gap_bytes: 0,
        },
    };
    FlitFabric::new(topology, paths(topology, policy, 2), configuration)
}

const FLOOD_PS: u64 = 25_000_000;
const FAT_TREE_HASH: &str = "3414d127cc55bbec";
