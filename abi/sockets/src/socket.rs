//! A TCP connection of the program, independent of its descriptor numbers.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use sockets::{Connection, Role};

use crate::begun::Begun;
use crate::reservation::Reservation;
use crate::sharing::Share;
use crate::trial::OnTrial;

/// A TCP connection of the program that may move to the edge or has moved there.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Identifies the connection in calls of the crate `sockets`. No other connection of the
    /// process has the same token.
    pub(crate) token: u64,
    pub(crate) role: Role,
    /// This side's TCP address and port.
    pub(crate) local: SocketAddr,
    /// The peer's TCP address and port.
    pub(crate) peer: SocketAddr,
    /// The process that may move the connection to the edge or has moved it.
    pub(crate) owner: Owner,
    /// True after `connect` has returned `EINPROGRESS`, until `connect` reports success.
    is_connecting: AtomicBool,
    /// True if the connection moves to the edge already at its first use (an *early move*), because
    /// earlier connections to the service have lasted long enough.
    pub(crate) is_early: bool,
    /// If the peer did not answer an early move of this connection, the connection object of that
    /// attempt; otherwise `None`.
    before: Option<Arc<Connection>>,
    /// The trial of the connection: the time on TCP in which the library finds out whether a move
    /// pays.
    pub(crate) trial: OnTrial,
    /// The time at which this side began to move the connection to the edge.
    pub(crate) asked: OnceLock<Instant>,
    /// Records whether the connection is in the count of connections that have begun to move.
    pub(crate) is_begun: Begun,
    /// The reservation of the descriptors that the move needs.
    pub(crate) reservation: Reservation,
    /// Set when it is decided whether the connection begins to move. The inner value is `None` if
    /// the connection stays on TCP.
    connection: OnceLock<Option<Arc<Connection>>>,
    /// A thread holds this lock while it makes the connection begin to move. If the connection has
    /// not begun to move, a thread also holds the lock while the kernel handles a query, so that
    /// the connection does not move during the query.
    beginning: Mutex<()>,
    /// Represents this process in the count of processes that have the connection. Set if the
    /// process forked before the program used the connection.
    share: OnceLock<Share>,
    /// In a forked child: the TCP socket of a moved connection. The child uses it after the parent
    /// has returned the connection to TCP.
    tcp: OnceLock<OwnedFd>,
}

/// The process that moves a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    /// This process.
    Own,
    /// The parent of this process. The parent has moved the connection. At the first use, this
    /// process asks the parent to return the connection to TCP.
    Inherited,
    /// Another process, which relays the bytes between the edge and a kernel socket. The kernel
    /// handles the calls of this process.
    Other,
}

impl Socket {
    /// Returns true if the connection may begin to move to the edge. After an early move that
    /// failed, it may do so only when no call on the earlier connection object is pending.
    pub(crate) fn may_begin(&self) -> bool {
        self.before.as_ref().is_none_or(|before| Arc::strong_count(before) == 1)
    }

    /// Returns a copy of the connection object with the owner [`Owner::Other`].
    pub(crate) fn of_other(&self) -> Arc<Self> {
        let (owner, share, trial) = (Owner::Other, OnceLock::new(), OnTrial::none());
        let role = self.role;
        Arc::new(Self::of(self.token, role, self.local, self.peer, owner, share, trial))
    }

    /// Returns a copy of the connection object for a forked child. If the processes that have the
    /// connection are counted, the copy represents the child in the count.
    pub(crate) fn of_child(&self, owner: Owner) -> Arc<Self> {
        let share = self.share.get().map(Share::of_child);
        let share = share.map(OnceLock::from).unwrap_or_default();
        let (role, trial) = (self.role, self.trial.of_child());
        Arc::new(Self::of(self.token, role, self.local, self.peer, owner, share, trial))
    }

