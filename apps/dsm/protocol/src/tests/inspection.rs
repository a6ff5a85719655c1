//! What a node says of a thread that does not come.

use super::cluster::Cluster;
use super::network::Port;
use crate::call::Call;
use crate::config::Config;
use crate::diff::PAGE_WORDS;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::inspection::{Awaited, Obstacle};
use crate::memory::Access;

fn cluster(threads: u16) -> Cluster {
    let config = Config { history: false, migrate_after: 0, threads, ..Config::new(Rank(0), 2, 4) };
    let mut cluster = Cluster::new(config);
    cluster.settle();
    cluster
}

#[test]
fn a_node_knows_that_another_one_waits_at_the_barrier() {
    let mut cluster = cluster(1);
    let barrier = Call::Barrier { address: 8, count: 2 };
    for _ in 0..3 {
        assert_eq!(cluster.nodes[0].waits_for_this(), None);
        cluster.start(1, barrier).unwrap();
        cluster.settle();
        assert_eq!(cluster.nodes[0].waits_for_this(), Some(Awaited::Barrier { rank: Rank(1) }));
        assert_eq!(cluster.nodes[1].waits_for_this(), None);
        assert_eq!(cluster.call(0, barrier), Ok(0));
        assert_eq!(cluster.take(1), Some(Ok(0)));
    }
}

#[test]
fn a_node_knows_that_its_own_threads_wait_at_the_barrier() {
    let mut cluster = cluster(2);
    cluster.start_of(0, 1, Call::Barrier { address: 8, count: 4 }).unwrap();
    cluster.settle();
    assert_eq!(cluster.nodes[0].waits_for_this(), Some(Awaited::Barrier { rank: Rank(0) }));
}

#[test]
fn a_node_knows_that_another_one_waits_for_its_lock() {
    let mut cluster = cluster(1);
    assert_eq!(cluster.call(0, Call::Lock(64)), Ok(0));
    assert_eq!(cluster.nodes[0].waits_for_this(), None);
    cluster.start(1, Call::Lock(64)).unwrap();
    cluster.settle();
    let lock = Awaited::Lock { lock: 64, holder: ThreadNumber(0), rank: Rank(1) };
    assert_eq!(cluster.nodes[0].waits_for_this(), Some(lock));
    assert_eq!(cluster.call(0, Call::Unlock(64)), Ok(0));
    assert_eq!(cluster.nodes[0].waits_for_this(), None);
}

#[test]
fn a_node_knows_what_its_threads_wait_for() {
    let mut cluster = cluster(2);
    let obstacle = |cluster: &Cluster, rank: usize| {
        let node = &cluster.nodes[rank];
        [0, 1].map(|thread| node.obstacle_of(ThreadNumber(thread)))
    };
    assert_eq!(cluster.call(0, Call::Lock(64)), Ok(0));
    assert_eq!(obstacle(&cluster, 0), [None, None]);
    cluster.start_of(0, 1, Call::Lock(64)).unwrap();
    cluster.start_of(1, 0, Call::Lock(64)).unwrap();
    cluster.start_of(1, 1, Call::Take(80)).unwrap();
    cluster.settle();
    assert_eq!(obstacle(&cluster, 0), [None, Some(Obstacle::Lock(64))]);
    assert_eq!(obstacle(&cluster, 1), [Some(Obstacle::Lock(64)), Some(Obstacle::Object(80))]);
    cluster.start_of(0, 0, Call::Barrier { address: 8, count: 4 }).unwrap();
    cluster.settle();
    assert_eq!(obstacle(&cluster, 0)[0], None);
}

//= dsm-protocol.md: lock.5
#[test]
fn a_node_finds_the_thread_that_holds_a_lock_of_either_kind() {
    let calls = [(64, Call::Lock(64)), (72, Call::ReadLock(72)), (80, Call::WriteLock(80))];
    for (lock, acquire) in calls {
        let mut cluster = cluster(2);
        let search = |cluster: &mut Cluster| {
            let mut port = Port { network: &mut cluster.network, me: Rank(0) };
            cluster.nodes[0].search(&mut port, lock);
            assert!(cluster.nodes[0].is_searching());
            // A second search does not disturb the first.
            cluster.nodes[0].search(&mut port, lock + 8);
            cluster.settle();
            assert!(!cluster.nodes[0].is_searching());
            cluster.nodes[0].found_holder()
        };
        assert_eq!(search(&mut cluster), None);
        for (rank, thread) in [(1, 1), (0, 1)] {
            let mut cluster = self::cluster(2);
            cluster.start_of(rank, thread, acquire).unwrap();
            cluster.settle();
            if lock != 72 {
                // A thread that waits for the lock does not hold it.
                cluster.start_of(1 - rank, 0, acquire).unwrap();
                cluster.settle();
                let obstacle = cluster.nodes[usize::from(1 - rank)].obstacle_of(ThreadNumber(0));
                assert_eq!(obstacle, Some(Obstacle::Lock(lock)));
            }
            assert_eq!(search(&mut cluster), Some((Rank(rank), ThreadNumber(thread))));
        }
    }
}

#[test]
fn an_inspection_finds_pages_that_another_node_has_published_and_none_that_are_applied() {
    let mut cluster = cluster(1);
    let inspect = |cluster: &mut Cluster| {
        cluster.nodes[1].inspect(&mut Port { network: &mut cluster.network, me: Rank(1) });
        assert!(cluster.nodes[1].inspected().is_none());
        cluster.settle();
        cluster.nodes[1].inspected().expect("the reads are complete").clone()
    };
    cluster.write(0, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.read(1, 1), 10);
    cluster.barrier();
    // The home has learned only now that the page is shared.
    assert_eq!(cluster.read(1, 1), 10);
    assert!(inspect(&mut cluster).is_empty());
    assert!(cluster.nodes[1].is_only_read(PageNumber(0)));
    assert!(!cluster.nodes[1].is_only_read(PageNumber(1)));
    cluster.write(0, 1, 11);
    cluster.write(0, 2 * PAGE_WORDS, 12);
    assert!(inspect(&mut cluster).is_empty());
    assert_eq!(cluster.call(0, Call::Release), Ok(0));
    let found = inspect(&mut cluster);
    let expected = [(PageNumber(0), Rank(0)), (PageNumber(2), Rank(0))];
    assert!(found.into_iter().eq(expected));
    // The inspection applies nothing: a stale copy is still readable.
    assert_eq!(cluster.access(1, 0), Access::Read);
    assert_eq!(cluster.read(1, 1), 10);
    assert_eq!(cluster.call(1, Call::Acquire), Ok(0));
    assert!(inspect(&mut cluster).is_empty());
    assert_eq!(cluster.read(1, 1), 11);
}
