//! Measures Ganglia, alternately over kernel TCP and over the edge: `gmond` runs on many hosts, and
//! another host gathers their reports.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::machine::Machine;
use crate::run::Observer;
use crate::unmodified::figures::Case;
use crate::unmodified::folder::Folder;
use crate::unmodified::gatherer::Task;
use crate::unmodified::gmond::{self, Gatherer, Reporter};
use crate::unmodified::running::{ProgramError, ProgramHost, ProgramPlace, Running};
use crate::unmodified::way::{PathTaken, Way};
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
    /// Numbers of hosts with a `gmond`.
    pub hosts: Vec<u32>,
    /// Number of samples of each case over kernel TCP, and also in the configuration `other`.
    pub repetitions: u32,
    /// Metrics that each host reports, 1 to [`gmond::METRICS_MAX`]. They determine the size of an
    /// answer.
    pub metrics: usize,
    /// Length of a sample, in seconds.
    pub seconds: u32,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// Whether to restrict the gatherer to one CPU and all other hosts to another.
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
    /// Number of samples of each case over kernel TCP, and also in the configuration `other`.
    pub repetitions: u32,
    /// Number of metrics that each host reported. If a document lacks this field, its run had all
    /// metrics of Ganglia's own configuration.
    #[serde(default = "all_metrics")]
    pub metrics: usize,
    /// Bytes of the shortest and of the longest answer of a host, measured after all hosts had
    /// begun to report all metrics.
    #[serde(default)]
    pub answer_bytes: [u64; 2],
    /// Length of a sample, in seconds.
    pub sample_seconds: u32,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// The CPU of the gatherer, and the CPU that all other hosts shared, if the run was restricted
    /// to them.
    pub pinned_to: Option<[usize; 2]>,
    /// The library's counters, added over all `gmond` processes.
    pub server_path: PathTaken,
    /// One entry for each number of hosts and gathering order. The field `at` of an entry is the
    /// number of hosts.
    pub cases: Vec<Case>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GangliaError {
    /// The namespaces could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The files of the programs could not be written.
    #[error("make the folder for the files of the programs: {0}")]
    Files(#[from] io::Error),
}

/// Runs the measurements of `wishes`.
///
/// # Errors
/// Returns [`GangliaError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, GangliaError> {
    let unix_seconds = clock::unix_seconds();
    let most = wishes.hosts.iter().copied().max().unwrap_or(1);
    // The first host is the gatherer.
    let star = Star::create(most + 1, wishes.mtu)?;
    let folder = Folder::create("ganglia")?;
    let pinned_to = if wishes.pinning { cpu::first_two() } else { None };
    let place = |host: usize| ProgramPlace {
        own_program: &wishes.own_program,
        host: ProgramHost::Namespace(&star.hosts()[host]),
        cpu: pinned_to.map(|cpus| cpus[usize::from(host > 0)]),
        protocol_cpu: None,
        folder: folder.path(),
    };
    let ways = [Way::Tcp, wishes.other];
    observer.on_note(&format!("starting gmond on {most} hosts"));
    let (mut farms, mut answer_bytes) = (Vec::new(), [0; 2]);
    for (way, port) in ways.into_iter().zip(PORTS) {
        let mut farm = Farm { addresses: Vec::new(), running: Vec::new(), counters: Vec::new() };
        for host in 1..=most as usize {
            let address = SocketAddr::new(Star::address(host), port);
            let name = format!("gmond{host}-{port}");
            let reporter = Reporter { name: &name, address, metrics: wishes.metrics };
            let (running, counters) = gmond::start(&place(host), way, reporter, &folder)?;
            farm.addresses.push(address);
            farm.running.push(running);
            farm.counters.push(counters);
        }
        let gatherer = Gatherer { place: place(0), way };
        answer_bytes = gatherer.await_answers(&farm.addresses, wishes.metrics, &folder)?;
        farms.push(farm);
    }
    observer.on_start(wishes.hosts.len() as u64 * 2 * u64::from(wishes.repetitions) * 2);
    let mut cases = Vec::new();
    for (group, is_parallel) in [(SEQUENTIAL, false), (PARALLEL, true)] {
        for &hosts in &wishes.hosts {
            let case = Case::new(group, format!("{group}-{hosts}"), f64::from(hosts), wishes.other);
            cases.push(case.measure(wishes.repetitions, observer, |way| {
                let farm = &farms[usize::from(way != Way::Tcp)];
                let count = hosts as usize;
                let task = Task {
                    hosts: farm.addresses[..count].to_vec(),
                    is_parallel,
                    seconds: f64::from(wishes.seconds),
                };
                let gatherer = Gatherer { place: place(0), way };
                gatherer.sample(&task, &farm.running[..count], &folder)
            }));
        }
    }
    let mut server_path = PathTaken::default();
    if let Some(other) = farms.pop() {
        other.running.into_iter().for_each(Running::end);
        for counters in &other.counters {
            server_path.add(&PathTaken::read(counters)?);
        }
    }
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        other: wishes.other,
        repetitions: wishes.repetitions,
        metrics: wishes.metrics,
        answer_bytes,
        sample_seconds: wishes.seconds,
        mtu: wishes.mtu,
        pinned_to,
        server_path,
        cases,
    })
}

/// The `gmond` processes of one configuration.
struct Farm {
    addresses: Vec<SocketAddr>,
    running: Vec<Running>,
    counters: Vec<PathBuf>,
}

const fn all_metrics() -> usize {
    gmond::METRICS_MAX
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-ganglia/1";

/// Group name for gathering from one host after another.
pub const SEQUENTIAL: &str = "sequential";

/// Group name for gathering from all hosts at the same time.
pub const PARALLEL: &str = "parallel";

/// Highest number of hosts. This number is our choice: the paper gives no example, because it has
/// at most three servers.
pub const HOSTS_MAX: u32 = 16;

/// Numbers of hosts to measure.
pub const HOSTS: [u32; 5] = [1, 2, 4, 8, 16];

/// Numbers of hosts in a quick run.
pub const HOSTS_QUICK: [u32; 3] = [1, 4, 16];

/// Server ports: the first for kernel TCP, the second for connections with the library.
const PORTS: [u16; 2] = [8649, 8650];
