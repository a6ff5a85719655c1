//! Handles the reports of the wire, the transport that carries requests and connections. Each
//! report becomes an event. Some events require further steps, which run when the program reads the
//! event.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use verbs::{Error, QueuePair, QueuePairType};

use super::{Id, Inner, State};
use crate::event::{ConnectionDetails, DatagramDetails, Details, Event, EventKind};
use crate::manager::{Caller, Exchange, Listener, ManagedDevice, Over, Padding};
use crate::message::{
    End, NO_RESOURCES, NO_SUCH_SERVICE, REJECTED_BY_PROGRAM, Refusal, Reply, Request,
};
use crate::status::status_of;

/// Receives the reports of the wire (the transport) for an id. The id may already be dropped.
pub(super) struct Ear(pub(super) Weak<Id>);

/// Receives the requests that arrive at one device for a listening id.
pub(super) struct DeviceEar {
    pub(super) id: Weak<Id>,
    pub(super) device: ManagedDevice,
}

impl Listener for DeviceEar {
    fn on_request(
        &self,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal> {
        let listener = self.id.upgrade().ok_or(Refusal::of(NO_SUCH_SERVICE))?;
        let id = listener.on_request(&self.device, request, exchange)?;
        Ok(Arc::new(Ear(id)))
    }
}

impl Caller for Ear {
    fn on_accepted(&self, reply: Reply) {
        if let Some(id) = self.0.upgrade() {
            id.on_accepted(reply);
        }
    }

    fn on_established(&self) {
        if let Some(id) = self.0.upgrade() {
            let was_accepted = id.lock().pass(State::Accepted, State::Connected);
            if was_accepted {
                id.report_kind(EventKind::Established, 0);
            }
        }
    }

    fn on_over(&self, over: Over) {
        if let Some(id) = self.0.upgrade() {
            id.on_over(over);
        }
    }

    fn on_quiet(&self) {
        if let Some(id) = self.0.upgrade()
            && id.lock().state == State::Disconnected
        {
            id.report_kind(EventKind::TimewaitExit, 0);
        }
    }
}

impl Id {
    /// Handles a request to the port of this listening id. The new id belongs to `device`, at
    /// which the request has arrived.
    fn on_request(
        &self,
        device: &ManagedDevice,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Weak<Self>, Refusal> {
        let listener = self.this.upgrade().ok_or(Refusal::of(NO_SUCH_SERVICE))?;
        if request.end.service != self.service {
            return Err(Refusal::of(WRONG_SERVICE));
        }
        let options = {
            let mut inner = self.lock();
            if inner.state != State::Listening {
                return Err(Refusal::of(NO_SUCH_SERVICE));
            }
            if inner.waiting >= inner.backlog {
                return Err(Refusal::of(NO_RESOURCES));
            }
            let to = request.to.address();
            if inner.device.is_none() && self.host.device_of(to, self.space).is_none() {
                return Err(Refusal::of(NO_SUCH_SERVICE));
            }
            inner.waiting += 1;
            inner.options
        };
        let Request { to, port, source_port, end, private_data, .. } = request;
        let inner = Inner {
            state: State::Requested,
            device: Some(device.clone()),
            local: Some(SocketAddr::new(to.address(), port)),
            remote: Some(SocketAddr::new(end.gid.address(), source_port)),
            peer: Some(end),
            options,
            ..Inner::default()
        };
        let channel = self.channel();
        let id = Self::make(&self.host, &channel, self.space, self.service, inner, Some(exchange));
        let this = Arc::downgrade(&id);
        let details = match self.service {
            QueuePairType::Datagram => Details::Datagrams(id.lock().datagrams(&end)),
            _ => Details::Connection(details_of(&end)),
        };
        let private_data = id.for_program(private_data, id.private_data_limits().request);
        let (kind, listener) = (EventKind::ConnectRequest, Some(listener));
        self.report(Event { id, listener, kind, status: 0, details, private_data });
        Ok(this)
    }

    fn on_accepted(&self, reply: Reply) {
        let Some(this) = self.this.upgrade() else { return };
        let is_datagram = self.service == QueuePairType::Datagram;
        let is_established = is_datagram || self.is_connected_by_wire();
        let Reply { end, private_data } = reply;
        let details = {
            let mut inner = self.lock();
            let next = if is_established { State::Connected } else { State::Answered };
            if !inner.pass(State::Connecting, next) {
                return;
            }
            inner.peer = Some(end);
            // The number of reads and atomics that one end has in flight must not exceed the number
            // that the other end answers at the same time.
            inner.own.initiator_depth = inner.own.initiator_depth.min(end.responder_resources);
            inner.own.responder_resources = inner.own.responder_resources.min(end.initiator_depth);
            inner.own.not_ready_retries = end.not_ready_retries;
            match self.service {
                QueuePairType::Datagram => Details::Datagrams(inner.datagrams(&end)),
                _ => Details::Connection(details_of(&end)),
            }
        };
        let kind = if is_established { EventKind::Established } else { EventKind::ConnectResponse };
        let private_data = self.for_program(private_data, self.private_data_limits().reply);
        self.report(Event { id: this, listener: None, kind, status: 0, details, private_data });
    }

    fn on_over(&self, over: Over) {
        let Some(this) = self.this.upgrade() else { return };
        let is_datagram = self.service == QueuePairType::Datagram;
        let was_there = {
            let mut inner = self.lock();
            let was_there = match inner.state {
                State::Connecting | State::Requested => false,
                State::Accepted => over == Over::Disconnected,
                State::Answered | State::Connected => true,
                _ => return,
            };
            if is_datagram && was_there {
                // An exchange for datagrams always ends with the answer, so this is not the end of
                // a connection.
                return;
            }
            inner.state = if was_there { State::Disconnected } else { State::Failed };
            was_there
        };
        let (kind, status, private_data) = match over {
            _ if was_there => (EventKind::Disconnected, 0, Vec::new()),
            Over::Refused { status, private_data } => {
                let kind = if is_datagram { EventKind::Unreachable } else { EventKind::Rejected };
                (kind, status, self.for_program(private_data, self.private_data_limits().refusal))
            }
            Over::Failed { status } => (EventKind::ConnectError, status, Vec::new()),
            Over::Unreachable | Over::Disconnected => {
                (EventKind::Unreachable, -(Errno::ETIMEDOUT as i32), Vec::new())
            }
        };
        let event = Event::of(this, kind, status);
        self.report(Event { private_data, ..event });
    }

    /// Returns the peer's private data as programs get it. `bytes` is the maximum length in the
    /// message.
    fn for_program(&self, private_data: Vec<u8>, bytes: usize) -> Vec<u8> {
        let mut data = private_data;
        match self.manager_attributes().padding {
            Padding::Zeros => data.resize(bytes, 0),
            Padding::None => {}
        }
        data
    }

    /// Performs the steps that an event requires when the program reads it, and returns the event.
    /// If a step fails, the returned event reports the failure. The steps call the wire (the
    /// transport), and a thread inside the wire must not do this. The thread that queued the event
    /// may have been inside the wire, so the program's thread runs the steps.
    pub(crate) fn on_taken(event: Event) -> Event {
        let mut event = event;
        let id = Arc::clone(&event.id);
        match event.kind {
            EventKind::ConnectRequest => {
                if let Some(listener) = &event.listener {
                    let mut inner = listener.lock();
                    inner.waiting = inner.waiting.saturating_sub(1);
                }
            }
            EventKind::ConnectResponse if id.queue_pair().is_some() => id.go_on(&mut event),
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                id.fail_queue_pair();
                drop(id.take_exchange());
            }
            EventKind::MulticastJoin => id.attach(&mut event),
            _ => {}
        }
        event
    }

