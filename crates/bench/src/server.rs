//! The server process: serves one client at a time.

use std::net::{IpAddr, SocketAddr, TcpListener};

use crate::control::{Channel, ControlError, Reply, Request, VERSION};
use crate::cpu::{self, SoftirqThreads};
use crate::machine::Machine;
use crate::transport::{
    CONNECTIONS_MAX, MESSAGE_BYTES_MAX, Phase, ServerSide, Setup, TransportError,
};
use crate::transports;

/// Serves clients on `listener` forever. Reports the outcome of each control connection to
/// `on_end`. `links` contains the names of the server's links, for transports that select links by
/// name. If `links` is empty, those transports use the addresses by which the client reaches this
/// host.
///
/// # Errors
/// Returns [`ControlError`]; each variant names one cause.
pub fn serve(
    listener: &TcpListener,
    links: &[String],
    mut on_end: impl FnMut(SocketAddr, Result<(), ControlError>),
) -> Result<(), ControlError> {
    loop {
        let (stream, peer) = listener
            .accept()
            .map_err(|source| ControlError::Io { attempt: "accept a client", source })?;
        let outcome = Channel::new(stream).and_then(|channel| {
            let own = channel.own_address()?;
            let softirq = SoftirqThreads::find();
            Conversation { channel, own, links: links.to_vec(), side: None, softirq }.run()
        });
        on_end(peer, outcome);
    }
}

struct Conversation {
    channel: Channel,
    /// The address by which the client reaches this host. Measured sockets are bound to it.
    own: IpAddr,
    /// Names of the links.
    links: Vec<String>,
    side: Option<Box<dyn ServerSide>>,
    softirq: SoftirqThreads,
}

impl Conversation {
    fn run(mut self) -> Result<(), ControlError> {
        loop {
            let request = match self.channel.receive() {
                Ok(request) => request,
                Err(ControlError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            let outcome = match request {
                Request::Hello { version } => Self::hello(version)?,
                Request::Prepare { transport, setup } => self.prepare(&transport, setup)?,
                Request::Run(phase) => self.phase(phase)?,
                Request::Close => {
                    self.side = None;
                    Ok(Reply::Closed)
                }
            };
            let reply = outcome.unwrap_or_else(|error| {
                // Dropping the server's side closes the data connection. The client then detects
                // the failure even before it reads the reply.
                self.side = None;
                Reply::Failed { message: error.to_string() }
            });
            self.channel.send(&reply)?;
        }
    }

    fn hello(version: u32) -> Answer {
        if version != VERSION {
            return Err(ControlError::Version { theirs: version });
        }
        let transports = transports::all().iter().map(|t| t.name().to_string()).collect();
        Ok(Ok(Reply::Hello { version: VERSION, machine: Machine::this(), transports }))
    }

    /// Listens, reports [`Reply::Prepared`], and waits for the client.
    fn prepare(&mut self, transport: &str, mut setup: Setup) -> Answer {
        self.side = None;
        let Some(transport) = transports::by_name(transport) else {
            return Ok(Err(TransportError::Other(format!("no transport {transport:?} here"))));
        };
        let excessive =
            setup.message_bytes > MESSAGE_BYTES_MAX || setup.connections > CONNECTIONS_MAX;
        if excessive || !transport.supports(setup.test, setup.message_bytes, setup.mtu) {
            return Ok(Err(TransportError::Unsupported {
                transport: transport.name(),
                test: setup.test.name(),
                message_bytes: setup.message_bytes,
            }));
        }
        if let Some(first) = setup.links.first_mut() {
            // The client may reach this host by a name, or by a translated address that is not an
            // address of this host.
            first.server = self.own;
        }
        setup.server_links.clone_from(&self.links);
        let mut side = match transport.listen(&setup) {
            Ok(side) => side,
            Err(error) => return Ok(Err(error)),
        };
        self.channel.send(&Reply::Prepared(side.advertisement()))?;
        if let Err(error) = side.accept() {
            return Ok(Err(error));
        }
        self.side = Some(side);
        Ok(Ok(Reply::Connected))
    }

    fn phase(&mut self, phase: Phase) -> Answer {
        let Some(side) = &mut self.side else {
            return Ok(Err(TransportError::Other("run before prepare".into())));
        };
        let cpu_time = || cpu::process_seconds().map_err(TransportError::io("read CPU time"));
        let softirq_before = self.softirq.seconds();
        let cpu_before = match cpu_time() {
            Ok(seconds) => seconds,
            Err(error) => return Ok(Err(error)),
        };
        let switches = || cpu::voluntary_switches().map_err(TransportError::io("count switches"));
        let switches_before = match switches() {
            Ok(count) => count,
            Err(error) => return Ok(Err(error)),
        };
        self.channel.send(&Reply::Started)?;
        Ok(side.run(phase).and_then(|observed| {
            Ok(Reply::Finished {
                observed,
                cpu_seconds: cpu_time()? - cpu_before,
                softirq_cpu_seconds: self.softirq.seconds() - softirq_before,
                voluntary_switches: switches()? - switches_before,
            })
        }))
    }
}

/// The outer error ends the control connection; the inner error fails only this request.
type Answer = Result<Result<Reply, TransportError>, ControlError>;
