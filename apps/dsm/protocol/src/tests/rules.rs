//! The rules of `docs/dsm-protocol.md`, on a few nodes.

use super::cluster::Cluster;
use crate::call::{AtomicOperation, Call};
use crate::clock::Clock;
use crate::config::{Coherence, Config};
use crate::diff::{PAGE_BYTES, PAGE_WORDS};
use crate::error::{CallError, Failure, Fault, Misuse};
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::layout::{Layout, log_entry};
use crate::memory::Access;
use crate::message::{Message, Question};
use crate::node::Node;
use crate::transport::{Arrival, Reason};

const PAGE: PageNumber = PageNumber(0);

fn config(nodes: u8) -> Config {
    Config { history: false, migrate_after: 0, ..Config::new(Rank(0), nodes, 4) }
}

fn cluster(nodes: u8) -> Cluster {
    let mut cluster = Cluster::new(config(nodes));
    cluster.settle();
    cluster
}

fn protocol(rank: u8, fault: Fault) -> Failure {
    Failure::Protocol { rank: Rank(rank), fault }
}

fn message(cluster: &mut Cluster, from: u8, to: u8, message: &Message) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    cluster.arrive(to, Arrival::Received { from: Rank(from) }, bytes);
}

//= dsm-protocol.md: home.4
#[test]
fn a_node_claims_pages_and_leaves_those_that_have_a_home() {
    for notes_writes in [false, true] {
        let mut cluster = cluster(2);
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.write(0, 2 * PAGE_WORDS, 7);
        let claim = Call::Claim { first: PAGE, count: 4, step: 2 };
        assert_eq!(cluster.call(1, claim), Ok(0));
        let home = |page: u32| cluster.nodes[1].home_of(PageNumber(page));
        assert_eq!([0, 1, 2, 3].map(home), [Some(Rank(1)), None, Some(Rank(0)), None]);
        // The claim of a page is no access: the copy of the other node's page is none.
        assert_eq!(cluster.access(1, 2), Access::None);
        assert_eq!(cluster.call(1, claim), Ok(0));
        cluster.barrier();
        cluster.write(0, 1, 8);
        cluster.barrier();
        assert_eq!((cluster.read(1, 1), cluster.read(1, 2 * PAGE_WORDS)), (8, 7));
        let outside = Call::Claim { first: PageNumber(3), count: 2, step: 1 };
        assert!(matches!(cluster.start(1, outside), Err(Misuse::NoPage(_))));
    }
}

//= dsm-protocol.md: fetch.1
//= dsm-protocol.md: fetch.2
#[test]
fn a_page_that_no_node_has_written_reads_as_zeros_and_has_no_home() {
    let mut cluster = cluster(3);
    assert_eq!(cluster.read(1, 5), 0);
    assert_eq!(cluster.access(1, 0), Access::Read);
    assert_eq!(cluster.nodes[1].home_of(PAGE), None);
    assert_eq!(cluster.nodes[1].counters().fetches, 0);
}

//= dsm-protocol.md: home.1
//= dsm-protocol.md: home.2
//= dsm-protocol.md: home.3
#[test]
fn of_two_nodes_that_claim_a_page_one_becomes_its_home() {
    let mut cluster = cluster(3);
    for rank in [1, 2] {
        cluster.start(rank, Call::WriteFault(PAGE)).unwrap();
    }
    cluster.settle();
    assert_eq!((cluster.take(1), cluster.take(2)), (Some(Ok(0)), Some(Ok(0))));
    let home = cluster.nodes[1].home_of(PAGE).unwrap();
    assert_eq!(cluster.nodes[2].home_of(PAGE), Some(home));
    let (directory, address) = cluster.nodes[0].layout().directory(PAGE);
    assert_eq!(cluster.load(directory.0, address), u64::from(home.0) + 1);
    let fetches = |rank: u8| cluster.nodes[usize::from(rank)].counters().fetches;
    assert_eq!((fetches(home.0), fetches(3 - home.0)), (0, 1));
}

//= dsm-protocol.md: fetch.6
#[test]
fn a_read_fault_learns_the_homes_of_the_pages_around_it() {
    for notes_writes in [false, true] {
        let mut cluster = Cluster::new(Config { pages: 11, ..config(2) });
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.settle();
        for page in [2, 3, 4, 8] {
            cluster.write(0, page * PAGE_WORDS, page as u32);
        }
        cluster.barrier();
        assert_eq!(cluster.read(1, 2 * PAGE_WORDS), 2);
        // The node has the entries of pages with odd numbers itself.
        let home = |page: u32| cluster.nodes[1].home_of(PageNumber(page));
        let homes = [0, 2, 3, 4, 6, 8, 10].map(home);
        let first = Some(Rank(0));
        assert_eq!(homes, [None, first, None, first, None, first, None]);
        assert_eq!(cluster.read(1, 8 * PAGE_WORDS), 8);
        cluster.write(0, 8 * PAGE_WORDS, 9);
        cluster.write(1, 6 * PAGE_WORDS, 6);
        cluster.barrier();
        let found = [4, 6, 8, 10].map(|page| cluster.read(1, page * PAGE_WORDS));
        assert_eq!(found, [4, 6, 9, 0]);
    }
}

