//! Unmodified programs over an iWARP device against siw, the iWARP of Linux, which runs in the guest
//! of `cargo xtask guest build`. Without a guest, the tests are skipped.

use programs::{
    Card, Dissection, Ends, Finished, Guest, Meeting, Place, Program, Side, are_installed,
    build_client, expect_both, unusual_frames,
};

/// A server and its client. In their arguments, `PORT` stands for the server's port, `ADDRESS` for
/// the address by which the client reaches it, and `OWN` for the address at which it listens.
const CONNECTION_MANAGER: &[Meeting<'static>] = &[
    meeting("rping", "-s -a OWN -p PORT -v -C 100", "-c -a ADDRESS -p PORT -v -C 100"),
    meeting("ucmatose", "-p PORT -c 5 -C 10 -S 1000", "-p PORT -c 5 -C 10 -S 1000 -s ADDRESS"),
    Meeting {
        programs: ["rdma_server", "rdma_client"],
        server: "-p PORT",
        client: "-s ADDRESS -p PORT",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["cmtime"; 2],
        server: "-p PORT -c 20",
        client: "-s ADDRESS -p PORT -c 20",
        ends: Ends::Never,
    },
];

const fn meeting(
    program: &'static str,
    server: &'static str,
    client: &'static str,
) -> Meeting<'static> {
    Meeting { programs: [program; 2], server, client, ends: Ends::ByItself }
}

/// The programs of perftest.
const MEASUREMENTS: [&str; 6] =
    ["ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat"];

/// The programs of each setting of siw.
const FEW: [&str; 4] = ["ib_write_lat", "ib_read_bw", "ib_send_bw", "ib_send_lat"];

/// A guest, and what its runs have shown.
struct Trial {
    guest: Guest,
    /// Runs that failed, with the outputs of both sides.
    failures: Vec<String>,
    /// Frames that tshark calls malformed, FPDUs with a bad CRC, and bytes that it cannot decode.
    bad: u64,
    fpdus: u64,
    crcs: u64,
}

impl Trial {
    /// Starts a guest. Returns `None` if there is none, or a program is missing.
    fn start(card: Card, name: &str) -> Option<Self> {
        let needed = ["rping", "ucmatose", "rdma_server", "rdma_client", "cmtime", "tshark"];
        if !are_installed(&needed) || !are_installed(&MEASUREMENTS) {
            return None;
        }
        let guest = Guest::start(card, name)?;
        Some(Self { guest, failures: Vec::new(), bad: 0, fpdus: 0, crcs: 0 })
    }

    /// Runs a server and its client, first with the server in the guest, and then with the client
    /// there.
    fn run(&mut self, meeting: &Meeting<'_>) {
        for server in [Place::Guest, Place::Host] {
            let [of_server, of_client] = self.meet(meeting, server);
            self.dissect();
            let (of_siw, of_us) = match server {
                Place::Guest => (&of_server, &of_client),
                Place::Host => (&of_client, &of_server),
            };
            // A server that never ends was stopped.
            let is_stopped = |place| meeting.ends == Ends::Never && server == place;
            let siw_passes = of_siw.is_success() || is_stopped(Place::Guest);
            let we_pass = of_us.is_success() || is_stopped(Place::Host);
            if !(siw_passes && we_pass) {
                let messages = self.guest.messages();
                let shown = format!("server {of_server}\nclient {of_client}\n{messages}");
                println!("{shown}");
                self.failures.push(shown);
            }
        }
    }

    /// Runs a server on this side, and its client on the other. Returns the server's result and the
    /// client's.
    fn meet(&self, meeting: &Meeting<'_>, server: Place) -> [Finished; 2] {
        let guest = &self.guest;
        let words = |arguments: &str| {
            let own = guest.own_address(server).to_string();
            let address = guest.address(server).to_string();
            let port = guest.port(server).to_string();
            arguments.replace("OWN", &own).replace("ADDRESS", &address).replace("PORT", &port)
        };
        let [of_server, of_client] = meeting.programs;
        let (at_server, at_client) = (words(meeting.server), words(meeting.client));
        println!("server in {server:?}: {of_server} {at_server}; {of_client} {at_client}");
        let ours = |program: &str, arguments: &str| {
            Program::new(program, arguments).variable("ETHERNOT_DEVICE", "iwarp").unprivileged()
        };
        let (running, client) = match server {
            Place::Guest => {
                let running = guest.start_inside(&format!("{of_server} {at_server}"));
                guest.wait_for_listener();
                (running, ours(of_client, &at_client).run(guest.network(), Side::Client))
            }
            Place::Host => {
                let server = ours(of_server, &at_server);
                let mut running = server.start(guest.network(), Side::Client);
                running.wait_for_listener(guest.port(Place::Host));
                (running, guest.run_inside(&format!("{of_client} {at_client}")))
            }
        };
        match meeting.ends {
            Ends::ByItself => [running.finish_after(&client), client],
            Ends::Never => [running.stop(), client],
        }
    }

    /// Runs a program of perftest with these arguments in both directions.
    fn measure(&mut self, program: &str, arguments: &str) {
        let server = format!("-F -R -p PORT {arguments}");
        let client = format!("{server} ADDRESS");
        let meeting = Meeting {
            programs: [program; 2],
            server: &server,
            client: &client,
            ends: Ends::ByItself,
        };
        self.run(&meeting);
    }