    /// Connects the queue pair to the peer, or makes it take over the connection of the exchange.
    fn go_on_with_queue_pair(&self) -> Result<(), Error> {
        let asked_for = {
            let Inner { peer, own, .. } = &*self.lock();
            peer.filter(|peer| peer.takes_over).map(|_| own.number)
        };
        let is_it = |queue_pair: &Arc<QueuePair>| Some(queue_pair.number()) == asked_for;
        let Some(queue_pair) = self.connected_queue_pair().filter(is_it) else {
            return self.connect_queue_pair();
        };
        self.pass_to_sending(&queue_pair, true)?;
        self.exchange().map_or(Ok(()), |exchange| exchange.take_over(&queue_pair))
    }

    /// Connects the queue pair, because the peer has accepted this side's request. Changes the
    /// event to [`EventKind::Established`] or [`EventKind::ConnectError`].
    fn go_on(&self, event: &mut Event) {
        match self.go_on_with_queue_pair() {
            Ok(()) => {
                self.lock().pass(State::Answered, State::Connected);
                event.kind = EventKind::Established;
            }
            Err(error) => {
                self.lock().state = State::Failed;
                event.kind = EventKind::ConnectError;
                event.status = status_of(&error);
                if let Some(exchange) = self.take_exchange() {
                    // This fails if the peer is gone. Such a peer needs no rejection.
                    let _gone = exchange.reject(&Refusal::of(REJECTED_BY_PROGRAM));
                }
                self.fail_queue_pair();
            }
        }
    }
}

impl Inner {
    /// Changes the state from `from` to `to`. Returns false if the state is not `from`.
    fn pass(&mut self, from: State, to: State) -> bool {
        let is_in = self.state == from;
        if is_in {
            self.state = to;
        }
        is_in
    }

    fn datagrams(&self, end: &End) -> DatagramDetails {
        let path = self.path_to(end.gid);
        DatagramDetails { path, number: end.number, queue_key: end.queue_key, cookie: 0 }
    }
}

/// Translates the peer's parameters into the parameters that this end must use.
const fn details_of(end: &End) -> ConnectionDetails {
    ConnectionDetails {
        responder_resources: end.initiator_depth,
        initiator_depth: end.responder_resources,
        flow_control: end.flow_control,
        retries: end.retries,
        not_ready_retries: end.not_ready_retries,
        is_shared: end.is_shared,
        number: end.number,
    }
}

/// Reason code: the listening id has another transport service than the request (IBA volume 1,
/// table 108).
const WRONG_SERVICE: u16 = 9;