//= dsm-protocol.md: fetch.6
#[test]
fn reads_from_the_last_page_to_the_first_look_up_few_homes() {
    for notes_writes in [false, true] {
        let mut cluster = Cluster::new(Config { pages: 300, ..config(2) });
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.settle();
        for page in 0..300 {
            cluster.write(0, page * PAGE_WORDS, page as u32);
        }
        cluster.barrier();
        let before = cluster.network.posted_reads;
        for page in (0..300).rev() {
            assert_eq!(cluster.read(1, page * PAGE_WORDS), page as u32);
        }
        // The node has half of the entries itself. The others come in three blocks, of which each
        // first one is also looked up. On a node that notes writes, a look-up is no read but a claim.
        let lookups = if notes_writes { 0 } else { 150 + 3 };
        assert_eq!(cluster.network.posted_reads - before, 300 + 3 + lookups);
    }
}

//= dsm-protocol.md: fetch.7
#[test]
fn consecutive_pages_of_one_home_are_announced_and_fetched_together() {
    for notes_writes in [false, true] {
        let mut cluster = Cluster::new(Config { pages: 200, ..config(3) });
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.settle();
        for page in 0..200 {
            // Page 70 has another home, and page 90 none.
            let home = if page == 70 { 2 } else { 0 };
            if page != 90 {
                cluster.write(home, page * PAGE_WORDS, page as u32);
            }
        }
        cluster.barrier();
        let before = cluster.network.posted_reads;
        assert_eq!(cluster.call(1, Call::Prefetch { first: PageNumber(10), count: 150 }), Ok(0));
        // Three reads of directory entries, and the runs 10, 32, 64, 70, 71, 91, 96 and 128.
        assert_eq!(cluster.network.posted_reads - before, 11);
        let counters = cluster.nodes[1].counters();
        assert_eq!((counters.faults, counters.fetches), (0, 149));
        for page in (10..160).filter(|page| *page != 90) {
            assert_eq!(cluster.access(1, page), Access::Read, "page {page}");
            assert_eq!(cluster.read(1, page as usize * PAGE_WORDS), page);
        }
        // The homes know all readers.
        cluster.barrier();
        for page in [10, 63, 64, 159] {
            cluster.write(0, page * PAGE_WORDS, 1000);
        }
        cluster.write(2, 70 * PAGE_WORDS, 1000);
        cluster.barrier();
        let found = [10, 63, 64, 159, 70, 11].map(|page| cluster.read(1, page * PAGE_WORDS));
        assert_eq!(found, [1000, 1000, 1000, 1000, 1000, 11]);
    }
}

//= dsm-protocol.md: fetch.4
//= dsm-protocol.md: fetch.7
#[test]
fn of_pages_that_are_fetched_together_only_those_that_a_notice_overtakes_are_fetched_again() {
    let mut cluster = Cluster::new(Config { threads: 2, ..config(2) });
    cluster.settle();
    for round in 0..30 {
        let value = |page: usize| 10 * round + page as u32;
        for page in 0..4 {
            cluster.write(0, page * PAGE_WORDS, value(page));
        }
        cluster.call(0, Call::Release).unwrap();
        cluster.call(1, Call::Acquire).unwrap();
        cluster.write(0, 2 * PAGE_WORDS, value(7));
        cluster.call(0, Call::Release).unwrap();
        // The notice of page 2 may be applied while the pages are in flight.
        let before = cluster.nodes[1].counters();
        cluster.start_of(1, 1, Call::Prefetch { first: PAGE, count: 4 }).unwrap();
        cluster.start(1, Call::Acquire).unwrap();
        cluster.settle();
        assert_eq!(cluster.take(1), Some(Ok(0)));
        assert_eq!(cluster.nodes[1].take(ThreadNumber(1)), Some(Ok(0)));
        let now = cluster.nodes[1].counters();
        let again = now.stale_fetches - before.stale_fetches;
        assert_eq!(now.fetches - before.fetches, 4 + again);
        let found = [0, 1, 2, 3].map(|page| cluster.read(1, page * PAGE_WORDS));
        assert_eq!(found, [value(0), value(1), value(7), value(3)]);
    }
    assert!(cluster.nodes[1].counters().stale_fetches > 0);
}

