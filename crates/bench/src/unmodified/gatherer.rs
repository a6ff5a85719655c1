//! Gathers the reports of hosts like `gmetad`: connects to each host, and reads until the end of
//! the stream.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use testbed::clock::Stopwatch;

/// The parameters of a gatherer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The hosts. Each gather connects to each of them once.
    pub hosts: Vec<SocketAddr>,
    /// Whether one thread per host contacts all hosts at the same time. Otherwise hosts are
    /// contacted one after another.
    pub is_parallel: bool,
    /// Duration in seconds. The gatherer gathers at least once.
    pub seconds: f64,
}

/// The results of a gatherer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// Number of gathers that were completed.
    pub gathers: u64,
    /// Duration of all gathers together, in seconds.
    pub seconds: f64,
    /// Median and 99th percentile of a gather, in microseconds.
    pub gather_us: [f64; 2],
    /// Median and 99th percentile of `connect()` to one host, in microseconds.
    pub connect_us: [f64; 2],
    /// Median and 99th percentile of the time from the end of `connect()` to the end of the answer,
    /// in microseconds.
    pub answer_us: [f64; 2],
    /// Bytes of the shortest and of the longest answer.
    pub bytes: [u64; 2],
    /// Lowest number of metrics in an answer.
    pub metrics: u64,
    /// Number of answers that were incomplete or did not arrive.
    pub errors: u64,
    /// The text of the first error.
    pub first_error: Option<String>,
}

/// Runs `task`, and prints [`Gathered`] as JSON.
///
/// # Errors
/// Returns a text that describes the failure.
pub fn run(task: &Task) -> Result<(), String> {
    let gathered = gather(task);
    let text = serde_json::to_string(&gathered).map_err(|error| error.to_string())?;
    println!("{text}");
    Ok(())
}

fn gather(task: &Task) -> Gathered {
    let mut seen = vec![Seen::default(); task.hosts.len()];
    let mut gathers_ns = Vec::new();
    let started = Stopwatch::start();
    let has_ended =
        |gathers: &[u64]| !gathers.is_empty() && started.elapsed_seconds() >= task.seconds;
    if task.is_parallel && task.hosts.len() > 1 {
        let (gate, is_done) = (Barrier::new(task.hosts.len() + 1), AtomicBool::new(false));
        thread::scope(|scope| {
            for (host, seen) in task.hosts.iter().zip(&mut seen) {
                let (gate, is_done) = (&gate, &is_done);
                scope.spawn(move || {
                    loop {
                        gate.wait();
                        if is_done.load(Ordering::Relaxed) {
                            break;
                        }
                        seen.ask(*host);
                        gate.wait();
                    }
                });
            }
            while !has_ended(&gathers_ns) {
                let one = Stopwatch::start();
                gate.wait();
                gate.wait();
                gathers_ns.push(one.elapsed_ns());
            }
            is_done.store(true, Ordering::Relaxed);
            gate.wait();
        });
    } else {
        while !has_ended(&gathers_ns) {
            let one = Stopwatch::start();
            for (host, seen) in task.hosts.iter().zip(&mut seen) {
                seen.ask(*host);
            }
            gathers_ns.push(one.elapsed_ns());
        }
    }
    let seconds = started.elapsed_seconds();
    summary(gathers_ns, seconds, &seen)
}

fn summary(gathers_ns: Vec<u64>, seconds: f64, seen: &[Seen]) -> Gathered {
    let all = |of: fn(&Seen) -> &Vec<u64>| percentiles(seen.iter().flat_map(of).copied().collect());
    let answered = || seen.iter().filter(|seen| !seen.answer_ns.is_empty());
    Gathered {
        gathers: gathers_ns.len() as u64,
        seconds,
        connect_us: all(|seen| &seen.connect_ns),
        answer_us: all(|seen| &seen.answer_ns),
        bytes: [
            answered().map(|seen| seen.bytes[0]).min().unwrap_or(0),
            answered().map(|seen| seen.bytes[1]).max().unwrap_or(0),
        ],
        metrics: seen.iter().map(|seen| seen.metrics).min().unwrap_or(0),
        errors: seen.iter().map(|seen| seen.errors).sum(),
        first_error: seen.iter().find_map(|seen| seen.first_error.clone()),
        gather_us: percentiles(gathers_ns),
    }
}

