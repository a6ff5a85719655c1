//! Tests shared buffers, marks, priorities, pauses, several ports, interrupts and adaptive routes.

use interconnect::ethernet::{
    ClassBy, Ethernet, EthernetConfiguration, NicConfiguration, QueueConfiguration, Striping,
};
use interconnect::receiving::{InterruptConfiguration, ReceivingConfiguration};
use interconnect::routing::{Choice, RouteTable, Routing};
use interconnect::simulation::{HostCosts, Outcome, Simulation, Stuck};
use interconnect::topology::Topology;
use interconnect::workload::{Actions, OpenLoad, Pattern, Received, Sizes, TokenPass, Workload};
use proptest::prelude::*;

const RATE_BPS: u64 = 1_000_000_000;

fn run<W: Workload>(
    topology: &Topology,
    configuration: &EthernetConfiguration,
    workload: W,
) -> Result<Outcome, Stuck> {
    let routes = RouteTable::new(topology, Routing::Shortest).expect("routes");
    let ethernet = Ethernet::new(topology, routes, *configuration);
    let placement: Vec<u32> = (0..topology.hosts()).collect();
    Simulation::new(ethernet, workload, &placement, HostCosts::default()).run()
}

fn base() -> EthernetConfiguration {
    EthernetConfiguration {
        propagation_ps: 50_000,
        latency_ps: 400_000,
        ..EthernetConfiguration::with_rate(RATE_BPS)
    }
}

fn with_queues(queues: QueueConfiguration) -> EthernetConfiguration {
    EthernetConfiguration { queues, ..base() }
}

/// Returns a load in which each message is one frame of the same length.
fn frames(hosts: u32, pattern: Pattern, load_percent: u64, seed: u64) -> OpenLoad {
    let interval_ps = 1_538 * 8_000 * 100 / load_percent;
    OpenLoad::new(hosts, pattern, Sizes::Fixed(1_500), interval_ps, 3_000_000_000, seed)
}

fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        (3_u32..9).prop_map(Topology::star),
        (2_u32..4, 2_u32..5, 1_u32..3)
            .prop_map(|(leaves, hosts, spines)| { Topology::leaf_spine(leaves, hosts, spines, 1) }),
        (2_u32..5, 2_u32..4).prop_map(|(switches, hosts)| Topology::cascade(switches, hosts, 1)),
        Just(Topology::fat_tree(4)),
    ]
    .prop_map(|topology| topology.expect("sizes are in range"))
}

fn patterns() -> impl Strategy<Value = Pattern> {
    prop_oneof![Just(Pattern::Uniform), Just(Pattern::Incast(1))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// If the headroom suffices for the frames in flight, pauses prevent all losses, for any buffer
    /// size and number of classes. Trees have no circles, so they cannot deadlock.
    #[test]
    fn paused_classes_lose_nothing(
        topology in topologies(),
        pattern in patterns(),
        shared_bytes in prop_oneof![Just(0_u64), 2_000_u64..50_000],
        pause_bytes in 1_u64..20_000,
        resume_bytes in 0_u64..20_000,
        classes in 1_u8..=8,
        propagation_ps in 0_u64..5_000_000,
        jitter_percent in prop_oneof![Just(0_u32), 1_u32..1_000],
        trunk_rate_bps in prop_oneof![Just(RATE_BPS), Just(RATE_BPS / 4)],
        seed: u64,
    ) {
        let queues = QueueConfiguration {
            shared_bytes,
            classes,
            class_by: ClassBy::Source,
            lossless: u8::MAX,
            pause_bytes,
            resume_bytes,
            ..QueueConfiguration::NONE
        };
        let configuration = EthernetConfiguration {
            propagation_ps,
            jitter_percent,
            trunk_rate_bps,
            ..with_queues(queues)
        };
        let hosts = topology.hosts();
        let load = frames(hosts, pattern, 70, seed);
        let posted = run(&topology, &base(), load.clone()).expect("no limits").delivered;
        let outcome = run(&topology, &configuration, load).expect("it ends");
        prop_assert_eq!((outcome.dropped, outcome.delivered), (0, posted));
    }

    /// Each message is delivered or counted as lost, and no queue exceeds its limit.
    #[test]
    fn frames_are_delivered_or_lost_within_the_limits(
        topology in topologies(),
        pattern in patterns(),
        shared_bytes in prop_oneof![Just(0_u64), 2_000_u64..50_000],
        alpha_percent in 10_u32..800,
        buffer_bytes in prop_oneof![Just(0_u64), 1_600_u64..20_000],
        ecn_max_bytes in 0_u64..10_000,
        classes in 1_u8..=8,
        seed: u64,
    ) {
        let queues = QueueConfiguration {
            shared_bytes,
            alpha_percent,
            ecn_max_bytes,
            classes,
            class_by: ClassBy::Source,
            ..QueueConfiguration::NONE
        };
        let configuration = EthernetConfiguration { buffer_bytes, ..with_queues(queues) };
        let hosts = topology.hosts();
        let load = frames(hosts, pattern, 70, seed);
        let posted = run(&topology, &base(), load.clone()).expect("no limits").delivered;
        let outcome = run(&topology, &configuration, load).expect("it ends");
        prop_assert_eq!(outcome.delivered + outcome.dropped, posted);
        let lost: u64 = outcome.ports.iter().map(|port| port.dropped).sum();
        prop_assert_eq!(lost, outcome.dropped);
        for port in outcome.ports.iter().filter(|port| !port.name.starts_with('h')) {
            let limits = [shared_bytes, buffer_bytes].into_iter().filter(|&limit| limit > 0);
            if let Some(limit) = limits.min() {
                prop_assert!(port.queue_bytes_max <= limit, "{port:?}");
            }
        }
    }
}

/// A workload in which one rank sends messages at the same time, with the tags in `sent`. The other
/// rank records the order in which the messages arrive.
#[derive(Clone, Debug)]
struct Tags {
    sent: Vec<u32>,
    received: Vec<u32>,
}

impl Workload for Tags {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank == 0 {
            self.sent.iter().for_each(|&tag| actions.send(1, 1_500, tag));
        }
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, _actions: &mut Actions) {}

    fn on_received(&mut self, _rank: u32, received: Received, _actions: &mut Actions) {
        self.received.push(received.tag);
    }

    fn is_finished(&self) -> bool {
        // The messages arrive ordered by class, in whatever order they are sent. Messages of the
        // same class arrive in the order of sending.
        let mut expected = self.sent.clone();
        expected.sort_by_key(|tag| tag % 4);
        self.received == expected
    }
}

