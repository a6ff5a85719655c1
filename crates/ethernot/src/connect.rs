//! Requests connections to peers.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use delivery::{LinkId, SettingError};
use engine::{ConnectRequest, Terms};
use links::{IntoPeers, PeerSpec, rank_pairs};
use mem::{ProtectionDomain, RegisterError};
use runtime::{Interest, SpinBudget};
use semantics::CompletionQueue;
use wire_edge::PeerAddr;

use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointInner};
use crate::error::ConnectError;
use crate::news::{Stage, Subscriber};

/// Options of a connection. The defaults suit a program with few connections.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Service number of the peer's listener; 0 by default. Ignored when this end accepts a
    /// request.
    pub service: u32,
    /// Private data for the peer, sent with the request or its acceptance, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Time limit of the attempt; `None`, the default, means [`ConnectOptions::LIMIT`]. The attempt
    /// ends earlier if the peer's host is silent for `silence_budget_ns` (5 s by default). With
    /// [`Duration::MAX`] the attempt continues while the peer's host reports that its application
    /// has not decided yet.
    pub limit: Option<Duration>,
    /// Completion queue that this connection shares with other connections.
    pub queue: Option<Arc<CompletionQueue>>,
    /// Number of entries of the connection's own queue, if `queue` is `None`. It is at least 1, and
    /// 256 by default. An entry takes 64 bytes. Each pending signalled operation, each pending
    /// operation without a handle and each posted receive reserves one entry. Programs with
    /// thousands of connections should share a queue.
    pub completions: usize,
    /// Protection domain of the regions that the peer may reach; by default the endpoint's own.
    pub domain: Option<ProtectionDomain>,
    /// Settings of this connection, such as timeouts and the number of receives. The endpoint's
    /// settings apply to everything that is not set here.
    pub terms: Terms,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            service: 0,
            private_data: Vec::new(),
            limit: None,
            queue: None,
            completions: 256,
            domain: None,
            terms: Terms::default(),
        }
    }
}

impl ConnectOptions {
    /// Default limit of [`Endpoint::connect_with`]. A peer's program may need seconds to start and
    /// accept. The limit exists because the program may also never accept, and the caller must not
    /// block forever.
    pub const LIMIT: Duration = Duration::from_secs(30);

    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the service number of the peer's listener.
    pub fn service(mut self, service: u32) -> Self {
        self.service = service;
        self
    }

    /// Sets the private data for the peer.
    pub fn private_data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.private_data = bytes.into();
        self
    }

    /// Sets the limit of the attempt. `None` means [`ConnectOptions::LIMIT`].
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the queue for the completions. Several connections may share a queue.
    pub fn queue(mut self, queue: Arc<CompletionQueue>) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Sets the number of entries of the connection's own queue.
    pub fn completions(mut self, completions: usize) -> Self {
        self.completions = completions;
        self
    }

    /// Sets the protection domain of the regions that the peer may reach.
    pub fn domain(mut self, domain: ProtectionDomain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Sets the settings of this connection.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Checks that the protection domain belongs to this endpoint, and returns it.
    pub(crate) fn domain_of(
        &self,
        inner: &EndpointInner,
    ) -> Result<ProtectionDomain, RegisterError> {
        let domain = self.domain.unwrap_or(inner.domain);
        inner.runtime.memory().check_domain(domain).map(|()| domain)
    }

    /// Returns the completion queue, or the error `foreign` if it belongs to another endpoint.
    pub(crate) fn take_queue<E: From<SettingError>>(
        &mut self,
        inner: &EndpointInner,
        foreign: E,
    ) -> Result<Arc<CompletionQueue>, E> {
        let queue = if let Some(shared) = self.queue.take() {
            shared
        } else {
            let wanted = 1..=COMPLETIONS_MAX;
            SettingError::unless_within("completions", &self.completions, &wanted)?;
            Arc::new(CompletionQueue::new(self.completions))
        };
        if queue.claim(inner.runtime.queue_owner()) { Ok(queue) } else { Err(foreign) }
    }
}