    /// Reads the frames of the last run.
    fn dissect(&mut self) {
        let capture = self.guest.take_frames();
        let found = Dissection::of(&capture);
        let bad = found.malformed + found.bad_crcs + found.undecoded_bytes;
        if bad > 0 || found.decoded_bytes == 0 {
            let frames = unusual_frames(&capture);
            println!("{found:?}\n{frames}");
            self.failures.push(format!("in the capture: {found:?}\n{frames}"));
        }
        self.bad += bad;
        self.fpdus += found.fpdus;
        self.crcs += found.good_crcs;
    }

    /// Fails the test if a run has failed.
    #[track_caller]
    fn expect_success(self) {
        println!("{} FPDUs decoded, {} of them with a CRC", self.fpdus, self.crcs);
        println!("figure: bad frames: {}", self.bad);
        println!("figure: runs with siw that fail: {}", self.failures.len());
        let Self { guest, failures, .. } = self;
        drop(guest);
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    }
}

/// Runs all programs once, perftest with one size.
fn programs_meet_siw(card: Card, name: &str) {
    let Some(mut trial) = Trial::start(card, name) else { return };
    for meeting in CONNECTION_MANAGER {
        trial.run(meeting);
    }
    for program in MEASUREMENTS {
        trial.measure(program, "-s 20000 -n 20");
    }
    trial.expect_success();
}

#[test]
fn programs_meet_siw_over_the_user_network() {
    programs_meet_siw(Card::User, "user");
}

#[test]
fn programs_meet_siw_over_a_tap() {
    programs_meet_siw(Card::Tap, "tap");
}

/// Runs perftest with all sizes up to 8 MiB.
fn every_size_passes(card: Card, name: &str) {
    let Some(mut trial) = Trial::start(card, name) else { return };
    for program in MEASUREMENTS {
        trial.measure(program, "-a -n 5");
    }
    trial.expect_success();
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; takes minutes"]
fn every_size_passes_over_the_user_network() {
    every_size_passes(Card::User, "user-sizes");
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; takes minutes"]
fn every_size_passes_over_a_tap() {
    every_size_passes(Card::Tap, "tap-sizes");
}

/// siw reports `IBV_WC_LOC_QP_OP_ERR` for a message that it has sent if the end of the peer's stream
/// arrives before siw has returned from sending (`siw_qp_sq_proc_tx` checks `tx_suspend` before the
/// flag of the last segment). perftest prints `Bad wc status 2` then.
#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; takes minutes"]
fn siw_does_not_report_its_last_message_as_failed() {
    let Some(mut trial) = Trial::start(Card::User, "ends") else { return };
    for _ in 0..10 {
        for program in ["ib_send_bw", "ib_write_lat"] {
            trial.measure(program, "-s 20000 -n 20");
        }
    }
    trial.expect_success();
}

/// Parameters of siw, and those that set the defaults again. The word `rtr_types` has the bits
/// 0x8000 (write) and 0x4000 (read).
const SETTINGS: &[[&str; 2]] = &[
    ["mpa_crc_required=1", "mpa_crc_required=0"],
    ["peer_to_peer=1 rtr_types=0x8000", "peer_to_peer=0 rtr_types=0xc000"],
    ["peer_to_peer=1 rtr_types=0x4000", "peer_to_peer=0 rtr_types=0xc000"],
    ["peer_to_peer=1 rtr_types=0xc000", "peer_to_peer=0"],
    ["mpa_version=1", "mpa_version=2"],
    ["try_gso=1", "try_gso=0"],
    ["try_gso=1 zcopy_tx=0 mpa_crc_required=1", "try_gso=0 zcopy_tx=1 mpa_crc_required=0"],
];

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; takes minutes"]
fn programs_meet_siw_with_each_setting() {
    let Some(mut trial) = Trial::start(Card::User, "settings") else { return };
    for [wanted, default] in SETTINGS {
        println!("siw with {wanted}");
        trial.guest.set(wanted);
        let crcs = trial.crcs;
        for meeting in CONNECTION_MANAGER.iter().take(2) {
            trial.run(meeting);
        }
        for program in FEW {
            trial.measure(program, "-s 20000 -n 20");
        }
        if wanted.contains("mpa_crc_required") {
            assert!(trial.crcs > crcs, "no FPDU has a CRC with {wanted}");
        }
        trial.guest.set(default);
    }
    trial.expect_success();
}

/// Connects a thousand times to siw, with a message each way, and prints the longest wait for the
/// answer in milliseconds, and how the waits are distributed.
#[test]
#[ignore = "slow: run by `./x acceptance iwarp`; measures"]
fn a_thousand_connections_to_siw_are_answered() {
    let Some(program) = build_client("answers") else { return };
    let Some(guest) = Guest::start(Card::User, "answers") else { return };
    let inside = guest.share(&program);
    let (own, port) = (guest.own_address(Place::Guest), guest.port(Place::Guest));
    let server = guest.start_inside(&format!("{inside} serve {own} {port} {CONNECTIONS}"));
    guest.wait_for_listener();
    let arguments = format!("ask {} {port} {CONNECTIONS}", guest.address(Place::Guest));
    let client = Program::new(&program.display().to_string(), &arguments)
        .variable("ETHERNOT_DEVICE", "iwarp")
        .unprivileged()
        .run(guest.network(), Side::Client);
    let ended = [server.finish_after(&client), client];
    expect_both(&ended);
    let [_, client] = ended;
    print!("{}", client.output);
    assert!(client.output.contains("figure: longest wait for the answer of siw: "), "{client}");
}

const CONNECTIONS: u32 = 1000;
