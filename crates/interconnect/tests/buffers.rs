//! Compares losses and marks at a switch output with theory. The output with a limit of K frames is
//! compared with an M/D/1/K queue, the output without a limit with an M/D/1 queue.

use interconnect::ethernet::{ClassBy, Ethernet, EthernetConfiguration, QueueConfiguration};
use interconnect::routing::{RouteTable, Routing};
use interconnect::simulation::{HostCosts, Outcome, Simulation};
use interconnect::topology::Topology;
use interconnect::workload::{Actions, OpenLoad, Pattern, Received, Sizes, Workload};

const PAYLOAD_BYTES: u32 = 1_474;
/// Length of a frame, including preamble, header and check sequence.
const FRAME_BYTES: u64 = 1_500;
/// Service time of a frame and its gap, at 1 Gb/s.
const SERVICE_PS: u64 = 1_512 * 8_000;
const HOSTS: u32 = 32;
const LATENCIES_PS: [u64; 3] = [0, 500_000, 20_000_000];

/// Returns settings that make the switch store queues, but have no other effect.
fn inert() -> [QueueConfiguration; 5] {
    let none = QueueConfiguration::NONE;
    let class_by = ClassBy::Size { small_bytes: 1 << 20 };
    [
        none,
        QueueConfiguration { ecn_min_bytes: 1 << 40, ecn_max_bytes: 1 << 40, ..none },
        QueueConfiguration { classes: 2, ..none },
        QueueConfiguration { shared_bytes: 1 << 40, alpha_percent: 10_000, ..none },
        // No message belongs to the lossless class.
        QueueConfiguration { classes: 2, class_by, lossless: 2, pause_bytes: 9_000, ..none },
    ]
}

/// Runs Poisson arrivals from many hosts at two trunks of 1 Gb/s, one in each direction. All other
/// links are so fast that no frame waits there.
fn run(load: f64, configuration: &EthernetConfiguration, messages: u64) -> Outcome {
    let topology = Topology::cascade(2, HOSTS, 1).expect("two switches");
    let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
    let configuration = EthernetConfiguration {
        host_rate_bps: 1_000_000_000_000,
        trunk_rate_bps: 1_000_000_000,
        ..*configuration
    };
    let hosts = 2 * HOSTS;
    let interval_ps = (SERVICE_PS as f64 * f64::from(HOSTS) / load) as u64;
    let until_ps = interval_ps * messages / u64::from(hosts);
    let sizes = Sizes::Fixed(PAYLOAD_BYTES);
    let across = (0..hosts).map(|host| (host + HOSTS) % hosts).collect();
    let pattern = Pattern::Permutation(across);
    let workload = OpenLoad::new(hosts, pattern, sizes, interval_ps, until_ps, 3);
    let placement: Vec<u32> = (0..hosts).collect();
    let ethernet = Ethernet::new(&topology, routes, configuration);
    Simulation::new(ethernet, workload, &placement, HostCosts::default()).run().expect("it ends")
}

/// Number of messages in a run. It makes the standard error of the fractions less than 1 %.
const MESSAGES: u64 = 200_000;

/// Returns the probabilities that a frame leaves 0, 1, 2 … frames behind when it leaves an M/D/1
/// queue. The probabilities are not normalised.
fn left_behind(load: f64, count: usize) -> Vec<f64> {
    let mut arrivals = vec![(-load).exp()];
    for number in 1..=count {
        arrivals.push(arrivals[number - 1] * load / number as f64);
    }
    let mut chances = vec![1.0_f64];
    for k in 0..count - 1 {
        let others: f64 = (1..=k).map(|j| chances[j] * arrivals[k + 1 - j]).sum();
        chances.push((chances[k] - others - chances[0] * arrivals[k]) / arrivals[0]);
    }
    chances
}

/// Returns the fraction of frames that an M/D/1/K queue loses. K includes the frame being sent.
fn lost_share(load: f64, room: usize) -> f64 {
    let chances = left_behind(load, room);
    1.0 - 1.0 / (chances[0] / chances.iter().sum::<f64>() + load)
}

/// Returns the fraction of frames that find at least `least` frames in an M/D/1 queue on arrival.
fn found_share(load: f64, least: usize) -> f64 {
    let chances = left_behind(load, least);
    1.0 - chances.iter().sum::<f64>() * (1.0 - load)
}

