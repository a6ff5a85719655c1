//! Tests `ethernot paper` as a user runs it. Interrupts it many times, and checks that no result is
//! lost or wrong.
#![expect(clippy::disallowed_methods, reason = "waits for another process, which signals nothing")]

mod shared;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::can_make_namespaces;
use testbed::namespace::NAMESPACE_DIRECTORY;

#[test]
fn a_paper_killed_twenty_times_has_all_its_items_in_the_end() {
    // Without programs, the simulated items are measured, and the documents of the others say at
    // once why not.
    killed_and_called_again(&["sandia1999"], Some(EMPTY), Duration::from_millis(100));
}

#[test]
#[ignore = "slow: run by `./x acceptance papers`"]
fn all_papers_killed_twenty_times_have_all_their_items_in_the_end() {
    if !can_make_namespaces() {
        return;
    }
    killed_and_called_again(&["all", "--quick"], None, Duration::from_secs(30));
}

/// Folder without programs. With it, no program that a measurement needs is found.
const EMPTY: &str = "/var/empty";

/// Kills the command twenty times, alternately by SIGKILL and SIGINT, within `longest` after its
/// start. Then runs it to its end. `programs` is the folder in which the command finds programs;
/// `None` means that of this test.
fn killed_and_called_again(words: &[&str], programs: Option<&str>, longest: Duration) {
    let name = words.join("");
    let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("papers-killed-{name}"));
    // Removes the results of an earlier run.
    let _ = fs::remove_dir_all(&results);
    let before = ownerless_namespaces();
    let mut random = 88_172_645_463_325_252_u64;
    let mut interrupted = 0;
    for turn in 0..20 {
        let mut running = start(words, programs, &results);
        // Marsaglia's xorshift chooses the time of each kill. The times are the same in each run of
        // the test.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(longest.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64));
        let signal = if turn % 2 == 0 { Signal::SIGKILL } else { Signal::SIGINT };
        // Fails if the process has already ended.
        let _ = kill(Pid::from_raw(running.id().cast_signed()), signal);
        interrupted += usize::from(!running.wait().unwrap().success());
    }
    assert!(interrupted > 0, "each of 20 runs was done within {longest:?}");
    assert!(start(words, programs, &results).wait().unwrap().success());
    let files = |folder: &Path| -> BTreeSet<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let names = |files: &BTreeSet<PathBuf>| -> BTreeSet<String> {
        files.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    let found = files(&results);
    let expected: BTreeSet<String> = papers::printed::all()
        .iter()
        .filter(|paper| words[0] == "all" || paper.key == words[0])
        .flat_map(|paper| paper.items.iter().map(move |item| (&paper.key, item)))
        .filter(|(_, item)| item.has_command())
        .map(|(key, item)| format!("{key}-{}.json", item.id))
        .collect();
    assert_eq!(names(&found), expected);
    for path in &found {
        let text = fs::read_to_string(path).unwrap();
        papers::reading::read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let left: Vec<_> = ownerless_namespaces().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
    fs::remove_dir_all(&results).unwrap();
}

/// Returns the names of namespaces of benchmarks that have ended.
fn ownerless_namespaces() -> BTreeSet<String> {
    let entries = fs::read_dir(NAMESPACE_DIRECTORY).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_ownerless = |name: &String| {
        let maker = name.strip_prefix("ethernot-bench-").and_then(|rest| rest.split('-').next());
        maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    names.filter(is_ownerless).collect()
}

fn start(words: &[&str], programs: Option<&str>, results: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ethernot"))
        .arg("paper")
        .args(words)
        .arg("--results")
        .arg(results)
        .envs(programs.map(|folder| ("PATH", folder)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
