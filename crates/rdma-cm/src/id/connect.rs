//! Requests, answers and disconnection.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use verbs::{Error, QueuePair, QueuePairType};

use super::news::Ear;
use super::{Id, Inner, Own, QUEUE_KEY, State};
use crate::manager::{Caller, Exchange, ManagedDevice, Route};
use crate::message::{End, REJECTED_BY_PROGRAM, Refusal, Reply, Request};

/// Parameters of a connection request.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Private data for the peer's program.
    pub private_data: Vec<u8>,
    /// Maximum number of reads and atomics of the peer that this side answers at the same time.
    /// `None` stands for the device's maximum.
    pub responder_resources: Option<u8>,
    /// Maximum number of reads and atomics that this side has in flight. `None` stands for the
    /// device's maximum.
    pub initiator_depth: Option<u8>,
    /// Whether this side offers end-to-end flow control.
    pub flow_control: bool,
    /// Number of times that this side retransmits a request which gets no answer.
    pub retries: u8,
    /// Number of times that the peer retransmits a message for which this side has no receive
    /// posted.
    pub not_ready_retries: u8,
    /// Properties of a queue pair that the program has created itself: whether it uses a shared
    /// receive queue, and its number. Used only if the id has no queue pair.
    pub external: (bool, u32),
}

/// Parameters of an acceptance.
#[derive(Clone, Debug, Default)]
pub struct AcceptOptions {
    /// The parameters of the connection. `None` stands for the parameters that the peer asked for.
    pub options: Option<ConnectOptions>,
    /// Queue key for datagrams. `None` stands for [`QUEUE_KEY`].
    pub queue_key: Option<u32>,
}

impl Id {
    /// Sends a connection request. Later events report the outcome.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the route is not resolved, if the private data is too long, or
    /// if there is no queue pair and the wire must connect one.
    pub fn connect(&self, options: &ConnectOptions) -> Result<(), Error> {
        check_private(&options.private_data, self.private_data_limits().request)?;
        let queue_pair = if self.is_connected_by_wire() {
            Some(self.queue_pair_for_wire(options.external.1)?)
        } else {
            self.connected_queue_pair()
        };
        let (manager, route, request) = {
            let mut inner = self.lock();
            inner.check("connecting", |state| state == State::RouteResolved)?;
            let (Some(ManagedDevice { device, manager }), Some(local), Some(remote)) =
                (inner.device.clone(), inner.local, inner.remote)
            else {
                return Err(Error::Invalid("the id has no address".into()));
            };
            let max = device.attributes().read_depth_max;
            inner.own = Own {
                responder_resources: options.responder_resources.unwrap_or(max),
                initiator_depth: options.initiator_depth.unwrap_or(max),
                retries: options.retries.min(7),
                ..inner.own
            };
            inner.take_numbers(options, QUEUE_KEY);
            let Some((gid, _)) = inner.gid() else {
                return Err(Error::Invalid("the device has no address".into()));
            };
            let mut end = inner.end(gid, self.service, options);
            end.takes_over = queue_pair.is_some();
            let route = Route { gid, from: canonical(local), to: canonical(remote) };
            inner.state = State::Connecting;
            let (space, port, source_port) = (self.space, remote.port(), local.port());
            let private_data = options.private_data.clone();
            let to = verbs::Gid::of(route.to.ip());
            let request = Request { space, port, source_port, to, end, private_data };
            (manager, route, request)
        };
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let caller: Arc<dyn Caller> = Arc::new(Ear(self.this.clone()));
        match manager.connect(route, &request, queue_pair.as_ref(), caller) {
            Ok(asked) => {
                *exchange = Some(asked);
                Ok(())
            }
            Err(error) => {
                drop(exchange);
                self.lock().back_from(State::Connecting, State::RouteResolved);
                Err(error)
            }
        }
    }

