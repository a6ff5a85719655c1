//! Measures a suite of unmodified programs, alternately over kernel TCP and over the edge. The
//! results show the gain over the edge, and the cost of the library for connections that stay on
//! TCP.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::machine::Machine;
use crate::run::Observer;
use crate::unmodified::clients::Client;
use crate::unmodified::fetch;
use crate::unmodified::figures::{Case, Sample};
use crate::unmodified::folder::Folder;
use crate::unmodified::gatherer::Task;
use crate::unmodified::gmond::{self, Gatherer, METRICS_MAX, Reporter};
use crate::unmodified::running::{ProgramError, ProgramHost, ProgramPlace, Running};
use crate::unmodified::servers::Server;
use crate::unmodified::way::Way;
use crate::unmodified::wrk::{self, Load};
use testbed::clock;
use testbed::namespace::NamespaceError;
use testbed::pair::NamespacePair;

/// The user's choices for this benchmark.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The executable of this program.
    pub own_program: PathBuf,
    /// Names of the cases to measure; if empty, all.
    pub cases: Vec<String>,
    /// Number of samples of each case over kernel TCP, and also in the other configuration of the
    /// case.
    pub repetitions: u32,
    /// Length of a sample, in seconds.
    pub seconds: u32,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// Whether to restrict client and server to one CPU each.
    pub pinning: bool,
    /// Whether to measure kernel TCP against itself, which shows how much ratios vary without a
    /// real difference.
    pub is_control: bool,
}

/// The JSON document with the results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The machine that ran all hosts as namespaces.
    pub machine: Machine,
    /// Number of samples of each case over kernel TCP, and also in the other configuration of the
    /// case.
    pub repetitions: u32,
    /// Length of a sample, in seconds.
    pub sample_seconds: u32,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// The CPU of the server and the CPU of the client, if each was restricted to one.
    pub pinned_to: Option<[usize; 2]>,
    /// The cases in the order of [`CASES`].
    pub cases: Vec<Case>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramsError {
    /// The namespaces could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The files for the programs could not be written.
    #[error("make the folder for the files of the programs: {0}")]
    Files(#[from] io::Error),
}

/// A case of the suite.
#[derive(Debug, Clone, Copy)]
pub struct ProgramCase {
    /// The name of the case.
    pub name: &'static str,
    /// The configuration of the two programs that the benchmark compares with kernel TCP.
    pub other: Way,
    pair: Pair,
}

/// A server and its client.
#[derive(Debug, Clone, Copy)]
enum Pair {
    /// nginx as the server, and `wrk` as the client. The value is the size in bytes of the
    /// requested file.
    Web(u64),
    /// A server, and a client that measures and prints its own figures.
    Own(Server, Client),
    /// nginx as the server, and `ab` as the client, which opens a connection for each request. The
    /// value is the number of connections that are open at the same time.
    Fresh(u32),
    /// gmond and a gatherer.
    Gmond,
}

/// Runs the measurements of `wishes`. If a case cannot run, the results of the case contain the
/// reason.
///
/// # Errors
/// Returns [`ProgramsError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, ProgramsError> {
    let unix_seconds = clock::unix_seconds();
    let pair = NamespacePair::create(1, wishes.mtu)?;
    let folder = Folder::create("programs")?;
    let pinned_to = if wishes.pinning { cpu::first_two() } else { None };
    let place = |namespace, cpu: usize| ProgramPlace {
        own_program: &wishes.own_program,
        host: ProgramHost::Namespace(namespace),
        cpu: pinned_to.map(|cpus| cpus[cpu]),
        protocol_cpu: None,
        folder: folder.path(),
    };
    let suite = Suite {
        client: place(pair.client(), 0),
        server: place(pair.server(), 1),
        ip: pair.links()[0].server,
        next_port: Cell::new(FIRST_PORT),
        seconds: wishes.seconds,
        folder: &folder,
    };
    let is_wanted = |entry: &&ProgramCase| {
        wishes.cases.is_empty() || wishes.cases.iter().any(|name| name == entry.name)
    };
    let entries: Vec<&ProgramCase> = CASES.iter().filter(is_wanted).collect();
    observer.on_start(entries.len() as u64 * u64::from(wishes.repetitions) * 2);
    let mut cases = Vec::new();
    for entry in entries {
        let other = if wishes.is_control { Way::Tcp } else { entry.other };
        let case = Case::new(entry.pair.server_name(), entry.name.to_string(), 0.0, other);
        let sample = |way| suite.sample(entry.pair, way);
        cases.push(case.measure(wishes.repetitions, observer, sample));
    }
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        repetitions: wishes.repetitions,
        sample_seconds: wishes.seconds,
        mtu: wishes.mtu,
        pinned_to,
        cases,
    })
}

