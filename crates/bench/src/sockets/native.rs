//! Measures the native API between the same hosts, with the processes of `ethernot bench`.

use std::net::SocketAddr;

use super::NATIVE_IN_FLIGHT;
use super::cases::{Case, Contender, Test};
use super::figures::Sample;
use super::hosts::Hosts;
use crate::client::SampleRequest;
use crate::process::{ChildProcess, ChildSpec, Line, ProcessError, Role};
use crate::transport::{self, Setup, Waiting};
use crate::transports::EDGE;

/// A client and a server that use the edge protocol's native API.
#[derive(Debug)]
pub(super) struct Native {
    client: ChildProcess,
    _server: ChildProcess,
    setup: Setup,
}

impl Native {
    pub(super) fn start(
        program: &std::path::Path,
        hosts: &Hosts,
        pinned_to: Option<[usize; 2]>,
        contender: Contender,
    ) -> Result<Self, ProcessError> {
        let link = hosts.link();
        let names: Vec<String> = contender
            .kind_of_link()
            .map(|kind| format!("{kind}:{}", testbed::star::INTERFACE))
            .into_iter()
            .collect();
        let spec = |role, namespace: Option<&str>, cpu| ChildSpec {
            role,
            namespace: namespace.map(str::to_string),
            cpu,
            parent: std::process::id(),
            links: names.clone(),
        };
        let [client_cpu, server_cpu] = pinned_to.map_or([None; 2], |cpus| cpus.map(Some));
        let role = Role::Server(SocketAddr::new(link.server, 0));
        let mut server = ChildProcess::start(program, &spec(role, hosts.server(), server_cpu))?;
        let address = match server.receive()? {
            Line::Listening(address) => address,
            line => return Err(server.unexpected(&line)),
        };
        let role = Role::Client { server: address, shares_host: true };
        let mut client = ChildProcess::start(program, &spec(role, hosts.client(0), client_cpu))?;
        match client.receive()? {
            Line::Ready { .. } => {}
            line => return Err(client.unexpected(&line)),
        }
        let setup = Setup {
            test: transport::Test::PingPong,
            message_bytes: 0,
            links: vec![link],
            client_links: names,
            server_links: Vec::new(),
            mtu: Some(hosts.mtu()),
            in_flight: NATIVE_IN_FLIGHT,
            connections: 1,
            in_order: false,
            waiting: Waiting::Poll,
            delays_us: Vec::new(),
            rates: Vec::new(),
        };
        Ok(Self { client, _server: server, setup })
    }

    pub(super) fn sample(&mut self, case: &Case, seconds: f64) -> Result<Sample, ProcessError> {
        let (test, message_bytes) = match case.test {
            Test::Latency => (transport::Test::PingPong, case.message_bytes.max(WORD_BYTES)),
            Test::Connection => (transport::Test::ConnectionSetup, 0),
            _ => (transport::Test::OneWay, case.message_bytes.max(WORD_BYTES)),
        };
        self.client.send(&SampleRequest {
            transport: EDGE.to_string(),
            setup: Setup { test, message_bytes, ..self.setup.clone() },
            seconds,
            announced: false,
        })?;
        let found = match self.client.receive()? {
            Line::Sample(sample) => sample,
            line => return Err(self.client.unexpected(&line)),
        };
        let mut sample = Sample {
            operations: found.operations,
            bytes: found.bytes,
            seconds: found.seconds,
            bytes_per_second: found.bytes_per_second(),
            operations_per_second: found.operations_per_second(),
            cpu_seconds: found.cpu_seconds_client + found.cpu_seconds_server,
            client_cpu_seconds: Some(found.cpu_seconds_client),
            server_cpu_seconds: Some(found.cpu_seconds_server),
            softirq_cpu_seconds: found.cpu_seconds_softirq,
            ..Sample::default()
        };
        let latency = found.latency_ns;
        match case.test {
            Test::Latency => {
                let rounds = found.operations.max(1) as f64;
                sample.latency_us = Some(found.seconds * 1e6 / rounds / 2.0);
                sample.latency_p99_us = latency.map(|latency| latency.p99 / 1e3);
            }
            Test::Connection => sample.connect_us = latency.map(|latency| latency.mean / 1e3),
            _ => {}
        }
        Ok(sample)
    }
}

/// The smallest message of the native test in bytes. The receiver polls the last word of a message,
/// so a message has at least one word.
const WORD_BYTES: u64 = 8;
