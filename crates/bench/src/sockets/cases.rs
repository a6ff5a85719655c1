//! What is measured: the tests of the papers, over sizes of messages and numbers of clients.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::figures::Sample;

/// A test of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// X bytes there and X bytes back, N times; a way takes total / N / 2.
    Latency,
    /// N messages of X bytes one way; the receiver answers the last with one byte, whose way is
    /// taken off.
    Throughput,
    /// Several throughput tests at the same time between the same two processes.
    MultiStream,
    /// Several clients on three hosts exchange messages of one byte with one server.
    HotSpot,
    /// Several clients on three hosts send to one server.
    FanIn,
    /// One server sends to several clients on three hosts.
    FanOut,
    /// `connect` to an established service.
    Connection,
}

impl Test {
    /// All tests, in the order in which they are run and shown.
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

    /// Whether contenders are compared by a time; otherwise by bytes per second.
    pub const fn is_about_time(self) -> bool {
        matches!(self, Self::Latency | Self::HotSpot | Self::Connection)
    }

    /// Whether it is repeated over sizes of messages.
    pub const fn has_sizes(self) -> bool {
        matches!(self, Self::Latency | Self::Throughput)
    }

    /// Whether several clients or streams take part.
    pub const fn has_clients(self) -> bool {
        matches!(self, Self::MultiStream | Self::HotSpot | Self::FanIn | Self::FanOut)
    }

    /// Whom it makes sense for. What polls needs a processor for each that waits, so it is
    /// measured with one client only.
    const fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Latency => &Contender::ALL,
            Self::Throughput | Self::Connection => {
                &[Contender::Tcp, Contender::Sockets, Contender::Native]
            }
            Self::MultiStream | Self::HotSpot | Self::FanIn | Self::FanOut => {
                &[Contender::Tcp, Contender::Sockets]
            }
        }
    }
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The program over kernel TCP; it sleeps until something comes.
    Tcp,
    /// The same, which asks its sockets again and again.
    TcpPoll,
    /// The program with the library, which sleeps until something comes.
    Sockets,
    /// The same; the library polls.
    SocketsPoll,
    /// The native API: remote writes into memory that is polled.
    Native,
}

impl Contender {
    /// All of them, the baseline first.
    pub const ALL: [Self; 5] =
        [Self::Tcp, Self::TcpPoll, Self::Sockets, Self::SocketsPoll, Self::Native];

    /// Returns the name on the command line, in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpPoll => "tcp-poll",
            Self::Sockets => "sockets",
            Self::SocketsPoll => "sockets-poll",
            Self::Native => "native",
        }
    }

    /// Describes it in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Tcp => "kernel TCP, event mode",
            Self::TcpPoll => "kernel TCP, polling",
            Self::Sockets => "the same program over the edge, event mode",
            Self::SocketsPoll => "the same program over the edge, polling",
            Self::Native => "native API: remote writes, polling",
        }
    }

    /// Whether the library is put before the program.
    pub const fn is_preloaded(self) -> bool {
        matches!(self, Self::Sockets | Self::SocketsPoll)
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The program that is started for clients and servers: this one.
    pub program: PathBuf,
    /// Use the loopback interface, even as root.
    pub loopback: bool,
    /// Tests, in this order.
    pub tests: Vec<Test>,
    /// Contenders, as far as a test has them.
    pub contenders: Vec<Contender>,
    /// Bytes of the messages of latency; throughput has its own.
    pub latency_sizes: Vec<u64>,
    /// Bytes of the messages of throughput.
    pub throughput_sizes: Vec<u64>,
    /// Numbers of clients or streams.
    pub clients: Vec<u32>,
    /// MTUs of the links, in bytes.
    pub mtus: Vec<u32>,
    /// Samples of each figure, at least 1.
    pub repetitions: u32,
    /// How long the part of a sample that counts should take, in seconds.
    pub sample_seconds: f64,
    /// Round trips of latency and messages of throughput in a sample of a program with sockets, at most
    /// [`ITERATIONS_MAX`]; without, as many as `sample_seconds` has.
    pub iterations: Option<u64>,
    /// Bits per second of each host's link; without, as fast as the host's processors are.
    pub rate: Option<u64>,
    /// Whether client and server have a CPU each in tests with one client.
    pub pinning: bool,
    /// Threads that spin beside the measurement, at most [`BUSY_MAX`](crate::plan::BUSY_MAX).
    pub busy: u32,
    /// Why `ethernot run --sockets` runs nothing here, if so: then only what needs no library is
    /// measured.
    pub no_library: Option<String>,
    /// Whether this is a short run.
    pub is_quick: bool,
}

/// One test with one size of messages and one number of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What is measured.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Clients; in multi-stream, the streams of one.
    pub clients: u32,
    /// Who takes part, the baseline first.
    pub contenders: Vec<Contender>,
}

impl Case {
    /// Returns its name in words.
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

    /// An empty list for each contender.
    pub(super) fn no_samples(&self) -> Vec<Vec<Option<Sample>>> {
        vec![Vec::new(); self.contenders.len()]
    }
}

/// Returns all cases that are wished for.
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

/// Most iterations of a sample: a thousand times those of the papers.
pub const ITERATIONS_MAX: u64 = 100_000_000;

/// Messages of tests in which several stream at the same time: 64 KiB.
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
    fn without_the_library_nothing_is_said_to_go_over_it() {
        let cases = all(&wishes(Some("it is not built".to_string())));
        assert!(cases.iter().flat_map(|case| &case.contenders).all(|c| !c.is_preloaded()));
        // Two sizes, one size, four tests of two numbers of clients, connections.
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
