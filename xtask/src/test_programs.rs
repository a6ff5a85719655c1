//! Runs the test programs of the workspace: builds them with cargo, then runs them in two lanes at
//! the same time.
//!
//! Tests of the host lane use ports, network namespaces or processes of the host. Some of these
//! tests list all processes or namespaces of the host, so their programs run one after the other.
//! Tests of the host lane mostly wait. During this time the computing lane uses the processors: its
//! tests run in virtual time, or they parse and check.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;

use crate::building::BUILD_ALL;
use crate::count::Count;
use crate::error::XtaskError;
use crate::skips::Skips;
use crate::test_output::TestReader;
use crate::workspace::{Package, Workspace, cargo};

/// Crates whose tests only compute.
const COMPUTING: [&str; 20] = [
    "delivery",
    "dissector",
    "dsm-protocol",
    "engine",
    "fabric",
    "fuzz-cases",
    "interconnect",
    "iwarp",
    "links",
    "mem",
    "page-faults",
    "papers",
    "report",
    "semantics",
    "verbs",
    "waiting",
    "wire-edge",
    "wire-iwarp",
    "work",
    "xtask",
];

/// A command that prints no line for this long hangs. The programs that a test starts end after five
/// minutes at the latest, so a test prints its result sooner even on a busy host.
const SILENCE: Duration = Duration::from_mins(10);

/// A program that cargo built from tests.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The program's source file, as a path below the folder of its package.
    source: String,
    package: String,
    /// The folder of the program's package. The program runs in this folder.
    folder: PathBuf,
    executable: PathBuf,
}

/// A command of a lane.
struct Job {
    title: String,
    command: Command,
    kind: Kind,
}

/// How the output of a command is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The output is that of test programs.
    Tests,
    /// The last line may be a [`Count`]. Otherwise the exit status is the result of one test.
    Step,
}

/// Commands that run one after the other.
type Lane = Vec<Job>;

/// The output and result of a finished command.
struct Finished {
    title: String,
    shown: Vec<String>,
    count: Count,
    skipped: Skips,
    seconds: f64,
}

