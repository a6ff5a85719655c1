//! A whole run: for each set-up makes the testbed, starts client and server, takes the samples of
//! the contenders in turn.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process;

use super::results::{FORMAT, MultiedgeResults, Point, SetUpFacts};
use super::setups::SetUp;
use crate::client::SampleRequest;
use crate::clock;
use crate::cpu;
use crate::machine::Machine;
use crate::namespaces::{self, NamespaceError};
use crate::process::{ChildProcess, ChildSpec, Line, ProcessError, Role};
use crate::results::Sample;
use crate::testbed::{CONTROL_SERVER, Testbed};
use crate::transport::{EdgeOptions, EdgePolicy, Setup, Test};
use crate::yardsticks;

/// What the user wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program itself, to be started as client and server.
    pub program: PathBuf,
    /// The set-ups to measure.
    pub set_ups: Vec<&'static SetUp>,
    /// How frames are sent.
    pub link: LinkKind,
    /// MTU of all links; `None`: that of each set-up.
    pub mtu: Option<u32>,
    /// The tests to run.
    pub tests: Vec<Test>,
    /// Message sizes, in bytes.
    pub sizes: Vec<u64>,
    /// The rules to measure.
    pub policies: Vec<EdgePolicy>,
    /// Measure the yardsticks: the same exchange without any protocol, and those of other programs.
    pub yardsticks: bool,
    /// Samples of each point.
    pub repetitions: u32,
    /// How long a sample takes.
    pub sample_seconds: f64,
    /// Restrict client and server to one CPU each.
    pub pinning: bool,
}

/// How frames are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// Raw Ethernet through packet sockets.
    Packet,
    /// UDP.
    Udp,
    /// Raw Ethernet through `AF_XDP`.
    Xdp,
}

impl LinkKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Packet, Self::Udp, Self::Xdp];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Udp => "udp",
            Self::Xdp => "xdp",
        }
    }

    /// The links of one host of a testbed, by name. `addresses`: the host's own.
    pub fn links(self, addresses: impl Iterator<Item = IpAddr>) -> Vec<String> {
        let name = |(index, address): (usize, IpAddr)| match self {
            Self::Udp => format!("udp:{address}"),
            Self::Packet => format!("packet:link{}", index + 1),
            Self::Xdp => format!("xdp:link{}", index + 1),
        };
        addresses.enumerate().map(name).collect()
    }
}

/// Is told how a run proceeds.
pub trait Observer {
    /// Something that the user should know.
    fn on_note(&mut self, note: &str);

    /// This many points are to be measured.
    fn on_start(&mut self, points: u64);

    /// The point described by `what` is about to be measured.
    fn on_point(&mut self, what: &str);
}

/// Why a run has no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The testbed could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A process that measures could not start.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Not root.
    #[error(
        "the testbed is made of network namespaces and shaped virtual links: run as root (it needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW)"
    )]
    NotRoot,
}

/// Measures what `options` ask for.
pub fn run(options: &Options, observer: &mut dyn Observer) -> Result<MultiedgeResults, RunError> {
    if !namespaces::are_possible() {
        return Err(RunError::NotRoot);
    }
    let unix_seconds = clock::unix_seconds();
    for name in namespaces::remove_leftovers() {
        observer.on_note(&format!("removed {name}, left behind by a run that was killed"));
    }
    let pinned_to = options.pinning.then(cpu::first_two).flatten();
    let cases = options.tests.len() * options.sizes.len() * options.set_ups.len();
    observer.on_start(cases as u64);
    let mut points = Vec::new();
    let mut facts = Vec::new();
    for &set_up in &options.set_ups {
        let mtu = options.mtu.unwrap_or(set_up.mtu);
        let mut bench = Bench::start(options, set_up, mtu, pinned_to)?;
        for &test in &options.tests {
            for &message_bytes in &options.sizes {
                let size = message_bytes;
                observer.on_point(&format!("{} {} {size} B", set_up.name, test.name()));
                points.extend(bench.measure(test, message_bytes, options)?);
            }
        }
        if options.yardsticks {
            for tool in yardsticks::EXTERNAL {
                observer.on_point(&format!("{} {}", set_up.name, tool.name()));
                points.push(bench.external(tool, options));
            }
        }
        facts.push(SetUpFacts {
            name: set_up.name.to_string(),
            links: set_up.links.to_vec(),
            mtu,
            is_strict: set_up.is_strict,
        });
    }
    relate(&mut points);
    Ok(MultiedgeResults {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        link: options.link.name().to_string(),
        repetitions: options.repetitions,
        sample_seconds: options.sample_seconds,
        pinned_to,
        set_ups: facts,
        points,
    })
}

