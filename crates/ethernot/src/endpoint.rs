//! Endpoints: how they are made, their links, and what they count.

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
use crate::news::NewsDesk;
use crate::tasks::{UntilCompletion, UntilLook};

/// What an endpoint is to be. The defaults work with nothing at all: without a link, it takes UDP on
/// every interface that is up, has a carrier and an address and leaves the host (the loopback
/// interface if there is no other), and on whatever else peers make necessary that it connects to.
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

/// Puts a link into another that does something more or worse. Gets the position of the link among
/// those named.
pub type LinkWrapper = Box<dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link> + Send>;

/// One side of remote memory access: links, memory regions and connections of a process.
///
/// Cheap to clone and to share between threads. The last clone that goes away, with all connections,
/// listeners and handles made from it, closes the endpoint's connections. It waits a millisecond at most for peers to hear of
/// it; for those that are silent another thread waits, and the links stay open for as long
/// ([`EndpointBuilder::shutdown_grace`]). To be sure of operations and peers, call [`Endpoint::shutdown`] before.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) inner: Arc<EndpointInner>,
}

#[derive(Debug)]
pub(crate) struct EndpointInner {
    pub(crate) runtime: Runtime,
    pub(crate) news: Arc<NewsDesk>,
    pub(crate) domain: ProtectionDomain,
    /// Links that were made from names or by default.
    pub(crate) named: Option<NamedLinks>,
    follower: OnceLock<Follower>,
    udp: UdpConfig,
    grace: Duration,
}

impl EndpointBuilder {
    /// Adds a link on this address; port 0 takes a free one. May be called several times.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Adds a link with a driver of one's own, or a UDP link in a wrapper such as
    /// [`Capture`](crate::Capture). It comes before those of [`EndpointBuilder::bind`].
    pub fn link(mut self, link: Box<dyn Link>) -> Self {
        self.links.push(link);
        self
    }

    /// Adds links by name, such as `eth0,packet:eth1/vlan=100` (see [`LinkSpec`]). They come after
    /// those of [`EndpointBuilder::link`] and [`EndpointBuilder::bind`].
    pub fn links(mut self, names: impl Into<String>) -> Self {
        self.named.push(names.into());
        self
    }

    /// Sets the port of links for which none is named, by UDP and on raw Ethernet alike. The default
    /// of 0 takes a free one on each; a server chooses one that its clients know.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets whether links made from names or by default follow their interfaces (they do): one that
    /// appears, or comes back, gets its link, one that vanishes loses it, and connections follow.
    pub fn follow_interfaces(mut self, wanted: bool) -> Self {
        self.is_fixed = !wanted;
        self
    }

    /// Sets whether memory is shared with peers that are processes of this host, of the same user:
    /// whatever link a connection begins on, it goes on over that memory then. By default it is if
    /// no link was chosen, and where `shm` is among the names of [`EndpointBuilder::links`].
    ///
    /// Such a peer may see all of a large buffer that something is sent to it from: see
    /// [`Buffer`](crate::Buffer).
    pub fn shared_memory(mut self, wanted: bool) -> Self {
        self.shared_memory = Some(wanted);
        self
    }

    /// Puts each link that [`EndpointBuilder::links`] names into a wrapper such as
    /// [`Delay`](crate::Delay) or [`Fault`](crate::Fault). Links that come later are not wrapped.
    pub fn wrap_links(mut self, wrapper: LinkWrapper) -> Self {
        self.wrapper = Some(wrapper);
        self
    }

    /// Sets how the UDP links are made.
    pub fn udp(mut self, config: UdpConfig) -> Self {
        self.udp = config;
        self
    }