    /// Accepts a request. Only the responder calls this. The requester calls [`Id::establish`]
    /// instead.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the request no longer exists, if the private data is too long,
    /// or if there is no queue pair and the wire must connect one.
    pub fn accept(&self, accept: &AcceptOptions) -> Result<(), Error> {
        let said = accept.options.clone().unwrap_or_default();
        check_private(&said.private_data, self.private_data_limits().reply)?;
        let takes_over = {
            let mut inner = self.lock();
            inner.check("accepting", |state| state == State::Requested)?;
            inner.agree(accept.options.as_ref());
            inner.take_numbers(&said, accept.queue_key.unwrap_or(QUEUE_KEY));
            inner.peer.is_some_and(|peer| peer.takes_over)
        };
        let taken = if self.is_connected_by_wire() {
            Some(self.queue_pair_for_wire(said.external.1)?)
        } else {
            self.prepare_queue_pair(takes_over)?
        };
        let reply = {
            let mut inner = self.lock();
            inner.check("accepting", |state| state == State::Requested)?;
            let Some((gid, _)) = inner.gid() else {
                return Err(Error::Invalid("the device has no address".into()));
            };
            let mut end = inner.end(gid, self.service, &said);
            end.takes_over = taken.is_some();
            let is_datagram = self.service == QueuePairType::Datagram;
            inner.state = if is_datagram { State::Connected } else { State::Accepted };
            Reply { end, private_data: said.private_data }
        };
        let accepted = self.asked().and_then(|asked| asked.accept(&reply, taken.as_ref()));
        if accepted.is_err() {
            {
                let mut inner = self.lock();
                inner.back_from(State::Accepted, State::Failed);
                inner.back_from(State::Connected, State::Failed);
            }
            self.fail_queue_pair();
        }
        accepted
    }

    /// Rejects the peer's request, or the peer's acceptance of this side's request.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there is no request, or if the private data is too long.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        check_private(private_data, self.private_data_limits().refusal)?;
        {
            let mut inner = self.lock();
            let is_allowed = |state| matches!(state, State::Requested | State::Answered);
            inner.check("rejecting", is_allowed)?;
            inner.state = State::Failed;
        }
        let reason = match self.service {
            QueuePairType::Datagram => DATAGRAMS_REJECTED,
            _ => REJECTED_BY_PROGRAM,
        };
        let refusal = Refusal { reason, private_data: private_data.to_vec() };
        let exchange = self.take_exchange();
        exchange.map_or(Ok(()), |exchange| exchange.reject(&refusal))
    }

    /// Establishes the connection. A requester calls this if its program has connected the queue
    /// pair itself. Does nothing if the wire (the transport) has connected the queue pair.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the peer has not accepted. Also returns [`Error::Invalid`] if
    /// the id has a queue pair, because the id connects that queue pair.
    pub fn establish(&self) -> Result<(), Error> {
        let is_established = self.is_connected_by_wire();
        let mut inner = self.lock();
        inner.check("establishing", |state| {
            state == State::Answered || is_established && state == State::Connected
        })?;
        if inner.queue_pair.is_some() {
            return Err(Error::Invalid("the id connects its queue pair itself".into()));
        }
        inner.state = State::Connected;
        Ok(())
    }

    /// Ends the connection and flushes the work of the queue pair. An event reports later that the
    /// connection has ended.
    ///
    /// Sends that were posted before are sent first. If the wire (the transport) cannot send them
    /// at once, the connection ends as soon as they are sent, and the queue pair then enters ERR.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the id was never connected.
    pub fn disconnect(&self) -> Result<(), Error> {
        {
            let inner = self.lock();
            let is_allowed = |state| {
                use State::{Accepted, Answered, Connected, Disconnected};
                matches!(state, Answered | Accepted | Connected | Disconnected)
            };
            inner.check("disconnecting", is_allowed)?;
        }
        if self.service == QueuePairType::Datagram {
            return Err(Error::Invalid("an id for datagrams has no connection".into()));
        }
        match self.exchange() {
            // The wire moves the queue pair to ERR itself.
            Some(exchange) if self.is_connected_by_wire() => exchange.close(),
            exchange => {
                self.fail_queue_pair();
                if let Some(exchange) = exchange {
                    exchange.close();
                }
            }
        }
        Ok(())
    }

    /// Moves the id's queue pair to RTS before the request is accepted, so that the queue pair is
    /// ready for the peer's first message. Returns the queue pair if it takes over the connection
    /// of the exchange. `takes_over` says whether the peer offers this.
    fn prepare_queue_pair(&self, takes_over: bool) -> Result<Option<Arc<QueuePair>>, Error> {
        let taken = self.connected_queue_pair().filter(|_| takes_over);
        match &taken {
            Some(queue_pair) => self.pass_to_sending(queue_pair, true)?,
            None => self.connect_queue_pair()?,
        }
        Ok(taken)
    }

    /// Returns the exchange of the pending request.
    fn asked(&self) -> Result<Arc<dyn Exchange>, Error> {
        self.exchange().ok_or_else(|| Error::Invalid("the request was withdrawn".into()))
    }
}

