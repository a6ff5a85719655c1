//! Offering a service to peers.

use std::sync::Arc;
use std::time::Duration;

use engine::ConnectionHandle;
use runtime::{Forked, Interest};
use wire_edge::PeerAddr;

use crate::connect::ConnectOptions;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::{AcceptError, ListenError, WaitError, in_time};
use crate::news::{Request, Stage};

/// Receives the requests of peers for connections to one service. Dropped, it rejects them.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    service: u32,
}

impl Endpoint {
    /// Listens for requests for connections to `service`, a number that both sides agree on.
    pub fn listen(&self, service: u32) -> Result<Listener, ListenError> {
        self.inner.runtime.check_process()?;
        if !self.inner.news.open_service(service) {
            return Err(ListenError::InUse(service));
        }
        let listener = Listener { endpoint: self.clone(), service };
        self.inner.runtime.control(move |engine, _memory, _now| engine.listen(service))?;
        Ok(listener)
    }
}

impl Listener {
    /// Waits for the next request, for at most `limit` (`None`: for as long as it takes).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], and [`WaitError::ShutDown`] if the endpoint is shut down.
    pub fn accept(&self, limit: Option<Duration>) -> Result<ConnectionRequest, WaitError> {
        let inner = &self.endpoint.inner;
        let request = inner.runtime.wait(Interest::News, limit, || {
            inner.news.next_request(self.service).map(Ok).or_else(|| inner.shut_down())
        })?;
        in_time(request, limit)?.map(|request| self.request(request))
    }

    fn request(&self, request: Request) -> ConnectionRequest {
        ConnectionRequest {
            endpoint: self.endpoint.clone(),
            connection: Some(request.connection),
            peer: request.peer,
            private_data: request.private_data,
        }
    }

    /// The service that is listened for.
    pub const fn service(&self) -> u32 {
        self.service
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let service = self.service;
        let news = Arc::clone(&self.endpoint.inner.news);
        // In a forked child it is not ours to end.
        let _forked = self.endpoint.inner.runtime.control(move |engine, _memory, _now| {
            engine.unlisten(service);
            for request in news.close_service(service) {
                // The peer may have given up meanwhile.
                let _unknown = engine.reject(request.connection, &[]);
            }
        });
    }
}

/// A peer asks for a connection. Dropped, it is rejected.
#[derive(Debug)]
pub struct ConnectionRequest {
    endpoint: Endpoint,
    /// `None` once it is answered.
    connection: Option<ConnectionHandle>,
    peer: PeerAddr,
    private_data: Vec<u8>,
}

impl ConnectionRequest {
    /// What the peer sent along.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Where the request came from.
    pub const fn peer(&self) -> PeerAddr {
        self.peer
    }

    /// Accepts with defaults, tells the peer `private_data` (at most 512 bytes) and waits until it
    /// knows.
    pub fn accept(self, private_data: &[u8]) -> Result<Connection, AcceptError> {
        self.accept_with(ConnectOptions::new().private_data(private_data))
    }

    /// Accepts and waits until the peer knows.
    pub fn accept_with(mut self, options: ConnectOptions) -> Result<Connection, AcceptError> {
        let mut options = options;
        let inner = Arc::clone(&self.endpoint.inner);
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
        let stage = inner.runtime.wait(Interest::News, options.limit, || {
            match connection.fate().stage() {
                Stage::Pending => None,
                stage => Some(stage),
            }
        })?;
        match stage {
            Some(Stage::Closed { reason, was_established: false, .. }) => {
                Err(AcceptError::Closed(reason))
            }
            Some(_) => Ok(connection),
            // The connection is dropped, which closes it.
            None => Err(AcceptError::TimedOut { limit: options.limit.unwrap_or_default() }),
        }
    }

    /// Rejects, and tells the peer `private_data` (at most 512 bytes, more is cut off).
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Forked> {
        self.reject_with(private_data.to_vec())
    }

    fn reject_with(&mut self, private_data: Vec<u8>) -> Result<(), Forked> {
        let Some(handle) = self.connection.take() else { return Ok(()) };
        self.endpoint.inner.runtime.control(move |engine, _memory, _now| {
            // The peer may have given up meanwhile.
            let _unknown = engine.reject(handle, &private_data);
        })
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        // In a forked child it is not ours to answer.
        let _forked = self.reject_with(Vec::new());
    }
}
