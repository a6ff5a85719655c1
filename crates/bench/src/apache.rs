//! Measures Apache with a load generator, alternately over kernel TCP and over the edge. Some tests
//! request a single file repeatedly. Others request the files of a trace that follows Zipf's law.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::machine::Machine;
use crate::run::Observer;
use crate::unmodified::apache_server::{Apache, Mpm};
use crate::unmodified::fetch;
use crate::unmodified::figures::Case;
use crate::unmodified::folder::Folder;
use crate::unmodified::running::{ProgramError, ProgramHost, ProgramPlace, Running};
use crate::unmodified::way::{PathTaken, Way};
use crate::unmodified::wrk::{self, Load};
use crate::zipf::{self, Zipf};
use testbed::clock;
use testbed::namespace::NamespaceError;
use testbed::star::Star;

/// The user's choices for this benchmark.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The executable of this program.
    pub own_program: PathBuf,
    /// The configuration of the two programs that the benchmark compares with kernel TCP.
    pub other: Way,
    /// Apache's multi-processing module.
    pub mpm: Mpm,
    /// File sizes, in bytes. For each size, a test requests one file of this size repeatedly.
    pub sizes: Vec<u64>,
    /// Exponents of the traces' Zipf distributions.
    pub alphas: Vec<f64>,
    /// Seed for the order of requests in a trace.
    pub seed: u64,
    /// Concurrent connections of all client hosts together, at least one per host.
    pub connections: u32,
    /// Number of client hosts, 1 to [`CLIENT_HOSTS_MAX`].
    pub client_hosts: u32,
    /// Whether each request opens a new connection.
    pub closes: bool,
    /// Number of samples of each case over kernel TCP, and also in the configuration `other`.
    pub repetitions: u32,
    /// Length of a sample, in seconds.
    pub seconds: u32,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// Whether to restrict client and server to one CPU each.
    pub pinning: bool,
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
    /// The configuration of the two programs that the benchmark compared with kernel TCP.
    pub other: Way,
    /// Apache's multi-processing module.
    pub mpm: Mpm,
    /// Concurrent connections of all client hosts together.
    pub connections: u32,
    /// Number of client hosts.
    #[serde(default = "one_host")]
    pub client_hosts: u32,
    /// Whether each request opened a new connection.
    pub closes: bool,
    /// Number of samples of each case over kernel TCP, and also in the configuration `other`.
    pub repetitions: u32,
    /// Length of a sample, in seconds.
    pub sample_seconds: u32,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// The CPU of the server and the CPU of the client, if each was restricted to one.
    pub pinned_to: Option<[usize; 2]>,
    /// Number of files that a client fetched over TCP and with the library, and compared with the
    /// originals.
    pub files_verified: usize,
    /// The library's counters in the server.
    pub server_path: PathTaken,
    /// One entry for each file size and each trace.
    pub cases: Vec<ApacheCase>,
}

