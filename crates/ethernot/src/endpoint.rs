//! Endpoints: how to build them, their links and their counters.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use delivery::{EndpointCounters, LinkId};
use engine::EngineConfig;
use link::{Link, LinkStatistics, ShmLink, UdpConfig, UdpLink};
use links::{BindError, Follower, LinkProblem, LinkSpec, Linked, NamedLinks, Opener, Wanted};
use mem::{MemoryTable, ProtectionDomain};
use runtime::{
    ChangedBy, Drive, Forked, Interest, Polling, Runtime, RuntimeConfig, RuntimeCounters,
};
use semantics::{Completion, CompletionQueue, PoolUse};
use wire_edge::PeerAddr;

use crate::error::{PollError, WaitError, in_time};
use crate::news::EventTable;
use crate::tasks::{UntilCompletion, UntilLook};

/// Settings of an endpoint to be built. The defaults need no configuration. If no link is named,
/// the endpoint uses UDP on every interface that is up, leads to other hosts, and has a carrier and
/// an address. If there is no such interface, it uses the loopback interface. If no present link
/// can reach a peer, the endpoint adds a link when it connects to that peer.
#[derive(Default)]
#[must_use]
pub struct EndpointBuilder {
    addresses: Vec<String>,
    links: Vec<Box<dyn Link>>,
    named: Vec<String>,
    wrapper: Option<LinkWrapper>,
    port: u16,
    is_fixed: bool,
    shared_memory: Option<bool>,
    udp: UdpConfig,
    engine: EngineConfig,
    polling: Polling,
    without_progress_thread: bool,
    progress_processor: Option<usize>,
    handles_max: Option<u32>,
    shutdown_grace: Option<Duration>,
}

/// Wraps a link in another link, which adds functions or disturbs traffic. The first argument is
/// the index of the link among the named links.
pub type LinkWrapper = Box<dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link> + Send>;

/// One end of remote memory access: the links, memory regions and connections of a process.
///
/// Clones are cheap, and threads may share them. The endpoint closes its connections when its last
/// clone and all connections, listeners and handles made from it are dropped. The drop waits for
/// the peers' confirmations for at most one millisecond. If a peer is silent, another thread waits
/// for that peer, and the links stay open during this wait ([`EndpointBuilder::shutdown_grace`]).
///
/// To ensure that operations are complete and that peers have confirmed, call
/// [`Endpoint::shutdown`] first.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) inner: Arc<EndpointInner>,
}

#[derive(Debug)]
pub(crate) struct EndpointInner {
    pub(crate) runtime: Runtime,
    pub(crate) news: Arc<EventTable>,
    pub(crate) domain: ProtectionDomain,
    /// The links that were made from names or by default.
    pub(crate) named: Option<NamedLinks>,
    follower: OnceLock<Follower>,
    udp: UdpConfig,
    grace: Duration,
}

impl EndpointBuilder {
    /// Adds a UDP link on this address. Port 0 selects a free port. This method may be called
    /// several times.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Adds a link with a custom driver, or a UDP link in a wrapper such as
    /// [`Capture`](crate::Capture). These links get lower numbers than the links of
    /// [`EndpointBuilder::bind`].
    pub fn link(mut self, link: Box<dyn Link>) -> Self {
        self.links.push(link);
        self
    }

    /// Adds links by name, such as `eth0,packet:eth1/vlan=100` (see [`LinkSpec`]). These links get
    /// higher numbers than the links of [`EndpointBuilder::link`] and [`EndpointBuilder::bind`].
    pub fn links(mut self, names: impl Into<String>) -> Self {
        self.named.push(names.into());
        self
    }

    /// Sets the port of all links whose name contains no port, for UDP and raw Ethernet. The
    /// default, 0, selects a free port on each link. A server needs a fixed port, so that its
    /// clients know the port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets whether links that were made from names or by default follow their interfaces. By
    /// default, these links follow their interfaces. An endpoint whose links follow their
    /// interfaces adds a link when an interface appears or returns, and removes the link when the
    /// interface disappears. The endpoint also adds the link to its connections, and removes the
    /// link from them.
    pub fn follow_interfaces(mut self, wanted: bool) -> Self {
        self.is_fixed = !wanted;
        self
    }

