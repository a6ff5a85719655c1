//! Unmodified programs that connect through the connection manager over an iWARP device. Both ends
//! are of this project.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use programs::{
    Ends, Finished, Meeting, Network, Program, Running, Side, are_installed, build_client,
    expect_both, over_us,
};

/// Loopback, and two hosts if this process may create namespaces.
fn networks() -> impl Iterator<Item = Network> {
    std::iter::once(Network::Loopback).chain(Network::namespaces())
}

/// Describes a program that sees an iWARP device and no other device.
fn over_iwarp(program: &str, arguments: &str) -> Program {
    Program::new(program, arguments).variable("ETHERNOT_DEVICE", "iwarp")
}

/// Runs a server and its client on both networks.
fn runs(port: u16, programs: [&str; 2], server: &str, client: &str, ends: Ends) {
    if !are_installed(&programs) {
        return;
    }
    for network in networks() {
        Meeting { programs, server, client, ends }.run_over_iwarp(&network, port);
    }
}

/// Runs a program of perftest with each of these arguments over this network.
fn measures(network: &Network, port: u16, program: &str, kinds: &[&str]) {
    for kind in kinds {
        let server = format!("-F -R -p PORT {kind}");
        let client = format!("{server} ADDRESS");
        let (programs, ends) = ([program; 2], Ends::ByItself);
        let meeting = Meeting { programs, server: &server, client: &client, ends };
        meeting.run_over_iwarp(network, port);
    }
}

/// Runs a program of perftest with each of these arguments over both networks.
fn perftest(port: u16, program: &str, kinds: &[&str]) {
    if are_installed(&[program]) {
        networks().for_each(|network| measures(&network, port, program, kinds));
    }
}

/// Checks that a program ended by itself with an error: that it neither hung nor crashed.
#[track_caller]
fn expect_error(ended: &Finished) {
    assert!(!ended.is_late && ended.status.code().is_some_and(|code| code != 0), "{ended}");
}

#[test]
fn the_command_gives_programs_the_devices_that_it_names() {
    if !are_installed(&["ibv_devinfo"]) {
        return;
    }
    for (options, devices) in [
        ("--device iwarp", &["iwarp0"][..]),
        ("--device edge,iwarp", &["edge0", "iwarp0"]),
        ("--device iwarp=left,iwarp=right", &["left", "right"]),
    ] {
        let listed = over_us(options, &Program::new("ibv_devinfo", ""))
            .run_bare(&Network::Loopback, Side::Server);
        let lines = listed.expect_success().lines();
        let names: Vec<_> = lines.filter_map(|line| line.strip_prefix("hca_id:\t")).collect();
        assert_eq!(names, devices, "{listed}");
        let transports = listed.output.matches("iWARP (1)").count();
        assert_eq!(transports, devices.iter().filter(|name| **name != "edge0").count(), "{listed}");
    }
}

#[test]
fn rping() {
    let (server, client) = ("-s -a ADDRESS -p PORT -C 100", "-c -a ADDRESS -p PORT -v -C 100");
    runs(26_000, ["rping", "rping"], server, client, Ends::ByItself);
}

#[test]
fn rping_with_a_queue_pair_of_its_own() {
    // With `-q`, rping creates the queue pair itself and makes its transitions.
    let (server, client) = ("-s -q -a ADDRESS -p PORT -C 20", "-c -q -a ADDRESS -p PORT -v -C 20");
    runs(26_005, ["rping", "rping"], server, client, Ends::ByItself);
}

#[test]
fn ucmatose() {
    let both = "-p PORT -c 20 -C 10 -S 1000";
    runs(26_010, ["ucmatose"; 2], both, &format!("{both} -s ADDRESS"), Ends::ByItself);
    // With `-m`, connection identifiers move from one event channel to another.
    let both = "-p PORT -c 4 -m";
    runs(26_011, ["ucmatose"; 2], both, &format!("{both} -s ADDRESS"), Ends::ByItself);
}

#[test]
fn rdma_client_and_server() {
    let programs = ["rdma_server", "rdma_client"];
    runs(26_020, programs, "-p PORT", "-s ADDRESS -p PORT", Ends::ByItself);
}

