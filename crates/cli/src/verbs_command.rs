//! `ethernot bench verbs`: repeats the measurements of a paper on an iWARP adapter, with a verbs
//! device and with kernel TCP.

use std::net::{IpAddr, ToSocketAddrs};

use bench::unmodified::remote::Remote;
use bench::verbs::contender::Device;
use bench::verbs::programs::Programs;
use bench::verbs::{self, Operation, Peer, Test, Wishes};
use clap::{Args, ValueEnum};
use testbed::cleanup;

use crate::progress::Progress;
use crate::quantities::{parse_seconds, parse_size};
use crate::shaped_command::{self, OutputArguments};
use crate::{Failure, own_program};

/// Measure a verbs device, alternately with kernel TCP: speed, remaining CPU time, registration,
/// MPI.
///
/// Runs programs alternately under `ethernot run` and over TCP, between two network namespaces with
/// one CPU each. The tests are: `bandwidth`, with windows of messages in one direction and in both
/// directions; `latency`, half a round trip; `availability`, the CPU time that remains for a
/// program while it exchanges messages over verbs, TCP and MPI; `registration`, the cost of memory
/// regions by size; `mpi`, bandwidth and latency of MPI over the device and over MPI's own TCP
/// transport. Excludes the highest and the lowest sample. The measured programs do not depend on
/// this command. Needs root, except with `--peer`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench verbs --quick\n  \
    ethernot bench verbs --json verbs.json --html verbs.html\n  \
    ethernot bench verbs --tests latency --sizes 8 --operations write,send,read\n  \
    ethernot bench verbs --tests availability --sizes 256K --html curves.html\n  \
    ethernot bench verbs --tests registration,mpi --quick\n  \
    ethernot bench verbs --device edge0,iwarp0 --tests bandwidth,latency --quick\n  \
    ethernot bench verbs --protocol-cpu --tests availability --sizes 256K\n  \
    ethernot bench verbs --peer user@node2 --device edge0,system --tests latency")]
pub(crate) struct Arguments {
    /// Measure fewer points and samples: minutes rather than hours
    #[arg(long)]
    quick: bool,
    /// Devices: edge0, iwarp0, or system for the devices of this host. Registration is measured on
    /// the first one, MPI on edge0
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "edge0")]
    device: Vec<String>,
    /// Tests to run: bandwidth, latency, availability, registration, mpi [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Operations of the device: write, send, read
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "write", value_parser = parse_operation)]
    operations: Vec<Operation>,
    /// Bytes of messages and of memory regions, such as 8,64K,1M [default: those of each test]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_message)]
    sizes: Vec<u64>,
    /// Number of messages in a window [default: 1,16,64,256, with --quick 1,16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MAX)))]
    windows: Vec<u32>,
    /// Samples of each point; the highest and the lowest are excluded
    /// [default: 10, with --quick 5; for availability and registration 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Length of a sample [default: 0.2, with --quick 0.05; for availability 1, with --quick 0.25]
    #[arg(long, value_name = "SECONDS", value_parser = parse_sample_seconds)]
    seconds: Option<f64>,
    /// Measure between this host and another one, which has the same version of ethernot at the same
    /// path. Needs no root. MPI is not measured
    #[arg(long, value_name = "[USER@]HOST")]
    peer: Option<String>,
    /// Address of the other host that is measured [default: that of its name]
    #[arg(long, value_name = "ADDRESS", requires = "peer")]
    peer_address: Option<IpAddr>,
    /// Program that starts commands on the other host, with its options
    #[arg(
        long,
        value_name = "PROGRAM",
        requires = "peer",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    )]
    ssh: String,
    /// MTU of the link between namespaces, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u32,
    /// Process packets on the CPU of the host that receives them (`rps_cpus`): on or off
    #[arg(long, value_name = "on|off", default_value = "on")]
    steering: SteeringArgument,
    /// Do not restrict each host to one CPU
    #[arg(long)]
    no_pinning: bool,
    /// Give each host a second CPU, for the protocol: for the progress threads of its device and for
    /// received packets. Needs four CPUs. MPI is not measured
    #[arg(long, conflicts_with_all = ["no_pinning", "peer"])]
    protocol_cpu: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SteeringArgument {
    On,
    Off,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.peer.is_none() {
        shaped_command::begin("bench verbs")?;
    } else {
        cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}"))?;
    }
    arguments.output.check()?;
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let outcome = verbs::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::verbs_page(&found)?),
        |columns| report::verbs_table(&found, columns),
        150,
    )
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    let own_program = own_program()?;
    let quick = arguments.quick;
    Ok(Wishes {
        programs: Programs::find(&own_program)?,
        own_program,
        devices: arguments.device.iter().map(|name| Device::named(name)).collect(),
        tests: if arguments.tests.is_empty() {
            Test::ALL.to_vec()
        } else {
            arguments.tests.clone()
        },
        operations: arguments.operations.clone(),
        sizes: arguments.sizes.clone(),
        windows: arguments.windows.clone(),
        runs: arguments.runs.unwrap_or(if quick { 5 } else { 10 }),
        seconds: arguments.seconds.unwrap_or(if quick { 0.05 } else { 0.2 }),
        curve_runs: arguments.runs.unwrap_or(if quick { 1 } else { 3 }),
        curve_seconds: arguments.seconds.unwrap_or(if quick { 0.25 } else { 1.0 }),
        peer: peer(arguments)?,
        mtu: arguments.mtu,
        steering: arguments.steering == SteeringArgument::On,
        pinning: !arguments.no_pinning,
        has_protocol_cpu: arguments.protocol_cpu,
        is_quick: quick,
    })
}