/// Adds to each point its ratios to the others of the same set-up, test and size, and, for set-ups
/// that differ in loss alone, to the one without.
fn relate(points: &mut [Point]) {
    let all: Vec<_> = points
        .iter()
        .map(|p| {
            (p.set_up.clone(), p.test, p.message_bytes, p.contender.clone(), p.samples.clone())
        })
        .collect();
    for point in points {
        for (set_up, test, message_bytes, contender, samples) in &all {
            if point.test != *test || point.message_bytes != *message_bytes {
                continue;
            }
            if point.set_up == *set_up && point.contender != *contender {
                point.compare(contender, samples);
            }
            if set_up == LOSSLESS && point.set_up != *set_up && point.contender == *contender {
                point.compare(LOSSLESS, samples);
            }
        }
    }
}

/// The two processes that measure, and the testbed between them.
///
/// The order of the fields is the order in which they are dropped: processes before namespaces.
struct Bench<'a> {
    processes: Option<Processes>,
    testbed: Testbed,
    set_up: &'static SetUp,
    mtu: u32,
    pinned_to: Option<[usize; 2]>,
    options: &'a Options,
}

struct Processes {
    client: ChildProcess,
    _server: ChildProcess,
}

impl<'a> Bench<'a> {
    fn start(
        options: &'a Options,
        set_up: &'static SetUp,
        mtu: u32,
        pinned_to: Option<[usize; 2]>,
    ) -> Result<Self, RunError> {
        let testbed = Testbed::create(set_up.links, mtu)?;
        Ok(Self { processes: None, testbed, set_up, mtu, pinned_to, options })
    }

