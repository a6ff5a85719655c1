//! Takes one sample: starts the processes, waits until they have connected and warmed up, sends all
//! start signals together, and ends the processes.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::cases::{Case, Contender, Test, Wishes};
use super::figures::{self, Sample};
use super::hosts::Hosts;
use super::native::Native;
use super::proof::{Claim, Unproven};
use super::work::{Action, Outcome, Serving, Style, Task};
use crate::cpu::SoftirqThreads;
use crate::process::{ChildProcess, ChildSpec, Line, ProcessError, Role, SUBCOMMAND};
use crate::results::PathKind;
use crate::unmodified::folder::Folder;
use crate::unmodified::way::{PathTaken, Side, Way};

/// Why a sample failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The sample failed or does not count, but other samples may succeed.
    Refused(String),
    /// No sample can succeed.
    Process(ProcessError),
}

impl From<Unproven> for Failed {
    fn from(reason: Unproven) -> Self {
        Self::Refused(reason.to_string())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Refused(format!("keep counters: {error}"))
    }
}

/// Takes samples on existing hosts.
pub(super) struct Bench<'a> {
    wishes: &'a Wishes,
    hosts: &'a Hosts,
    pinned_to: Option<[usize; 2]>,
    /// The processes with the native API. They are started when a sample first needs them.
    native: Option<Native>,
    softirq: SoftirqThreads,
}

impl<'a> Bench<'a> {
    pub(super) fn new(wishes: &'a Wishes, hosts: &'a Hosts, pinned_to: Option<[usize; 2]>) -> Self {
        Self { wishes, hosts, pinned_to, native: None, softirq: SoftirqThreads::find() }
    }

    /// Measures `contender` once.
    pub(super) fn sample(&mut self, case: &Case, contender: Contender) -> Result<Sample, Failed> {
        match contender {
            Contender::Native => self.native_sample(case).map_err(Failed::Process),
            Contender::NativePacket | Contender::NativeXdp => self.raw_sample(case, contender),
            Contender::Tcp | Contender::TcpPoll => {
                // If a program fails without the library, the host is the cause. So this failure
                // ends the whole run.
                self.program_sample(case, contender).map_err(|error| match error {
                    Failed::Refused(message) => {
                        Failed::Process(ProcessError::Failed { role: "run over TCP", message })
                    }
                    Failed::Process(error) => Failed::Process(error),
                })
            }
            Contender::Sockets | Contender::SocketsPoll => {
                // The library is under test, so a failure with the library only fails this sample.
                // The other contenders are still measured.
                self.program_sample(case, contender).map_err(|error| match error {
                    Failed::Process(error) => Failed::Refused(error.to_string()),
                    refused @ Failed::Refused(_) => refused,
                })
            }
        }
    }

    /// Takes a sample of the native API over links that take frames from the interface. The
    /// processes end with the sample, so that the links do not slow down the other contenders.
    fn raw_sample(&self, case: &Case, contender: Contender) -> Result<Sample, Failed> {
        if self.hosts.kind() == PathKind::Loopback {
            let needs = "raw links need root and network namespaces; choose `native` instead";
            return Err(Failed::Refused(needs.to_owned()));
        }
        let (program, seconds) = (&self.wishes.program, self.wishes.sample_seconds);
        let native = Native::start(program, self.hosts, self.pinned_to, contender);
        let sample = native.and_then(|mut native| native.sample(case, seconds));
        sample.map_err(|error| Failed::Refused(error.to_string()))
    }

    fn native_sample(&mut self, case: &Case) -> Result<Sample, ProcessError> {
        if self.native.is_none() {
            let program = &self.wishes.program;
            self.native =
                Some(Native::start(program, self.hosts, self.pinned_to, Contender::Native)?);
        }
        let native = self.native.as_mut().expect("it was just made");
        native.sample(case, self.wishes.sample_seconds)
    }

