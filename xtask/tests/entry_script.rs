//! Tests `./x` on simulated machines without some tools. Scripts replace the package manager, the
//! downloader and Rust, and log their calls. The tests install nothing and use no network.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, id};
use std::{env, fs};

/// Tools that `x` finds even on a machine with only the base system.
const TOOLS: [&str; 14] = [
    "sh",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "env",
    "head",
    "mkdir",
    "printf",
    "rm",
    "sed",
    "sha256sum",
    "true",
    "uname",
];

/// A Rust version newer than the project requires.
const NEW: &str = "1.999.0";

/// A simulated machine: a folder of scripts in place of programs, a home folder and a log.
struct Machine {
    folder: PathBuf,
}

impl Machine {
    /// Creates a Debian 12 with only its base system and a compiler. Its Rust is too old, and it
    /// has no rustup.
    fn bare(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("ethernot-x-{}-{name}", id()));
        let machine = Self { folder };
        for part in ["bin", "home", "spare"] {
            fs::create_dir_all(machine.path(part)).expect("a folder");
        }
        for tool in TOOLS {
            let place = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
            let found = place.into_iter().find(|path| path.exists());
            if let Some(found) = found {
                symlink(found, machine.path("bin").join(tool)).expect("a link");
            }
        }
        machine.program("bin/cc", "");
        machine.program("bin/id", "echo 0");
        machine.program(
            "bin/apt-get",
            "for package; do\n\
             \x20   [ ! -e \"$SPARE/$package\" ] || cp \"$SPARE/$package\" \"$BIN/$package\"\n\
             done",
        );
        machine.offer("rustc", "1.63.0");
        machine.spare_curl("cp \"$SPARE/rustup-init\" \"$to\"");
        machine.program("spare/rustup-init", &format!("[ \"$1\" = -y ] || exit 2\n{}", bring(NEW)));
        machine
    }

    fn path(&self, part: &str) -> PathBuf {
        self.folder.join(part)
    }

    /// Creates a program that logs its name and arguments, then runs `body`.
    fn program(&self, part: &str, body: &str) {
        let path = self.path(part);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let script = format!("#!/bin/sh\necho \"{name} $*\" >> \"$LOG\"\n{body}\n");
        fs::write(&path, script).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// Creates an `apt-cache` that offers one package.
    fn offer(&self, package: &str, version: &str) {
        let body = format!(
            "[ \"$2\" != {package} ] || printf '%s:\\n  Candidate: {version}+x1\\n' \"$2\""
        );
        self.program("bin/apt-cache", &body);
    }

    /// Creates a `curl` that the package manager can install. It runs `body`, which finds the
    /// requested address in `$from` and the output file in `$to`.
    fn spare_curl(&self, body: &str) {
        let find = "while [ $# -gt 0 ]; do [ \"$1\" != -o ] || to=$2; from=$1; shift; done";
        self.program("spare/curl", &format!("{find}\n{body}"));
    }

    fn rust(&self, version: &str) {
        self.program("bin/rustc", &format!("echo 'rustc {version} (stand-in)'"));
        self.program("bin/cargo", "");
    }

    /// Keeps `x` from changing the rule of this host by which packages start services. Hosts differ in
    /// whether they have one.
    fn keep_policy(&self) {
        self.program("bin/tee", "while read -r line; do :; done");
        let chmod = self.path("bin/chmod");
        let link = fs::read_link(&chmod).expect("a link");
        fs::remove_file(&chmod).expect("a link");
        let body = format!("case $* in *policy-rc.d) ;; *) exec {} \"$@\" ;; esac", link.display());
        self.program("bin/chmod", &body);
    }

    fn x(&self, is_refused: bool) -> Output {
        self.x_with("bench", is_refused)
    }

    fn x_with(&self, chore: &str, is_refused: bool) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../x");
        let mut command = Command::new(script);
        command
            .arg(chore)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("BIN", self.path("bin"))
            .env("SPARE", self.path("spare"))
            .env("HOME", self.path("home"))
            .env("LOG", self.path("log"));
        if is_refused {
            command.env("X_NO_INSTALL", "1");
        }
        command.output().expect("a shell")
    }

    /// Returns the log of calls since the last call of this function.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        log
    }

    /// Returns the names of the files in the home folder.
    fn home(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("home")).expect("a home");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a script in place of rustup and of its installer. The script creates a toolchain in the