/// State shared by all cases.
struct Suite<'a> {
    client: ProgramPlace<'a>,
    server: ProgramPlace<'a>,
    ip: IpAddr,
    next_port: Cell<u16>,
    seconds: u32,
    folder: &'a Folder,
}

impl Suite<'_> {
    /// Starts the server, lets the client measure, and ends the server. If a polling server kept
    /// running, it would take CPU time from other cases.
    fn sample(&self, pair: Pair, way: Way) -> Result<Sample, ProgramError> {
        // Connections of the previous server may occupy its port for a minute.
        let address = SocketAddr::new(self.ip, self.next_port.get());
        self.next_port.set(address.port().checked_add(1).unwrap_or(FIRST_PORT));
        match pair {
            Pair::Web(bytes) => self.web(bytes, way, address),
            Pair::Fresh(connections) => {
                let failed = |source| ProgramError::Io { program: "nginx".to_string(), source };
                fetch::make_files(self.folder, DOCUMENTS, FRESH_PREFIX, [FRESH_BYTES])
                    .map_err(failed)?;
                let client = Client::Ab { connections, path: FRESH_PATH };
                self.sample(Pair::Own(Server::Nginx, client), way)
            }
            Pair::Own(server, client) => {
                let running = self.start(server, way, address)?;
                let sample = client.run(&self.client, way, address, self.seconds, self.folder)?;
                running.end();
                Ok(sample)
            }
            Pair::Gmond => {
                let reporter = Reporter { name: "gmond", address, metrics: METRICS_MAX };
                let start = gmond::start(&self.server, way, reporter, self.folder)?;
                let gatherer = Gatherer { place: self.client, way };
                let hosts = vec![address];
                gatherer.await_answers(&hosts, METRICS_MAX, self.folder)?;
                let task = Task { hosts, is_parallel: false, seconds: f64::from(self.seconds) };
                let running = [start.0];
                let sample = gatherer.sample(&task, &running, self.folder)?;
                running.into_iter().for_each(Running::end);
                Ok(sample)
            }
        }
    }

    fn web(&self, bytes: u64, way: Way, address: SocketAddr) -> Result<Sample, ProgramError> {
        let failed = |source| ProgramError::Io { program: "nginx".to_string(), source };
        let prefix = format!("file{bytes}-");
        let files = fetch::make_files(self.folder, DOCUMENTS, &prefix, [bytes]).map_err(failed)?;
        let running = self.start(Server::Nginx, way, address)?;
        let (client, folder) = (&self.client, self.folder);
        let fetched = fetch::verify(client, way, address, folder, DOCUMENTS, &files)?;
        if !fetched.wrong.is_empty() {
            return Err(ProgramError::NoResult {
                program: "nginx".to_string(),
                line: format!("wrong content of the response for {}", fetched.wrong.join(", ")),
            });
        }
        let paths: Vec<String> = files.iter().map(|name| format!("/{name}")).collect();
        let paths = paths.iter().map(String::as_str);
        let script = wrk::write_script(folder, &prefix, paths).map_err(failed)?;
        let load = Load {
            places: &[self.client],
            server: address,
            script: &script,
            connections: CONNECTIONS,
            closes: false,
            seconds: self.seconds,
        };
        let sample = load.run(way, &running, folder)?;
        running.end();
        Ok(sample)
    }

    fn start(
        &self,
        server: Server,
        way: Way,
        address: SocketAddr,
    ) -> Result<Running, ProgramError> {
        let started = server.start(&self.server, way, address, self.folder, DOCUMENTS)?;
        Ok(started.0)
    }
}

