//! Listens for connection requests of peers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use engine::ConnectionHandle;
use runtime::{Forked, Interest, SpinBudget};
use wire_edge::PeerAddr;

use crate::connect::ConnectOptions;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointInner};
use crate::error::{AcceptError, ListenError, WaitError, in_time};
use crate::news::{Request, Stage, Subscriber, Topic};
use crate::tasks::UntilNews;

/// Receives the connection requests of peers for one service. Dropping the listener rejects the
/// pending requests and ends the service.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    service: u32,
}

impl Endpoint {
    /// Listens for connection requests to `service`. Both ends must agree on this number.
    ///
    /// # Errors
    /// Returns [`ListenError`] if the service is in use, the endpoint is shut down, or the process
    /// is a forked child.
    pub fn listen(&self, service: u32) -> Result<Listener, ListenError> {
        self.inner.runtime.check_process()?;
        if self.inner.news.is_shut_down() {
            return Err(ListenError::ShutDown);
        }
        if !self.inner.news.open_service(service) {
            return Err(ListenError::InUse(service));
        }
        let listener = Listener { endpoint: self.clone(), service };
        self.inner.runtime.control(move |engine, _memory, _now| engine.listen(service))?;
        Ok(listener)
    }
}

impl Listener {
    /// Waits for the next request, for at most `limit` (`None`: without a limit).
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires, and [`WaitError::ShutDown`] if the
    /// endpoint is shut down.
    pub fn accept(&self, limit: Option<Duration>) -> Result<ConnectionRequest, WaitError> {
        let inner = &self.endpoint.inner;
        let request = inner.runtime.wait(Interest::News, limit, || {
            inner.news.next_request(self.service).map(Ok).or_else(|| inner.shut_down())
        })?;
        in_time(request, limit)?.map(|request| self.request(request))
    }

    /// Waits in a task for the next request, like [`Listener::accept`] in a thread. If the future
    /// is dropped, no request is lost.
    ///
    /// # Errors
    /// Returns the errors of [`Listener::accept`].
    pub fn next_request(
        &self,
    ) -> impl Future<Output = Result<ConnectionRequest, WaitError>> + Send + '_ {
        let inner = &*self.endpoint.inner;
        let found = UntilNews::new(inner, Topic::Service(self.service), || {
            inner.news.next_request(self.service).map(Ok).or_else(|| inner.shut_down())
        });
        async move { found.await?.map(|request| self.request(request)) }
    }

    /// Returns the oldest request, if there is one.
    pub(crate) fn poll(&self) -> Option<ConnectionRequest> {
        let request = self.endpoint.inner.news.next_request(self.service)?;
        Some(self.request(request))
    }

    pub(crate) fn endpoint(&self) -> &Arc<EndpointInner> {
        &self.endpoint.inner
    }

    fn request(&self, request: Request) -> ConnectionRequest {
        ConnectionRequest {
            endpoint: self.endpoint.clone(),
            connection: Some(request.connection),
            peer: request.peer,
            private_data: request.private_data,
        }
    }

    /// Returns the number of the service.
    pub const fn service(&self) -> u32 {
        self.service
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let service = self.service;
        let news = Arc::clone(&self.endpoint.inner.news);
        // In a forked child, this call fails and changes nothing, because the service belongs to
        // the parent.
        let _forked = self.endpoint.inner.runtime.control(move |engine, _memory, _now| {
            engine.unlisten(service);
            for request in news.close_service(service) {
                // Ignore the error: the peer may have cancelled the request already.
                let _unknown = engine.reject(request.connection, &[]);
            }
        });
    }
}

/// A connection request of a peer. Dropping this object rejects the request.
#[derive(Debug)]
pub struct ConnectionRequest {
    endpoint: Endpoint,
    /// `None` after the request has been accepted or rejected.
    connection: Option<ConnectionHandle>,
    peer: PeerAddr,
    private_data: Vec<u8>,
}

impl ConnectionRequest {
    /// Returns the private data of the request, at most 512 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the source address of the request.
    pub const fn peer(&self) -> PeerAddr {
        self.peer
    }

    /// Accepts the request with default options, sends the peer `private_data` (at most 512 bytes),
    /// and waits until the peer has confirmed the acceptance.
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause.
    pub fn accept(self, private_data: &[u8]) -> Result<Connection, AcceptError> {
        self.accept_with(ConnectOptions::new().private_data(private_data))
    }

    /// Accepts the request and waits until the peer has confirmed the acceptance.
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause.
    pub fn accept_with(self, options: ConnectOptions) -> Result<Connection, AcceptError> {
        let limit = options.limit;
        self.start_accept(options)?.wait(limit)
    }