//= dsm-protocol.md: fetch.9
#[test]
fn of_a_long_range_few_pages_are_in_flight_and_those_that_a_thread_waits_for_come_first() {
    for notes_writes in [false, true] {
        let config = Config { pages: 1000, threads: 2, pages_in_flight: 128, ..config(2) };
        let mut cluster = Cluster::new(config);
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.settle();
        for page in 0..1000 {
            cluster.write(0, page * PAGE_WORDS, page as u32);
        }
        cluster.call(0, Call::Release).unwrap();
        cluster.call(1, Call::Acquire).unwrap();
        cluster.start_of(1, 1, Call::Prefetch { first: PageNumber(0), count: 1000 }).unwrap();
        assert_eq!(cluster.nodes[1].take(ThreadNumber(1)), Some(Ok(0)));
        let is_homeless =
            |node: &Node| (0..1000).any(|page| node.home_of(PageNumber(page)).is_none());
        while is_homeless(&cluster.nodes[1]) {
            cluster.step();
        }
        cluster.start(1, Call::ReadFault(PageNumber(970))).unwrap();
        let mut result = None;
        while result.is_none() {
            cluster.step();
            result = cluster.take(1);
        }
        assert_eq!(result, Some(Ok(0)));
        assert_eq!(cluster.access(1, 970), Access::Read);
        let present = |cluster: &Cluster| {
            (0..1000).filter(|page| cluster.access(1, *page) == Access::Read).count()
        };
        assert!(present(&cluster) < 600, "{} pages are present", present(&cluster));
        cluster.settle();
        assert_eq!(present(&cluster), 1000);
        // The thread waits for a run of 32 pages, which exceeds the limit.
        assert_eq!(cluster.network.read_bytes, (0, (128 + 32) * PAGE_BYTES as u32));
        let found = [0, 500, 970, 999].map(|page| cluster.read(1, page * PAGE_WORDS));
        assert_eq!(found, [0, 500, 970, 999]);
    }
}

//= dsm-protocol.md: fetch.8
#[test]
fn a_thread_that_reads_page_after_page_faults_on_few_of_them() {
    for notes_writes in [false, true] {
        let mut cluster = Cluster::new(Config { pages: 600, ..config(2) });
        cluster.network.memories[1].notes_writes = notes_writes;
        cluster.settle();
        for page in 0..600 {
            cluster.write(0, page * PAGE_WORDS, page as u32);
        }
        cluster.barrier();
        for page in 0..500 {
            assert_eq!(cluster.read(1, page * PAGE_WORDS), page as u32);
            let fetches = cluster.nodes[1].counters().fetches;
            assert!(fetches <= 2 * (page as u64 + 1), "{fetches} fetches for {page} pages");
        }
        let counters = cluster.nodes[1].counters();
        assert_eq!((counters.faults, counters.fetches), (10, 576));
    }
}

//= dsm-protocol.md: fetch.8
#[test]
fn a_thread_that_reads_pages_with_gaps_fetches_no_others() {
    let mut cluster = Cluster::new(Config { pages: 64, ..config(2) });
    cluster.settle();
    for page in 0..64 {
        cluster.write(0, page * PAGE_WORDS, page as u32);
    }
    cluster.barrier();
    for page in (0..64).step_by(2) {
        assert_eq!(cluster.read(1, page * PAGE_WORDS), page as u32);
    }
    assert_eq!(cluster.nodes[1].counters().fetches, 32);
}

#[test]
fn a_directory_entry_that_names_no_node_ends_the_node_that_reads_it() {
    for call in [Call::ReadFault(PAGE), Call::Prefetch { first: PAGE, count: 4 }] {
        let mut cluster = cluster(2);
        let (directory, address) = cluster.nodes[0].layout().directory(PAGE);
        cluster.store(directory.0, address, 9);
        let failure = protocol(directory.0, Fault::Directory { page: PAGE, entry: 9 });
        cluster.start(1, call).unwrap();
        cluster.settle();
        assert_eq!(cluster.nodes[1].failure(), Some(failure));
    }
}

#[test]
fn a_directory_entry_that_names_a_node_which_has_not_claimed_the_page_ends_this_node() {
    let prefetch = Call::Prefetch { first: PAGE, count: 4 };
    for call in [Call::ReadFault(PAGE), Call::WriteFault(PAGE), prefetch] {
        let mut cluster = cluster(2);
        let (directory, address) = cluster.nodes[0].layout().directory(PAGE);
        assert_eq!(directory, Rank(0));
        cluster.store(0, address, 2);
        let failure = protocol(0, Fault::Directory { page: PAGE, entry: 2 });
        cluster.start(1, call).unwrap();
        cluster.settle();
        assert_eq!(cluster.nodes[1].failure(), Some(failure));
    }
}

//= dsm-protocol.md: acquire.1
//= dsm-protocol.md: acquire.2
//= dsm-protocol.md: acquire.3
//= dsm-protocol.md: barrier.1
#[test]
fn a_barrier_invalidates_the_pages_that_other_nodes_have_written_and_no_others() {
    let mut cluster = cluster(3);
    cluster.write(0, 1, 10);
    cluster.write(1, PAGE_WORDS + 1, 20);
    cluster.barrier();
    assert_eq!(cluster.read(2, 1), 10);
    assert_eq!(cluster.read(2, PAGE_WORDS + 1), 20);
    // The homes learn only now that the pages are shared.
    cluster.barrier();
    assert_eq!((cluster.read(2, 1), cluster.read(2, PAGE_WORDS + 1)), (10, 20));
    cluster.write(0, 1, 11);
    cluster.barrier();
    assert_eq!(cluster.access(2, 0), Access::None);
    assert_eq!(cluster.access(2, 1), Access::Read);
    assert_eq!(cluster.read(2, 1), 11);
}