impl Pair {
    const fn server_name(self) -> &'static str {
        match self {
            Self::Web(_) | Self::Fresh(_) => Server::Nginx.name(),
            Self::Own(server, _) => server.name(),
            Self::Gmond => "gmond",
        }
    }
}

const fn redis(name: &'static str, command: &'static str, pipeline: u32) -> ProgramCase {
    redis_by(name, command, pipeline, Way::Edge)
}

const fn redis_by(
    name: &'static str,
    command: &'static str,
    pipeline: u32,
    other: Way,
) -> ProgramCase {
    ProgramCase { name, other, pair: Pair::Own(Server::Redis, Client::Redis { command, pipeline }) }
}

const fn fresh(name: &'static str, connections: u32, other: Way) -> ProgramCase {
    ProgramCase { name, other, pair: Pair::Fresh(connections) }
}

const fn iperf3(name: &'static str, streams: u32, other: Way) -> ProgramCase {
    ProgramCase { name, other, pair: Pair::Own(Server::Iperf3, Client::Iperf3 { streams }) }
}

const fn sockperf(name: &'static str, other: Way) -> ProgramCase {
    ProgramCase { name, other, pair: Pair::Own(Server::Sockperf, Client::Sockperf) }
}

/// All cases of the suite.
pub const CASES: [ProgramCase; 26] = [
    ProgramCase { name: "wrk-16K", other: Way::Edge, pair: Pair::Web(16 << 10) },
    ProgramCase { name: "wrk-256K", other: Way::Edge, pair: Pair::Web(256 << 10) },
    redis("redis-set-1", "set", 1),
    redis("redis-get-1", "get", 1),
    redis("redis-set-16", "set", 16),
    redis("redis-get-16", "get", 16),
    iperf3("iperf3-1", 1, Way::Edge),
    iperf3("iperf3-4", 4, Way::Edge),
    sockperf("sockperf-event", Way::Edge),
    sockperf("sockperf-poll", Way::EdgePoll),
    ProgramCase { name: "gmond", other: Way::Edge, pair: Pair::Gmond },
    iperf3("iperf3-client-only", 1, Way::ClientOnly),
    sockperf("sockperf-client-only", Way::ClientOnly),
    iperf3("iperf3-left-alone", 1, Way::LeftAlone),
    sockperf("sockperf-left-alone", Way::LeftAlone),
    iperf3("iperf3-server-only", 1, Way::ServerOnly),
    iperf3("iperf3-default", 1, Way::Default),
    redis_by("redis-get-1-client-only", "get", 1, Way::ClientOnly),
    redis_by("redis-get-1-server-only", "get", 1, Way::ServerOnly),
    redis_by("redis-get-1-default", "get", 1, Way::Default),
    fresh("fresh-client-only", 1, Way::ClientOnly),
    fresh("fresh-server-only", 1, Way::ServerOnly),
    fresh("fresh-default", 1, Way::Default),
    fresh("ab-client-only", 50, Way::ClientOnly),
    fresh("ab-server-only", 50, Way::ServerOnly),
    fresh("ab-default", 50, Way::Default),
];

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-programs/1";

/// Name of the folder that nginx serves.
const DOCUMENTS: &str = "documents";

/// The file that clients request with one connection per request: the prefix of its name, its name,
/// and its size in bytes.
const FRESH_PREFIX: &str = "fresh-";
const FRESH_PATH: &str = "fresh-0";
const FRESH_BYTES: u64 = 1024;

/// Number of connections of `wrk`.
const CONNECTIONS: u32 = 8;

/// The first server port. No other program uses the ports, because each host has its own namespace.
const FIRST_PORT: u16 = 8080;
