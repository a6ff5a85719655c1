//! The background thread. It does the work that may block: it starts the endpoint, opens links and
//! deregisters memory.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use delivery::LinkId;
use link::{Fault, FaultShares, Link, ShmLink, UdpConfig, UdpLink};
use links::Opener;
use runtime::{Runtime, RuntimeConfig, WorkSource};
use thiserror::Error;

use crate::calls::connection::Connection;
use crate::calls::waiting::Waits;
use crate::counters;
use crate::log::{LogLevel, note};
use crate::migration::offer::Offer;
use crate::networks::canonical;
use crate::reasons::Reason;
use crate::rendezvous::connection_table::SERVICE;
use crate::rendezvous::doorbell::DescriptorKey;
use crate::rendezvous::endpoint::Endpoint;
use crate::rendezvous::exchange::{Arrival, Exchange, Job, Site};
use crate::rendezvous::hooks::EndpointHooks;
use crate::settings::Settings;
use crate::statistics::Statistics;

/// Waits for the next job. Returns `None` after all senders were dropped.
fn next(jobs: &Receiver<Job>, is_counting: bool) -> Option<Job> {
    if !is_counting {
        return jobs.recv().ok();
    }
    match jobs.recv_timeout(LOOK) {
        Ok(job) => Some(job),
        Err(RecvTimeoutError::Timeout) => Some(Job::Look),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// The interval at which the thread checks whether the counters file is due.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the background thread.
pub(crate) fn run(
    endpoint: &Arc<Endpoint>,
    settings: &Settings,
    config: RuntimeConfig,
    runtime: &OnceLock<Arc<Runtime>>,
    jobs: &Receiver<Job>,
) {
    let started = match start(endpoint, settings, config) {
        Ok(started) => started,
        Err(error) => {
            note(LogLevel::Error, format_args!("{error}; connections stay on TCP"));
            endpoint.exchange.failed();
            return refuse_all(jobs);
        }
    };
    endpoint.exchange.started(&started);
    let runtime = runtime.get_or_init(|| started);
    while let Some(job) = next(jobs, settings.counters().is_some()) {
        match job {
            Job::Look => counters::write_if_due(),
            Job::Join { connection, rendezvous_socket } => {
                join(&endpoint.exchange, runtime, connection, rendezvous_socket);
            }
            Job::Offer { connection } => offer(&endpoint.exchange, runtime, &connection),
            Job::Deregister(deferred) => {
                for deregistration in deferred {
                    deregistration.run(runtime.memory());
                }
            }
            // Stop the runtime in this thread. Another thread that holds the last reference may be
            // inside the engine, and cannot stop the runtime there.
            Job::Stop => return runtime.stop(),
        }
    }
}

fn start(
    endpoint: &Arc<Endpoint>,
    settings: &Settings,
    config: RuntimeConfig,
) -> Result<Arc<Runtime>, Failed> {
    let statistics = Statistics::listen().map(Arc::new);
    let hooks = Box::new(EndpointHooks::new(endpoint, statistics.clone()));
    let faults = endpoint.exchange.faults();
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    if settings.links().is_empty() {
        // If shared memory is not available, use only the other links. Shared memory loses no
        // frames, so do not use it if the settings inject faults.
        if !faults.is_any()
            && let Ok(shared) = ShmLink::open()
        {
            links.push(Box::new(shared));
        }
    }
    let opener = Opener { udp: UdpConfig::default(), port: 0 };
    let mut named = Vec::new();
    for spec in settings.links() {
        let link = opener.open_named(&spec.to_string())?;
        named.push((LinkId(links.len() as u8), link.caps().local.to_socket()));
        links.push(misbehaving(link, faults)?);
    }
    let runtime = Runtime::start(config, links, hooks)?;
    for (link, address) in named {
        if let Some(address) = address.filter(|address| !address.ip().is_unspecified()) {
            add_site(&endpoint.exchange, link, address)?;
        }
    }
    runtime.control(|engine, _, _| engine.listen(SERVICE))?;
    if let Some(statistics) = &statistics {
        // Ignore errors. Without the watch, clients that connect for statistics get no answer, and
        // nothing else fails.
        let _unwatched = statistics.watch(&runtime);
    }
    // Ignore errors. Without the timer, bytes that are held back are sent only when the program
    // waits.
    let _unlimited = Waits::held(&*endpoint.exchange).limit(&runtime);
    // After this call, the runtime polls the endpoint for work.
    let source = Arc::clone(endpoint) as Arc<dyn WorkSource>;
    runtime.ring(&source)?;
    Ok(Arc::new(runtime))
}

fn refuse_all(jobs: &Receiver<Job>) {
    for job in jobs {
        match job {
            Job::Join { connection, .. } | Job::Offer { connection } => {
                connection.leave(Reason::NoEndpoint);
            }
            Job::Deregister(_) | Job::Look => {}
            Job::Stop => return,
        }
    }
}

fn join(
    exchange: &Arc<Exchange>,
    runtime: &Runtime,
    connection: Arc<Connection>,
    rendezvous_socket: OwnedFd,
) {
    if let Err(error) = site_at(exchange, runtime, connection.local()) {
        note(LogLevel::Warn, format_args!("{}: {error}", connection.local()));
        return connection.leave(Reason::NoEndpoint);
    }
    open(exchange, runtime, connection, rendezvous_socket);
    // Wake a thread of the program that began to wait before the connection was queued.
    exchange.ring();
}

/// Starts to watch the rendezvous socket, and queues the connection for the connection table.
pub(crate) fn open(
    exchange: &Arc<Exchange>,
    runtime: &Runtime,
    connection: Arc<Connection>,
    rendezvous_socket: OwnedFd,
) {
    let key = DescriptorKey::RendezvousSocket(connection.token()).bits();
    if runtime
        .watch_descriptor(rendezvous_socket.as_fd(), key, runtime::Readiness::READABLE)
        .is_err()
    {
        return connection.leave(Reason::Descriptors);
    }
    // The engine need not run now. It runs when the offer arrives or when the program waits. The
    // rendezvous socket may therefore stay open longer than it should.
    exchange.leave(Arrival::Joiner { connection, rendezvous_socket });
    if exchange.is_crowded() {
        let _forked = runtime.drive();
    }
}

fn offer(exchange: &Arc<Exchange>, runtime: &Runtime, connection: &Arc<Connection>) {
    match site_at(exchange, runtime, connection.local()) {
        Ok(site) => {
            make_offer(exchange, &site, connection);
            // Wake a thread of the program that began to wait before the offer was queued.
            exchange.ring();
        }
        Err(error) => {
            note(LogLevel::Warn, format_args!("{}: {error}", connection.local()));
            connection.leave(Reason::NoEndpoint);
        }
    }
}

/// Creates an offer and sends it for the first time.
pub(crate) fn make_offer(exchange: &Arc<Exchange>, site: &Site, connection: &Arc<Connection>) {
    let offer = Offer {
        token: exchange.random_token(),
        incarnation: exchange.incarnation,
        port: site.port,
        accepting: connection.local(),
        connecting: canonical(connection.peer()),
    };
    let offers = Arc::clone(&site.offers);
    connection.offered(move || {
        // The peer may not have opened its rendezvous socket yet. The schedule repeats the offer.
        let _refused = offers.send_to(&offer.encode(), offer.connecting);
    });
    exchange.leave(Arrival::Offered { offer, connection: Arc::clone(connection) });
    // The engine need not run now. It runs when the answer arrives or when the program waits.
    connection.send_offer();
}

/// Returns the link at an address of this host. If there is none, opens a link.
fn site_at(exchange: &Exchange, runtime: &Runtime, local: SocketAddr) -> Result<Site, Failed> {
    if let Some(site) = exchange.site(local.ip()) {
        return Ok(site);
    }
    let mut any_port = canonical(local);
    any_port.set_port(0);
    let link: Box<dyn Link> = Box::new(UdpLink::bind(any_port, &UdpConfig::default())?);
    let address = link.caps().local.to_socket().ok_or(Failed::NoAddress(local.ip()))?;
    let link = runtime.attach_link(misbehaving(link, exchange.faults())?)?;
    any_port.set_port(address.port());
    add_site(exchange, link, any_port)
}

/// Records that `link` is the endpoint's link at `address`.
fn add_site(exchange: &Exchange, link: LinkId, address: SocketAddr) -> Result<Site, Failed> {
    let mut any_port = address;
    any_port.set_port(0);
    let offers = UdpSocket::bind(any_port).map_err(Failed::Offers)?;
    offers.set_nonblocking(true).map_err(Failed::Offers)?;
    let site = Site { link, port: address.port(), offers: Arc::new(offers) };
    exchange.add_site(address.ip(), site.clone());
    Ok(site)
}

/// Wraps a link so that it has the faults that the settings inject.
fn misbehaving(link: Box<dyn Link>, faults: FaultShares) -> Result<Box<dyn Link>, Failed> {
    if !faults.is_any() {
        return Ok(link);
    }
    let seed = RandomState::new().hash_one(0);
    Ok(Box::new(Fault::new(link, faults.config(seed))?))
}

/// The reason why there is no endpoint, or no link at an address.
#[derive(Debug, Error)]
enum Failed {
    #[error(transparent)]
    Start(#[from] runtime::StartError),
    #[error(transparent)]
    Forked(#[from] runtime::Forked),
    #[error(transparent)]
    Bind(#[from] link::UdpError),
    #[error(transparent)]
    Name(#[from] links::BindError),
    #[error(transparent)]
    Fault(#[from] delivery::SettingError),
    #[error(transparent)]
    Attach(#[from] runtime::AttachError),
    #[error("the link at {0} has no UDP port")]
    NoAddress(IpAddr),
    #[error("cannot open a socket for sending offers: {0}")]
    Offers(#[source] std::io::Error),
}
