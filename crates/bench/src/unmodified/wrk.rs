//! `wrk`, a load generator that keeps connections and asks for the next file when it has the last.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::figures::{Quantity, Sample};
use super::folder::Folder;
use super::running::{Place, ProgramError, Running, find};
use super::way::{PathTaken, Side, Way};

/// A load on a server.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Where `wrk` runs.
    pub place: Place<'a>,
    /// The server.
    pub server: SocketAddr,
    /// Script that says what is asked for: of [`write_script`].
    pub script: &'a Path,
    /// Connections at the same time.
    pub connections: u32,
    /// Whether each request has a connection of its own.
    pub closes: bool,
    /// Seconds of a sample; `wrk` knows whole ones.
    pub seconds: u32,
}

/// Writes the script for requests of these `paths`, one after the other, again and again.
pub fn write_script<'a>(
    folder: &Folder,
    name: &str,
    paths: impl IntoIterator<Item = &'a str>,
) -> io::Result<std::path::PathBuf> {
    let mut list = String::new();
    for path in paths {
        // Writing to a string does not fail.
        let _ = writeln!(list, "{path}");
    }
    let list = folder.write(&format!("{name}.list"), list)?;
    let script = SCRIPT.replace("LIST", &list.display().to_string());
    folder.write(&format!("{name}.lua"), script)
}

impl Load<'_> {
    /// Runs it once against `server`, whose CPU time counts.
    pub fn run(&self, way: Way, server: &Running, folder: &Folder) -> Result<Sample, ProgramError> {
        let failed = |source| ProgramError::Io { program: NAME.to_string(), source };
        let counters = folder.counters().map_err(failed)?;
        let mut words = vec![find(NAME, NAME)?];
        words.extend(["-t1", "--timeout", "10s"].map(str::to_string));
        words.push(format!("-c{}", self.connections));
        words.push(format!("-d{}s", self.seconds));
        words.extend(["-s".to_string(), self.script.display().to_string()]);
        if self.closes {
            words.extend(["-H", "Connection: close"].map(str::to_string));
        }
        words.push(format!("http://{}/", self.server));
        let words = way.words(Side::Client, self.place.own_program, &counters, words);
        let before = server.cpu_seconds();
        let client = Running::start(&self.place, NAME, words)?;
        let limit = Duration::from_secs(u64::from(self.seconds) * 2 + 20);
        let finished = client.finish(limit)?;
        let server_seconds = server.cpu_seconds() - before;
        let told = Told::parse(&finished.printed).ok_or_else(|| ProgramError::NoResult {
            program: NAME.to_string(),
            line: finished.printed.lines().last().unwrap_or_default().to_string(),
        })?;
        let client_path = PathTaken::read(&counters).map_err(failed)?;
        Ok(told.sample(server_seconds, finished.cpu_seconds, client_path))
    }
}

/// What the script prints.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told {
    microseconds: f64,
    requests: f64,
    bytes: f64,
    errors: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Told {
    fn parse(printed: &str) -> Option<Self> {
        let line = printed.lines().find_map(|line| line.strip_prefix(MARK))?;
        let numbers: Option<Vec<f64>> =
            line.split_whitespace().map(|number| number.parse().ok()).collect();
        let &[microseconds, requests, bytes, errors, p50_us, p99_us] = numbers?.as_slice() else {
            return None;
        };
        let found = Self { microseconds, requests, bytes, errors, p50_us, p99_us };
        (requests > 0.0 && microseconds > 0.0).then_some(found)
    }

    fn sample(&self, server_seconds: f64, client_seconds: f64, client_path: PathTaken) -> Sample {
        let seconds = self.microseconds / 1e6;
        let per_request = |seconds: f64| seconds * 1e6 / self.requests;
        let values = [
            (Quantity::PerSecond, self.requests / seconds),
            (Quantity::BytesPerSecond, self.bytes / seconds),
            (Quantity::LatencyP50Us, self.p50_us),
            (Quantity::LatencyP99Us, self.p99_us),
            (Quantity::ServerCpuUs, per_request(server_seconds)),
            (Quantity::ClientCpuUs, per_request(client_seconds)),
        ];
        Sample { values: values.into(), errors: self.errors as u64, client_path }
    }
}

const NAME: &str = "wrk";

/// Begins the line of the script.
const MARK: &str = "measured: ";

/// Requests are made ready before the first, so that choosing one costs no more than an index.
const SCRIPT: &str = r#"local requests, at = {}, 0

function init()
   for path in io.lines("LIST") do
      requests[#requests + 1] = wrk.format("GET", path)
   end
end

function request()
   at = at % #requests + 1
   return requests[at]
end

function done(summary, latency)
   local errors = summary.errors
   local sum = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format("measured: %.0f %.0f %.0f %.0f %.3f %.3f\n", summary.duration,
      summary.requests, summary.bytes, sum, latency:percentile(50), latency:percentile(99)))
end
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_script_is_read() {
        let printed = "Running 1s test\nmeasured: 1000000 2000 4096000 1 150.000 900.500\n";
        let told = Told::parse(printed).unwrap();
        let sample = told.sample(0.5, 0.25, PathTaken::default());
        let value = |quantity| sample.values[&quantity];
        assert!((value(Quantity::PerSecond) - 2000.0).abs() < 1e-9);
        assert!((value(Quantity::LatencyP99Us) - 900.5).abs() < 1e-9);
        assert!((value(Quantity::ServerCpuUs) - 250.0).abs() < 1e-9);
        assert_eq!(sample.errors, 1);
    }

    #[test]
    fn nothing_answered_is_no_result() {
        assert_eq!(Told::parse("measured: 1000000 0 0 8 0 0\n"), None);
        assert_eq!(Told::parse("unable to connect"), None);
    }
}
