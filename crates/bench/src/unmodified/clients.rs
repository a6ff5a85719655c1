//! Clients that print their own measurements, and parsers of this output. The suite of programs
//! uses these clients.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use super::figures::{Quantity, Sample};
use super::folder::Folder;
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::way::{PathTaken, Side, Way};

/// A client and its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// `redis-benchmark` with one command.
    Redis {
        /// The command: `set` or `get`.
        command: &'static str,
        /// Number of commands that the client sends without waiting for an answer.
        pipeline: u32,
    },
    /// `iperf3` from client to server.
    Iperf3 {
        /// Number of concurrent streams.
        streams: u32,
    },
    /// `ab`, with one connection per request.
    Ab {
        /// Number of concurrent connections.
        connections: u32,
        /// The path to request, without the leading slash.
        path: &'static str,
    },
    /// `sockperf ping-pong` with the smallest message that it permits, 14 bytes.
    Sockperf,
}

impl Client {
    /// Runs the client once, for about `seconds`.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn run(
        self,
        place: &ProgramPlace<'_>,
        way: Way,
        server: SocketAddr,
        seconds: u32,
        folder: &Folder,
    ) -> Result<Sample, ProgramError> {
        let (name, package) = match self {
            Self::Redis { .. } => ("redis-benchmark", "redis-tools"),
            Self::Iperf3 { .. } => ("iperf3", "iperf3"),
            Self::Ab { .. } => ("ab", "apache2-utils"),
            Self::Sockperf => ("sockperf", "sockperf"),
        };
        let failed = |source| ProgramError::Io { program: name.to_string(), source };
        let counters = folder.counters().map_err(failed)?;
        let (ip, port) = (server.ip().to_string(), server.port().to_string());
        let mut words = vec![find(name, package)?];
        let percentiles = folder.path().join("ab-percentiles.csv");
        let line = match self {
            Self::Redis { command, pipeline } => {
                // `redis-benchmark` accepts a number of requests, but no length of time. So pass
                // about the number of requests that a server over kernel TCP answers in that time.
                let requests = REDIS_PER_SECOND * seconds * pipeline.min(REDIS_GAIN_MAX);
                format!("-h {ip} -p {port} -t {command} -n {requests} -c 50 -P {pipeline} --csv")
            }
            Self::Iperf3 { streams } => {
                format!("-c {ip} -p {port} -t {seconds} -P {streams} -J")
            }
            Self::Ab { connections, path } => {
                let (file, requests) = (percentiles.display(), AB_PER_SECOND * seconds);
                format!("-q -c {connections} -n {requests} -e {file} http://{ip}:{port}/{path}")
            }
            Self::Sockperf => format!("ping-pong --tcp -i {ip} -p {port} -m 14 -t {seconds}"),
        };
        words.extend(line.split(' ').map(String::from));
        let words = way.words(Side::Client, place.own_program, &counters, words);
        let limit = Duration::from_secs(u64::from(seconds) * 5 + 20);
        let finished = Running::start(place, name, words)?.finish(limit)?;
        let values = match self {
            Self::Redis { .. } => redis(&finished.printed),
            Self::Iperf3 { .. } => iperf3(&finished.printed),
            Self::Ab { .. } => {
                let percentiles = fs::read_to_string(&percentiles).map_err(failed)?;
                ab(&finished.printed, &percentiles)
            }
            Self::Sockperf => sockperf(&finished.printed),
        };
        let values = values.ok_or_else(|| ProgramError::NoResult {
            program: name.to_string(),
            line: finished.printed.lines().last().unwrap_or_default().to_string(),
        })?;
        let client_path = PathTaken::read(&counters).map_err(failed)?;
        Ok(Sample { values: values.into_iter().collect(), errors: 0, client_path })
    }
}

type Values = Vec<(Quantity, f64)>;

