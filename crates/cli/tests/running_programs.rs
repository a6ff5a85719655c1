//! Tests `ethernot run` and `ethernot env`: the environment of programs, and the errors for
//! programs that cannot have a device. The tests use libraries without functions, so that the
//! results do not depend on the project's libraries.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::geteuid;
use serde_json::Value;

#[test]
fn frameworks_are_set_to_choose_the_device_unless_the_user_says_otherwise() {
    let Some(place) = Place::new("frameworks") else { return };
    for (name, value) in [
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_mtl_ofi_provider_include", "verbs;ofi_rxm"),
        ("UCX_RNDV_THRESH", "64K"),
        ("UCX_TCP_MAX_BW", "1MBs"),
    ] {
        let script = format!("echo \"${name}\"");
        let script = ["run", "--", "sh", "-c", &script];
        let output = place.ethernot(&script).env_remove(name).output().unwrap();
        assert_eq!(text(&output.stdout), format!("{value}\n"), "{}", text(&output.stderr));
        let output = place.ethernot(&script).env(name, "own").output().unwrap();
        assert_eq!(text(&output.stdout), "own\n", "{}", text(&output.stderr));
    }
}

#[test]
fn the_program_gets_our_libraries_and_keeps_its_own() {
    let Some(place) = Place::new("libraries") else { return };
    let script = "printf '%s\n' \"$LD_PRELOAD\" \"$LD_LIBRARY_PATH\" \"$NCCL_IBVERBS_LIB\"";
    let mut command = place.ethernot(&["run", "--", "sh", "-c", script]);
    let own = place.folder.join("libfirst.so");
    fs::copy(place.libraries.join("libibverbs.so.1"), &own).unwrap();
    let output = command.env("LD_PRELOAD", &own).env("LD_LIBRARY_PATH", "/x").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    let folder = place.libraries.display();
    let ours = ["libibverbs.so.1", "librdmacm.so.1", "libethernot_paths.so"];
    let ours = ours.map(|name| format!("{folder}/{name}")).join(":");
    assert_eq!(lines[0], format!("{ours}:{}", own.display()));
    assert_eq!(lines[1], format!("{folder}:/x"));
    assert_eq!(lines[2], format!("{folder}/libibverbs.so.1"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn input_exit_status_and_signals_are_the_programs_own() {
    let Some(place) = Place::new("becomes") else { return };
    let mut command = place.ethernot(&["run", "--", "sh", "-c", "cat; exit 7"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "through"));
    // `ethernot run` becomes the program instead of starting a child, so a signal to the process
    // ends the program.
    let output = place.run(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15));
    let output = place.run(&["sh", "-c", "echo $PPID"]);
    assert_eq!(text(&output.stdout).trim(), std::process::id().to_string());
}

#[test]
fn the_device_gets_its_settings() {
    let Some(place) = Place::new("settings") else { return };
    let script = "env | grep ^ETHERNOT_ | sort";
    let options =
        ["--device", "edge7", "--faults", "loss=0.01,dup=0.5", "--log", "debug", "--strict"];
    let files = ["--trace", "trace.jsonl", "--pcap", "frames.pcapng", "--links", "udp:127.0.0.1"];
    let mut command = place.ethernot(&["run"]);
    command.current_dir(&place.folder).args(options).args(files).args(["--", "sh", "-c", script]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let folder = fs::canonicalize(&place.folder).unwrap();
    for line in [
        "ETHERNOT_DEVICE=edge7".to_owned(),
        "ETHERNOT_FAULTS=loss=0.01,dup=0.5".to_owned(),
        "ETHERNOT_LINKS=udp:127.0.0.1".to_owned(),
        "ETHERNOT_LOG=debug".to_owned(),
        "ETHERNOT_STRICT=1".to_owned(),
        // Paths are absolute, because programs change their folder.
        format!("ETHERNOT_PCAP={}/frames.pcapng", folder.display()),
        format!("ETHERNOT_TRACE={}/trace.jsonl", folder.display()),
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
}

#[test]
fn an_iwarp_device_gets_its_settings() {
    let Some(place) = Place::new("iwarp-settings") else { return };
    let script = "env | grep ^ETHERNOT_IWARP_ | sort";
    let mut command = place.ethernot(&["run", "--device", "iwarp"]);
    command.args(["--iwarp-crc", "--iwarp-markers", "--iwarp-fpdu", "4096"]);
    command.args(["--", "sh", "-c", script]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = "ETHERNOT_IWARP_CRC=1\nETHERNOT_IWARP_FPDU=4096\nETHERNOT_IWARP_MARKERS=1\n";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn wrong_settings_are_named_before_anything_starts() {
    let Some(place) = Place::new("wrong") else { return };
    for (options, parts) in [
        (["--links", "udp:::::"], ["ETHERNOT_LINKS", "udp"]),
        (["--links", "absent0"], ["absent0", "no interface"]),
        (["--links", "udp:127.0.0.1:7000"], ["127.0.0.1:7000", "port"]),
        (["--links", "packet:absent0"], ["no interface", "IP address"]),
        (["--links", "udp:127.0.0.1,packet:absent0"], ["absent0", "interface"]),
        (["--device", "a/b"], ["ETHERNOT_DEVICE", "a/b"]),
        (["--device", "iwrap"], ["ETHERNOT_DEVICE", "did you mean iwarp"]),
        (["--faults", "loss=2"], ["ETHERNOT_FAULTS", "2"]),
        (["--faults", "luck=0.1"], ["luck", "loss, dup or reorder"]),
        (["--faults", "cut=0.1"], ["ETHERNOT_FAULTS", "ETHERNOT_DEVICE"]),
        (["--log", "loud"], ["loud", "debug"]),
        (["--device=edge", "--iwarp-crc"], ["ETHERNOT_IWARP_CRC", "ETHERNOT_DEVICE"]),
        (["--device=edge", "--iwarp-markers"], ["ETHERNOT_IWARP_MARKERS", "ETHERNOT_DEVICE"]),
        (["--device=iwarp", "--iwarp-fpdu=1"], ["ETHERNOT_IWARP_FPDU", "128 to 65000"]),
        (["--pcap", "/absent/frames"], ["/absent/frames", "make its folder first"]),
    ] {
        let mut command = place.ethernot(&["run"]);
        let output = command.args(options).args(["--", "echo", "started"]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {error}");
        assert_eq!(text(&output.stdout), "", "{options:?}");
        for part in parts {
            assert!(error.contains(part), "{options:?}: {error}");
        }
    }
    // Settings in the environment are checked too.
    let mut command = place.ethernot(&["run", "true"]);
    let output = command.env("ETHERNOT_FAULTS", "loss").output().unwrap();
    assert!(text(&output.stderr).contains("ETHERNOT_FAULTS"), "{}", text(&output.stderr));
}

#[test]
fn missing_and_non_executable_programs_are_refused() {
    let Some(place) = Place::new("none") else { return };
    place.file("plain", b"nothing that runs\n", 0o755);
    place.file("locked", b"#!/bin/sh\n", 0o644);
    place.file("orphan", b"#!/absent/shell -e\n", 0o755);
    place.file("orphan-of-env", b"#!/usr/bin/env absent-shell\n", 0o755);
    place.file("round", format!("#!{}\n", place.path("round").display()).as_bytes(), 0o755);
    place.refuses("absent-program", &["absent-program", "PATH"]);
    place.refuses("/absent/program", &["/absent/program"]);
    place.refuses("--strickt", &["--strickt is neither an option", "ethernot run --help"]);
    place.refuses("/tmp", &["/tmp", "folder"]);
    place.refuses_file("plain", &["neither a program nor a script", "sh "]);
    place.refuses_file("locked", &["no permission to run"]);
    place.refuses_file("orphan", &["/absent/shell", "does not exist"]);
    place.refuses_file("orphan-of-env", &["absent-shell", "does not exist"]);
    place.refuses_file("round", &["without an end"]);
}

#[test]
fn programs_without_a_glibc_loader_are_refused_with_a_reason() {
    let Some(place) = Place::new("kinds") else { return };
    let program = fs::read(env!("CARGO_BIN_EXE_ethernot")).unwrap();
    let elf = Elf(&program);
    place.file("static", &elf.with(|elf| elf.segment_type(INTERPRETER, 0)), 0o755);
    place.refuses_file("static", &["statically linked", "ethernot env"]);
    place.file("musl", &elf.with(|elf| elf.loader("/lib/ld-musl-x86_64.so.1")), 0o755);
    place.refuses_file("musl", &["musl", "GNU C library"]);
    place.file("other", &elf.with(|elf| elf.loader("/lib/klibc-x.so")), 0o755);
    place.refuses_file("other", &["another loader", "/lib/klibc-x.so"]);
    place.file("loaderless", &elf.with(|elf| elf.loader("/absent/ld-linux.so.2")), 0o755);
    place.refuses_file("loaderless", &["/absent/ld-linux.so.2", "does not exist"]);
    place.file("alone", &elf.with(|elf| elf.segment_type(DYNAMIC, 0)), 0o755);
    place.refuses_file("alone", &["no C library"]);
    place.file("foreign", &elf.with(|elf| elf.bytes[18] = 243), 0o755);
    place.refuses_file("foreign", &["another kind of processor", "riscv"]);
    place.file("small", &elf.with(|elf| elf.bytes[4] = 1), 0o755);
    place.refuses_file("small", &["32 bits"]);
    place.file("cut", &program[..200], 0o755);
    place.refuses_file("cut", &["read "]);
    // The command refuses a script if it refuses the script's interpreter. It does not check
    // programs that the interpreter starts.
    place.file("of-musl", format!("#!{}\n", place.path("musl").display()).as_bytes(), 0o755);
    place.refuses_file("of-musl", &["musl"]);
}

#[test]
fn privileged_programs_are_refused_with_a_reason() {
    let Some(place) = Place::new("rights") else { return };
    if !geteuid().is_root() {
        println!(
            "skipped: only root can make programs that gain rights, and become somebody without"
        );
        return;
    }
    let program = fs::read(env!("CARGO_BIN_EXE_ethernot")).unwrap();
    place.file("user", &program, 0o4755);
    place.file("group", &program, 0o2755);
    place.file("capable", &program, 0o755);
    let set = Command::new("setcap").arg("cap_net_raw+ep").arg(place.path("capable")).output();
    let is_set = set.is_ok_and(|output| output.status.success());
    let system = nix::sys::statvfs::statvfs(&place.folder).unwrap();
    if system.flags().contains(nix::sys::statvfs::FsFlags::ST_NOSUID) {
        println!("skipped: the file system gives no rights (nosuid)");
        return;
    }
    // File capabilities give root no further privileges.
    assert!(place.run(&[place.path("user").as_os_str(), OsStr::new("--version")]).status.success());
    for (name, what) in [("user", "set-user-ID"), ("group", "set-group-ID"), ("capable", "setcap")]
    {
        if name == "capable" && !is_set {
            println!(
                "skipped: setcap (libcap2-bin) is not there, or the file system keeps no capabilities"
            );
            continue;
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(env!("CARGO_BIN_EXE_ethernot")).args(["run", "--"]).arg(place.path(name));
        let output = command.env("ETHERNOT_LIBRARIES", &place.libraries).output().unwrap();
        if matches!(output.status.code(), Some(126 | 127)) {
            println!("skipped: others may not run this program: {}", text(&output.stderr));
            return;
        }
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(what) && error.contains("sudo ethernot run"), "{name}: {error}");
    }
}

#[test]
fn scripts_run_with_their_interpreter() {
    let Some(place) = Place::new("scripts") else { return };
    place.file("script", b"#!/usr/bin/env -S FOO=1 sh\necho ran $1\n", 0o755);
    let output = place.run(&[place.path("script").as_os_str(), OsStr::new("well")]);
    assert_eq!(text(&output.stdout), "ran well\n", "{}", text(&output.stderr));
}

#[test]
fn missing_libraries_are_named_with_the_command_that_builds_them() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    command.args(["run", "true"]).env("ETHERNOT_LIBRARIES", folder);
    let output = command.output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["libibverbs.so.1", "cargo xtask libraries", &folder.display().to_string()] {
        assert!(error.contains(part), "{error}");
    }
    let Some(place) = Place::new("a folder") else { return };
    let error = text(&place.run(&["true"]).stderr);
    assert!(error.contains("space") && error.contains("ETHERNOT_LIBRARIES"), "{error}");
}

#[test]
fn a_shell_gets_the_same_variables_and_so_does_a_script_in_json() {
    let Some(place) = Place::new("environment") else { return };
    let script = "eval \"$(\"$0\" env --log info)\"; echo \"$LD_PRELOAD\"; echo \"$ETHERNOT_LOG\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_ethernot")]);
    let output = shell.env("ETHERNOT_LIBRARIES", &place.libraries).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let output = place.ethernot(&["env", "--json", "--log", "info"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["format"], "ethernot-env-1");
    let variables = &report["variables"];
    let expected = ["LD_PRELOAD", "ETHERNOT_LOG"].map(|name| variables[name].as_str().unwrap());
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn launcher_daemons_run_under_the_same_command_unless_the_user_sets_an_agent() {
    let Some(place) = Place::new("launchers") else { return };
    let names = ["OMPI_MCA_orte_launch_agent", "PRTE_MCA_prte_launch_agent"];
    let lines_of = |command: &mut Command| -> Vec<String> {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(str::to_owned).collect()
    };
    let program = env!("CARGO_BIN_EXE_ethernot");
    let libraries = format!("ETHERNOT_LIBRARIES={}", place.libraries.display());
    let expected = |device: &str, daemon: &str| {
        format!("env ETHERNOT_DEVICE={device} {libraries} {program} run -- {daemon}")
    };
    let run = ["run", "--device", "edge7", "--"];
    let print = ["printenv", names[0], names[1]];
    let lines = lines_of(place.ethernot(&run).args(print));
    assert_eq!(lines, [expected("edge7", "orted"), expected("edge7", "prted")]);
    // If `ethernot run` starts another `ethernot run`, the settings of the inner command apply.
    let again = [program, "run", "--device", "edge8", "--"];
    let lines = lines_of(place.ethernot(&run).args(again).args(print));
    assert_eq!(lines, [expected("edge8", "orted"), expected("edge8", "prted")]);
    let lines = lines_of(place.ethernot(&run).args(print).env(names[0], "my-orted"));
    assert_eq!(lines, ["my-orted".to_owned(), expected("edge7", "prted")]);
}

#[test]
fn connections_move_without_a_device_unless_one_is_requested() {
    let Some(place) = Place::new("sockets") else { return };
    let environment_of = |options: &[&str]| {
        let mut command = place.ethernot(&["run", "--sockets"]);
        let script = "echo \"$LD_PRELOAD\"; env | grep ^ETHERNOT_ | grep -v LIBRARIES | sort";
        let output = command.args(options).args(["--", "sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let library = place.libraries.join(SOCKETS).display().to_string();
    assert_eq!(environment_of(&[]), format!("{library}\n"));
    let folder = place.folder.to_str().unwrap();
    let options =
        ["--move=never", "--poll", "--networks=10.0.0.0/8", "--except-ports=22", "--log=info"];
    let all = environment_of(
        &[options.as_slice(), &["--faults=loss=0.1", "--counters", folder]].concat(),
    );
    let expected = [
        format!("ETHERNOT_SOCKETS_COUNTERS={folder}"),
        "ETHERNOT_SOCKETS_EXCEPT_PORTS=22".into(),
        "ETHERNOT_SOCKETS_FAULTS=loss=0.1".into(),
        "ETHERNOT_SOCKETS_LOG=info".into(),
        "ETHERNOT_SOCKETS_MOVE=never".into(),
        "ETHERNOT_SOCKETS_NETWORKS=10.0.0.0/8".into(),
        "ETHERNOT_SOCKETS_POLL=always".into(),
    ];
    assert_eq!(all.lines().skip(1).collect::<Vec<_>>(), expected);
    for device in [["--rdma"].as_slice(), &["--device", "edge7"]] {
        let all = environment_of(device);
        let preloaded = all.lines().next().unwrap();
        assert!(preloaded.contains("libibverbs.so.1:") && preloaded.ends_with(&library), "{all}");
    }
    // With --sockets, the command ignores settings of RDMA devices. Without --sockets, it ignores
    // settings of sockets.
    let mut command = place.ethernot(&["run", "--sockets", "--", "true"]);
    assert!(command.env("ETHERNOT_FAULTS", "loss").status().unwrap().success());
}

#[test]
fn wrong_settings_of_connections_are_named_before_anything_starts() {
    let Some(place) = Place::new("wrong-sockets") else { return };
    place.file("rules", b"edge 10.0.0.0/8\ntcp prot 22\n", 0o644);
    let rules = place.path("rules");
    for (options, parts) in [
        (["--networks", "10.0.0.0/33"], ["ETHERNOT_SOCKETS_NETWORKS", "10.0.0.0/33"]),
        (["--except-ports", "ssh"], ["ETHERNOT_SOCKETS_EXCEPT_PORTS", "22,8000-8099"]),
        (["--rules", rules.to_str().unwrap()], ["line 2", "\"prot\""]),
        (["--rules", "/absent/rules"], ["/absent/rules", "can read"]),
        (["--poll=often", "--rdma"], ["often", "always"]),
        (["--move", "often"], ["ETHERNOT_SOCKETS_MOVE=often", "always, when-it-pays or never"]),
        (["--links", "udp:::::"], ["ETHERNOT_SOCKETS_LINKS", "udp"]),
        (["--log", "loud"], ["loud", "debug"]),
        (["--device=edge", "--iwarp-crc"], ["ETHERNOT_IWARP_CRC", "ETHERNOT_DEVICE"]),
        (["--device=edge", "--iwarp-markers"], ["ETHERNOT_IWARP_MARKERS", "ETHERNOT_DEVICE"]),
        (["--device=iwarp", "--iwarp-fpdu=1"], ["ETHERNOT_IWARP_FPDU", "128 to 65000"]),
        (["--log-file", "/absent/log"], ["/absent/log", "make its folder first"]),
        (["--counters", "/absent"], ["/absent", "make it first"]),
    ] {
        let mut command = place.ethernot(&["run", "--sockets"]);
        let output = command.args(options).args(["--", "echo", "started"]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {error}");
        assert_eq!(text(&output.stdout), "", "{options:?}");
        for part in parts {
            assert!(error.contains(part), "{options:?}: {error}");
        }
    }
    // These options require --sockets.
    let output = place.ethernot(&["run", "--poll", "--", "true"]).output().unwrap();
    assert!(text(&output.stderr).contains("--sockets"), "{}", text(&output.stderr));
}

#[test]
fn programs_whose_connections_cannot_move_are_named() {
    let Some(place) = Place::new("kinds-sockets") else { return };
    let program = fs::read(env!("CARGO_BIN_EXE_ethernot")).unwrap();
    let elf = Elf(&program);
    place.file("static", &elf.with(|elf| elf.segment_type(INTERPRETER, 0)), 0o755);
    let mut command = place.ethernot(&["run", "--sockets", "--"]);
    let output = command.arg(place.path("static")).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["statically linked", "the shared C library", "ethernot env --sockets"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn launchers_start_daemons_that_move_connections_too() {
    let Some(place) = Place::new("launchers-sockets") else { return };
    let program = env!("CARGO_BIN_EXE_ethernot");
    let name = "PRTE_MCA_prte_launch_agent";
    let again = ["--sockets", "--rdma", "--", program, "run", "--sockets", "--", "printenv", name];
    let output = place.ethernot(&["run"]).args(again).output().unwrap();
    let printed = text(&output.stdout);
    assert!(printed.ends_with(&format!("{program} run --sockets -- prted\n")), "{printed}");
}

#[test]
fn the_help_of_each_command_has_an_example() {
    for command in ["run", "env"] {
        let mut ethernot = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        let help = text(&ethernot.args([command, "--help"]).output().unwrap().stdout);
        assert!(help.contains("Examples") && help.contains("--faults"), "{help}");
    }
}

#[test]
fn the_pages_name_every_option_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = ["docs/running-programs.md", "docs/sockets.md"];
    let page = pages.map(|page| fs::read_to_string(root.join(page)).unwrap()).concat();
    let help = |command: &str| {
        let mut ethernot = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        text(&ethernot.args([command, "--help"]).output().unwrap().stdout)
    };
    let options = |help: &str| -> Vec<String> {
        let words = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
        words.filter_map(|rest| rest.split([' ', '=', '[']).next()).map(str::to_owned).collect()
    };
    let known = options(&help("run"));
    assert!(known.len() >= 6, "{known:?}");
    for option in &known {
        let starts = [' ', '`'].map(|end| format!("| `--{option}{end}"));
        assert!(starts.iter().any(|start| page.contains(start)), "no page names --{option}");
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    for named in rows.filter_map(|rest| rest.split([' ', '`']).next()) {
        assert!(known.iter().any(|option| option == named), "there is no option --{named}");
    }
    for command in ["run", "env", "stat"] {
        assert!(help(command).contains("Examples"), "{command}");
        assert!(page.contains(&format!("ethernot {command}")), "{command}");
    }
}

/// The library that moves connections.
const SOCKETS: &str = "libethernot-sockets.so";

/// A test's folder with empty libraries.
struct Place {
    folder: PathBuf,
    libraries: PathBuf,
}

impl Place {
    /// Makes the folder. Prints the reason and returns `None` if libraries cannot be made.
    fn new(name: &str) -> Option<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("running").join(name);
        // Fails at the first run, because the folder does not exist yet.
        let _ = fs::remove_dir_all(&folder);
        let libraries = folder.join("libraries");
        fs::create_dir_all(&libraries).unwrap();
        for name in ["libibverbs.so.1", "librdmacm.so.1", "libethernot_paths.so", SOCKETS] {
            let mut command = Command::new("cc");
            command.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(libraries.join(name));
            if !command.status().is_ok_and(|status| status.success()) {
                println!("skipped: a C compiler is needed to make libraries (cc)");
                return None;
            }
        }
        Some(Self { folder, libraries })
    }

    fn ethernot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        command.args(arguments).stdin(Stdio::null()).env("ETHERNOT_LIBRARIES", &self.libraries);
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, program: &[impl AsRef<OsStr>]) -> Output {
        self.ethernot(&["run", "--"]).args(program).output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) {
        fs::write(self.path(name), bytes).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Checks that the program is not started, and that the error contains `words`.
    fn refuses(&self, program: impl Into<OsString>, words: &[&str]) {
        let program = program.into();
        let output = self.run(&[&program]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{}: {error}", program.display());
        for word in words {
            assert!(error.contains(word), "{word:?} is not said: {error}");
        }
    }

    fn refuses_file(&self, name: &str, words: &[&str]) {
        self.refuses(self.path(name), words);
    }
}

/// A 64-bit ELF file that can be modified.
struct Elf<'a>(&'a [u8]);

struct Changed {
    bytes: Vec<u8>,
}

impl Elf<'_> {
    fn with(&self, change: impl FnOnce(&mut Changed)) -> Vec<u8> {
        let mut changed = Changed { bytes: self.0.to_vec() };
        change(&mut changed);
        changed.bytes
    }
}

impl Changed {
    /// Changes the type of the segment with type `from`.
    fn segment_type(&mut self, from: u32, to: u32) {
        let at = self.segment(from);
        self.bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    /// Replaces the name of the loader by one that is not longer.
    fn loader(&mut self, name: &str) {
        let segment = self.segment(INTERPRETER);
        let (at, length) = (self.number(segment + 8), self.number(segment + 32));
        assert!(name.len() < length);
        self.bytes[at..at + length].fill(0);
        self.bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        // The length of the segment includes the terminating zero.
        let length = name.len() as u64 + 1;
        self.bytes[segment + 32..segment + 40].copy_from_slice(&length.to_le_bytes());
    }

    /// Returns the offset of the program header with this segment type.
    fn segment(&self, wanted: u32) -> usize {
        let (first, count) = (self.number(32), usize::from(self.bytes[56]));
        let at = |index: usize| first + index * 56;
        let is_wanted = |&at: &usize| self.bytes[at..at + 4] == wanted.to_le_bytes();
        (0..count).map(at).find(is_wanted).unwrap()
    }

    fn number(&self, at: usize) -> usize {
        usize::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }
}

const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
