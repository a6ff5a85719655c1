//! Functions that rank 0 starts on other ranks.

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../c/tests/built/mod.rs"]
mod built;
mod ranks;

use std::fs;
use std::path::Path;

use dsm::Method;
use ranks::{program, run};

#[test]
fn functions_find_the_variables_of_rank_0_with_each_method_in_each_kind_of_program() {
    let kinds = [
        ("created", &[][..]),
        ("created_fixed", &["-no-pie", "-fno-pie"]),
        ("created_bound_early", &["-Wl,-z,now", "-Wl,-z,relro"]),
    ];
    for (kind, options) in kinds {
        let Some(program) = program("tests/programs/created.c", kind, options) else { return };
        let names = ["asynchronous", "synchronous", "mprotect"];
        for (method, name) in Method::ALL.into_iter().zip(names) {
            if let Err(error) = method.check() {
                println!("skipped: {name}: {error}");
                continue;
            }
            let (ended, printed) = run(&program, &[], 3, name);
            assert_eq!(ended.failure, None, "{kind}, {name}: {printed}");
            for rank in 0..3 {
                for round in ["call 1, later 0", "call 2, later 1"] {
                    let line = format!("[{rank}] rank {rank} has worked, {round}\n");
                    // The functions of the second round find the calls of rank 0.
                    assert!(printed.contains(&line), "{kind}, {name}: {line}: {printed}");
                }
            }
            assert!(printed.contains("[0] all is as expected"), "{kind}, {name}: {printed}");
        }
    }
}

#[test]
fn the_example_is_right_with_and_without_other_ranks() {
    let Some(program) = program("examples/primes.c", "primes", &[]) else { return };
    for size in [1, 2, 4] {
        let (ended, printed) = run(&program, &["30000"], size, "mprotect");
        assert_eq!(ended.failure, None, "{size} ranks: {printed}");
        assert_eq!(printed, "[0] 3245 primes below 30000 are right\n", "{size} ranks");
    }
}

#[test]
fn wrong_calls_are_refused_with_a_remedy() {
    let Some(program) = program("tests/programs/created.c", "created_wrong", &[]) else { return };
    let (ended, printed) = run(&program, &["wrong"], 2, "mprotect");
    assert_eq!(ended.failure, None, "{printed}");
    for text in [
        "[0] the function at 0x2000",
        "[0] each of the 1 other ranks runs a function",
        "[1] with the option creates, only rank 0 allocates",
        "[1] ethernot_dsm_barrier waits for all ranks",
        "[1] only rank 0 creates functions",
        "[1] a function of ethernot_dsm_create returns instead",
        "[0] all is as expected",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    let (ended, printed) = run(&program, &["equal"], 2, "mprotect");
    assert_eq!(ended.failure, None, "{printed}");
    assert!(printed.contains("[1] only rank 0 creates functions"), "{printed}");
}

#[test]
fn unequal_programs_are_refused_by_their_build_ids() {
    let one = program("tests/programs/created.c", "created_one", &[]);
    let other = program("tests/programs/created.c", "created_other", &["-DOTHER", "-O2"]);
    let (Some(one), Some(other)) = (one, other) else { return };
    let choice = format!(
        "if [ $ETHERNOT_DSM_RANK = 1 ]; then exec {}; else exec {}; fi",
        other.display(),
        one.display()
    );
    let (ended, printed) = run(Path::new("/bin/sh"), &["-c", &choice], 2, "mprotect");
    assert!(ended.failure.is_some(), "{printed}");
    let text = "[1] ethernot: rank 1: the program dsm_created_other (build id ";
    assert!(printed.contains(text), "{printed}");
    assert!(printed.contains("the same file on all ranks"), "{printed}");
}

#[test]
fn randomized_addresses_are_refused_with_a_remedy() {
    let setting = fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap_or_default();
    if setting.trim() == "0" {
        println!("skipped: this host does not randomize addresses");
        return;
    }
    let options = ["-DCALLS_BY_NAME"];
    let program = program("tests/programs/created.c", "created_by_name", &options);
    let Some(program) = program else { return };
    let (ended, printed) = run(&program, &[], 2, "mprotect");
    assert!(ended.failure.is_some(), "{printed}");
    assert!(printed.contains("so addresses are randomized"), "{printed}");
    assert!(printed.contains("setarch -R"), "{printed}");
}
