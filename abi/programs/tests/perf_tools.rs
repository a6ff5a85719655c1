//! Runs every test of `iwarp-perf` and `tcp-perf`, and checks what they do on errors. In most runs,
//! the programs compare all bytes that they transfer.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use programs::{
    Finished, Libraries, Network, Program, Running, Side, serves_behind_a_lingering_client,
};
use serde_json::Value;

const LISTENS: &str = "listening on port";

/// Returns the path of a program of `tools/perf`. Returns `None` and prints the reason if it was
/// not built.
fn built(name: &str) -> Option<String> {
    let file = Libraries::built().folder().join("perf").join(name);
    if !file.is_file() {
        println!(
            "skipped: {name} is not built without the headers of librdmacm (Debian's package librdmacm-dev)"
        );
        return None;
    }
    Some(file.display().to_string())
}

fn networks() -> impl Iterator<Item = Network> {
    std::iter::once(Network::Loopback).chain(Network::namespaces())
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

/// Starts a server that stays, and a client that measures for a minute. Returns both when the client
/// has begun.
fn measuring(program: &str, port: u16, network: &Network) -> (Running, Running) {
    let server = serve(program, port, "--keep", network);
    let words = format!("--port {port} --sizes 64K --seconds 60");
    let client = Program::new(program, &words).argument(&network.server_address());
    let mut client = client.start(network, Side::Client);
    client.wait_for_output("CPU %");
    (server, client)
}

/// Runs short measurements of small and large messages; the program compares all bytes.
fn runs(name: &str, port: u16, kinds: &[&str]) {
    let Some(program) = built(name) else { return };
    for network in networks() {
        let server = serve(&program, port, "--keep", &network);
        for test in ["bandwidth", "both-ways", "latency"] {
            let shapes = match test {
                "latency" => "--sizes 1,1000,100K",
                _ => "--sizes 2,1000,100K --window 1,7",
            };
            for kind in kinds {
                let words =
                    format!("--test {test} {kind} {shapes} --iterations 3 --runs 2 --check --json");
                let client = ask(&program, port, &words, &network);
                let document: Value =
                    serde_json::from_str(client.expect_success()).expect(&client.output);
                assert_eq!(document["program"], name);
                assert_eq!(document["test"], test);
                let points = document["points"].as_array().expect("a list of points");
                assert_eq!(points.len(), if test == "latency" { 3 } else { 6 }, "{client}");
                let amount = if test == "latency" { "rounds" } else { "bytes" };
                let is_whole = |run: &Value| {
                    run[amount].as_u64() > Some(0) && run["seconds"].as_f64() > Some(0.0)
                };
                for point in points {
                    let runs = point["runs"].as_array().expect("a list of runs");
                    assert!(runs.len() == 2 && runs.iter().all(is_whole), "{client}");
                }
            }
        }
        drop(server);
    }
}

#[test]
fn every_byte_that_iwarp_perf_moves_arrives_unchanged() {
    let kinds = [
        "--operation write",
        "--operation write --events",
        "--operation send",
        "--operation send --events",
        "--operation read",
        "--operation read --events",
    ];
    runs("iwarp-perf", 22_400, &kinds);
}

#[test]
fn every_byte_that_tcp_perf_moves_arrives_unchanged() {
    runs("tcp-perf", 22_401, &["", "--events"]);
}

#[test]
fn data_arrive_unchanged_without_stalls_under_loss() {
    println!("{} measurements", under_loss());
}

/// Measures while the links lose 1 % of frames; returns the number of measurements.
fn under_loss() -> usize {
    let Some(program) = built("iwarp-perf") else { return 0 };
    let port = 22_402;
    let lossy =
        |words: &str| Program::new(&program, words).variable("ETHERNOT_FAULTS", "loss=0.01");
    let mut runs = 0;
    for network in networks() {
        let mut server = lossy(&format!("--port {port} --keep")).start(&network, Side::Server);
        server.wait_for_output(LISTENS);
        for kind in ["bandwidth", "both-ways", "latency", "bandwidth --operation read"] {
            let words = format!(
                "--port {port} --test {kind} --sizes 2,64K --iterations 30 --runs 2 --check"
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
    let cases = [
        ("--sizes 0 127.0.0.1", "--sizes 0: a whole number from 1"),
        ("--sizes 8,x 127.0.0.1", "--sizes x: a whole number"),
        ("--sizes 99999G 127.0.0.1", "--sizes 99999G: a whole number"),
        ("--window 65537 127.0.0.1", "--window 65537: a whole number from 1 to 65536"),
        ("--test latency --window 2 127.0.0.1", "leave --window out"),
        ("--test speed 127.0.0.1", "one of bandwidth, both-ways, latency"),
        ("--seconds 0 127.0.0.1", "--seconds 0: a number from 0.001 to 600"),
        ("--port 70000", "--port 70000: a whole number from 1 to 65535"),
        ("--test latency", "put the server's address before it"),
        ("--keep 127.0.0.1", "--keep is an option of the server"),
        ("127.0.0.1 127.0.0.2", "one address is enough"),
        ("--nonsense", "--help"),
    ];
    for program in ["iwarp-perf", "tcp-perf"].into_iter().filter_map(built) {
        for (words, expected) in cases {
            let ended = Program::new(&program, words).run(&Network::Loopback, Side::Client);
            assert!(ended.status.code() == Some(2) && ended.output.contains(expected), "{ended}");
        }
        let help = Program::new(&program, "--help").run(&Network::Loopback, Side::Client);
        assert!(help.expect_success().contains("Example:"), "{help}");
    }
}

#[test]
fn the_error_names_a_missing_server() {
    for program in ["iwarp-perf", "tcp-perf"].into_iter().filter_map(built) {
        let ended = ask(&program, 22_403, "--runs 1", &Network::Loopback);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("127.0.0.1") && ended.output.contains("server"), "{ended}");
    }
}

#[test]
fn a_window_larger_than_the_queue_is_refused() {
    let Some(program) = built("iwarp-perf") else { return };
    let server = serve(&program, 22_404, "", &Network::Loopback);
    let ended = ask(&program, 22_404, "--window 65536 --sizes 1", &Network::Loopback);
    assert!(!ended.is_success() && !ended.is_late, "{ended}");
    assert!(ended.output.contains("hold windows of at most"), "{ended}");
    drop(server);
}

/// A send needs memory for each message that may arrive.
#[test]
fn a_window_larger_than_memory_is_refused() {
    let Some(program) = built("iwarp-perf") else { return };
    let server = serve(&program, 22_417, "", &Network::Loopback);
    let words = "--operation send --window 64 --sizes 64M";
    let ended = ask(&program, 22_417, words, &Network::Loopback);
    assert!(!ended.is_success() && !ended.is_late, "{ended}");
    assert!(ended.output.contains("67108864") && ended.output.contains("--window"), "{ended}");
    drop(server);
}

/// Without the libraries under test, the program finds only the devices of this host.
#[test]
fn a_host_without_a_device_is_refused_with_a_remedy() {
    let Some(program) = built("iwarp-perf") else { return };
    if Path::new("/dev/infiniband/rdma_cm").exists() {
        println!("skipped: this host has RDMA devices");
        return;
    }
    for words in ["", "127.0.0.1"] {
        let ended = Program::new(&program, words).run_bare(&Network::Loopback, Side::Client);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("is there an RDMA device?"), "{ended}");
    }
}

/// Ctrl-C ends a client during a measurement, and a server while it waits.
#[test]
fn an_interrupted_program_ends_at_once() {
    for (program, port) in [("iwarp-perf", 22_418), ("tcp-perf", 22_419)] {
        let Some(program) = built(program) else { continue };
        let network = Network::Loopback;
        let (server, client) = measuring(&program, port, &network);
        client.signal("INT");
        let ended = client.finish_within(PARTING);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("interrupted"), "{ended}");
        server.signal("INT");
        let ended = server.finish_within(PARTING);
        assert!(!ended.is_late, "{ended}");
    }
}

/// If one side dies during a measurement, the other side ends. A server that has the option to
/// serve several clients does not end, but serves the next client.
#[test]
fn a_peer_that_dies_is_detected() {
    for (program, port) in [("iwarp-perf", 22_405), ("tcp-perf", 22_406)] {
        let Some(program) = built(program) else { continue };
        for network in networks() {
            for kind in ["--test latency --sizes 8", "--sizes 64K --window 8", "--events"] {
                let words = format!("--port {port} {kind} --seconds 60 --runs 1");
                let client = Program::new(&program, &words).argument(&network.server_address());
                let server = serve(&program, port, "", &network);
                let mut client = client.start(&network, Side::Client);
                client.wait_for_output("CPU %");
                server.signal("KILL");
                let ended = client.finish();
                assert!(!ended.is_success() && !ended.is_late, "{ended}");
                assert!(ended.output.contains("peer"), "{ended}");
                drop(server);
            }
        }
    }
}

#[test]
fn a_client_that_connects_before_the_end_of_another_is_served() {
    let Some(program) = built("iwarp-perf") else { return };
    let words = "--port 22436 --test latency --sizes 8 --iterations 5 --runs 1";
    let server = serve(&program, 22_436, "--keep", &Network::Loopback);
    serves_behind_a_lingering_client("iwarp_perf_lingering", &program, words);
    drop(server);
}

/// A stopped process keeps its connection and answers nothing.
#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn a_peer_that_is_silent_for_20_s_ends_the_run() {
    let ends = |program: &str, port: u16| {
        let words = format!("--port {port} --sizes 64K --window 8 --seconds 60 --runs 1");
        let client = Program::new(program, &words).argument(&"127.0.0.1");
        let server = serve(program, port, "", &Network::Loopback);
        let mut client = client.start(&Network::Loopback, Side::Client);
        client.wait_for_output("CPU %");
        server.signal("STOP");
        let ended = client.finish();
        server.signal("KILL");
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(ended.output.contains("peer"), "{ended}");
    };
    thread::scope(|scope| {
        for (program, port) in [("iwarp-perf", 22_414), ("tcp-perf", 22_415)] {
            let Some(program) = built(program) else { continue };
            scope.spawn(move || ends(&program, port));
        }
    });
}

