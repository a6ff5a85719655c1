use super::super::loggp::{LogGp, LogGpConfiguration};
use super::super::simulation::{HostCosts, Outcome, Simulation};
use super::*;

const O_PS: u64 = 1_500_000;
const O_PS_PER_BYTE: u64 = 30;
const LOGGP: LogGpConfiguration = LogGpConfiguration::new(5_000_000, 1_000_000, 800);
const REDUCE_PS: u64 = 120;

fn run(collective: Collective, ranks: u32, iterations: u32) -> Outcome {
    run_with(HostCosts::symmetric(O_PS, O_PS_PER_BYTE), collective, ranks, iterations)
}

fn run_with(costs: HostCosts, collective: Collective, ranks: u32, iterations: u32) -> Outcome {
    run_on(LOGGP, costs, collective, ranks, iterations)
}

fn run_on(
    loggp: LogGpConfiguration,
    costs: HostCosts,
    collective: Collective,
    ranks: u32,
    iterations: u32,
) -> Outcome {
    let configuration = CollectiveConfiguration {
        collective,
        ranks,
        iterations,
        compute_ps: 0,
        reduce_ps_per_byte: REDUCE_PS,
    };
    let placement: Vec<u32> = (0..ranks).collect();
    let fabric = LogGp::new(ranks, loggp);
    Simulation::new(fabric, CollectiveLoop::new(configuration), &placement, costs)
        .run()
        .expect("it ends")
}

/// Returns the time from posting a message to its receipt, if both hosts are idle:
/// `2 o + L + (k − 1) G`.
fn message_ps(bytes: u32) -> u64 {
    let bytes = u64::from(bytes);
    2 * (O_PS + O_PS_PER_BYTE * bytes) + LOGGP.latency_ps + (bytes - 1) * LOGGP.byte_ps
}

fn reduce_ps(bytes: u32) -> u64 {
    u64::from(bytes) * REDUCE_PS
}

#[test]
fn a_ring_takes_the_time_of_one_message_per_iteration() {
    let outcome = run(Collective::Ring { bytes: 4_096, distance: 1 }, 7, 10);
    assert_eq!(outcome.completed_ps, 10 * message_ps(4_096));
    assert_eq!(outcome.delivered, 70);
}

#[test]
fn an_all_to_all_takes_the_time_of_one_message_per_other_rank() {
    for (exchange, ranks) in
        [(Exchange::Shifted, 8), (Exchange::Shifted, 9), (Exchange::Pairwise, 16)]
    {
        let outcome = run(Collective::AllToAll { bytes: 1_000, exchange }, ranks, 3);
        assert_eq!(outcome.completed_ps, 3 * u64::from(ranks - 1) * message_ps(1_000));
        assert_eq!(outcome.delivered, 3 * u64::from(ranks * (ranks - 1)));
    }
}

#[test]
fn a_barrier_takes_the_rounded_up_logarithm_of_the_ranks() {
    for (ranks, rounds) in [(2, 1), (8, 3), (9, 4), (100, 7)] {
        let outcome = run(Collective::Barrier { bytes: 1 }, ranks, 1);
        assert_eq!(outcome.completed_ps, rounds * message_ps(1), "{ranks}");
    }
}

#[test]
fn a_broadcast_takes_the_time_of_its_tree_height() {
    // A sender can start its next message after the overhead or the gap. Both are much shorter than
    // the time until a message arrives. Each step therefore takes the time of one message.
    for (ranks, root) in [(2, 1), (16, 0), (16, 5), (64, 63)] {
        let outcome = run(Collective::Broadcast { bytes: 500, root }, ranks, 1);
        assert_eq!(outcome.completed_ps, u64::from(ranks.ilog2()) * message_ps(500));
        assert_eq!(outcome.delivered, u64::from(ranks) - 1);
    }
}

/// If the sender's interface is the bottleneck, the root's last message determines the time. If the
/// root sends h messages at intervals of s, the last one leaves after (h − 1) s.
#[test]
fn a_broadcast_of_long_messages_takes_the_time_of_the_sends_of_its_root() {
    let bytes = 100_000;
    let body_ps = (u64::from(bytes) - 1) * LOGGP.byte_ps;
    let spacing_ps = LOGGP.gap_ps + body_ps;
    let fabric = LogGp::new(8, LogGpConfiguration { latency_ps: 100, ..LOGGP });
    let configuration = CollectiveConfiguration {
        collective: Collective::Broadcast { bytes, root: 0 },
        ranks: 8,
        iterations: 1,
        compute_ps: 0,
        reduce_ps_per_byte: 0,
    };
    let placement: Vec<u32> = (0..8).collect();
    let ranks = CollectiveLoop::new(configuration);
    let outcome = Simulation::new(fabric, ranks, &placement, HostCosts::default()).run();
    let hop_ps = 100 + body_ps;
    // The time of the broadcast is that of the slowest path through the tree. A path has three
    // hops, or it has fewer hops and starts after the root has sent other messages.
    let longest = [3 * hop_ps, spacing_ps + 2 * hop_ps, 2 * spacing_ps + hop_ps];
    assert_eq!(Some(outcome.expect("it ends").completed_ps), longest.into_iter().max());
}

