use super::super::configuration::Configuration;
use super::super::loggp::{LogGp, LogGpConfiguration};
use super::super::simulation::{Fabric, HostCosts, Outcome, Simulation, Stuck};
use super::super::wheel::Event;
use super::*;

const O_PS: u64 = 1_500_000;
const LOGGP: LogGpConfiguration = LogGpConfiguration::new(5_000_000, 1_000_000, 800);

fn run<P, F>(ranks: u32, program: P) -> Result<Outcome, Stuck>
where
    P: Fn(Rank) -> F,
    F: Future<Output = ()> + 'static,
{
    run_on(LogGp::new(ranks, LOGGP), ranks, program)
}

fn run_on<P, F>(fabric: impl Fabric, ranks: u32, program: P) -> Result<Outcome, Stuck>
where
    P: Fn(Rank) -> F,
    F: Future<Output = ()> + 'static,
{
    let placement: Vec<u32> = (0..ranks).collect();
    let costs = HostCosts::symmetric(O_PS, 0);
    Simulation::new(fabric, Coroutines::new(ranks, program), &placement, costs).run()
}

fn message_ps(bytes: u64) -> u64 {
    2 * O_PS + LOGGP.latency_ps + (bytes - 1) * LOGGP.byte_ps
}

#[test]
fn a_ping_pong_takes_the_time_of_the_model() {
    let outcome = run(2, |mpi| async move {
        let peer = 1 - mpi.number();
        for round in 0..10 {
            if mpi.number() == 0 {
                mpi.send(peer, 1_000, round).await;
                mpi.recv(peer, round).await;
            } else {
                mpi.recv(peer, round).await;
                mpi.send(peer, 1_000, round).await;
            }
        }
        assert_eq!(mpi.number() == 0, mpi.now_ps() == 20 * message_ps(1_000));
    });
    assert_eq!(outcome.expect("it ends").completed_ps, 20 * message_ps(1_000));
}

#[test]
fn a_send_occupies_the_processor_and_an_asynchronous_send_delays_the_next_step() {
    let outcome = run(2, |mpi| async move {
        if mpi.number() == 0 {
            mpi.send(1, 1, 0).await;
            assert_eq!(mpi.now_ps(), O_PS);
            let sending = mpi.isend(1, 1, 1);
            assert_eq!(mpi.now_ps(), O_PS);
            mpi.compute(3_000).await;
            assert_eq!(mpi.now_ps(), 2 * O_PS + 3_000_000);
            sending.await;
            assert_eq!(mpi.now_ps(), 2 * O_PS + 3_000_000);
        } else {
            let received = mpi.wait_all([mpi.irecv(0, 1), mpi.irecv(0, 0)]).await;
            assert_eq!([received[0].tag, received[1].tag], [1, 0]);
        }
    });
    assert_eq!(outcome.expect("it ends").delivered, 2);
}

#[test]
fn a_receive_from_any_source_takes_the_first_message_and_its_number() {
    let outcome = run(4, |mpi| async move {
        if mpi.number() > 0 {
            mpi.compute(u64::from(4 - mpi.number()) * 10_000).await;
            mpi.send_value(0, 8, 5, f64::from(mpi.number()) / 2.0).await;
            return;
        }
        for from in [3, 2, 1] {
            let message = mpi.recv(ANY, ANY).await;
            let value = f64::from(from) / 2.0;
            assert_eq!(message, Message { from, tag: 5, bytes: 8, value });
        }
    });
    outcome.expect("it ends");
}

#[test]
fn a_collective_waits_for_all_peers_of_a_step() {
    use super::super::collective::Exchange;
    let incast = Collective::Incast { bytes: 100, target: 2 };
    let at_once = Collective::AllToAll { bytes: 100, exchange: Exchange::AtOnce };
    for (collective, messages) in [(incast, 4), (at_once, 20)] {
        let outcome = run(5, |mpi| async move {
            mpi.collective(collective).await;
            let is_target = mpi.number() == 2 || collective == at_once;
            assert_eq!(is_target, mpi.now_ps() >= message_ps(100), "rank {}", mpi.number());
        });
        assert_eq!(outcome.expect("it ends").delivered, messages, "{collective:?}");
    }
}

#[test]
fn collectives_give_all_ranks_the_same_number() {
    for ranks in 1..=17_u32 {
        let outcome = run(ranks, move |mpi| async move {
            let own = f64::from(mpi.number() + 1);
            let all = f64::from(ranks);
            let sum = mpi.all_reduce(8, own, Operation::Sum).await;
            assert!((sum - all * (all + 1.0) / 2.0).abs() < 1e-9, "{sum} of {ranks}");
            assert_eq!(mpi.all_reduce(8, own, Operation::Max).await.total_cmp(&all), EQUAL);
            assert_eq!(mpi.all_reduce(8, own, Operation::Min).await.total_cmp(&1.0), EQUAL);
            let root = ranks / 2;
            let value = mpi.broadcast(root, 100, own).await;
            assert_eq!(value.total_cmp(&f64::from(root + 1)), EQUAL);
        });
        outcome.expect("it ends");
    }
}

