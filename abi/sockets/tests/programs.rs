//! Checks that C programs print the same text with the library as without it, and that their
//! connections move.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn every_way_to_send_and_receive_matches_tcp() {
    is_the_same("data", &[], 1);
}

#[test]
fn threads_share_connections_over_ipv6_and_mapped_ipv4() {
    is_the_same("threads", &[], 4);
}

#[test]
fn every_way_to_wait_matches_tcp() {
    for mode in ["poll", "ppoll", "select", "level", "edge", "oneshot"] {
        is_the_same("waits", &[mode], 1);
    }
}

#[test]
fn a_signal_handler_ends_a_wait_in_every_wait_mode() {
    for polling in ["adaptive", "always", "5000", "never"] {
        is_the_same_with("interrupted", &[], 1, Some(("ETHERNOT_SOCKETS_POLL", polling)));
    }
}

#[test]
fn signal_handlers_may_exit_write_close_and_jump() {
    for mode in ["dup", "read", "write", "wait", "writes", "closes", "jumps"] {
        is_the_same("handlers", &[mode], 1);
    }
}

#[test]
fn connecting_again_reports_success_once() {
    is_the_same("connects", &[], 1);
}

#[test]
fn a_connection_can_be_queried_during_its_move() {
    is_the_same("asks", &[], 40);
}

#[test]
fn descriptors_are_duplicated_and_closed_in_every_order() {
    is_the_same("numbers", &[], 1);
}

#[test]
fn a_connected_socket_stays_in_its_earlier_epoll_sets() {
    for mode in ["level", "edge"] {
        is_the_same("early", &[mode], 1);
    }
}

#[test]
fn internal_writes_of_the_c_library_and_its_child_programs_match_tcp() {
    for mode in ["print", "system", "popen", "spawn", "aio"] {
        is_the_same("given", &[mode], 1);
    }
}

#[test]
fn a_program_continues_after_a_failed_exec() {
    for mode in ["stays", "becomes"] {
        is_the_same("tries", &[mode], 1);
    }
}

#[test]
fn system_calls_by_number_match_calls_by_name() {
    for mode in ["all", "number"] {
        is_the_same("numbered", &[mode], 1);
    }
}

#[test]
fn a_descriptor_closed_by_system_call_is_the_next_file_with_its_number() {
    for mode in ["kernel", "unseen"] {
        is_the_same("numbered", &[mode], 1);
    }
}

#[test]
fn processes_share_a_connection() {
    for mode in ["serve", "snapshot", "child", "exec", "vfork", "spawn", "pass", "stdio"] {
        is_the_same("processes", &[mode], 1);
    }
}

#[test]
fn a_program_daemonizes_with_its_connection() {
    let Some(program) = compiled("background") else { return };
    let (output, _) = preloaded(&program, &[], None);
    assert_eq!(lines(&output), lines(&plain(&program, &[])), "{output:?}");
    assert!(lines(&output).contains("talked on"), "{output:?}");
}

#[test]
fn a_child_without_the_connection_of_its_parent_reads_no_other_bytes() {
    let Some(program) = compiled("orphaned") else { return };
    for mode in ["killed", "full"] {
        let (output, _) = preloaded(&program, &[mode], None);
        let said = lines(&output);
        let reset = ["the child reads: ECONNRESET", "the child writes: EPIPE"];
        let whole = ["the child reads: 5 \"hello\"", "the child writes: all"];
        let is_said = |all: &[&str]| all.iter().all(|line| said.contains(*line));
        assert!(is_said(&reset) || is_said(&whole), "{mode}: {output:?}");
        assert!(said.iter().any(|line| line.starts_with("the peer reads: ")), "{mode}: {output:?}");
    }
}

#[test]
fn a_waiting_thread_gets_no_bytes_of_the_next_connection_with_its_descriptor() {
    let Some(program) = compiled("stolen") else { return };
    for _ in 0..5 {
        let (output, _) = preloaded(&program, &[], None);
        assert_eq!(lines(&output), lines(&plain(&program, &[])), "{output:?}");
    }
}