#[test]
fn classes_are_served_in_strict_order() {
    let queues = QueueConfiguration { classes: 4, ..QueueConfiguration::NONE };
    let sent = vec![3, 2, 7, 1, 0, 6, 5, 4, 11, 8];
    let tags = Tags { sent, received: Vec::new() };
    let star = Topology::star(2).expect("a star");
    assert!(run(&star, &with_queues(queues), tags.clone()).is_ok());
    let one = QueueConfiguration { ecn_max_bytes: 1, ..QueueConfiguration::NONE };
    let disordered = run(&star, &with_queues(one), tags);
    assert!(matches!(disordered, Err(Stuck::Unfinished { .. })), "one class keeps their order");
}

/// On a ring, each link is paused, because its frames wait for the next link on the ring.
#[test]
fn a_pause_cycle_is_reported_as_a_deadlock() {
    let ring = Topology::torus(&[5], 2, 1).expect("a ring");
    let queues = QueueConfiguration { lossless: 1, pause_bytes: 6_000, ..QueueConfiguration::NONE };
    let across = Pattern::Permutation((0..10).map(|host| (host + 4) % 10).collect());
    let stuck = run(&ring, &with_queues(queues), frames(10, across.clone(), 90, 1));
    let Err(Stuck::Deadlock { circle }) = stuck else { panic!("{stuck:?}") };
    assert_eq!(circle.len(), 5, "{circle:?}");
    assert!(circle.iter().all(|line| line.contains("class 0 is paused")), "{circle:?}");
    let lossy = QueueConfiguration { shared_bytes: 6_000, ..QueueConfiguration::NONE };
    let outcome = run(&ring, &with_queues(lossy), frames(10, across, 90, 1)).expect("it ends");
    assert!(outcome.dropped > 0);
}

#[test]
fn only_growing_queues_are_marked() {
    let star = Topology::star(5).expect("a star");
    let queues = QueueConfiguration {
        ecn_min_bytes: 5_000,
        ecn_max_bytes: 20_000,
        ecn_max_percent: 20,
        ..QueueConfiguration::NONE
    };
    let marked = |load_percent| {
        let load = frames(5, Pattern::Incast(0), load_percent, 3);
        let outcome = run(&star, &with_queues(queues), load).expect("it ends");
        outcome.ports.iter().map(|port| port.marked).sum::<u64>()
    };
    assert!(marked(40) > 50, "four hosts at 40 % are more than the link carries");
    assert_eq!(marked(2), 0);
}

/// If no feature needs stored queues, stored and computed queues have the same results.
#[test]
fn stored_and_computed_queues_agree() {
    for topology in [Topology::star(6), Topology::fat_tree(4), Topology::leaf_spine(3, 4, 2, 1)] {
        let topology = topology.expect("a topology");
        let load = frames(topology.hosts(), Pattern::Uniform, 60, 9);
        let plain = run(&topology, &base(), load.clone()).expect("it ends");
        let queues = QueueConfiguration { ecn_max_bytes: 1 << 40, ..QueueConfiguration::NONE };
        let queued = run(&topology, &with_queues(queues), load).expect("it ends");
        assert_eq!(plain.delivered, queued.delivered);
        let (plain, queued) = (plain.latency.mean_us(), queued.latency.mean_us());
        assert!((plain / queued - 1.0).abs() < 1e-3, "{plain} {queued}");
    }
}