/// Builds and runs all tests of the workspace. Prints failures, skips and the duration of each test
/// program.
///
/// `steps` are steps of the test run with their commands. They run in the lane that computes.
pub(crate) fn run(
    workspace: &Workspace,
    steps: impl IntoIterator<Item = (&'static str, Command)>,
    skips: &mut Skips,
) -> Result<Count, XtaskError> {
    let Some(programs) = build(workspace)? else { return Ok(Count::ONE_FAILED) };
    let mut documented = cargo();
    documented.args(["test", "--doc", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    let (mut computing, mut of_host): (Lane, Lane) = (Vec::new(), Vec::new());
    for program in programs {
        let computes = COMPUTING.contains(&program.package.as_str());
        let lane = if computes { &mut computing } else { &mut of_host };
        lane.push(program.into_job());
    }
    let title = "examples in the documentation".into();
    computing.push(Job { title, command: documented, kind: Kind::Tests });
    let steps = steps.into_iter();
    computing.extend(steps.map(|(name, command)| {
        let title = name.into();
        Job { title, command, kind: Kind::Step }
    }));
    Ok(run_lanes([of_host, computing], skips, &mut |line| println!("{line}")))
}

/// Builds the test programs. Returns `None` if the build fails; cargo has printed the error.
fn build(workspace: &Workspace) -> Result<Option<Vec<TestProgram>>, XtaskError> {
    let mut command = cargo();
    command
        .args(["build", "--workspace", "--all-targets"])
        .args(["--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|cause| XtaskError::Start { program: "cargo build".into(), cause })?;
    if !output.status.success() {
        return Ok(None);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let found = messages.lines().filter_map(|line| from_message(&workspace.packages, line));
    Ok(Some(found.collect()))
}

/// Returns the test program in a message of cargo, or `None` if the message contains none.
fn from_message(packages: &[Package], line: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message.pointer("/profile/test")?.as_bool() != Some(true) {
        return None;
    }
    let executable = PathBuf::from(message.get("executable")?.as_str()?);
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_path_buf();
    let source = Path::new(message.pointer("/target/src_path")?.as_str()?);
    let source = source.strip_prefix(&folder).unwrap_or(source).display().to_string();
    let package = packages.iter().find(|package| package.folder == folder)?.name.clone();
    Some(TestProgram { source, package, folder, executable })
}

impl TestProgram {
    /// Returns the command that runs the program in the environment that cargo gives it.
    fn into_job(self) -> Job {
        let mut command = Command::new(&self.executable);
        command
            .arg("--show-output")
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env(BUILD_ALL, "1");
        Job { title: format!("{}: {}", self.package, self.source), command, kind: Kind::Tests }
    }
}

/// Runs the commands of each lane one after the other, and the lanes at the same time. When a
/// command has ended, passes its output to `print`.
fn run_lanes(lanes: [Lane; 2], skips: &mut Skips, print: &mut dyn FnMut(&str)) -> Count {
    let (sender, finished) = mpsc::channel();
    let mut count = Count::NONE;
    thread::scope(|scope| {
        for lane in lanes {
            let sender = sender.clone();
            scope.spawn(move || run_lane(lane, &sender));
        }
        drop(sender);
        for Finished { title, shown, count: of_job, skipped, seconds } in finished {
            print(&format!("   {title} ({seconds:.1} s)"));
            for line in shown {
                print(&line);
            }
            count.add(of_job);
            skips.append(skipped);
        }
    });
    count
}

/// Runs commands one after the other and sends their results. A command that cannot start counts as
/// a failure. Ends if there is no receiver.
fn run_lane(lane: Lane, finished: &Sender<Finished>) {
    for job in lane {
        let title = job.title.clone();
        let result = run_job(job, SILENCE).unwrap_or_else(|cause| {
            let shown = vec![format!("{title}: cannot run: {cause}")];
            let (count, skipped) = (Count::ONE_FAILED, Skips::default());
            Finished { title, shown, count, skipped, seconds: 0.0 }
        });
        if finished.send(result).is_err() {
            return;
        }
    }
}

/// Runs a command and reads both of its outputs. Kills a command that prints nothing during `limit`,
/// and counts it as a failure.
fn run_job(job: Job, limit: Duration) -> std::io::Result<Finished> {
    let Job { title, mut command, kind } = job;
    let start = Instant::now();
    let (output, errors) = std::io::pipe()?;
    let outputs = command.stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
    let mut child = outputs.spawn()?;
    // The value `command` holds the writing ends of the pipe. While they are open, reading does not
    // end.
    drop(command);
    let printed = lines_of(output);
    let mut lines = Vec::new();
    let mut hung = Vec::new();
    loop {
        match printed.recv_timeout(limit) {
            Ok(line) => lines.push(line?),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = limit.as_secs();
                hung.push(format!("{title}: killed, as it printed nothing for {seconds} s"));
                hung.extend(threads_of(&child));
                child.kill()?;
                break;
            }
        }
    }
    let is_success = child.wait()?.success();
    let seconds = start.elapsed().as_secs_f64();
    let (count, skipped, mut shown) = match kind {
        Kind::Tests => of_tests(&title, &lines, is_success),
        Kind::Step => of_step(&title, lines, is_success),
    };
    shown.extend(hung);
    Ok(Finished { title, shown, count, skipped, seconds })
}

/// Returns the lines that come out of a pipe. A thread reads them, and ends with the pipe or with
/// the receiver.
fn lines_of(output: PipeReader) -> Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map(|line| String::from_utf8_lossy(&line).into_owned());
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Returns a line about each thread of a process: its name, which is that of its test, its state and
/// the function of the kernel in which it waits. Below it stand the threads' stacks if gdb is
/// installed.
fn threads_of(child: &Child) -> Vec<String> {
    let tasks = format!("/proc/{}/task", child.id());
    let folders = fs::read_dir(tasks).into_iter().flatten().flatten();
    let mut lines: Vec<_> = folders
        .map(|folder| {
            let read = |file: &str| fs::read_to_string(folder.path().join(file));
            let name = read("comm").unwrap_or_default();
            let stat = read("stat").unwrap_or_default();
            let state =
                stat.rsplit_once(") ").map_or("?", |(_, state)| state.get(..1).unwrap_or("?"));
            let waits_in = read("wchan").unwrap_or_default();
            format!("    thread {}: state {state}, in {waits_in}", name.trim_end())
        })
        .collect();
    let mut debugger = Command::new("gdb");
    debugger.args(["-batch", "-ex", "thread apply all backtrace", "-p", &child.id().to_string()]);
    if let Ok(output) = debugger.stdin(Stdio::null()).output() {
        let stacks = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.extend(stacks.lines().map(str::to_owned));
    }
    lines
}

/// Returns the count and the skips of a test program, and the lines to print.
fn of_tests(title: &str, lines: &[String], is_success: bool) -> (Count, Skips, Vec<String>) {
    let mut reader = TestReader::default();
    let mut shown: Vec<_> = lines.iter().filter_map(|line| reader.handle_line(line)).collect();
    let mut count = reader.count();
    if !is_success && count.failed == 0 {
        shown.push(format!("{title}: ended without the result of its tests"));
        count.add(Count::ONE_FAILED);
    }
    (count, reader.into_skipped(), shown)
}

/// Returns the count and the skips of a step, and the lines to print: all lines of a step that
/// failed, and the reasons of skips.
fn of_step(title: &str, lines: Vec<String>, is_success: bool) -> (Count, Skips, Vec<String>) {
    let mut skipped = Skips::default();
    for line in lines.iter().filter(|line| line.starts_with("skipped: ")) {
        skipped.add(title, line);
    }
    let last = lines.iter().rev().find(|line| !line.is_empty());
    let mut count = last.and_then(|line| Count::parse(line)).unwrap_or(if is_success {
        Count::ONE_PASSED
    } else {
        Count::ONE_FAILED
    });
    if !is_success && count.failed == 0 {
        count.add(Count::ONE_FAILED);
    }
    let is_shown = |line: &String| count.failed > 0 || line.starts_with("skipped: ");
    (count, skipped, lines.into_iter().filter(is_shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str) -> Package {
        Package {
            name: name.into(),
            version: String::new(),
            folder: folder.into(),
            dependencies: Vec::new(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn a_message_about_a_built_test_names_its_program() {
        let packages = [package("mem", "/w/crates/mem")];
        let message = |is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/mem/Cargo.toml","target":{{"src_path":
                "/w/crates/mem/tests/faults.rs"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let found = from_message(&packages, &message(true, "\"/w/target/debug/deps/faults-1\""));
        let wanted = TestProgram {
            source: "tests/faults.rs".into(),
            package: "mem".into(),
            folder: "/w/crates/mem".into(),
            executable: "/w/target/debug/deps/faults-1".into(),
        };
        assert_eq!(found, Some(wanted));
        assert_eq!(from_message(&packages, &message(false, "\"/w/target/debug/ethernot\"")), None);
        assert_eq!(from_message(&packages, &message(true, "null")), None);
        assert_eq!(from_message(&packages, "warning: not JSON"), None);
    }

    #[test]
    fn the_results_of_both_lanes_add_up_and_a_program_that_crashes_fails() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Job { title: script.to_owned(), command, kind: Kind::Tests }
        };
        let passes = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored'";
        let fails = "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 101";
        let lanes = [vec![shell(passes), shell(fails)], vec![shell("kill $$"), shell(passes)]];
        let mut printed = Vec::new();
        let mut print = |line: &str| printed.push(line.to_owned());
        let count = run_lanes(lanes, &mut Skips::default(), &mut print);
        assert!(
            printed.iter().any(|line| line == "kill $$: ended without the result of its tests")
        );
        assert_eq!(count, Count { passed: 7, failed: 3, skipped: 2 });
    }

    #[test]
    fn a_command_that_prints_nothing_for_too_long_is_killed_and_fails() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test a ... ok'; echo 'test b runs'; sleep 20 & wait"]);
        let job = Job { title: "hangs".into(), command, kind: Kind::Tests };
        let finished = run_job(job, Duration::from_millis(500)).expect("the command starts");
        assert_eq!(finished.count, Count::ONE_FAILED);
        assert_eq!(finished.shown[0], "test b runs");
        let text = finished.shown.join("\n");
        assert!(text.contains("hangs: killed, as it printed nothing for 0 s"), "{text}");
        assert!(text.contains("thread sh: state S, in "), "{text}");
    }

    #[test]
    fn a_command_that_cannot_start_fails_and_the_next_one_runs() {
        let job = |program: &str| Job {
            title: program.into(),
            command: Command::new(program),
            kind: Kind::Step,
        };
        let lane = vec![job("/nowhere/program"), job("true")];
        let mut printed = String::new();
        let mut print = |line: &str| printed.push_str(line);
        let count = run_lanes([lane, Vec::new()], &mut Skips::default(), &mut print);
        assert_eq!(count, Count { passed: 1, failed: 1, skipped: 0 });
        assert!(printed.contains("/nowhere/program: cannot run: No such file"), "{printed}");
    }

    #[test]
    fn a_step_counts_its_reported_tests_or_one() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (count, _, shown) =
            of_step("step", lines("noise\n3 passed, 0 failed, 1 skipped\n"), true);
        assert_eq!((count, shown.len()), (Count { passed: 3, failed: 0, skipped: 1 }, 0));
        let (count, _, shown) = of_step("step", lines("noise"), true);
        assert_eq!((count, shown.len()), (Count::ONE_PASSED, 0));
        let (count, _, shown) = of_step("step", lines("noise"), false);
        assert_eq!((count, shown.len()), (Count::ONE_FAILED, 1));
        let text = "skipped: no network\n0 passed, 0 failed, 1 skipped";
        let (count, skips, shown) = of_step("step", lines(text), true);
        assert_eq!((count, shown.len()), (Count::ONE_SKIPPED, 1));
        assert!(skips.to_string().contains("no network\n    step"), "{skips}");
    }
}