#[test]
fn cmtime() {
    let (server, client) = ("-p PORT -c 200", "-s ADDRESS -p PORT -c 200");
    runs(26_030, ["cmtime"; 2], server, client, Ends::Never);
}

/// Arguments of bandwidth measurements. With `-a`, sizes go up to 8 MiB, so there are few
/// iterations.
const BANDWIDTH: &[&str] = &["-n 500", "-a -n 10", "-n 300 -b", "-n 300 -q 4"];
/// Arguments of latency measurements.
const LATENCY: &[&str] = &["-n 500", "-a -n 10"];

#[test]
fn write_bw() {
    perftest(26_040, "ib_write_bw", BANDWIDTH);
}

#[test]
fn write_lat() {
    perftest(26_050, "ib_write_lat", LATENCY);
}

#[test]
fn read_bw() {
    perftest(26_060, "ib_read_bw", BANDWIDTH);
    perftest(26_060, "ib_read_bw", &["-n 300 -e"]);
}

#[test]
fn read_lat() {
    perftest(26_070, "ib_read_lat", LATENCY);
}

/// Without completion events (`-e`): over iWARP, the client of `ib_send_bw` sends its last message only
/// after a write of the server, which is a credit. A write raises no event, so on a busy host the
/// client sleeps for ever.
#[test]
fn send_bw() {
    perftest(26_080, "ib_send_bw", BANDWIDTH);
}

#[test]
fn send_lat() {
    perftest(26_090, "ib_send_lat", LATENCY);
    perftest(26_090, "ib_send_lat", &["-n 300 -e"]);
}

#[test]
fn programs_pass_with_jumbo_frames() {
    let programs = ["ib_write_bw", "ib_read_bw", "ib_send_lat"];
    if !are_installed(&programs) {
        return;
    }
    let Some(network) = Network::namespaces_with_mtu(9000) else { return };
    for (program, port) in programs.into_iter().zip(26_100..) {
        measures(&network, port, program, &["-a -n 10"]);
    }
}

/// Asks for markers, for CRCs, and for both.
const FRAMING: [&[(&str, &str)]; 3] = [
    &[("ETHERNOT_IWARP_MARKERS", "1")],
    &[("ETHERNOT_IWARP_CRC", "1")],
    &[("ETHERNOT_IWARP_MARKERS", "1"), ("ETHERNOT_IWARP_CRC", "1")],
];

/// Runs programs that write, send and read, from this port on, with each of these environments.
fn programs_pass_with(first_port: u16, networks: &[Network], environments: &[&[(&str, &str)]]) {
    let all_sizes = ("-F -R -p PORT -a -n 10", "-F -R -p PORT -a -n 10 ADDRESS");
    let both_ways = ("-F -R -p PORT -n 300 -b", "-F -R -p PORT -n 300 -b ADDRESS");
    let list = [
        ("rping", ("-s -a ADDRESS -p PORT -C 100", "-c -a ADDRESS -p PORT -v -C 100")),
        ("ib_write_bw", all_sizes),
        ("ib_send_bw", both_ways),
        ("ib_read_bw", all_sizes),
    ];
    let list = list.into_iter().zip(first_port..).filter(|((name, _), _)| are_installed(&[name]));
    for ((program, (server, client)), port) in list {
        let meeting = Meeting { programs: [program; 2], server, client, ends: Ends::ByItself };
        for network in networks {
            for variables in environments {
                println!("{variables:?}");
                meeting.run_over_iwarp_with(network, port, variables);
            }
        }
    }
}

#[test]
fn programs_pass_with_markers_and_with_crcs() {
    let networks: Vec<_> = networks().collect();
    programs_pass_with(26_110, &networks, &FRAMING);
}

#[test]
fn programs_pass_with_faults_in_their_streams_and_with_other_lengths_of_frames() {
    let faults: &[_] = &[("ETHERNOT_FAULTS", "delay=0.02,cut=0.3"), ("ETHERNOT_IWARP_CRC", "1")];
    let short: &[_] = &[("ETHERNOT_IWARP_FPDU", "200")];
    programs_pass_with(26_115, &[Network::Loopback], &[faults, short]);
}