#[test]
fn all_reduces_take_the_time_of_their_formulas() {
    let (ranks, bytes) = (16_u32, 65_536_u32);
    let all_reduce = |reduction| Collective::AllReduce { bytes, reduction };

    let doubling = run(all_reduce(Reduction::RecursiveDoubling), ranks, 2).completed_ps;
    assert_eq!(doubling, 2 * 4 * (message_ps(bytes) + reduce_ps(bytes)));

    let piece = bytes / ranks;
    let ring = run(all_reduce(Reduction::Ring), ranks, 2).completed_ps;
    assert_eq!(ring, 2 * 15 * (2 * message_ps(piece) + reduce_ps(piece)));

    let halves: u64 = (1..=4).map(|k| 2 * message_ps(bytes >> k) + reduce_ps(bytes >> k)).sum();
    assert_eq!(run(all_reduce(Reduction::Rabenseifner), ranks, 2).completed_ps, 2 * halves);
}

/// If the number of ranks is not a power of two, the all-reduce has one step before and one step
/// after the doubling. These steps partly overlap with other steps. Here the hosts have no costs.
/// With costs, the processor could handle a message of a later step first and so delay the awaited
/// message.
#[test]
fn an_all_reduce_of_any_number_of_ranks_takes_at_most_two_extra_steps() {
    for ranks in 2..=33_u32 {
        let all_reduce =
            Collective::AllReduce { bytes: 800, reduction: Reduction::RecursiveDoubling };
        let step_ps = LOGGP.latency_ps + 799 * LOGGP.byte_ps + reduce_ps(800);
        let steps = u64::from(ranks.ilog2());
        let most = steps + 2 * u64::from(!ranks.is_power_of_two());
        let completed_ps = run_with(HostCosts::default(), all_reduce, ranks, 1).completed_ps;
        assert!((steps * step_ps..=most * step_ps).contains(&completed_ps), "{ranks}");
        for reduction in [Reduction::Ring, Reduction::Rabenseifner] {
            let outcome = run(Collective::AllReduce { bytes: 801, reduction }, ranks, 2);
            assert!(outcome.delivered > 0, "{ranks}");
        }
    }
}

