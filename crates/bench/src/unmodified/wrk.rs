//! `wrk`, a load generator that keeps connections open. On each connection, it requests the next
//! file after it has received the previous file.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::figures::{Quantity, Sample};
use super::folder::Folder;
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::way::{PathTaken, Side, Way};

/// The load of `wrk` on a server.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// The hosts on which `wrk` runs at the same time.
    pub places: &'a [ProgramPlace<'a>],
    /// The server's address.
    pub server: SocketAddr,
    /// The script with the paths to request, from [`write_script`].
    pub script: &'a Path,
    /// Concurrent connections, divided among the places as evenly as possible. Each place has at
    /// least one.
    pub connections: u32,
    /// Whether each request opens a new connection.
    pub closes: bool,
    /// Length of a sample in seconds. `wrk` accepts only whole seconds.
    pub seconds: u32,
}

/// Writes a script that requests these `paths` in order. After the last path, the script starts
/// again with the first.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn write_script<'a>(
    folder: &Folder,
    name: &str,
    paths: impl IntoIterator<Item = &'a str>,
) -> io::Result<std::path::PathBuf> {
    let mut list = String::new();
    for path in paths {
        // Writing to a string cannot fail.
        let _ = writeln!(list, "{path}");
    }
    let list = folder.write(&format!("{name}.list"), list)?;
    let script = SCRIPT.replace("LIST", &list.display().to_string());
    folder.write(&format!("{name}.lua"), script)
}

impl Load<'_> {
    /// Runs `wrk` once on each host, and also measures the CPU time of `server`.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn run(&self, way: Way, server: &Running, folder: &Folder) -> Result<Sample, ProgramError> {
        let failed = |source| ProgramError::Io { program: NAME.to_string(), source };
        let counters = folder.counters().map_err(failed)?;
        let before = server.cpu_seconds();
        let mut clients = Vec::new();
        for (at, place) in self.places.iter().enumerate() {
            let words = way.words(Side::Client, place.own_program, &counters, self.words(at)?);
            clients.push(Running::start(place, &format!("{NAME}{}", at + 1), words)?);
        }
        let limit = Duration::from_secs(u64::from(self.seconds) * 2 + 20);
        let (mut summaries, mut client_seconds) = (Vec::new(), 0.0);
        for client in clients {
            let finished = client.finish(limit)?;
            client_seconds += finished.cpu_seconds;
            summaries.push(Summary::parse(&finished.printed).ok_or_else(|| {
                ProgramError::NoResult {
                    program: NAME.to_string(),
                    line: finished.printed.lines().last().unwrap_or_default().to_string(),
                }
            })?);
        }
        let server_seconds = server.cpu_seconds() - before;
        let client_path = PathTaken::read(&counters).map_err(failed)?;
        Ok(sample(&summaries, server_seconds, client_seconds, client_path))
    }

    /// Returns the command line of the client at place `at`.
    fn words(&self, at: usize) -> Result<Vec<String>, ProgramError> {
        let places = self.places.len() as u32;
        let has_one_more = (at as u32) < self.connections % places;
        let connections = self.connections / places + u32::from(has_one_more);
        let mut words = vec![find(NAME, NAME)?];
        words.extend(["-t1", "--timeout", "10s"].map(str::to_string));
        words.push(format!("-c{connections}"));
        words.push(format!("-d{}s", self.seconds));
        words.extend(["-s".to_string(), self.script.display().to_string()]);
        if self.closes {
            words.extend(["-H", "Connection: close"].map(str::to_string));
        }
        words.push(format!("http://{}/", self.server));
        Ok(words)
    }
}

/// The figures that the script prints.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summary {
    microseconds: f64,
    requests: f64,
    bytes: f64,
    errors: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Summary {
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
}