#[test]
fn sixteen_processes_are_connected_in_pairs() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in networks() {
        let address = network.server_address();
        let ports = 26_120..26_128;
        let rping = |arguments: &str, port: u16| {
            over_iwarp("rping", &format!("{arguments} -a {address} -p {port} -v -C 200"))
        };
        let start = |port: u16| rping("-s", port).start(&network, Side::Server);
        let mut servers: Vec<_> = ports.clone().map(start).collect();
        for (server, port) in servers.iter_mut().zip(ports.clone()) {
            server.wait_for_listener(port);
        }
        let start = |port: u16| rping("-c", port).start(&network, Side::Client);
        let clients: Vec<_> = ports.map(start).collect();
        for (server, client) in servers.into_iter().zip(clients) {
            expect_both(&[server.finish(), client.finish()]);
        }
    }
}

/// Runs rping over `devices`. Returns the UDP datagrams and the TCP segments that the client's host
/// sent.
fn sent_by_client(
    network: &Network,
    port: u16,
    devices: &str,
    wait: fn(&mut Running, u16),
) -> [u64; 2] {
    let address = network.server_address();
    let rping = |arguments: &str| {
        let arguments = format!("{arguments} -a {address} -p {port} -C 100");
        Program::new("rping", &arguments).variable("ETHERNOT_DEVICE", devices)
    };
    let before = network.sent(Side::Client);
    let mut server = rping("-s").start(network, Side::Server);
    wait(&mut server, port);
    let client = rping("-c").run(network, Side::Client);
    expect_both(&[server.finish(), client]);
    let sent = network.sent(Side::Client) - before;
    [sent.datagrams, sent.segments]
}

#[test]
fn of_two_devices_with_an_address_the_first_one_connects() {
    if !are_installed(&["rping"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let wait = Running::wait_for_manager_port;
    let [datagrams, segments] = sent_by_client(&network, 26_130, "edge,iwarp", wait);
    assert!(datagrams >= 100 && segments == 0, "{datagrams} datagrams, {segments} segments");
    let wait = Running::wait_for_listener;
    let [_, segments] = sent_by_client(&network, 26_131, "iwarp,edge", wait);
    assert!(segments >= 100, "{segments} segments");
}

#[test]
fn a_port_is_free_again_after_its_program_has_ended() {
    if !are_installed(&["rping"]) {
        return;
    }
    let server = "-s -a ADDRESS -p PORT -C 1";
    let client = "-c -a ADDRESS -p PORT -C 1";
    let meeting = Meeting { programs: ["rping"; 2], server, client, ends: Ends::ByItself };
    for _ in 0..5 {
        meeting.run_over_iwarp(&Network::Loopback, 26_140);
    }
}

#[test]
fn a_port_belongs_to_one_process() {
    if !are_installed(&["rping"]) {
        return;
    }
    let server = over_iwarp("rping", "-s -a 127.0.0.1 -p 26150");
    let mut first = server.start(&Network::Loopback, Side::Server);
    first.wait_for_listener(26_150);
    let second = server.run(&Network::Loopback, Side::Server);
    expect_error(&second);
    assert!(second.output.contains("Address already in use"), "{second}");
}

/// Runs rping's client against a port.
fn asks(network: &Network, port: u16) -> Finished {
    let address = network.server_address();
    let client = over_iwarp("rping", &format!("-c -a {address} -p {port} -C 1"));
    client.run(network, Side::Client)
}

#[test]
fn a_port_at_which_no_program_listens_refuses_the_connection() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in networks() {
        let asked = asks(&network, 26_160);
        expect_error(&asked);
        // 111 is ECONNREFUSED.
        assert!(asked.output.contains("RDMA_CM_EVENT_REJECTED, error -111"), "{asked}");
    }
}

/// What a TCP server without iWARP does with a connection.
#[derive(Clone, Copy, Debug)]
enum Stranger {
    Greets,
    Closes,
    IsSilent,
}

/// Runs rping's client against a TCP server that is not an iWARP peer.
fn asks_stranger(stranger: Stranger) -> Finished {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (client_runs, client_ended) = mpsc::channel::<()>();
    // The thread is not joined, because it would wait for a client that fails before it connects.
    thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("the client connects");
        match stranger {
            Stranger::Greets => connection.write_all(b"hello, who are you?\r\n").expect("room"),
            Stranger::Closes => connection.shutdown(Shutdown::Both).expect("it is connected"),
            Stranger::IsSilent => {}
        }
        // Keep the connection until the client has ended and the other end of the channel is
        // dropped.
        let _ = client_ended.recv();
    });
    let asked = asks(&Network::Loopback, port);
    drop(client_runs);
    asked
}