    /// Sets whether the endpoint shares memory with peers that are processes of this host and of
    /// this user. A connection to such a peer uses the shared memory, even if its handshake used
    /// another link. By default the endpoint shares memory in two cases: the program chose no link,
    /// or `shm` is among the names of [`EndpointBuilder::links`].
    ///
    /// A peer that shares memory may be able to read a whole large buffer although only some of its
    /// bytes are sent to the peer: see [`Buffer`](crate::Buffer).
    pub fn shared_memory(mut self, wanted: bool) -> Self {
        self.shared_memory = Some(wanted);
        self
    }

    /// Wraps each link that was added by [`EndpointBuilder::links`], for example in a
    /// [`Delay`](crate::Delay) or a [`Fault`](crate::Fault). Links that are added after `build` are
    /// not wrapped.
    pub fn wrap_links(mut self, wrapper: LinkWrapper) -> Self {
        self.wrapper = Some(wrapper);
        self
    }

    /// Sets the configuration of the UDP links.
    pub fn udp(mut self, config: UdpConfig) -> Self {
        self.udp = config;
        self
    }

    /// Sets sizes, limits and policies of the protocol.
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// Sets how threads wait. For threads that serve peers, this includes how long they continue to
    /// spin after the last frame.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ethernot::{Endpoint, Polling};
    ///
    /// // The default: threads spin while requests follow each other closely, and sleep otherwise.
    /// let server = Endpoint::builder().bind("127.0.0.1:0").polling(Polling::ADAPTIVE).build()?;
    /// // For clients that pause for up to 100 µs between two requests.
    /// let awake = Polling::for_at_most(Duration::from_micros(100));
    /// let quick = Endpoint::builder().bind("127.0.0.1:0").polling(awake).build()?;
    /// # drop((server, quick));
    /// # Ok::<(), ethernot::Error>(())
    /// ```
    pub fn polling(mut self, polling: Polling) -> Self {
        self.polling = polling;
        self
    }

    /// Sets whether a progress thread serves the endpoint while no application thread does. By
    /// default there is a progress thread. Without it, peers are served only while the application
    /// is in a call of the endpoint.
    pub fn progress_thread(mut self, wanted: bool) -> Self {
        self.without_progress_thread = !wanted;
        self
    }

    /// Pins the progress thread to the processor that has this number in the kernel.
    /// Pinning is useful with [`Polling::ALWAYS`], if no thread of the application uses this
    /// processor.
    ///
    /// ```no_run
    /// use ethernot::{Endpoint, Polling};
    ///
    /// let always = Endpoint::builder().polling(Polling::ALWAYS).progress_processor(3).build()?;
    /// # Ok::<(), ethernot::Error>(())
    /// ```
    pub fn progress_processor(mut self, processor: usize) -> Self {
        self.progress_processor = Some(processor);
        self
    }

    /// Sets the highest number of operations that can have a handle at the same time (8192 by
    /// default).
    pub fn handles_max(mut self, handles: u32) -> Self {
        self.handles_max = Some(handles);
        self
    }