#[test]
fn data_out_of_band_keeps_a_connection_on_tcp() {
    let Some(program) = compiled("urgent") else { return };
    let (output, counters) = preloaded(&program, &[], None);
    assert_eq!(lines(&output), lines(&plain(&program, &[])), "{output:?}");
    assert!(!counters.contains("\"moved\":1,"), "{counters}");
}

/// Runs a program without the library and with it, and compares the output. The program has two
/// ends, and at each of them `connections` connections must move. The order of output lines does
/// not matter, because two processes write to the same output.
fn is_the_same(name: &str, arguments: &[&str], connections: u32) {
    is_the_same_with(name, arguments, connections, None);
}

/// Does the same as [`is_the_same`], with an environment variable that is a setting of the library.
fn is_the_same_with(
    name: &str,
    arguments: &[&str],
    connections: u32,
    variable: Option<(&str, &str)>,
) {
    let Some(program) = compiled(name) else { return };
    let expected = plain(&program, arguments);
    assert!(
        expected.status.success(),
        "{name} {arguments:?} fails without the library: {expected:?}"
    );
    let wanted = format!("\"moved\":{connections},");
    let mut last = String::new();
    for _ in 0..RUNS {
        let (output, counters) = preloaded(&program, arguments, variable);
        let what = format!("{name} {arguments:?} {variable:?}: {output:?}");
        assert!(output.status.success(), "{what}");
        assert_eq!(lines(&output), lines(&expected), "{what}");
        if counters.replace(' ', "").matches(&wanted).count() == 2 {
            return;
        }
        last = format!("{what}\n{counters}");
    }
    panic!("both ends must move: {last}");
}

fn lines(output: &Output) -> BTreeSet<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn plain(program: &Path, arguments: &[&str]) -> Output {
    limited(program, arguments).output().expect("the program runs")
}

/// Runs a program with the library. Returns its output, and the counters of its processes.
fn preloaded(
    program: &Path,
    arguments: &[&str],
    variable: Option<(&str, &str)>,
) -> (Output, String) {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let folder = program.with_file_name(format!("{name}-{}", arguments.concat()));
    // Remove the folder first, because an earlier run may have left it.
    let _none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder is made");
    let mut command = limited(program, arguments);
    command.env("ETHERNOT_SOCKETS_COUNTERS", &folder).env("LD_PRELOAD", library());
    command.env("ETHERNOT_SOCKETS_MOVE", "always").envs(variable);
    let output = command.output().expect("the program runs");
    let files = fs::read_dir(&folder).expect("the folder is read").flatten();
    let counters = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
    (output, counters)
}

/// Runs a program with a time limit.
fn limited(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments);
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("ETHERNOT_SOCKETS_")) {
        command.env_remove(name);
    }
    command
}

/// Compiles a program. If there is no compiler, prints this and returns `None`.
fn compiled(name: &str) -> Option<PathBuf> {
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let folder = testbed::built::target_folder().join("sockets-programs");
    fs::create_dir_all(&folder).expect("a folder is made");
    let program = folder.join(name);
    // Another test may be running the same program, so compile to a new file.
    let fresh = folder.join(format!("{name}.{}", COMPILED.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source.with_extension("c"));
    let Ok(output) = command.output() else {
        println!("skipped: there is no compiler `cc`");
        return None;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    fs::rename(fresh, &program).expect("a program of our own");
    Some(program)
}

fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::libraries().join("libethernot-sockets.so"))
}

/// Maximum number of runs in which connections must move. A connection stays on TCP if another
/// process has the UDP port of its rendezvous socket, the UDP socket that a move needs. On a busy
/// host, it also stays there if its peer answers after more than a second, or if it ends before it
/// has moved.
const RUNS: u32 = 3;
