//! Log of a device. The library writes the log to standard error and to a trace file.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use link::shared_files;

use crate::error::Error;

/// Level of the log.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum LogLevel {
    /// Log nothing.
    Off,
    /// Log failures.
    Error,
    /// Also log warnings.
    #[default]
    Warn,
    /// Also log the start and the end of devices and connections.
    Info,
    /// Also log why the library rejects calls and requests, and which rules peers break.
    Debug,
}

/// The log. It records events of connections and devices, but not work requests.
#[derive(Debug)]
pub struct Log {
    level: LogLevel,
    /// Trace file, if one is configured. It contains events of all levels. Several processes may
    /// append to the same file.
    trace: Option<Mutex<File>>,
}

impl Log {
    /// Opens the log with this level, and the trace file if there is one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] with the name of the setting, if the file cannot be opened.
    pub fn open(level: LogLevel, trace: Option<&Path>) -> Result<Self, Error> {
        let trace = trace.map(shared_files::append_to).transpose();
        let trace = trace.map_err(|error| Error::Invalid(format!("ETHERNOT_TRACE: {error}")))?;
        Ok(Self { level, trace: trace.map(Mutex::new) })
    }

    /// Logs an event.
    #[inline]
    pub fn note(&self, level: LogLevel, what: fmt::Arguments<'_>) {
        if level <= self.level || self.trace.is_some() {
            self.write(level, what);
        }
    }

    #[cold]
    fn write(&self, level: LogLevel, what: fmt::Arguments<'_>) {
        let process = process::id();
        if level <= self.level {
            // Ignore errors, because the program may have closed standard error.
            let _closed = writeln!(std::io::stderr(), "ethernot[{process}]: {what}");
        }
        if let Some(trace) = &self.trace {
            let line = format!("{} {process} {what}\n", now());
            // Ignore errors, because a full disk must not stop the program.
            let mut file = trace.lock().unwrap_or_else(PoisonError::into_inner);
            let _full = file.write_all(line.as_bytes());
        }
    }
}

/// Says on standard error why a device does not start. The program learns only an `errno` value.
#[derive(Debug, Default)]
pub struct FailedStarts {
    /// The text of the last error.
    last: Mutex<String>,
}

impl FailedStarts {
    /// Logs that the device `name` does not start, if `level` includes failures. If the device was
    /// started before and failed for the same reason, logs nothing: some programs try again and
    /// again.
    pub fn note(&self, level: LogLevel, name: &str, error: &Error) {
        let what = format!("device {name} does not start: {error}");
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == what {
            return;
        }
        Log { level, trace: None }.note(LogLevel::Error, format_args!("{what}"));
        *last = what;
    }
}

/// Returns the time in seconds since 1970, as text.
#[expect(clippy::disallowed_methods, reason = "people compare the times of several hosts")]
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}", since.as_secs(), since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_logs_every_event_with_the_process_id() {
        let path = std::env::temp_dir().join(format!("ethernot-trace-{}", process::id()));
        for line in ["one", "other"] {
            let log = Log::open(LogLevel::Off, Some(&path)).expect("there is a folder");
            log.note(LogLevel::Debug, format_args!("{line} happens"));
        }
        let text = std::fs::read_to_string(&path).expect("it is there");
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest).collect();
        let process = process::id();
        assert_eq!(lines, [format!("{process} one happens"), format!("{process} other happens")]);
        std::fs::remove_file(&path).expect("it is there");
        let nowhere = Log::open(LogLevel::Off, Some("/nowhere/trace".as_ref()));
        assert!(matches!(nowhere, Err(Error::Invalid(_))));
    }
}
