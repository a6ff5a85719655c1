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

/// A TCP connection of the program that may move or has moved.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Identifies the connection in calls of the crate `sockets`. Unique within a process.
    pub(crate) token: u64,
    pub(crate) role: Role,
    /// This side's TCP address and port.
    pub(crate) local: SocketAddr,
    /// The peer's TCP address and port.
    pub(crate) peer: SocketAddr,
    /// The process to which the connection belongs.
    pub(crate) owner: Owner,
    /// True after `connect` has returned `EINPROGRESS`, until `connect` reports success.
    is_connecting: AtomicBool,
    /// True if the connection has an early move: it moves at its first use, because earlier
    /// connections to the service have lasted.
    pub(crate) is_early: bool,
    /// The connection object of an earlier early move that the peer did not answer; otherwise
    /// `None`.
    before: Option<Arc<Connection>>,
    /// The trial of the connection on TCP, before it begins to move.
    pub(crate) trial: OnTrial,
    /// The time at which this side began to move the connection.
    pub(crate) asked: OnceLock<Instant>,
    /// Records whether the connection is in the count of connections that have begun to move.
    pub(crate) is_begun: Begun,
    /// The reservation of the descriptors that the move needs.
    pub(crate) reservation: Reservation,
    /// Set when the connection begins to move. The inner value is `None` if the connection stays on
    /// TCP.
    connection: OnceLock<Option<Arc<Connection>>>,
    /// A thread holds this lock while the connection begins to move. If the connection has not
    /// begun to move, a thread also holds the lock while the kernel handles a query.
    beginning: Mutex<()>,
    /// Set if the process forked before the program used the connection.
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
    /// The parent of this process. The parent has moved the connection, and this process asks for
    /// it at the first use.
    Inherited,
    /// Another process, which relays the bytes. The kernel handles the calls of this process.
    Other,
}

impl Socket {
    /// Returns true if the connection may begin to move. After an early move that failed, no call
    /// on the earlier connection object may be pending.
    pub(crate) fn may_begin(&self) -> bool {
        self.before.as_ref().is_none_or(|before| Arc::strong_count(before) == 1)
    }

    /// Returns a copy of the connection that belongs to another process.
    pub(crate) fn of_other(&self) -> Arc<Self> {
        let (owner, share, trial) = (Owner::Other, OnceLock::new(), OnTrial::none());
        let role = self.role;
        Arc::new(Self::of(self.token, role, self.local, self.peer, owner, share, trial))
    }

    /// Returns a copy of the connection for a forked child, with the share that was added for the
    /// child.
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

    /// Returns true if the connection needs a share before a fork. It needs one if it is unused,
    /// because both child and parent might move it.
    pub(crate) fn wants_share(&self) -> bool {
        self.share.get().is_none() && self.is_unused()
    }

    /// Sets the share of this process.
    pub(crate) fn give_share(&self, share: Share) {
        self.share.get_or_init(|| share);
    }

    /// Adds a share for a child. Called before the fork.
    pub(crate) fn share_with_child(&self) {
        self.share.get().inspect(|share| share.add());
    }

    /// Ends the share of this process.
    pub(crate) fn end_share(&self) {
        self.share.get().inspect(|share| share.end());
    }

    /// Returns true if another process also has the connection. The connection then cannot move.
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

    /// Sets whether the connection has an early move.
    pub(crate) fn early(self, is_early: bool) -> Self {
        Self { is_early, ..self }
    }

    /// Sets the connection object of the earlier attempt.
    pub(crate) fn after(self, before: Arc<Connection>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Returns true if the decision is made: the connection moves, or stays on TCP.
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

    /// Returns true if this process may move the connection and has not begun to.
    pub(crate) fn is_unused(&self) -> bool {
        self.owner == Owner::Own && self.connection.get().is_none()
    }
}

pub(crate) fn next_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