#[test]
fn a_tcp_server_that_is_no_iwarp_peer_gives_an_error() {
    if !are_installed(&["rping"]) {
        return;
    }
    let asked = asks_stranger(Stranger::Greets);
    expect_error(&asked);
    // 22 is EINVAL.
    assert!(asked.output.contains("RDMA_CM_EVENT_CONNECT_ERROR, error -22"), "{asked}");
    expect_error(&asks_stranger(Stranger::Closes));
}

#[test]
fn a_tcp_server_that_does_not_answer_is_given_up() {
    if !are_installed(&["rping"]) {
        return;
    }
    let asked = asks_stranger(Stranger::IsSilent);
    expect_error(&asked);
    // 110 is ETIMEDOUT.
    assert!(asked.output.contains("RDMA_CM_EVENT_UNREACHABLE, error -110"), "{asked}");
}

#[test]
fn bytes_that_are_no_request_do_not_disturb_a_server() {
    if !are_installed(&["rping"]) {
        return;
    }
    let network = Network::Loopback;
    let mut server =
        over_iwarp("rping", "-s -a 127.0.0.1 -p 26170 -C 1").start(&network, Side::Server);
    server.wait_for_listener(26_170);
    let requests: [&[u8]; 3] =
        [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"MPA ID Req Frame"];
    let kept: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let to = ("127.0.0.1", 26_170);
            let mut connection = TcpStream::connect(to).expect("the server listens");
            connection.write_all(request).expect("room");
            connection
        })
        .collect();
    expect_both(&[asks(&network, 26_170), server.finish()]);
    drop(kept);
}

/// Starts a measurement of writes that lasts for minutes. Returns the server and the client when
/// writes are in flight.
fn writing(network: &Network, port: u16) -> [Running; 2] {
    let server = format!("-F -R -D 200 -p {port}");
    let client = format!("{server} {}", network.server_address());
    let mut server = over_iwarp("ib_write_bw", &server).start(network, Side::Server);
    server.wait_for_listener(port);
    let before = network.sent(Side::Client);
    let mut client = over_iwarp("ib_write_bw", &client).start(network, Side::Client);
    // The programs exchange far fewer segments before they measure.
    client
        .wait_until("does not write", |_| (network.sent(Side::Client) - before).segments > 10_000);
    [server, client]
}

