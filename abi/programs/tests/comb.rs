//! Runs the two methods of `comb` over the edge and over TCP, and checks what it does on errors. In
//! most runs, `comb` compares all bytes that it transfers.

use std::path::{Path, PathBuf};
use std::process::Command;

use programs::{
    Finished, Libraries, Network, Program, Running, Side, serves_behind_a_lingering_client,
};
use serde_json::Value;

const LISTENS: &str = "listening on port";

const METHODS: [&str; 2] = ["polling", "post-work-wait"];

const CARRIERS: [&str; 2] = ["verbs", "tcp"];

/// Returns the path of the program. Returns `None` and prints the reason if it was not built.
fn built() -> Option<String> {
    let file = Libraries::built().folder().join("perf/comb");
    if !file.is_file() {
        println!(
            "skipped: comb is not built without the headers of librdmacm (Debian's package librdmacm-dev)"
        );
        return None;
    }
    Some(file.display().to_string())
}

fn serve(program: &str, port: u16, words: &str, network: &Network) -> Running {
    let words = format!("--port {port} {words}");
    let mut server = Program::new(program, &words).start(network, Side::Server);
    server.wait_for_output(LISTENS);
    server
}

fn ask(program: &str, port: u16, words: &str, network: &Network) -> Finished {
    let words = format!("--port {port} {words} {}", network.server_address());
    Program::new(program, &words).run(network, Side::Client)
}

fn document(ended: &Finished) -> Value {
    serde_json::from_str(ended.expect_success()).expect(&ended.output)
}

#[test]
fn every_byte_arrives_unchanged_by_both_methods_over_both_carriers() {
    let Some(program) = built() else { return };
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for (over, port) in CARRIERS.into_iter().zip([22_420, 22_421]) {
            let server = serve(&program, port, &format!("--over {over} --keep"), &network);
            for method in METHODS {
                let words = format!(
                    "--over {over} --method {method} --sizes 1,88,1000,100K --queue 3 \
                     --intervals 10,100K --seconds 0.05 --runs 2 --check --json"
                );
                let ended = ask(&program, port, &words, &network);
                let document = document(&ended);
                assert_eq!(document["method"], method);
                assert_eq!(document["over"], over);
                let points = document["points"].as_array().expect("a list of points");
                assert_eq!(points.len(), 8, "{ended}");
                let runs = points.iter().filter_map(|point| point["runs"].as_array());
                let runs: Vec<_> = runs.flatten().collect();
                assert_eq!(runs.len(), 16, "{ended}");
                for run in runs {
                    let is_positive = |name: &str| run[name].as_f64() > Some(0.0);
                    assert!(is_positive("availability") && is_positive("seconds"), "{ended}");
                    assert!(method == "polling" || is_positive("bytes"), "{ended}");
                }
            }
            drop(server);
        }
    }
}

#[test]
fn a_client_that_connects_before_the_end_of_another_is_served() {
    let Some(program) = built() else { return };
    let words = "--port 22437 --sizes 1K --intervals 1K --seconds 0.05 --runs 1";
    let server = serve(&program, 22_437, "--keep", &Network::Loopback);
    serves_behind_a_lingering_client("comb_lingering", &program, words);
    drop(server);
}

