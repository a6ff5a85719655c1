//! Tests commands that create links and measure over them, as a user runs them: `bench multiedge`,
//! `bench failover` and `bench yardsticks`. Measurements need root.
#![expect(clippy::disallowed_methods, reason = "waits for other processes, which signal nothing")]

mod shared;

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bench::{failover, multiedge, yardsticks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::can_make_namespaces;
use testbed::namespace::NAMESPACE_DIRECTORY;

const MULTIEDGE: [&str; 10] = [
    "bench",
    "multiedge",
    "--setups",
    "2L-1G",
    "--tests",
    "one-way",
    "--sizes",
    "64K",
    "--repetitions",
    "1",
];
const FAILOVER: [&str; 6] = ["bench", "failover", "--cuts", "one-way", "--phase", "0.5"];

/// Maximum number of checks of other processes, 10 ms apart: a minute.
const LOOKS_MAX: u32 = 6000;

#[test]
fn multiedge_writes_its_results_for_programs_and_for_people() {
    let Some(folder) = Folder::new("multiedge") else { return };
    let output = folder.run(&MULTIEDGE, &["--time", "1"]);
    let found: multiedge::Report = serde_json::from_str(&folder.json()).unwrap();
    assert_eq!(found.format, multiedge::FORMAT);
    let [setup] = &found.setups[..] else { panic!("{:?}", found.setups) };
    assert_eq!(setup.setup.name, "2L-1G");
    for contender in ["edge", "multiedge"] {
        let row = setup.rows.iter().find(|row| row.contender == contender).unwrap();
        assert!(row.message_bytes == 65_536 && row.megabytes_per_second.median > 0.0, "{row:?}");
    }
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("2L-1G"), "{shown}");
    folder.expect_page("2L-1G");
    assert_eq!(folder.left_behind(), Vec::<String>::new());
}