    pub(crate) fn of(
        token: u64,
        role: Role,
        local: SocketAddr,
        peer: SocketAddr,
        owner: Owner,
        share: OnceLock<Share>,
        trial: OnTrial,
    ) -> Self {
        let is_connecting = AtomicBool::new(false);
        let (connection, tcp) = (OnceLock::new(), OnceLock::new());
        let (asked, reservation) = (OnceLock::new(), Reservation::default());
        let is_begun = Begun::default();
        Self {
            token,
            role,
            local,
            peer,
            owner,
            is_connecting,
            is_early: false,
            before: None,
            trial,
            asked,
            is_begun,
            reservation,
            connection,
            beginning: Mutex::default(),
            share,
            tcp,
        }
    }

    /// Stores the TCP socket of a moved connection. Called in a forked child.
    pub(crate) fn keep_tcp(&self, tcp: OwnedFd) {
        self.tcp.get_or_init(|| tcp);
    }

    /// Returns the TCP socket that [`Socket::keep_tcp`] has stored.
    pub(crate) fn tcp(&self) -> Option<&OwnedFd> {
        self.tcp.get()
    }

    /// Returns true if the processes that have the connection must be counted, but are not counted
    /// yet. An unused connection requires this before a fork, because otherwise both parent and
    /// child might move it.
    pub(crate) fn wants_share(&self) -> bool {
        self.share.get().is_none() && self.is_unused()
    }

    /// Stores the value that represents this process in the count.
    pub(crate) fn give_share(&self, share: Share) {
        self.share.get_or_init(|| share);
    }

    /// Counts a child among the processes that have the connection. Called before the fork.
    pub(crate) fn share_with_child(&self) {
        self.share.get().inspect(|share| share.add());
    }

    /// Removes this process from the count.
    pub(crate) fn end_share(&self) {
        self.share.get().inspect(|share| share.end());
    }

    /// Returns true if another process also has the connection. In that case, the connection cannot
    /// move to the edge.
    pub(crate) fn is_shared(&self) -> bool {
        self.share.get().is_some_and(Share::is_shared)
    }

    /// Records that `connect` has returned `EINPROGRESS`.
    pub(crate) fn begin_to_connect(&self) {
        self.is_connecting.store(true, Ordering::Relaxed);
    }

    /// Returns true if a repeated `connect` to the same peer must report success. Returns true only
    /// once for each connection.
    pub(crate) fn ends_to_connect(&self) -> bool {
        self.is_connecting.swap(false, Ordering::Relaxed)
    }

    /// Sets whether the connection moves already at its first use.
    pub(crate) fn early(self, is_early: bool) -> Self {
        Self { is_early, ..self }
    }

    /// Sets the connection object of the earlier attempt to move.
    pub(crate) fn after(self, before: Arc<Connection>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Returns true if it is decided whether the connection begins to move or stays on TCP.
    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        self.connection.get().is_some()
    }

    /// Returns the connection object, or `None` if the connection stays on TCP. If the decision is
    /// not made yet, calls `make` to make it.
    pub(crate) fn connection_or(
        &self,
        make: impl FnOnce() -> Option<Arc<Connection>>,
    ) -> Option<&Arc<Connection>> {
        let _alone = self.alone();
        self.connection.get_or_init(make).as_ref()
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.beginning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a kernel call on a connection that has not begun to move. The connection cannot begin
    /// to move before the call has returned. Returns `None` if the decision to move or to stay is
    /// already made.
    pub(crate) fn before_it_begins<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if !self.is_unused() {
            return None;
        }
        let _alone = self.alone();
        self.is_unused().then(call)
    }

    /// Returns the connection object, if the connection has begun to move.
    pub(crate) fn begun(&self) -> Option<&Arc<Connection>> {
        self.connection.get()?.as_ref()
    }

    /// Returns true if this process may move the connection to the edge and has not begun to do so.
    pub(crate) fn is_unused(&self) -> bool {
        self.owner == Owner::Own && self.connection.get().is_none()
    }
}

pub(crate) fn next_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