/// folder of rustup's toolchains.
fn bring(version: &str) -> String {
    format!(
        "bin=$RUSTUP_HOME/toolchains/stable-here/bin\n\
         mkdir -p \"$bin\"\n\
         printf '#!/bin/sh\\necho \"rustc {version} (stand-in)\"\\n' > \"$bin/rustc\"\n\
         printf '#!/bin/sh\\necho \"cargo $*\" >> \"$LOG\"\\n' > \"$bin/cargo\"\n\
         chmod +x \"$bin/rustc\" \"$bin/cargo\""
    )
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ran_the_chores(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("cargo run ") && line.ends_with("-- bench"))
}

#[test]
fn the_script_announces_and_installs_rust_into_its_own_folder_on_a_bare_machine() {
    let machine = Machine::bare("bare");
    let output = machine.x(false);
    let log = machine.log();
    assert!(output.status.success(), "{}{log}", errors(&output));
    assert!(ran_the_chores(&log), "{log}");
    assert!(log.contains("https://sh.rustup.rs"), "{log}");
    assert!(log.contains("--no-modify-path"), "{log}");
    assert_eq!(machine.home(), [".local"]);
    let message = errors(&output);
    let folder = machine.path("home/.local/share/ethernot/rust");
    assert!(message.contains(&format!("installs Rust into {}", folder.display())), "{message}");
}

#[test]
fn an_installed_rust_is_reused_without_a_download() {
    let machine = Machine::bare("again");
    assert!(machine.x(false).status.success());
    machine.log();
    assert!(machine.x(true).status.success());
    let log = machine.log();
    assert!(ran_the_chores(&log), "{log}");
    assert!(!log.contains("curl") && !log.contains("rustup"), "{log}");
}

#[test]
fn an_installed_rust_that_is_too_old_is_updated() {
    let machine = Machine::bare("aged");
    machine.program("spare/rustup-init", &bring("1.60.0"));
    assert!(!machine.x(false).status.success());
    fs::create_dir_all(machine.path("home/.local/share/ethernot/rust/cargo/bin"))
        .expect("a folder");
    machine.program("home/.local/share/ethernot/rust/cargo/bin/rustup", &bring(NEW));
    machine.log();
    let output = machine.x(false);
    let log = machine.log();
    assert!(output.status.success(), "{}{log}", errors(&output));
    assert!(log.contains("rustup toolchain install stable") && !log.contains("curl"), "{log}");
}

#[test]
fn refusing_the_installation_prints_one_command_and_installs_nothing() {
    let machine = Machine::bare("refused");
    let output = machine.x(true);
    assert!(!output.status.success());
    assert_eq!(machine.log(), "");
    assert_eq!(machine.home(), [""; 0]);
    let message = errors(&output);
    assert_eq!(
        message.lines().filter(|line| line.contains("curl --proto")).count(),
        1,
        "{message}"
    );
}

#[test]
fn a_system_rust_that_is_new_enough_is_used() {
    let machine = Machine::bare("ready");
    machine.rust(NEW);
    assert!(machine.x(false).status.success());
    let log = machine.log();
    assert!(ran_the_chores(&log), "{log}");
    assert!(!log.contains("curl") && machine.home().is_empty(), "{log}");
}

