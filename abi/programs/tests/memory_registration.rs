//! `memory-registration`: prints one document for each kind of memory and compares all bytes;
//! prints errors for invalid arguments and for memory that it cannot get.

use programs::{Finished, Libraries, Network, Program, Side};
use serde_json::Value;

/// Returns the path of the program. Returns `None` and prints the reason if it was not built.
fn built() -> Option<String> {
    let file = Libraries::built().folder().join("perf/memory-registration");
    if !file.is_file() {
        println!(
            "skipped: memory-registration is not built without the headers of librdmacm (Debian's package librdmacm-dev)"
        );
        return None;
    }
    Some(file.display().to_string())
}

fn run(program: &str, words: &str, network: &Network) -> Finished {
    Program::new(program, words).run(network, Side::Server)
}

const QUANTITIES: [&str; 6] = [
    "register",
    "deregister",
    "register_and_deregister",
    "move",
    "register_and_move",
    "deregister_after_move",
];

fn document(ended: &Finished) -> Value {
    serde_json::from_str(ended.expect_success()).expect(&ended.output)
}

#[test]
fn every_byte_arrives_unchanged_and_every_quantity_is_printed() {
    let Some(program) = built() else { return };
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let words = "--sizes 1,4K,100001,20M --memory fresh,touched,file,shared --threads 1,2 \
            --alive 1,50 --iterations 2 --check --json";
        let ended = run(&program, words, &network);
        let document = document(&ended);
        assert_eq!(document["program"], "memory-registration");
        assert_eq!(document["device"]["name"], "edge0");
        let points = document["points"].as_array().expect("a list of points");
        assert_eq!(points.len(), 4 * 4 * 2 * 2, "{ended}");
        for point in points {
            assert_eq!(
                point["samples"].as_u64(),
                Some(2 * point["threads"].as_u64().expect("a number"))
            );
            for quantity in QUANTITIES {
                for figure in ["mean_us", "deviation_us", "median_us", "p99_us"] {
                    let value = point[quantity][figure].as_f64();
                    assert!(value.is_some_and(|us| us >= 0.0), "{quantity} {figure}: {ended}");
                }
            }
            assert!(point["sum_to_move"]["median"].as_f64() > Some(0.0), "{ended}");
        }
    }
}

#[test]
fn steps_cover_the_pages_up_to_64_kib() {
    let Some(program) = built() else { return };
    let ended = run(&program, "--steps --iterations 1 --json", &Network::Loopback);
    let document = document(&ended);
    let points = document["points"].as_array().expect("a list of points").iter();
    let sizes: Vec<_> = points.filter_map(|point| point["size"].as_u64()).collect();
    assert!(sizes.is_sorted() && sizes.last() == Some(&65_536), "{sizes:?}");
    assert!(sizes.iter().all(|size| size % sizes[0] == 0), "{sizes:?}");
}

#[test]
fn a_wrong_command_line_is_refused_with_the_value_and_a_remedy() {
    let Some(program) = built() else { return };
    let cases = [
        ("--sizes 0", "--sizes 0: a whole number from 1"),
        ("--sizes 4K,x", "--sizes x: a whole number"),
        ("--sizes 64G --threads 64", "use smaller --sizes"),
        ("--memory paper", "one of fresh, touched, huge, file, shared is needed"),
        ("--alive 1000001", "--alive 1000001: a whole number from 1 to 1000000"),
        ("--threads 65", "--threads 65: a whole number from 1 to 64"),
        ("--seconds 0", "--seconds 0: a number from 0.001 to 600"),
        ("192.0.2.1", "192.0.2.1: no argument is needed"),
        ("--nonsense", "--help"),
    ];
    for (words, expected) in cases {
        let ended = run(&program, words, &Network::Loopback);
        assert!(ended.status.code() == Some(2) && ended.output.contains(expected), "{ended}");
    }
    assert!(run(&program, "--help", &Network::Loopback).expect_success().contains("Example:"));
}

#[test]
fn an_address_without_a_device_is_named() {
    let Some(program) = built() else { return };
    let ended = run(&program, "--bind 192.0.2.77 --sizes 4K", &Network::Loopback);
    assert!(!ended.is_success() && !ended.is_late, "{ended}");
    assert!(ended.output.contains("192.0.2.77") && ended.output.contains("--bind"), "{ended}");
    let ended = run(&program, "--bind nowhere --sizes 4K", &Network::Loopback);
    assert!(ended.output.contains("--bind nowhere: an IPv4 address"), "{ended}");
}

/// Without the libraries under test, the program finds only the devices of this host.
#[test]
fn a_host_without_a_device_is_refused_with_a_remedy() {
    let Some(program) = built() else { return };
    if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        println!("skipped: this host has RDMA devices");
        return;
    }
    let program = Program::new(&program, "--sizes 4K");
    let ended = program.run_bare(&Network::Loopback, Side::Server);
    assert!(!ended.is_success() && !ended.is_late, "{ended}");
    assert!(ended.output.contains("`ibv_devices` lists the devices"), "{ended}");
}

#[test]
fn an_interrupted_program_ends_with_a_reason() {
    let Some(program) = built() else { return };
    let words = "--sizes 16M --seconds 600 --threads 2";
    let mut running = Program::new(&program, words).start(&Network::Loopback, Side::Server);
    running.wait_for_output("register and move every byte once");
    running.signal("INT");
    let ended = running.finish();
    assert!(!ended.is_success() && !ended.is_late, "{ended}");
    assert!(ended.output.contains("interrupted"), "{ended}");
}

#[test]
fn more_regions_than_the_device_supports_are_refused_or_reused() {
    let Some(program) = built() else { return };
    let ended = run(&program, "--alive 20000 --sizes 4K --iterations 1", &Network::Loopback);
    assert!(!ended.is_late, "{ended}");
    assert!(ended.is_success() || ended.output.contains("use a smaller --alive"), "{ended}");
}

/// The program cannot get memory in two cases: the folder for its file does not exist, or the
/// kernel has no reserved huge pages.
#[test]
fn memory_that_cannot_be_allocated_is_refused_with_a_remedy() {
    let Some(program) = built() else { return };
    let no_folder = Program::new(&program, "--memory file --sizes 4K --iterations 1")
        .variable("TMPDIR", "/nonexistent")
        .run(&Network::Loopback, Side::Server);
    assert!(!no_folder.is_success() && no_folder.output.contains("set TMPDIR"), "{no_folder}");
    let huge = run(&program, "--memory huge --sizes 4K --iterations 1", &Network::Loopback);
    assert!(huge.is_success() || huge.output.contains("sysctl vm.nr_hugepages="), "{huge}");
}
