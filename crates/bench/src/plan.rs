//! The plan of a benchmark: the cases to measure, and the length of their samples.

use std::path::PathBuf;

use crate::transport::{MESSAGE_BYTES_MAX, Test, Transport, Waiting};
use crate::transports;
use testbed::switched::LinkShape;

/// The user's choices for a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The executable of this program. A run starts it again as client and as server.
    pub program: PathBuf,
    /// The path between client and server.
    pub path: PathChoice,
    /// Number of links between the hosts. [`PathChoice::Peer`] ignores this number.
    pub links: u32,
    /// Names of the client's links, for [`PathChoice::Peer`] and [`PathChoice::Switched`]. If the
    /// list is empty, transports use UDP sockets, and the kernel's routes choose the interface.
    pub link_names: Vec<String>,
    /// Names of the server's links, if this run starts the server.
    pub server_link_names: Vec<String>,
    /// MTU of the links in namespaces.
    pub mtu: u32,
    /// The tests to run.
    pub tests: Vec<Test>,
    /// Names of the transports to measure; if empty, all.
    pub transports: Vec<String>,
    /// Bytes of the messages of ping-pong, one-way and two-way.
    pub sizes: Vec<u64>,
    /// Number of samples of each measurement, at least 1.
    pub repetitions: u32,
    /// Approximate length of the whole run, in seconds.
    pub budget_seconds: f64,
    /// Number of operations in flight, for transports with pipelining.
    pub in_flight: u32,
    /// Connections of [`Test::ManyConnections`].
    pub connections: u32,
    /// Whether to restrict client and server to one CPU each, if the host has at least two CPUs.
    pub pinning: bool,
    /// Whether the writes of a stream are delivered in order.
    pub in_order: bool,
    /// Ways for threads to wait. A transport that supports several of them is measured with each.
    pub waitings: Vec<Waiting>,
    /// Threads that spin on this host during the measurement, at most [`BUSY_MAX`].
    pub busy: u32,
    /// Whether repetitions alternate over all measurements. Otherwise, all repetitions of one
    /// measurement come before the next measurement. With alternation, changes of the machine's
    /// speed affect all measurements equally.
    pub interleaved: bool,
    /// Delay to add to each link in `link_names`, in microseconds.
    pub delays_us: Vec<u32>,
}

impl Options {
    /// Creates options for `program` with one link of MTU 1500 on the best available path, one
    /// sample of one second, one operation in flight, and each end on one CPU. The caller must
    /// still set tests and sizes.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            path: PathChoice::Automatic,
            links: 1,
            link_names: Vec::new(),
            server_link_names: Vec::new(),
            mtu: 1500,
            tests: Vec::new(),
            transports: Vec::new(),
            sizes: Vec::new(),
            repetitions: 1,
            budget_seconds: 1.0,
            in_flight: 1,
            connections: 1,
            pinning: true,
            in_order: false,
            waitings: vec![Waiting::Poll],
            busy: 0,
            interleaved: false,
            delays_us: Vec::new(),
        }
    }
}

/// A choice of the path between client and server.
#[derive(Debug, Clone, PartialEq)]
pub enum PathChoice {
    /// Namespaces if this process can make them, otherwise loopback.
    Automatic,
    /// The loopback interface.
    Loopback,
    /// Namespaces. In the middle of each link is a switch, whose ports have these shapes.
    Switched(Vec<LinkShape>),
    /// A running `ethernot serve`, as `HOST` or `HOST:PORT`. Each entry after the first is another
    /// address of the same server, and adds a link.
    Peer(Vec<String>),
}

impl PathChoice {
    /// Returns the rates of the links in bits per second; empty if they are unknown.
    pub fn rates(&self) -> Vec<u64> {
        match self {
            Self::Switched(shapes) => shapes.iter().map(|shape| shape.rate).collect(),
            Self::Automatic | Self::Loopback | Self::Peer(_) => Vec::new(),
        }
    }
}