    /// Takes all samples of one test and size, the contenders in turn within each repetition.
    fn measure(
        &mut self,
        test: Test,
        message_bytes: u64,
        options: &Options,
    ) -> Result<Vec<Point>, RunError> {
        let mut contenders: Vec<Contender> =
            options.policies.iter().map(|&policy| Contender::edge(policy)).collect();
        if self.set_up.with_tcp {
            contenders.push(Contender::other("tcp"));
        }
        if options.yardsticks && test == Test::PingPong && message_bytes <= BARE_BYTES_MAX {
            match options.link {
                LinkKind::Packet => contenders.push(Contender::other("bare-packet")),
                LinkKind::Xdp => contenders.push(Contender::other("bare-xdp")),
                LinkKind::Udp => contenders.push(Contender::other("udp")),
            }
        }
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); contenders.len()];
        let mut drops = vec![0_u64; contenders.len()];
        let mut failures: Vec<Option<String>> = vec![None; contenders.len()];
        for _ in 0..options.repetitions {
            for (index, contender) in contenders.iter().enumerate() {
                let request = self.request(test, message_bytes, contender);
                let before = self.testbed.drops()?;
                let outcome = self.sample(&request);
                let dropped = self.testbed.drops()?.saturating_sub(before);
                if let Some(drops) = drops.get_mut(index) {
                    *drops += dropped;
                }
                match (outcome, samples.get_mut(index), failures.get_mut(index)) {
                    (Ok(sample), Some(samples), _) => samples.push(sample),
                    (Err(error), _, Some(failure)) => {
                        *failure = Some(error.to_string());
                        // Whatever state they are in, the next ones start anew.
                        self.processes = None;
                    }
                    _ => {}
                }
            }
        }
        let (name, rate) = (self.set_up.name, self.set_up.bits_per_second());
        let rows = contenders.iter().zip(samples).zip(drops.iter().zip(failures));
        let point = |((contender, samples), (&drops, failure)): ((&Contender, _), (_, _))| {
            let samples: Vec<Sample> = samples;
            let mut point =
                Point::of_samples(name, test, message_bytes, &contender.label, samples, rate);
            point.queue_drops = drops;
            point.failure = failure;
            point
        };
        Ok(rows.map(point).collect())
    }

    fn request(&self, test: Test, message_bytes: u64, contender: &Contender) -> SampleRequest {
        let links = self.testbed.links();
        let kind = match contender.transport {
            "bare-packet" => LinkKind::Packet,
            "bare-xdp" => LinkKind::Xdp,
            _ => self.options.link,
        };
        SampleRequest {
            transport: contender.transport.to_string(),
            setup: Setup {
                test,
                message_bytes,
                links: links.to_vec(),
                client_links: kind.links(links.iter().filter_map(|link| link.client)),
                server_links: kind.links(links.iter().map(|link| link.server)),
                mtu: Some(self.mtu),
                in_flight: in_flight(message_bytes),
                connections: 1,
                edge: EdgeOptions {
                    policy: contender.policy,
                    is_strict: self.set_up.is_strict,
                    is_instrumented: true,
                },
            },
            seconds: self.options.sample_seconds,
        }
    }

    fn sample(&mut self, request: &SampleRequest) -> Result<Sample, ProcessError> {
        let processes = match self.processes.take() {
            Some(processes) => processes,
            None => self.processes()?,
        };
        let client = &mut self.processes.insert(processes).client;
        client.send(request)?;
        match client.receive()? {
            Line::Sample(sample) => Ok(sample),
            line => Err(client.unexpected(&line)),
        }
    }

    fn processes(&self) -> Result<Processes, ProcessError> {
        let parent = process::id();
        let mut server = ChildProcess::start(
            &self.options.program,
            &ChildSpec {
                role: Role::Server(SocketAddr::new(CONTROL_SERVER.into(), 0)),
                namespace: Some(self.testbed.server().to_string()),
                cpu: self.pinned_to.map(|[_, cpu]| cpu),
                parent,
            },
        )?;
        let address = match server.receive()? {
            Line::Listening(address) => address,
            line => return Err(server.unexpected(&line)),
        };
        let mut client = ChildProcess::start(
            &self.options.program,
            &ChildSpec {
                role: Role::Client { server: address, shares_host: true },
                namespace: Some(self.testbed.client().to_string()),
                cpu: self.pinned_to.map(|[cpu, _]| cpu),
                parent,
            },
        )?;
        match client.receive()? {
            Line::Ready { .. } => Ok(Processes { client, _server: server }),
            line => Err(client.unexpected(&line)),
        }
    }

    /// A ping-pong of another program between the same hosts.
    fn external(&mut self, tool: yardsticks::External, options: &Options) -> Point {
        // Ours would poll beside it.
        self.processes = None;
        let address = self.testbed.links().first().map(|link| link.server);
        let hosts = yardsticks::Hosts {
            program: &options.program,
            client: self.testbed.client(),
            server: self.testbed.server(),
            address: address.unwrap_or(CONTROL_SERVER.into()),
            pinned_to: self.pinned_to,
        };
        let samples: Result<Vec<Sample>, _> =
            (0..options.repetitions).map(|_| tool.ping_pong(&hosts)).collect();
        let bytes = yardsticks::EXTERNAL_BYTES;
        let name = self.set_up.name;
        match samples {
            Ok(samples) => {
                Point::of_samples(name, Test::PingPong, bytes, tool.name(), samples, None)
            }
            Err(error) => {
                Point::failed(name, Test::PingPong, bytes, tool.name(), error.to_string())
            }
        }
    }
}

/// What is measured on the same testbed in turn.
struct Contender {
    label: String,
    transport: &'static str,
    policy: EdgePolicy,
}

impl Contender {
    fn edge(policy: EdgePolicy) -> Self {
        let label = match policy {
            EdgePolicy::Own => "edge",
            EdgePolicy::MultiEdge => "multiedge",
        };
        Self { label: label.to_string(), transport: "edge", policy }
    }

    fn other(transport: &'static str) -> Self {
        Self { label: transport.to_string(), transport, policy: EdgePolicy::Own }
    }
}

/// Operations in flight: 4 MiB of them, 8 to 64. 4 MiB are what a 10 Gb/s link carries in 3 ms.
fn in_flight(message_bytes: u64) -> u32 {
    ((4 << 20) / message_bytes.max(1)).clamp(8, 64) as u32
}

/// The set-up that those with loss are compared with.
const LOSSLESS: &str = "1L-1G-wire";

/// A bare exchange sends one frame.
const BARE_BYTES_MAX: u64 = 1024;
