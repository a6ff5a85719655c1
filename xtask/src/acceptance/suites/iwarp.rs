//! The iWARP device.

use super::{none_fails, printed, verdicts};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// A row about a slow test of programs that prints a figure.
const fn slow(name: &'static str, bound: Bound, part: &'static str, figure: &'static str) -> Row {
    let (package, target) = ("programs", "--test=iwarp");
    printed(name, bound, figure, Tests { package, target, part, part_quick: None })
}

/// A row about the edge device's speed, compared with the commit of `--against`.
const fn against(name: &'static str, bound: Bound, figure: &'static str) -> Row {
    let (package, target) = ("programs", "--test=speeds");
    let tests = Tests { package, target, part: "against_another_commit", part_quick: None };
    Row { name, bound, bound_quick: None, probe: Probe::AgainstPrinted { tests, name: figure } }
}

/// A row about the ratio of two figures that `tools/guest/device-figures` prints, with their unit.
const fn in_guest(
    name: &'static str,
    bound: Bound,
    (of, to, unit): (&'static str, &'static str, &'static str),
) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::InGuest { of, to, unit } }
}

/// The last commit before the verbs had room for a second wire.
pub(super) const BEFORE: &str = "3b0f65a3";

/// A row about a slow test that measures, and prints a figure.
const fn measured(
    name: &'static str,
    bound: Bound,
    part: &'static str,
    figure: &'static str,
) -> Row {
    let (package, target) = ("programs", "--test=iwarp_speeds");
    printed(name, bound, figure, Tests { package, target, part, part_quick: None })
}

/// The quick tests with siw.
const SIW: Tests = Tests {
    package: "programs",
    target: "--test=siw",
    part: "programs_meet_siw",
    part_quick: Some("programs_meet_siw_over"),
};

