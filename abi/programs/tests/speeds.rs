//! Speed of programs, compared with `ethernot bench` on the same kind of link, and with TCP. The
//! runs alternate, so that other load on the machine affects both results.

use std::path::Path;

use programs::{Finished, Libraries, Network, Program, Side, are_installed, ethernot};

/// Number of runs of each program.
const TURNS: usize = 5;

/// Starts the server of a program and runs its client. Returns the client's result.
fn client_of(network: &Network, port: u16, program: &str, arguments: &str) -> Finished {
    client_over(Libraries::built(), network, port, program, arguments)
}

/// Runs server and client with these libraries. Returns the client's result.
fn client_over(
    libraries: &Libraries,
    network: &Network,
    port: u16,
    program: &str,
    arguments: &str,
) -> Finished {
    let side = Program::new(program, &format!("-F -p {port} {arguments}")).over(libraries);
    let [server, client] = side.run_pair(&side, network, port);
    server.expect_success();
    client.expect_success();
    client
}

/// Returns the numbers in perftest's table, from the line that begins with this size.
fn numbers(ended: &Finished, size: &str) -> Vec<f64> {
    let is_of_size = |line: &&str| line.split_whitespace().next() == Some(size);
    let line = ended.output.lines().find(is_of_size).unwrap_or_else(|| panic!("{ended}"));
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the ping-pong of `ethernot bench`. Returns the median of half the round-trip time, in
/// microseconds.
fn native_us() -> f64 {
    let folder = ethernot().parent().expect("it lies in a folder");
    let path = folder.join(format!("ping-pong-{}.json", std::process::id()));
    let arguments =
        "bench --links 1 --tests ping-pong --sizes 8 --transports edge --repetitions 1 --time 1";
    Program::new(&ethernot().display().to_string(), arguments)
        .argument(&"--json")
        .argument(&path.display())
        .run_bare(&Network::Loopback, Side::Server)
        .expect_success();
    let median_ns = latency_ns(&path);
    std::fs::remove_file(&path).expect("it was written");
    median_ns / 1000.0
}

/// Returns the first median in a result of `ethernot bench`, in nanoseconds.
fn latency_ns(path: &Path) -> f64 {
    let text = std::fs::read_to_string(path).expect("a result");
    let (_, rest) = text.split_once("\"latency_ns\"").expect("a latency");
    let (_, rest) = rest.split_once("\"median\":").expect("its median");
    let end = rest.find([',', '}', '\n']).expect("it ends");
    rest[..end].trim().parse().expect("a number")
}

/// Measures the latency of 8 bytes between namespaces, alternately with `program` and with the
/// ping-pong of `ethernot bench`. For each pair of runs computes the ratio of the two median
/// latencies. Returns the median of these ratios, and the median of the program's 99.9 % quantiles
/// in microseconds.
fn latency_against_native(port: u16, program: &str) -> Option<(f64, f64)> {
    if !are_installed(&[program]) {
        return None;
    }
    let network = Network::namespaces()?;
    let (mut ratios, mut tails) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let native = native_us();
        let client = client_of(&network, port + turn as u16, program, "-s 8 -n 20000");
        // Columns: size, repetitions, least, most, typical, average, deviation, 99 %, 99.9 %.
        let of_program = numbers(&client, "8");
        println!("{program}: {} us, native {native:.2} us", of_program[4]);
        ratios.push(of_program[4] / native);
        tails.push(of_program[8]);
    }
    Some((median(ratios), median(tails)))
}

