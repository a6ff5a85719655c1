//! Runs a whole benchmark: sets up the path, starts client and server, and takes the samples
//! alternately.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process;

use crate::busy;
use crate::client::SampleRequest;
use crate::cpu;
use crate::machine::Machine;
use crate::plan::{Case, Contender, Options, PathChoice, Plan, PlanError};
use crate::process::{ChildProcess, ChildSpec, Line, ProcessError, Role};
use crate::results::{
    FORMAT, Measurement, PathFacts, PathKind, Results, Sample, Settings, TransportFacts, label,
};
use crate::statistics;
use crate::transport::{Setup, Test};
use crate::transports::{self, BASELINE, MEMCPY, MPTCP, POLLING_BASELINE, YARDSTICK};
use crate::yardsticks::udp_segments;
use testbed::cleanup;
use testbed::clock;
use testbed::mptcp;
use testbed::namespace::{self, NamespaceError};
use testbed::pair::{LinkAddresses, NamespacePair};
use testbed::switched::LinkShape;

/// Observes the progress of a run.
pub trait Observer {
    /// Reports a fact that the user should know, for example that the path is not the best one.
    fn on_note(&mut self, note: &str);

    /// Reports that the first sample will be taken next. `samples` is the approximate number of all
    /// samples.
    fn on_start(&mut self, samples: u64);

    /// Reports that the sample described by `what` will be taken next.
    fn on_sample(&mut self, what: &str);
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The namespaces could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The options cannot be turned into a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The peer's name is invalid or cannot be resolved.
    #[error("peer {peer:?}: {reason}; give HOST or HOST:PORT of a running `ethernot serve`")]
    Peer {
        /// The peer as given by the user.
        peer: String,
        /// The reason why the peer cannot be used.
        reason: String,
    },
    /// A child process could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A sample failed.
    #[error("{what}: {source}")]
    Sample {
        /// Test, size and transport of the sample.
        what: String,
        /// The error of the child process.
        source: ProcessError,
    },
}

/// Runs the measurements of `options`.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn run(options: &Options, observer: &mut dyn Observer) -> Result<Results, RunError> {
    let unix_seconds = clock::unix_seconds();
    let mut bench = Bench::open(options, observer)?;
    let pinned_to = bench.pinned_to;
    let plan = Plan::new(
        options,
        bench.path.links.len() as u32,
        bench.path.mtu,
        &bench.processes.server_transports,
    )?;
    observer.on_start(plan.samples());
    let mut results = Vec::new();
    if options.interleaved {
        let mut samples = plan.cases.iter().map(no_samples).collect::<Vec<_>>();
        for repetition in 1..=plan.repetitions {
            for (case, samples) in plan.cases.iter().zip(&mut samples) {
                bench.repeat(case, repetition, samples, &plan, options, observer)?;
            }
        }
        let measured = plan.cases.iter().zip(samples);
        results.extend(measured.flat_map(|(case, samples)| measurements(case, samples)));
    } else {
        for case in &plan.cases {
            let mut samples = no_samples(case);
            for repetition in 1..=plan.repetitions {
                bench.repeat(case, repetition, &mut samples, &plan, options, observer)?;
            }
            results.extend(measurements(case, samples));
        }
    }
    Ok(Results {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        path: PathFacts {
            kind: bench.path.kind,
            links: bench.path.links.len() as u32,
            mtu: bench.path.mtu,
        },
        client: bench.processes.client_machine.clone(),
        server: bench.processes.server_machine.clone(),
        settings: Settings {
            repetitions: plan.repetitions,
            dropped: statistics::dropped(plan.repetitions),
            sample_seconds: plan.sample_seconds,
            in_flight: options.in_flight,
            pinned_to,
            busy: options.busy,
        },
        transports: transport_facts(&results),
        results,
    })
}

/// The path between client and server.
struct Path {
    kind: PathKind,
    links: Vec<LinkAddresses>,
    mtu: Option<u32>,
    namespaces: Option<NamespacePair>,
    /// The server's address for the control connection. If this run starts the server, the server
    /// listens there.
    server: SocketAddr,
}

