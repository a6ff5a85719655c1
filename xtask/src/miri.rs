//! `cargo xtask miri`: runs tests of the crates without I/O under Miri, an interpreter that detects
//! undefined behaviour. Needs a nightly compiler.

use std::process::{Command, ExitCode, Stdio};

use crate::error::XtaskError;
use crate::workspace::{Workspace, package_name};

/// The tests to interpret: for each crate the tests whose names contain one of these words, or all
/// tests if there are no words. The words exclude tests that take a minute or more under Miri. Such
/// tests have many generated inputs or simulate whole scenarios.
const PACKAGES: [(&str, &[&str]); 5] = [
    ("mem", &["home::tests"]),
    (
        "wire-edge",
        &[
            "--skip=a_split_frame_decodes_as_the_whole",
            "--skip=decode_returns_what_was_encoded",
            "--skip=every_key_bit_matters",
            "--skip=every_prefix_of_a_frame",
            "--skip=decoded_messages_keep_their_order",
            "--skip=the_codec_agrees_with_the_table",
            "--skip=the_fast_path_decides",
            "--skip=what_decodes_encodes_to_the_same_header",
        ],
    ),
    (
        "semantics",
        &[
            "order_pool::",
            "range_set::",
            "slab::",
            "exactly_once::a_duplicate_of_a_stalled_operation",
        ],
    ),
    ("work", &["completion::", "completion_queue::tests::a_reserved", "status::"]),
    ("delivery", &["boundary::", "pack::", "sent_packets::", "timer_queue::"]),
];

/// Runs the tests. If the compiler is missing, prints a message and returns success.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    if !is_installed() {
        println!("skipped: Miri is not installed. To have it:");
        println!("  rustup toolchain install nightly --profile minimal -c miri -c rust-src");
        return Ok(ExitCode::SUCCESS);
    }
    let started = |cause| XtaskError::Start { program: "cargo miri".into(), cause };
    let mut failed = Vec::new();
    for (package, tests) in PACKAGES {
        println!("== miri {package}");
        let status = cargo_miri()
            .args(["test", "--lib", "--package", &package_name(package), "--target-dir"])
            .arg(workspace.target_dir.join("miri"))
            .args(["--", "--quiet"])
            .args(tests)
            // One generated input per test, because tests are hundreds of times slower under Miri.
            // The flag lets the generator of inputs get random numbers from the system.
            .env("PROPTEST_CASES", "1")
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            .current_dir(&workspace.root)
            .status()
            .map_err(started)?;
        if !status.success() {
            failed.push(package);
        }
    }
    if failed.is_empty() {
        println!("miri: {} crates, nothing found", PACKAGES.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("miri: found something in {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn is_installed() -> bool {
    let version = cargo_miri()
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

/// Returns `cargo miri` of the nightly compiler. Does not use the path in `CARGO`, because rustup's
/// proxy must choose the toolchain.
fn cargo_miri() -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "miri"]).env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTFLAGS");
    command
}
