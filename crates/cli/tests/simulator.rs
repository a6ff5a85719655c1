//! Tests the output files of `ethernot sim` about simulated clusters, as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const CLUSTER: &str = "[topology]\nkind = \"leaf_spine\"\nleaves = 2\nhosts = 8\nspines = 1\n\
                       [fabric]\nhost_rate_bps = 1_000_000_000\n[workload]\nkind = \"mesh\"\n\
                       iterations = 3\nbytes = 5000\n";

/// A folder that is removed with its contents on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulator-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cluster.toml"), CLUSTER).unwrap();
        Self(path)
    }

    fn sim(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        command.current_dir(&self.0).arg("sim").args(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.sim(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.sim(arguments);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn keys_are_listed_by_prefix_as_text_and_as_json() {
    let folder = Folder::new("keys");
    let listed = folder.json(&["keys", "fabric.mtu", "--json"]);
    let fabrics: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|key| key["only_with"][0].as_str()).collect();
    assert_eq!(fabrics, ["[fabric] kind = \"ethernet\"", "[fabric] kind = \"flit\""]);
    assert_eq!(listed[0]["default"], "1500 B");
    let text = String::from_utf8(folder.sim(&["keys", "loss"]).stdout).unwrap();
    assert!(text.contains("loss_ppm = 0  (from 0 to 1000000 ppm)") && text.contains("lossless"));
    let page = String::from_utf8(folder.sim(&["keys", "--markdown"]).stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator-keys.md");
    assert_eq!(page, fs::read_to_string(path).unwrap());
    assert!(folder.refused(&["keys", "nothing"]).contains("no key begins with nothing"));
}

#[test]
fn values_with_units_equal_plain_numbers() {
    let folder = Folder::new("units");
    let shown = |text: &str| {
        fs::write(folder.0.join("a.toml"), text).unwrap();
        let output = folder.sim(&["show", "a.toml"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = "[fabric]\nhost_rate_bps = 25_000_000_000\nlatency_ps = 2_000_000\n[workload]\n\
                 kind = \"ring\"\nbytes = 4_194_304\n";
    let units = "[fabric]\nhost_rate_bps = \"25 Gb/s\"\nlatency_ps = \"2 us\"\n[workload]\n\
                 kind = \"ring\"\nbytes = \"4 MiB\"\n";
    assert_eq!(shown(plain), shown(units));
}

#[test]
fn settings_are_also_shown_as_json() {
    let folder = Folder::new("settings");
    let settings = folder.json(&["show", "cluster.toml", "--json"]);
    assert_eq!(settings["workload"]["kind"], "mesh");
    assert_eq!(settings["fabric"]["mtu_bytes"], 1500);
}

#[test]
fn all_requested_files_are_written() {
    let folder = Folder::new("all");
    let result = folder.json(&[
        "run",
        "cluster.toml",
        "--json",
        "--why",
        "--messages",
        "messages.csv",
        "--links",
        "links.csv",
        "--queues",
        "queues.json",
        "--trace",
        "trace.json",
        "--html",
        "report.html",
    ]);
    let messages = 16 * 4 * 3;
    assert_eq!(result["messages"], messages);
    assert_eq!(folder.text("messages.csv").lines().count(), messages + 1);
    assert_eq!(folder.text("links.csv").lines().count(), 2 * (16 + 2) + 1);
    let queues: Value = serde_json::from_str(&folder.text("queues.json")).unwrap();
    assert!(queues.as_array().is_some_and(|rows| rows.iter().all(|row| row["link"].is_string())));
    let trace: Value = serde_json::from_str(&folder.text("trace.json")).unwrap();
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > messages));
    assert!(folder.text("report.html").contains("causes of the completion time"));
    let path = &result["diagnosis"]["critical_path"];
    let causes = path["by_cause"].as_array().unwrap().iter();
    let sum: f64 = causes.map(|cause| cause["us"].as_f64().unwrap()).sum();
    assert!((sum - result["completed_us"].as_f64().unwrap()).abs() < 1e-3, "{path}");
    let late = path["by_link"][0]["link"].as_str().unwrap();
    assert!(late == "s0->s2" || late == "s1->s2" || late.starts_with("s2->"), "{late}");
    // A run without records has the same result.
    assert_eq!(
        folder.json(&["run", "cluster.toml", "--json"])["result_hash"],
        result["result_hash"]
    );
}

/// A host sends all its messages at the same time, so each message waits for all earlier messages.
#[test]
fn slowdowns_are_in_the_report_and_the_table() {
    let folder = Folder::new("slowdown");
    let flows = "[topology]\nhosts = 2\n[workload]\nkind = \"flows\"\nflows = [[0, 1, 1500, 0], [0, 1, 1500, \
                 0], [0, 1, 1500, 0], [0, 1, 1500, 0]]\n";
    fs::write(folder.0.join("flows.toml"), flows).unwrap();
    let printed = folder.sim(&["run", "flows.toml", "--slowdown"]).stdout;
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains("slowdown of 4 messages: min 1.000  mean "), "{printed}");
    let result = folder.json(&["run", "flows.toml", "--json", "--messages", "flows.csv"]);
    let table = folder.text("flows.csv");
    let (names, rows) = table.split_once('\n').unwrap();
    assert!(names.ends_with(",latency_ps,link_wait_ps,alone_ps,slowdown"), "{names}");
    let last = |row: &str| row.rsplit(',').next().unwrap().parse::<f64>().unwrap();
    let column: Vec<f64> = rows.lines().map(last).collect();
    assert!(column.is_sorted_by(|a, b| a < b) && (column[0] - 1.0).abs() < 1e-9, "{column:?}");
    assert_eq!(result["slowdown"]["messages"], 4);
    assert_eq!(result["slowdown"]["median"], column[1]);
    assert_eq!(result["slowdown"]["max"], column[3]);
    let plain = folder.json(&["run", "flows.toml", "--json"]);
    assert!(plain["slowdown"].is_null() && plain["result_hash"] == result["result_hash"]);
}

#[test]
fn unrepaired_losses_are_reported_and_a_transport_repairs_them() {
    let folder = Folder::new("losses");
    let load = "[fabric]\nbuffer_bytes = \"5 kB\"\n[workload]\nload_percent = 90\n";
    fs::write(folder.0.join("lossy.toml"), load).unwrap();
    let repaired = format!("{load}[host]\ntransport = \"selective_repeat\"\n");
    fs::write(folder.0.join("repaired.toml"), repaired).unwrap();
    let warning = |name: &str| String::from_utf8(folder.sim(&["run", name]).stderr).unwrap();
    let printed = warning("lossy.toml");
    let place = "warning: lossy.toml:2: buffer_bytes in [fabric] is \"5 kB\"";
    assert!(
        printed.contains(place) && printed.contains("transport = \"selective_repeat\""),
        "{printed}"
    );
    assert!(!warning("repaired.toml").contains("warning"));
    let lossy = folder.json(&["run", "lossy.toml", "--json"]);
    let result = folder.json(&["run", "repaired.toml", "--json", "--html", "report.html"]);
    assert!(lossy["packets_lost"].as_u64() > Some(0) && lossy["transport"].is_null());
    assert!(result["messages"].as_u64() > lossy["messages"].as_u64());
    let transport = &result["transport"];
    assert!(transport["retransmitted_frames"].as_u64() > Some(0), "{transport}");
    let rate = |name: &str| transport[name].as_f64().unwrap();
    assert!(rate("throughput_bps") > rate("goodput_bps"), "{transport}");
    assert!(folder.text("report.html").contains("timeouts"));
    let text = String::from_utf8(folder.sim(&["run", "repaired.toml"]).stdout).unwrap();
    assert!(text.contains("transport: ") && text.contains("retransmitted"), "{text}");
}

#[test]
fn files_that_cannot_be_written_are_named_with_a_remedy() {
    let folder = Folder::new("full");
    std::os::unix::fs::symlink("/dev/full", folder.0.join("full.csv")).unwrap();
    let error = folder.refused(&["run", "cluster.toml", "--messages", "full.csv"]);
    assert!(error.contains("write full.csv") && error.contains("free some space"), "{error}");
    let error = folder.refused(&["run", "cluster.toml", "--html", "nowhere/report.html"]);
    assert!(error.contains("nowhere/report.html") && error.contains("make its folder"), "{error}");
    let error = folder.refused(&["run", "cluster.toml", "--links", "links.txt"]);
    assert!(error.contains(".csv, .json or .arrow"), "{error}");
}

#[test]
fn a_sweep_stops_when_the_disk_is_full_and_resumes_later() {
    let folder = Folder::new("sweep");
    fs::write(folder.0.join("grid.toml"), "[topology]\nhosts = 4\n[sweep.run]\nseed = [1, 2, 3]\n")
        .unwrap();
    let sweep = ["sweep", "grid.toml", "--into", "results", "--jobs", "1"];
    let first = folder.sim(&sweep);
    assert!(first.status.success());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.0.join("results")).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        fs::remove_file(path).unwrap();
    }
    assert_eq!(names.len(), 3);
    // A sweep first writes a result to a temporary file, whose name contains the machine's name and
    // the process id. The script creates a symbolic link with this name that leads to a full device.
    // It knows the process id, because the shell replaces itself by the sweep.
    let script = r#"
        for name in "$@"; do
            for number in 1 2 3; do
                ln -s /dev/full "results/$name.$(uname -n)-$$-$number.unfinished"
            done
        done
        exec "$0" sim sweep grid.toml --into results --jobs 1
    "#;
    let mut shell = Command::new("sh");
    shell.current_dir(&folder.0).args(["-c", script, env!("CARGO_BIN_EXE_ethernot")]).args(&names);
    let output = shell.output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the disk is full") && error.contains("results/"), "{error}");
    assert_eq!(error.matches("write ").count(), 1, "the others were not run: {error}");
    for entry in fs::read_dir(folder.0.join("results")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(folder.sim(&sweep).stdout, first.stdout);
}

#[test]
fn the_bill_of_the_study_matches_its_topology() {
    let folder = Folder::new("cost");
    let cost = folder.json(&["cost", "cluster.toml", "--json", "--simulate"]);
    assert_eq!(cost["price_list"], cost["book"], "the former name of the key");
    assert!(cost["price_list"]["currency"].is_string(), "{cost}");
    let expected = f64::from(16 * 700 + 3 * 50_000 + 18 * 75);
    assert_eq!(cost["total"].as_f64(), Some(expected));
    assert_eq!(cost["watts"], Value::Null);
    assert_eq!(cost["bisection_bits_per_second"], 1_000_000_000_u64);
    let speed = cost["completed_us"].as_f64().unwrap() * 1e-6 * expected;
    assert!((cost["per_run_per_second"].as_f64().unwrap() - speed).abs() < 1e-6);

    let fast = CLUSTER.replace("1_000_000_000", "10_000_000_000");
    fs::write(folder.0.join("fast.toml"), fast).unwrap();
    let error = folder.refused(&["cost", "fast.toml"]);
    assert!(error.contains("no interface for ethernet of 10000000000 b/s"), "{error}");
    fs::write(folder.0.join("book.toml"), "name = \"a\"\ncurrency = \"b\"\nparts = 3\n").unwrap();
    let error = folder.refused(&["cost", "cluster.toml", "--prices", "book.toml"]);
    assert!(error.contains("book.toml") && error.contains("line 3"), "{error}");
}

#[test]
fn fidelities_are_compared() {
    let folder = Folder::new("compare");
    let result = folder.json(&["compare", "cluster.toml", "--json"]);
    let fidelities = result["fidelities"].as_array().unwrap();
    assert_eq!(fidelities.len(), 3);
    let completed = |at: usize| fidelities[at]["completed_us"].as_f64().unwrap();
    // Run 1 is the model without a network, in which no message waits. In the other runs, eight
    // hosts share a trunk.
    assert!(completed(1) < completed(0) && completed(1) < completed(2), "{result}");
    assert_eq!(result["sizes"][0]["messages"], 16 * 4 * 3);
    let error = folder.refused(&["compare", "cluster.toml", "--fidelity", "packet"]);
    assert!(error.contains("too few fidelities"), "{error}");
    fs::write(folder.0.join("loggp.toml"), "[fabric]\nkind = \"loggp\"\n").unwrap();
    let error = folder.refused(&["compare", "loggp.toml"]);
    assert!(error.contains("loggp.toml: fabric loggp has no packets"), "{error}");
}

#[test]
fn policies_are_compared_at_the_selected_points() {
    let folder = Folder::new("policies");
    let wanted =
        ["--links", "1x1G,2x1G", "--hosts", "1", "--exercise", "ping-pong", "--sizes", "64"];
    let arguments = [&["policies", "--seeds", "1", "--shapers", "timers"], &wanted[..]].concat();
    let result = folder.json(&[&arguments[..], &["--json", "-"]].concat());
    assert_eq!(
        (&result["points"], &result["results"][0]["exercise"]),
        (&2.into(), &"ping-pong".into())
    );
    assert!(result["worst_ratio"].as_f64().is_some_and(|ratio| ratio > 0.9), "{result}");
    let output = folder.sim(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("2 points in "), "{text}");
    assert_eq!(result["offloads"], false);
    let offloading = [&arguments[..], &["--offloads"]].concat();
    assert_eq!(folder.json(&[&offloading[..], &["--json", "-"]].concat())["offloads"], true);
    let text = String::from_utf8(folder.sim(&offloading).stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("2 points over drivers that offload in "), "{text}");
    assert!(folder.refused(&["policies", "--links", "3x100M"]).contains("1G/20us+1G/2ms"));
    let none = [
        "policies",
        "--quick",
        "--links",
        "1x1G",
        "--sizes",
        "64",
        "--exercise",
        "two-way",
        "--hosts",
        "4",
    ];
    assert!(folder.refused(&none).contains("no point is left"));
}

/// Returns the first block of a language after a heading of the simulator's page.
fn block<'a>(page: &'a str, heading: &str, language: &str) -> &'a str {
    let (_, section) = page.split_once(heading).expect("there is such a heading");
    let (_, block) = section.split_once(&format!("```{language}\n")).expect("there is a block");
    block.split_once("```").expect("it has an end").0
}