pub(super) const ROWS: &[Row] = &[
    none_fails(
        "programs of rdma-core and perftest with siw in a guest, each side connecting in turn",
        "programs",
        "--test siw programs_meet_siw_over",
        true,
    ),
    none_fails(
        "same, perftest with all sizes up to 8 MiB",
        "programs",
        "--test siw every_size_passes -- --ignored",
        false,
    ),
    none_fails(
        "same with required CRC, peer-to-peer mode with each RTR, revision 1, segmentation offload",
        "programs",
        "--test siw programs_meet_siw_with_each_setting -- --ignored",
        false,
    ),
    none_fails(
        "40 runs of perftest after which siw does not report its last message as failed",
        "programs",
        "--test siw siw_does_not_report -- --ignored",
        false,
    ),
    printed(
        "1000 connects with siw as the passive side: longest wait for the first answer",
        Bound::AtMost(100.0, "ms"),
        "longest wait for the answer of siw",
        Tests { part: "a_thousand_connections_to_siw", part_quick: None, ..SIW },
    ),
    none_fails(
        "unmodified programs between own ends, bad peers, refused requests",
        "programs",
        "--test iwarp",
        true,
    ),
    none_fails(
        "same with markers, with CRC, and with both",
        "programs",
        "--test iwarp programs_pass_with_markers_and_with_crcs",
        true,
    ),
    none_fails(
        "libfabric and Open MPI between own ends, when asked for iwarp0; UCX names what it lacks",
        "programs",
        "--test iwarp_frameworks",
        true,
    ),
    none_fails(
        "every frame of the captures of siw decoded, and encoded to the same bytes",
        "wire-iwarp",
        "--test golden",
        true,
    ),
    printed(
        "tshark on a capture of each of these runs: malformed frames, bad CRCs, undecoded bytes",
        Bound::AtMost(0.0, "frames and bytes"),
        "bad frames",
        SIW,
    ),
    none_fails(
        "tshark on captures of own ends, without and with CRC",
        "programs",
        "--test iwarp captures_are_decoded_without_errors",
        true,
    ),
    none_fails("torture of two streams, 20 000 seeds", "iwarp", SEEDS, false),
    none_fails("torture of two streams, few seeds", "iwarp", "--lib random_work_over", true),
    none_fails("planted faults that the torture does not find", "iwarp", "--lib planted", true),
    none_fails(
        "bad input: set-up, frames and segments that break a rule",
        "iwarp",
        "--lib hostile",
        true,
    ),
    none_fails("streams of frames cut anywhere", "wire-iwarp", "--test stream", true),
    Row {
        name: "fuzzing of the decoders of frames without a crash",
        bound: Bound::AtLeast(30.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz { targets: &["iwarp_frames"], seconds_quick: 20, seconds_full: 1800 },
    },
    Row {
        name: "fuzzing of two protocol machines under changed streams without a crash",
        bound: Bound::AtLeast(30.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz { targets: &["iwarp_streams"], seconds_quick: 20, seconds_full: 1800 },
    },
    measured(
        "writes of 1 MiB on veth against TCP of iperf3, in turn, without CRC",
        Bound::AtLeast(0.9, "x"),
        "throughput_of_writes_without_crc",
        "throughput of writes against TCP",
    ),
    measured(
        "same, with CRC",
        Bound::AtLeast(0.75, "x"),
        "throughput_of_writes_with_crc",
        "throughput of writes with CRC against TCP",
    ),
    measured(
        "8 B writes, polled, against a polled TCP ping-pong of as many bytes, in turn",
        Bound::AtMost(1.25, "x"),
        "latency_of_writes",
        "latency of writes against TCP",
    ),
    in_guest(
        "in one guest, instruction clock: 64 KiB writes against siw as shipped",
        Bound::AtLeast(5.0, "x"),
        ("write-own", "write-siw", "MiB/s"),
    ),
    in_guest(
        "same, against siw at its best",
        Bound::AtLeast(1.0, "x"),
        ("write-own", "write-siw-at-best", "MiB/s"),
    ),
    in_guest("same, against rxe", Bound::AtLeast(3.0, "x"), ("write-own", "write-rxe", "MiB/s")),
    in_guest(
        "same, time of 8 B sends against siw",
        Bound::AtMost(1.1, "x"),
        ("send-own", "send-siw", "us"),
    ),
    in_guest(
        "registering 1 GiB in that guest against registering 4 KiB",
        Bound::AtMost(1.5, "x"),
        ("register-own-1073741824", "register-own-4096", "us"),
    ),
    in_guest(
        "same, 4 KiB against 4 KiB with siw",
        Bound::AtMost(0.2, "x"),
        ("register-own-4096", "register-siw-4096", "us"),
    ),
    measured(
        "1000 streams, 64 reads of 64 KiB in flight: processor time of a read against one stream",
        Bound::AtMost(1.3, "x"),
        "long_reads_of_a_thousand_streams",
        "processor time with a thousand streams against one, long reads",
    ),
    measured(
        "same, one read of 4 KiB in flight",
        Bound::AtMost(1.3, "x"),
        "single_reads_of_a_thousand_streams",
        "processor time with a thousand streams against one, single reads",
    ),
    measured(
        "1000 streams, all busy: slowest stream against the mean",
        Bound::AtLeast(0.5, "x"),
        "long_reads_of_a_thousand_streams",
        "slowest of a thousand streams against the mean",
    ),
    measured(
        "1000 streams: memory of an idle stream without the socket",
        Bound::AtMost(8.0, "KiB"),
        "long_reads_of_a_thousand_streams",
        "memory of an idle stream",
    ),
    slow(
        "one side killed while it writes: until the other program has ended",
        Bound::AtMost(2.0, "s"),
        "killed_programs_are_reported",
        "until the peer of a killed program ends",
    ),
    slow(
        "cable cut (the client's link goes down): until both programs have ended",
        Bound::AtMost(30.0, "s"),
        "a_cut_cable_is_reported",
        "until a cut cable is reported",
    ),
    none_fails(
        "a peer that is stopped for 5 s keeps its connection",
        "programs",
        "--test iwarp a_peer_that_is_stopped -- --ignored",
        false,
    ),
    verdicts("suite verbs on the edge: rows that became short", "verbs"),
    verdicts("suite frameworks on the edge: rows that became short", "frameworks"),
    verdicts("suite queue-pairs on the edge: rows that became short", "queue-pairs"),
    against(
        "ib_send_lat 8 B on the edge against another commit",
        Bound::AtMost(1.03, "x"),
        "time of ib_send_lat against another commit",
    ),
    against(
        "ib_write_bw 1 MiB on the edge against another commit",
        Bound::AtLeast(0.97, "x"),
        "speed of ib_write_bw of 1 MiB against another commit",
    ),
];

/// The arguments of the slow torture.
const SEEDS: &str = "--release --lib twenty_thousand_seeds_pass -- --ignored";