#[test]
fn a_client_whose_server_is_killed_ends_with_an_error() {
    if !are_installed(&["ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let [server, client] = writing(&network, 26_180);
    server.signal("KILL");
    expect_error(&client.finish());
}

#[test]
fn a_server_whose_client_is_killed_ends_with_an_error() {
    if !are_installed(&["ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let [server, client] = writing(&network, 26_181);
    client.signal("KILL");
    expect_error(&server.finish());
}

#[test]
fn an_idle_program_gets_an_event_when_its_peer_is_killed() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in networks() {
        let address = network.server_address();
        let server = over_iwarp("rping", &format!("-s -a {address} -p 26190 -v"));
        let mut running = server.start(&network, Side::Server);
        running.wait_for_listener(26_190);
        // The client never exits, so the test kills it.
        let client = over_iwarp("rping", &format!("-c -a {address} -p 26190"));
        let client = client.start(&network, Side::Client);
        running.wait_for_output("rdma-ping-1:");
        client.signal("KILL");
        let ended = running.finish();
        assert!(!ended.is_late && ended.output.contains("DISCONNECT"), "{ended}");
    }
}

/// Prints the longest time until the peer of a killed program has ended, in seconds, with the
/// time that the peer itself takes to end.
#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn killed_programs_are_reported() {
    if !are_installed(&["ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let mut worst_s: f64 = 0.0;
    for turn in 0..6 {
        let mut ends = writing(&network, 26_200 + turn);
        ends.rotate_left(usize::from(turn % 2));
        let [killed, other] = ends;
        killed.signal("KILL");
        let since = Instant::now();
        expect_error(&other.finish());
        worst_s = worst_s.max(since.elapsed().as_secs_f64());
    }
    println!("figure: until the peer of a killed program ends: {worst_s:.3}");
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn a_cut_cable_is_reported() {
    if !are_installed(&["ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let [server, client] = writing(&network, 26_210);
    network.set_link(false);
    let since = Instant::now();
    for program in [client, server] {
        expect_error(&program.finish());
        println!("one side has ended after {:.3} s", since.elapsed().as_secs_f64());
    }
    println!("figure: until a cut cable is reported: {:.3}", since.elapsed().as_secs_f64());
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; waits for ten seconds"]
#[expect(clippy::disallowed_methods, reason = "the time of the stop is what the test is about")]
fn a_peer_that_is_stopped_for_a_while_keeps_its_connection() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in networks() {
        let both = format!("-a {} -p 26220 -v -C 20000", network.server_address());
        let mut server = over_iwarp("rping", &format!("-s {both}")).start(&network, Side::Server);
        server.wait_for_listener(26_220);
        let client = over_iwarp("rping", &format!("-c {both}")).start(&network, Side::Client);
        server.wait_for_output("rdma-ping-1:");
        server.signal("STOP");
        thread::sleep(Duration::from_secs(5));
        server.signal("CONT");
        expect_both(&[server.finish(), client.finish()]);
    }
}

/// Returns the frames of a capture that tshark decodes with a filter, with these fields. Without
/// the first option, tshark takes some short messages for NFS over RDMA; without the last, it may
/// take the bytes for those of another protocol, if a client's port is known for that.
fn decoded(path: &Path, filter: &str, fields: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(path).args([
        "-Y",
        filter,
        "-T",
        "fields",
        "-o",
        "tcp.check_checksum:TRUE",
        "-o",
        "tcp.try_heuristic_first:TRUE",
    ]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a server and its client with a capture file each, and checks that tshark decodes the
/// bytes of both without an error. Returns the opcodes of RDMAP that it finds.
fn is_captured(name: &str, meeting: &Meeting<'_>, port: u16, crc: &str) -> String {
    let folder = std::env::temp_dir();
    let pattern = folder.join(format!("ethernot-iwarp-{name}-{}-%p.pcapng", std::process::id()));
    let pattern = pattern.to_string_lossy().into_owned();
    let variables = [("ETHERNOT_PCAP", pattern.as_str()), ("ETHERNOT_IWARP_CRC", crc)];
    meeting.run_over_iwarp_with(&Network::Loopback, port, &variables);
    let (before, _) = pattern.split_once("%p").expect("it is there");
    let files = std::fs::read_dir(&folder).expect("the folder is there").flatten();
    let files = files.map(|file| file.path());
    let files: Vec<_> = files.filter(|path| path.to_string_lossy().starts_with(before)).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let mut opcodes = String::new();
    for file in files {
        for wrong in [
            "_ws.malformed",
            "tcp.checksum.status == Bad",
            "ip.checksum.status == Bad",
            "tcp.analysis.lost_segment or tcp.analysis.retransmission",
            "iwarp_mpa.bad_length",
        ] {
            assert_eq!(decoded(&file, wrong, &["frame.number"]), "", "{name}: {wrong}");
        }
        let setup = decoded(&file, "iwarp_mpa.req or iwarp_mpa.rep", &["iwarp_mpa.crc_flag"]);
        // perftest connects twice. Each set-up has a request and a reply.
        let lines: Vec<_> = setup.lines().collect();
        let agree = lines.iter().all(|line| *line == crc) && lines.len().is_multiple_of(2);
        assert!(!lines.is_empty() && agree, "{name}: {setup}");
        opcodes += &decoded(&file, "iwarp_rdma", &["iwarp_rdma.opcode"]);
        std::fs::remove_file(&file).expect("it is there");
    }
    opcodes
}

#[test]
fn captures_are_decoded_without_errors() {
    if !are_installed(&["rping", "ib_write_bw", "tshark"]) {
        return;
    }
    for (crc, port) in [("0", 26_230), ("1", 26_232)] {
        let (server, client) = ("-s -a ADDRESS -p PORT -C 20", "-c -a ADDRESS -p PORT -v -C 20");
        let meeting = Meeting { programs: ["rping"; 2], server, client, ends: Ends::ByItself };
        let opcodes = is_captured("rping", &meeting, port, crc);
        // Write, Read Request, Read Response and Send.
        for opcode in ["0x00", "0x01", "0x02", "0x03"] {
            assert!(opcodes.contains(opcode), "{opcode}: {opcodes}");
        }
        let (server, client) = ("-F -R -p PORT -n 20", "-F -R -p PORT -n 20 ADDRESS");
        let programs = ["ib_write_bw"; 2];
        let meeting = Meeting { programs, server, client, ends: Ends::ByItself };
        let opcodes = is_captured("write", &meeting, port + 1, crc);
        // Each end has at least twenty writes.
        assert!(opcodes.matches("0x00").count() >= 40, "{opcodes}");
    }
}

/// Runs a program that needs what iWARP lacks, with the exchange of its parameters over TCP port
/// `port`. Both sides must end with an error.
fn is_refused(port: u16, program: &str, arguments: &str) {
    if !are_installed(&[program]) {
        return;
    }
    println!("{program} {arguments}");
    let side = over_iwarp(program, &format!("-p {port} {arguments}"));
    let ended = side.run_pair(&side, &Network::Loopback, port);
    ended.iter().for_each(expect_error);
}

#[test]
fn datagrams_are_refused() {
    is_refused(26_300, "ib_send_bw", "-F -c UD");
    is_refused(26_301, "ibv_ud_pingpong", "-g 0");
    if are_installed(&["udaddy"]) {
        let asked = over_iwarp("udaddy", "-s 127.0.0.1").run(&Network::Loopback, Side::Client);
        expect_error(&asked);
    }
}

#[test]
fn unreliable_connections_are_refused() {
    is_refused(26_310, "ib_write_bw", "-F -c UC");
    is_refused(26_311, "ibv_uc_pingpong", "-g 0");
}

#[test]
fn connections_without_the_connection_manager_are_refused() {
    is_refused(26_320, "ibv_rc_pingpong", "-g 0");
    is_refused(26_321, "ib_write_bw", "-F");
}

#[test]
fn atomics_are_refused() {
    is_refused(26_330, "ib_atomic_bw", "-F -R -n 500");
    is_refused(26_331, "ib_atomic_lat", "-F -R -n 500");
}

#[test]
fn refused_posts_and_connections_are_logged_with_the_reason() {
    let reason = |operation: &str| {
        format!(
            "ethernot: ibv_post_send: invalid argument: {operation}: not possible on Reliable queue pairs \
             of iwarp0, a device with the transport iWARP"
        )
    };
    let operations = [
        "RDMA write with an immediate",
        "send with an immediate",
        "atomic compare and swap",
        "atomic fetch and add",
    ];
    if let Some(client) = build_client("refused_posts") {
        let client = over_iwarp(&client.display().to_string(), "");
        let ended = client.variable("ETHERNOT_LOG", "debug").run(&Network::Loopback, Side::Server);
        assert!(ended.expect_success().contains("done"), "{ended}");
        for line in operations.map(reason) {
            assert_eq!(ended.output.matches(&line).count(), 1, "{line}: {ended}");
        }
    }
    if are_installed(&["ibv_rc_pingpong"]) {
        let side = over_iwarp("ibv_rc_pingpong", "-p 26340 -g 0").variable("ETHERNOT_LOG", "debug");
        let [server, client] = side.run_pair(&side, &Network::Loopback, 26_340);
        let reason = "ibv_modify_qp cannot connect queue pairs of iwarp0";
        assert!([&server, &client].iter().any(|ended| ended.output.contains(reason)), "{server}");
    }
}

#[test]
fn shared_receive_queues() {
    // `ibv_srq_pingpong` connects by `ibv_modify_qp`, and its client reads for ever when its server
    // has ended.
    // With several queue pairs, ib_send_bw sends more messages than its shared queue has receives. On
    // a busy host, the receives may come too late.
    perftest(26_341, "ib_send_bw", &["-n 500 --use-srq"]);
    perftest(26_342, "ib_send_lat", &["-n 500 --use-srq", "-n 300 -e --use-srq"]);
}