    /// Sets sizes, limits and policies of the protocol.
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// Sets how threads wait, and how long those that serve peers spin for more.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ethernot::{Endpoint, Polling};
    ///
    /// // The default: awake while peers ask again soon, at no cost while they do not.
    /// let server = Endpoint::builder().bind("127.0.0.1:0").polling(Polling::ADAPTIVE).build()?;
    /// // Its clients think for up to a tenth of a millisecond between two questions.
    /// let awake = Polling::for_at_most(Duration::from_micros(100));
    /// let quick = Endpoint::builder().bind("127.0.0.1:0").polling(awake).build()?;
    /// # drop((server, quick));
    /// # Ok::<(), ethernot::Error>(())
    /// ```
    pub fn polling(mut self, polling: Polling) -> Self {
        self.polling = polling;
        self
    }

    /// Sets whether a thread serves the endpoint while the application does not (it does by
    /// default). Without one, peers are only served while the application is in a call.
    pub fn progress_thread(mut self, wanted: bool) -> Self {
        self.without_progress_thread = !wanted;
        self
    }

    /// Runs the progress thread on this processor only, counted as the kernel does. It suits [`Polling::ALWAYS`],
    /// with a processor that the application leaves to it.
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

    /// Sets how many operations may have a handle at a time (8192 by default).
    pub fn handles_max(mut self, handles: u32) -> Self {
        self.handles_max = Some(handles);
        self
    }

