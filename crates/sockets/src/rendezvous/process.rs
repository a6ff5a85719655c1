//! What a process has: an endpoint, its groups, rendezvous sockets and offers.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::EngineConfig;
use link::start_thread;
use mem::TableLimits;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};
use runtime::{Interest, Polling, Runtime, RuntimeConfig};
use semantics::PoolLimits;
use thiserror::Error;

use crate::calls::connection::Connection;
use crate::calls::descriptor_table::DescriptorTable;
use crate::calls::waiting::{Waited, Waits};
use crate::networks::canonical;
use crate::reasons::Reason;
use crate::rendezvous::background_thread;
use crate::rendezvous::endpoint::Endpoint;
use crate::rendezvous::exchange::Job;
use crate::rendezvous::shares::{GROUPS_MAX, OPERATIONS};
use crate::settings::{Choice, Role, Settings};
use crate::transport::arena::RECEIVE_BUFFERS;

/// Why a process has no part in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The thread that keeps the endpoint could not be started.
    #[error("cannot start a thread (a limit of threads, `ulimit -u`?)")]
    Thread(#[source] std::io::Error),
    /// No random numbers.
    #[error("the kernel gives no random numbers; is getrandom allowed here?")]
    Random(#[source] std::io::Error),
}

/// What a process has of moved connections: one endpoint, started with the first connection that may move.
pub struct Sockets {
    descriptors: Arc<dyn DescriptorTable>,
    settings: Arc<Settings>,
    endpoint: Arc<Endpoint>,
    /// What keeps the endpoint alive.
    runtime: Arc<OnceLock<Arc<Runtime>>>,
    /// How many forks the process that started it was away from the first.
    forks: u32,
}

impl Sockets {
    /// Starts it. The endpoint itself starts behind: nothing waits for it. A handler that calls [`Sockets::finish`] when
    /// the process exits is registered after this.
    pub fn start(
        settings: Arc<Settings>,
        descriptors: Arc<dyn DescriptorTable>,
    ) -> Result<Self, StartError> {
        let forks = runtime::forks();
        // The endpoint is there only later, and its groups must not end before `finish`.
        runtime::tell_peers_at_exit();
        let usual = RuntimeConfig::from_entropy().map_err(StartError::Random)?;
        let (jobs, to_do) = channel();
        let endpoint = Endpoint::new(usual.seed, settings.faults(), settings.polling(), jobs);
        // Its engine draws from numbers of its own.
        let config = RuntimeConfig::from_entropy().map_err(StartError::Random)?;
        let config = of_sockets(config, settings.polling());
        let runtime = Arc::new(OnceLock::new());
        let own = Arc::clone(&settings);
        let (kept, held) = (Arc::clone(&endpoint), Arc::clone(&runtime));
        start_thread("ethernot-worker", move || {
            background_thread::run(&kept, &own, config, &held, &to_do)
        })
        .map_err(StartError::Thread)?;
        Ok(Self { descriptors, settings, endpoint, runtime, forks })
    }

    /// The program has connected, or begun to: opens the rendezvous socket for the peer's offer. `local` is bound already.
    pub fn connected(&self, token: u64, local: SocketAddr, peer: SocketAddr) -> Arc<Connection> {
        let connection = self.connection(token, Role::Connecting, local, peer);
        if let Err(reason) = self.open_rendezvous_socket(&connection) {
            connection.leave(reason);
        }
        connection
    }

    /// The program begins to use a connection that it has accepted, or has used it for so long that it is to move
    /// (`has_bytes`): makes the offer.
    pub fn accepted(
        &self,
        token: u64,
        local: SocketAddr,
        peer: SocketAddr,
        has_bytes: bool,
    ) -> Arc<Connection> {
        let connection = self.connection(token, Role::Accepting, local, peer);
        match self.offer(&connection) {
            Err(reason) => connection.leave(reason),
            Ok(()) if has_bytes => connection.on_bytes(false),
            Ok(()) => {}
        }
        connection
    }

    fn connection(
        &self,
        token: u64,
        role: Role,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Arc<Connection> {
        let endpoint = Arc::clone(&self.endpoint.exchange);
        Connection::new(token, role, local, peer, Arc::clone(&self.descriptors), endpoint)
    }

    fn check(&self, connection: &Connection) -> Result<(), Reason> {
        let (role, local, peer) = (connection.role(), connection.local(), connection.peer());
        if self.endpoint.exchange.has_failed() {
            return Err(Reason::NoEndpoint);
        }
        if !self.is_of_this_process() {
            return Err(Reason::Forked);
        }
        match self.settings.choice(role, local, peer) {
            Choice::Edge => Ok(()),
            Choice::Tcp(reason) => Err(reason),
        }
    }

    //= sockets-protocol.md: rendezvous.1
    fn open_rendezvous_socket(&self, connection: &Arc<Connection>) -> Result<(), Reason> {
        self.check(connection)?;
        let local = canonical(connection.local());
        let rendezvous_socket = rendezvous_socket_at(local)?;
        let connection = Arc::clone(connection);
        match self.runtime.get() {
            Some(runtime) if self.endpoint.exchange.site(local.ip()).is_some() => {
                background_thread::open(
                    &self.endpoint.exchange,
                    runtime,
                    connection,
                    rendezvous_socket,
                );
            }
            _ => self.endpoint.exchange.ask(Job::Join { connection, rendezvous_socket }),
        }
        Ok(())
    }

    fn offer(&self, connection: &Arc<Connection>) -> Result<(), Reason> {
        self.check(connection)?;
        let site = self.endpoint.exchange.site(connection.local().ip());
        match (self.runtime.get(), site) {
            (Some(runtime), Some(site)) => {
                background_thread::make_offer(&self.endpoint.exchange, &site, connection);
                if self.endpoint.exchange.is_crowded() {
                    let _forked = runtime.drive();
                }
            }
            _ => self.endpoint.exchange.ask(Job::Offer { connection: Arc::clone(connection) }),
        }
        Ok(())
    }

    /// Makes progress, unless another thread is at it.
    pub fn drive(&self) {
        self.endpoint.exchange.held().push_all();
        Waits::drive(&*self.endpoint.exchange);
    }

    /// Waits until `ready` says so, one of `others` is ready, or `limit` has passed (`None`: never). What streams hold
    /// back for more to come goes out before.
    pub fn wait_beside(
        &self,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        self.endpoint.exchange.held().push_all();
        self.endpoint.exchange.wait(
            Interest::Mark(self.endpoint.exchange.any()),
            others,
            limit,
            &mut ready,
        )
    }

    /// Whether this is the process that started it.
    pub fn is_of_this_process(&self) -> bool {
        runtime::forks() == self.forks
    }

    /// Lets go in a forked child, in which nothing of it works: nobody is told.
    pub fn forget_in_child(self) {
        // Locks may be held by threads that the child does not have. Sockets that the endpoint watches were closed
        // when the process forked.
        std::mem::forget(self);
    }

    /// The process is about to end: drives out what programs have written, for at most `limit`.
    pub fn finish(&self, limit: Duration) {
        let Some(runtime) = self.runtime.get() else { return };
        if !self.is_of_this_process() {
            return;
        }
        // As if the program had closed all its descriptors, which it is about to do.
        let connections = self.endpoint.table().connections();
        for connection in &connections {
            connection.end();
        }
        self.endpoint.exchange.held().push_all();
        let are_out = || connections.iter().all(|connection| connection.is_out()).then_some(());
        // What is not out by then is lost, as with a process that is killed.
        let _forked =
            runtime.wait(Interest::Mark(self.endpoint.exchange.any()), Some(limit), are_out);
        for connection in &connections {
            connection.end_tcp();
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.endpoint.exchange.ask(Job::Stop);
    }
}

/// A UDP socket at the address and the TCP port of a connection.
fn rendezvous_socket_at(local: SocketAddr) -> Result<OwnedFd, Reason> {
    let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let rendezvous_socket =
        socket(family, SockType::Datagram, flags, None).map_err(|_none| Reason::Descriptors)?;
    let address = SockaddrStorage::from(local);
    bind(rendezvous_socket.as_raw_fd(), &address).map_err(|_taken| Reason::NoRendezvousSocket)?;
    Ok(rendezvous_socket)
}

/// A runtime as sockets want it.
fn of_sockets(mut config: RuntimeConfig, polling: Polling) -> RuntimeConfig {
    config.engine = EngineConfig::default()
        .connections_max(GROUPS_MAX)
        .receives_max(RECEIVE_BUFFERS)
        .silence_budget_ns(SILENCE_NS)
        .keep_alive_ns(KEEP_ALIVE_NS)
        .read_depth(0)
        .pools(
            PoolLimits::default()
                .operations(OPERATIONS)
                .incoming(1024)
                .responses(1)
                .reads(1)
                .retransmissions(16_384)
                .order_blocks(512),
        );
    (config.polling, config.handles_max, config.submissions_max) = (polling, 1, 1);
    config.regions = TableLimits::default().regions_max(REGIONS_MAX).domains_max(GROUPS_MAX);
    config
}

/// Their memory: messages, and four chunks of rings each way.
const REGIONS_MAX: u32 = 16 * GROUPS_MAX;

/// How long a peer may be silent while something is awaited, in nanoseconds: programs shall have an error within 5 s of
/// the cut of a link, of which a second goes by until somebody asks.
const SILENCE_NS: u64 = 3_000_000_000;

/// How soon an idle group is asked for a sign of life, in nanoseconds.
const KEEP_ALIVE_NS: u64 = 1_000_000_000;
