use std::os::unix::process::ExitStatusExt;

use super::*;

fn run(launch: &Launch) -> (Ended, String, String) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let streams = Streams { output: &mut output, errors: &mut errors };
    let ended = launch.run(streams, &AtomicU32::new(0)).unwrap();
    (ended, String::from_utf8(output).unwrap(), String::from_utf8(errors).unwrap())
}

fn script(size: usize, script: &str) -> Launch {
    Launch::new(size, "sh").arguments(["-c", script])
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_rank_has_its_number_and_its_lines_carry_it() {
    let launch =
        script(2, "echo rank $ETHERNOT_DSM_RANK of $ETHERNOT_DSM_SIZE $A; echo trouble >&2");
    let (ended, output, errors) = run(&launch.variable("A", "x"));
    assert_eq!((&ended.failure, ended.exit_code()), (&None, 0));
    assert_eq!(sorted(&output), ["[0] rank 0 of 2 x", "[1] rank 1 of 2 x"]);
    assert_eq!(sorted(&errors), ["[0] trouble", "[1] trouble"]);
}

#[test]
fn the_first_failure_ends_the_others_and_is_named() {
    let launch = script(3, "[ $ETHERNOT_DSM_RANK = 1 ] && exit 3; exec sleep 1000");
    let (ended, ..) = run(&launch);
    assert_eq!(ended.failure, Some((1, "ended with status 3".into())));
    assert_eq!(ended.exit_code(), 3);
    assert_eq!(ended.ranks[0].status.signal(), Some(libc::SIGKILL));
}

#[test]
fn a_rank_that_ended_because_of_another_is_not_the_first_failure() {
    let (ended, ..) =
        run(&script(2, "[ $ETHERNOT_DSM_RANK = 0 ] && exit 70; sleep 0.2; kill -9 $$"));
    assert_eq!(ended.failure, Some((1, "was killed by signal 9 (SIGKILL)".into())));
    assert_eq!(ended.exit_code(), 137);
}

#[test]
fn a_memory_fault_is_named_with_what_may_have_caused_it() {
    let (ended, ..) = run(&script(1, "kill -SEGV $$"));
    let (_, what) = ended.failure.as_ref().expect("the rank fails");
    assert!(
        what.starts_with("was killed by signal 11 (SIGSEGV); if the program handles"),
        "{what}"
    );
    assert_eq!(ended.exit_code(), 139);
}

#[test]
fn processes_that_ranks_have_started_end_with_them() {
    // The rank ends at once, and leaves a process in its group.
    let (ended, output, _) = run(&script(1, "sleep 1000 & echo $!"));
    assert_eq!(ended.failure, None);
    let left = output.trim_start_matches("[0] ").trim();
    let state = || std::fs::read_to_string(format!("/proc/{left}/stat")).unwrap_or_default();
    // The kernel ends the process meanwhile. Its new parent may not have waited for it yet.
    while !state().is_empty() && !state().contains(") Z ") {
        std::thread::yield_now();
    }
}

#[test]
fn a_request_to_stop_ends_all_ranks() {
    /// Asks to stop when both ranks are ready.
    struct StopsAtLines<'a>(&'a AtomicU32, u32);
    impl Write for StopsAtLines<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 += 1;
            self.0.store(u32::from(self.1 == 2), Ordering::Relaxed);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let launch = script(2, "trap 'echo stopped >&2; exit 0' TERM; echo ready; sleep 1000 & wait");
    let (stops, mut errors) = (AtomicU32::new(0), Vec::new());
    let mut output = StopsAtLines(&stops, 0);
    let streams = Streams { output: &mut output, errors: &mut errors };
    let ended = launch.run(streams, &stops).unwrap();
    assert!(ended.is_stopped);
    assert_eq!(sorted(&String::from_utf8(errors).unwrap()), ["[0] stopped", "[1] stopped"]);
}

#[test]
fn a_missing_program_and_impossible_sizes_are_refused() {
    let refusal = |launch: &Launch| {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let streams = Streams { output: &mut output, errors: &mut errors };
        launch.run(streams, &AtomicU32::new(0)).unwrap_err().to_string()
    };
    let missing = refusal(&Launch::new(2, "/no/such/program"));
    assert!(missing.contains("/no/such/program") && missing.contains("PATH"), "{missing}");
    for size in [0, 65] {
        assert_eq!(refusal(&script(size, "true")), format!("{size} ranks: choose 1 to 64"));
    }
}

/// A stand-in for `ssh`: it prints the host, or fails for one host as `ssh` does.
const STAND_IN: &str = "case $0 in
dead) echo 'noise' >&2; echo 'ssh: connect to host dead port 22: No route to host' >&2; exit 255;;
*) echo on $0 >&2; exec sh -c \"$1\";;
esac";

#[test]
fn ranks_are_spread_over_hosts_in_order() {
    let launch = script(4, "echo rank $ETHERNOT_DSM_RANK meets at $ETHERNOT_DSM_MEET");
    let launch = launch.hosts(["a", "b"]).shell(["sh", "-c", STAND_IN]).meet("10.0.0.1:7000");
    let (ended, output, errors) = run(&launch);
    assert_eq!(ended.failure, None, "{errors}");
    let expected = [0, 1, 2, 3].map(|rank| format!("[{rank}] rank {rank} meets at 10.0.0.1:7000"));
    assert_eq!(sorted(&output), expected);
    assert_eq!(sorted(&errors), ["[0] on a", "[1] on a", "[2] on b", "[3] on b"]);
    assert_eq!(ended.ranks[2].host.as_deref(), Some("b"));
}

#[test]
fn a_host_that_does_not_answer_is_named_with_the_last_line_of_ssh() {
    let launch = script(2, "exec sleep 1000").hosts(["a", "dead"]).meet("10.0.0.1:7000");
    let (ended, ..) = run(&launch.shell(["sh", "-c", STAND_IN]));
    let what = "was not started on host dead, or lost its connection: ssh: connect to host dead port 22: No route to host";
    assert_eq!(ended.failure, Some((1, what.into())));
}
