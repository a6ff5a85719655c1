//! The client process: takes samples against one server.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::control::{Channel, ControlError, Reply, Request, VERSION, unexpected};
use crate::cpu::{self, SoftirqThreads};
use crate::machine::Machine;
use crate::results::Sample;
use crate::transport::{ClientSide, Latencies, Phase, Setup, Test, TransportError};
use crate::transports;
use testbed::clock::Stopwatch;

/// The parameters of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// Name of the transport.
    pub transport: String,
    /// The parameters that both sides must know.
    pub setup: Setup,
    /// Intended length of the recorded phase, in seconds.
    pub seconds: f64,
    /// Whether [`Client::sample`] calls `on_start` when the recorded phase begins.
    #[serde(default)]
    pub announced: bool,
}

/// Why a sample failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The control connection to the server failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The transport failed at the client.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// A client with a control connection to a server.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    server: Machine,
    server_transports: Vec<String>,
    /// Whether the server runs on the client's host. If so, both processes use the same softirq
    /// threads, which are counted only once.
    shares_host: bool,
    softirq: SoftirqThreads,
    latencies: Latencies,
    /// Operations per second in earlier samples, by transport, test, message size and number of
    /// links.
    rates: HashMap<(String, Test, u64, usize), f64>,
}

impl Client {
    /// Connects to the server at `address`. `shares_host` says whether the server runs on this
    /// host.
    ///
    /// # Errors
    /// Returns [`ClientError`]; each variant names one cause.
    pub fn connect(address: SocketAddr, shares_host: bool) -> Result<Self, ClientError> {
        let mut channel = Channel::connect(address)?;
        let reply = channel.ask(&Request::Hello { version: VERSION })?;
        let Reply::Hello { version, machine, transports } = reply else {
            return Err(unexpected("a greeting", &reply).into());
        };
        if version != VERSION {
            return Err(ControlError::Version { theirs: version }.into());
        }
        Ok(Self {
            channel,
            server: machine,
            server_transports: transports,
            shares_host,
            softirq: SoftirqThreads::find(),
            latencies: Latencies::new(),
            rates: HashMap::new(),
        })
    }

    /// Returns the server's host.
    pub fn server(&self) -> &Machine {
        &self.server
    }

    /// Returns the names of the server's transports.
    pub fn server_transports(&self) -> &[String] {
        &self.server_transports
    }

    /// Takes a sample: connects, warms up, measures and closes. If `request.announced` is true,
    /// calls `on_start` when the recorded phase begins.
    ///
    /// # Errors
    /// Returns [`ClientError`]; each variant names one cause.
    pub fn sample(
        &mut self,
        request: &SampleRequest,
        on_start: &mut dyn FnMut(),
    ) -> Result<Sample, ClientError> {
        let transport = transports::by_name(&request.transport).ok_or_else(|| {
            TransportError::Other(format!("no transport {:?} here", request.transport))
        })?;
        let prepare =
            Request::Prepare { transport: request.transport.clone(), setup: request.setup.clone() };
        let reply = self.channel.ask(&prepare)?;
        let Reply::Prepared(advertisement) = reply else {
            return Err(unexpected("an advertisement", &reply).into());
        };
        let side = transport.connect(&request.setup, &advertisement);
        let mut side = side.map_err(|error| self.explain(error))?;
        match self.channel.reply()? {
            Reply::Connected => {}
            reply => return Err(unexpected("a connection", &reply).into()),
        }
        let rate = self.warm_up(side.as_mut(), request)?;
        let operations = (rate * request.seconds).ceil().max(1.0) as u64;
        if request.announced {
            on_start();
        }
        let sample = self.phase(side.as_mut(), &request.setup, Phase { operations })?;
        drop(side);
        match self.channel.ask(&Request::Close)? {
            Reply::Closed => Ok(sample),
            reply => Err(unexpected("the end of a sample", &reply).into()),
        }
    }

