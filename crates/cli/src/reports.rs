//! Reports that processes of this host give of themselves, at sockets with known names.

use std::fs;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use serde_json::Value;

use crate::Failure;
use crate::output::print;

/// The processes that gave no report.
#[derive(Debug, Default)]
pub(crate) struct Unreported {
    /// Processes that did not answer, for example because they are stopped.
    pub(crate) silent: Vec<String>,
    /// Number of processes whose reports this user may not read or must not trust.
    pub(crate) refused: usize,
}

/// Queries all processes that listen at sockets whose names begin with one of the prefixes. `add`
/// gets the name and the report of each, and returns false if it cannot parse the report. In the
/// report, control characters are replaced.
pub(crate) fn ask_all(
    prefixes: &[&str],
    mut add: impl FnMut(&str, Value) -> bool,
) -> Result<Unreported, Failure> {
    let sockets = fs::read_to_string("/proc/self/net/unix")
        .map_err(|error| format!("read /proc/self/net/unix: {error}"))?;
    let mut unreported = Unreported::default();
    for name in names(&sockets, prefixes) {
        match ask(&name) {
            Ok(text) if text.is_empty() => unreported.refused += 1,
            Ok(text) => {
                if !parse(&text).is_some_and(|report| add(&name, report)) {
                    let what = format!("{} speaks another version", process(&name));
                    unreported.silent.push(what);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                unreported.silent.push(format!(
                    "{} does not answer; check whether the program is stopped",
                    process(&name)
                ));
            }
            // The process has ended since its socket was listed.
            Err(_) => {}
        }
    }
    Ok(unreported)
}

/// Prints a text at once. Returns false if the reader has closed the pipe.
pub(crate) fn print_now(text: &str) -> Result<bool, Failure> {
    let is_broken_pipe = |error: &Failure| {
        let error = error.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    match print(text).and_then(|()| Ok(io::stdout().flush()?)) {
        Err(error) if is_broken_pipe(&error) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Decodes a report. Replaces control characters, because any process may listen under such a name,
/// and the texts of its report must not move the cursor or colour the terminal.
pub(crate) fn parse(text: &[u8]) -> Option<Value> {
    let mut value = serde_json::from_slice(text).ok()?;
    without_controls(&mut value);
    Some(value)
}

/// Returns the names of the sockets whose names begin with one of the prefixes, each once.
fn names(sockets: &str, prefixes: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'))
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    // Sockets of accepted connections have the name of the listener, too.
    names.dedup();
    names
}

/// Returns the process id in a socket name as text.
pub(crate) fn process(name: &str) -> String {
    let number = name.rsplit('-').next().unwrap_or(name);
    format!("process {}", number.replace(char::is_control, "?"))
}

/// Returns the report of the process that listens under this name. Returns an empty report if this
/// user may not read the report. Also returns an empty report if the process belongs to an
/// untrusted user, because that user could send false reports.
fn ask(name: &str) -> io::Result<Vec<u8>> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let owner = getsockopt(&stream, PeerCredentials)?.uid();
    if !is_believed(owner, geteuid().as_raw()) {
        return Ok(Vec::new());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    let read = (&stream).take(REPORT_BYTES_MAX).read_to_end(&mut text);
    match read {
        // The process closed the connection before it read the query.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Vec::new()),
        read => read.map(|_| text),
    }
}

/// Returns whether the user `asks` trusts the reports of processes of the user `owner`. A user
/// trusts its own processes and those of root. Root trusts the processes of all users.
fn is_believed(owner: u32, asks: u32) -> bool {
    owner == asks || owner == 0 || asks == 0
}

/// Replaces each control character by a question mark, in all texts and field names.
fn without_controls(value: &mut Value) {
    let plain = |text: &str| text.replace(char::is_control, "?");
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(values) => values.iter_mut().for_each(without_controls),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(name, mut value)| {
                    without_controls(&mut value);
                    (plain(&name), value)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Longest time that a process may take for its report.
const PATIENCE: Duration = Duration::from_secs(1);

/// Highest number of bytes in a report. A queue pair takes about 400 bytes, and there are at most
/// 4096. A completion queue takes about 60 bytes, and there are at most 65536. The rest is a
/// reserve.
const REPORT_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_devices_are_found_among_others() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 2 0 10000 1 01 5 @ethernot-stat-12\n\
            1: 3 0 0 1 03 6 @ethernot-stat-12\n\
            2: 2 0 10000 1 01 7 /run/ethernot-stat-13\n\
            3: 2 0 10000 1 01 8\n\
            4: 2 0 10000 1 01 9 @ethernot-stat-2-14\n\
            5: 2 0 10000 1 01 9 @ethernot-sockets-15\n";
        let expected = ["ethernot-sockets-15", "ethernot-stat-12", "ethernot-stat-2-14"];
        assert_eq!(names(sockets, &["ethernot-stat-", "ethernot-sockets-"]), expected);
        assert_eq!(process("ethernot-stat-2-14"), "process 14");
    }

    #[test]
    fn only_reports_of_root_and_the_same_user_are_trusted() {
        assert!(is_believed(1000, 1000) && is_believed(0, 1000) && is_believed(1000, 0));
        assert!(!is_believed(1001, 1000));
    }
}