impl Endpoint {
    /// Connects to a listening peer, with default options.
    ///
    /// # Errors
    /// Returns [`ConnectError`] if the peer cannot be reached, rejects the request, or does not
    /// answer within [`ConnectOptions::LIMIT`].
    pub fn connect(&self, peer: impl IntoPeers) -> Result<Connection, ConnectError> {
        self.connect_with(peer, ConnectOptions::default())
    }

    /// Connects to a peer that listens on any of the given addresses. One address is enough,
    /// because the peer reports its other addresses. Each local link is paired with at most one
    /// address: if possible, with an address to which the kernel routes from this link; otherwise
    /// with the address that has the longest common prefix with the link's own address.
    ///
    /// # Errors
    /// Returns [`ConnectError`] if the peer cannot be reached, rejects the request, or does not
    /// answer within the limit of the options.
    pub fn connect_with(
        &self,
        peer: impl IntoPeers,
        options: ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        let limit = options.limit.unwrap_or(ConnectOptions::LIMIT);
        self.start_connect(peer, options)?.wait(Some(limit))
    }

    /// Requests a connection without waiting for the answer. Returns an object that can wait for
    /// the answer. The limit in the options applies only to the search for MAC addresses.
    ///
    /// If `peer` contains a host name, this call resolves the name and may block. Tasks should use
    /// addresses.
    ///
    /// # Errors
    /// Returns [`ConnectError`] if the connection cannot be requested: there is no route to the
    /// peer, an option is out of range, or the endpoint is shut down.
    pub fn start_connect(
        &self,
        peer: impl IntoPeers,
        options: ConnectOptions,
    ) -> Result<Connecting, ConnectError> {
        if self.inner.news.is_shut_down() {
            return Err(ConnectError::ShutDown);
        }
        let mut options = options;
        let domain = options.domain_of(&self.inner).map_err(ConnectError::Domain)?;
        let peers = peer.into_peers()?;
        let paths = self.paths_to(&peers, options.limit)?;
        let Some(&(_, peer)) = paths.first() else {
            return Err(ConnectError::NoWay { peers });
        };
        let queue = options.take_queue(&self.inner, ConnectError::ForeignQueue)?;
        let request = ConnectRequest {
            paths,
            service: options.service,
            private_data: options.private_data,
            domain,
            queues: Arc::clone(&queue).into(),
            terms: options.terms,
        };
        let news = Arc::clone(&self.inner.news);
        let (handle, fate) = self.inner.runtime.control(move |engine, _memory, now| {
            // The endpoint may have been shut down during the search for the peer. The search can
            // take seconds.
            if news.is_shut_down() {
                return Err(ConnectError::ShutDown);
            }
            let handle = engine.connect(now, request)?;
            Ok((handle, news.follow(handle)))
        })??;
        let connection = Some(Connection::new(self, handle, queue, fate));
        Ok(Connecting { connection, peer, spin_budget: SpinBudget::default(), subscriber: None })
    }
}

/// A requested connection. Dropping it cancels the attempt.
///
/// A thread calls [`Connecting::wait`]. A task awaits this object, which is a future.
#[derive(Debug)]
#[must_use = "dropped, the attempt is given up"]
pub struct Connecting {
    /// `None` after the connection has been returned.
    connection: Option<Connection>,
    /// The first address of the peer.
    peer: PeerAddr,
    spin_budget: SpinBudget,
    subscriber: Option<Subscriber>,
}