impl Inner {
    /// Stores the number and the queue key of the queue pair that will be connected, and whether
    /// its receives are shared.
    fn take_numbers(&mut self, options: &ConnectOptions, queue_key: u32) {
        (self.own.is_shared, self.own.number) = match &self.queue_pair {
            Some(queue_pair) => (queue_pair.shared_queue().is_some(), queue_pair.number()),
            None => (options.external.0, options.external.1 & 0xff_ffff),
        };
        self.own.queue_key = Some(self.own.queue_key.unwrap_or(queue_key));
    }

    /// Decides the parameters of an accepted connection. If the program sets a parameter, uses that
    /// value. Otherwise uses the value that the peer asked for.
    fn agree(&mut self, options: Option<&ConnectOptions>) {
        let max =
            self.device.as_ref().map_or(0, |managed| managed.device.attributes().read_depth_max);
        let peer = self.peer;
        let wanted = |of: fn(&End) -> u8| peer.as_ref().map_or(0, of).min(max);
        let said = |of: fn(&ConnectOptions) -> Option<u8>| options.and_then(of);
        let answers = said(|options| options.responder_resources);
        let asks = said(|options| options.initiator_depth);
        self.own.responder_resources = answers.unwrap_or(wanted(|end| end.initiator_depth));
        self.own.initiator_depth = asks.unwrap_or(wanted(|end| end.responder_resources));
        if let Some(end) = &peer {
            self.own.retries = end.retries;
            self.own.not_ready_retries = end.not_ready_retries;
        }
    }

    /// Returns the parameters of this side, to be sent to the peer.
    fn end(&self, gid: verbs::Gid, service: QueuePairType, options: &ConnectOptions) -> End {
        let Own { number, psn, responder_resources, initiator_depth, is_shared, .. } = self.own;
        End {
            service,
            number,
            psn,
            queue_key: self.own.queue_key.unwrap_or(QUEUE_KEY),
            gid,
            responder_resources,
            initiator_depth,
            retries: options.retries.min(7),
            not_ready_retries: options.not_ready_retries.min(7),
            flow_control: options.flow_control,
            is_shared,
            takes_over: false,
            not_ready_timer: self.not_ready_timer(),
        }
    }

    fn back_from(&mut self, from: State, to: State) {
        if self.state == from {
            self.state = to;
        }
    }
}

/// Returns an IPv4 address that is mapped to IPv6 as an IPv4 address.
const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn check_private(private_data: &[u8], max: usize) -> Result<(), Error> {
    let said = private_data.len();
    if said > max {
        return Err(Error::Invalid(format!("{said} bytes of private data: at most {max}")));
    }
    Ok(())
}

/// Reason code: the program rejects a datagram request (IBA volume 1, table 127).
const DATAGRAMS_REJECTED: u16 = 2;
