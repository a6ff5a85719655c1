//! Tests divided runs: the result does not depend on the number of parts, and no frame is lost
//! between parts.

use interconnect::collective::{
    Collective, CollectiveConfiguration, CollectiveLoop, Exchange, Reduction,
};
use interconnect::ethernet::{
    ClassBy, Ethernet, EthernetConfiguration, Forwarding, NicConfiguration, QueueConfiguration,
    Striping,
};
use interconnect::goal::Goal;
use interconnect::receiving::{InterruptConfiguration, ReceivingConfiguration};
use interconnect::routing::{Choice, RouteTable, Routing};
use interconnect::simulation::{HostCosts, InTurns, Limits, Outcome, Simulation, Stuck};
use interconnect::topology::Topology;
use interconnect::workload::{
    MeshConfiguration, MeshExchange, OpenLoad, Pattern, Separable, Sizes, TokenPass,
};
use proptest::prelude::*;

/// A network with hosts, which can run undivided or divided.
#[derive(Clone, Debug)]
struct Cluster {
    topology: Topology,
    configuration: EthernetConfiguration,
    costs: HostCosts,
    receiving: ReceivingConfiguration,
}

impl Cluster {
    fn simulation<W: Separable>(&self, workload: W, ranks: u32) -> Simulation<Ethernet, W> {
        let routes = RouteTable::new(&self.topology, Routing::Shortest).expect("routes");
        let ethernet = Ethernet::new(&self.topology, routes, self.configuration);
        let placement: Vec<u32> = (0..ranks).collect();
        let limits = Limits { events: 3_000_000, ..Limits::default() };
        Simulation::new(ethernet, workload, &placement, self.costs)
            .with_receiving(self.receiving)
            .with_limits(limits)
    }

    /// Runs the workload undivided and in 1, 2 and 4 parts, and compares the results.
    fn compare<W: Separable>(&self, workload: &W, ranks: u32) -> Result<Outcome, Stuck> {
        let whole = self.simulation(workload.clone(), ranks).run();
        for count in [1, 2, 4] {
            let parts = self.simulation(workload.clone(), ranks).divide(&self.topology, count);
            let divided = parts.run(&InTurns);
            match (&whole, &divided) {
                (Ok(whole), Ok(divided)) => {
                    let figures = |outcome: &Outcome| {
                        (
                            (outcome.hash, outcome.delivered, outcome.delivered_bytes),
                            (outcome.completed_ps, outcome.latency, outcome.dropped),
                            (outcome.events, outcome.hops, outcome.ports.clone()),
                        )
                    };
                    assert_eq!(figures(whole), figures(divided), "{count} parts");
                }
                // A divided run with too many events stops only at the end of a window. Its number
                // of events therefore differs from that of the undivided run.
                (Err(Stuck::Endless { .. }), Err(Stuck::Endless { .. })) => {}
                (Err(whole), Err(divided)) => assert_eq!(whole, divided, "{count} parts"),
                _ => panic!("{count} parts: {whole:?}, {divided:?}"),
            }
        }
        whole
    }
}

fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        (2_u32..12).prop_map(Topology::star),
        (1_u32..5, 1_u32..5, 1_u32..4).prop_map(|(a, b, c)| Topology::cascade(a, b.max(2), c)),
        (2_u32..5, 1_u32..5, 1_u32..4, 1_u32..3).prop_map(|(leaves, hosts, spines, trunks)| {
            Topology::leaf_spine(leaves, hosts, spines, trunks)
        }),
        Just(Topology::fat_tree(4)),
        (2_u32..5, 2_u32..4, 1_u32..3).prop_map(|(x, y, hosts)| Topology::torus(&[x, y], hosts, 1)),
        (2_u32..4, 1_u32..3, 1_u32..3)
            .prop_map(|(switches, hosts, global)| Topology::dragonfly(switches, hosts, global)),
    ]
    .prop_map(|topology| topology.expect("sizes are in range"))
}

