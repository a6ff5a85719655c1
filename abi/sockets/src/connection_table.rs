//! The connection table: the descriptor numbers of each connection, and the registrations of these
//! numbers in `epoll` sets.
//!
//! Every call that changes numbers holds the lock of the table. So a thread that holds the lock can
//! replace the TCP socket of a connection at all of its numbers, and no number changes in the
//! meantime. A thread that holds this lock must not call a function that takes another lock of this
//! library.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_int, epoll_event};
use sockets::Connection;

use crate::armed::is_disarmed;
use crate::socket::Socket;
use crate::table::{self, Kind};

/// Connections by their tokens.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTable {
    held: BTreeMap<u64, HeldConnection>,
    /// Registrations of sockets that are not connected yet.
    unconnected: Vec<Registration>,
    /// Registrations of `epoll` sets as members of other sets.
    nested: Vec<Registration>,
}

/// One connection of the program.
#[derive(Debug)]
struct HeldConnection {
    socket: Arc<Socket>,
    numbers: Vec<c_int>,
    registrations: Vec<Registration>,
}

/// A registration of a descriptor number in an `epoll` set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Registration {
    epoll: c_int,
    fd: c_int,
    events: u32,
    data: u64,
}

/// A [`Registration`] for code that does not hold the lock of the table.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) epoll: c_int,
    pub(crate) fd: c_int,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The connection of the number; `None` if `fd` is the number of another `epoll` set.
    pub(crate) connection: Option<Arc<Connection>>,
}

/// Locks the connection table.
pub(crate) fn lock() -> MutexGuard<'static, ConnectionTable> {
    CONNECTION_TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the connection table. Returns `None` if another thread holds the lock.
pub(crate) fn try_lock() -> Option<MutexGuard<'static, ConnectionTable>> {
    CONNECTION_TABLE.try_lock().ok()
}

/// Returns true if the table has at least one connection.
#[inline]
pub(crate) fn has_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

impl ConnectionTable {
    /// Adds a number to a connection. Returns false if the number is too high to be tracked.
    pub(crate) fn add(&mut self, fd: c_int, socket: &Arc<Socket>) -> bool {
        // If the number already has a connection, the program has closed that connection by a call
        // that this library does not intercept.
        if let Some(closed) = self.remove(fd) {
            closed.trial.end();
        }
        if !table::set_socket(fd, Arc::clone(socket)) {
            return false;
        }
        let new = || HeldConnection {
            socket: Arc::clone(socket),
            numbers: Vec::with_capacity(1),
            registrations: Vec::new(),
        };
        let held = self.held.entry(socket.token).or_insert_with(new);
        held.numbers.push(fd);
        let registered: Vec<_> = self.unconnected.extract_if(.., |known| known.fd == fd).collect();
        held.registrations.extend(&registered);
        for registration in &registered {
            self.note_set(registration.epoll);
        }
        self.count();
        true
    }

    /// Removes a number from its connection. Returns the connection if this was its last number.
    pub(crate) fn remove(&mut self, fd: c_int) -> Option<Arc<Socket>> {
        let socket = table::socket(fd)?;
        table::clear(fd);
        let held = self.held.get_mut(&socket.token)?;
        held.numbers.retain(|&number| number != fd);
        held.registrations.retain(|registration| registration.fd != fd);
        if !held.numbers.is_empty() {
            return None;
        }
        self.held.remove(&socket.token);
        socket.is_begun.end();
        self.count();
        Some(socket)
    }

    /// Removes a connection. After this, the kernel handles all calls on the connection's numbers.
    pub(crate) fn forget(&mut self, token: u64) {
        if let Some(held) = self.held.remove(&token) {
            held.socket.trial.end();
            held.socket.is_begun.end();
            held.socket.reservation.release();
            held.numbers.iter().for_each(|&fd| table::clear(fd));
        }
        self.count();
    }

    /// Replaces the object of a connection by `again`, because the connection's move to the edge
    /// has failed. `again` stays on TCP until a move pays. It takes over the descriptor numbers and
    /// registrations of the old object.
    pub(crate) fn renew(&mut self, token: u64, again: &Arc<Socket>) {
        let Some(mut held) = self.held.remove(&token) else { return };
        held.socket.is_begun.end();
        held.socket.reservation.release();
        for &number in &held.numbers {
            table::set_socket(number, Arc::clone(again));
        }
        held.socket = Arc::clone(again);
        self.held.insert(again.token, held);
    }