    /// Sets how long the links stay open after the last clone is dropped (1 s by default). During
    /// this time, peers can confirm that connections are closed. A thread of the library waits for
    /// the peers.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = Some(grace);
        self
    }

    /// Builds the endpoint.
    ///
    /// # Errors
    /// Returns [`BindError`] if a link cannot be made, or a setting is out of range.
    pub fn build(self) -> Result<Endpoint, BindError> {
        let mut links = self.links;
        for address in &self.addresses {
            links.push(Box::new(UdpLink::bind(resolve(address)?, &self.udp)?));
        }
        let mut specs = Vec::new();
        for names in &self.named {
            specs.extend(LinkSpec::parse_list(names)?);
        }
        let wanted = match (specs.is_empty(), links.is_empty()) {
            (false, _) => Some(Wanted::Named(specs)),
            (true, true) => Some(Wanted::Usable),
            (true, false) => None,
        };
        let is_default = matches!(wanted, Some(Wanted::Usable));
        let opener = Opener { udp: self.udp, port: self.port };
        let named =
            wanted.map(|wanted| NamedLinks::open(opener, wanted, links.len())).transpose()?;
        let named = named.map(|(named, opened)| {
            let mut wrapper = self.wrapper;
            links.extend(opened.into_iter().enumerate().map(|(index, link)| match &mut wrapper {
                Some(wrap) => wrap(index, link),
                None => link,
            }));
            named
        });
        match (self.shared_memory, is_default) {
            (Some(true), _) => links.push(Box::new(ShmLink::open()?)),
            // If this host has no shared memory, continue with the other links.
            (None, true) => links.extend(ShmLink::open().map(|link| Box::new(link) as _)),
            (Some(false), _) | (None, false) => {}
        }
        let mut config = RuntimeConfig::from_entropy().map_err(BindError::Entropy)?;
        config.engine = self.engine;
        config.polling = self.polling;
        config.progress_thread = !self.without_progress_thread;
        config.progress_processor = self.progress_processor;
        config.handles_max = self.handles_max.unwrap_or(config.handles_max);
        let news = Arc::new(EventTable::default());
        let events = Arc::clone(&news);
        let runtime = Runtime::start(config, links, Box::new(move |event| events.on_event(event)))?;
        news.set_status(runtime.status());
        let domain = runtime.memory().allocate_domain();
        if domain == ProtectionDomain::NONE {
            return Err(BindError::NoDomain);
        }
        let grace = self.shutdown_grace.unwrap_or(SHUTDOWN_GRACE);
        let follows = named.is_some() && !self.is_fixed;
        let follower = OnceLock::new();
        let inner = Arc::new(EndpointInner {
            runtime,
            news,
            domain,
            named,
            follower,
            udp: self.udp,
            grace,
        });
        if follows {
            let started = Follower::start(Arc::downgrade(&inner)).map_err(BindError::Interfaces)?;
            inner.follower.get_or_init(|| started);
        }
        Ok(Endpoint { inner })
    }
}

