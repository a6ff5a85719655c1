//! Passes notifications about connections from the engine to the threads and tasks that wait for
//! them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use engine::{Closed, ConnectionHandle, Event};
use runtime::HomeProcess;
use semantics::StatusTable;
use wire_edge::PeerAddr;

/// Receives the engine's events, and stores the state of each connection.
///
/// The thread inside the engine calls [`EventTable::on_event`], which takes the lock. A thread that
/// calls the runtime may have to wait for the thread inside the engine. A thread must not hold the
/// lock during such a call, because the two threads would then wait for each other.
#[derive(Debug, Default)]
pub(crate) struct EventTable {
    board: Mutex<Board>,
    /// The status table of the runtime. The table's queue receives the tasks to wake. This field is
    /// set after the runtime was created.
    status: OnceLock<Arc<StatusTable>>,
}

#[derive(Debug, Default)]
struct Board {
    connections: HashMap<ConnectionHandle, Arc<Fate>>,
    /// Connection requests that are not answered yet, by the number of their service.
    requests: HashMap<u32, VecDeque<Request>>,
    /// Whether the endpoint was shut down.
    is_shut_down: bool,
    /// Tasks that wait for an event of a topic. The number identifies the subscription of a task.
    tasks: HashMap<Topic, Vec<(u64, Waker)>>,
    /// Number of subscriptions so far, which is also the number of the newest subscription.
    tasks_count: u64,
}

/// The event that a task waits for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Topic {
    /// A connection request for this service.
    Service(u32),
    /// A change of this connection's state.
    Connection(ConnectionHandle),
}

/// The subscription of a waiting task. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscriber {
    news: Arc<EventTable>,
    topic: Topic,
    number: u64,
    home: HomeProcess,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // If the process is a forked child, do not take the lock: a thread of the parent may have
        // held it at the fork.
        if self.home.check().is_err() {
            return;
        }
        let waker = self.news.unsubscribe(self.topic, self.number);
        drop(waker);
    }
}

/// A connection request of a peer that is not answered yet.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) connection: ConnectionHandle,
    pub(crate) peer: PeerAddr,
    pub(crate) private_data: Vec<u8>,
}

/// The state of a connection, as the engine last reported it.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    stage: Mutex<Stage>,
    /// Whether the stage is [`Stage::Closed`]. Threads that post read this field without taking the
    /// lock.
    has_ended: AtomicBool,
}

/// The stage of a connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Stage {
    /// The handshake has not ended.
    #[default]
    Pending,
    /// The connection is usable. Contains the peer's private data.
    Established(Vec<u8>),
    /// The connection has ended.
    Closed {
        /// The reason.
        reason: Closed,
        /// Private data that the peer sent when it closed the connection or rejected the request.
        private_data: Vec<u8>,
        /// Whether the connection was established before it ended.
        was_established: bool,
    },
}

impl Fate {
    pub(crate) fn stage(&self) -> Stage {
        self.lock().clone()
    }

    /// Returns the stage, or `None` while the handshake is pending.
    pub(crate) fn settled(&self) -> Option<Stage> {
        match self.stage() {
            Stage::Pending => None,
            stage => Some(stage),
        }
    }

