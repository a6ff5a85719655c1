//! Programs on several ranks of this host, as processes: the stencil with each method, and a rank
//! that is killed.

use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use dsm::{MEET, METHOD, RANK, SIZE};

/// Starts the ranks of an example.
fn start(example: &str, size: usize, method: &str) -> Vec<Child> {
    // The port is free again when the socket is dropped, and rank 0 takes it at once.
    let meet = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let program = examples().join(example);
    let rank = |rank: usize| {
        let mut command = Command::new(&program);
        command.env(RANK, rank.to_string()).env(SIZE, size.to_string()).env(MEET, &meet);
        command.env(METHOD, method).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the example is built")
    };
    (0..size).map(rank).collect()
}

/// Returns the folder of the examples, which are built.
fn examples() -> std::path::PathBuf {
    static BUILT: OnceLock<std::path::PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::build("dsm", &["--examples"]).join("examples")).clone()
}

fn finish(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stencil_is_right(method: page_faults::Method, name: &str) {
    if let Err(error) = method.check() {
        println!("skipped: {error}");
        return;
    }
    for size in [2, 4] {
        let outputs = finish(start("stencil", size, name));
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.status.success(), "{size} ranks, rank {rank}: {}", error_text(output));
        }
        let printed = String::from_utf8_lossy(&outputs[0].stdout);
        assert!(printed.contains(&format!("by {size} ranks are right ({method}")), "{printed}");
    }
}

#[test]
fn a_stencil_is_right_with_mprotect() {
    stencil_is_right(page_faults::Method::Protection, "mprotect");
}

#[test]
fn a_stencil_is_right_with_synchronous_write_protection() {
    stencil_is_right(page_faults::Method::Synchronous, "synchronous");
}

#[test]
fn a_stencil_is_right_with_asynchronous_write_protection() {
    stencil_is_right(page_faults::Method::Asynchronous, "asynchronous");
}

#[test]
fn all_ranks_name_the_rank_that_is_killed() {
    // Rank 1 kills itself while the others wait for it in a barrier.
    let outputs = finish(start("killed", 3, "mprotect"));
    assert!(!outputs[1].status.success());
    for rank in [0, 2] {
        let text = error_text(&outputs[rank]);
        assert_eq!(outputs[rank].status.code(), Some(70), "rank {rank}: {text}");
        assert!(text.contains(&format!("rank {rank} ends: rank 1 (process ")), "{text}");
        assert!(text.contains("has died"), "{text}");
    }
}
