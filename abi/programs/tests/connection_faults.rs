//! Programs that connect through the connection manager, over links that lose, duplicate and
//! reorder frames. The faults must not change the programs' results. Also tests the errors for
//! wrong calls, and for peers that reject or die.

use std::thread;

use programs::{Ends, Finished, Meeting, Network, Program, Side, are_installed, build_client};

/// Faults of the links.
const FAULTS: [(&str, &str); 1] = [("ETHERNOT_FAULTS", "loss=0.01,dup=0.01,reorder=0.05")];

/// Programs, with arguments that make each of them verify or count the received data. The list does
/// not contain `udaddy`, because its datagrams are not retransmitted. `udaddy` would fail even
/// without datagrams: its server ends immediately after accepting, although the frame that reports
/// the acceptance may be lost.
const MEETINGS: [Meeting<'_>; 6] = [
    Meeting {
        programs: ["rping"; 2],
        server: "-s -a ADDRESS -p PORT -C 100",
        client: "-c -a ADDRESS -p PORT -v -C 100",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["ucmatose"; 2],
        server: "-p PORT -c 10 -C 10 -S 1000",
        client: "-p PORT -c 10 -C 10 -S 1000 -s ADDRESS",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["rdma_server", "rdma_client"],
        server: "-p PORT",
        client: "-s ADDRESS -p PORT",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["ib_write_bw"; 2],
        server: "-F -R -p PORT -n 300",
        client: "-F -R -p PORT -n 300 ADDRESS",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["ib_send_bw"; 2],
        server: "-F -R -p PORT -n 300",
        client: "-F -R -p PORT -n 300 ADDRESS",
        ends: Ends::ByItself,
    },
    Meeting {
        programs: ["cmtime"; 2],
        server: "-p PORT -c 50",
        client: "-p PORT -c 50 -s ADDRESS",
        ends: Ends::Never,
    },
];

/// Runs each program `times` times. Returns the number of runs.
fn run_each(first_port: u16, times: u16) -> u32 {
    if !are_installed(&MEETINGS.map(|meeting| meeting.programs[0])) {
        return 0;
    }
    let Some(network) = Network::namespaces() else { return 0 };
    let mut runs = 0;
    for time in 0..times {
        for (meeting, number) in MEETINGS.iter().zip(0..) {
            let port = first_port + time * MEETINGS.len() as u16 + number;
            meeting.run(&network, port, &FAULTS);
            runs += 1;
        }
    }
    runs
}

#[test]
fn programs_pass_over_links_with_faults() {
    run_each(23_200, 1);
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; the same twenty times: takes minutes"]
fn programs_pass_twenty_times() {
    let runs = run_each(23_300, 20);
    if runs > 0 {
        println!("figure: runs of rdma_cm programs over links with faults: {runs}");
    }
}

/// Runs these cases of the client in parallel. Each case mostly waits, so this saves time.
fn run_cases(program: &str, names: &[&str]) {
    let run = |name: &&str| Program::new(program, name).run(&Network::Loopback, Side::Server);
    let ended: Vec<Finished> = thread::scope(|scope| {
        let started: Vec<_> = names.iter().map(|name| scope.spawn(move || run(name))).collect();
        started.into_iter().map(|case| case.join().expect("it does not panic")).collect()
    });
    let wrong: Vec<String> =
        ended.iter().filter(|ended| !ended.is_success()).map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The case that takes a minute.
const SLOW: &str = "no_answer";

#[test]
fn programs_get_errors_for_wrong_calls_and_for_peers_that_refuse_or_die() {
    let Some(client) = build_client("bad_manager") else { return };
    let client = client.display().to_string();
    let names = Program::new(&client, "list").run(&Network::Loopback, Side::Server);
    let names: Vec<&str> = names.expect_success().lines().filter(|name| *name != SLOW).collect();
    assert!(names.len() > 10, "{names:?}");
    run_cases(&client, &names);
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; takes a minute"]
fn connecting_to_a_silent_host_fails_after_a_minute() {
    let Some(client) = build_client("bad_manager") else { return };
    run_cases(&client.display().to_string(), &[SLOW]);
}

#[test]
fn connecting_to_an_address_without_a_host_fails() {
    let Some(client) = build_client("connections") else { return };
    let Some(network) = Network::namespaces() else { return };
    let at = match network.server_address() {
        std::net::IpAddr::V4(at) => std::net::Ipv4Addr::from(u32::from(at) ^ 0x10),
        std::net::IpAddr::V6(_) => return,
    };
    let words = format!("idle {at} 7471");
    let asked = Program::new(&client.display().to_string(), &words).run(&network, Side::Client);
    assert!(!asked.is_success() && !asked.is_late, "{asked}");
    assert!(asked.output.contains("RDMA_CM_EVENT_UNREACHABLE (status -110)"), "{asked}");
    // Without a route the address cannot be resolved, so the program must fail.
    let asked = Program::new(&client.display().to_string(), "idle 192.0.2.99 7471");
    let asked = asked.run(&network, Side::Client);
    assert!(!asked.is_success() && !asked.is_late, "{asked}");
    assert!(asked.output.contains("RDMA_CM_EVENT_ADDR_ERROR (status -101)"), "{asked}");
}