impl std::fmt::Debug for EndpointBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointBuilder")
            .field("addresses", &self.addresses)
            .field("links", &self.links.len())
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Returns a builder for an endpoint.
    pub fn builder() -> EndpointBuilder {
        EndpointBuilder::default()
    }

    /// Creates an endpoint with one link on `address`, and with defaults for all other settings.
    ///
    /// # Errors
    /// Returns the errors of [`EndpointBuilder::build`].
    pub fn bind(address: impl Into<String>) -> Result<Self, BindError> {
        Self::builder().bind(address).build()
    }

    /// Creates an endpoint with links by name, such as `eth0,packet:eth1` (see [`LinkSpec`]), and
    /// with defaults for all other settings.
    ///
    /// # Errors
    /// Returns the errors of [`EndpointBuilder::build`].
    pub fn with_links(names: impl Into<String>) -> Result<Self, BindError> {
        Self::builder().links(names).build()
    }

    /// Returns the links, each with the address at which peers reach it: a UDP or a MAC address.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn links(&self) -> Result<Vec<(LinkId, PeerAddr)>, Forked> {
        self.inner.runtime.link_addresses()
    }

    /// Returns the addresses at which peers reach the links by UDP, in the order of the link
    /// identifiers.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn local_addresses(&self) -> Result<Vec<SocketAddr>, Forked> {
        let links = self.inner.runtime.link_addresses()?;
        Ok(links.into_iter().filter_map(|(_, address)| address.to_socket()).collect())
    }

    /// Adds a link while the endpoint is in use. `link` is an address such as `10.0.0.1:0` or a
    /// name (see [`LinkSpec`]). New connections use the link. To use it in existing connections,
    /// call [`Connection::add_link`](crate::Connection::add_link).
    ///
    /// # Errors
    /// Returns [`BindError`] if the link cannot be made.
    pub fn add_link(&self, link: &str) -> Result<LinkId, BindError> {
        let opener = Opener { udp: self.inner.udp, port: 0 };
        let opened = match opener.open_named(link) {
            Err(error @ BindError::NoInterface { .. }) => {
                // The text may be a host name.
                let address = resolve(link).map_err(|_| error)?;
                Box::new(UdpLink::bind(address, &self.inner.udp)?)
            }
            outcome => outcome?,
        };
        Ok(self.inner.runtime.attach_link(opened)?)
    }

    /// Removes a link. Connections continue over their other links. Returns false if there is no
    /// such link.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn remove_link(&self, link: LinkId) -> Result<bool, Forked> {
        self.inner.runtime.detach_link(link)
    }

    /// Returns the endpoint's table of registered memory.
    pub fn memory(&self) -> &Arc<MemoryTable> {
        self.inner.runtime.memory()
    }

    /// Returns the problems of links that do not work: of named links, and of links on interfaces
    /// that the endpoint could use. If the endpoint does not follow interfaces
    /// ([`EndpointBuilder::follow_interfaces`]), the list is empty.
    pub fn link_problems(&self) -> Vec<LinkProblem> {
        self.inner.named.as_ref().map(NamedLinks::problems).unwrap_or_default()
    }

    /// Returns the endpoint's default protection domain.
    pub fn domain(&self) -> ProtectionDomain {
        self.inner.domain
    }

    /// Makes progress, unless another thread is making progress. Polling a queue also makes
    /// progress. Returns at once, with one exception: if the application keeps polling without
    /// results and other threads need its processor, this call sleeps until a frame arrives, for at
    /// most 4 ms.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn drive(&self) -> Result<Drive, Forked> {
        self.inner.runtime.poll()
    }

    /// Removes the oldest completion from a queue that several connections share, and returns it.
    /// If the queue is empty, makes progress and tries once more.
    ///
    /// # Errors
    /// Returns [`PollError::ForeignQueue`] for a queue of another endpoint, and
    /// [`PollError::Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll(&self, queue: &CompletionQueue) -> Result<Option<Completion>, PollError> {
        self.inner.check_queue(queue)?;
        if let Some(completion) = queue.poll() {
            self.inner.runtime.on_found();
            return Ok(Some(completion));
        }
        self.inner.runtime.poll()?;
        Ok(queue.poll())
    }

    /// Returns the oldest completion like [`Endpoint::poll`]. If there is none, waits for at most
    /// `limit` (`None`: without a limit).
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires, [`WaitError::ForeignQueue`] for a
    /// queue of another endpoint, and [`WaitError::ShutDown`] if the endpoint is shut down and the
    /// queue is empty.
    pub fn wait_completion(
        &self,
        queue: &Arc<CompletionQueue>,
        limit: Option<Duration>,
    ) -> Result<Completion, WaitError> {
        self.inner.check_queue(queue)?;
        let found = self.inner.runtime.wait(Interest::Completion(queue), limit, || {
            queue.poll().map(Ok).or_else(|| self.inner.shut_down())
        })?;
        in_time(found, limit)?
    }

    /// Waits in a task for a completion, like [`Endpoint::wait_completion`] in a thread.
    ///
    /// # Errors
    /// Returns [`WaitError::ForeignQueue`] for a queue of another endpoint, and
    /// [`WaitError::ShutDown`] if the endpoint is shut down and the queue is empty.
    pub fn next_completion<'a>(
        &'a self,
        queue: &'a Arc<CompletionQueue>,
    ) -> impl Future<Output = Result<Completion, WaitError>> + Send + use<'a> {
        let inner = &*self.inner;
        let is_ours = inner.check_queue(queue);
        let found = UntilCompletion::new(inner, queue, || {
            queue.poll().map(Ok).or_else(|| inner.shut_down())
        });
        async move {
            is_ours?;
            found.await?
        }
    }

    /// Returns the counters of events that are not part of an established connection.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn counters(&self) -> Result<EndpointCounters, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| *engine.counters())
    }

    /// Returns the counters of the endpoint's threads.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn runtime_counters(&self) -> Result<RuntimeCounters, Forked> {
        self.inner.runtime.counters()
    }

    /// Returns the counters of a link's driver, or `None` if there is no such link.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn link_statistics(&self, link: LinkId) -> Result<Option<LinkStatistics>, Forked> {
        self.inner.runtime.link_statistics(link)
    }

    /// Returns the number of records in use, for each pool that all connections share.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn pool_use(&self) -> Result<PoolUse, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| engine.pool_use())
    }

    /// Returns the number of connections of the endpoint, including those whose handshake or close
    /// is pending.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn connection_count(&self) -> Result<u32, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| engine.connection_count())
    }

    /// Shuts the endpoint down in three steps: waits until the operations of all connections are
    /// complete, closes the connections, and waits until their peers have confirmed. Each wait
    /// takes at most `limit` (`None`: without a limit). Calls that wait on the endpoint return
    /// [`WaitError::ShutDown`].
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if at least one peer has not confirmed in time that its
    /// connection is closed.
    pub fn shutdown(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        self.inner.shutdown(limit)
    }

    /// Shuts the endpoint down in a task, like [`Endpoint::shutdown`] in a thread. If the future is
    /// dropped before the operations are complete, no connection is closed.
    ///
    /// ```no_run
    /// # async fn f(endpoint: ethernot::Endpoint) -> Result<(), ethernot::Error> {
    /// endpoint.shutting_down().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Endpoint::shutdown`].
    pub fn shutting_down(&self) -> impl Future<Output = Result<(), WaitError>> + Send + '_ {
        let inner = &*self.inner;
        async move {
            inner.met(inner.is_flushed()).await?;
            inner.close_all()?;
            Ok(inner.met(is_closed).await?)
        }
    }

    /// Waits until the operations of all connections that are open at the time of this call are
    /// complete, for at most `limit` (`None`: without a limit).
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint) -> Result<(), ethernot::Error> {
    /// endpoint.flush(Some(std::time::Duration::from_secs(5)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires.
    pub fn flush(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        let inner = &*self.inner;
        in_time(inner.until(limit, inner.is_flushed())?.then_some(()), limit)
    }

    /// Waits in a task until the operations of all connections are complete, like
    /// [`Endpoint::flush`] in a thread.
    ///
    /// # Errors
    /// Returns the errors of [`Endpoint::flush`].
    pub fn flushed(&self) -> impl Future<Output = Result<(), WaitError>> + Send + '_ {
        let inner = &*self.inner;
        async move { Ok(inner.met(inner.is_flushed()).await?) }
    }
}