/// Returns the sample of all clients together: the sum of the rates, the mean of the medians
/// weighted by requests, and the highest 99th percentile.
fn sample(
    summaries: &[Summary],
    server_seconds: f64,
    client_seconds: f64,
    client_path: PathTaken,
) -> Sample {
    let sum = |value: fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>();
    let requests = sum(|one| one.requests);
    let per_request = |seconds: f64| seconds * 1e6 / requests;
    let p99_us = summaries.iter().map(|one| one.p99_us).reduce(f64::max);
    let values = [
        (Quantity::PerSecond, sum(|one| one.requests / one.microseconds) * 1e6),
        (Quantity::BytesPerSecond, sum(|one| one.bytes / one.microseconds) * 1e6),
        (Quantity::LatencyP50Us, sum(|one| one.p50_us * one.requests) / requests),
        (Quantity::LatencyP99Us, p99_us.unwrap_or_default()),
        (Quantity::ServerCpuUs, per_request(server_seconds)),
        (Quantity::ClientCpuUs, per_request(client_seconds)),
    ];
    Sample { values: values.into(), errors: sum(|one| one.errors) as u64, client_path }
}

const NAME: &str = "wrk";

/// The start of the line that the script prints.
const MARK: &str = "measured: ";

/// The script of `wrk`. It formats all requests before it sends the first request. After that, it
/// chooses the next request by an index, which costs little.
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
    use super::super::running::ProgramHost;
    use super::*;

    #[test]
    fn the_line_of_the_script_is_parsed() {
        let printed = "Running 1s test\nmeasured: 1000000 2000 4096000 1 150.000 900.500\n";
        let summaries = Summary::parse(printed).unwrap();
        let sample = sample(&[summaries], 0.5, 0.25, PathTaken::default());
        let value = |quantity| sample.values[&quantity];
        assert!((value(Quantity::PerSecond) - 2000.0).abs() < 1e-9);
        assert!((value(Quantity::LatencyP99Us) - 900.5).abs() < 1e-9);
        assert!((value(Quantity::ServerCpuUs) - 250.0).abs() < 1e-9);
        assert_eq!(sample.errors, 1);
    }

    #[test]
    fn rates_of_clients_add_up_and_the_worst_tail_counts() {
        let one = Summary::parse("measured: 1000000 1000 1000 1 100 500\n").unwrap();
        let other = Summary::parse("measured: 2000000 6000 4000 2 200 900\n").unwrap();
        let sample = sample(&[one, other], 0.7, 0.0, PathTaken::default());
        let value = |quantity| sample.values[&quantity];
        assert!((value(Quantity::PerSecond) - 4000.0).abs() < 1e-9);
        assert!((value(Quantity::BytesPerSecond) - 3000.0).abs() < 1e-9);
        assert!((value(Quantity::LatencyP50Us) - 1_300_000.0 / 7000.0).abs() < 1e-9);
        assert!((value(Quantity::LatencyP99Us) - 900.0).abs() < 1e-9);
        assert!((value(Quantity::ServerCpuUs) - 100.0).abs() < 1e-9);
        assert_eq!(sample.errors, 3);
    }

    #[test]
    fn connections_are_divided_among_the_clients() {
        let place = ProgramPlace {
            own_program: Path::new("own"),
            host: ProgramHost::Namespace("host"),
            cpu: None,
            protocol_cpu: None,
            folder: Path::new("folder"),
        };
        let load = Load {
            places: &[place; 3],
            server: SocketAddr::from(([10, 0, 0, 1], 80)),
            script: Path::new("script"),
            connections: 8,
            closes: false,
            seconds: 1,
        };
        let Ok(words) = (0..3).map(|at| load.words(at)).collect::<Result<Vec<_>, _>>() else {
            eprintln!("skipped: wrk is not installed; install it: sudo apt-get install -y wrk");
            return;
        };
        let connections = words.iter().map(|words| words[4].clone()).collect::<Vec<_>>();
        assert_eq!(connections, ["-c3", "-c3", "-c2"]);
    }

    #[test]
    fn a_run_without_answers_has_no_result() {
        assert_eq!(Summary::parse("measured: 1000000 0 0 8 0 0\n"), None);
        assert_eq!(Summary::parse("unable to connect"), None);
    }
}
