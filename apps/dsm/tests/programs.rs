//! Programs on several ranks of this host: objects, threads, races, threads that never come.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use dsm::{MEET, METHOD, Method, RANK, SIZE};

/// The methods, with their names.
const METHODS: [(Method, &str); 3] = [
    (Method::Protection, "mprotect"),
    (Method::Synchronous, "synchronous"),
    (Method::Asynchronous, "asynchronous"),
];

/// Runs an example on `size` ranks. Returns what each rank printed.
fn run(example: &str, arguments: &[&str], size: usize, method: &str) -> Vec<Output> {
    // The port is free again when the socket is dropped, and rank 0 takes it at once.
    let meet = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let program = examples().join(example);
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(arguments);
        command.env(RANK, rank.to_string()).env(SIZE, size.to_string()).env(MEET, &meet);
        command.env(METHOD, method).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the example is built")
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// Runs an example with each method that works here. All ranks must succeed, and rank 0 must print
/// `expected`.
fn succeeds(example: &str, arguments: &[&str], size: usize, expected: &str) {
    for (method, name) in METHODS {
        if let Err(error) = method.check() {
            println!("skipped: {error}");
            continue;
        }
        let outputs = run(example, arguments, size, name);
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.status.success(), "{name}, rank {rank}: {}", errors_of(output));
        }
        let printed = String::from_utf8_lossy(&outputs[0].stdout);
        assert!(printed.contains(expected), "{name}: {printed}");
    }
}

/// Returns what a rank printed on standard error.
fn errors_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the folder of the examples, which are built.
fn examples() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::build("dsm", &["--examples"]).join("examples")).clone()
}

#[test]
fn objects_atomics_and_pins_are_right_with_each_method() {
    succeeds("objects", &[], 3, "the objects of 3 ranks are right");
}

#[test]
fn three_threads_on_each_of_two_ranks_share_memory_with_each_method() {
    succeeds("threads", &[], 2, "6 threads are right");
}
#[test]
fn a_thread_that_panics_ends_all_ranks_although_others_wait_for_it() {
    let outputs = run("threads", &["panic"], 2, "mprotect");
    for (output, expected) in outputs.iter().zip(["has died", "its thread 2 panicked"]) {
        let errors = errors_of(output);
        assert_eq!(output.status.code(), Some(70), "{errors}");
        assert!(errors.contains("rank 1 (process ") && errors.contains(expected), "{errors}");
    }
}

/// Returns what all ranks print on standard error.
fn errors(example: &str, argument: &str, size: usize, method: &str) -> String {
    let outputs = run(example, &[argument], size, method);
    for (rank, output) in outputs.iter().enumerate() {
        let errors = errors_of(output);
        assert!(output.status.success(), "{example} {argument}, rank {rank}: {errors}");
    }
    outputs.iter().map(errors_of).collect()
}

#[test]
fn a_race_is_reported_with_ranks_intervals_address_and_allocation() {
    for method in ["", "mprotect"] {
        let text = errors("race", "", 3, method);
        let address = "both changed the 4 bytes at 0x20000000000c, byte 12 of the allocation at";
        let races: Vec<_> = text.lines().filter(|line| line.contains("race: ")).collect();
        assert!(!races.is_empty(), "{method}: {text}");
        for race in races {
            assert!(race.contains(address) && race.contains("examples/race.rs:"), "{race}");
            assert!(race.contains("interval up to its notice"), "{race}");
        }
    }
}

#[test]
fn a_program_without_races_has_no_report() {
    for method in ["", "mprotect"] {
        assert_eq!(errors("race", "locked", 3, method), "", "{method}");
    }
}

#[test]
fn the_race_detector_refuses_asynchronous_write_protection() {
    if Method::Asynchronous.check().is_err() {
        return;
    }
    for output in run("race", &[""], 1, "asynchronous") {
        assert!(!output.status.success());
    }
}

#[test]
fn a_thread_that_spins_on_plain_memory_is_reported_with_the_page_and_its_writer() {
    for (method, name) in METHODS {
        if method.check().is_err() {
            continue;
        }
        let text = errors("stall", "", 2, name);
        let expected = "It reads the page at 0x200000000000 (allocated at ";
        assert!(text.contains(expected) && text.contains("examples/stall.rs:"), "{name}: {text}");
        assert!(text.contains("which rank 0 has changed"), "{text}");
        assert!(text.contains("rank 0 has waited in a barrier for"), "{text}");
        assert_eq!(text.matches("watchdog: ").count(), 1, "{text}");
    }
}

#[test]
fn a_thread_that_is_late_is_reported_without_a_page_and_one_that_waits_is_not() {
    let text = errors("stall", "busy", 2, "mprotect");
    assert!(text.contains("but thread 0, which is running, has made no call for"), "{text}");
    assert!(
        text.contains("It last faulted on the page at") && !text.contains("It reads"),
        "{text}"
    );
    assert_eq!(errors("stall", "event", 2, "mprotect"), "");
}