//= dsm-protocol.md: diff.1
//= dsm-protocol.md: interval.1
//= dsm-protocol.md: interval.2
#[test]
fn two_nodes_change_different_words_of_a_page() {
    let mut cluster = cluster(3);
    cluster.write(0, 1, 10);
    cluster.barrier();
    for word in [2, 3, 700] {
        cluster.write(1, word, 20);
        cluster.write(2, word + 100, 30);
    }
    cluster.barrier();
    for rank in 0..3 {
        for (word, value) in [(1, 10), (2, 20), (3, 20), (700, 20), (102, 30), (800, 30)] {
            assert_eq!(cluster.read(rank, word), value, "rank {rank} word {word}");
        }
    }
}

#[test]
fn a_page_whose_words_all_but_one_change_keeps_the_word_of_another_node() {
    let mut cluster = cluster(2);
    cluster.write(0, 0, 1);
    cluster.barrier();
    for word in 1..PAGE_WORDS {
        cluster.write(1, word, 2);
    }
    cluster.write(0, 0, 3);
    cluster.barrier();
    assert_eq!((cluster.read(1, 0), cluster.read(0, 1)), (3, 2));
}

//= dsm-protocol.md: share.1
//= dsm-protocol.md: share.2
#[test]
fn writes_to_a_page_that_no_other_node_has_read_neither_fault_nor_need_notices() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    cluster.barrier();
    let before = cluster.nodes[0].counters();
    for value in 0..5 {
        assert_eq!(cluster.access(0, 0), Access::Write);
        cluster.write(0, 1, value);
        cluster.barrier();
    }
    assert_eq!(cluster.nodes[0].counters().notices, before.notices);
    assert_eq!(cluster.read(1, 1), 4);
    cluster.write(0, 1, 9);
    cluster.barrier();
    assert_eq!(cluster.access(0, 0), Access::Read);
    assert_eq!(cluster.read(1, 1), 9);
}

//= dsm-protocol.md: fetch.3
#[test]
fn a_fetch_returns_the_changes_of_this_node_that_were_in_flight() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    cluster.barrier();
    cluster.write(1, 2, 20);
    // The log of rank 0 gets a notice for the page, without a barrier.
    cluster.write(0, 1, 11);
    assert_eq!(cluster.call(0, Call::Release), Ok(0));
    assert_eq!(cluster.call(1, Call::Acquire), Ok(0));
    assert_eq!(cluster.access(1, 0), Access::None);
    assert_eq!((cluster.read(1, 1), cluster.read(1, 2)), (11, 20));
}

#[test]
fn a_log_that_was_overwritten_invalidates_everything() {
    let mut cluster = Cluster::new(Config { log_entries: 2, ..config(2) });
    cluster.write(0, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.read(1, 1), 10);
    for value in 0..5 {
        cluster.write(0, 1, value);
        cluster.write(0, PAGE_WORDS, value);
        assert_eq!(cluster.call(0, Call::Release), Ok(0));
    }
    cluster.barrier();
    assert_eq!(cluster.nodes[1].counters().overruns, 1);
    assert_eq!(cluster.read(1, 1), 4);
}

//= dsm-protocol.md: log.3
#[test]
fn an_interval_without_changes_publishes_nothing() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.load(0, Layout::published()), 1);
    let layout = cluster.nodes[0].layout();
    assert_eq!(cluster.load(0, layout.log_entry(0)), log_entry(0, PAGE));
    // A write of the value that is there changes nothing.
    cluster.read(1, 1);
    cluster.write(1, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.load(1, Layout::published()), 0);
}

#[test]
fn a_log_entry_that_no_node_writes_ends_the_node_that_reads_it() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    assert_eq!(cluster.call(0, Call::Release), Ok(0));
    let address = cluster.nodes[0].layout().log_entry(0);
    let entry = log_entry(0, PageNumber(4));
    cluster.store(0, address, entry);
    let failure = protocol(0, Fault::LogEntry { position: 0, entry });
    assert_eq!(cluster.call(1, Call::Acquire), Err(failure.into()));
}

//= dsm-protocol.md: lock.1
//= dsm-protocol.md: lock.4
#[test]
fn a_lock_brings_what_was_written_under_it() {
    let mut cluster = cluster(4);
    for round in 0..3 {
        for rank in 0..4 {
            assert_eq!(cluster.call(rank, Call::Lock(64)), Ok(0));
            let value = cluster.read(rank, 3);
            assert_eq!(value, round * 4 + u32::from(rank));
            cluster.write(rank, 3, value + 1);
            assert_eq!(cluster.call(rank, Call::Unlock(64)), Ok(0));
        }
    }
    let handovers: u64 = cluster.nodes.iter().map(|node| node.counters().handovers).sum();
    assert_eq!(handovers, 11);
}