/// One test with one message size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The test.
    pub test: Test,
    /// Bytes of a message; 0 in tests without messages.
    pub message_bytes: u64,
    /// The transports to compare, the baseline first.
    pub contenders: Vec<Contender>,
}

/// A transport with a number of links and a way to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// Name of the transport.
    pub transport: String,
    /// Number of links.
    pub links: u32,
    /// How the transport's threads wait.
    pub waiting: Waiting,
}

/// All cases to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The cases in the order of their measurement.
    pub cases: Vec<Case>,
    /// Number of samples of each contender.
    pub repetitions: u32,
    /// Length of a sample without its warm-up, in seconds.
    pub sample_seconds: f64,
}

/// Why options cannot be turned into a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The transport does not exist.
    #[error("unknown transport {name:?}; known transports are: {known}")]
    UnknownTransport {
        /// The name that the user gave.
        name: String,
        /// The names of all transports.
        known: String,
    },
    /// The message size is out of range.
    #[error(
        "invalid message size of {bytes} bytes: it must be from 1 to {MESSAGE_BYTES_MAX} bytes"
    )]
    Size {
        /// The message size that the user gave, in bytes.
        bytes: u64,
    },
    /// There are more busy threads than allowed.
    #[error("invalid number of busy threads, {busy}: the maximum is {BUSY_MAX}")]
    Busy {
        /// The number of busy threads that the user gave.
        busy: u32,
    },
    /// The number of repetitions is out of range.
    #[error("invalid number of repetitions, {repetitions}: it must be from 1 to {REPETITIONS_MAX}")]
    Repetitions {
        /// The number of repetitions that the user gave.
        repetitions: u32,
    },
    /// No chosen transport can run any chosen test.
    #[error(
        "no chosen transport can run any of the chosen tests with any of the chosen sizes; choose \
         others"
    )]
    Empty,
}

impl Plan {
    /// Plans the measurements of `options` on a path of `links` links whose MTU is `mtu` bytes.
    /// Uses only transports that the server supports too.
    ///
    /// # Errors
    /// Returns [`PlanError`]; each variant names one cause.
    pub fn new(
        options: &Options,
        links: u32,
        mtu: Option<u32>,
        server_transports: &[String],
    ) -> Result<Self, PlanError> {
        let repetitions = options.repetitions;
        if !(1..=REPETITIONS_MAX).contains(&repetitions) {
            return Err(PlanError::Repetitions { repetitions });
        }
        if options.busy > BUSY_MAX {
            return Err(PlanError::Busy { busy: options.busy });
        }
        if let Some(&bytes) =
            options.sizes.iter().find(|size| !(1..=MESSAGE_BYTES_MAX).contains(*size))
        {
            return Err(PlanError::Size { bytes });
        }
        let mut transports = selected(&options.transports)?;
        transports.retain(|transport| server_transports.iter().any(|n| n == transport.name()));
        let mut cases = Vec::new();
        for &test in &options.tests {
            for message_bytes in sizes(test, &options.sizes) {
                let contenders: Vec<_> = transports
                    .iter()
                    .filter(|transport| transport.supports(test, message_bytes, mtu))
                    .flat_map(|transport| {
                        let all_links = matches!(options.path, PathChoice::Switched(_));
                        let waitings = transport.waitings(&options.waitings);
                        contenders(transport.as_ref(), test, links, all_links, &waitings)
                    })
                    .collect();
                if !contenders.is_empty() {
                    cases.push(Case { test, message_bytes, contenders });
                }
            }
        }
        if cases.is_empty() {
            return Err(PlanError::Empty);
        }
        let mut plan = Self { cases, repetitions, sample_seconds: 0.0 };
        let share_seconds = options.budget_seconds / plan.samples() as f64;
        plan.sample_seconds = ((share_seconds - SAMPLE_OVERHEAD_SECONDS) / WITH_WARM_UP)
            .clamp(seconds_min(options.busy), SAMPLE_SECONDS_MAX);
        Ok(plan)
    }