    /// Returns the connection with this token, if there is one.
    pub(crate) fn socket(&self, token: u64) -> Option<Arc<Socket>> {
        self.held.get(&token).map(|held| Arc::clone(&held.socket))
    }

    /// Returns true if another process also has the connection.
    pub(crate) fn is_shared(&self, token: u64) -> bool {
        self.held.get(&token).is_some_and(|held| held.socket.is_shared())
    }

    /// Duplicates the descriptor of a connection for use by this library.
    pub(crate) fn duplicate(&self, token: u64) -> Option<OwnedFd> {
        let &number = self.held.get(&token)?.numbers.first()?;
        // SAFETY: takes no pointers.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        // SAFETY: the descriptor was just created, and nothing else owns it.
        (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
    }

    /// Puts duplicates of `end` at all numbers of a connection, and registers them in place of the
    /// old descriptor in `epoll` sets. Returns false if the table does not have the connection.
    pub(crate) fn put(&mut self, token: u64, end: &OwnedFd) -> bool {
        let Some(held) = self.held.get(&token) else { return false };
        held.socket.reservation.release();
        for &number in &held.numbers {
            let of_number = || held.registrations.iter().filter(|known| known.fd == number);
            let again: Vec<_> = of_number().map(Registration::taken_out).collect();
            // SAFETY: takes no pointers.
            let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
            let close = if flags & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
            // SAFETY: takes no pointers. The number belongs to the program, and the library has a
            // duplicate of the socket at this number.
            unsafe { libc::dup3(end.as_raw_fd(), number, close) };
            again.iter().for_each(Registration::put_in);
        }
        true
    }

    /// Records that a number was registered in an `epoll` set. Replaces an earlier registration of
    /// the number in this set.
    pub(crate) fn register(&mut self, epoll: c_int, fd: c_int, event: epoll_event) {
        self.unregister(epoll, fd);
        let registration = Registration { epoll, fd, events: event.events, data: event.u64 };
        match table::kind(fd) {
            Kind::Socket => {
                if let Some(held) = self.held_mut(fd) {
                    held.registrations.push(registration);
                    self.note_set(epoll);
                }
            }
            Kind::Unconnected => self.unconnected.push(registration),
            Kind::Epoll => {
                self.nested.push(registration);
                self.note_set(epoll);
            }
            Kind::OtherEpoll => self.nested.push(registration),
            Kind::Plain | Kind::Private => {}
        }
    }

    /// Marks an `epoll` set that contains a connection, and all sets that contain this set.
    fn note_set(&self, epoll: c_int) {
        if matches!(table::kind(epoll), Kind::Plain | Kind::OtherEpoll) {
            table::set(epoll, Kind::Epoll);
            // This recursion ends, because the kernel does not allow a set to contain itself,
            // directly or through other sets.
            for outer in self.nested.iter().filter(|known| known.fd == epoll) {
                self.note_set(outer.epoll);
            }
        }
    }

    /// Returns whether a registration of the connection in an `epoll` set is edge-triggered.
    /// Returns `None` if the connection has no registration.
    pub(crate) fn watching(&self, token: u64) -> Option<bool> {
        let registrations = &self.held.get(&token)?.registrations;
        let reports_edges = |known: &Registration| known.events & libc::EPOLLET as u32 != 0;
        (!registrations.is_empty()).then(|| registrations.iter().any(reports_edges))
    }

    /// Removes a registration.
    pub(crate) fn unregister(&mut self, epoll: c_int, fd: c_int) {
        let is_other = |known: &Registration| (known.epoll, known.fd) != (epoll, fd);
        if let Some(held) = self.held_mut(fd) {
            held.registrations.retain(is_other);
        } else {
            self.unconnected.retain(is_other);
            self.nested.retain(is_other);
        }
    }

    /// Removes an unconnected socket, because it was closed or will never be connected.
    pub(crate) fn forget_unconnected(&mut self, fd: c_int) {
        if table::kind(fd) == Kind::Unconnected {
            table::clear(fd);
        }
        self.unconnected.retain(|known| known.fd != fd);
    }

    /// Removes an `epoll` set that was closed.
    pub(crate) fn forget_set(&mut self, epoll: c_int) {
        table::clear(epoll);
        for held in self.held.values_mut() {
            held.registrations.retain(|known| known.epoll != epoll);
        }
        self.unconnected.retain(|known| known.epoll != epoll);
        self.nested.retain(|known| known.epoll != epoll && known.fd != epoll);
    }

    /// Returns those members of an `epoll` set for whose data `is_wanted` returns true. Members are
    /// connections that have begun to move to the edge, and other sets.
    pub(crate) fn members(&self, epoll: c_int, is_wanted: impl Fn(u64) -> bool) -> Vec<Registered> {
        let is_in_set = |known: &&Registration| known.epoll == epoll && is_wanted(known.data);
        let of_connections = self.held.values().filter_map(|held| {
            let connection = held.socket.begun()?;
            let known = held.registrations.iter().filter(is_in_set);
            Some(known.map(|known| known.with(Some(Arc::clone(connection)))))
        });
        let of_sets = self.nested.iter().filter(is_in_set).map(|known| known.with(None));
        of_connections.flatten().chain(of_sets).collect()
    }

    /// Makes the kernel report an event of a registration a second time. Does nothing if the
    /// registration no longer exists, or if the kernel reports the event again without this call.
    pub(crate) fn arm_again(&self, known: &Registered, is_dropped: bool) {
        let registration = known.registration();
        if self.has(&registration) && known.is_reported_once(is_dropped) {
            registration.change(registration.events);
        }
    }

    /// Calls `work`. While `work` runs, the kernel does not report the events in `without` for the
    /// registrations in `known`. Skips registrations that no longer exist.
    pub(crate) fn without_events<R>(
        &self,
        known: &[&Registered],
        without: u32,
        work: impl FnOnce() -> R,
    ) -> R {
        let registrations: Vec<_> = known
            .iter()
            .map(|known| known.registration())
            .filter(|known| self.has(known))
            .collect();
        for known in &registrations {
            known.change(known.events & !without);
        }
        let result = work();
        for known in &registrations {
            known.change(known.events);
        }
        result
    }

    fn has(&self, registration: &Registration) -> bool {
        let mut of_connections = self.held.values().map(|held| &held.registrations);
        self.nested.contains(registration)
            || of_connections.any(|known| known.contains(registration))
    }

    /// Returns all connections with their descriptor numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<Socket>, &[c_int])> {
        self.held.values().map(|held| (&held.socket, held.numbers.as_slice()))
    }