/// The amount of work doubles from step to step. The program prints the time of each step. It also
/// prints the deviation of the times from a time proportional to the amount of work.
#[test]
fn the_work_is_timed_for_counts_that_double() {
    let Some(program) = built() else { return };
    let server = serve(&program, 22_422, "--over tcp", &Network::Loopback);
    let words = "--over tcp --silent --sizes 1K --intervals 1K --seconds 0.01 --json";
    let ended = ask(&program, 22_422, words, &Network::Loopback);
    let document = document(&ended);
    assert!(document["work"]["fit_error"].as_f64() >= Some(0.0), "{ended}");
    assert!(document["work"]["ns_per_iteration"].as_f64() > Some(0.0), "{ended}");
    let times = document["work"]["times"].as_array().expect("a list of times");
    let counts: Vec<_> = times.iter().filter_map(|time| time["iterations"].as_u64()).collect();
    assert!(counts.len() > 2 && counts.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{ended}");
    assert_eq!(document["points"][0]["runs"][0]["bytes"], 0, "{ended}");
    server.finish().expect_success();
}

/// If a process is bound to a CPU, the process prints for what the CPU was used, and for how long.
#[test]
fn the_times_of_a_cpu_are_accounted() {
    let Some(program) = built() else { return };
    let server = serve(&program, 22_423, "", &Network::Loopback);
    let words = "--sizes 1K --intervals 1K --seconds 0.1 --cpu 0 --json";
    let ended = ask(&program, 22_423, words, &Network::Loopback);
    let document = document(&ended);
    assert_eq!(document["cpu"], 0, "{ended}");
    let run = &document["points"][0]["runs"][0];
    for time in ["user", "system", "idle", "irq", "softirq", "steal"] {
        assert!(run[format!("cpu_{time}_s")].as_f64() >= Some(0.0), "{time}: {ended}");
    }
    for time in ["interrupts_elsewhere_s", "accounted"] {
        assert!(run[time].as_f64() >= Some(0.0), "{time}: {ended}");
    }
    server.finish().expect_success();
}

#[test]
fn data_arrive_unchanged_without_stalls_under_loss() {
    println!("{} measurements", under_loss());
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn twenty_times_under_loss() {
    let runs: usize = (0..20).map(|_| under_loss()).sum();
    println!("figure: runs of comb under loss whose data are right: {runs}");
}

/// Measures while the links lose 1 % of frames; returns the number of measurements.
fn under_loss() -> usize {
    let Some(program) = built() else { return 0 };
    let lossy =
        |words: &str| Program::new(&program, words).variable("ETHERNOT_FAULTS", "loss=0.01");
    let mut runs = 0;
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let mut server = lossy("--port 22424 --keep").start(&network, Side::Server);
        server.wait_for_output(LISTENS);
        for method in METHODS {
            let words = format!(
                "--port 22424 --method {method} --sizes 1K,64K --intervals 1K,1M --seconds 0.2 --check"
            );
            let client = lossy(&words).argument(&network.server_address());
            client.run(&network, Side::Client).expect_success();
            runs += 1;
        }
        drop(server);
    }
    runs
}

#[test]
fn a_wrong_command_line_is_refused_with_the_value_and_a_remedy() {
    let Some(program) = built() else { return };
    let cases = [
        ("--sizes 0 127.0.0.1", "--sizes 0: a whole number from 1"),
        ("--sizes 257M 127.0.0.1", "--sizes 257M: a whole number from 1"),
        ("--queue 257 127.0.0.1", "--queue 257: a whole number from 1 to 256"),
        ("--intervals 1,x 127.0.0.1", "--intervals x: a whole number"),
        ("--method guess 127.0.0.1", "one of polling, post-work-wait is needed"),
        ("--over pigeon", "one of verbs, tcp is needed"),
        ("--cpu -1 127.0.0.1", "--cpu -1: a whole number from 0"),
        ("--cpu 1000 127.0.0.1", "this host has CPUs 0 to"),
        ("--seconds 0 127.0.0.1", "--seconds 0: a number from 0.001 to 600"),
        ("--port 70000", "--port 70000: a whole number from 1 to 65535"),
        ("--sizes 1K", "put the server's address before it"),
        ("--keep 127.0.0.1", "--keep is an option of the server"),
        ("--nonsense", "--help"),
    ];
    for (words, expected) in cases {
        let ended = Program::new(&program, words).run(&Network::Loopback, Side::Client);
        assert!(ended.status.code() == Some(2) && ended.output.contains(expected), "{ended}");
    }
    let help = Program::new(&program, "--help").run(&Network::Loopback, Side::Client);
    assert!(help.expect_success().contains("Example:"), "{help}");
}

#[test]
fn the_error_names_a_missing_server() {
    let Some(program) = built() else { return };
    for over in CARRIERS {
        let ended = ask(&program, 22_425, &format!("--over {over}"), &Network::Loopback);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("127.0.0.1") && ended.output.contains("server"), "{ended}");
    }
}