    /// Returns whether the connection has ended.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns the reason why the connection has ended, if it has.
    pub(crate) fn closed(&self) -> Option<Closed> {
        match *self.lock() {
            Stage::Closed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns the reason why the connection has ended and the peer's private data. Returns `None`
    /// if the connection has not ended.
    pub(crate) fn end(&self) -> Option<(Closed, Vec<u8>)> {
        match &*self.lock() {
            Stage::Closed { reason, private_data, .. } => Some((*reason, private_data.clone())),
            _ => None,
        }
    }

    fn establish(&self, private_data: Vec<u8>) {
        *self.lock() = Stage::Established(private_data);
    }

    fn close(&self, reason: Closed, private_data: Vec<u8>) {
        let mut stage = self.lock();
        let was_established = matches!(*stage, Stage::Established(_));
        *stage = Stage::Closed { reason, private_data, was_established };
        self.has_ended.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventTable {
    /// Handles an event of the engine.
    pub(crate) fn on_event(&self, event: Event) {
        let mut board = self.lock();
        let topic = match &event {
            Event::Requested { service, .. } => Some(Topic::Service(*service)),
            Event::Established { connection, .. } | Event::Closed { connection, .. } => {
                Some(Topic::Connection(*connection))
            }
            _ => None,
        };
        match event {
            Event::Requested { connection, service, peer, private_data, .. } => {
                if let Some(requests) = board.requests.get_mut(&service) {
                    requests.push_back(Request { connection, peer, private_data });
                }
            }
            Event::Established { connection, private_data } => {
                if let Some(fate) = board.connections.get(&connection) {
                    fate.establish(private_data);
                }
            }
            Event::Closed { connection, reason, private_data } => {
                for requests in board.requests.values_mut() {
                    requests.retain(|request| request.connection != connection);
                }
                if let Some(fate) = board.connections.remove(&connection) {
                    fate.close(reason, private_data);
                }
            }
            _ => {}
        }
        let tasks = topic.and_then(|topic| board.tasks.remove(&topic));
        drop(board);
        self.pass_on(tasks.into_iter().flatten());
    }

    /// Queues tasks to wake. The next thread that leaves the engine wakes these tasks.
    fn pass_on(&self, tasks: impl Iterator<Item = (u64, Waker)>) {
        let Some(status) = self.status.get() else { return };
        for (_, waker) in tasks {
            status.wakeups().add(waker);
        }
    }

    /// Sets the status table, whose queue receives the tasks to wake.
    pub(crate) fn set_status(&self, status: &Arc<StatusTable>) {
        self.status.get_or_init(|| Arc::clone(status));
    }

    /// Subscribes a task to the next event of a topic, and returns the subscription. The task must
    /// check for the event after this call, because the event may have occurred before the
    /// subscription.
    pub(crate) fn subscribe(self: &Arc<Self>, topic: Topic, waker: &Waker) -> Subscriber {
        let mut board = self.lock();
        board.tasks_count += 1;
        let number = board.tasks_count;
        board.tasks.entry(topic).or_default().push((number, waker.clone()));
        Subscriber { news: Arc::clone(self), topic, number, home: HomeProcess::here() }
    }

    fn unsubscribe(&self, topic: Topic, number: u64) -> Option<Waker> {
        let mut board = self.lock();
        let tasks = board.tasks.get_mut(&topic)?;
        let found = tasks.iter().position(|task| task.0 == number);
        let waker = found.map(|index| tasks.swap_remove(index).1);
        if tasks.is_empty() {
            board.tasks.remove(&topic);
        }
        waker
    }

    /// Starts to track a connection. Returns the object in which [`EventTable::on_event`] stores
    /// the connection's state. The caller is inside the engine, so that no event of the connection
    /// precedes this call.
    pub(crate) fn follow(&self, connection: ConnectionHandle) -> Arc<Fate> {
        let fate = Arc::new(Fate::default());
        self.lock().connections.insert(connection, Arc::clone(&fate));
        fate
    }

    /// Records that the endpoint is shut down, and wakes all tasks. Current and later waits for
    /// requests end.
    pub(crate) fn shut_down(&self) {
        let tasks = {
            let mut board = self.lock();
            board.is_shut_down = true;
            std::mem::take(&mut board.tasks)
        };
        self.pass_on(tasks.into_values().flatten());
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.lock().is_shut_down
    }

    /// Returns the connections that have not ended.
    pub(crate) fn open_connections(&self) -> Vec<ConnectionHandle> {
        self.lock().connections.keys().copied().collect()
    }

    /// Starts to store requests for `service`. Returns false if the service already has a listener.
    pub(crate) fn open_service(&self, service: u32) -> bool {
        let mut board = self.lock();
        let is_new = !board.requests.contains_key(&service);
        if is_new {
            board.requests.insert(service, VecDeque::new());
        }
        is_new
    }

    /// Stops storing requests for `service`. Returns the unanswered requests.
    pub(crate) fn close_service(&self, service: u32) -> VecDeque<Request> {
        self.lock().requests.remove(&service).unwrap_or_default()
    }

    /// Removes and returns the oldest unanswered request for `service`.
    pub(crate) fn next_request(&self, service: u32) -> Option<Request> {
        self.lock().requests.get_mut(&service)?.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