/// A stranger connects to the port, sends arbitrary bytes and disconnects, like a port scanner.
#[test]
fn foreign_bytes_do_not_stop_a_persistent_server() {
    let Some(program) = built("tcp-perf") else { return };
    let port = 22_416;
    let server = serve(&program, port, "--keep", &Network::Loopback);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for length in [1, 7, 8, 63, 64, 65, 200, 4096] {
        for fill in [Some(0), Some(0xff), None, None] {
            let bytes = (0..length).map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                fill.unwrap_or(random as u8)
            });
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
            // Ignore errors: the server may have closed the connection already.
            let _refused = stranger.write_all(&bytes.collect::<Vec<u8>>());
        }
    }
    let words = "--sizes 8 --window 1 --iterations 3 --runs 1 --check";
    ask(&program, port, words, &Network::Loopback).expect_success();
    drop(server);
}

#[test]
fn a_persistent_server_outlives_a_client_that_dies() {
    for (program, port) in [("iwarp-perf", 22_407), ("tcp-perf", 22_408)] {
        let Some(program) = built(program) else { continue };
        let network = Network::Loopback;
        let (server, client) = measuring(&program, port, &network);
        client.signal("KILL");
        drop(client);
        // Retry, because the server may serve the killed client until it notices that this client
        // is gone.
        let ended = (0..10)
            .map(|_| ask(&program, port, "--sizes 8 --window 1 --iterations 3 --runs 1", &network))
            .find(Finished::is_success);
        assert!(ended.is_some(), "no client is served after the death of the first");
        drop(server);
    }
}

