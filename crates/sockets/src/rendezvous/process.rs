//! The endpoint of a process, with its groups, rendezvous sockets and offers.

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

/// The reason why the endpoint of a process cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The background thread could not be started.
    #[error("cannot start a thread; the limit of threads may be reached (`ulimit -u`)")]
    Thread(#[source] std::io::Error),
    /// The kernel returned no random numbers.
    #[error("the kernel returned no random numbers; check whether a sandbox denies getrandom")]
    Random(#[source] std::io::Error),
}

/// The endpoint of a process for moved connections. The endpoint starts with the first connection
/// that may move.
pub struct Sockets {
    descriptors: Arc<dyn DescriptorTable>,
    settings: Arc<Settings>,
    endpoint: Arc<Endpoint>,
    /// The runtime. It is stored here because the endpoint must not live longer than the runtime.
    runtime: Arc<OnceLock<Arc<Runtime>>>,
    /// The value of `runtime::forks` when the process started the endpoint. In a forked child,
    /// `runtime::forks` returns another value.
    forks: u32,
}

impl Sockets {
    /// Starts the background thread, which starts the endpoint. Does not wait for the endpoint.
    /// After this call, register the exit handler that calls [`Sockets::finish`].
    ///
    /// # Errors
    /// Returns [`StartError`]; each variant names one cause.
    pub fn start(
        settings: Arc<Settings>,
        descriptors: Arc<dyn DescriptorTable>,
    ) -> Result<Self, StartError> {
        let forks = runtime::forks();
        // Exit handlers run in the reverse order of their registration. The caller registers its
        // handler after this call, so `finish` runs first, and the groups are still open then.
        runtime::notify_peers_at_exit();
        let usual = RuntimeConfig::from_entropy().map_err(StartError::Random)?;
        let (jobs, to_do) = channel();
        let endpoint = Endpoint::new(usual.seed, settings.faults(), settings.polling(), jobs);
        // The engine gets a random seed of its own, different from the endpoint's seed.
        let config = RuntimeConfig::from_entropy().map_err(StartError::Random)?;
        let config = of_sockets(config, settings.polling());
        let runtime = Arc::new(OnceLock::new());
        let own = Arc::clone(&settings);
        let (kept, held) = (Arc::clone(&endpoint), Arc::clone(&runtime));
        start_thread("ethernot-worker", move || {
            background_thread::run(&kept, &own, config, &held, &to_do);
        })
        .map_err(StartError::Thread)?;
        Ok(Self { descriptors, settings, endpoint, runtime, forks })
    }

    /// Handles a connection that the program has established or begun to establish. Opens the
    /// rendezvous socket. The TCP socket must already be bound to `local`.
    pub fn connected(&self, token: u64, local: SocketAddr, peer: SocketAddr) -> Arc<Connection> {
        let connection = self.connection(token, Role::Connecting, local, peer);
        if let Err(reason) = self.open_rendezvous_socket(&connection) {
            connection.leave(reason);
        }
        connection
    }

    /// Handles a connection that the program has accepted. Makes an offer. `has_bytes` is true if
    /// the connection has carried bytes, and false if this is its first use.
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

    /// Sends the bytes that streams hold back. Then drives the engine once, if no other thread is
    /// driving it.
    pub fn drive(&self) {
        self.endpoint.exchange.held().push_all();
        Waits::drive(&*self.endpoint.exchange);
    }

    /// Sends the bytes that streams hold back. Then waits until `ready` returns true, one of
    /// `others` is ready, or `limit` has passed (`None`: without a limit).
    ///
    /// # Errors
    /// Returns the error of a failed system call.
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

    /// Returns true if the calling process started this endpoint.
    pub fn is_of_this_process(&self) -> bool {
        runtime::forks() == self.forks
    }

    /// Gives up the endpoint in a forked child, where the endpoint does not work. Does not notify
    /// peers.
    pub fn forget_in_child(self) {
        // Leak the value. Threads that do not exist in the child may hold its locks, so dropping it
        // could deadlock. The leak keeps no sockets open, because the fork closed the endpoint's
        // sockets in the child.
        std::mem::forget(self);
    }

    /// Sends the bytes that the program has written, before the process ends. Waits at most
    /// `limit`.
    pub fn finish(&self, limit: Duration) {
        let Some(runtime) = self.runtime.get() else { return };
        if !self.is_of_this_process() {
            return;
        }
        // The process is about to close all its descriptors, so treat them as already closed.
        let connections = self.endpoint.table().connections();
        for connection in &connections {
            connection.end();
        }
        self.endpoint.exchange.held().push_all();
        let are_out = || connections.iter().all(|connection| connection.is_out()).then_some(());
        // Bytes that are not sent within the limit are lost, as when a process is killed.
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

/// Opens a UDP socket at the local address of a connection, at the port number of its TCP socket.
fn rendezvous_socket_at(local: SocketAddr) -> Result<OwnedFd, Reason> {
    let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let rendezvous_socket =
        socket(family, SockType::Datagram, flags, None).map_err(|_none| Reason::Descriptors)?;
    let address = SockaddrStorage::from(local);
    bind(rendezvous_socket.as_raw_fd(), &address).map_err(|_taken| Reason::NoRendezvousSocket)?;
    Ok(rendezvous_socket)
}

/// Configures a runtime for this library.
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

/// Maximum number of regions of all groups together. On average a group may have 16. A group needs
/// one for its receive buffers, and two for each chunk of eight pairs of rings.
const REGIONS_MAX: u32 = 16 * GROUPS_MAX;

/// The time for which a peer may be silent while operations are pending, in nanoseconds. A program
/// should get an error within 5 s after a link is cut, and the engine may notice the silence a
/// second late.
const SILENCE_NS: u64 = 3_000_000_000;

/// The interval between keep-alives on idle groups, in nanoseconds.
const KEEP_ALIVE_NS: u64 = 1_000_000_000;