#[test]
fn locks_that_are_not_held_are_not_unlocked_and_held_ones_not_locked() {
    let mut cluster = cluster(2);
    assert_eq!(cluster.call(0, Call::Unlock(64)), Err(Misuse::NotHeld(64).into()));
    assert_eq!(cluster.call(0, Call::Lock(64)), Ok(0));
    assert_eq!(cluster.start(0, Call::Lock(64)), Err(Misuse::HeldAlready(64)));
    assert_eq!(cluster.call(0, Call::ReadWriteUnlock(72)), Err(Misuse::NotHeld(72).into()));
    let mut alone = self::cluster(1);
    assert_eq!(alone.start(0, Call::Unlock(64)), Err(Misuse::NotHeld(64)));
}

//= dsm-protocol.md: lock.5
#[test]
fn a_node_that_releases_the_lock_of_another_one_learns_which_holds_it() {
    let calls = [
        (Call::Lock(64), Call::Unlock(64), 64),
        (Call::ReadLock(72), Call::ReadWriteUnlock(72), 72),
        (Call::WriteLock(80), Call::ReadWriteUnlock(80), 80),
        (Call::Lock(88), Call::Wait { condition: 96, lock: 88 }, 88),
    ];
    for (acquire, release, lock) in calls {
        let mut cluster = cluster(3);
        assert_eq!(cluster.call(2, acquire), Ok(0));
        let held = Misuse::HeldElsewhere { lock, rank: Rank(2), thread: 0 };
        assert_eq!(cluster.call(0, release), Err(held.into()));
        // The misuse has changed nothing, and the thread goes on.
        assert_eq!(cluster.call(0, release), Err(held.into()));
        assert!(cluster.nodes.iter().all(|node| node.failure().is_none()));
        if matches!(release, Call::Wait { .. }) {
            continue;
        }
        assert_eq!(cluster.call(2, release), Ok(0));
        assert_eq!(cluster.call(0, release), Err(Misuse::NotHeld(lock).into()));
        assert_eq!(cluster.call(0, acquire), Ok(0));
    }
}

//= dsm-protocol.md: lock.5
#[test]
fn a_thread_that_waits_for_a_lock_does_not_hold_it() {
    let mut cluster = cluster(3);
    assert_eq!(cluster.call(2, Call::WriteLock(72)), Ok(0));
    cluster.start(1, Call::WriteLock(72)).unwrap();
    cluster.settle();
    let held = Misuse::HeldElsewhere { lock: 72, rank: Rank(2), thread: 0 };
    assert_eq!(cluster.call(0, Call::ReadWriteUnlock(72)), Err(held.into()));
}

//= dsm-protocol.md: lock.5
#[test]
fn an_answer_about_a_lock_that_no_thread_waits_for_ends_the_node() {
    let answer = |lock| Message::Holder { lock, thread: ThreadNumber(0), holder: None };
    let mut idle = cluster(3);
    message(&mut idle, 1, 0, &answer(64));
    assert_eq!(idle.nodes[0].failure(), Some(protocol(1, Fault::Answer(64))));
    // A second answer, and one about another lock.
    for lock in [64, 72] {
        let mut cluster = cluster(3);
        // Rank 2 is silent, so the thread still waits for it.
        cluster.network.dead[2] = true;
        cluster.start(0, Call::Unlock(64)).unwrap();
        cluster.settle();
        assert_eq!(cluster.take(0), None);
        message(&mut cluster, 1, 0, &answer(lock));
        assert_eq!(cluster.nodes[0].failure(), Some(protocol(1, Fault::Answer(lock))));
    }
}

#[test]
fn a_thread_that_unlocks_the_lock_of_another_one_learns_which_holds_it() {
    let mut cluster = Cluster::new(Config { threads: 2, ..config(2) });
    cluster.settle();
    let unlocks = [
        (64, Call::Lock(64), Call::Unlock(64)),
        (72, Call::WriteLock(72), Call::ReadWriteUnlock(72)),
    ];
    for (number, lock, unlock) in unlocks {
        cluster.start_of(0, 1, lock).unwrap();
        cluster.settle();
        assert_eq!(cluster.nodes[0].take(ThreadNumber(1)), Some(Ok(0)));
        let held = cluster.start_of(0, 0, unlock);
        assert_eq!(held, Err(Misuse::HeldBy { lock: number, thread: 1 }));
        let held = Misuse::HeldElsewhere { lock: number, rank: Rank(0), thread: 1 };
        assert_eq!(cluster.call(1, unlock), Err(held.into()));
    }
}