/// Returns the other host, if the options name one.
fn peer(arguments: &Arguments) -> Result<Option<Peer>, Failure> {
    let Some(host) = &arguments.peer else { return Ok(None) };
    let of_name = || {
        let name = host.rsplit_once('@').map_or(host.as_str(), |(_, name)| name);
        let remedy = "name one with --peer-address";
        let found = (name, 0).to_socket_addrs();
        let mut found =
            found.map_err(|error| format!("find an address of {name}: {error}; {remedy}"))?;
        let first = found.next().ok_or_else(|| format!("{name} has no address; {remedy}"))?;
        Ok::<_, Failure>(first.ip())
    };
    let address = arguments.peer_address.map_or_else(of_name, Ok)?;
    let shell: Vec<String> = arguments.ssh.split_whitespace().map(str::to_string).collect();
    if shell.is_empty() {
        return Err("--ssh is empty; name a program such as ssh".into());
    }
    Ok(Some(Peer { remote: Remote::new(shell, host.clone()), address }))
}

fn parse_test(text: &str) -> Result<Test, String> {
    let known = || Test::ALL.map(Test::name).join(", ");
    let found = Test::ALL.into_iter().find(|test| test.name() == text);
    found.ok_or_else(|| format!("the tests are: {}", known()))
}

fn parse_operation(text: &str) -> Result<Operation, String> {
    let known = || Operation::ALL.map(Operation::name).join(", ");
    let found = Operation::ALL.into_iter().find(|operation| operation.name() == text);
    found.ok_or_else(|| format!("the operations are: {}", known()))
}

fn parse_message(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| {
        if bytes <= MESSAGE_BYTES_MAX {
            Ok(bytes)
        } else {
            Err("invalid message size: a message has at most 1024 M".to_string())
        }
    })
}

fn parse_sample_seconds(text: &str) -> Result<f64, String> {
    parse_seconds(text).and_then(|seconds| {
        if (SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
            Ok(seconds)
        } else {
            Err(format!(
                "invalid length of a sample: it must be from {SECONDS_MIN} to {SECONDS_MAX} seconds"
            ))
        }
    })
}

/// Largest message of both programs, in bytes.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
const WINDOW_MAX: u32 = 65_536;
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 600.0;
