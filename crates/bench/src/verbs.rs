//! Measures a verbs device: the programs of `tools/perf` run between two hosts, alternately on the
//! device and over kernel TCP. The hosts are namespaces, each with its own CPU, or this host and a
//! peer.

mod availability;
mod bandwidth;
mod comb_document;
pub mod contender;
pub mod curves;
pub mod document;
mod dry_run;
pub mod figures;
mod hosts;
mod latency;
pub mod mpi;
mod mpi_pass;
mod pass;
mod placement;
mod processors;
pub mod programs;
mod ranks;
pub mod registration;
mod registration_document;
mod traffic;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::run::Observer;
use crate::unmodified::remote::Remote;
use testbed::clock;
use testbed::namespace::NamespaceError;

use contender::{Contender, Device, Manner, Provided};
use curves::Availability;
use figures::Point;
use hosts::Hosts;
use pass::{Measuring, Pass};
use programs::Programs;
use registration::Registration;

/// The user's choices for this benchmark.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The executable of this program.
    pub own_program: PathBuf,
    /// The paths of the measuring programs.
    pub programs: Programs,
    /// Devices to measure, in the order of the results.
    pub devices: Vec<Device>,
    /// Tests to run, in the order of the results.
    pub tests: Vec<Test>,
    /// Operations in tests of bandwidth and latency.
    pub operations: Vec<Operation>,
    /// Message sizes in bytes. If empty, each test uses its own sizes.
    pub sizes: Vec<u64>,
    /// Numbers of messages in a window. If empty, each test uses its own numbers.
    pub windows: Vec<u32>,
    /// Number of samples of each point. The summaries exclude the highest and the lowest sample.
    pub runs: u32,
    /// Length of a sample, in seconds.
    pub seconds: f64,
    /// Repetitions of each curve of availability and of registration.
    pub curve_runs: u32,
    /// Length of the measurement of one point of a curve of availability, in seconds.
    pub curve_seconds: f64,
    /// The other host; `None` measures between two namespaces of this host.
    pub peer: Option<Peer>,
    /// MTU of the link between namespaces, in bytes.
    pub mtu: u32,
    /// Whether the kernel should process a host's received packets on the CPU of that host.
    pub steering: bool,
    /// Whether to restrict each host to its own CPUs.
    pub pinning: bool,
    /// Whether each host has a second CPU, for the protocol: for the device's progress threads and
    /// for received packets. Needs four CPUs, and `pinning`.
    pub has_protocol_cpu: bool,
    /// Whether to measure fewer points.
    pub is_quick: bool,
}

/// Another host, which has this program at the same path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// How to start programs there.
    pub remote: Remote,
    /// The address to measure to.
    pub address: IpAddr,
}

impl Wishes {
    /// Returns the named devices that can be measured. If there are none, returns `edge0`, whose
    /// results then say that the options do not name it.
    fn provided(&self) -> Vec<Provided> {
        let provided = self.devices.iter().filter_map(|device| match device {
            Device::Provided(device) => Some(*device),
            Device::System => self.peer.as_ref().map(|_| Provided::System),
            Device::Unknown(_) => None,
        });
        let provided: Vec<_> = provided.collect();
        if provided.is_empty() { vec![Provided::Edge] } else { provided }
    }

    /// Returns a contender for each of the devices.
    fn on_devices(&self, operation: Operation, manner: Manner) -> Vec<Contender> {
        let devices = self.provided().into_iter();
        devices.map(|device| Contender::Verbs(device, operation, manner)).collect()
    }
}

/// A test. Each test has its own module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Measures the bandwidth of windows of messages, in one direction and in both directions at
    /// the same time.
    Bandwidth,
    /// Measures half a round trip.
    Latency,
    /// Measures the fraction of its CPU that a program keeps for its own work while messages flow.
    Availability,
    /// Measures the cost of registering memory.
    Registration,
    /// Measures bandwidth and latency of MPI.
    Mpi,
}

impl Test {
    /// All tests.
    pub const ALL: [Self; 5] =
        [Self::Bandwidth, Self::Latency, Self::Availability, Self::Registration, Self::Mpi];

    /// Returns the name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
            Self::Availability => "availability",
            Self::Registration => "registration",
            Self::Mpi => "mpi",
        }
    }

    /// Returns whether the test needs programs of MPI.
    const fn runs_mpi(self) -> bool {
        matches!(self, Self::Availability | Self::Mpi)
    }

    /// Returns the passes of the test. In a pass, several contenders are measured alternately.
    /// Availability and registration have no passes, because their own modules measure them.
    fn passes(self, wishes: &Wishes) -> Vec<Pass> {
        match self {
            Self::Bandwidth => bandwidth::passes(wishes),
            Self::Latency => latency::passes(wishes),
            Self::Mpi => mpi_pass::passes(wishes),
            Self::Availability | Self::Registration => Vec::new(),
        }
    }
}

