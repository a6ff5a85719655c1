//! Tests simulations from the command line: sweeps that are stopped in several ways, and traces.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::SystemTime;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const POINTS: usize = 24;

/// The finished results of a job array can be shown without running anything.
#[test]
fn finished_points_are_listed_without_running_others() {
    let sweep = Sweep::new("finished");
    let nothing = sweep.run(&["--finished"]);
    assert!(!nothing.status.success() && !sweep.results.exists());
    assert!(sweep.run(&["--part", "2/3"]).status.success());
    let kept = sweep.results();
    let some = sweep.run(&["--finished"]);
    assert_eq!(some.status.code(), Some(1));
    assert_eq!(String::from_utf8(some.stdout).unwrap().lines().count(), kept.len());
    let error = String::from_utf8(some.stderr).unwrap();
    assert!(error.contains(&format!("{} of {POINTS} points have no result", POINTS - kept.len())));
    assert_eq!(sweep.results(), kept);
    let part = sweep.run(&["--finished", "--part", "2/3"]);
    assert!(part.status.success());
}

/// No point is simulated if its result cannot be written.
#[test]
fn a_sweep_into_an_unwritable_folder_does_not_begin() {
    let sweep = Sweep::new("unwritable");
    std::os::unix::fs::symlink("/proc", &sweep.results).unwrap();
    let output = sweep.run(&[]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(".unfinished") && error.contains("write "), "{error}");
}

#[test]
fn a_killed_sweep_resumes_without_losing_finished_points() {
    let sweep = Sweep::new("killed");
    let mut running = sweep.start();
    let finished = sweep.wait_for_results(&mut running, 3);
    running.kill().unwrap();
    running.wait().unwrap();
    let kept = sweep.results();
    assert!(finished.iter().all(|(path, result)| kept.get(path) == Some(result)));

    assert!(sweep.run(&[]).status.success());
    let all = sweep.results();
    assert_eq!(all.len(), POINTS);
    // Contents and modification times are unchanged.
    assert!(kept.iter().all(|(path, result)| all.get(path) == Some(result)));
}