#[test]
#[ignore = "slow: run by `./x acceptance verbs`; measures"]
fn latency_of_sends() {
    if let Some((ratio, _)) = latency_against_native(24_000, "ib_send_lat") {
        println!("figure: latency of sends against native: {ratio:.3}");
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance verbs`; measures"]
fn latency_of_writes() {
    if let Some((ratio, tail)) = latency_against_native(24_010, "ib_write_lat") {
        println!("figure: latency of writes against native: {ratio:.3}");
        println!("figure: latency of writes, 99.9 %: {tail:.1}");
    }
}

/// Returns the ratio of the throughput of RDMA writes of this size to TCP's throughput, measured
/// with iperf3.
fn throughput_against_tcp(port: u16, size: &str) -> Option<f64> {
    if !are_installed(&["ib_write_bw", "iperf3"]) {
        return None;
    }
    let network = Network::namespaces()?;
    let mut ratios = Vec::new();
    for turn in 0..TURNS as u16 {
        let tcp_port = port + 2 * turn;
        let mut server = Program::new("iperf3", &format!("-s -1 -p {tcp_port}"))
            .start_bare(&network, Side::Server);
        server.wait_for_listener(tcp_port);
        let client = Program::new("iperf3", &format!("-J -t 2 -l {size} -p {tcp_port} -c"))
            .argument(&network.server_address())
            .run_bare(&network, Side::Client);
        server.finish().expect_success();
        let tcp = received_bits(client.expect_success()) / 8.0 / 1_048_576.0;
        let client = client_of(&network, tcp_port + 1, "ib_write_bw", &format!("-s {size} -D 2"));
        // Columns: size, repetitions, peak, average in MiB/s, millions of messages per second.
        let of_program = numbers(&client, size)[3];
        println!("ib_write_bw -s {size}: {of_program} MiB/s, TCP {tcp:.1} MiB/s");
        ratios.push(of_program / tcp);
    }
    Some(median(ratios))
}

/// Returns the rate at which iperf3's receiver received data, in bits per second.
fn received_bits(json: &str) -> f64 {
    let (_, rest) = json.split_once("\"sum_received\"").expect("a sum");
    let (_, rest) = rest.split_once("\"bits_per_second\":").expect("its rate");
    let end = rest.find([',', '}', '\n']).expect("it ends");
    rest[..end].trim().parse().expect("a number")
}

#[test]
#[ignore = "slow: run by `./x acceptance verbs`; measures"]
fn throughput_of_writes() {
    for (port, name, size) in [(24_100, "64 KiB", "65536"), (24_200, "1 MiB", "1048576")] {
        if let Some(ratio) = throughput_against_tcp(port, size) {
            println!("figure: throughput of writes of {name} against TCP: {ratio:.3}");
        }
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance verbs`; measures"]
fn rate_of_small_writes() {
    if !are_installed(&["ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let rates = (0..TURNS as u16).map(|turn| {
        let client = client_of(&network, 24_300 + turn, "ib_write_bw", "-s 8 -q 1 -D 2");
        numbers(&client, "8")[4]
    });
    println!("figure: rate of small writes: {:.3}", median(rates.collect()));
}

/// The environment variable that names the folder with the libraries of another commit.
const OTHER: &str = "ETHERNOT_TEST_OTHER_LIBRARIES";

/// Number of runs of each program in comparisons that must show a difference of one per cent.
const TURNS_AGAINST_OTHER: u16 = 9;

/// Runs a program alternately with the libraries of this commit and with those of the other commit.
/// From each run reads the value in column `column` of the line of this size. For each pair of runs
/// divides this commit's value by the other commit's value. Returns the median of these ratios.
fn ratio_to_other(
    port: u16,
    program: &str,
    size: &str,
    arguments: &str,
    column: usize,
) -> Option<f64> {
    if !are_installed(&[program]) {
        return None;
    }
    let other = Libraries::of_other_commit(OTHER)?;
    let network = Network::namespaces()?;
    let arguments = format!("-s {size} {arguments}");
    let ratios = (0..TURNS_AGAINST_OTHER).map(|turn| {
        let port = port + 2 * turn;
        let [own, other] =
            [(Libraries::built(), port), (&other, port + 1)].map(|(libraries, port)| {
                let client = client_over(libraries, &network, port, program, &arguments);
                numbers(&client, size)[column]
            });
        println!("{program} {arguments}: {own}, {other} over the libraries of the other commit");
        own / other
    });
    Some(median(ratios.collect()))
}

#[test]
#[ignore = "slow: run by `./x acceptance faults`; measures"]
fn writes_against_another_commit() {
    // Column 4 of `ib_write_lat` is the typical time; column 3 of `ib_write_bw` is the average
    // rate.
    if let Some(ratio) = ratio_to_other(24_400, "ib_write_lat", "8", "-n 20000", 4) {
        println!("figure: speed of ib_write_lat against another commit: {:.3}", 1.0 / ratio);
    }
    if let Some(ratio) = ratio_to_other(24_450, "ib_send_lat", "8", "-n 20000", 4) {
        println!("figure: time of ib_send_lat against another commit: {ratio:.3}");
    }
    for (port, name, size) in [(24_500, "64 KiB", "65536"), (24_600, "1 MiB", "1048576")] {
        if let Some(ratio) = ratio_to_other(port, "ib_write_bw", size, "-D 2", 3) {
            println!("figure: speed of ib_write_bw of {name} against another commit: {ratio:.3}");
        }
    }
}