const EQUAL: std::cmp::Ordering = std::cmp::Ordering::Equal;

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_entered() {
    let outcome = run(9, |mpi| async move {
        let late_ns = u64::from(mpi.number()) * 100_000;
        mpi.compute(late_ns).await;
        // A receive with any tag must not match the messages of the barrier, which are collective.
        let receiving = mpi.irecv(ANY, ANY);
        mpi.barrier().await;
        assert!(mpi.now_ps() >= 800_000_000, "{}", mpi.now_ps());
        mpi.send((mpi.number() + 1) % 9, 1, 0).await;
        assert_eq!(receiving.await.from, (mpi.number() + 8) % 9);
    });
    outcome.expect("it ends");
}

#[test]
fn deadlocked_ranks_are_reported_in_pairs() {
    let stuck = run(4, |mpi| async move {
        match mpi.number() {
            3 => {}
            rank => {
                mpi.recv((rank + 1) % 3, 7).await;
            }
        }
    });
    let text = stuck.expect_err("no rank sends").to_string();
    assert!(text.contains("3 of 4 ranks have not ended"), "{text}");
    assert!(text.contains("in a circle: rank 0 -> rank 1 -> rank 2 -> rank 0"), "{text}");
    assert!(text.contains("rank 1 waits for a message with tag 7 from rank 2"), "{text}");

    let stuck = run(3, |mpi| async move {
        match mpi.number() {
            0 => drop(mpi.recv(2, ANY).await),
            1 => mpi.barrier().await,
            _ => {}
        }
    });
    let text = stuck.expect_err("rank 2 is gone").to_string();
    assert!(!text.contains("circle"), "{text}");
    assert!(text.contains("rank 0 waits for a message with any tag from rank 2, which has ended"));
    assert!(text.contains("rank 1 waits for a message of a collective from rank 0"), "{text}");
}

/// A fabric that delivers messages in the reverse order of sending.
struct Reversing {
    left: u64,
}

impl Fabric for Reversing {
    fn inject(&mut self, context: &mut super::super::simulation::Context, message: u32) {
        self.left -= 1;
        let now_ps = context.wheel.now_ps();
        context.schedule(now_ps + self.left * 10_000_000, 0, message);
    }

    fn handle(&mut self, context: &mut super::super::simulation::Context, event: Event) {
        context.deliver(event.subject);
    }

    fn diagnose(&self, context: &super::super::simulation::Context) -> Stuck {
        Stuck::Silent { messages: context.messages.len() }
    }

    fn hops(&self) -> u64 {
        0
    }

    fn slot_ps(&self) -> u64 {
        1_000
    }
}

#[test]
fn reordered_messages_are_matched_in_send_order() {
    let outcome = run_on(Reversing { left: 20 }, 2, |mpi| async move {
        for number in 0..20_u32 {
            if mpi.number() == 0 {
                mpi.send_value(1, 10, 0, f64::from(number)).await;
            } else {
                let got = mpi.recv(0, ANY).await.value;
                assert_eq!(got.total_cmp(&f64::from(number)), EQUAL);
            }
        }
    });
    outcome.expect("it ends");
}

#[test]
fn a_program_runs_reproducibly_on_every_fabric() {
    async fn program(mpi: Rank) {
        let (rank, ranks) = (mpi.number(), mpi.ranks());
        let mut residual = 1.0;
        while residual > 0.1 {
            let sides = [(rank + 1) % ranks, (rank + ranks - 1) % ranks];
            let receives = sides.map(|side| mpi.irecv(side, 0));
            let sends = sides.map(|side| mpi.isend(side, 3_000, 0));
            mpi.wait_all(receives).await;
            mpi.wait_all(sends).await;
            mpi.compute(20_000).await;
            residual = mpi.all_reduce(8, residual / 2.0, Operation::Max).await;
        }
    }
    for fabric in ["ethernet", "wormhole", "flit", "loggp", "fluid"] {
        let text = format!(
            "[topology]\nkind = \"torus\"\nsizes = [4, 4]\nlanes = 2\n[fabric]\nkind = \"{fabric}\"\n"
        );
        let cluster = Configuration::parse("a.toml", &text).expect("it is valid");
        let run = || cluster.run_workload(Coroutines::new(16, program), 16).expect("it ends");
        let outcome = run();
        assert_eq!(outcome.delivered, 4 * 16 * (2 + 4), "{fabric}");
        assert!(outcome.completed_ps > 4 * 20_000_000);
        assert_eq!(outcome.hash, run().hash);
    }
}