#[test]
fn an_interrupted_sweep_prints_how_to_resume_and_resumes() {
    let sweep = Sweep::new("interrupted");
    let mut running = sweep.start();
    sweep.wait_for_results(&mut running, 2);
    kill(Pid::from_raw(running.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = running.wait_with_output().unwrap();
    let kept = sweep.results();
    if kept.len() < POINTS {
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("the same command continues the sweep"), "{text}");
    }
    for (_, text) in kept.values() {
        let result: Value = serde_json::from_str(text).expect("results are whole");
        assert!(result["result_hash"].is_string());
    }

    assert!(sweep.run(&[]).status.success());
    let all = sweep.results();
    assert_eq!(all.len(), POINTS);
    assert!(kept.iter().all(|(path, result)| all.get(path) == Some(result)));
}

#[test]
fn each_point_is_in_exactly_one_part() {
    let sweep = Sweep::new("parts");
    let count = ethernot(&["sim", "sweep", sweep.grid(), "--count"]);
    assert_eq!(String::from_utf8_lossy(&count.stdout).trim(), POINTS.to_string());
    let mut seen = 0;
    for part in ["1/5", "2/5", "3/5", "4/5", "5/5"] {
        let output = sweep.run(&["--part", part]);
        assert!(output.status.success(), "{output:?}");
        seen += String::from_utf8_lossy(&output.stdout).lines().count();
    }
    assert_eq!(seen, POINTS);
    assert_eq!(sweep.results().len(), POINTS);
    let wrong = sweep.run(&["--part", "6/5"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("K/N with K from 1 to N"));
}

#[test]
fn equal_points_do_not_conflict() {
    let sweep = Sweep::new("same");
    let text =
        "[workload]\nkind = \"barrier\"\n[sweep.workload]\niterations = [1, 1, 1, 1, 1, 1, 1]\n";
    fs::write(&sweep.grid, text).unwrap();
    let output = sweep.run(&[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 7);
    assert_eq!(sweep.results().len(), 1);
}

/// Uses a file system of four pages in a new mount namespace.
#[test]
fn a_sweep_on_a_full_disk_keeps_its_points_and_resumes_when_there_is_space() {
    let sweep = Sweep::new("full");
    fs::create_dir_all(&sweep.results).unwrap();
    let script = r#"
        mount -t tmpfs -o size=16k none "$2" || exit 77
        "$0" sim sweep "$1" --into "$2" --jobs 2 > "$3/first" 2>&1
        echo "first $?"
        echo "kept $(ls "$2" | grep -c 'json$')"
        echo "unfinished $(ls "$2" | grep -c unfinished)"
        for file in "$2"/*.json; do cp -p "$file" "$3/"; done
        mount -o remount,size=4m "$2"
        "$0" sim sweep "$1" --into "$2" --jobs 2 > "$3/second" 2>&1
        echo "second $?"
        echo "kept $(ls "$2" | grep -c 'json$')"
        for file in "$3"/*.json; do cmp "$file" "$2/$(basename "$file")" || echo changed; done
    "#;
    let copies = sweep.folder.join("copies");
    fs::create_dir_all(&copies).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_ethernot"))
        .arg(&sweep.grid)
        .args([&sweep.results, &copies])
        .output();
    let Ok(output) = output else {
        println!("skipped: the command `unshare` is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("first") {
        println!("skipped: a small file system of its own needs root");
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "first 1", "{text}");
    let kept: usize = lines[1].strip_prefix("kept ").unwrap().parse().unwrap();
    assert!((1..POINTS).contains(&kept), "{text}");
    assert_eq!(lines[2], "unfinished 0");
    assert_eq!(lines[3..], ["second 0", &format!("kept {POINTS}")], "{text}");
    let first = fs::read_to_string(copies.join("first")).unwrap();
    assert!(first.contains("make room, then run the same command"), "{first}");
    assert!(first.contains(&format!("{} of {POINTS} points have no result", POINTS - kept)));
}

#[test]
fn a_trace_gives_the_same_result_in_text_and_binary_form() {
    let folder = folder("trace");
    let (text, binary) = (folder.join("a.goal"), folder.join("a.bin"));
    let trace = "num_ranks 2\nrank 0 {\na: calc 1000\nb: send 8b to 1 tag 7\nb requires a\n}\n\
                 rank 1 {\nrecv 8b from -1 tag 7\n}\n";
    fs::write(&text, trace).unwrap();
    let (text, binary) = (text.to_str().unwrap(), binary.to_str().unwrap());
    assert!(ethernot(&["sim", "goal", text, "--to-binary", binary]).status.success());
    let hash = |path: &str| {
        let output = ethernot(&["sim", "goal", path, "--json"]);
        let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
        result["result_hash"].as_str().map(str::to_owned)
    };
    assert_eq!(hash(text), hash(binary));
    assert!(hash(text).is_some());

    let timeline = folder.join("timeline.json");
    let output = ethernot(&["sim", "goal", binary, "--trace", timeline.to_str().unwrap(), "--why"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(timeline.exists());
    let output = ethernot(&["sim", "goal", text, "--to-binary", binary, "--why"]);
    assert_eq!(output.status.code(), Some(2), "nothing is run, so there is nothing to explain");

    let whole = fs::read(binary).unwrap();
    fs::write(binary, &whole[..100]).unwrap();
    let output = ethernot(&["sim", "goal", binary]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("a.bin: ends at byte 100, within rank 0"), "{error}");
}

#[test]
fn threads_do_not_change_results_and_are_refused_where_unsupported() {
    let folder = folder("threads");
    let ring = folder.join("ring.goal");
    fs::write(&ring, interconnect::goal::Goal::ring(8, 20)).unwrap();
    let ring = ring.to_str().unwrap();
    let write = |name: &str, keys: &str| {
        let path = folder.join(name);
        let text = format!(
            "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 2\nspines = 2\n[workload]\n\
             kind = \"all_reduce\"\nbytes = 100_000\n{keys}"
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, three) = (write("one.toml", ""), write("three.toml", "[run]\nthreads = 3\n"));
    let worms = write("worms.toml", "[fabric]\nkind = \"wormhole\"\n[run]\nthreads = 3\n");
    let hash = |arguments: &[&str]| {
        let output = ethernot(&[&["sim"], arguments, &["--json"]].concat());
        let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
        result["result_hash"].as_str().map(str::to_owned).expect("a hash")
    };
    assert_eq!(hash(&["run", &one]), hash(&["run", &three]));
    let replayed = |configuration: &str| hash(&["goal", ring, "--configuration", configuration]);
    assert_eq!(replayed(&one), replayed(&three));
    for arguments in
        [vec!["sim", "run", &worms], vec!["sim", "goal", ring, "--configuration", &worms]]
    {
        let output = ethernot(&arguments);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("wormhole runs on 1 thread, not on 3"), "{error}");
    }
}

#[test]
fn a_trace_runs_with_loggopsim_parameters_and_reports_when_ranks_finished() {
    let folder = folder("loggp");
    let trace = folder.join("a.goal");
    // Two messages of 1000 bytes from rank 0 to rank 1, and nothing for rank 2.
    let text = "num_ranks 3\nrank 0 {\na: send 1000b to 1 tag 1\nb: send 1000b to 1 tag 2\n}\nrank 1 {\n\
                recv 1000b from 0 tag 1\nrecv 1000b from 0 tag 2\n}\nrank 2 {\n}\n";
    fs::write(&trace, text).unwrap();
    let trace = trace.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let output = ethernot(&[&["sim", "goal", trace], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let finished = |arguments: &[&str]| -> Vec<f64> {
        let result: Value = serde_json::from_str(&run(&[arguments, &["--json"]].concat())).unwrap();
        let times = result["finished_us"].as_array().unwrap();
        times.iter().map(|time| time.as_f64().unwrap()).collect()
    };
    let model = ["-L", "2us", "-o", "0.5us", "-g", "1000", "-G", "0.1"];
    let times = finished(&model);
    // By LogGP, the interface can send the second message g + 999 G after the first. Sending the
    // second message takes o.
    let second = 1.0 + 0.0999;
    assert!((times[0] - (second + 0.5)).abs() < 1e-9, "{times:?}");
    assert!(times[2].abs() < 1e-9, "{times:?}");
    // The receiver has the second message L + 999 G + o after the sender has finished.
    assert!((times[1] - (second + 0.5 + 2.0 + 0.0999 + 0.5)).abs() < 1e-9, "{times:?}");
    // The messages are longer than the rendezvous size S. So each of them also needs a request and
    // an answer, which makes three messages.
    assert!(finished(&[&model[..], &["-S", "500"]].concat())[1] > times[1] + 4.0);
    assert!(run(&model).contains("finished: first rank 2 at 0.000 us, middle rank 0 at 1.600 us"));

    let refused = |arguments: &[&str]| {
        let output = ethernot(&[&["sim", "goal", trace], arguments].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let refusal = refused(&["-L", "soon"]);
    assert!(refusal.contains(": -L is \"soon\", but must be from 0 to"), "{refusal}");
    assert!(refused(&["-o", "soon"]).contains(": -o is \"soon\""));
    assert!(refused(&["-L", "1", "--configuration", "a.toml"]).contains("cannot be used with"));
}

#[test]
fn a_collective_reports_its_iterations_and_the_time_of_one() {
    let folder = folder("collective");
    let path = folder.join("a.toml");
    fs::write(&path, "[workload]\nkind = \"barrier\"\niterations = 4\n").unwrap();
    let path = path.to_str().unwrap();
    let text = String::from_utf8(ethernot(&["sim", "run", path]).stdout).unwrap();
    let json = ethernot(&["sim", "run", path, "--json"]).stdout;
    let result: Value = serde_json::from_slice(&json).unwrap();
    let one_us = result["completed_us"].as_f64().unwrap() / 4.0;
    assert_eq!(result["collective"]["iterations"], 4);
    assert!((result["collective"]["one_us"].as_f64().unwrap() - one_us).abs() < 1e-9);
    assert!(text.contains(&format!("4 repetitions, each in {one_us:.3} us on average")), "{text}");
}

#[test]
fn a_run_with_engines_has_a_report_with_pictures_and_tables() {
    let folder = folder("engines");
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulator/multiedge.toml"),
    )
    .unwrap();
    let path = folder.join("multiedge.toml");
    fs::write(&path, text.replace("iterations = 4", "iterations = 1")).unwrap();
    let [page, links, messages] =
        ["page.html", "links.csv", "messages.csv"].map(|name| folder.join(name));
    let output = Command::new(env!("CARGO_BIN_EXE_ethernot"))
        .args(["sim", "run", "--why", "--html"])
        .args([&page, Path::new("--links"), &links, Path::new("--messages"), &messages, &path])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("processors and windows"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let page = fs::read_to_string(page).unwrap();
    for part in [
        "2 rails, hosts with the real engine",
        "Latency of messages",
        "Messages in flight",
        "busiest links",
        "rail 1 s0-&gt;h",
        "star 16: 16 hosts, 1 switch, 16 cables",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let links = fs::read_to_string(links).unwrap();
    // Sixteen cables with two directions on each of two rails.
    assert_eq!(links.lines().count(), 1 + 2 * 2 * 16);
    assert!(links.contains("\nrail 1 h15->s0,h15,s0,1000000000,"), "{links}");
    let messages = fs::read_to_string(messages).unwrap();
    assert_eq!(messages.lines().count(), 1 + 16 * 15);
}

/// A grid and a folder for its results.
struct Sweep {
    folder: PathBuf,
    grid: PathBuf,
    results: PathBuf,
}

impl Sweep {
    fn new(name: &str) -> Self {
        let folder = folder(name);
        let grid = folder.join("grid.toml");
        let seeds: Vec<String> = (1..=POINTS).map(|seed| seed.to_string()).collect();
        let text = format!(
            "[workload]\nkind = \"all_to_all\"\niterations = 100\n[sweep.run]\nseed = [{}]\n",
            seeds.join(", ")
        );
        fs::write(&grid, text).unwrap();
        Self { results: folder.join("results"), folder, grid }
    }

    fn grid(&self) -> &str {
        self.grid.to_str().unwrap()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        command.args(["sim", "sweep"]).arg(&self.grid).arg("--into").arg(&self.results);
        command.args(["--jobs", "2"]);
        command
    }

    fn start(&self) -> Child {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command().args(more).output().unwrap()
    }

    /// Waits until `count` points are finished, or the sweep has ended.
    fn wait_for_results(&self, running: &mut Child, count: usize) -> Results {
        loop {
            let results = self.results();
            if results.len() >= count || running.try_wait().unwrap().is_some() {
                return results;
            }
            thread::yield_now();
        }
    }

    fn results(&self) -> Results {
        let Ok(entries) = fs::read_dir(&self.results) else { return Results::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let finished = paths.filter(|path| path.extension().is_some_and(|name| name == "json"));
        finished.map(|path| (path.clone(), content(&path))).collect()
    }
}

/// Modification time and contents of each result.
type Results = BTreeMap<PathBuf, (SystemTime, String)>;

fn content(path: &Path) -> (SystemTime, String) {
    let changed = fs::metadata(path).unwrap().modified().unwrap();
    (changed, fs::read_to_string(path).unwrap())
}

/// Makes an empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulations").join(name);
    // Fails at the first run, because the folder does not exist yet.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn ethernot(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}