impl Connecting {
    /// Waits for the peer's answer, for at most `limit`. With `None`, waits while the peer's host
    /// reports that its application has not decided yet.
    ///
    /// # Errors
    /// Returns [`ConnectError`]; each variant names one cause. [`ConnectError::TimedOut`] cancels
    /// the attempt.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Connection, ConnectError> {
        self.wait_until(limit)
    }

    /// Waits for the answer like [`Connecting::wait`], but continues the attempt after
    /// [`ConnectError::TimedOut`]. So the caller may call this method again. With a limit of 0,
    /// only checks whether the answer has arrived.
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint, is_given_up: fn() -> bool) -> Result<(), ethernot::Error> {
    /// use ethernot::{ConnectError, ConnectOptions};
    /// use std::time::Duration;
    ///
    /// let mut attempt = endpoint.start_connect("10.0.0.2:7000", ConnectOptions::new())?;
    /// let connection = loop {
    ///     match attempt.wait_for(Duration::from_millis(50)) {
    ///         Err(ConnectError::TimedOut { .. }) if !is_given_up() => {}
    ///         outcome => break outcome?,
    ///     }
    /// };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`ConnectError`]; each variant names one cause. If an earlier call has returned the
    /// outcome, returns [`ConnectError::Answered`].
    pub fn wait_for(&mut self, limit: Duration) -> Result<Connection, ConnectError> {
        self.wait_until(Some(limit))
    }

    fn wait_until(&mut self, limit: Option<Duration>) -> Result<Connection, ConnectError> {
        let peer = self.peer;
        let Some(connection) = &self.connection else { return Err(ConnectError::Answered) };
        let runtime = &connection.inner().endpoint.runtime;
        let stage = runtime.wait(Interest::News, limit, || connection.fate().settled())?;
        let limit = limit.unwrap_or(Duration::MAX);
        let stage = stage.ok_or(ConnectError::TimedOut { peer, limit })?;
        let connection = self.connection.take().ok_or(ConnectError::Answered)?;
        connected(connection, stage, peer)
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { connection, peer, spin_budget, subscriber } = self.get_mut();
        let Some(waiting) = &connection else { return Poll::Ready(Err(ConnectError::Answered)) };
        let stage = ready!(waiting.poll_settled(context, spin_budget, subscriber))?;
        *subscriber = None;
        Poll::Ready(match connection.take() {
            Some(connection) => connected(connection, stage, *peer),
            None => Err(ConnectError::Answered),
        })
    }
}

/// Returns the connection if it is established, or the reason why it was not established.
fn connected(
    connection: Connection,
    stage: Stage,
    peer: PeerAddr,
) -> Result<Connection, ConnectError> {
    match stage {
        Stage::Closed { reason, private_data, was_established: false } => {
            Err(ConnectError::Closed { peer, reason, private_data })
        }
        _ => Ok(connection),
    }
}

impl Endpoint {
    /// Returns the pairs of link and peer address to try, the best pair first. Each link is in at
    /// most one pair.
    fn paths_to(
        &self,
        peers: &[PeerSpec],
        limit: Option<Duration>,
    ) -> Result<Vec<(LinkId, PeerAddr)>, ConnectError> {
        let inner = &self.inner;
        let mut sources = HashMap::new();
        if let Some(named) = &inner.named {
            let by_ip = |peer: &PeerSpec| match peer {
                PeerSpec::Socket(socket) => Some(socket.ip().to_canonical()),
                _ => None,
            };
            let by_ip: Vec<IpAddr> = peers.iter().filter_map(by_ip).collect();
            sources = named
                .reach(&inner.runtime, &by_ip)
                .map_err(|error| ConnectError::Link(Box::new(error)))?;
        }
        let addresses: Vec<PeerAddr> = peers.iter().filter_map(|peer| peer.address()).collect();
        let mut paths = rank_pairs(&inner.runtime.link_addresses()?, &addresses, &sources);
        let is_any = |peer: &PeerSpec| matches!(peer, PeerSpec::AnyStation { .. });
        if let Some(named) = &inner.named
            && (paths.is_empty() || peers.iter().any(is_any))
        {
            let used: Vec<LinkId> = paths.iter().map(|&(link, _)| link).collect();
            let limit = limit.map_or(SEARCH_LIMIT, |limit| limit.min(SEARCH_LIMIT));
            match named.find_stations(peers, &used, paths.is_empty(), limit) {
                Ok(found) => paths.extend(found),
                Err(error) if paths.is_empty() => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(paths)
    }
}

/// Largest number of entries of a connection's own queue. This number of entries takes 1 GiB.
const COMPLETIONS_MAX: usize = 1 << 24;

/// Time limit for resolving the MAC addresses of one network. ARP sends three requests, 1 s apart.
const SEARCH_LIMIT: Duration = Duration::from_secs(3);
