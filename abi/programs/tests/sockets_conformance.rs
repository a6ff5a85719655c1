//! With the library for sockets, programs observe the same behaviour of a connection as over plain
//! TCP. The behaviour does not depend on the time at which the connection moves.

use programs::{Network, Subject};

/// Compares test cases of one program over TCP and with the library. With the library, their
/// connections must move.
fn same(program: &str, names: &[&str]) {
    subjects(program, names, true);
}

/// Compares like [`same`], but the connections of these test cases need not move.
fn same_however(program: &str, names: &[&str]) {
    subjects(program, names, false);
}

fn subjects(program: &str, names: &[&str], moves: bool) {
    for name in names {
        Subject { program, name, moves }.compare(&Network::Loopback);
    }
}

#[test]
fn poll_and_select() {
    same("events", &["poll", "ppoll", "select", "pselect", "limits"]);
}

#[test]
fn epoll() {
    same("events", &["level", "edge", "one_shot", "edge_one_shot"]);
}

#[test]
fn a_descriptor_reported_readable_is_readable() {
    same_however("events", &["answers"]);
}

#[test]
fn unusual_uses_of_epoll() {
    same("events", &["rdhup", "nested", "duplicated"]);
}

#[test]
fn waiting_for_room() {
    same("events", &["room"]);
}

#[test]
fn ways_to_read() {
    same("reading", &["peek", "wait_all", "limits", "counted", "scattered", "nonsense"]);
}

#[test]
fn ways_to_write() {
    same("writing", &["small", "corked", "held", "gathered"]);
}

#[test]
fn files_and_pipes() {
    same("writing", &["files", "files_at_once"]);
    same_however("writing", &["spliced"]);
}

#[test]
fn writing_to_peers_that_do_not_read() {
    same("writing", &["broken", "limits"]);
}

#[test]
fn orderly_ends() {
    same("closing", &["half_closed", "closed_at_once", "exits", "lingers", "crossed", "orders"]);
}

#[test]
fn resets() {
    same("closing", &["reset", "unread"]);
}

#[test]
fn shutting_reading() {
    same("closing", &["shut_reading"]);
}

#[test]
fn duplicates() {
    same("descriptors", &["dup", "dup2", "fcntl", "replaced"]);
}

#[test]
fn passed_descriptors() {
    same_however("descriptors", &["passed", "passed_to_self"]);
}

#[test]
fn standard_streams() {
    same("descriptors", &["lines"]);
}

#[test]
fn blocking_is_changed_in_flight() {
    same("descriptors", &["changed"]);
}

#[test]
fn all_descriptors_are_closed() {
    same_however("descriptors", &["closes_all", "closes_range"]);
}

#[test]
fn all_descriptors_are_taken() {
    same_however("descriptors", &["exhausted"]);
}

#[test]
fn forks() {
    same("processes", &["before_accept", "inherited"]);
    same_however("processes", &["after_accept"]);
}

#[test]
fn forks_in_mid_stream() {
    same("processes", &["in_mid_stream", "in_turn"]);
}

#[test]
fn other_programs_inherit() {
    same("processes", &["executed", "executed_by_vfork", "replaced", "closed_on_exec"]);
}

#[test]
fn threads() {
    same("threads", &["both_ways", "words", "handed_on"]);
}

#[test]
fn ended_by_another_thread() {
    same("threads", &["shut_elsewhere", "closed_as_java_does"]);
}

#[test]
fn closed_by_another_thread() {
    same_however("threads", &["closed_elsewhere"]);
}

/// In each test case, connections begin to move during the first calls.
#[test]
fn connections_that_move_when_it_pays() {
    for (program, names) in [
        ("events", &["poll", "edge"][..]),
        ("reading", &["wait_all"]),
        ("writing", &["corked", "files"]),
        ("closing", &["half_closed"]),
        ("descriptors", &["replaced"]),
        ("processes", &["in_mid_stream"]),
        ("threads", &["both_ways", "words"]),
    ] {
        for name in names {
            Subject { program, name, moves: false }.compare_by_default(&Network::Loopback);
        }
    }
}

#[test]
fn names() {
    same("connecting", &["names", "mapped"]);
    // The test case sends the port of a second connection over the first connection. The second
    // connection need not move, because its peer may be unreachable by UDP.
    same_however("connecting", &["six"]);
}

#[test]
fn ways_to_connect() {
    same("connecting", &["not_blocking"]);
    same_however("connecting", &["refused"]);
}

#[test]
fn data_out_of_band() {
    same_however("connecting", &["urgent"]);
}

#[test]
fn many_connections() {
    same_however("connecting", &["many", "short_ones"]);
}
