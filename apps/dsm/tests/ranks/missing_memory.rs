//! Memory of the region that the program takes away while it runs: the rank names the addresses and
//! the remedy, and all ranks end.

use dsm::Method;

use crate::shared::{Ended, Ranks};

/// Runs the example on two ranks. Rank `loser` loses pages, and must name the first of them and the
/// `remedy`. The other rank must name rank `loser`.
fn assert_named(method: &str, arguments: [&str; 3], loser: usize, remedy: &str) {
    let ranks = arguments.iter().fold(Ranks::of("missing", 2), |ranks, one| ranks.argument(one));
    let ended = ranks.method(method).run();
    let (own, other) = (&ended[loser], &ended[1 - loser]);
    let printed = own.printed();
    let addresses = printed.lines().next().unwrap_or_default();
    if addresses.starts_with("skipped:") {
        println!("{addresses}");
        return;
    }
    let name = format!("rank {loser} (process ");
    let ends = format!("rank {loser} ends: {name}");
    let parts = [ends.as_str(), " cannot use its memory: ", addresses, remedy];
    assert_ends_with(own, &parts, &arguments);
    let ends = format!("rank {} ends: {name}", 1 - loser);
    assert_ends_with(other, &[&ends], &arguments);
}

fn assert_ends_with(ended: &Ended, parts: &[&str], arguments: &[&str]) {
    let errors = ended.errors();
    assert_eq!(ended.status().code(), Some(70), "{arguments:?}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{arguments:?}: `{part}` is missing: {errors}");
    }
}

const OWN_MAPPINGS: &str = "concern only the program's own mappings";
const THESE_ADDRESSES: &str = "concern these addresses";

#[test]
fn frames_that_a_peer_reads_at_their_home_are_named_there() {
    for change in ["unmapped", "protected"] {
        assert_named("", ["frames", change, "peer-read"], 0, OWN_MAPPINGS);
    }
}

#[test]
fn frames_that_the_rank_itself_needs_are_named() {
    for change in ["unmapped", "protected"] {
        assert_named("", ["frames", change, "atomic"], 0, OWN_MAPPINGS);
        assert_named("", ["frames", change, "release"], 1, OWN_MAPPINGS);
    }
}

/// Pages behind the end of their file are missing in the same way as those for which the host has no
/// memory.
#[test]
fn pages_that_the_host_does_not_give_are_named() {
    assert_named("", ["frames", "truncated", "atomic"], 0, "the host has no page for the memory");
}

#[test]
fn addresses_of_the_region_that_the_program_unmaps_are_named() {
    for method in ["", "mprotect"] {
        assert_named(method, ["view", "unmapped", "own-read"], 0, THESE_ADDRESSES);
    }
}

/// Without an error, the access would fault for ever.
#[test]
fn addresses_of_the_region_that_the_program_protects_are_named() {
    let methods = [(Method::Asynchronous, "asynchronous"), (Method::Synchronous, "synchronous")];
    for (method, name) in methods {
        match method.check() {
            Ok(()) => assert_named(name, ["view", "protected", "own-read"], 0, THESE_ADDRESSES),
            Err(error) => println!("skipped: {error}"),
        }
    }
}
