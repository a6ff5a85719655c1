//! The cases of the sockets benchmark: the tests of the papers, over message sizes and numbers of
//! clients.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::figures::Sample;

/// A test of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Exchanges messages of X bytes, N times in each direction. The one-way latency is the total
    /// time / N / 2.
    Latency,
    /// Sends N messages of X bytes in one direction. The receiver answers the last message with one
    /// byte. The one-way time of that byte is subtracted from the total time.
    Throughput,
    /// Runs several throughput tests at the same time between two processes.
    MultiStream,
    /// Exchanges messages of one byte between several clients on three hosts and one server.
    HotSpot,
    /// Sends messages from several clients on three hosts to one server.
    FanIn,
    /// Sends messages from one server to several clients on three hosts.
    FanOut,
    /// Calls `connect` to a running server.
    Connection,
}

impl Test {
    /// All tests, in the order in which they run and appear.
    pub const ALL: [Self; 7] = [
        Self::Latency,
        Self::Throughput,
        Self::MultiStream,
        Self::HotSpot,
        Self::FanIn,
        Self::FanOut,
        Self::Connection,
    ];

    /// Returns the name on the command line, in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::MultiStream => "multi-stream",
            Self::HotSpot => "hot-spot",
            Self::FanIn => "fan-in",
            Self::FanOut => "fan-out",
            Self::Connection => "connection",
        }
    }

    /// Returns whether the contenders of the test are compared by a time. Otherwise they are
    /// compared by bytes per second.
    pub const fn is_about_time(self) -> bool {
        matches!(self, Self::Latency | Self::HotSpot | Self::Connection)
    }

    /// Returns whether the test is repeated over message sizes.
    pub const fn has_sizes(self) -> bool {
        matches!(self, Self::Latency | Self::Throughput)
    }

    /// Returns whether several clients or streams take part.
    pub const fn has_clients(self) -> bool {
        matches!(self, Self::MultiStream | Self::HotSpot | Self::FanIn | Self::FanOut)
    }

    /// Returns the contenders of the test. Each polling thread needs its own processor, so polling
    /// contenders run only in tests with one client.
    const fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Latency => &Contender::ALL,
            Self::Throughput | Self::Connection => &[
                Contender::Tcp,
                Contender::Sockets,
                Contender::Native,
                Contender::NativePacket,
                Contender::NativeXdp,
            ],
            Self::MultiStream | Self::HotSpot | Self::FanIn | Self::FanOut => {
                &[Contender::Tcp, Contender::Sockets]
            }
        }
    }
}

/// A contender: the kind of connection, and how it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The program over kernel TCP. It sleeps until data arrives.
    Tcp,
    /// The program over kernel TCP. It polls its sockets.
    TcpPoll,
    /// The program over kernel TCP connections that the library moves to the edge. It sleeps until
    /// data arrives.
    Sockets,
    /// The program over kernel TCP connections that the library moves to the edge. It polls.
    SocketsPoll,
    /// The native API over UDP: remote writes into memory that the other side polls.
    Native,
    /// The native API over raw Ethernet frames.
    NativePacket,
    /// The native API over `AF_XDP`.
    NativeXdp,
}

impl Contender {
    /// All contenders, the baseline first.
    pub const ALL: [Self; 7] = [
        Self::Tcp,
        Self::TcpPoll,
        Self::Sockets,
        Self::SocketsPoll,
        Self::Native,
        Self::NativePacket,
        Self::NativeXdp,
    ];

    /// The contenders that a run measures unless the user names others.
    pub const USUAL: &[Self] = Self::ALL.split_at(5).0;

    /// Returns the name on the command line, in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpPoll => "tcp-poll",
            Self::Sockets => "sockets",
            Self::SocketsPoll => "sockets-poll",
            Self::Native => "native",
            Self::NativePacket => "native-packet",
            Self::NativeXdp => "native-xdp",
        }
    }

    /// Returns a description in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Tcp => "kernel TCP, event mode",
            Self::TcpPoll => "kernel TCP, polling",
            Self::Sockets => "the program of tcp over the edge, event mode",
            Self::SocketsPoll => "the program of tcp over the edge, polling",
            Self::Native => "native API: remote writes, polling",
            Self::NativePacket => "native API over raw Ethernet frames, polling",
            Self::NativeXdp => "native API over AF_XDP, polling",
        }
    }

    /// Returns the kind of the links of the native API, as it begins the names of links; `None` for
    /// UDP and for contenders with sockets.
    pub(super) const fn kind_of_link(self) -> Option<&'static str> {
        match self {
            Self::NativePacket => Some("packet"),
            Self::NativeXdp => Some("xdp"),
            Self::Tcp | Self::TcpPoll | Self::Sockets | Self::SocketsPoll | Self::Native => None,
        }
    }

    /// Returns whether the library is preloaded into the program.
    pub const fn is_preloaded(self) -> bool {
        matches!(self, Self::Sockets | Self::SocketsPoll)
    }
}

