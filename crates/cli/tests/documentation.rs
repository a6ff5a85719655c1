//! Tests the commands in docs/simulator.md: runs each of them, in the order of the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A command of the page.
#[derive(Debug)]
struct Documented {
    words: Vec<String>,
    /// Whether the test only checks the arguments of the command. This is the case if the page
    /// marks the command as `(long)` or `(root)`, or contains only the command's name. The test
    /// then adds `--help`, with which the command still rejects unknown options.
    is_only_parsed: bool,
}

fn page() -> String {
    fs::read_to_string(root().join("docs/simulator.md")).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the commands in blocks and in running text.
fn documented(page: &str) -> Vec<Documented> {
    let mut commands = Vec::new();
    let mut block: Option<String> = None;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            block = block.is_none().then(|| language.to_owned());
        } else if let Some(language) = &block {
            let command = line.strip_prefix("exec ").unwrap_or(line);
            if language == "sh" && command.starts_with("ethernot ") {
                commands.push(documented_command(command, ""));
            }
        } else {
            let mut spans = line.split('`').skip(1);
            while let (Some(code), rest) = (spans.next(), spans.next().unwrap_or_default()) {
                if code.starts_with("ethernot ") {
                    commands.push(documented_command(code, rest));
                }
            }
        }
    }
    commands
}

fn documented_command(code: &str, rest: &str) -> Documented {
    let code = code.split('#').next().unwrap().replace("$SLURM_ARRAY_TASK_ID", "3");
    let words: Vec<String> = code.split_whitespace().skip(1).map(str::to_owned).collect();
    let is_marked = [" (long)", " (root)"].iter().any(|mark| rest.starts_with(mark));
    let is_only_parsed = is_marked || words.len() < 3 || words[0] != "sim";
    Documented { words, is_only_parsed }
}

fn ethernot(folder: &Path, words: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    command.current_dir(folder).args(words).output().unwrap()
}

/// Returns a folder with the files that the page names.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documentation");
    // Fails at the first run, because the folder does not exist yet.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("examples/simulator")).unwrap();
    for example in fs::read_dir(root().join("examples/simulator")).unwrap() {
        let example = example.unwrap();
        fs::copy(example.path(), folder.join("examples/simulator").join(example.file_name()))
            .unwrap();
    }
    let cluster = "[topology]\nkind = \"leaf_spine\"\nleaves = 2\nhosts = 8\nspines = 1\n[fabric]\n\
                   host_rate_bps = \"1 Gb/s\"\n[workload]\nkind = \"mesh\"\niterations = 3\n";
    let engines = "[topology]\nhosts = 6\n[host]\nkind = \"edge\"\n[workload]\nkind = \"ring\"\n";
    let grid = "[workload]\nkind = \"ring\"\n[sweep.workload]\nbytes = [64, 1500]\n[sweep.run]\n\
                seed = [1, 2, 3, 4, 5, 6, 7, 8]\n";
    let trace = "num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\n}\n";
    let page = page();
    let (_, saturation) = page.split_once("## Saturation\n").unwrap();
    let torus = saturation.split("```").nth(1).unwrap().strip_prefix("toml\n").unwrap();
    let prices = ethernot(&folder, &["sim", "cost", "--print-prices"].map(str::to_owned)).stdout;
    for (name, text) in [
        ("cluster.toml", cluster.as_bytes()),
        ("engines.toml", engines.as_bytes()),
        ("grid.toml", grid.as_bytes()),
        ("trace.goal", trace.as_bytes()),
        ("torus.toml", torus.as_bytes()),
        ("prices.toml", &prices),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    folder
}

#[test]
fn every_command_of_the_page_on_the_simulator_works() {
    let folder = folder();
    let commands = documented(&page());
    let run = commands.iter().filter(|command| !command.is_only_parsed).count();
    assert!(commands.len() > 25 && run > 15, "{} commands, {run} of them run", commands.len());
    let mut failures = Vec::new();
    for Documented { mut words, is_only_parsed } in commands {
        if is_only_parsed {
            words.push("--help".to_owned());
        }
        let output = ethernot(&folder, &words);
        let error = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            failures.push(format!("ethernot {}: {error}", words.join(" ")));
            continue;
        }
        let pairs = words.windows(2).filter(|pair| FILES.contains(&pair[0].as_str()));
        for pair in pairs.filter(|_| !is_only_parsed) {
            if fs::metadata(folder.join(&pair[1])).is_ok_and(|written| written.len() > 0) {
                continue;
            }
            failures.push(format!("ethernot {}: wrote no {}", words.join(" "), pair[1]));
        }
    }
    // Read by `xtask acceptance fabric`.
    println!("figure: documented commands that fail: {}", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_subcommand_of_the_simulator_is_named_by_the_page() {
    let overview = ethernot(&root(), &["sim", "--help"].map(str::to_owned)).stdout;
    let overview = String::from_utf8(overview).unwrap();
    let (_, names) = overview.split_once("\nCommands:\n").unwrap();
    let names = names.lines().map_while(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 18, "{names:?}");
    let page = page();
    for name in names {
        let is_in = |text: &str| {
            let is_named = |code: &str| {
                let mut words = code.split_whitespace().skip_while(|&word| word == "ethernot");
                let first = words.next();
                first == Some(name) || first == Some("sim") && words.next() == Some(name)
            };
            text.lines().any(|line| line.split('`').skip(1).step_by(2).any(is_named))
        };
        assert!(is_in(&page) || page.contains(&format!("\nethernot sim {name} ")), "{name}");
    }
}

/// Each option in the page's running text is an option of at least one command of the simulator.
#[test]
fn every_option_on_the_page_of_the_simulator_exists() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let help = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        String::from_utf8(ethernot(folder, &words).stdout).unwrap()
    };
    let overview = help(&["sim", "--help"]);
    let names = overview.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let all: String =
        names.filter(|name| !name.is_empty()).map(|name| help(&["sim", name, "--help"])).collect();
    let page = page();
    let spans = page.lines().filter(|line| !line.starts_with("```"));
    let options = spans.flat_map(|line| line.split('`').skip(1).step_by(2));
    let mut count = 0;
    for option in options.filter(|code| code.starts_with("--")) {
        let name = option.split([' ', '=']).next().unwrap();
        assert!(all.contains(name), "no command of the simulator has {name}");
        count += 1;
    }
    assert!(count > 15, "{count} options");
}

/// Options with an output file.
const FILES: &[&str] = &[
    "--manifest",
    "--html",
    "--trace",
    "--messages",
    "--links",
    "--queues",
    "--pcapng",
    "--svg",
    "--to-binary",
];
