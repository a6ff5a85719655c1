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