fn choices() -> impl Strategy<Value = Choice> {
    prop_oneof![
        Just(Choice::PerFlow),
        Just(Choice::PerSource),
        Just(Choice::LeastLoaded),
        Just(Choice::Spray),
        Just(Choice::Ugal),
        (0_u64..5_000_000).prop_map(|gap_ps| Choice::Flowlet { gap_ps }),
    ]
}

fn queues() -> impl Strategy<Value = QueueConfiguration> {
    let class_by = prop_oneof![
        Just(ClassBy::Tag),
        Just(ClassBy::Source),
        Just(ClassBy::Size { small_bytes: 500 })
    ];
    let shared = prop_oneof![Just(0_u64), 5_000_u64..60_000];
    let marks = prop_oneof![Just((0_u64, 0_u64)), (1_000_u64..9_000, 9_000_u64..30_000)];
    (shared, 10_u32..400, marks, 1_u8..=8, class_by, any::<u8>(), 1_u64..20_000, 0_u64..20_000)
        .prop_map(|(shared_bytes, alpha_percent, ecn, classes, class_by, lossless, on, off)| {
            QueueConfiguration {
                shared_bytes,
                alpha_percent,
                ecn_min_bytes: ecn.0,
                ecn_max_bytes: ecn.1,
                ecn_max_percent: 50,
                classes,
                class_by,
                lossless,
                pause_bytes: on,
                resume_bytes: off,
                headroom_bytes: 0,
            }
        })
}

fn nics() -> impl Strategy<Value = NicConfiguration> {
    let striping = prop_oneof![Just(Striping::PerMessage), Just(Striping::PerPacket)];
    let rate_bps = prop_oneof![Just(0_u64), Just(3_000_000_000)];
    (1_u32..4, striping, rate_bps, 0_u64..300_000).prop_map(
        |(rails, striping, rate_bps, frame_interval_ps)| NicConfiguration {
            rails,
            striping,
            rate_bps,
            frame_interval_ps,
        },
    )
}

fn receiving() -> impl Strategy<Value = ReceivingConfiguration> {
    let interrupts = (0_u64..500_000, 0_u64..500_000, 0_u32..5, 0_u64..2_000_000).prop_map(
        |(latency_ps, cost_ps, coalesce_frames, coalesce_ps)| InterruptConfiguration {
            latency_ps,
            cost_ps,
            coalesce_frames,
            coalesce_ps,
        },
    );
    (0_u64..2_000, 0_u64..2_000, prop::option::of(interrupts)).prop_map(
        |(segment_ps, reassemble_ps, interrupts)| ReceivingConfiguration {
            frame_bytes: 1_500,
            segment_ps,
            reassemble_ps,
            interrupts,
        },
    )
}

fn clusters(queues: impl Strategy<Value = QueueConfiguration>) -> impl Strategy<Value = Cluster> {
    let forwarding = prop_oneof![
        Just(Forwarding::StoreAndForward),
        Just(Forwarding::CutThrough { header_bytes: 64 })
    ];
    let buffer = prop_oneof![Just(0_u64), 3_000_u64..30_000];
    let costs = prop_oneof![Just(0_u64), 1_u64..300_000];
    (
        (topologies(), choices(), queues, nics(), receiving()),
        (forwarding, buffer, costs, 0_u64..1_000_000, 1_u64..200_000, any::<bool>()),
    )
        .prop_map(
            |(
                (topology, choice, queues, nic, receiving),
                (forwarding, buffer_bytes, cost_ps, latency_ps, propagation_ps, is_limited),
            )| {
                // The engine of a switch (which limits the rate of frames from hosts) and lossless
                // classes exclude each other. Frames that wait for the engine occupy no buffer, but
                // pauses of lossless classes depend on the used buffer.
                let has_engine = is_limited && queues.lossless == 0;
                let configuration = EthernetConfiguration {
                    choice,
                    forwarding,
                    buffer_bytes,
                    latency_ps,
                    propagation_ps,
                    host_frame_interval_ps: if has_engine { 300_000 } else { 0 },
                    trunk_rate_bps: 4_000_000_000,
                    nic,
                    queues,
                    ..EthernetConfiguration::with_rate(2_000_000_000)
                };
                let costs = HostCosts::symmetric(cost_ps, cost_ps / 1_000);
                Cluster { topology, configuration, costs, receiving }
            },
        )
}