#[test]
fn a_peer_that_dies_is_detected() {
    let Some(program) = built() else { return };
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for (over, port) in CARRIERS.into_iter().zip([22_426, 22_427]) {
            for method in METHODS {
                let words = format!("--port {port} --over {over} --method {method} --seconds 60");
                let client = Program::new(&program, &words).argument(&network.server_address());
                let server = serve(&program, port, &format!("--over {over}"), &network);
                let mut client = client.start(&network, Side::Client);
                client.wait_for_output("available");
                server.signal("KILL");
                let ended = client.finish();
                assert!(!ended.is_success() && !ended.is_late, "{ended}");
                assert!(ended.output.contains("peer"), "{ended}");
                drop(server);
            }
        }
    }
}

/// A stopped process keeps its connection and answers nothing.
#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn a_peer_that_is_silent_for_20_s_ends_the_run() {
    let Some(program) = built() else { return };
    for (over, port) in CARRIERS.into_iter().zip([22_434, 22_435]) {
        let words = format!("--port {port} --over {over} --seconds 60 127.0.0.1");
        let server = serve(&program, port, &format!("--over {over}"), &Network::Loopback);
        let mut client = Program::new(&program, &words).start(&Network::Loopback, Side::Client);
        client.wait_for_output("available");
        server.signal("STOP");
        let ended = client.finish();
        server.signal("KILL");
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("peer"), "{ended}");
    }
}

#[test]
fn a_persistent_server_outlives_a_client_that_dies() {
    let Some(program) = built() else { return };
    for (over, port) in CARRIERS.into_iter().zip([22_428, 22_429]) {
        let network = Network::Loopback;
        let server = serve(&program, port, &format!("--over {over} --keep"), &network);
        let words = format!("--port {port} --over {over} --seconds 60");
        let client = Program::new(&program, &words).argument(&network.server_address());
        let mut client = client.start(&network, Side::Client);
        client.wait_for_output("available");
        client.signal("KILL");
        drop(client);
        let words = format!("--over {over} --sizes 1K --intervals 1K --seconds 0.01");
        // Retry, because the server may serve the killed client until it notices that this client
        // is gone.
        let ended =
            (0..10).map(|_| ask(&program, port, &words, &network)).find(Finished::is_success);
        assert!(ended.is_some(), "no client is served after the death of the first");
        drop(server);
    }
}

#[test]
fn an_interrupted_client_ends_with_a_reason() {
    let Some(program) = built() else { return };
    for (over, port) in CARRIERS.into_iter().zip([22_430, 22_431]) {
        let network = Network::Loopback;
        let server = serve(&program, port, &format!("--over {over} --keep"), &network);
        let words = format!("--port {port} --over {over} --seconds 60");
        let client = Program::new(&program, &words).argument(&network.server_address());
        let mut client = client.start(&network, Side::Client);
        client.wait_for_output("available");
        client.signal("INT");
        let ended = client.finish();
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("interrupted"), "{ended}");
        drop(server);
    }
}

/// Builds the program with a later version number.
fn later_version() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/perf/comb.c");
    let file = Libraries::built().folder().join("later-comb");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-DVERSION=2", "-o"])
        .args([&file, &source])
        .args(["-lrdmacm", "-libverbs", "-lm"])
        .output()
        .expect("a compiler, as the program was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    let Some(program) = built() else { return };
    let later = later_version().display().to_string();
    for (over, port) in CARRIERS.into_iter().zip([22_432, 22_433]) {
        let server = serve(&program, port, &format!("--over {over}"), &Network::Loopback);
        let ended = ask(&later, port, &format!("--over {over}"), &Network::Loopback);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        let has_both = ended.output.contains("version 1") && ended.output.contains("version 2");
        assert!(has_both, "{ended}");
        let server = server.finish();
        assert!(!server.is_success() && server.output.contains("same"), "{server}");
    }
}