/// Builds the program with a later version number.
fn later_version(name: &str, libraries: &[&str]) -> Option<PathBuf> {
    built(name)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = Libraries::built().folder().join(format!("later-{name}"));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-DVERSION=2", "-o"])
        .arg(&file)
        .arg(root.join("tools/perf").join(name).with_extension("c"))
        .args(libraries)
        .output()
        .expect("a compiler, as the program was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(file)
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    let programs: [(&str, u16, &[&str]); 2] =
        [("iwarp-perf", 22_409, &["-lrdmacm", "-libverbs"]), ("tcp-perf", 22_410, &[])];
    for (name, port, libraries) in programs {
        let Some(later) = later_version(name, libraries) else { continue };
        let Some(program) = built(name) else { continue };
        let server = serve(&program, port, "", &Network::Loopback);
        let ended = ask(&later.display().to_string(), port, "", &Network::Loopback);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        assert!(
            ended.output.contains("version 1") && ended.output.contains("version 2"),
            "{ended}"
        );
        let server = server.finish();
        assert!(!server.is_success() && server.output.contains("same"), "{server}");
    }
}

/// Measures alternately with `iwarp-perf` and with a program of perftest. For each pair of values
/// computes the ratio of the larger to the smaller value. Prints the median of the ratios.
fn apart(port: u16, words: &str, perftest: (&str, &str), read: fn(&str) -> Option<f64>) {
    let Some(program) = built("iwarp-perf") else { return };
    if !programs::are_installed(&[perftest.0]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let mut factors: Vec<f64> = (0..PAIRS)
        .map(|_| {
            let server = serve(&program, port, "", &network);
            let words = format!("{words} --runs 3 --seconds 0.3 --json");
            let client = ask(&program, port, &words, &network);
            drop(server);
            let document: Value = serde_json::from_str(client.expect_success()).expect("JSON");
            let runs = document["points"][0]["runs"].as_array().expect("runs");
            let mut values: Vec<f64> = runs.iter().filter_map(value_of).collect();
            values.sort_by(f64::total_cmp);
            let side = Program::new(perftest.0, &format!("-F -p {} {}", port + 1, perftest.1));
            let [_, other] = side.run_pair(&side, &network, port + 1);
            let other = read(other.expect_success()).expect(&other.output);
            let ratio = values[values.len() / 2] / other;
            println!(
                "{}: {:.3} of iwarp-perf, {other:.3} of {}",
                words,
                values[values.len() / 2],
                perftest.0
            );
            ratio.max(1.0 / ratio)
        })
        .collect();
    factors.sort_by(f64::total_cmp);
    println!("figure: iwarp-perf and {}, apart: {:.3}", perftest.0, factors[PAIRS / 2]);
}

/// Returns half of the round-trip time in microseconds, or the throughput in MB/s.
fn value_of(run: &Value) -> Option<f64> {
    let seconds = run["seconds"].as_f64()?;
    match run["rounds"].as_f64() {
        Some(rounds) => Some(seconds / rounds / 2.0 * 1e6),
        None => Some(run["bytes"].as_f64()? / seconds / 1e6),
    }
}

/// Returns a column of the last line that consists of numbers.
fn column(text: &str, index: usize) -> Option<f64> {
    let line = text.lines().rev().find(|line| {
        let mut words = line.split_whitespace();
        words.clone().count() > index && words.all(|word| word.parse::<f64>().is_ok())
    })?;
    line.split_whitespace().nth(index)?.parse().ok()
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn latency_beside_perftest() {
    // Columns: bytes, iterations, shortest, longest, typical, average.
    let words = ("ib_write_lat", "-s 8 -n 20000");
    apart(22_411, "--test latency --sizes 8", words, |text| column(text, 5));
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn bandwidth_beside_perftest() {
    // Columns: bytes, iterations, peak, average in MB/s.
    let words = ("ib_write_bw", "-s 1048576 -n 2000 -t 64");
    apart(22_413, "--sizes 1M --window 64", words, |text| {
        column(text, 3).map(|mib| mib * 1.048_576)
    });
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn twenty_times_under_loss() {
    let runs: usize = (0..20).map(|_| under_loss()).sum();
    println!("figure: runs of iwarp-perf under loss whose data are right: {runs}");
}

/// Longest time that an interrupted program may still run, counted from its start. A busy machine
/// needs some seconds.
const PARTING: Duration = Duration::from_mins(1);

/// Number of pairs of measurements. Each pair is one run of `iwarp-perf` and one of perftest.
const PAIRS: usize = 5;