/// Returns a load of small and large messages that exceeds the rate of some links.
fn load(ranks: u32, pattern: Pattern, seed: u64) -> OpenLoad {
    let sizes = Sizes::Mix(vec![(1, 1), (100, 2), (4_000, 3), (20_000, 1)]);
    OpenLoad::new(ranks, pattern, sizes, 8_000_000, LOAD_PS, seed)
}

fn plain() -> impl Strategy<Value = QueueConfiguration> {
    Just(QueueConfiguration::NONE)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn divided_and_undivided_runs_agree(cluster in clusters(plain()), seed: u64, is_incast: bool) {
        let hosts = cluster.topology.hosts();
        let pattern = if is_incast { Pattern::Incast(0) } else { Pattern::Uniform };
        let outcome = cluster.compare(&load(hosts, pattern, seed), hosts).expect("it ends");
        prop_assert!(cluster.configuration.buffer_bytes > 0 || outcome.dropped == 0);
    }

    #[test]
    fn divided_and_undivided_runs_with_queues_agree(
        cluster in clusters(queues()),
        seed: u64,
        is_incast: bool,
    ) {
        let hosts = cluster.topology.hosts();
        let pattern = if is_incast { Pattern::Incast(0) } else { Pattern::Uniform };
        // Pauses on a torus can end in a deadlock. The divided runs must report the deadlock in the
        // same way.
        let _ = cluster.compare(&load(hosts, pattern, seed), hosts);
    }

    #[test]
    fn divided_and_undivided_programs_end_alike(
        cluster in clusters(queues()),
        iterations in 0_u32..4,
    ) {
        let hosts = cluster.topology.hosts();
        let configuration = EthernetConfiguration {
            buffer_bytes: 0,
            queues: QueueConfiguration { shared_bytes: 0, lossless: 0, ..cluster.configuration.queues },
            ..cluster.configuration
        };
        let cluster = Cluster { configuration, ..cluster };
        let mesh = MeshExchange::new(MeshConfiguration {
            width: hosts,
            height: 1,
            bytes: 3_000,
            iterations,
            compute_ps: 1_000_000,
            order: [0, 1, 3, 2],
        });
        // In a mesh of height 1, a rank is its own neighbour twice. Its messages to itself do not
        // count as delivered, so two messages remain in each iteration.
        let outcome = cluster.compare(&mesh, hosts).expect("nothing is lost");
        prop_assert_eq!(outcome.delivered, u64::from(hosts * 2 * iterations));
        let token = TokenPass::new(hosts, 100, 5_000, 2 * hosts + 1);
        prop_assert_eq!(cluster.compare(&token, hosts).expect("it ends").delivered, u64::from(2 * hosts + 1));
        let ring = Goal::parse("ring", &Goal::ring(hosts, iterations + 1)).expect("a trace");
        cluster.compare(&ring, hosts).expect("it ends");
    }

    #[test]
    fn divided_and_undivided_collectives_end_alike(
        cluster in clusters(plain()),
        collective in collectives(),
        iterations in 0_u32..4,
        compute_ps in prop_oneof![Just(0_u64), Just(1_000_000)],
        reduce_ps_per_byte in 0_u64..100,
    ) {
        let ranks = cluster.topology.hosts();
        let configuration = EthernetConfiguration { buffer_bytes: 0, ..cluster.configuration };
        let cluster = Cluster { configuration, ..cluster };
        let repeated = CollectiveLoop::new(CollectiveConfiguration {
            collective,
            ranks,
            iterations,
            compute_ps,
            reduce_ps_per_byte,
        });
        cluster.compare(&repeated, ranks).expect("nothing is lost");
    }
}