/// The user's choices for this benchmark.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The executable of this program. A run starts it again for clients and servers.
    pub program: PathBuf,
    /// Whether to use the loopback interface even as root.
    pub loopback: bool,
    /// The tests in the order of their measurement.
    pub tests: Vec<Test>,
    /// The contenders to measure. Each test measures those of them that are possible in this test.
    pub contenders: Vec<Contender>,
    /// Message sizes of the latency test, in bytes.
    pub latency_sizes: Vec<u64>,
    /// Message sizes of the throughput test, in bytes.
    pub throughput_sizes: Vec<u64>,
    /// Numbers of clients or streams.
    pub clients: Vec<u32>,
    /// MTUs of the links, in bytes.
    pub mtus: Vec<u32>,
    /// Number of samples of each case and contender, at least 1.
    pub repetitions: u32,
    /// Intended length of the recorded part of a sample, in seconds.
    pub sample_seconds: f64,
    /// Fixed number of round trips or messages per sample in latency and throughput tests of
    /// programs with sockets, at most [`ITERATIONS_MAX`]. `None` derives the number from
    /// `sample_seconds`.
    pub iterations: Option<u64>,
    /// Bits per second of each host's link; `None` does not limit the links.
    pub rate: Option<u64>,
    /// Whether to restrict client and server to one CPU each in tests with one client.
    pub pinning: bool,
    /// Threads that spin during the measurement, at most [`BUSY_MAX`](crate::plan::BUSY_MAX).
    pub busy: u32,
    /// The reason why `ethernot run --sockets` cannot run here; `None` if the command can run. If
    /// there is a reason, only contenders without the library are measured.
    pub no_library: Option<String>,
    /// Whether this is a quick run.
    pub is_quick: bool,
}

/// One test with one message size and one number of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The test.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Number of clients; in multi-stream, number of streams of the client.
    pub clients: u32,
    /// The contenders, the baseline first.
    pub contenders: Vec<Contender>,
}

impl Case {
    /// Returns the name in words.
    pub fn name(&self) -> String {
        let test = self.test.name();
        match self.test {
            Test::Latency | Test::Throughput => format!("{test} {} B", self.message_bytes),
            Test::MultiStream => format!("{test} of {}", self.clients),
            Test::HotSpot | Test::FanIn | Test::FanOut => {
                format!("{test} of {} clients", self.clients)
            }
            Test::Connection => test.to_string(),
        }
    }

    /// Returns an empty list of samples for each contender.
    pub(super) fn no_samples(&self) -> Vec<Vec<Option<Sample>>> {
        vec![Vec::new(); self.contenders.len()]
    }
}

/// Returns all cases that `wishes` select.
pub fn all(wishes: &Wishes) -> Vec<Case> {
    let is_wanted = |contender: &&Contender| {
        wishes.contenders.contains(contender)
            && (wishes.no_library.is_none() || !contender.is_preloaded())
    };
    let mut cases = Vec::new();
    for &test in &wishes.tests {
        let sizes = match test {
            Test::Latency => &wishes.latency_sizes[..],
            Test::Throughput => &wishes.throughput_sizes,
            Test::MultiStream | Test::FanIn | Test::FanOut => &[STREAM_BYTES],
            Test::HotSpot | Test::Connection => &[1],
        };
        let clients = if test.has_clients() { &wishes.clients[..] } else { &[1] };
        for &message_bytes in sizes {
            for &clients in clients {
                let contenders = test.contenders().iter().filter(is_wanted).copied().collect();
                cases.push(Case { test, message_bytes, clients, contenders });
            }
        }
    }
    cases.retain(|case| !case.contenders.is_empty());
    cases
}

/// Highest number of iterations of a sample: a thousand times the papers' number.
pub const ITERATIONS_MAX: u64 = 100_000_000;

/// Bytes of a message in tests with several concurrent streams: 64 KiB.
pub const STREAM_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(no_library: Option<String>) -> Wishes {
        Wishes {
            program: PathBuf::new(),
            loopback: false,
            tests: Test::ALL.to_vec(),
            contenders: Contender::ALL.to_vec(),
            latency_sizes: vec![1, 64],
            throughput_sizes: vec![4096],
            clients: vec![1, 12],
            mtus: vec![1500],
            repetitions: 10,
            sample_seconds: 0.1,
            iterations: None,
            rate: None,
            pinning: true,
            busy: 0,
            no_library,
            is_quick: false,
        }
    }

    #[test]
    fn without_the_library_no_contender_is_preloaded() {
        let cases = all(&wishes(Some("the library is not built".to_string())));
        assert!(cases.iter().flat_map(|case| &case.contenders).all(|c| !c.is_preloaded()));
        // The latency test has two sizes, and the throughput test has one. Four tests have two
        // numbers of clients each. The connection test has one case.
        assert_eq!(cases.len(), 2 + 1 + 4 * 2 + 1);
    }

    #[test]
    fn the_baseline_comes_first_and_polling_has_one_client() {
        for case in all(&wishes(None)) {
            assert_eq!(case.contenders.first(), Some(&Contender::Tcp));
            assert!(case.clients == 1 || !case.contenders.contains(&Contender::SocketsPoll));
        }
    }
}
