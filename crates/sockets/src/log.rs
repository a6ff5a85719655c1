//! The log of the library. It goes to the program's standard error or to a file.
//!
//! The log is a static, because a process has one standard error and every part of the library logs
//! there. The library keeps no descriptor open for the log. Otherwise a program that closes all
//! unknown descriptors could close that descriptor and open its own file at the number.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use link::shared_files;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{FileStat, SFlag, fstat};
use thiserror::Error;

/// The level of the log. Messages of higher levels are not logged.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum LogLevel {
    /// No messages.
    Off,
    /// Failures only.
    Error,
    /// Failures and unusual conditions.
    #[default]
    Warn,
    /// Failures, unusual conditions, and the outcome of each connection.
    Info,
    /// The messages of [`LogLevel::Info`], and the steps of each connection.
    Debug,
}

/// The error for an unknown log level.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{0:?} is not a log level; give off, error, warn, info or debug")]
pub struct LogLevelError(String);

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, LogLevelError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            _ => Err(LogLevelError(text.into())),
        }
    }
}

/// Sets the level and the file. If `file` is `None`, the log goes to standard error. Later calls
/// have no effect, because settings are read once.
pub fn begin(level: LogLevel, file: Option<&Path>) {
    // If another copy of the library calls this a second time, the first setting stays.
    let _ = LOG.set(Log::new(level, file));
}

/// Logs a message.
#[inline]
pub fn note(level: LogLevel, what: fmt::Arguments<'_>) {
    let log = LOG.get_or_init(Log::default);
    if level <= log.level {
        log.write(what);
    }
}

/// The destination and level of the log.
#[derive(Debug)]
struct Log {
    level: LogLevel,
    file: Option<PathBuf>,
    /// Device and inode of standard error when the library was loaded.
    stderr: Option<(u64, u64)>,
}

impl Log {
    fn new(level: LogLevel, file: Option<&Path>) -> Self {
        let stderr = fstat(io::stderr()).ok().map(|found| identity(&found));
        Self { level, file: file.map(ToOwned::to_owned), stderr }
    }

    #[cold]
    fn write(&self, what: fmt::Arguments<'_>) {
        let process = process::id();
        match &self.file {
            Some(path) => {
                let line = format!("{} {process} {what}\n", now());
                // If the disk is full or the folder was removed, drop the line.
                let _full = shared_files::append_to(path)
                    .and_then(|mut file| file.write_all(line.as_bytes()));
            }
            None if self.is_for_people() => {
                // The program may have closed standard error, so ignore errors.
                let _closed = writeln!(io::stderr(), "ethernot-sockets[{process}]: {what}");
            }
            None => {}
        }
    }

    /// Returns true if descriptor 2 is still an output that people read. The program may have
    /// closed descriptor 2 and opened another file or a connection at that number. That file or
    /// connection must not receive log lines.
    fn is_for_people(&self) -> bool {
        let Ok(found) = fstat(io::stderr()) else { return false };
        if self.stderr == Some(identity(&found)) {
            return true;
        }
        let kind = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits());
        let is_appended = || {
            let flags = fcntl(io::stderr(), FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
            flags.is_ok_and(|flags| flags.contains(OFlag::O_APPEND))
        };
        kind == SFlag::S_IFCHR || (kind == SFlag::S_IFREG && is_appended())
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new(LogLevel::default(), None)
    }
}

fn identity(found: &FileStat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// Returns the time since 1970 in seconds, with six decimals.
#[expect(clippy::disallowed_methods, reason = "people compare the times of several hosts")]
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}", since.as_secs(), since.subsec_micros())
}

static LOG: OnceLock<Log> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_lines_with_time_and_process() {
        let path = std::env::temp_dir().join(format!("ethernot-log-{}", process::id()));
        let log = Log { level: LogLevel::Info, file: Some(path.clone()), stderr: None };
        log.write(format_args!("one happens"));
        log.write(format_args!("other happens"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<_> =
            text.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest).collect();
        let process = process::id();
        assert_eq!(lines, [format!("{process} one happens"), format!("{process} other happens")]);
    }

    #[test]
    fn levels_are_ordered_by_verbosity() {
        assert!(LogLevel::Off < LogLevel::Error && LogLevel::Info < LogLevel::Debug);
        assert_eq!("Debug".parse(), Ok(LogLevel::Debug));
        let message = "loud".parse::<LogLevel>().unwrap_err().to_string();
        assert!(message.contains("\"loud\"") && message.contains("info"), "{message}");
    }
}