/// The results for one file size or trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApacheCase {
    /// Mean size of a response's body, in bytes.
    pub mean_bytes: f64,
    /// The values over kernel TCP and in the configuration `other`, and their ratios.
    #[serde(flatten)]
    pub case: Case,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApacheError {
    /// The namespaces could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The files for the server could not be written.
    #[error("make the files that the server serves: {0}")]
    Files(#[from] io::Error),
    /// Responses differ from the files.
    #[error("files that were fetched over {} differ from the files of the server: {}", way.name(), files.join(", "))]
    Wrong {
        /// The configuration in which the files were fetched.
        way: Way,
        /// The names of the files.
        files: Vec<String>,
    },
}

/// Runs the measurements of `wishes`.
///
/// # Errors
/// Returns [`ApacheError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, ApacheError> {
    let unix_seconds = clock::unix_seconds();
    // The first host is the server.
    let star = Star::create(1 + wishes.client_hosts, wishes.mtu)?;
    let folder = Folder::create("apache")?;
    let pinned_to = if wishes.pinning { cpu::first_two() } else { None };
    let place = |host: usize| ProgramPlace {
        own_program: &wishes.own_program,
        host: ProgramHost::Namespace(&star.hosts()[host]),
        cpu: pinned_to.map(|cpus| cpus[usize::from(host == 0)]),
        protocol_cpu: None,
        folder: folder.path(),
    };
    let clients: Vec<_> = (1..=wishes.client_hosts as usize).map(place).collect();
    let singles = fetch::make_files(&folder, DOCUMENTS, "single", wishes.sizes.iter().copied())?;
    let traced = if wishes.alphas.is_empty() {
        Vec::new()
    } else {
        fetch::make_files(&folder, DOCUMENTS, "rank", zipf::sizes())?
    };
    let files: Vec<String> = singles.iter().chain(&traced).cloned().collect();

    let serve = |way: Way, port: u16| -> Result<Server, ApacheError> {
        let address = SocketAddr::new(Star::address(0), port);
        let apache = Apache {
            place: place(0),
            mpm: wishes.mpm,
            address,
            connections: wishes.connections,
            documents: DOCUMENTS,
        };
        let (running, counters) = apache.start(way, &folder)?;
        let fetched = fetch::verify(&place(1), way, address, &folder, DOCUMENTS, &files)?;
        if !fetched.wrong.is_empty() {
            return Err(ApacheError::Wrong { way, files: fetched.wrong });
        }
        Ok(Server { address, running, counters })
    };
    observer
        .on_note("starting Apache, and comparing every fetched file with the file of the server");
    let servers = [serve(Way::Tcp, PORTS[0])?, serve(wishes.other, PORTS[1])?];

    let cases = wishes.sizes.len() + wishes.alphas.len();
    observer.on_start(cases as u64 * u64::from(wishes.repetitions) * 2);
    let mut found = Vec::new();
    let mut measure = |case: Case, mean_bytes, paths: Vec<&str>| -> Result<(), ApacheError> {
        let script = wrk::write_script(&folder, &case.name, paths)?;
        let load = Load {
            places: &clients,
            server: servers[0].address,
            script: &script,
            connections: wishes.connections,
            closes: wishes.closes,
            seconds: wishes.seconds,
        };
        let case = case.measure(wishes.repetitions, observer, |way| {
            let server = &servers[usize::from(way != Way::Tcp)];
            Load { server: server.address, ..load }.run(way, &server.running, &folder)
        });
        found.push(ApacheCase { mean_bytes, case });
        Ok(())
    };
    for (name, &bytes) in singles.iter().zip(&wishes.sizes) {
        let case = Case::new(FILE_GROUP, format!("file-{bytes}"), bytes as f64, wishes.other);
        measure(case, bytes as f64, vec![&format!("/{name}")])?;
    }
    for &alpha in &wishes.alphas {
        let zipf = Zipf::new(alpha);
        let paths: Vec<String> = traced.iter().map(|name| format!("/{name}")).collect();
        let trace = zipf.trace(wishes.seed);
        let trace = trace.into_iter().map(|file| paths[file].as_str()).collect();
        let case = Case::new(ZIPF_GROUP, format!("zipf-{alpha}"), alpha, wishes.other);
        measure(case, zipf.mean_bytes(), trace)?;
    }
    let [_, other] = servers;
    other.running.end();
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        other: wishes.other,
        mpm: wishes.mpm,
        connections: wishes.connections,
        client_hosts: wishes.client_hosts,
        closes: wishes.closes,
        repetitions: wishes.repetitions,
        sample_seconds: wishes.seconds,
        mtu: wishes.mtu,
        pinned_to,
        files_verified: files.len(),
        server_path: PathTaken::read(&other.counters)?,
        cases: found,
    })
}

/// A running server.
struct Server {
    address: SocketAddr,
    running: Running,
    counters: PathBuf,
}

/// Returns the number of client hosts for documents that lack the field `client_hosts`.
const fn one_host() -> u32 {
    1
}

/// Highest number of client hosts.
pub const CLIENT_HOSTS_MAX: u32 = 16;

/// Number of client hosts in the figure of the slides that this benchmark reproduces.
pub const CLIENT_HOSTS: u32 = 3;

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-apache/1";

/// Group name of the single files.
pub const FILE_GROUP: &str = "single file";

/// Group name of the traces.
pub const ZIPF_GROUP: &str = "Zipf trace";

/// File sizes from 1 KiB to 2 MiB.
pub const SIZES: [u64; 12] = [
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
];

/// File sizes of a quick run.
pub const SIZES_QUICK: [u64; 4] = [1 << 10, 16 << 10, 256 << 10, 2 << 20];

/// Name of the folder that the server serves.
const DOCUMENTS: &str = "documents";

/// Server ports: the first for kernel TCP, the second for connections with the library.
const PORTS: [u16; 2] = [8080, 8081];