//= dsm-protocol.md: condition.1
#[test]
fn a_thread_that_waits_for_a_condition_releases_the_lock_and_misses_no_signal() {
    let mut cluster = cluster(3);
    let (condition, lock) = (72, 64);
    assert_eq!(cluster.call(0, Call::Lock(lock)), Ok(0));
    cluster.start(0, Call::Wait { condition, lock }).unwrap();
    cluster.settle();
    assert_eq!(cluster.take(0), None);
    assert_eq!(cluster.call(1, Call::Lock(lock)), Ok(0));
    cluster.write(1, 3, 7);
    assert_eq!(cluster.call(1, Call::Signal(condition)), Ok(0));
    assert_eq!(cluster.take(0), None);
    assert_eq!(cluster.call(1, Call::Unlock(lock)), Ok(0));
    assert_eq!(cluster.take(0), Some(Ok(0)));
    assert_eq!(cluster.read(0, 3), 7);
}

//= dsm-protocol.md: interval.3
#[test]
fn a_post_brings_what_was_written_before() {
    let mut cluster = cluster(3);
    cluster.start(0, Call::Take(80)).unwrap();
    cluster.settle();
    assert_eq!(cluster.take(0), None);
    cluster.write(1, 3, 7);
    assert_eq!(cluster.call(1, Call::Give { semaphore: 80, count: 1 }), Ok(0));
    assert_eq!(cluster.take(0), Some(Ok(0)));
    assert_eq!(cluster.read(0, 3), 7);
}

#[test]
fn an_address_names_one_kind_of_object() {
    let mut cluster = cluster(2);
    assert_eq!(cluster.call(0, Call::Give { semaphore: 80, count: 1 }), Ok(0));
    assert_eq!(cluster.call(1, Call::Await(80)), Err(Misuse::OtherKind(80).into()));
    assert_eq!(cluster.call(1, Call::Lock(80)), Err(Failure::Misuse(Misuse::OtherKind(80)).into()));
}

#[test]
fn nodes_at_different_barriers_end_with_the_barrier() {
    let mut cluster = cluster(2);
    for (rank, address) in [(0, 8), (1, 16)] {
        cluster.start(rank, Call::Barrier { address, count: 2 }).unwrap();
    }
    cluster.settle();
    let failures: Vec<_> = cluster.nodes.iter().filter_map(Node::failure).collect();
    assert_eq!(failures.len(), 2);
    let found = failures.iter().any(|failure| {
        matches!(failure, Failure::Protocol { fault: Fault::Barrier { count: 2, .. }, .. })
    });
    assert!(found, "{failures:?}");
}

//= dsm-protocol.md: barrier.2
//= dsm-protocol.md: barrier.3
#[test]
fn a_barrier_of_five_nodes_has_three_rounds() {
    let mut cluster = cluster(5);
    cluster.barrier();
    for round in 0..6 {
        let slot = Layout::barrier_slot(round, 0);
        let address_of_barrier = cluster.load(0, slot + 8);
        assert_eq!(address_of_barrier, if round < 3 { 8 } else { 0 });
    }
}

//= dsm-protocol.md: barrier.4
#[test]
fn a_notification_of_the_wrong_node_or_round_ends_the_node() {
    for notification in [0xb100_0000, 0xb101_0000, 0xb106_0000, 0xb100_0005, 0x0100_0000] {
        let mut cluster = cluster(4);
        let arrival = Arrival::Notified { from: Rank(1), notification };
        cluster.arrive(0, arrival, Vec::new());
        let failure = protocol(1, Fault::Notification(notification));
        assert_eq!(cluster.nodes[0].failure(), Some(failure));
    }
}

//= dsm-protocol.md: move.2
//= dsm-protocol.md: move.3
//= dsm-protocol.md: move.4
//= dsm-protocol.md: move.5
#[test]
fn a_home_moves_to_the_node_that_the_lowest_rank_asks_for() {
    let mut cluster = cluster(3);
    cluster.write(0, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.call(2, Call::Migrate { page: PAGE, to: Rank(2) }), Ok(0));
    assert_eq!(cluster.call(1, Call::Migrate { page: PAGE, to: Rank(1) }), Ok(0));
    cluster.barrier();
    for rank in 0..3 {
        assert_eq!(cluster.nodes[rank].home_of(PAGE), Some(Rank(1)));
    }
    let (directory, address) = cluster.nodes[0].layout().directory(PAGE);
    assert_eq!(cluster.load(directory.0, address), 2);
    cluster.write(0, 2, 20);
    cluster.write(1, 3, 30);
    cluster.barrier();
    for rank in 0..3 {
        let words = [1, 2, 3].map(|word| cluster.read(rank, word));
        assert_eq!(words, [10, 20, 30], "rank {rank}");
    }
}

#[test]
fn a_home_moves_to_the_node_that_alone_writes_a_page() {
    let mut cluster = Cluster::new(Config { migrate_after: 3, ..config(2) });
    cluster.write(0, 1, 10);
    cluster.barrier();
    // The first of these barriers has a notice of the home, which cannot exclude that it wrote.
    for value in 0..5 {
        assert_ne!(cluster.nodes[1].home_of(PAGE), Some(Rank(1)));
        cluster.write(1, 1, 20 + value);
        cluster.barrier();
    }
    for rank in 0..2 {
        assert_eq!(cluster.nodes[rank].home_of(PAGE), Some(Rank(1)));
    }
    assert_eq!(cluster.nodes[1].counters().moves, 1);
}

