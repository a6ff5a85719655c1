//! Mistakes of programs and of those who start them: each ends with an error that names it, on every
//! rank, and nothing hangs.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::shared::{Ended, Ranks, finish};
use dsm::{MEET, RANK, SIZE, THREADS};

/// Runs the example with this mistake on `size` ranks.
fn run(mistake: &str, size: usize) -> Vec<Ended> {
    Ranks::of("misuse", size).argument(mistake).run()
}

/// Checks that a rank has failed and printed these parts of a message.
fn assert_says(ended: &Ended, parts: &[&str]) {
    let errors = ended.errors();
    assert!(!ended.status().success(), "{}{errors}", ended.printed());
    for part in parts {
        assert!(errors.contains(part), "`{part}` is missing: {errors}");
    }
}

#[test]
fn a_program_without_a_mistake_runs() {
    for ended in run("none", 2) {
        assert!(ended.status().success(), "{}", ended.errors());
        assert_eq!(ended.printed(), "sum 14\n");
    }
}

#[test]
fn an_address_range_that_is_taken_is_named() {
    assert_says(&run("range-taken", 1)[0], &["0x200000000000", "other memory may be there"]);
}

#[test]
fn memory_that_the_kernel_does_not_give_is_named() {
    let ranks = Ranks::of("misuse", 1).argument("none");
    let program = ranks.command(0).get_program().to_owned();
    let mut command = Command::new("sh");
    // 200 MB of addresses: the region has 256 MiB.
    command.arg("-c").arg("ulimit -v 200000; exec \"$0\" none").arg(program);
    for (name, value) in ranks.command(0).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let (piped, errors) = (std::process::Stdio::piped(), std::process::Stdio::piped());
    command.stdout(piped).stderr(errors);
    assert_says(&finish(vec![command])[0], &["no memory for the frames", "268435456 bytes"]);
}

#[test]
fn two_processes_with_one_rank_are_refused() {
    let ranks = Ranks::of("misuse", 3).argument("none");
    let ended = finish([0, 1, 1].map(|rank| ranks.command(rank)).into());
    assert_says(&ended[0], &["cannot join", "two processes with rank 1"]);
    // One of the two gets the refusal, the other one sees that rank 0 has ended.
    let both = ended[1].errors() + &ended[2].errors();
    assert!(both.contains("rank 0 refuses this rank: there are two processes"), "{both}");
    assert!(both.contains("rank 0 has ended while it waited"), "{both}");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let ranks = Ranks::of("misuse", 4).argument("none");
    let ended = finish([0, 2].map(|rank| ranks.command(rank)).into());
    assert_says(&ended[0], &["ranks 1, 3 did not come within 3s", "all 4 ranks were started"]);
    assert_says(&ended[1], &["rank 0"]);
}

#[test]
fn a_rank_0_that_does_not_answer_is_named() {
    // Nothing listens at the first address. The second is one of the addresses for documentation.
    for meet in ["127.0.0.1:9", "192.0.2.1:7000"] {
        let mut command = Ranks::of("misuse", 2).argument("none").command(1);
        command.env(MEET, meet);
        let ended = finish(vec![command]);
        assert_says(&ended[0], &["rank 0", meet]);
    }
}

#[test]
fn impossible_ranks_and_places_are_refused() {
    let refused = |pairs: &[(&str, &str)], parts: &[&str]| {
        let mut command = Ranks::of("misuse", 2).argument("none").command(0);
        command.envs(pairs.iter().copied());
        assert_says(&finish(vec![command])[0], parts);
    };
    refused(&[(RANK, "2")], &["rank 2 of 2 ranks", "0 to 1"]);
    refused(&[(SIZE, "65")], &["at most 64 ranks"]);
    refused(&[(SIZE, "x")], &["ETHERNOT_DSM_SIZE=x is not a number"]);
    refused(&[(THREADS, "0")], &["0 threads; choose 1 to 65535", "ETHERNOT_DSM_THREADS"]);
    refused(&[(MEET, "nowhere")], &["meeting at nowhere"]);
    let mut command = Ranks::of("misuse", 2).argument("none").command(0);
    command.env_remove(MEET);
    assert_says(&finish(vec![command])[0], &["no address at which the ranks meet", MEET]);
}

#[test]
fn a_meeting_place_that_is_in_use_is_named() {
    let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let mut command = Ranks::of("misuse", 2).argument("none").command(0);
    command.env(MEET, &address);
    assert_says(&finish(vec![command])[0], &["open the links of rank 0", &address, "in use"]);
}

#[test]
fn options_that_differ_are_refused_with_both_numbers() {
    let ended = run("threads-differ", 2);
    assert_says(&ended[0], &["cannot join", "it has 2 threads, this rank 1"]);
    assert_says(&ended[1], &["rank 0 refuses this rank", "it has 2 threads, this rank 1"]);
    let ranks = Ranks::of("misuse", 2).argument("none");
    let mut commands = [0, 1].map(|rank| ranks.command(rank));
    commands[1].env(THREADS, "3");
    assert_says(&finish(commands.into())[1], &["it has 3 threads, this rank 1"]);
    let ended = run("pages-differ", 2);
    assert_says(&ended[1], &["it has 256 pages, this rank 65536"]);
}