    /// Runs phases of growing length until a phase lasts at least half as long as a warm-up should.
    /// Returns the operations per second of that phase. If the rate is known from an earlier
    /// sample, runs only one phase.
    fn warm_up(
        &mut self,
        side: &mut dyn ClientSide,
        request: &SampleRequest,
    ) -> Result<f64, ClientError> {
        let setup = &request.setup;
        let key = (request.transport.clone(), setup.test, setup.message_bytes, setup.links.len());
        let wanted_seconds = request.seconds * WARM_UP_SHARE;
        let known = self.rates.get(&key).map(|rate| rate * wanted_seconds);
        let mut operations = known.unwrap_or(1.0).ceil().max(1.0) as u64;
        loop {
            let sample = self.phase(side, setup, Phase { operations })?;
            let rate = operations as f64 / sample.seconds.max(1e-9);
            if sample.seconds >= wanted_seconds / 2.0 || known.is_some() {
                self.rates.insert(key, rate);
                return Ok(rate);
            }
            // The phases grow in steps. The first operations are the slowest, so a single short
            // phase would give too low a rate.
            let wanted = (rate * wanted_seconds).ceil() as u64;
            operations = wanted.clamp(operations * 2, operations * GROWTH_MAX);
        }
    }

    fn phase(
        &mut self,
        side: &mut dyn ClientSide,
        setup: &Setup,
        phase: Phase,
    ) -> Result<Sample, ClientError> {
        match self.channel.ask(&Request::Run(phase))? {
            Reply::Started => {}
            reply => return Err(unexpected("the start of a phase", &reply).into()),
        }
        self.latencies.clear();
        let softirq_before = self.softirq.seconds();
        let switches_before = switches()?;
        let cpu_before = cpu_seconds()?;
        let started = Stopwatch::start();
        let outcome = side.run(phase, &mut self.latencies);
        let seconds = started.elapsed_seconds();
        let cpu_seconds_client = cpu_seconds()? - cpu_before;
        let switches_client = switches()? - switches_before;
        let softirq_client = self.softirq.seconds() - softirq_before;
        let mut counters = outcome.map_err(|error| self.explain(error))?.counters;

        let reply = self.channel.reply()?;
        let Reply::Finished { observed, cpu_seconds, softirq_cpu_seconds, voluntary_switches } =
            reply
        else {
            return Err(unexpected("the end of a phase", &reply).into());
        };
        for (name, value) in observed.counters {
            *counters.entry(name).or_default() += value;
        }
        let softirq_server = if self.shares_host { 0.0 } else { softirq_cpu_seconds };
        Ok(Sample {
            operations: phase.operations,
            bytes: phase.operations * setup.message_bytes * messages_per_operation(setup.test),
            seconds,
            latency_ns: self.latencies.summary(),
            cpu_seconds_client,
            cpu_seconds_server: cpu_seconds,
            cpu_seconds_softirq: softirq_client + softirq_server,
            voluntary_switches: switches_client + voluntary_switches,
            counters,
            timeline: observed.timeline,
            timeline_start_ms: observed.timeline_start_ms,
        })
    }

    /// Adds the server's error text to `error`, if the server has sent one.
    fn explain(&mut self, error: TransportError) -> ClientError {
        match self.channel.reply() {
            Err(ControlError::Failed(message)) => {
                TransportError::Other(format!("{error} (the server reports: {message})")).into()
            }
            _ => error.into(),
        }
    }
}

pub(crate) fn messages_per_operation(test: Test) -> u64 {
    match test {
        Test::PingPong | Test::TwoWay | Test::ManyConnections => 2,
        Test::OneWay | Test::OperationRate | Test::VerifiedStream | Test::SmallBesideStream => 1,
        Test::ConnectionSetup => 0,
    }
}

fn switches() -> Result<u64, ClientError> {
    cpu::voluntary_switches().map_err(|source| {
        TransportError::Io {
            attempt: "count the context switches of this process".to_string(),
            source,
        }
        .into()
    })
}

fn cpu_seconds() -> Result<f64, ClientError> {
    cpu::process_seconds().map_err(|source| {
        TransportError::Io { attempt: "read the CPU time of this process".to_string(), source }
            .into()
    })
}

/// Length of a warm-up relative to the recorded phase. It is enough for congestion windows and
/// buffers to grow, for the CPU frequency to rise, and for caches to fill.
pub const WARM_UP_SHARE: f64 = 0.4;

/// Largest factor by which a phase is longer than the phase before it, in a warm-up whose rate is
/// not known yet.
const GROWTH_MAX: u64 = 32;