#[test]
fn an_account_rust_that_is_too_old_is_left_unchanged() {
    let machine = Machine::bare("old");
    machine.rust("1.63.0");
    machine.program("bin/rustup", &bring(NEW));
    assert!(machine.x(false).status.success());
    let log = machine.log();
    assert!(log.contains("rustup toolchain install stable --no-self-update"), "{log}");
    assert!(ran_the_chores(&log) && !log.contains("curl"), "{log}");
    assert_eq!(machine.home(), [".local"]);
}

#[test]
fn the_rustup_of_the_distribution_is_preferred_to_a_download() {
    let machine = Machine::bare("packaged");
    machine.offer("rustup", "1.27.1");
    machine.program("spare/rustup", &bring(NEW));
    let output = machine.x(false);
    let log = machine.log();
    assert!(output.status.success(), "{}{log}", errors(&output));
    assert!(ran_the_chores(&log) && !log.contains("curl"), "{log}");
}

#[test]
fn a_download_that_fails_ends_with_one_command() {
    let machine = Machine::bare("offline");
    machine.spare_curl("exit 6");
    let output = machine.x(false);
    assert!(!output.status.success());
    let message = errors(&output);
    assert_eq!(message.lines().filter(|line| line.contains("| sh -s --")).count(), 1, "{message}");
    let log = machine.log();
    assert!(!log.lines().any(|line| line.starts_with("rustup-init")), "{log}");
}

/// Returns a `curl` that reaches only the host of rustup's releases. The installer on that host has
/// this checksum.
fn only_releases(sum: &str) -> String {
    format!(
        "case $from in\n\
         *.sha256) {sum} > \"$to\" ;;\n\
         */rustup-init) cp \"$SPARE/rustup-init\" \"$to\" ;;\n\
         *) exit 6 ;;\n\
         esac"
    )
}

#[test]
fn the_installer_is_downloaded_if_the_script_is_unavailable() {
    let machine = Machine::bare("behind-a-proxy");
    machine.spare_curl(&only_releases(
        "sum=$(sha256sum \"$SPARE/rustup-init\"); printf %s \"${sum%% *}\"",
    ));
    let output = machine.x(false);
    let log = machine.log();
    assert!(output.status.success(), "{}{log}", errors(&output));
    assert!(log.contains("rustup-init -y --no-modify-path") && ran_the_chores(&log), "{log}");
}

#[test]
fn an_installer_with_another_checksum_is_not_run() {
    let machine = Machine::bare("forged");
    machine.spare_curl(&only_releases("echo 0123"));
    let output = machine.x(false);
    assert!(!output.status.success());
    assert!(errors(&output).contains("SHA-256 differs"), "{}", errors(&output));
    let log = machine.log();
    assert!(!log.lines().any(|line| line.starts_with("rustup-init")), "{log}");
}

#[test]
fn test_programs_are_installed_in_one_step_and_a_missing_one_does_not_stop_the_others() {
    let machine = Machine::bare("programs");
    machine.rust(NEW);
    machine.keep_policy();
    let output = machine.x_with("test", false);
    let log = machine.log();
    assert!(output.status.success(), "{}{log}", errors(&output));
    let asked = |word: &str| {
        let lines = log.lines().filter(|line| line.starts_with("apt-get install"));
        lines.filter(|line| line.split(' ').any(|package| package == word)).count()
    };
    for package in ["perftest", "libfabric-bin", "libopenmpi-dev", "mpich", "fio", "dpkg-dev"] {
        assert_eq!(asked(package), 1, "{package}: {log}");
    }

    let body = "case \"$*\" in *fio*) exit 1 ;; esac";
    machine.program("bin/apt-get", body);
    let output = machine.x_with("test", false);
    assert!(output.status.success(), "{}", errors(&output));
    let log = machine.log();
    assert!(
        log.lines().any(|line| line.starts_with("apt-get install") && line.ends_with(" qperf"))
    );
    let message = errors(&output);
    let message =
        message.lines().find(|line| line.contains("programs of these packages")).expect(&log);
    assert!(message.ends_with("apt-get install -y fio"), "{message}");
}
