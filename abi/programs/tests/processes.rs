//! Programs that fork, exit, are killed, receive signals or unload the library, and many programs
//! at once.

use programs::{Network, Program, Side, build_client};

/// Runs a test client on both networks. All processes of the client run on one side.
fn run(client: &str, arguments: &str) {
    let Some(client) = build_client(client) else { return };
    let client = client.display().to_string();
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let ended = Program::new(&client, arguments).run(&network, Side::Server);
        println!("{}", ended.expect_success().trim_end());
    }
}

#[test]
fn sixty_four_processes_are_all_connected_to_each_other() {
    run("many", "64");
}

#[test]
fn a_child_after_fork_opens_its_own_device() {
    run("process", "fork");
}

#[test]
fn queues_armed_with_pending_completions_raise_events() {
    run("armed", "");
}

#[test]
fn completions_have_their_arrival_times() {
    run("times", "");
}

#[test]
fn acknowledged_events_are_counted_in_public_fields() {
    run("fields", "completions");
    run("fields", "events");
}

#[test]
fn a_message_may_be_as_long_as_the_port_reports() {
    run("fields", "length");
}

#[test]
fn an_event_loop_waits_for_the_exit_after_its_channel_is_destroyed() {
    run("event_loop", "");
}

#[test]
fn a_program_may_unload_the_library() {
    run("process", "unload");
}

#[test]
fn exiting_during_a_transfer_is_reported_to_the_peer() {
    run("process", "exit");
}

#[test]
fn work_posted_right_before_an_exit_without_handlers_arrives() {
    run("last_words", "");
}

#[test]
fn a_process_killed_during_a_transfer_is_detected_within_two_seconds() {
    run("process", "killed");
}

#[test]
fn signals_reach_the_program() {
    run("process", "signals");
}
