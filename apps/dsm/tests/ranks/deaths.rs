//! A rank that is killed: all others name it and end.

use std::os::unix::process::ExitStatusExt;

use crate::shared::Ranks;

/// Kills rank 1 of three at this place. Prints how long the others lived after that.
fn others_end(place: &str) {
    let ranks = Ranks::of("killed", 3).argument(place).run();
    assert_eq!(ranks[1].status().signal(), Some(9), "{}", ranks[1].errors());
    for rank in [0, 2] {
        let errors = ranks[rank].errors();
        assert_eq!(ranks[rank].status().code(), Some(70), "rank {rank}: {errors}");
        assert!(errors.contains(&format!("rank {rank} ends: rank 1 (process ")), "{errors}");
        assert!(errors.contains(" on ") && errors.contains("has died"), "{errors}");
    }
    let last = ranks[0].at.max(ranks[2].at);
    let seconds = last.saturating_duration_since(ranks[1].at).as_secs_f64();
    println!("in {place}: {seconds:.3} s");
    println!("figure: seconds from the death of a rank to the end of all others: {seconds:.3}");
    assert!(seconds < 20.0, "{seconds} s");
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
