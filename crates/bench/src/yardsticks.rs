//! The yardsticks: bare exchanges of frames and third-party programs, with which Ethernot is
//! compared.

pub mod bare;
pub mod bare_stream;
pub mod memcpy;
mod sockperf;
mod tool;
mod ucx;
pub mod udp_segments;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::multiedge::LinkKind;
use crate::plan::Options;
use crate::results::Measurement;
use crate::run::{self, Observer, RunError};
use crate::statistics::Summary;
use crate::transport::{Test, counter};
use crate::transports::EDGE;
use testbed::clock;
use testbed::pair::NamespacePair;

pub use tool::{ToolError, become_tool};

/// A third-party program that measures a ping-pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum External {
    /// `ucx_perftest -t ucp_put_lat` over TCP.
    UcxTcp,
    /// `sockperf ping-pong --tcp`.
    SockperfTcp,
}

/// All third-party programs.
pub const EXTERNAL: [External; 2] = [External::UcxTcp, External::SockperfTcp];

/// Message size of the edge protocol in the comparison with third-party programs, in bytes.
/// `sockperf` has messages of 14 bytes instead, which is its smallest size.
pub const EXTERNAL_BYTES: u64 = 8;

/// The hosts on which client and server of a third-party program run.
#[derive(Debug, Clone, Copy)]
pub struct Hosts<'a> {
    /// The executable of this program. It is started in a namespace, and then executes the
    /// third-party program.
    pub program: &'a Path,
    /// The client's namespace.
    pub client: &'a str,
    /// The server's namespace.
    pub server: &'a str,
    /// The server's address.
    pub address: IpAddr,
    /// The CPU of the client and the CPU of the server, if each is restricted to one.
    pub pinned_to: Option<[usize; 2]>,
}

impl External {
    /// Returns the contender's name in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UcxTcp => "ucx-tcp",
            Self::SockperfTcp => "sockperf-tcp",
        }
    }

    /// Measures once. Returns half a round trip, in nanoseconds.
    ///
    /// # Errors
    /// Returns [`ToolError`]; each variant names one cause.
    pub fn ping_pong(self, hosts: &Hosts<'_>) -> Result<f64, ToolError> {
        match self {
            Self::UcxTcp => ucx::ping_pong(hosts),
            Self::SockperfTcp => sockperf::ping_pong(hosts),
        }
    }
}

/// Results of two streams over one UDP link: remote writes, and the same system calls without a
/// protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Payload rate of the edge protocol.
    pub edge_bits_per_second: Summary,
    /// Payload rate of [`udp_segments`].
    pub bare_bits_per_second: Summary,
    /// Ratio of the edge rate to the bare rate, computed for each repetition.
    pub ratio: Summary,
    /// Number of lost datagrams of the bare stream, which does not retransmit them.
    pub bare_lost: f64,
}

/// The latency of a ping-pong over the edge, and of the contenders with which it is compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The kind of link that the edge protocol used for the ping-pong.
    pub kind: LinkKind,
    /// Half a round trip of each contender, in nanoseconds.
    pub latency_ns: BTreeMap<String, Summary>,
    /// Median latency of the edge protocol divided by the median latency of each other contender.
    pub ratios: BTreeMap<String, f64>,
    /// Streams over UDP. They are measured whatever `kind` is.
    #[serde(default)]
    pub streams: Vec<Stream>,
    /// For each contender without results, the reason why it could not run.
    pub cannot_run: BTreeMap<String, String>,
}

/// Measures an 8-byte ping-pong over one link of `kind`: the edge protocol, bare frames over the
/// same kernel interface, and third-party programs. Each third-party program has its own veth pair
/// with the same settings. Then measures streams over UDP.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn measure(
    kind: LinkKind,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Report, RunError> {
    let unix_seconds = clock::unix_seconds();
    let results = run::run(options, observer)?;
    let mut latency_ns: BTreeMap<String, Summary> = BTreeMap::new();
    let latency = |measured: &Measurement| Some((measured.transport.clone(), measured.latency_ns?));
    latency_ns.extend(results.results.iter().filter_map(latency));
    let mut cannot_run = BTreeMap::new();
    let pair = NamespacePair::create(1, options.mtu)?;
    let address = pair.links().first().map(|link| link.server);
    for tool in EXTERNAL {
        observer.on_sample(tool.name());
        let hosts = Hosts {
            program: &options.program,
            client: pair.client(),
            server: pair.server(),
            address: address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
            pinned_to: options.pinning.then(cpu::first_two).flatten(),
        };
        let values: Result<Vec<f64>, _> =
            (0..options.repetitions).map(|_| tool.ping_pong(&hosts)).collect();
        match values.map(Summary::trimmed) {
            Ok(Some(summary)) => {
                latency_ns.insert(tool.name().to_string(), summary);
            }
            Ok(None) => {}
            Err(error) => {
                cannot_run.insert(tool.name().to_string(), error.to_string());
            }
        }
    }
    let own = latency_ns.get(EDGE).map(|summary| summary.median);
    let others = latency_ns.iter().filter(|(name, _)| *name != EDGE);
    let ratios = others.filter_map(|(name, other)| Some((name.clone(), own? / other.median)));
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        kind,
        ratios: ratios.collect(),
        latency_ns,
        streams: streams(options, observer)?,
        cannot_run,
    })
}

/// Measures streams over one UDP link. The two contenders alternate.
fn streams(options: &Options, observer: &mut dyn Observer) -> Result<Vec<Stream>, RunError> {
    let options = Options {
        link_names: Vec::new(),
        server_link_names: Vec::new(),
        tests: vec![Test::OneWay],
        transports: vec![EDGE.to_string(), udp_segments::NAME.to_string()],
        sizes: STREAM_BYTES.to_vec(),
        in_flight: STREAM_IN_FLIGHT,
        interleaved: true,
        ..options.clone()
    };
    let results = run::run(&options, observer)?;
    let stream = |message_bytes| {
        let of = |name| {
            let is_it = |m: &&Measurement| m.transport == name && m.message_bytes == message_bytes;
            results.results.iter().find(is_it)
        };
        let (edge, bare) = (of(EDGE)?, of(udp_segments::NAME)?);
        let bits = |measured: &Measurement| measured.bytes_per_second.scaled(8.0);
        Some(Stream {
            message_bytes,
            edge_bits_per_second: bits(edge),
            bare_bits_per_second: bits(bare),
            ratio: edge.ratio_to(udp_segments::NAME)?,
            bare_lost: bare.counters.get(counter::LOST_DATAGRAMS).copied().unwrap_or(0.0),
        })
    };
    Ok(STREAM_BYTES.into_iter().filter_map(stream).collect())
}

/// Message sizes of the streams, in bytes. A message of the first size takes about one and a half
/// system calls. A message of the second size takes about sixteen.
const STREAM_BYTES: [u64; 2] = [64 << 10, 1 << 20];

/// Operations in flight, as in the streams of `ethernot bench`.
const STREAM_IN_FLIGHT: u32 = 64;

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-yardsticks/1";