    /// Returns the number of samples of all cases.
    pub fn samples(&self) -> u64 {
        let contenders: usize = self.cases.iter().map(|case| case.contenders.len()).sum();
        contenders as u64 * u64::from(self.repetitions)
    }

    /// Returns the approximate length of all samples together, in seconds.
    pub fn seconds(&self) -> f64 {
        let sample_seconds = self.sample_seconds * WITH_WARM_UP + SAMPLE_OVERHEAD_SECONDS;
        self.samples() as f64 * sample_seconds
    }
}

/// Returns the length of the shortest useful sample beside `busy` threads, in seconds.
fn seconds_min(busy: u32) -> f64 {
    if busy > 0 { SAMPLE_SECONDS_MIN_BUSY } else { SAMPLE_SECONDS_MIN }
}

fn selected(names: &[String]) -> Result<Vec<Box<dyn Transport>>, PlanError> {
    let all = transports::all();
    for name in names {
        if !all.iter().any(|transport| transport.name() == name) {
            let known: Vec<_> = all.iter().map(|transport| transport.name()).collect();
            return Err(PlanError::UnknownTransport {
                name: name.clone(),
                known: known.join(", "),
            });
        }
    }
    let is_chosen = |transport: &dyn Transport| match names {
        [] => !transport.is_optional(),
        names => names.iter().any(|name| name == transport.name()),
    };
    Ok(all.into_iter().filter(|transport| is_chosen(transport.as_ref())).collect())
}

fn sizes(test: Test, chosen: &[u64]) -> Vec<u64> {
    match test {
        Test::PingPong
        | Test::OneWay
        | Test::TwoWay
        | Test::VerifiedStream
        | Test::SmallBesideStream => chosen.to_vec(),
        Test::OperationRate | Test::ManyConnections => vec![SMALL_MESSAGE_BYTES],
        Test::ConnectionSetup => vec![0],
    }
}

/// Returns the contenders of one transport in `test`. Small messages are measured over one link,
/// because they are not faster over several links. With `all_links`, the transport is measured only
/// with the highest number of links that it can use.
fn contenders(
    transport: &dyn Transport,
    test: Test,
    links: u32,
    all_links: bool,
    waitings: &[Waiting],
) -> Vec<Contender> {
    let mut counts = match test {
        Test::PingPong | Test::OneWay | Test::TwoWay | Test::SmallBesideStream => {
            transport.link_counts(links)
        }
        _ => vec![1],
    };
    if all_links {
        counts.drain(..counts.len().saturating_sub(1));
    }
    let with_links = |links| {
        let transport = transport.name().to_string();
        waitings.iter().map(move |&waiting| Contender {
            transport: transport.clone(),
            links,
            waiting,
        })
    };
    counts.into_iter().flat_map(with_links).collect()
}

/// Bytes of the messages in tests about small operations.
const SMALL_MESSAGE_BYTES: u64 = 8;

/// Highest number of repetitions. More would take hours.
const REPETITIONS_MAX: u32 = 1000;

/// Time for connecting, control messages and the rounding of warm-ups, in seconds.
const SAMPLE_OVERHEAD_SECONDS: f64 = 0.015;

/// Length of a sample with its warm-up, relative to the sample alone.
const WITH_WARM_UP: f64 = 1.4;

/// Length of the shortest sample, in seconds: a few scheduler ticks. A shorter sample would measure
/// the scheduler.
const SAMPLE_SECONDS_MIN: f64 = 0.02;

/// Length of the shortest sample beside busy threads, in seconds. Competing threads get time slices
/// of 3 to 6 ms. A shorter sample would depend on the order of these slices.
const SAMPLE_SECONDS_MIN_BUSY: f64 = 0.2;

