//! The random programs in a guest with Linux 6.1, whose userfaultfd lacks asynchronous write
//! protection.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process;

use crate::random_programs::{EXAMPLE, many};
use crate::ranks::{EXAMPLES, examples};

/// A folder that the guest has as /share. It is removed at the end.
struct Shared(PathBuf);

impl Drop for Shared {
    fn drop(&mut self) {
        // Files are left if this fails.
        let _left = fs::remove_dir_all(&self.0);
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn many_programs_see_one_memory_in_a_guest() {
    let shared = Shared(env::temp_dir().join(format!("ethernot-dsm-guest-{}", process::id())));
    fs::create_dir_all(&shared.0).expect("the folder for temporary files can be written");
    let program = env::current_exe().expect("this program");
    fs::copy(program, shared.0.join("processes")).expect("room for a program");
    let example = examples().join(EXAMPLE);
    fs::copy(example, shared.0.join(EXAMPLE)).expect("room for a program");
    let seeds = many();
    let command = format!(
        "{EXAMPLES}=/share SEEDS={}..{} /share/processes --ignored --nocapture --exact \
         random_programs::many_programs_see_one_memory_with_synchronous_write_protection",
        seeds.start, seeds.end
    );
    let folder = shared.0.display().to_string();
    let machine = ["--net", "none", "--processors", "2", "--memory", "2048", "--share", &folder];
    let arguments = [&["guest", "run"], &machine[..], &["--seconds", LIMIT, "--", &command]];
    let output = testbed::built::xtask(&arguments.concat());
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if let Some(reason) = ["no guest is built", "missing programs"].iter().find_map(|start| {
        errors
            .lines()
            .find_map(|line| line.split_once(start).map(|(_, rest)| format!("{start}{rest}")))
    }) {
        println!("skipped: {reason}");
        return;
    }
    assert!(output.status.success(), "{printed}{errors}");
    let mark = "figure: random programs that are right, synchronous: ";
    let count = printed.lines().find_map(|line| Some(line.split_once(mark)?.1));
    let count =
        count.unwrap_or_else(|| panic!("the method does not work there: {printed}{errors}"));
    println!("figure: random programs that are right in a guest, synchronous: {count}");
}

/// Seconds that the programs have. The guest's processors are emulated.
const LIMIT: &str = "7200";