/// Returns median and 99th percentile in microseconds; 0 if `all_ns` is empty.
fn percentiles(mut all_ns: Vec<u64>) -> [f64; 2] {
    all_ns.sort_unstable();
    let at = |share: f64| {
        let place = (all_ns.len() as f64 * share) as usize;
        let last = all_ns.len().checked_sub(1);
        last.map_or(0.0, |last| all_ns[place.min(last)] as f64 / 1e3)
    };
    [at(0.5), at(0.99)]
}

/// Properties of the answers of one host.
#[derive(Debug, Clone, Default)]
struct Seen {
    connect_ns: Vec<u64>,
    answer_ns: Vec<u64>,
    bytes: [u64; 2],
    metrics: u64,
    errors: u64,
    first_error: Option<String>,
    answer: Vec<u8>,
}

impl Seen {
    fn ask(&mut self, host: SocketAddr) {
        if let Err(error) = self.try_ask(host) {
            self.errors += 1;
            self.first_error.get_or_insert_with(|| format!("{host}: {error}"));
        }
    }

    fn try_ask(&mut self, host: SocketAddr) -> io::Result<()> {
        self.answer.clear();
        let connecting = Stopwatch::start();
        let mut stream = TcpStream::connect_timeout(&host, PATIENCE)?;
        let connect_ns = connecting.elapsed_ns();
        stream.set_read_timeout(Some(PATIENCE))?;
        let answering = Stopwatch::start();
        stream.read_to_end(&mut self.answer)?;
        let answer_ns = answering.elapsed_ns();
        if !self.answer.trim_ascii_end().ends_with(LAST) {
            let got = self.answer.len();
            return Err(io::Error::other(format!(
                "the answer is incomplete: it ends after {got} bytes"
            )));
        }
        if self.answer_ns.is_empty() {
            // Metrics are counted only in the first answer of a host. Later answers are compared
            // with it by length.
            let metrics = self.answer.windows(METRIC.len()).filter(|part| *part == METRIC);
            self.metrics = metrics.count() as u64;
        }
        let bytes = self.answer.len() as u64;
        let shortest = if self.answer_ns.is_empty() { bytes } else { self.bytes[0].min(bytes) };
        self.bytes = [shortest, self.bytes[1].max(bytes)];
        self.connect_ns.push(connect_ns);
        self.answer_ns.push(answer_ns);
        Ok(())
    }
}

/// The last element of an answer.
const LAST: &[u8] = b"</GANGLIA_XML>";

/// The start of each metric in an answer.
const METRIC: &[u8] = b"<METRIC ";

/// A host that sends nothing for this time counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// Starts a host that sends `answer` on each of `times` connections.
    fn host(answer: &'static str, times: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().take(times) {
                stream.unwrap().write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn every_gather_queries_every_host() {
        for is_parallel in [false, true] {
            let answers = ["<METRIC a/><METRIC b/></GANGLIA_XML>\n", "<METRIC a/></GANGLIA_XML>"];
            let hosts = answers.map(|answer| host(answer, 1)).to_vec();
            let found = gather(&Task { hosts, is_parallel, seconds: 0.0 });
            assert_eq!((found.gathers, found.errors, found.metrics), (1, 0, 1));
            assert_eq!(found.bytes, [25, 37]);
        }
    }

    #[test]
    fn a_truncated_answer_is_an_error_and_not_a_figure() {
        let hosts = vec![host("<METRIC a/>", 1)];
        let found = gather(&Task { hosts, is_parallel: false, seconds: 0.0 });
        assert_eq!((found.gathers, found.errors, found.bytes), (1, 1, [0, 0]));
        assert!(found.first_error.unwrap().contains("ends after 11 bytes"));
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let [median, high] = percentiles((0..100).map(|n| n * 1000).collect());
        assert!((median - 50.0).abs() < 1e-9 && (high - 99.0).abs() < 1e-9);
    }
}