    fn program_sample(&self, case: &Case, contender: Contender) -> Result<Sample, Failed> {
        let folder = Folder::create("sockets")?;
        let mut pair = self.start(case, contender, &folder)?;
        let before = pair.server_cpu_seconds()?;
        let softirq_before = self.softirq.seconds();
        for client in &mut pair.clients {
            client.send(&GO).map_err(Failed::Process)?;
        }
        let mut outcomes = Vec::new();
        for client in &mut pair.clients {
            match client.receive().map_err(Failed::Process)? {
                Line::Done(outcome) => outcomes.push(outcome),
                line => return Err(Failed::Process(client.unexpected(&line))),
            }
        }
        let softirq_cpu_seconds = self.softirq.seconds() - softirq_before;
        let cpu_seconds = pair.server_cpu_seconds()? - before;
        pair.finish().map_err(Failed::Process)?;
        let mut sample = summed(case.test, &outcomes);
        sample.client_cpu_seconds = Some(sample.cpu_seconds);
        sample.server_cpu_seconds = Some(cpu_seconds);
        sample.cpu_seconds += cpu_seconds;
        sample.softirq_cpu_seconds = softirq_cpu_seconds;
        if contender.is_preloaded() {
            prove(case, &outcomes, &folder, &mut sample)?;
        }
        Ok(sample)
    }

    /// Starts the server and then the clients. Waits until the clients have warmed up.
    fn start(&self, case: &Case, contender: Contender, folder: &Folder) -> Result<Pair, Failed> {
        let way = match contender {
            Contender::Sockets => Way::Edge,
            Contender::SocketsPoll => Way::EdgePoll,
            Contender::Tcp
            | Contender::TcpPoll
            | Contender::Native
            | Contender::NativePacket
            | Contender::NativeXdp => Way::Tcp,
        };
        let style = if contender == Contender::TcpPoll { Style::Polling } else { Style::Blocking };
        let is_alone = !case.test.has_clients();
        let [client_cpu, server_cpu] =
            self.pinned_to.filter(|_| is_alone).map_or([None; 2], |cpus| cpus.map(Some));
        let serving = Serving {
            address: SocketAddr::new(self.listening_address(), 0),
            style: if case.test == Test::HotSpot { Style::Events } else { style },
        };
        let started = |role, side, namespace: Option<&str>, cpu| {
            self.start_one(role, way, side, namespace, cpu, folder)
        };
        let role = Role::SocketsServer(serving);
        let mut server = started(role, Side::Server, self.hosts.server(), server_cpu)?;
        let port = match server.receive().map_err(Failed::Process)? {
            Line::Listening(address) => address.port(),
            line => return Err(Failed::Process(server.unexpected(&line))),
        };
        let is_one_process = case.test == Test::MultiStream;
        let task = Task {
            server: SocketAddr::new(self.hosts.link().server, port),
            style,
            action: action(case.test),
            message_bytes: case.message_bytes,
            streams: if is_one_process { case.clients } else { 1 },
            seconds: self.wishes.sample_seconds,
            iterations: self.wishes.iterations,
        };
        let mut pair = Pair { clients: Vec::new(), server };
        for client in 0..if is_one_process { 1 } else { case.clients } {
            let role = Role::SocketsClient(task.clone());
            let namespace = self.hosts.client(client);
            pair.clients.push(started(role, Side::Client, namespace, client_cpu)?);
        }
        for client in &mut pair.clients {
            match client.receive().map_err(Failed::Process)? {
                Line::Warm => {}
                line => return Err(Failed::Process(client.unexpected(&line))),
            }
        }
        Ok(pair)
    }

    /// Starts one process in its namespace. A process with the library runs under
    /// `ethernot run --sockets`, as a user would start it.
    fn start_one(
        &self,
        role: Role,
        way: Way,
        side: Side,
        namespace: Option<&str>,
        cpu: Option<usize>,
        folder: &Folder,
    ) -> Result<ChildProcess, Failed> {
        let program = &self.wishes.program;
        let parent = std::process::id();
        let inner = ChildSpec { role, namespace: None, cpu: None, parent, links: Vec::new() };
        let inner = serde_json::to_string(&inner).map_err(io::Error::from)?;
        let counters = folder.path().join(folder_of(side));
        // Do not create missing parent folders. A parent folder is missing only if the user has
        // pressed Ctrl-C, which removes the folder.
        match fs::create_dir(&counters) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let own = [program.display().to_string(), SUBCOMMAND.to_string(), inner];
        let words = way.words(side, program, &counters, own.to_vec());
        let namespace = namespace.map(str::to_string);
        let spec = ChildSpec { role: Role::Tool(words), namespace, cpu, parent, links: Vec::new() };
        ChildProcess::start(program, &spec).map_err(Failed::Process)
    }

