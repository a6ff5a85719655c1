//! Speed, fairness and memory of an iWARP device, compared with TCP on the same link where TCP sets
//! the limit. The runs alternate, so that other load on the machine affects both results.

use programs::{Finished, Libraries, Network, Program, Running, Side, are_installed, build_client};
use serde_json::Value;

/// Number of runs of each program.
const TURNS: u16 = 7;

/// Number of runs with one stream and with a thousand.
const TURNS_OF_STREAMS: u16 = 5;

/// Describes a program that sees an iWARP device and no other device.
fn over_iwarp(program: &str, arguments: &str) -> Program {
    Program::new(program, arguments).variable("ETHERNOT_DEVICE", "iwarp")
}

/// Runs server and client of a program of perftest, with these environment variables. Returns the
/// numbers in the line of the client's table that begins with this size.
fn perftest(
    network: &Network,
    port: u16,
    program: &str,
    size: &str,
    arguments: &str,
    variables: &[(&str, &str)],
) -> Vec<f64> {
    let arguments = format!("-F -R -p {port} -s {size} {arguments}");
    let side = variables
        .iter()
        .fold(over_iwarp(program, &arguments), |side, (name, value)| side.variable(name, value));
    let [server, client] = side.run_pair(&side, network, port);
    server.expect_success();
    client.expect_success();
    let is_of_size = |line: &&str| line.split_whitespace().next() == Some(size);
    let line = client.output.lines().find(is_of_size).unwrap_or_else(|| panic!("{client}"));
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Starts a server without the libraries, runs its client, and returns the client's result.
fn bare(
    network: &Network,
    server: &str,
    client: &str,
    is_ready: fn(&mut Running, u16),
    port: u16,
) -> Finished {
    let described = |words: &str| {
        let (program, arguments) = words.split_once(' ').expect("a program and its arguments");
        Program::new(program, arguments)
    };
    let mut running = described(server).start_bare(network, Side::Server);
    is_ready(&mut running, port);
    let client = described(client).argument(&network.server_address());
    let client = client.run_bare(network, Side::Client);
    running.finish().expect_success();
    client.expect_success();
    client
}

/// Returns the rate at which iperf3's receiver receives over one connection, in MiB/s.
fn rate_of_tcp(network: &Network, port: u16) -> f64 {
    let server = format!("iperf3 -s -1 -p {port}");
    let client = format!("iperf3 -J -t 2 -l 1048576 -p {port} -c");
    let client = bare(network, &server, &client, Running::wait_for_listener, port);
    let document: Value = serde_json::from_str(&client.output).expect("a document");
    let bits = document["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.expect("a rate") / 8.0 / 1_048_576.0
}

/// Returns the mean of half the round-trip time of equal messages of this size over a TCP
/// connection whose ends poll, in microseconds.
fn latency_of_tcp(network: &Network, port: u16, size: u32) -> f64 {
    let program = Libraries::built().folder().join("perf/tcp-perf").display().to_string();
    let client = format!(
        "{program} --port {port} --test latency --sizes {size} --runs 1 --seconds 1 --json"
    );
    let client = bare(
        network,
        &format!("{program} --port {port}"),
        &client,
        |running, _| running.wait_for_output("listening on port"),
        port,
    );
    let document: Value = serde_json::from_str(&client.output).expect("a document");
    let run = &document["points"][0]["runs"][0];
    let (seconds, rounds) = (run["seconds"].as_f64(), run["rounds"].as_f64());
    seconds.expect("a time") / rounds.expect("a number") * 1e6 / 2.0
}

/// Prints the median of the ratios, and beside it the least and the greatest ratio.
fn print(figure: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    if let (Some(least), Some(median), Some(greatest)) =
        (ratios.first(), ratios.get(ratios.len() / 2), ratios.last())
    {
        println!("figure: {figure}: {median:.3} (from {least:.3} to {greatest:.3})");
    }
}

/// Measures writes of 1 MiB alternately with a TCP connection, and prints the ratio of the rates.
fn throughput_of_writes(figure: &str, port: u16, variables: &[(&str, &str)]) {
    if !are_installed(&["ib_write_bw", "iperf3"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let ratios = (0..TURNS).map(|turn| {
        let port = port + 2 * turn;
        let tcp = rate_of_tcp(&network, port);
        // Columns: size, repetitions, peak, average in MiB/s, millions of messages per second.
        let size = "1048576";
        let writes = perftest(&network, port + 1, "ib_write_bw", size, "-D 2", variables)[3];
        println!("ib_write_bw: {writes} MiB/s, TCP {tcp:.1} MiB/s");
        writes / tcp
    });
    print(figure, ratios.collect());
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn throughput_of_writes_without_crc() {
    throughput_of_writes("throughput of writes against TCP", 27_000, &[]);
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn throughput_of_writes_with_crc() {
    let crc = [("ETHERNOT_IWARP_CRC", "1")];
    throughput_of_writes("throughput of writes with CRC against TCP", 27_100, &crc);
}

/// Length of the FPDU of a write of 8 bytes: length field, headers, payload and CRC field.
const FPDU_BYTES: u32 = 2 + 14 + 8 + 4;

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn latency_of_writes() {
    if !are_installed(&["ib_write_lat"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let ratios = (0..TURNS).map(|turn| {
        let port = 27_200 + 2 * turn;
        let tcp = latency_of_tcp(&network, port, FPDU_BYTES);
        // Columns: size, repetitions, least, most, typical, average, deviation, 99 %, 99.9 %.
        let writes = perftest(&network, port + 1, "ib_write_lat", "8", "-n 100000", &[]);
        println!("ib_write_lat: mean {} us, median {}, TCP mean {tcp:.2} us", writes[5], writes[4]);
        writes[5] / tcp
    });
    print("latency of writes against TCP", ratios.collect());
}

/// Figures of `clients/streams.c`.
struct Streams {
    /// Processor time of a read at both ends together, in microseconds.
    cost_us: f64,
    /// Reads of the slowest connection, as a part of the mean.
    slowest: f64,
    /// Memory of an idle connection in KiB.
    idle_kib: f64,
}

/// Measures this number of connections between two processes. `reads` is the size of a read in
/// bytes, the number of reads in flight over all connections, and the number of reads.
fn streams(client: &str, port: u16, count: u32, reads: &str) -> Streams {
    let arguments = format!("{port} {count} {reads} 3");
    let ended = over_iwarp(client, &arguments).run(&Network::Loopback, Side::Client);
    let figure = |name: &str| {
        let rest = ended.expect_success().lines().find_map(|line| line.strip_prefix(name));
        let rest = rest.unwrap_or_else(|| panic!("{ended}"));
        rest.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).expect("a number")
    };
    Streams {
        cost_us: figure("processor time of an operation:"),
        slowest: figure("slowest connection against the mean:"),
        idle_kib: figure("bytes of an idle connection:") / 1024.0,
    }
}

/// Measures one connection and a thousand in turn. In both cases as many reads are in flight over
/// all connections together.
fn a_thousand_streams(figure: &str, port: u16, reads: &str) {
    let Some(client) = build_client("streams") else { return };
    let client = client.display().to_string();
    let (mut ratios, mut slowest, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS_OF_STREAMS {
        let port = port + 2 * turn;
        let one = streams(&client, port, 1, reads);
        let many = streams(&client, port + 1, 1000, reads);
        println!("processor time of a read: {} us, one stream {} us", many.cost_us, one.cost_us);
        ratios.push(many.cost_us / one.cost_us);
        slowest.push(many.slowest);
        idle.push(many.idle_kib);
    }
    print(figure, ratios);
    print("slowest of a thousand streams against the mean", slowest);
    print("memory of an idle stream", idle);
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn long_reads_of_a_thousand_streams() {
    let figure = "processor time with a thousand streams against one, long reads";
    a_thousand_streams(figure, 27_300, "65536 64 20000");
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn single_reads_of_a_thousand_streams() {
    let figure = "processor time with a thousand streams against one, single reads";
    a_thousand_streams(figure, 27_400, "4096 1 20000");
}