impl EndpointInner {
    /// Checks that the queue belongs to this endpoint. The progress of this endpoint adds no
    /// completions to the queue of another endpoint, so a wait for that queue would not end.
    #[inline]
    pub(crate) fn check_queue(&self, queue: &CompletionQueue) -> Result<(), PollError> {
        if queue.is_foreign_to(self.runtime.queue_owner()) {
            Err(PollError::ForeignQueue)
        } else {
            Ok(())
        }
    }

    /// Returns the error [`WaitError::ShutDown`], if the endpoint is shut down.
    pub(crate) fn shut_down<R>(&self) -> Option<Result<R, WaitError>> {
        self.news.is_shut_down().then_some(Err(WaitError::ShutDown))
    }

    fn shutdown(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        let _ended_below = self.until(limit, self.is_flushed())?;
        self.close_all()?;
        in_time(self.until(limit, is_closed)?.then_some(()), limit)
    }

    /// Closes all connections. Calls that wait then return [`WaitError::ShutDown`].
    fn close_all(&self) -> Result<(), Forked> {
        let open = self.news.open_connections();
        self.runtime.control(move |engine, _memory, now| {
            for handle in open {
                // Ignore the error: the connection may have ended already.
                let _unknown = engine.close(now, handle, &[]);
            }
        })?;
        self.news.shut_down();
        self.runtime.wake_waiting();
        Ok(())
    }