fn collectives() -> impl Strategy<Value = Collective> {
    let bytes = 5_000;
    let exchanged = move |exchange| Collective::AllToAll { bytes, exchange };
    let reduced = move |reduction| Collective::AllReduce { bytes, reduction };
    prop_oneof![
        Just(Collective::Ring { bytes, distance: 1 }),
        Just(Collective::Incast { bytes, target: 0 }),
        prop_oneof![Just(Exchange::Shifted), Just(Exchange::Pairwise), Just(Exchange::AtOnce)]
            .prop_map(exchanged),
        prop_oneof![
            Just(Reduction::Ring),
            Just(Reduction::RecursiveDoubling),
            Just(Reduction::Rabenseifner)
        ]
        .prop_map(reduced),
        Just(Collective::Broadcast { bytes, root: 1 }),
        Just(Collective::Barrier { bytes }),
    ]
}

/// A collective waits for a message that lost frames on a slow trunk. All runs must report this in
/// the same way.
#[test]
fn divided_and_undivided_runs_report_a_deadlocked_collective_alike() {
    let topology = Topology::leaf_spine(4, 1, 2, 1).expect("a leaf-spine");
    let cluster = Cluster {
        topology,
        configuration: EthernetConfiguration {
            trunk_rate_bps: 300_000_000,
            buffer_bytes: 3_000,
            ..EthernetConfiguration::with_rate(1_000_000_000)
        },
        costs: HostCosts::default(),
        receiving: ReceivingConfiguration::default(),
    };
    let all_to_all = CollectiveLoop::new(CollectiveConfiguration {
        collective: Collective::AllToAll { bytes: 60_000, exchange: Exchange::Shifted },
        ranks: 4,
        iterations: 2,
        compute_ps: 0,
        reduce_ps_per_byte: 0,
    });
    cluster.compare(&all_to_all, 4).expect_err("frames are lost");
}

/// A trace in binary form has the same results as in text form.
#[test]
fn a_binary_trace_is_divided_like_its_text() {
    let topology = Topology::leaf_spine(4, 2, 2, 1).expect("a leaf-spine");
    let cluster = Cluster {
        topology,
        configuration: EthernetConfiguration::with_rate(1_000_000_000),
        costs: HostCosts::default(),
        receiving: ReceivingConfiguration::default(),
    };
    let text = Goal::parse("ring", &Goal::ring(8, 5)).expect("a trace");
    let binary = Goal::read("ring", &text.encode()).expect("it was encoded");
    let outcomes = [text, binary].map(|trace| cluster.compare(&trace, 8).expect("it ends"));
    assert_eq!(outcomes[0].hash, outcomes[1].hash);
}

/// If a rank waits forever, a divided run reports the same error as an undivided run.
#[test]
fn divided_and_undivided_runs_report_a_deadlocked_trace_alike() {
    let topology = Topology::leaf_spine(4, 1, 2, 1).expect("a leaf-spine");
    let cluster = Cluster {
        topology,
        configuration: EthernetConfiguration::with_rate(1_000_000_000),
        costs: HostCosts::default(),
        receiving: ReceivingConfiguration::default(),
    };
    let text = "num_ranks 4\nrank 0 {\na: send 9b to 3 tag 1\n}\nrank 1 {\n}\nrank 2 {\n}\nrank 3 \
                {\na: recv 9b from 0 tag 1\nb: recv 9b from 1 tag 2\n}\n";
    let trace = Goal::parse("a.goal", text).expect("it is well formed");
    let stuck = cluster.compare(&trace, 4).expect_err("it waits").to_string();
    assert!(stuck.contains("1 operations are left"), "{stuck}");
}

const LOAD_PS: u64 = 200_000_000;
