//! Programs over links that lose, duplicate and reorder frames. The faults must not change the
//! programs' results.

use programs::{Network, Program, are_installed, expect_both};

/// Faults of the links.
const FAULTS: &str = "loss=0.01,dup=0.01,reorder=0.05";

/// Eight programs, with arguments that make each of them verify or count the received data.
const PROGRAMS: [(&str, &str); 8] = [
    ("ibv_rc_pingpong", "-g 0 -n 300 -c"),
    ("ibv_rc_pingpong", "-g 0 -n 300 -e -s 65536 -c"),
    ("ibv_srq_pingpong", "-g 0 -n 100 -q 4"),
    ("ib_write_bw", "-F -n 300"),
    ("ib_write_lat", "-F -n 300"),
    ("ib_read_bw", "-F -n 300 -s 16384"),
    ("ib_send_bw", "-F -n 300 -e"),
    ("ib_atomic_lat", "-F -n 300"),
];

/// Runs each program `times` times. Returns the number of runs.
fn run_each(times: u16) -> u32 {
    if !are_installed(&PROGRAMS.map(|(program, _)| program)) {
        return 0;
    }
    let Some(network) = Network::namespaces() else { return 0 };
    let mut runs = 0;
    for time in 0..times {
        for (program, arguments) in PROGRAMS {
            // Each run has a new port, because a program cannot listen on a port right after a
            // connection on it has ended.
            let port = 23_000 + time * 8 + runs as u16 % 8;
            let side = Program::new(program, &format!("-p {port} {arguments}"));
            let side = side.variable("ETHERNOT_FAULTS", FAULTS);
            expect_both(&side.run_pair(&side, &network, port));
            runs += 1;
        }
    }
    runs
}

#[test]
fn eight_programs_pass_over_links_with_faults() {
    run_each(1);
}

#[test]
#[ignore = "slow: run by `./x acceptance verbs`; the same twenty times: takes minutes"]
fn eight_programs_pass_twenty_times_over_links_with_faults() {
    let runs = run_each(20);
    if runs > 0 {
        println!("figure: runs over links with faults: {runs}");
    }
}
