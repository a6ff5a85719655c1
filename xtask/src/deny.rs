//! Runs `cargo deny`, if it is installed: checks licences, known vulnerabilities, duplicates and
//! sources of external crates, by the rules in `deny.toml`.

use std::process::Stdio;

use crate::count::Count;
use crate::error::XtaskError;
use crate::workspace::cargo;

/// Checks that need only the sources of the crates.
const OFFLINE: [&str; 3] = ["licenses", "bans", "sources"];

/// Runs all checks. If the tool or the vulnerability database is missing, prints which checks were
/// omitted.
pub(crate) fn test() -> Result<Count, XtaskError> {
    if !succeeds_quietly(&["--version"])? {
        println!(
            "skipped: cargo-deny is not installed, so licences, known faults and sources of crates"
        );
        println!("         are not checked. To have it: cargo install --locked cargo-deny");
        return Ok(Count::ONE_SKIPPED);
    }
    let mut count = check(&OFFLINE)?;
    // Fetches the database separately. Without this, a missing network would be reported as a
    // vulnerable crate.
    if succeeds_quietly(&["fetch", "db"])? {
        count.add(check(&["--disable-fetch", "advisories"])?);
    } else {
        println!(
            "skipped: the list of known faults cannot be fetched, so crates are not looked up in it"
        );
        count.add(Count::ONE_SKIPPED);
    }
    Ok(count)
}

fn check(what: &[&str]) -> Result<Count, XtaskError> {
    let status = cargo().args(["deny", "check"]).args(what).stdin(Stdio::null()).status();
    let status = status.map_err(start_error)?;
    Ok(if status.success() { Count::ONE_PASSED } else { Count::ONE_FAILED })
}

fn succeeds_quietly(arguments: &[&str]) -> Result<bool, XtaskError> {
    let mut command = cargo();
    command.arg("deny").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().map_err(start_error)?.success())
}

fn start_error(cause: std::io::Error) -> XtaskError {
    XtaskError::Start { program: "cargo deny".into(), cause }
}