#[test]
fn all_kinds_of_links_pass_the_switches() {
    for kind in multiedge::LinkKind::ALL {
        let Some(folder) = Folder::new(&format!("kinds-{}", kind.name())) else { return };
        let arguments = [&MULTIEDGE[..], &["--link", kind.name(), "--policy", "own"]].concat();
        let output = folder.output(&arguments, &["--time", "1", "--json", &folder.path("json")]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if error.contains("kernel has no AF_XDP") {
            println!("skipped: {error}");
            continue;
        }
        assert!(output.status.success(), "{}: {error}", kind.name());
        let found: multiedge::Report = serde_json::from_str(&folder.json()).unwrap();
        assert!(found.setups[0].rows[0].megabytes_per_second.median > 0.0);
    }
}

#[test]
fn failover_checks_every_byte_and_draws_the_throughput() {
    let Some(folder) = Folder::new("failover") else { return };
    let output = folder.run(&FAILOVER, &[]);
    let found: failover::Report = serde_json::from_str(&folder.json()).unwrap();
    assert_eq!(found.format, failover::FORMAT);
    let [cut] = &found.cuts[..] else { panic!("{:?}", found.cuts) };
    assert!(cut.messages > 0 && cut.lost == 0 && cut.corrupted == 0, "{cut:?}");
    let arrived: u64 = cut.timeline.iter().map(|&bytes| u64::from(bytes)).sum();
    assert_eq!(arrived, cut.messages * 65_536);
    assert!(cut.cut_at_ms < cut.restored_at_ms);
    assert!(String::from_utf8(output.stdout).unwrap().contains("one-way"));
    folder.expect_page("one-way");
    assert_eq!(folder.left_behind(), Vec::<String>::new());
}

#[test]
fn yardsticks_compare_with_a_bare_exchange_of_the_same_kind() {
    for (kind, bare) in [("packet", "bare-packet"), ("xdp", "bare-xdp")] {
        let Some(folder) = Folder::new(&format!("yardsticks-{kind}")) else { return };
        let arguments =
            ["bench", "yardsticks", "--link", kind, "--repetitions", "1", "--time", "1"];
        let output = folder.output(&arguments, &["--json", &folder.path("json")]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if error.contains("kernel has no AF_XDP") {
            println!("skipped: {error}");
            continue;
        }
        assert!(output.status.success(), "{error}");
        let found: yardsticks::Report = serde_json::from_str(&folder.json()).unwrap();
        assert!(found.latency_ns.contains_key("edge") && found.ratios.contains_key(bare));
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains(bare), "{shown}");
        assert_eq!(folder.left_behind(), Vec::<String>::new());
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let xdp = ["bench", "yardsticks", "--link", "xdp", "--time", "20"];
    let many = ["--time", "20"];
    let long = ["bench", "failover", "--phase", "10", "--link", "xdp"];
    for arguments in [[&MULTIEDGE[..], &many].concat(), long.to_vec(), xdp.to_vec()] {
        if !can_make_namespaces() {
            return;
        }
        let mut running = Command::new(env!("CARGO_BIN_EXE_ethernot"))
            .args(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Returns whether the run has made at least two hosts, and has started at least two
        // processes.
        let is_on = |running: &mut Child| {
            namespaces_of(running.id()).len() >= 2 && children_of(running.id()).len() >= 2
        };
        for _ in 0..LOOKS_MAX {
            if is_on(&mut running) || running.try_wait().unwrap().is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert!(is_on(&mut running), "{arguments:?}: {}", said(&mut running));
        thread::sleep(Duration::from_millis(500));
        let children = children_of(running.id());
        kill(Pid::from_raw(running.id().cast_signed()), Signal::SIGINT).unwrap();
        let status = running.wait().unwrap();
        assert_eq!(status.code(), Some(testbed::cleanup::STATUS_INTERRUPTED), "{arguments:?}");
        // When the namespaces are removed, the kernel removes their interfaces and the programs
        // attached to these.
        assert_eq!(namespaces_of(running.id()), Vec::<String>::new(), "{arguments:?}");
        for child in children {
            for _ in 0..LOOKS_MAX {
                if !is_alive(child) {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            assert!(!is_alive(child), "{arguments:?}: process {child} goes on");
        }
    }
}

#[test]
fn bad_input_is_refused_with_the_value_and_the_choices() {
    let refused: [(&[&str], &[&str]); 14] = [
        (&["multiedge", "--setups", "9L-9G"], &["9L-9G", "1L-1G", "2Lu-1G", "10G+1G"]),
        (&["multiedge", "--sizes", "0"], &["'0'", "--sizes"]),
        (&["multiedge", "--sizes", "many"], &["many"]),
        (&["multiedge", "--policy", "fair"], &["fair", "own", "multiedge", "both"]),
        (&["multiedge", "--link", "infiniband"], &["infiniband", "packet", "udp", "xdp"]),
        (&["multiedge", "--bare", "--link", "xdp"], &["--bare", "packet", "xdp"]),
        (&["multiedge", "--time", "0"], &["'0'", "--time"]),
        (&["failover", "--cuts", "half"], &["half", "both-ways", "one-way", "carrier"]),
        (&["failover", "--rates", "1G"], &["1G", "two rates"]),
        (&["failover", "--rates", "1G,fast"], &["1G,fast", "two rates"]),
        (&["failover", "--size", "0"], &["'0'", "above 0"]),
        (&["failover", "--size", "9"], &["'9'", "multiple of 8"]),
        (&["failover", "--phase", "-1"], &["-1"]),
        (&["yardsticks", "--link", "tcp"], &["tcp", "packet", "udp", "xdp"]),
    ];
    for (arguments, wanted) in refused {
        expect_refusal(&[&["bench"], arguments].concat(), wanted);
    }
    if can_make_namespaces() {
        let tests = ["bench", "multiedge", "--tests", "connection-setup"];
        expect_refusal(&tests, &["connection-setup", "ping-pong", "one-way", "two-way"]);
        expect_refusal(&["bench", "multiedge", "--mtu", "10"], &["MTU of 10", "68", "65535"]);
        let nowhere = ["serve", "--listen", "127.0.0.1:0", "--links", "packet:nowhere0"];
        expect_refusal(&nowhere, &["nowhere0", "lo"]);
    }
}

#[test]
fn files_that_cannot_be_written_are_reported_before_anything_is_measured() {
    if !can_make_namespaces() {
        return;
    }
    for command in [["bench", "multiedge"], ["bench", "failover"], ["sim", "reality"]] {
        let arguments = [&command[..], &["--html", "no/such/page.html"]].concat();
        expect_refusal(&arguments, &["no/such/page.html", "make its folder first"]);
    }
    let calibrate = ["sim", "calibrate", "--output", "no/such/host.toml"];
    expect_refusal(&calibrate, &["no/such/host.toml", "make its folder first"]);
}

fn expect_refusal(arguments: &[&str], wanted: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_ethernot")).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}");
    for word in wanted {
        assert!(error.contains(word), "{arguments:?} says nothing of {word:?}: {error}");
    }
}

/// The folder for a run's files, removed on drop.
struct Folder {
    path: PathBuf,
    pid: Cell<u32>,
}

impl Folder {
    /// Makes a folder. Returns `None` and prints the reason if measurements are not possible.
    fn new(name: &str) -> Option<Self> {
        if !can_make_namespaces() {
            return None;
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Removes the files of an earlier run.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Some(Self { path, pid: Cell::default() })
    }

    fn path(&self, kind: &str) -> String {
        self.path.join(format!("found.{kind}")).to_str().unwrap().to_owned()
    }

    /// Runs the command with both output files. The command must succeed.
    fn run(&self, arguments: &[&str], more: &[&str]) -> Output {
        let files = ["--json", &self.path("json"), "--html", &self.path("html")];
        let output = self.output(arguments, &[more, &files].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn output(&self, arguments: &[&str], more: &[&str]) -> Output {
        let running = Command::new(env!("CARGO_BIN_EXE_ethernot"))
            .args(arguments)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        self.pid.set(running.id());
        running.wait_with_output().unwrap()
    }

    /// Returns the JSON that the run wrote.
    fn json(&self) -> String {
        fs::read_to_string(self.path("json")).unwrap()
    }

    /// Returns the namespaces that the run has not removed.
    fn left_behind(&self) -> Vec<String> {
        namespaces_of(self.pid.get())
    }

    /// Checks that the page is complete and self-contained, has a chart and contains `word`.
    fn expect_page(&self, word: &str) {
        let page = fs::read_to_string(self.path("html")).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("<svg") && page.contains(word));
        assert!(!page.contains("src=\"http") && !page.contains("@import"));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Fails only on an I/O error.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the namespaces that process `pid` has made.
fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMESPACE_DIRECTORY) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("ethernot-bench-{pid}-"))).collect()
}

/// Returns the children of process `pid`.
fn children_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| parent_of(child) == Some(pid)).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns whether the process runs. A zombie process does not run.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

/// Ends a process, and returns its output to standard error so far.
fn said(running: &mut Child) -> String {
    // Fails if the process has already ended.
    let _ = running.kill();
    let lines = running.stderr.take().map(|stderr| BufReader::new(stderr).lines());
    lines.into_iter().flatten().map_while(Result::ok).collect::<Vec<_>>().join("; ")
}