/// How a device moves messages. This choice exists only for devices, because TCP always sends
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA writes, as in the paper.
    Write,
    /// Sends, which consume posted receives.
    Send,
    /// RDMA reads.
    Read,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Write, Self::Send, Self::Read];

    /// Returns the name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
        }
    }
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
    /// This machine. It ran the client, and the server as well if both hosts were namespaces.
    pub machine: Machine,
    /// The other host, if this was not a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// MTU of the link, in bytes, if both hosts were namespaces.
    pub mtu: Option<u32>,
    /// The CPU of the client and the CPU of the server, if each was restricted to one.
    pub pinned_to: Option<[usize; 2]>,
    /// The CPU for the protocol of the client and that of the server, if it is not the CPU of the
    /// programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_on: Option<[usize; 2]>,
    /// Whether the kernel processed a host's received packets on the CPU of that host.
    pub steering: Steering,
    /// Samples of each point.
    pub runs: u32,
    /// Length of a sample, in seconds.
    pub sample_seconds: f64,
    /// The devices that the user named.
    pub devices: Vec<DeviceRow>,
    /// The results at each size and window.
    pub points: Vec<Point>,
    /// Results of the test of availability, if it was run.
    pub availability: Option<Availability>,
    /// Results of the test of registration, if it was run.
    pub registration: Option<Registration>,
}

/// Whether the kernel processes packets on the CPU of the host that receives them (`rps_cpus`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// The kernel processes packets on the CPU of the receiving host.
    On,
    /// The kernel processes packets on the CPU of the sending host.
    Off,
    /// The setting could not be written. The value is the reason.
    NotWritable(String),
}

/// A device that the user named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Name of the device.
    pub name: String,
    /// The transport that the device reports, if the device was measured.
    pub transport: Option<String>,
    /// The reason why the device could not be measured.
    pub cannot_run: Option<String>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The namespaces could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The other host cannot be measured.
    #[error(
        "the host {host} is not ready: {reason}; it needs the same version of ethernot as {program}, and a shell that \
         asks for no password"
    )]
    Peer {
        /// The host.
        host: String,
        /// Path of the program, on both hosts.
        program: String,
        /// What is missing.
        reason: String,
    },
    /// The hosts need more CPUs than this process may use.
    #[error(
        "a CPU for the protocol of each host cannot be measured here: two hosts need {needed} CPUs, and this process may \
         use {allowed}; leave out --protocol-cpu, or measure on a machine with more CPUs"
    )]
    TooFewCpus {
        /// Number of CPUs that the hosts need.
        needed: usize,
        /// Number of CPUs that this process may use.
        allowed: usize,
    },
    /// The files for the programs could not be written.
    #[error("make the folder for the files of the programs: {0}")]
    Files(#[from] io::Error),
}

/// Runs the measurements of `wishes`. If a device cannot be measured, its row contains the reason.
///
/// # Errors
/// Returns [`VerbsError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, VerbsError> {
    let unix_seconds = clock::unix_seconds();
    let mut devices: Vec<DeviceRow> =
        wishes.devices.iter().map(|device| device.row(wishes.peer.is_some())).collect();
    let hosts = Hosts::create(wishes, observer)?;
    let passes: Vec<Pass> = wishes.tests.iter().flat_map(|test| test.passes(wishes)).collect();
    let samples: usize = passes.iter().map(|pass| pass.contenders.len()).sum();
    let mut samples = samples as u64 * u64::from(wishes.runs);
    let [has_availability, has_registration] =
        [Test::Availability, Test::Registration].map(|test| wishes.tests.contains(&test));
    if has_availability {
        samples += availability::samples(wishes);
    }
    if has_registration {
        samples += registration::samples(wishes);
    }
    observer.on_start(samples);
    let mut points = Vec::new();
    for pass in &passes {
        points.extend(Measuring { wishes, hosts: &hosts, pass }.run(observer, &mut devices));
    }
    let availability =
        has_availability.then(|| availability::measure(wishes, &hosts, &devices, observer));
    let registration =
        has_registration.then(|| registration::measure(wishes, &hosts, &devices, observer));
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        peer: wishes.peer.as_ref().map(|peer| peer.remote.host().to_string()),
        mtu: wishes.peer.is_none().then_some(wishes.mtu),
        pinned_to: hosts.program_cpus(),
        protocol_on: hosts.protocol_cpus().filter(|_| wishes.has_protocol_cpu),
        steering: hosts.steering().clone(),
        runs: wishes.runs,
        sample_seconds: wishes.seconds,
        devices,
        points,
        availability,
        registration,
    })
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-verbs/1";
