//! The measurements of an iWARP adapter, on a verbs device and beside it on kernel TCP: the programs of `tools/perf` run in
//! turn between two hosts, each with a CPU of its own.

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
mod processors;
pub mod programs;
mod ranks;
pub mod registration;
mod registration_document;
mod traffic;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::machine::Machine;
use crate::namespaces::NamespaceError;
use crate::run::Observer;

use contender::Device;
use curves::Availability;
use figures::Point;
use hosts::Hosts;
use pass::{Measuring, Pass};
use programs::Programs;
use registration::Registration;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// This program.
    pub own_program: PathBuf,
    /// Where the programs are.
    pub programs: Programs,
    /// Devices, in the order of the results.
    pub devices: Vec<Device>,
    /// Tests, in the order of the results.
    pub tests: Vec<Test>,
    /// Operations of bandwidth and latency.
    pub operations: Vec<Operation>,
    /// Bytes of messages; empty: those of each test.
    pub sizes: Vec<u64>,
    /// Messages of a window; empty: those of the test.
    pub windows: Vec<u32>,
    /// Samples of each point; the highest and the lowest are left out.
    pub runs: u32,
    /// Seconds of a sample.
    pub seconds: f64,
    /// Runs of each curve of availability and of registration.
    pub curve_runs: u32,
    /// Seconds of a point of availability.
    pub curve_seconds: f64,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// Whether interfaces hand what arrives to the CPU of their own host.
    pub steering: bool,
    /// Whether each host has one CPU.
    pub pinning: bool,
    /// Fewer points.
    pub is_quick: bool,
}

/// What can be measured. Each test has a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Windows of messages, one way and both ways at once.
    Bandwidth,
    /// Half of a round trip.
    Latency,
    /// How much of its CPU a program keeps while messages flow.
    Availability,
    /// What it costs to register memory.
    Registration,
    /// Bandwidth and latency of MPI.
    Mpi,
}

impl Test {
    /// All of them.
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

    /// Whether it needs programs of MPI.
    const fn runs_mpi(self) -> bool {
        matches!(self, Self::Availability | Self::Mpi)
    }

    /// What is measured at sizes and windows. Availability and registration are measured otherwise.
    fn passes(self, wishes: &Wishes) -> Vec<Pass> {
        match self {
            Self::Bandwidth => bandwidth::passes(wishes),
            Self::Latency => latency::passes(wishes),
            Self::Mpi => mpi_pass::passes(wishes),
            Self::Availability | Self::Registration => Vec::new(),
        }
    }
}

/// How messages are moved over a device. TCP has one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA writes, as the paper has it.
    Write,
    /// Sends into receives.
    Send,
    /// RDMA reads.
    Read,
}

impl Operation {
    /// All of them.
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

/// The document that a run comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The host.
    pub machine: Machine,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// CPUs of client and server, if each has one.
    pub pinned_to: Option<[usize; 2]>,
    /// Whether interfaces hand what arrives to the CPU of their own host.
    pub steering: Steering,
    /// Samples of each point.
    pub runs: u32,
    /// Seconds of a sample.
    pub sample_seconds: f64,
    /// The devices that were asked for.
    pub devices: Vec<DeviceRow>,
    /// What was measured at sizes and windows.
    pub points: Vec<Point>,
    /// Curves, if they were asked for.
    pub availability: Option<Availability>,
    /// Costs, if they were asked for.
    pub registration: Option<Registration>,
}

/// Whether packets are processed on the CPU of the host that receives them (`rps_cpus`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// They are.
    On,
    /// The kernel processes them on the CPU of the sending host.
    Off,
    /// They should be, but the setting cannot be written, for this reason.
    NotWritable(String),
}

/// A device that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Its name.
    pub name: String,
    /// What it says it is, if it ran.
    pub transport: Option<String>,
    /// Why it could not be measured.
    pub cannot_run: Option<String>,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The namespaces.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Files for the programs.
    #[error("make files for the programs: {0}")]
    Files(#[from] io::Error),
}

/// Measures what `wishes` ask for. A device that cannot be measured is a row with the reason.
///
/// # Errors
/// [`VerbsError`], one variant for each cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, VerbsError> {
    let unix_seconds = clock::unix_seconds();
    let mut devices: Vec<DeviceRow> = wishes.devices.iter().map(Device::row).collect();
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
        mtu: wishes.mtu,
        pinned_to: hosts.cpus(),
        steering: hosts.steering().clone(),
        runs: wishes.runs,
        sample_seconds: wishes.seconds,
        devices,
        points,
        availability,
        registration,
    })
}

/// Name and version of the document's shape.
pub const FORMAT: &str = "ethernot-verbs/1";