/// Parses a line of names, and a line of values for the command.
fn redis(printed: &str) -> Option<Values> {
    let mut lines = printed
        .lines()
        .map(|line| line.split(',').map(|cell| cell.trim().trim_matches('"')).collect::<Vec<_>>());
    let names = lines.find(|cells| cells.contains(&"rps"))?;
    let values = lines.next()?;
    let value = |name: &str| -> Option<f64> {
        let column = names.iter().position(|known| *known == name)?;
        values.get(column)?.parse().ok()
    };
    Some(vec![
        (Quantity::PerSecond, value("rps").filter(|rate| *rate > 0.0)?),
        (Quantity::LatencyP50Us, value("p50_latency_ms")? * 1e3),
        (Quantity::LatencyP99Us, value("p99_latency_ms")? * 1e3),
    ])
}

/// Parses the rate at which the server has received.
fn iperf3(printed: &str) -> Option<Values> {
    let all: serde_json::Value = serde_json::from_str(printed).ok()?;
    let bits = all.get("end")?.get("sum_received")?.get("bits_per_second")?.as_f64()?;
    (bits > 0.0).then(|| vec![(Quantity::BytesPerSecond, bits / 8.0)])
}

/// Parses the rate from the output, and the percentiles of the response time from the table that
/// `ab` writes to a file, in milliseconds.
fn ab(printed: &str, percentiles: &str) -> Option<Values> {
    let after = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    if after(printed, "Failed requests:")? > 0.0 {
        return None;
    }
    Some(vec![
        (Quantity::PerSecond, after(printed, "Requests per second:")?),
        (Quantity::LatencyP50Us, after(percentiles, "50,")? * 1e3),
        (Quantity::LatencyP95Us, after(percentiles, "95,")? * 1e3),
    ])
}

/// Parses the percentiles of half round trips, in microseconds.
fn sockperf(printed: &str) -> Option<Values> {
    let percentile = |name: &str| -> Option<f64> {
        let line = printed.lines().find(|line| line.contains(&format!("percentile {name} ")))?;
        let us: f64 = line.rsplit_once('=')?.1.trim().parse().ok()?;
        (us > 0.0).then_some(us)
    };
    Some(vec![
        (Quantity::LatencyP50Us, percentile("50.000")?),
        (Quantity::LatencyP99Us, percentile("99.000")?),
    ])
}

/// Requests that Redis answers over kernel TCP per second, without pipelining.
const REDIS_PER_SECOND: u32 = 50_000;

/// Connections that `ab` makes over kernel TCP per second, if it opens each connection after the
/// previous one.
const AB_PER_SECOND: u32 = 5000;

/// Highest factor by which pipelining increases the rate of Redis.
const REDIS_GAIN_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_programs_is_parsed() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"p50_latency_ms\",\"p99_latency_ms\"\n\
                       \"SET\",\"42462.85\",\"0.774\",\"0.551\",\"6.303\"\n";
        let values = redis(printed).unwrap();
        assert_eq!(values[0], (Quantity::PerSecond, 42462.85));
        assert!((values[2].1 - 6303.0).abs() < 1e-6);
        let printed = r#"{"end":{"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(iperf3(printed), Some(vec![(Quantity::BytesPerSecond, 1e9)]));
        let printed = "sockperf: ---> percentile 99.000 =   18.772\n\
                       sockperf: ---> percentile 50.000 =    6.704\n";
        assert_eq!(sockperf(printed).unwrap()[0], (Quantity::LatencyP50Us, 6.704));
        let printed = "Failed requests:        0\nRequests per second:    8000.50 [#/sec] (mean)\n";
        let percentiles = "Percentage served,Time in ms\n0,0.05\n50,0.125\n95,0.250\n";
        let values = ab(printed, percentiles).unwrap();
        assert_eq!(values[0], (Quantity::PerSecond, 8000.5));
        assert_eq!(values[1..], [(Quantity::LatencyP50Us, 125.0), (Quantity::LatencyP95Us, 250.0)]);
        assert_eq!(ab(&printed.replace("  0", "  1"), percentiles), None);
    }

    #[test]
    fn output_without_a_result_is_reported() {
        assert_eq!(redis("WARNING: Could not fetch server CONFIG\n"), None);
        assert_eq!(iperf3(r#"{"error":"unable to connect"}"#), None);
        assert_eq!(sockperf("sockperf: ERROR: Connection refused"), None);
    }
}