#[test]
fn the_example_of_a_saturation_search_prints_the_documented_output() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator.md");
    let page = fs::read_to_string(page).unwrap();
    let folder = Folder::new("saturate");
    fs::write(folder.0.join("torus.toml"), block(&page, "## Saturation\n", "toml")).unwrap();
    let output = folder.sim(&["saturate", "torus.toml", "--precision", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, block(&page, "## Saturation\n", "text"));

    let json = ["saturate", "torus.toml", "--precision", "20", "--replications", "3", "--json"];
    let result = folder.json(&json);
    let (points, saturation) = (result["points"].as_array().unwrap(), &result["saturation"]);
    assert!(points.iter().any(|point| point == saturation), "{result}");
    assert_eq!((&result["replications"], &saturation["is_saturated"]), (&3.into(), &false.into()));
    assert!(saturation["latency_margin_us"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn an_impossible_search_for_saturation_reports_the_reason() {
    let folder = Folder::new("unsaturable");
    let refused = folder.refused(&["saturate", "cluster.toml"]);
    assert!(refused.contains("kind in [workload] is mesh, but must be \"open_load\""), "{refused}");
    let refused = folder.refused(&["saturate", "cluster.toml", "--precision", "0"]);
    assert!(refused.contains("a number from 0.01 to 100"), "{refused}");
}

#[test]
fn options_unsupported_by_a_replay_are_reported_by_name() {
    let folder = Folder::new("letters");
    let trace = "num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\n}\n";
    fs::write(folder.0.join("trace.goal"), trace).unwrap();
    for wrong in ["-1", "x", "1.5", "4294967296", "5 GB"] {
        let refused = folder.refused(&["goal", "trace.goal", "-S", wrong]);
        let expected = format!(
            "ethernot: -S is {wrong}, but must be from 0 to 4294967295 bytes; 65535 or \"64 KiB\" would do\n"
        );
        assert_eq!(refused, expected);
    }
    for option in ["-L", "-o", "-g", "-G"] {
        let refused = folder.refused(&["goal", "trace.goal", option, "-1"]);
        let expected = format!("ethernot: {option} is \"-1 ns\", but must be from 0 to");
        assert!(refused.starts_with(&expected) && refused.contains("would do"), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    for right in ["65535", "64 KiB", "0"] {
        let output = folder.sim(&["goal", "trace.goal", "-S", right]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The error contains the missing part, the place in the price book, the keys, and the lines to
/// add.
#[test]
fn a_part_without_a_price_is_reported_with_the_lines_to_add() {
    let folder = Folder::new("unpriced");
    let cluster = CLUSTER.replace("1_000_000_000", "25_000_000_000");
    fs::write(folder.0.join("cluster.toml"), cluster).unwrap();
    let prices = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulator/prices.toml");
    let mut lines: Vec<String> =
        fs::read_to_string(prices).unwrap().lines().map(str::to_owned).collect();
    let cost = ["cost", "cluster.toml", "--prices", "book.toml"];
    loop {
        fs::write(folder.0.join("book.toml"), lines.join("\n")).unwrap();
        if folder.sim(&cost).status.success() {
            break;
        }
        let refused = folder.refused(&cost);
        let (_, place) = refused.split_once("book.toml:").expect(&refused);
        let (line, rest) = place.split_once(": ").expect(&refused);
        let (part, rest) = rest.split_once(" has no price; put ").expect(&refused);
        let (_, example) = rest.split_once("as in: ").expect(&refused);
        let (example, _) = example.split_once(", a line each").expect(&refused);
        let at: usize = line.parse().expect(&refused);
        assert!(lines[at - 1..=at].iter().any(|line| line.contains(part)), "{refused}");
        lines.splice(at..at, example.split(", ").map(str::to_owned));
    }
    let text = String::from_utf8(folder.sim(&cost).stdout).unwrap();
    assert!(text.contains("interface of 25 Gb/s") && text.contains("2026-11-01"), "{text}");
}
