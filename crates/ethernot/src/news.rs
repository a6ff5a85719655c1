//! Notifications of connections, from the engine to the threads and tasks that wait for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use engine::{Closed, ConnectionHandle, Event};
use runtime::HomeProcess;
use semantics::StatusTable;
use wire_edge::PeerAddr;

/// Takes the engine's events, and keeps what is known of each connection.
///
/// The engine's thread calls [`EventTable::on_event`] and takes the lock; so no thread may call the
/// runtime with the lock held, and none of these functions does.
#[derive(Debug, Default)]
pub(crate) struct EventTable {
    board: Mutex<Board>,
    /// Where tasks are passed on that are to be woken, once there is a runtime.
    status: OnceLock<Arc<StatusTable>>,
}

#[derive(Debug, Default)]
struct Board {
    connections: HashMap<ConnectionHandle, Arc<Fate>>,
    /// By service.
    requests: HashMap<u32, VecDeque<Request>>,
    /// The endpoint was shut down.
    is_shut_down: bool,
    /// Those who wait, each with a number.
    tasks: HashMap<Topic, Vec<(u64, Waker)>>,
    /// Tasks so far.
    tasks_count: u64,
}

/// What a task may wait for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Topic {
    /// A request for this service.
    Service(u32),
    /// Something of this connection.
    Connection(ConnectionHandle),
}

/// A task that waits for news; dropped, it waits no more.
#[derive(Debug)]
pub(crate) struct Subscriber {
    news: Arc<EventTable>,
    topic: Topic,
    number: u64,
    home: HomeProcess,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock when a child was forked.
        if self.home.check().is_err() {
            return;
        }
        let waker = self.news.unsubscribe(self.topic, self.number);
        drop(waker);
    }
}

/// A peer's request without an answer so far.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) connection: ConnectionHandle,
    pub(crate) peer: PeerAddr,
    pub(crate) private_data: Vec<u8>,
}

/// What has become of a connection.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    stage: Mutex<Stage>,
    /// The stage is [`Stage::Closed`]: for those who post.
    has_ended: AtomicBool,
}

/// Where a connection stands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Nothing has been heard yet.
    #[default]
    Pending,
    /// It is usable; with what the peer sent along.
    Established(Vec<u8>),
    /// It has ended; with what the peer sent along.
    Closed {
        /// Why.
        reason: Closed,
        /// What the peer sent along.
        private_data: Vec<u8>,
        /// It was usable before.
        was_established: bool,
    },
}

impl Fate {
    pub(crate) fn stage(&self) -> Stage {
        self.lock().clone()
    }

    /// Where it stands, once that is known.
    pub(crate) fn settled(&self) -> Option<Stage> {
        match self.stage() {
            Stage::Pending => None,
            stage => Some(stage),
        }
    }

    /// Whether it has ended.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Why it has ended, if it has.
    pub(crate) fn closed(&self) -> Option<Closed> {
        match *self.lock() {
            Stage::Closed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Why it has ended and what the peer sent along, if it has.
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
    /// Takes note of an event.
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

    /// Has tasks woken by the thread that leaves the engine next.
    fn pass_on(&self, tasks: impl Iterator<Item = (u64, Waker)>) {
        let Some(status) = self.status.get() else { return };
        for (_, waker) in tasks {
            status.wakeups().add(waker);
        }
    }

    /// Sets the queue of tasks that are to be woken.
    pub(crate) fn set_status(&self, status: &Arc<StatusTable>) {
        self.status.get_or_init(|| Arc::clone(status));
    }

    /// Has a task woken at the next news of a topic, for which it must look once more after this.
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

    /// Follows a connection from now on. To be called inside the engine, before any event of it.
    pub(crate) fn follow(&self, connection: ConnectionHandle) -> Arc<Fate> {
        let fate = Arc::new(Fate::default());
        self.lock().connections.insert(connection, Arc::clone(&fate));
        fate
    }

    /// Ends all waits for requests, now and later.
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

    /// The connections that are not over.
    pub(crate) fn open_connections(&self) -> Vec<ConnectionHandle> {
        self.lock().connections.keys().copied().collect()
    }

    /// Keeps requests for `service`; false if that is done already.
    pub(crate) fn open_service(&self, service: u32) -> bool {
        let mut board = self.lock();
        let is_new = !board.requests.contains_key(&service);
        if is_new {
            board.requests.insert(service, VecDeque::new());
        }
        is_new
    }

    /// Keeps requests no longer; returns those that were not answered.
    pub(crate) fn close_service(&self, service: u32) -> VecDeque<Request> {
        self.lock().requests.remove(&service).unwrap_or_default()
    }

    /// The oldest unanswered request for `service`.
    pub(crate) fn next_request(&self, service: u32) -> Option<Request> {
        self.lock().requests.get_mut(&service)?.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