/// Compares losses with theory, at several latencies of the switch and with all settings that make
/// the switch store queues.
#[test]
fn the_loss_of_a_buffer_matches_theory() {
    let mut worst = 0.0_f64;
    for (load, room) in [(0.95, 5), (1.2, 20)] {
        let theory = lost_share(load, room);
        for latency_ps in LATENCIES_PS {
            let mut dropped = Vec::new();
            for queues in inert() {
                let configuration = EthernetConfiguration {
                    buffer_bytes: room as u64 * FRAME_BYTES,
                    latency_ps,
                    queues,
                    ..EthernetConfiguration::with_rate(1_000_000_000)
                };
                let outcome = run(load, &configuration, MESSAGES);
                let share = outcome.dropped as f64 / (outcome.dropped + outcome.delivered) as f64;
                worst = worst.max((share / theory - 1.0).abs());
                assert!(worst < 0.02, "{share} {theory} {configuration:?}");
                dropped.push(outcome.dropped);
            }
            // All settings must lose exactly the same number of frames.
            assert!(dropped.iter().all(|&other| other == dropped[0]), "{dropped:?}");
        }
    }
    print_figure(worst);
}

#[test]
fn frames_are_marked_by_the_output_queue_ahead_of_them() {
    let mut worst = 0.0_f64;
    let (load, least) = (0.8, 4);
    let theory = found_share(load, least);
    let step_bytes = (least as u64 - 1) * FRAME_BYTES;
    for latency_ps in LATENCIES_PS {
        for queues in inert() {
            let queues = QueueConfiguration {
                ecn_min_bytes: step_bytes,
                ecn_max_bytes: step_bytes,
                ..queues
            };
            let configuration = EthernetConfiguration {
                latency_ps,
                queues,
                ..EthernetConfiguration::with_rate(1_000_000_000)
            };
            let outcome = run(load, &configuration, MESSAGES);
            let marked: u64 = outcome.ports.iter().map(|port| port.marked).sum();
            let share = marked as f64 / outcome.delivered as f64;
            worst = worst.max((share / theory - 1.0).abs());
            assert!(worst < 0.02, "{share} {theory} {configuration:?}");
        }
    }
    print_figure(worst);
}

/// Prints a deviation in percent, which `xtask acceptance fabric` reads.
fn print_figure(deviation: f64) {
    println!("figure: buffers: {:.3}", 100.0 * deviation);
}

/// From a burst of ten frames, the switch stores as many frames as fit in the buffer. The frame
/// being sent occupies buffer too.
#[test]
fn the_tail_of_a_burst_is_dropped() {
    for queues in inert() {
        for (buffer_bytes, room) in [(4 * FRAME_BYTES, 4), (5 * FRAME_BYTES - 1, 4), (1_000, 0)] {
            let topology = Topology::cascade(2, 10, 1).expect("two switches");
            let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
            let configuration = EthernetConfiguration {
                host_rate_bps: 1_000_000_000_000,
                latency_ps: 5_000_000,
                buffer_bytes,
                queues,
                ..EthernetConfiguration::with_rate(1_000_000_000)
            };
            let ethernet = Ethernet::new(&topology, routes, configuration);
            let placement: Vec<u32> = (0..20).collect();
            let simulation = Simulation::new(ethernet, Burst, &placement, HostCosts::default());
            let outcome = simulation.run().expect("it ends");
            assert_eq!(
                (outcome.delivered, outcome.dropped),
                (room, 10 - room),
                "{configuration:?}"
            );
            let [port] = &*outcome.ports else { panic!("{:?}", outcome.ports) };
            assert_eq!(port.queue_bytes_max, room * FRAME_BYTES, "{configuration:?}");
        }
    }
}

/// A workload in which each host of the first switch sends one frame to a host of the second.
struct Burst;

impl Workload for Burst {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank < 10 {
            actions.send(rank + 10, PAYLOAD_BYTES, 0);
        }
    }

    fn on_wake(&mut self, _: u32, _: u32, _: &mut Actions) {}

    fn on_received(&mut self, _: u32, _: Received, _: &mut Actions) {}

    fn is_finished(&self) -> bool {
        true
    }
}