impl Path {
    fn open(options: &Options, observer: &mut dyn Observer) -> Result<Self, RunError> {
        match &options.path {
            PathChoice::Peer(peers) => Self::to_peer(peers, options.link_names.len()),
            PathChoice::Loopback => Ok(Self::over_loopback(options.links)),
            PathChoice::Switched(shapes) => Ok(Self::over_switches(shapes, options, observer)?),
            PathChoice::Automatic if !namespace::are_possible() => {
                observer.on_note(
                    "this process is not root, so it measures over loopback instead of network \
                     namespaces",
                );
                Ok(Self::over_loopback(options.links))
            }
            PathChoice::Automatic => match Self::over_namespaces(options, observer) {
                Ok(path) => Ok(path),
                // `ip` fails if root lacks the necessary capabilities, for example in most
                // containers.
                Err(error @ NamespaceError::Failed { .. }) => {
                    observer.on_note(&format!("{error}: measuring over loopback instead"));
                    Ok(Self::over_loopback(options.links))
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    fn over_namespaces(
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<Self, NamespaceError> {
        remove_leftovers(observer);
        Ok(Self::through(NamespacePair::create(options.links, options.mtu)?, options.mtu))
    }

    fn over_switches(
        shapes: &[LinkShape],
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<Self, NamespaceError> {
        remove_leftovers(observer);
        let pair = NamespacePair::create_switched(shapes, options.mtu)?;
        if options.transports.iter().any(|name| name == MPTCP) {
            mptcp::use_all_links(&pair)?;
        }
        Ok(Self::through(pair, options.mtu))
    }

    fn through(pair: NamespacePair, mtu: u32) -> Self {
        let links = pair.links().to_vec();
        let server = links.first().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |link| link.server);
        Self {
            kind: PathKind::Namespaces,
            links,
            mtu: Some(mtu),
            namespaces: Some(pair),
            server: SocketAddr::new(server, 0),
        }
    }

    /// Returns a path over the loopback interface. Each further link uses another address of this
    /// interface.
    fn over_loopback(links: u32) -> Self {
        let address = |link| IpAddr::V4(Ipv4Addr::new(127, 0, 0, link));
        let links = (1..=links.clamp(1, namespace::LINKS_MAX) as u8)
            .map(|link| LinkAddresses { client: Some(address(link)), server: address(link) })
            .collect();
        Self {
            kind: PathKind::Loopback,
            links,
            mtu: Some(LOOPBACK_MTU),
            namespaces: None,
            server: SocketAddr::new(address(1), 0),
        }
    }

    /// Returns a path to a running server. `named` is the number of links whose names the user
    /// gave.
    fn to_peer(peers: &[String], named: usize) -> Result<Self, RunError> {
        let addresses = peers.iter().map(|peer| resolve(peer)).collect::<Result<Vec<_>, _>>()?;
        let server = *addresses.first().ok_or_else(|| RunError::Peer {
            peer: String::new(),
            reason: "no name given".to_string(),
        })?;
        let link = |address: &SocketAddr| LinkAddresses { client: None, server: address.ip() };
        let mut links: Vec<_> = addresses.iter().map(link).collect();
        if named > 0 {
            // Transports that select links by name ignore these addresses. All other transports use
            // one link, which leads to the server's address.
            links = vec![link(&server); named];
        }
        Ok(Self { kind: PathKind::Peer, links, mtu: None, namespaces: None, server })
    }
}

fn remove_leftovers(observer: &mut dyn Observer) {
    for name in cleanup::remove_leftovers() {
        observer.on_note(&format!("removed {name}, which a killed run had left behind"));
    }
}

fn resolve(peer: &str) -> Result<SocketAddr, RunError> {
    let failed = |reason: String| RunError::Peer { peer: peer.to_string(), reason };
    let resolved = match peer.parse::<IpAddr>() {
        Ok(address) => return Ok(SocketAddr::new(address, CONTROL_PORT)),
        Err(_) if peer.contains(':') => peer.to_socket_addrs(),
        Err(_) => (peer, CONTROL_PORT).to_socket_addrs(),
    };
    let mut addresses = resolved.map_err(|error| failed(error.to_string()))?;
    addresses.next().ok_or_else(|| failed("the name resolves to no address".to_string()))
}

/// The two measuring processes, the process of the busy threads, and the path.
///
/// The fields are in this order because Rust drops them in order: processes must end before their
/// namespaces are removed.
pub(crate) struct Bench {
    _busy: Option<ChildProcess>,
    processes: Processes,
    path: Path,
    pinned_to: Option<[usize; 2]>,
}

impl Bench {
    /// Makes the path that `options` select, and starts the processes.
    pub(crate) fn open(options: &Options, observer: &mut dyn Observer) -> Result<Self, RunError> {
        let path = Path::open(options, observer)?;
        Self::start(options, path, options.pinning.then(cpu::first_two).flatten())
    }

    /// Returns the namespaces, if the path has any.
    pub(crate) fn namespaces(&self) -> Option<&NamespacePair> {
        self.path.namespaces.as_ref()
    }

    /// Returns the addresses of the links.
    pub(crate) fn links(&self) -> &[LinkAddresses] {
        &self.path.links
    }

    /// Returns the client's process.
    pub(crate) fn client(&mut self) -> &mut ChildProcess {
        &mut self.processes.client
    }

    fn start(
        options: &Options,
        path: Path,
        pinned_to: Option<[usize; 2]>,
    ) -> Result<Self, RunError> {
        let processes = Processes::start(options, &path, pinned_to)?;
        let busy = busy::start(&options.program, options.busy)?;
        Ok(Self { _busy: busy, processes, path, pinned_to })
    }

    /// Restarts the processes. Without this, memory that earlier cases have freed could influence
    /// later cases. If the server runs on another host, the server keeps running.
    fn renew_processes(&mut self, options: &Options) -> Result<(), RunError> {
        if self.path.kind != PathKind::Peer {
            self.processes = Processes::start(options, &self.path, self.pinned_to)?;
        }
        Ok(())
    }

    /// Takes one sample of each contender of `case`.
    fn repeat(
        &mut self,
        case: &Case,
        repetition: u32,
        samples: &mut [Vec<Sample>],
        plan: &Plan,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        if case.test == Test::ManyConnections && repetition == 1 {
            self.renew_processes(options)?;
        }
        for (contender, samples) in case.contenders.iter().zip(samples) {
            let what = describe(case, contender);
            observer.on_sample(&format!("{what}, {repetition} of {}", plan.repetitions));
            let request = self.request(case, contender, plan, options);
            let sample =
                self.sample(&request).map_err(|source| RunError::Sample { what, source })?;
            samples.push(sample);
        }
        Ok(())
    }

    fn request(
        &self,
        case: &Case,
        contender: &Contender,
        plan: &Plan,
        options: &Options,
    ) -> SampleRequest {
        let many = case.test == Test::ManyConnections;
        SampleRequest {
            transport: contender.transport.clone(),
            setup: Setup {
                test: case.test,
                message_bytes: case.message_bytes,
                links: self.path.links.iter().take(contender.links as usize).copied().collect(),
                client_links: options
                    .link_names
                    .iter()
                    .take(contender.links as usize)
                    .cloned()
                    .collect(),
                server_links: Vec::new(),
                mtu: self.path.mtu,
                in_flight: options.in_flight,
                connections: if many { options.connections } else { 1 },
                in_order: options.in_order,
                waiting: contender.waiting,
                delays_us: options.delays_us.clone(),
                rates: options.path.rates(),
            },
            seconds: plan.sample_seconds,
            announced: false,
        }
    }

    fn sample(&mut self, request: &SampleRequest) -> Result<Sample, ProcessError> {
        let client = &mut self.processes.client;
        client.send(request)?;
        match client.receive()? {
            Line::Sample(sample) => Ok(sample),
            line => Err(client.unexpected(&line)),
        }
    }
}

/// The two measuring processes.
struct Processes {
    client: ChildProcess,
    /// `None` if the server runs on another host.
    _server: Option<ChildProcess>,
    client_machine: Machine,
    server_machine: Machine,
    server_transports: Vec<String>,
}

impl Processes {
    fn start(
        options: &Options,
        path: &Path,
        pinned_to: Option<[usize; 2]>,
    ) -> Result<Self, RunError> {
        let parent = process::id();
        let names = path.namespaces.as_ref();
        let mut control = path.server;
        let mut server = None;
        if path.kind != PathKind::Peer {
            let spec = ChildSpec {
                role: Role::Server(path.server),
                namespace: names.map(|pair| pair.server().to_string()),
                cpu: pinned_to.map(|[_, cpu]| cpu),
                parent,
                links: options.server_link_names.clone(),
            };
            let mut child = ChildProcess::start(&options.program, &spec)?;
            control = match child.receive()? {
                Line::Listening(address) => address,
                line => return Err(child.unexpected(&line).into()),
            };
            server = Some(child);
        }
        let spec = ChildSpec {
            role: Role::Client { server: control, shares_host: server.is_some() },
            namespace: names.map(|pair| pair.client().to_string()),
            cpu: pinned_to.map(|[cpu, _]| cpu),
            parent,
            links: Vec::new(),
        };
        let mut client = ChildProcess::start(&options.program, &spec)?;
        match client.receive()? {
            Line::Ready { client: client_machine, server: server_machine, server_transports } => {
                Ok(Self {
                    client,
                    _server: server,
                    client_machine,
                    server_machine,
                    server_transports,
                })
            }
            line => Err(client.unexpected(&line).into()),
        }
    }
}

/// Returns an empty list of samples for each contender.
fn no_samples(case: &Case) -> Vec<Vec<Sample>> {
    vec![Vec::new(); case.contenders.len()]
}

/// Returns the measurements of all contenders of `case`.
fn measurements(case: &Case, samples: Vec<Vec<Sample>>) -> Vec<Measurement> {
    let references: Vec<(&str, Vec<Sample>)> = REFERENCES
        .into_iter()
        .filter_map(|name| {
            let mut contenders = case.contenders.iter().zip(&samples);
            let (_, samples) = contenders.find(|(c, _)| c.transport == name)?;
            Some((name, samples.clone()))
        })
        .collect();
    let references: Vec<(&str, &[Sample])> =
        references.iter().map(|(name, samples)| (*name, samples.as_slice())).collect();
    let contenders = case.contenders.iter().zip(samples);
    contenders
        .filter_map(|(c, samples)| statistics::measurement(case, c, samples, &references))
        .collect()
}

/// The transports to which ratios are computed.
const REFERENCES: [&str; 5] = [BASELINE, YARDSTICK, MEMCPY, POLLING_BASELINE, udp_segments::NAME];

fn describe(case: &Case, contender: &Contender) -> String {
    let name = label(&contender.transport, contender.waiting, contender.links);
    match case.message_bytes {
        0 => format!("{} {name}", case.test.name()),
        bytes => format!("{} {bytes} B {name}", case.test.name()),
    }
}

fn transport_facts(results: &[Measurement]) -> Vec<TransportFacts> {
    let all = transports::all();
    let measured = all.iter().filter(|t| results.iter().any(|r| r.transport == t.name()));
    let facts = measured.map(|transport| TransportFacts {
        name: transport.name().to_string(),
        description: transport.description().to_string(),
    });
    facts.collect()
}

/// Default port of `ethernot serve`.
pub const CONTROL_PORT: u16 = 7471;

/// Default MTU of the loopback interface in Linux.
const LOOPBACK_MTU: u32 = 65_536;