    /// Sets for how long the links stay open after the last clone was dropped, for peers to hear that connections are
    /// closed (1 s by default). A thread of the library waits for them.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = Some(grace);
        self
    }

    /// Makes the endpoint.
    ///
    /// # Errors
    /// [`BindError`]: a link cannot be made, or a setting is out of range.
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
            // A host that has none of it does with what else there is.
            (None, true) => links.extend(ShmLink::open().map(|link| Box::new(link) as _)),
            (Some(false), _) | (None, false) => {}
        }
        let mut config = RuntimeConfig::from_entropy().map_err(BindError::Entropy)?;
        config.engine = self.engine;
        config.polling = self.polling;
        config.progress_thread = !self.without_progress_thread;
        config.progress_processor = self.progress_processor;
        config.handles_max = self.handles_max.unwrap_or(config.handles_max);
        let news = Arc::new(NewsDesk::default());
        let desk = Arc::clone(&news);
        let runtime = Runtime::start(config, links, Box::new(move |event| desk.on_event(event)))?;
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
    /// Describes an endpoint to be made.
    pub fn builder() -> EndpointBuilder {
        EndpointBuilder::default()
    }

    /// Makes an endpoint with one link on `address` and defaults for the rest.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::build`].
    pub fn bind(address: impl Into<String>) -> Result<Self, BindError> {
        Self::builder().bind(address).build()
    }

    /// Makes an endpoint with links by name, such as `eth0,packet:eth1` (see [`LinkSpec`]), and defaults for the
    /// rest.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::build`].
    pub fn with_links(names: impl Into<String>) -> Result<Self, BindError> {
        Self::builder().links(names).build()
    }

    /// Returns the links with the address at which peers can reach each: by UDP or by station.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn links(&self) -> Result<Vec<(LinkId, PeerAddr)>, Forked> {
        self.inner.runtime.link_addresses()
    }

    /// Returns the addresses at which peers can reach each link by UDP, in the order of their identifiers.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn local_addresses(&self) -> Result<Vec<SocketAddr>, Forked> {
        let links = self.inner.runtime.link_addresses()?;
        Ok(links.into_iter().filter_map(|(_, address)| address.to_socket()).collect())
    }

    /// Adds a link while the endpoint is in use, on an address such as `10.0.0.1:0` or by name (see
    /// [`LinkSpec`]). Connections made from now on use it; others by
    /// [`Connection::add_link`](crate::Connection::add_link).
    ///
    /// # Errors
    /// [`BindError`]: the link cannot be made.
    pub fn add_link(&self, link: &str) -> Result<LinkId, BindError> {
        let opener = Opener { udp: self.inner.udp, port: 0 };
        let opened = match opener.open_named(link) {
            Err(error @ BindError::NoInterface { .. }) => {
                // It may be the name of a host.
                let address = resolve(link).map_err(|_| error)?;
                Box::new(UdpLink::bind(address, &self.inner.udp)?)
            }
            outcome => outcome?,
        };
        Ok(self.inner.runtime.attach_link(opened)?)
    }

    /// Removes a link; connections go on over their others. Returns false if there is no such link.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn remove_link(&self, link: LinkId) -> Result<bool, Forked> {
        self.inner.runtime.detach_link(link)
    }

    /// Returns the table of registered memory of the endpoint.
    pub fn memory(&self) -> &Arc<MemoryTable> {
        self.inner.runtime.memory()
    }

    /// Returns what prevents links that were named, or that interfaces make possible. Returns nothing where
    /// interfaces are not followed ([`EndpointBuilder::follow_interfaces`]).
    pub fn link_problems(&self) -> Vec<LinkProblem> {
        self.inner.named.as_ref().map(NamedLinks::problems).unwrap_or_default()
    }

    /// Returns the protection domain that is used where none is named.
    pub fn domain(&self) -> ProtectionDomain {
        self.inner.domain
    }

    /// Makes progress, unless another thread is at it. Polling does this too. Returns at once, except that an application which
    /// polls without finding anything while other threads want its processor sleeps until a frame comes, for at most 4 ms.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn drive(&self) -> Result<Drive, Forked> {
        self.inner.runtime.poll()
    }

    /// Takes the oldest completion of a queue that connections share; makes progress if it is empty.
    ///
    /// # Errors
    /// [`PollError::ForeignQueue`] for a queue of another endpoint, [`PollError::Forked`] in a child process after
    /// `fork`.
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

    /// Takes the oldest completion as [`Endpoint::poll`] does, but waits for at most `limit` (`None`: for as long
    /// as it takes).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::ForeignQueue`], and [`WaitError::ShutDown`] if the endpoint
    /// is shut down and the queue empty.
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

    /// Awaits a completion, as [`Endpoint::wait_completion`] waits for one.
    ///
    /// # Errors
    /// [`WaitError::ForeignQueue`], and [`WaitError::ShutDown`] if the endpoint is shut down and the queue empty.
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

    /// Returns the counters of what concerns no established connection.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn counters(&self) -> Result<EndpointCounters, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| *engine.counters())
    }

    /// Returns the counters of the threads of the endpoint.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn runtime_counters(&self) -> Result<RuntimeCounters, Forked> {
        self.inner.runtime.counters()
    }

    /// Returns what the driver of a link has counted, if there is such a link.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn link_statistics(&self, link: LinkId) -> Result<Option<LinkStatistics>, Forked> {
        self.inner.runtime.link_statistics(link)
    }

    /// Returns how many records that all connections share are in use.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn pool_use(&self) -> Result<PoolUse, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| engine.pool_use())
    }

    /// Returns the number of connections of the endpoint, with those that are being made or closed.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn connection_count(&self) -> Result<u32, Forked> {
        self.inner.runtime.control(|engine, _memory, _now| engine.connection_count())
    }

    /// Waits until the operations of all connections are complete, closes the connections and waits
    /// until their peers have heard of it, for at most `limit` each (`None`: for as long as it takes). Calls
    /// that wait for something of the endpoint return [`WaitError::ShutDown`].
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]: some peer has not heard of it.
    pub fn shutdown(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        self.inner.shutdown(limit)
    }

    /// Shuts down in a task as [`Endpoint::shutdown`] does in a thread. A future that is dropped before the
    /// operations are complete closes nothing.
    ///
    /// ```no_run
    /// # async fn f(endpoint: ethernot::Endpoint) -> Result<(), ethernot::Error> {
    /// endpoint.shutting_down().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Endpoint::shutdown`].
    pub fn shutting_down(&self) -> impl Future<Output = Result<(), WaitError>> + Send + '_ {
        let inner = &*self.inner;
        async move {
            inner.met(inner.is_flushed()).await?;
            inner.close_all()?;
            Ok(inner.met(is_closed).await?)
        }
    }

    /// Waits until the operations of all connections are complete that are open now, for at most `limit` (`None`: for as long
    /// as it takes).
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint) -> Result<(), ethernot::Error> {
    /// endpoint.flush(Some(std::time::Duration::from_secs(5)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn flush(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        let inner = &*self.inner;
        in_time(inner.until(limit, inner.is_flushed())?.then_some(()), limit)
    }

    /// Awaits that the operations of all connections are complete, as [`Endpoint::flush`] waits for it.
    ///
    /// # Errors
    /// As for [`Endpoint::flush`].
    pub fn flushed(&self) -> impl Future<Output = Result<(), WaitError>> + Send + '_ {
        let inner = &*self.inner;
        async move { Ok(inner.met(inner.is_flushed()).await?) }
    }
}

