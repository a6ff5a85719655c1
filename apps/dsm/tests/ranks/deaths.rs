//! A rank that is killed: all others name it and end.

use std::os::unix::process::ExitStatusExt;

use crate::shared::{Ended, Ranks, finish};

/// Kills rank 1 of three at this place. Prints how long the others lived after that.
fn others_end(place: &str) {
    let ranks = Ranks::of("killed", 3).argument(place).run();
    assert_eq!(ranks[1].status().signal(), Some(9), "{}", ranks[1].errors());
    assert_names_rank_1(0, &ranks[0], "has died: ");
    assert_names_rank_1(2, &ranks[2], "has died: ");
    let last = ranks[0].at.max(ranks[2].at);
    let seconds = last.saturating_duration_since(ranks[1].at).as_secs_f64();
    println!("in {place}: {seconds:.3} s");
    println!("figure: seconds from the death of a rank to the end of all others: {seconds:.3}");
    assert!(seconds < 20.0, "{seconds} s");
}

fn assert_names_rank_1(rank: usize, ended: &Ended, reason: &str) {
    let errors = ended.errors();
    assert_eq!(ended.status().code(), Some(70), "rank {rank}: {errors}");
    assert!(errors.contains(&format!("rank {rank} ends: rank 1 (process ")), "{errors}");
    assert!(errors.contains(" on ") && errors.contains(reason), "{errors}");
}

#[test]
fn a_rank_that_does_not_answer_ends_all() {
    let ranks = Ranks::of("killed", 3).argument("stopped");
    let mut stopped = ranks.command(1).spawn().expect("the example is built");
    let others = finish([0, 2].map(|rank| ranks.command(rank)).into());
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    assert_names_rank_1(0, &others[0], "its host does not answer");
    assert_names_rank_1(2, &others[1], "its host does not answer");
}

#[test]
fn a_rank_killed_in_a_barrier_ends_all() {
    others_end("barrier");
}

#[test]
fn a_rank_killed_while_it_holds_a_lock_ends_all() {
    others_end("holds");
}

#[test]
fn a_rank_killed_while_it_waits_for_a_lock_ends_all() {
    others_end("waits");
}

#[test]
fn a_rank_killed_in_a_release_of_many_changes_ends_all() {
    others_end("release");
}