    fn listening_address(&self) -> IpAddr {
        match self.hosts.kind() {
            PathKind::Loopback => IpAddr::V4(Ipv4Addr::LOCALHOST),
            PathKind::Namespaces | PathKind::Peer => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }
}

/// The processes of a sample. Clients are dropped before the server.
struct Pair {
    clients: Vec<ChildProcess>,
    server: ChildProcess,
}

impl Pair {
    fn server_cpu_seconds(&mut self) -> Result<f64, Failed> {
        self.server.send(&GO).map_err(Failed::Process)?;
        match self.server.receive().map_err(Failed::Process)? {
            Line::CpuSeconds(seconds) => Ok(seconds),
            line => Err(Failed::Process(self.server.unexpected(&line))),
        }
    }

    fn finish(self) -> Result<(), ProcessError> {
        for client in self.clients {
            client.finish(END_LIMIT)?;
        }
        self.server.finish(END_LIMIT)
    }
}

fn action(test: Test) -> Action {
    match test {
        Test::Latency => Action::PingPong,
        Test::Throughput => Action::Send,
        Test::MultiStream | Test::FanIn => Action::SendUntil,
        Test::FanOut => Action::ReceiveUntil,
        Test::HotSpot => Action::PingPongUntil,
        Test::Connection => Action::Connect,
    }
}

/// Returns the results of all clients together.
fn summed(test: Test, outcomes: &[Outcome]) -> Sample {
    let streams = || outcomes.iter().flat_map(|outcome| &outcome.streams);
    let count = streams().count().max(1) as f64;
    let mut sample = Sample {
        cpu_seconds: outcomes.iter().map(|outcome| outcome.cpu_seconds).sum(),
        ..Sample::default()
    };
    for stream in streams() {
        sample.operations += stream.operations;
        sample.bytes += stream.bytes;
        sample.seconds += stream.seconds / count;
        sample.bytes_per_second += stream.bytes as f64 / stream.seconds;
        sample.operations_per_second += stream.operations as f64 / stream.seconds;
    }
    let mean = |value: &dyn Fn(&super::work::StreamOutcome) -> Option<f64>| -> Option<f64> {
        streams().map(value).sum::<Option<f64>>().map(|sum| sum / count)
    };
    match test {
        Test::Latency | Test::HotSpot => {
            sample.latency_us =
                mean(&|stream| Some(stream.seconds * 1e6 / stream.operations.max(1) as f64 / 2.0));
            let worst = streams().filter_map(|stream| Some(stream.latency_ns?.p99 / 1e3));
            sample.latency_p99_us = worst.reduce(f64::max);
        }
        Test::Connection => {
            sample.connect_us = mean(&|stream| Some(stream.latency_ns?.mean / 1e3));
            sample.first_answer_us = mean(&|stream| Some(stream.first_answer_ns?.mean / 1e3));
        }
        Test::Throughput | Test::MultiStream | Test::FanIn | Test::FanOut => {}
    }
    if test.has_clients() {
        let rates: Vec<f64> =
            streams().map(|stream| stream.operations as f64 / stream.seconds).collect();
        sample.fairness = figures::fairness(&rates);
    }
    sample
}

/// Checks the library's counters on both sides. They must prove that the connections moved, and
/// that the recorded bytes went over the edge.
fn prove(
    case: &Case,
    outcomes: &[Outcome],
    folder: &Folder,
    sample: &mut Sample,
) -> Result<(), Failed> {
    let streams: usize = outcomes.iter().map(|outcome| outcome.streams.len()).sum();
    let is_connecting = case.test == Test::Connection;
    // In the connection test, the program may close some connections before they have moved. At
    // least nine tenths of the connections must have moved.
    let connections = if is_connecting { sample.operations * 9 / 10 } else { streams as u64 };
    let bytes = if is_connecting { 0 } else { sample.bytes };
    for (side, end) in [(Side::Client, "client"), (Side::Server, "server")] {
        let counted = PathTaken::read(&folder.path().join(folder_of(side)))?;
        let processes = if side == Side::Client { outcomes.len() as u64 } else { 1 };
        Claim { side: end, processes, connections, bytes }.check(&counted)?;
        if side == Side::Client && counted.moving_ns > 0 {
            sample.upgrade_us = Some(counted.moving_ns as f64 / counted.moved.max(1) as f64 / 1e3);
        }
        sample.moved += counted.moved;
        sample.resets += counted.resets;
    }
    Ok(())
}

const fn folder_of(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

/// Any line is a client's start signal, and makes a server report its CPU time.
const GO: &str = "go";

/// Time limit for the end of a process. Its connections drain during this time.
const END_LIMIT: Duration = Duration::from_secs(5);