/// Each message of a step has a receiver that awaits it in the same step. No rank awaits a message
/// that no rank sends.
#[test]
fn sends_and_receives_match_for_any_number_of_ranks() {
    for ranks in 2..40 {
        for collective in all(1_003, ranks) {
            for step in 0..collective.steps(ranks) {
                let of = |rank| collective.step(ranks, rank, step);
                for rank in 0..ranks {
                    for to in of(rank).to.of(ranks, rank) {
                        assert_ne!(to, rank);
                        let mut awaited = of(to).from.of(ranks, to);
                        assert!(awaited.any(|from| from == rank), "{collective:?} {ranks} {step}");
                    }
                    for from in of(rank).from.of(ranks, rank) {
                        let mut sent = of(from).to.of(ranks, from);
                        assert!(sent.any(|to| to == rank), "{collective:?} {ranks} {step}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_all_to_all_sends_to_each_other_rank_once() {
    for ranks in 2..=20_u32 {
        for exchange in EXCHANGES {
            let collective = Collective::AllToAll { bytes: 1, exchange };
            for rank in 0..ranks {
                let mut sent: Vec<u32> = (0..collective.steps(ranks))
                    .flat_map(|step| collective.step(ranks, rank, step).to.of(ranks, rank))
                    .collect();
                sent.sort_unstable();
                assert!(sent.into_iter().eq((0..ranks).filter(|to| *to != rank)));
            }
        }
    }
}

#[test]
fn every_rank_gets_the_data_of_all_ranks_or_of_the_root() {
    for ranks in 2..=33_u32 {
        let whole = (1_u64 << ranks) - 1;
        for collective in all(64, ranks) {
            let known = spread(collective, ranks);
            let needed = match collective {
                Collective::Ring { .. } | Collective::Incast { .. } => continue,
                Collective::Broadcast { root, .. } => 1 << root,
                _ => whole,
            };
            assert!(known.iter().all(|known| known & needed == needed), "{collective:?} {ranks}");
        }
    }
}

/// Returns, for each rank, the ranks whose data this rank has at the end, as a bit mask.
fn spread(collective: Collective, ranks: u32) -> Vec<u64> {
    let mut known: Vec<u64> = (0..ranks).map(|rank| 1 << rank).collect();
    for step in 0..collective.steps(ranks) {
        let before = known.clone();
        for rank in 0..ranks {
            for from in collective.step(ranks, rank, step).from.of(ranks, rank) {
                known[rank as usize] |= before[from as usize];
            }
        }
    }
    known
}

/// In the ring and in Rabenseifner's algorithm, each rank sends 2 (n − 1) / n times the data.
#[test]
fn bandwidth_optimal_all_reduces_send_the_minimum() {
    for ranks in [2_u32, 4, 16] {
        for reduction in [Reduction::Ring, Reduction::Rabenseifner] {
            let bytes = 4_096;
            let collective = Collective::AllReduce { bytes, reduction };
            for rank in 0..ranks {
                let steps = (0..collective.steps(ranks)).map(|s| collective.step(ranks, rank, s));
                let sent: u32 = steps.map(|step| step.to.count(ranks) * step.bytes).sum();
                assert_eq!(sent, 2 * (bytes - bytes / ranks), "{reduction:?} {ranks}");
            }
        }
    }
}

/// Ranks that only send run ahead of the others, and all messages still arrive.
#[test]
fn messages_of_all_iterations_arrive() {
    for (collective, in_an_iteration) in [
        (Collective::AllToAll { bytes: 100, exchange: Exchange::AtOnce }, 56),
        (Collective::Ring { bytes: 100, distance: 3 }, 8),
        (Collective::Ring { bytes: 100, distance: 8 }, 0),
        (Collective::Incast { bytes: 100, target: 3 }, 7),
    ] {
        let outcome = run(collective, 8, 5);
        assert_eq!(outcome.delivered, 5 * in_an_iteration, "{collective:?}");
    }
}

/// An all-to-all in a single step takes one latency, plus the time in which an interface sends all
/// of its messages.
#[test]
fn a_single_step_all_to_all_takes_one_latency() {
    let exchange = Exchange::AtOnce;
    let all_to_all = Collective::AllToAll { bytes: 10_000, exchange };
    let body_ps = 9_999 * LOGGP.byte_ps;
    let sending_ps = 7 * (LOGGP.gap_ps + body_ps) + body_ps;
    let loggp = LogGpConfiguration { holds_receiver: false, ..LOGGP };
    let outcome = run_on(loggp, HostCosts::default(), all_to_all, 9, 1);
    assert_eq!(outcome.completed_ps, sending_ps + LOGGP.latency_ps);
}

#[test]
fn the_listed_pairs_are_the_pairs_that_send() {
    for collective in all(64, 9) {
        let configuration = CollectiveConfiguration {
            collective,
            ranks: 9,
            iterations: 1,
            compute_ps: 0,
            reduce_ps_per_byte: 0,
        };
        let pairs = CollectiveLoop::new(configuration).pairs();
        let mut once = pairs.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), pairs.len(), "{collective:?}");
        let mut sending: Vec<(u32, u32)> = (0..9)
            .flat_map(|rank| (0..collective.steps(9)).map(move |step| (rank, step)))
            .flat_map(|(rank, step)| {
                let peers = collective.step(9, rank, step).to.of(9, rank);
                peers.map(move |to| (rank, to))
            })
            .collect();
        sending.sort_unstable();
        sending.dedup();
        assert_eq!(once, sending, "{collective:?}");
    }
}

const EXCHANGES: [Exchange; 3] = [Exchange::Shifted, Exchange::Pairwise, Exchange::AtOnce];

fn all(bytes: u32, ranks: u32) -> Vec<Collective> {
    let reductions = [Reduction::Ring, Reduction::RecursiveDoubling, Reduction::Rabenseifner];
    let mut all: Vec<Collective> =
        reductions.map(|reduction| Collective::AllReduce { bytes, reduction }).into();
    for exchange in EXCHANGES {
        all.push(Collective::AllToAll { bytes, exchange });
    }
    all.extend([
        Collective::Ring { bytes, distance: 1 },
        Collective::Ring { bytes, distance: ranks / 2 },
        Collective::Incast { bytes, target: ranks - 1 },
        Collective::Barrier { bytes },
        Collective::Broadcast { bytes, root: 0 },
        Collective::Broadcast { bytes, root: ranks - 1 },
    ]);
    all
}