impl EndpointInner {
    /// No other endpoint fills the queue: progress here would bring nothing into it.
    #[inline]
    pub(crate) fn check_queue(&self, queue: &CompletionQueue) -> Result<(), PollError> {
        if queue.is_foreign_to(self.runtime.queue_owner()) {
            Err(PollError::ForeignQueue)
        } else {
            Ok(())
        }
    }

    /// The error of calls that wait, once the endpoint is shut down.
    pub(crate) fn shut_down<R>(&self) -> Option<Result<R, WaitError>> {
        self.news.is_shut_down().then_some(Err(WaitError::ShutDown))
    }

    fn shutdown(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        let _ended_below = self.until(limit, self.is_flushed())?;
        self.close_all()?;
        in_time(self.until(limit, is_closed)?.then_some(()), limit)
    }

    /// Closes all connections. Calls that wait end with an error that says that the endpoint is shut down.
    fn close_all(&self) -> Result<(), Forked> {
        let open = self.news.open_connections();
        self.runtime.control(move |engine, _memory, now| {
            for handle in open {
                // It may have ended by itself meanwhile.
                let _unknown = engine.close(now, handle, &[]);
            }
        })?;
        self.news.shut_down();
        self.runtime.wake_waiting();
        Ok(())
    }

    /// Whether the operations of all connections that are open now are complete, to be looked at inside the engine.
    fn is_flushed(&self) -> impl Fn(&engine::Engine) -> bool + Send + Sync + 'static {
        let open = self.news.open_connections();
        move |engine| {
            let is_busy = |info: engine::ConnectionInfo| info.established && info.outstanding > 0;
            !open.iter().any(|&handle| engine.info(handle).is_some_and(is_busy))
        }
    }

    /// Awaits that `is_met`, looked at inside the engine.
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

    /// Waits until `is_met`, looked at inside the engine, for at most `limit`; whether it is.
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
        // In a forked child the endpoint is not ours to shut down.
        if self.close_all().is_err() {
            return;
        }
        // Peers that are there have heard of it within a moment. The calling thread may be an executor's, and waits for no
        // others.
        if !self.until(Some(LOOK_AGAIN), is_closed).is_ok_and(|is_closed| is_closed) {
            let grace = self.grace;
            self.runtime.stop_later(move |runtime| {
                let _late = until(runtime, Some(grace), is_closed);
            });
        }
    }
}

/// Whether all peers have heard that their connections are closed, or are given up.
fn is_closed(engine: &engine::Engine) -> bool {
    !engine.is_closing()
}

fn resolve(address: &str) -> Result<SocketAddr, BindError> {
    let failed = |source| BindError::Resolve { address: address.into(), source };
    let mut found = address.to_socket_addrs().map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

/// Time for peers to acknowledge that connections are closed: five repetitions at 20 to 320 ms.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Pause between looks at what nothing announces.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