    /// Returns a predicate on the engine. The predicate is true when the operations of all
    /// connections that are open now are complete.
    fn is_flushed(&self) -> impl Fn(&engine::Engine) -> bool + Send + Sync + 'static {
        let open = self.news.open_connections();
        move |engine| {
            let is_busy = |info: engine::ConnectionInfo| info.established && info.outstanding > 0;
            !open.iter().any(|&handle| engine.info(handle).is_some_and(is_busy))
        }
    }

    /// Waits in a task until `is_met` returns true. The predicate runs inside the engine.
    pub(crate) async fn met(
        &self,
        is_met: impl Fn(&engine::Engine) -> bool + Send + Sync + 'static,
    ) -> Result<(), Forked> {
        let is_met = Arc::new(is_met);
        let look = || {
            let look = Arc::clone(&is_met);
            match self.runtime.control(move |engine, _memory, _now| look(engine)) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(forked) => Some(Err(forked)),
            }
        };
        UntilLook::new(&self.runtime, ChangedBy::Peers, look).await?
    }

    /// Waits until `is_met` returns true, for at most `limit`. The predicate runs inside the
    /// engine. Returns whether `is_met` has returned true.
    pub(crate) fn until(
        &self,
        limit: Option<Duration>,
        is_met: impl Fn(&engine::Engine) -> bool + Send + Sync + 'static,
    ) -> Result<bool, Forked> {
        until(&self.runtime, limit, is_met)
    }
}

fn until(
    runtime: &Runtime,
    limit: Option<Duration>,
    is_met: impl Fn(&engine::Engine) -> bool + Send + Sync + 'static,
) -> Result<bool, Forked> {
    let is_met = Arc::new(is_met);
    let mut left = limit;
    loop {
        let look = Arc::clone(&is_met);
        if runtime.control(move |engine, _memory, _now| look(engine))? {
            return Ok(true);
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        let pause = left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN));
        runtime.wait(Interest::News, Some(pause), || None::<()>)?;
        left = left.map(|left| left.saturating_sub(pause));
    }
}

impl Linked for EndpointInner {
    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn named_links(&self) -> Option<&NamedLinks> {
        self.named.as_ref()
    }
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get()
            && self.runtime.check_process().is_ok()
        {
            follower.stop();
        }
        // In a forked child, do nothing. The endpoint belongs to the parent.
        if self.close_all().is_err() {
            return;
        }
        // A peer that is running confirms within `LOOK_AGAIN`. For silent peers another thread
        // waits, because the calling thread may belong to an executor.
        if !self.until(Some(LOOK_AGAIN), is_closed).is_ok_and(|is_closed| is_closed) {
            let grace = self.grace;
            self.runtime.stop_later(move |runtime| {
                let _late = until(runtime, Some(grace), is_closed);
            });
        }
    }
}

/// Returns whether all waits for peers have ended: each peer has confirmed the end of its
/// connection, or the engine no longer waits for the peer.
fn is_closed(engine: &engine::Engine) -> bool {
    !engine.is_closing()
}

fn resolve(address: &str) -> Result<SocketAddr, BindError> {
    let failed = |source| BindError::Resolve { address: address.into(), source };
    let mut found = address.to_socket_addrs().map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

/// Time for peers to confirm that connections are closed. The engine sends the close at most five
/// times, with pauses of 20 to 320 ms, and gives up after 620 ms.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Interval of checks for changes that cause no notification.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