    /// Accepts the request without waiting for the peer's confirmation. Returns an object that can
    /// wait for the confirmation. Ignores the limit in the options.
    ///
    /// # Errors
    /// Returns [`AcceptError`] if the request no longer exists, or the options are out of range.
    pub fn start_accept(mut self, options: ConnectOptions) -> Result<Accepting, AcceptError> {
        let mut options = options;
        let inner = Arc::clone(&self.endpoint.inner);
        if inner.news.is_shut_down() {
            return Err(AcceptError::ShutDown);
        }
        let domain = options.domain_of(&inner).map_err(AcceptError::Domain)?;
        let Some(handle) = self.connection else { return Err(engine::AcceptError::Gone.into()) };
        let queue = options.take_queue(&inner, AcceptError::ForeignQueue)?;
        let completions = Arc::clone(&queue);
        let news = Arc::clone(&inner.news);
        let (private_data, terms) = (options.private_data, options.terms);
        let fate = inner.runtime.control(move |engine, _memory, now| {
            engine.accept_under(now, handle, domain, completions, &terms, &private_data)?;
            Ok::<_, engine::AcceptError>(news.follow(handle))
        })??;
        self.connection = None;
        let mut connection = Connection::new(&self.endpoint, handle, queue, fate);
        connection.set_peer_data(std::mem::take(&mut self.private_data));
        Ok(Accepting {
            connection: Some(connection),
            spin_budget: SpinBudget::default(),
            subscriber: None,
        })
    }

    /// Rejects the request and sends `private_data` to the peer (at most 512 bytes; the rest is
    /// dropped).
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Forked> {
        self.reject_with(private_data.to_vec())
    }

    fn reject_with(&mut self, private_data: Vec<u8>) -> Result<(), Forked> {
        let Some(handle) = self.connection.take() else { return Ok(()) };
        self.endpoint.inner.runtime.control(move |engine, _memory, _now| {
            // Ignore the error: the peer may have cancelled the request already.
            let _unknown = engine.reject(handle, &private_data);
        })
    }
}

/// An accepted connection whose peer has not confirmed the acceptance yet. Dropping this object
/// closes the connection.
///
/// A thread calls [`Accepting::wait`]. A task awaits this object, which is a future.
#[derive(Debug)]
#[must_use = "dropped, the connection is given up"]
pub struct Accepting {
    /// `None` after the connection has been returned.
    connection: Option<Connection>,
    spin_budget: SpinBudget,
    subscriber: Option<Subscriber>,
}

impl Accepting {
    /// Waits until the peer has confirmed the acceptance, for at most `limit` (`None`: until the
    /// peer is considered dead).
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Connection, AcceptError> {
        self.wait_until(limit)
    }

    /// Waits like [`Accepting::wait`], but the acceptance stays valid after
    /// [`AcceptError::TimedOut`]. So the caller may call this method again. With a limit of 0, only
    /// checks whether the confirmation has arrived.
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause. If an earlier call has returned the
    /// outcome, returns [`engine::AcceptError::Gone`].
    pub fn wait_for(&mut self, limit: Duration) -> Result<Connection, AcceptError> {
        self.wait_until(Some(limit))
    }

    fn wait_until(&mut self, limit: Option<Duration>) -> Result<Connection, AcceptError> {
        let gone = || AcceptError::from(engine::AcceptError::Gone);
        let connection = self.connection.as_ref().ok_or_else(gone)?;
        let runtime = &connection.inner().endpoint.runtime;
        let stage = runtime.wait(Interest::News, limit, || connection.fate().settled())?;
        let limit = limit.unwrap_or(Duration::MAX);
        let stage = stage.ok_or(AcceptError::TimedOut { limit })?;
        accepted(self.connection.take().ok_or_else(gone)?, &stage)
    }
}

impl Future for Accepting {
    type Output = Result<Connection, AcceptError>;

    /// Returns the error `AcceptError::Refused(Gone)` if an earlier poll has returned the outcome.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { connection, spin_budget, subscriber } = self.get_mut();
        let Some(waiting) = &connection else {
            return Poll::Ready(Err(engine::AcceptError::Gone.into()));
        };
        let stage = ready!(waiting.poll_settled(context, spin_budget, subscriber))?;
        *subscriber = None;
        Poll::Ready(match connection.take() {
            Some(connection) => accepted(connection, &stage),
            None => Err(engine::AcceptError::Gone.into()),
        })
    }
}

/// Returns the connection if it is established. Otherwise returns the reason why it is not.
fn accepted(connection: Connection, stage: &Stage) -> Result<Connection, AcceptError> {
    match *stage {
        Stage::Closed { reason, was_established: false, .. } => Err(AcceptError::Closed(reason)),
        _ => Ok(connection),
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        // In a forked child, this call fails and changes nothing, because the request belongs to
        // the parent.
        let _forked = self.reject_with(Vec::new());
    }
}