#[test]
fn locks_are_unlocked_by_their_holder_once() {
    let none = "rank 0: no thread of any rank holds the lock at 0x40";
    assert_says(&run("unlocked-twice", 1)[0], &[none]);
    let held = "rank 1: thread 0 of rank 0 holds the lock at 0x40, not the calling thread (that rank \
                is process ";
    assert_says(&run("unlocked-by-another", 2)[1], &[held, " on ", "unlock on the thread"]);
    assert_says(&run("locked-twice", 1)[0], &["holds the lock at 0x40 already"]);
}

#[test]
fn ranks_that_wait_for_each_others_locks_are_reported_with_the_holder() {
    let ended = run("deadlock", 2);
    // The first report may end the other rank before it has its own.
    let both = ended[0].errors() + &ended[1].errors();
    let is_reported = |rank: usize, lock: &str| {
        let waits = format!("thread 0 has waited for the lock {lock} for ");
        let holds = format!(", which thread 0 of rank {} (process ", 1 - rank);
        let report = both.lines().find(|line| line.starts_with(&format!("rank {rank} (process ")));
        report.is_some_and(|report| report.contains(&waits) && report.contains(&holds))
    };
    assert!(is_reported(0, "0x48") || is_reported(1, "0x40"), "{both}");
}

#[test]
fn a_barrier_at_which_not_all_wait_is_reported_with_the_thread_that_is_elsewhere() {
    let ended = run("other-barrier", 3);
    assert_says(
        &ended[2],
        &[
            "rank 2 (process ",
            "has waited in a barrier for",
            "thread 0 has waited for the object 0x60",
        ],
    );
}

#[test]
fn a_barrier_with_different_counts_is_refused() {
    let ended = run("other-count", 4);
    // The rank that comes second learns it.
    let text =
        "threads wait at the barrier 0x60 for another number of threads; let all threads wait";
    let both = ended[0].errors() + &ended[1].errors();
    assert_eq!(both.matches(text).count(), 1, "{both}");
    assert!(ended.iter().all(|ended| !ended.status().success()));
}

#[test]
fn a_system_call_gets_an_error_for_absent_memory_and_works_on_pinned_memory() {
    for method in ["mprotect", ""] {
        let ended = Ranks::of("misuse", 2).argument("system-call").method(method).run();
        let printed = ended[1].printed();
        assert!(
            printed.contains("without a pin: Bad address (os error 14)"),
            "{method}: {printed}"
        );
        assert!(
            printed.contains("with a pin: 2048 bytes"),
            "{method}: {printed}{}",
            ended[1].errors()
        );
        assert!(ended[1].status().success());
    }
}

#[test]
fn an_error_of_main_is_printed_as_its_text() {
    let ended = &run("too-large", 1)[0];
    assert!(
        ended.errors().starts_with("Error: 8796093022208 bytes do not fit"),
        "{}",
        ended.errors()
    );
}

#[test]
fn barriers_that_differ_end_all_ranks() {
    for ended in run("other-allocation", 2) {
        assert_says(&ended, &["waits at another barrier", "the same allocations and barriers"]);
    }
    let ended = run("barrier-left-out", 2);
    assert_says(&ended[0], &["rank 1 (process ", "has called `finalize`"]);
    assert_says(&ended[1], &["rank 0 (process ", "waits at another barrier"]);
}

#[test]
fn a_rank_that_leaves_without_finalize_is_named() {
    let ended = run("left", 2);
    assert_says(&ended[0], &["rank 1 (process ", "left without `finalize`"]);
}

#[test]
fn a_forked_child_gets_an_error_that_names_the_fork() {
    for mistake in ["child-reads", "child-writes"] {
        let ended = &run(mistake, 1)[0];
        assert!(ended.status().success(), "{}", ended.errors());
        assert!(ended.errors().contains("a forked child used the shared memory"));
        assert_eq!(ended.printed(), "child: signal 11\nsum 7\n");
    }
    let ended = &run("child-waits", 1)[0];
    assert!(ended.printed().contains("a forked child used the shared memory"));
}

#[test]
fn handlers_of_the_program_before_ours_get_its_own_faults() {
    let ended = &run("handler-before", 1)[0];
    assert_eq!(ended.printed(), "sum 7\n", "{}", ended.errors());
    assert_eq!(ended.status().code(), Some(9));
    assert!(ended.errors().contains("the program's own handler"));
}

#[test]
fn a_handler_of_the_program_after_ours_is_named_at_the_next_barrier() {
    let what =
        "accesses to the shared memory do not work: the program has set its own action for signal";
    assert_says(&run("handler-after", 1)[0], &[what]);
}

#[test]
fn mappings_that_the_kernel_does_not_permit_are_named() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<u32>().unwrap() > 150_000 {
        println!("skipped: vm.max_map_count is {most}");
        return;
    }
    assert_says(&run("mappings", 1)[0], &["vm.max_map_count", "method with userfaultfd"]);
}

#[test]
fn an_allocation_that_does_not_fit_names_what_is_left() {
    assert_says(&run("too-large", 1)[0], &["8796093022208 bytes do not fit", "region_bytes"]);
}

#[test]
fn a_thread_too_many_is_named() {
    let ended = &run("second-thread", 1)[0];
    assert_says(ended, &["more than 1 threads", "Options::threads"]);
    assert_eq!(ended.status().signal(), None);
}