    /// Replaces a connection by another object with the same token, for example in a forked child.
    pub(crate) fn replace(&mut self, socket: &Arc<Socket>) {
        let Some(held) = self.held.get_mut(&socket.token) else { return };
        for &number in &held.numbers {
            table::set_socket(number, Arc::clone(socket));
        }
        held.socket = Arc::clone(socket);
    }

    fn held_mut(&mut self, fd: c_int) -> Option<&mut HeldConnection> {
        self.held.get_mut(&table::socket(fd)?.token)
    }

    fn count(&self) {
        COUNT.store(self.held.len(), Ordering::Relaxed);
    }
}

impl Registered {
    const fn registration(&self) -> Registration {
        let &Self { epoll, fd, events, data, .. } = self;
        Registration { epoll, fd, events, data }
    }
}

impl Registration {
    const fn with(self, connection: Option<Arc<Connection>>) -> Registered {
        let Self { epoll, fd, events, data } = self;
        Registered { epoll, fd, events, data, connection }
    }

    /// Sets the events for which the kernel checks the descriptor.
    fn change(&self, events: u32) {
        let mut event = epoll_event { events, u64: self.data };
        // SAFETY: the event is valid during the call. If the set is closed, the call fails, which
        // is harmless, because no thread waits for the set.
        unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_MOD, self.fd, &raw mut event) };
    }

    /// Removes the registration from its set. Returns the registration with which the caller can
    /// add the descriptor again.
    fn taken_out(&self) -> Self {
        let mut again = *self;
        if is_disarmed(self.epoll, self.fd, self.events) {
            again.events &= !REPORTED;
        }
        // SAFETY: for a removal the event may be null.
        unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, self.fd, std::ptr::null_mut()) };
        again
    }

    fn put_in(&self) {
        let mut event = epoll_event { events: self.events, u64: self.data };
        // SAFETY: the event is valid during the call. If the set is closed, the call fails.
        unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, self.fd, &raw mut event) };
    }
}

/// Mask of the events that a program can request. The other bits are flags.
const REPORTED: u32 =
    !(libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;

static CONNECTION_TABLE: Mutex<ConnectionTable> = Mutex::new(ConnectionTable {
    held: BTreeMap::new(),
    unconnected: Vec::new(),
    nested: Vec::new(),
});
static COUNT: AtomicUsize = AtomicUsize::new(0);
