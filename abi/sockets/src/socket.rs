//! A TCP connection of the program, whatever its numbers.

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
    /// Identifies it for the crate `sockets`. Unique in a process.
    pub(crate) token: u64,
    pub(crate) role: Role,
    /// This side's address, as TCP has it.
    pub(crate) local: SocketAddr,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// Which process it belongs to.
    pub(crate) owner: Owner,
    /// `connect` has returned `EINPROGRESS`, and has not reported success yet.
    is_connecting: AtomicBool,
    /// It moves at its first use only because its peer is known to pay.
    pub(crate) is_early: bool,
    /// The same connection has begun early before, and the peer did not expect it to pay.
    before: Option<Arc<Connection>>,
    /// Its trial on TCP, before it begins to move.
    pub(crate) trial: OnTrial,
    /// When it began to move.
    pub(crate) asked: OnceLock<Instant>,
    /// Whether it is counted among those that have begun to move.
    pub(crate) is_begun: Begun,
    /// Descriptors that it is about to take.
    pub(crate) reservation: Reservation,
    /// Made when it begins to move; `None` if it stays on TCP.
    connection: OnceLock<Option<Arc<Connection>>>,
    /// Held while it begins to move, and while the kernel handles a query before that.
    beginning: Mutex<()>,
    /// Set at a fork before the connection was used.
    share: OnceLock<Share>,
    /// In a forked child: the TCP socket of a moved connection, for when the parent has brought it home.
    tcp: OnceLock<OwnedFd>,
}

/// Which process a connection belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    /// To this process, which moves it.
    Own,
    /// To the parent of this process, which has moved it and is asked at the first use.
    Inherited,
    /// To another process, which relays its bytes: calls go to the kernel.
    Other,
}

impl Socket {
    /// Returns whether it may begin to move: no call that began before the trial is pending.
    pub(crate) fn may_begin(&self) -> bool {
        self.before.as_ref().is_none_or(|before| Arc::strong_count(before) == 1)
    }

    /// Returns the same connection as one of another process.
    pub(crate) fn of_other(&self) -> Arc<Self> {
        let (owner, share, trial) = (Owner::Other, OnceLock::new(), OnTrial::none());
        let role = self.role;
        Arc::new(Self::of(self.token, role, self.local, self.peer, owner, share, trial))
    }

    /// Returns the same connection for a forked child, with the share that was added for it.
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

    /// In a forked child: keeps the TCP socket.
    pub(crate) fn keep_tcp(&self, tcp: OwnedFd) {
        self.tcp.get_or_init(|| tcp);
    }

    /// In a forked child: the TCP socket.
    pub(crate) fn tcp(&self) -> Option<&OwnedFd> {
        self.tcp.get()
    }

    /// Returns whether it needs a share before a fork: it is unused, and child and parent might
    /// both move it.
    pub(crate) fn wants_share(&self) -> bool {
        self.share.get().is_none() && self.is_unused()
    }

    /// Gives it a share.
    pub(crate) fn give_share(&self, share: Share) {
        self.share.get_or_init(|| share);
    }

    /// Adds a share for a child before the fork.
    pub(crate) fn share_with_child(&self) {
        self.share.get().inspect(|share| share.add());
    }

    /// Ends the share of this process.
    pub(crate) fn end_share(&self) {
        self.share.get().inspect(|share| share.end());
    }

    /// Returns whether another process has it as well, so that it cannot move.
    pub(crate) fn is_shared(&self) -> bool {
        self.share.get().is_some_and(Share::is_shared)
    }

    /// Records that `connect` has returned `EINPROGRESS`.
    pub(crate) fn begin_to_connect(&self) {
        self.is_connecting.store(true, Ordering::Relaxed);
    }

    /// The program connects again to the same peer. Returns whether `connect` is to report success, which it does once.
    pub(crate) fn ends_to_connect(&self) -> bool {
        self.is_connecting.swap(false, Ordering::Relaxed)
    }

    /// Sets whether it moves at its first use only because its peer is known to pay.
    pub(crate) fn early(self, is_early: bool) -> Self {
        Self { is_early, ..self }
    }

    /// Sets the connection with which it has begun early before.
    pub(crate) fn after(self, before: Arc<Connection>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Returns whether it is decided if there is a connection.
    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        self.connection.get().is_some()
    }

    /// Returns its connection, which `make` creates if there is none.
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

    /// Runs a kernel call before the connection begins to move; it does not begin until the call has returned. `None`
    /// if it has begun, or does not move.
    pub(crate) fn before_it_begins<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if !self.is_unused() {
            return None;
        }
        let _alone = self.alone();
        self.is_unused().then(call)
    }

    /// Returns its connection, if it was used.
    pub(crate) fn begun(&self) -> Option<&Arc<Connection>> {
        self.connection.get()?.as_ref()
    }

    /// Returns whether this process may move it and it has not begun.
    pub(crate) fn is_unused(&self) -> bool {
        self.owner == Owner::Own && self.connection.get().is_none()
    }
}

pub(crate) fn next_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