#[test]
fn a_move_of_a_page_that_the_region_does_not_have_ends_the_node() {
    let mut cluster = cluster(2);
    assert_eq!(cluster.call(0, Call::Migrate { page: PAGE, to: Rank(1) }), Ok(0));
    cluster.start(0, Call::Barrier { address: 8, count: 2 }).unwrap();
    cluster.settle();
    cluster.store(0, Layout::moves(0) + 8, 99);
    assert!(cluster.call(1, Call::Barrier { address: 8, count: 2 }).is_err());
    assert!(cluster.nodes.iter().any(|node| node.failure() == Some(protocol(0, Fault::Move(99)))));
}

//= dsm-protocol.md: pin.1
#[test]
fn a_pinned_page_stays_accessible_while_notices_for_it_arrive() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    cluster.barrier();
    let pin = Call::Pin { first: PAGE, count: 2, is_written: true };
    assert_eq!(cluster.call(1, pin), Ok(0));
    cluster.write(1, 2, 20);
    cluster.write(0, 1, 11);
    cluster.barrier();
    assert_eq!(cluster.access(1, 0), Access::Write);
    assert_eq!((cluster.read(1, 1), cluster.read(1, 2), cluster.read(0, 2)), (11, 20, 20));
    let unpin = Call::Unpin { first: PAGE, count: 2 };
    assert_eq!(cluster.call(1, unpin), Ok(0));
    assert_eq!(cluster.start(1, unpin), Err(Misuse::NotPinned(PAGE)));
}

//= dsm-protocol.md: atomic.1
//= dsm-protocol.md: atomic.2
#[test]
fn atomics_return_the_former_value_and_are_read_after_a_barrier() {
    let mut cluster = cluster(2);
    let mut atomic = |rank, operation| {
        cluster.call(rank, Call::Atomic { address: 16, operation }).expect("the atomic is valid")
    };
    assert_eq!(atomic(0, AtomicOperation::FetchAdd(5)), 0);
    assert_eq!(atomic(1, AtomicOperation::Swap(7)), 5);
    let swap = |expected| AtomicOperation::CompareSwap { expected, desired: 9 };
    assert_eq!(atomic(0, swap(5)), 7);
    assert_eq!(atomic(1, swap(7)), 7);
    cluster.barrier();
    assert_eq!((cluster.read(0, 4), cluster.read(1, 4)), (9, 9));
    let operation = AtomicOperation::FetchAdd(1);
    let unaligned = Call::Atomic { address: 12, operation };
    assert_eq!(cluster.start(0, unaligned), Err(Misuse::Unaligned(12)));
    let outside = Call::Atomic { address: 1 << 60, operation };
    assert!(matches!(cluster.start(0, outside), Err(Misuse::NoPage(_))));
}

#[test]
fn a_prefetched_page_does_not_fault() {
    let mut cluster = cluster(2);
    cluster.write(0, 1, 10);
    cluster.write(0, PAGE_WORDS + 1, 20);
    cluster.barrier();
    assert_eq!(cluster.call(1, Call::Prefetch { first: PAGE, count: 2 }), Ok(0));
    assert_eq!((cluster.access(1, 0), cluster.access(1, 1)), (Access::Read, Access::Read));
    assert_eq!((cluster.read(1, 1), cluster.read(1, PAGE_WORDS + 1)), (10, 20));
    let outside = Call::Prefetch { first: PageNumber(3), count: u32::MAX };
    assert!(matches!(cluster.start(1, outside), Err(Misuse::NoPage(_))));
}

#[test]
fn self_invalidation_drops_pages_that_no_node_has_written() {
    let mut cluster = Cluster::new(Config { coherence: Coherence::SelfInvalidation, ..config(2) });
    cluster.write(0, 1, 10);
    cluster.barrier();
    assert_eq!(cluster.read(1, 1), 10);
    cluster.barrier();
    assert_eq!((cluster.access(1, 0), cluster.access(0, 0)), (Access::None, Access::Read));
}

#[test]
fn a_fault_fetches_the_group_of_the_page() {
    let mut cluster = Cluster::new(Config { fetch_pages: 2, ..config(2) });
    for page in 0..4 {
        cluster.write(0, page * PAGE_WORDS, 1);
    }
    cluster.barrier();
    assert_eq!(cluster.read(1, 2 * PAGE_WORDS), 1);
    let accesses = [0, 1, 2, 3].map(|page| cluster.access(1, page));
    assert_eq!(accesses, [Access::None, Access::None, Access::Read, Access::Read]);
}