/// Highest number of busy threads: four for each processor of a small host. Each thread adds a time
/// slice of 3 to 6 ms to the wait for a processor.
pub const BUSY_MAX: u32 = 16;

/// Length of the longest sample, in seconds. If a run has time left, the user can choose more
/// repetitions instead, which show the spread better than longer samples.
const SAMPLE_SECONDS_MAX: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_time_of_all_samples_is_within_the_budget() {
        let options = Options { budget_seconds: 100.0, ..options() };
        let plan = plan(&options).unwrap();
        assert!((plan.seconds() - 100.0).abs() < 1.0, "{}", plan.seconds());
    }

    #[test]
    fn transports_run_only_the_tests_that_they_support() {
        let plan = plan(&options()).unwrap();
        let datagrams = |bytes| {
            let mut cases = plan.cases.iter();
            let case = cases.find(|c| c.test == Test::PingPong && c.message_bytes == bytes);
            case.unwrap().contenders.iter().any(|c| c.transport == "udp")
        };
        assert!(datagrams(8));
        assert!(!datagrams(1 << 20));
    }

    #[test]
    fn a_transport_with_several_wait_modes_is_measured_in_each() {
        let plan = plan(&Options { waitings: Waiting::ALL.to_vec(), ..options() }).unwrap();
        let case = plan.cases.iter().find(|case| case.test == Test::PingPong).unwrap();
        let waitings = |name: &str| {
            let contenders = case.contenders.iter().filter(|c| c.transport == name && c.links == 1);
            contenders.map(|c| c.waiting).collect::<Vec<_>>()
        };
        assert_eq!(waitings("edge"), Waiting::ALL);
        assert_eq!(waitings("tcp"), [Waiting::Interrupt]);
        assert_eq!(waitings("tcp-poll"), [Waiting::Poll]);
    }

    #[test]
    fn samples_beside_busy_threads_last_for_many_slices() {
        let plan = plan(&Options { budget_seconds: 0.1, busy: 2, ..options() }).unwrap();
        assert!(plan.sample_seconds >= SAMPLE_SECONDS_MIN_BUSY);
    }

    #[test]
    fn the_error_names_an_invalid_option() {
        let unknown = Options { transports: vec!["pigeon".into()], ..options() };
        let message = plan(&unknown).unwrap_err().to_string();
        assert!(message.contains("pigeon") && message.contains("tcp"), "{message}");
        let zero = Options { sizes: vec![8, 0], ..options() };
        assert!(matches!(plan(&zero), Err(PlanError::Size { bytes: 0 })));
        let never = Options { repetitions: 0, ..options() };
        assert!(matches!(plan(&never), Err(PlanError::Repetitions { repetitions: 0 })));
        let crowd = Options { busy: BUSY_MAX + 1, ..options() };
        assert!(matches!(plan(&crowd), Err(PlanError::Busy { busy: 17 })));
        let nothing = Options { tests: vec![], ..options() };
        assert!(matches!(plan(&nothing), Err(PlanError::Empty)));
    }

    fn plan(options: &Options) -> Result<Plan, PlanError> {
        let names: Vec<_> = transports::all().iter().map(|t| t.name().to_string()).collect();
        Plan::new(options, 2, Some(1500), &names)
    }

    fn options() -> Options {
        Options {
            program: PathBuf::new(),
            path: PathChoice::Automatic,
            links: 2,
            link_names: Vec::new(),
            server_link_names: Vec::new(),
            in_order: false,
            waitings: vec![Waiting::Poll],
            busy: 0,
            interleaved: false,
            delays_us: Vec::new(),
            mtu: 1500,
            tests: Test::ALL.to_vec(),
            transports: vec![],
            sizes: vec![8, 1 << 20],
            repetitions: 10,
            budget_seconds: 100.0,
            in_flight: 64,
            connections: 1,
            pinning: true,
        }
    }
}