/// All hosts of each group send to the next group. The shortest routes of these messages all use
/// the only cable between the two groups.
#[test]
fn detours_offload_the_only_cable_between_two_groups() {
    let dragonfly = Topology::dragonfly(4, 2, 1).expect("a dragonfly");
    let hosts = dragonfly.hosts();
    let next_group = Pattern::Permutation((0..hosts).map(|host| (host + 8) % hosts).collect());
    let mean_us = |choice, pattern: &Pattern, load_percent| {
        let configuration = EthernetConfiguration { choice, ..base() };
        let load = frames(hosts, pattern.clone(), load_percent, 2);
        let outcome = run(&dragonfly, &configuration, load).expect("it ends");
        assert_eq!(outcome.dropped, 0);
        outcome.latency.mean_us()
    };
    let (direct, detours) =
        (mean_us(Choice::Spray, &next_group, 20), mean_us(Choice::Ugal, &next_group, 20));
    assert!(detours * 4.0 < direct, "{detours} {direct}");
    let (direct, detours) =
        (mean_us(Choice::Spray, &Pattern::Uniform, 5), mean_us(Choice::Ugal, &Pattern::Uniform, 5));
    assert!(detours < direct * 1.1, "{detours} {direct}");
}

#[test]
fn flowlets_spread_better_than_hashes() {
    let topology = Topology::leaf_spine(4, 4, 4, 1).expect("a leaf-spine");
    let across = Pattern::Permutation((0..16).map(|host| (host + 4) % 16).collect());
    let mean_us = |choice| {
        let configuration = EthernetConfiguration { choice, ..base() };
        let outcome = run(&topology, &configuration, frames(16, across.clone(), 70, 4));
        outcome.expect("it ends").latency.mean_us()
    };
    let (flowlets, hashes) =
        (mean_us(Choice::Flowlet { gap_ps: 20_000_000 }), mean_us(Choice::PerFlow));
    assert!(flowlets < hashes, "{flowlets} {hashes}");
}

#[test]
fn two_ports_halve_the_time_of_a_long_message_unless_the_card_is_slow() {
    let star = Topology::star(2).expect("a star");
    let time_us = |rails, striping, rate_bps| {
        let nic = NicConfiguration { rails, striping, rate_bps, frame_interval_ps: 0 };
        let configuration = EthernetConfiguration { nic, ..base() };
        let token = TokenPass::new(2, 1_500_000, 0, 1);
        run(&star, &configuration, token).expect("it ends").latency.mean_us()
    };
    let one = time_us(1, Striping::PerMessage, 0);
    let two = time_us(2, Striping::PerPacket, 0);
    assert!((one / two - 2.0).abs() < 0.01, "{one} {two}");
    let whole = time_us(2, Striping::PerMessage, 0);
    assert!((one / whole - 1.0).abs() < 1e-9, "{one} {whole}");
    let slow = time_us(2, Striping::PerPacket, RATE_BPS / 2);
    assert!((slow / one - 2.0).abs() < 0.02, "{slow} {one}");
}

#[test]
fn interrupts_add_their_latency_to_each_hop_of_a_token() {
    let star = Topology::star(4).expect("a star");
    let completed_ps = |receiving: ReceivingConfiguration| {
        let routes = RouteTable::new(&star, Routing::Shortest).expect("routes");
        let ethernet = Ethernet::new(&star, routes, base());
        let token = TokenPass::new(4, 3_000, 0, 8);
        let simulation = Simulation::new(ethernet, token, &[0, 1, 2, 3], HostCosts::default());
        simulation.with_receiving(receiving).run().expect("it ends").completed_ps
    };
    let polling = completed_ps(ReceivingConfiguration::default());
    let interrupts = |coalesce_frames, coalesce_ps| {
        let how = InterruptConfiguration {
            latency_ps: 2_000_000,
            cost_ps: 500_000,
            coalesce_frames,
            coalesce_ps,
        };
        completed_ps(ReceivingConfiguration { interrupts: Some(how), ..Default::default() })
    };
    // Each message takes one picosecond of processor time, so that the processor handles the
    // messages one after the other.
    assert_eq!(interrupts(1, 0), polling + 8 * 2_500_001);
    assert_eq!(interrupts(3, 1_000_000), polling + 8 * 3_500_001);
    assert_eq!(interrupts(2, 1_000_000), polling + 8 * 2_500_001, "two frames are enough");
    let cutting =
        ReceivingConfiguration { segment_ps: 700, reassemble_ps: 300, ..Default::default() };
    assert_eq!(completed_ps(cutting), polling + 8 * 2 * 1_000);
}