//= dsm-protocol.md: control.2
#[test]
fn nodes_with_other_settings_end_each_other() {
    let mut cluster = Cluster::new(config(2));
    cluster.store(1, 8, 7);
    cluster.settle();
    assert_eq!(cluster.nodes[0].failure(), Some(protocol(1, Fault::Header(7))));
    let mut cluster = Cluster::new(config(2));
    cluster.store(1, 0, 7);
    cluster.settle();
    assert_eq!(cluster.nodes[0].failure(), Some(protocol(1, Fault::Header(7))));
}

//= dsm-protocol.md: end.1
#[test]
fn messages_that_do_not_fit_end_the_node_with_the_sender() {
    let clock = Clock::zero(3);
    let mut ahead = clock.clone();
    ahead.raise(Rank(0), 9);
    let thread = ThreadNumber(7);
    let (lock, object) = (64, 64);
    let question = Question::Unexclude;
    let messages = [
        (Message::LockGrant { lock, clock: clock.clone(), notices: vec![] }, Fault::Lock(lock)),
        (Message::LockForward { lock, to: Rank(2), known: 0 }, Fault::Lock(lock)),
        (Message::Answer { object, thread, clock: clock.clone() }, Fault::Answer(object)),
        (Message::Ask { object, thread, question, clock: clock.clone() }, Fault::Release(object)),
    ];
    for (wrong, fault) in messages {
        let mut cluster = cluster(3);
        message(&mut cluster, 1, 0, &wrong);
        assert_eq!(cluster.nodes[0].failure(), Some(protocol(1, fault)), "{wrong:?}");
    }
    let mut cluster = cluster(3);
    cluster.start(0, Call::Lock(lock)).unwrap();
    message(&mut cluster, 1, 0, &Message::LockGrant { lock, clock: ahead, notices: vec![] });
    assert_eq!(cluster.take(0), Some(Err(protocol(1, Fault::Clock).into())));
    let mut cluster = self::cluster(3);
    cluster.start(0, Call::Lock(lock)).unwrap();
    // The region has pages 0 to 3.
    let notices = vec![PageNumber(4)];
    message(&mut cluster, 1, 0, &Message::LockGrant { lock, clock: clock.clone(), notices });
    assert_eq!(cluster.take(0), Some(Err(protocol(1, Fault::Message).into())));
    let mut cluster = self::cluster(3);
    cluster.arrive(0, Arrival::Received { from: Rank(2) }, vec![11; 16]);
    assert_eq!(cluster.nodes[0].failure(), Some(protocol(2, Fault::Message)));
}

//= dsm-protocol.md: end.2
#[test]
fn every_thread_of_every_node_learns_which_node_has_died() {
    let mut cluster = cluster(4);
    for rank in 0..3 {
        cluster.start(rank, Call::Barrier { address: 8, count: 4 }).unwrap();
    }
    cluster.network.dead[3] = true;
    cluster.arrive(1, Arrival::Died { rank: Rank(3), reason: Reason::Silent }, Vec::new());
    let failure = Failure::Died { rank: Rank(3), reason: Reason::Silent };
    for rank in 0..3 {
        assert_eq!(cluster.take(rank), Some(Err(CallError::Failure(failure))));
        assert_eq!(cluster.call(rank, Call::Release), Err(failure.into()));
    }
}

#[test]
fn a_thread_makes_one_call_at_a_time() {
    let mut cluster = cluster(2);
    let now = cluster.network.now;
    cluster.start(0, Call::Take(80)).unwrap();
    cluster.settle();
    assert_eq!(cluster.nodes[0].waits_since(ThreadNumber(0)), Some(now));
    assert_eq!(cluster.nodes[1].waits_since(ThreadNumber(0)), None);
    assert_eq!(cluster.start(0, Call::Release), Err(Misuse::Busy(0)));
    assert_eq!(cluster.start_of(0, 1, Call::Release), Err(Misuse::NoThread(1)));
    let outside = Call::ReadFault(PageNumber(4));
    assert_eq!(cluster.start(1, outside), Err(Misuse::NoPage(PageNumber(4))));
    for count in [0, 3] {
        let barrier = Call::Barrier { address: 8, count };
        assert_eq!(cluster.start(1, barrier), Err(Misuse::Count { count, threads: 2 }));
    }
    let migrate = Call::Migrate { page: PAGE, to: Rank(2) };
    assert_eq!(cluster.start(1, migrate), Err(Misuse::NoRank(Rank(2))));
}

#[test]
fn settings_out_of_range_are_refused() {
    let valid = config(2);
    assert!(valid.is_valid());
    for wrong in [
        Config { nodes: 0, ..valid },
        Config { nodes: 65, ..valid },
        Config { rank: Rank(2), ..valid },
        Config { threads: 0, ..valid },
        Config { pages: (1 << 24) + 1, ..valid },
        Config { log_entries: 3, ..valid },
        Config { fetch_pages: 0, ..valid },
        Config { read_ahead: 0, ..valid },
        Config { pages_in_flight: 0, ..valid },
    ] {
        assert!(!wrong.is_valid(), "{wrong:?}");
    }
}
