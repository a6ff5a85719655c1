//! A TCP connection of the program, at whatever numbers it is.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use sockets::{Connection, Role};

use crate::begun::Begun;
use crate::room::Reservation;
use crate::sharing::Share;
use crate::trial::OnTrial;

/// A TCP connection of the program that may move, or has.
#[derive(Debug)]
pub(crate) struct Socket {
    /// By which the crate `sockets` knows it; none is used twice in a process.
    pub(crate) token: u64,
    pub(crate) role: Role,
    /// This side's address, as TCP has it.
    pub(crate) local: SocketAddr,
    /// The peer's.
    pub(crate) peer: SocketAddr,
    /// Whose it is.
    pub(crate) owner: Owner,
    /// The program was told that it connects, and not yet that it has.
    is_connecting: AtomicBool,
    /// It moves at its first use only because its peer is known to pay.
    pub(crate) is_early: bool,
    /// It has begun early before, and the peer did not know that it pays.
    before: Option<Arc<Connection>>,
    /// What it does on TCP before it begins to move.
    pub(crate) trial: OnTrial,
    /// When it began to move.
    pub(crate) asked: OnceLock<Instant>,
    /// Whether it counts among those that have begun to move.
    pub(crate) is_begun: Begun,
    /// Descriptors that it is about to take.
    pub(crate) reservation: Reservation,
    /// Made when it begins to move; `None` if this process has no part in any of it.
    connection: OnceLock<Option<Arc<Connection>>>,
    /// Held while it begins to move, and while the kernel is asked something of it before.
    beginning: Mutex<()>,
    /// Since the process was forked before anybody used it.
    share: OnceLock<Share>,
    /// In a forked child: the TCP socket of a connection that has moved, should the parent bring it home.
    tcp: OnceLock<OwnedFd>,
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    /// This process moves it.
    Own,
    /// The parent of this process, which was forked meanwhile: it is asked at the first use.
    Inherited,
    /// Another process carries its bytes: calls go to the kernel.
    Other,
}

impl Socket {
    /// Whether it may begin to move: no call of the program is on its way any more that began before the trial.
    pub(crate) fn may_begin(&self) -> bool {
        self.before.as_ref().is_none_or(|before| Arc::strong_count(before) == 1)
    }

    /// The same connection, which is another's by now.
    pub(crate) fn of_other(&self) -> Arc<Self> {
        let (owner, share, trial) = (Owner::Other, OnceLock::new(), OnTrial::none());
        let role = self.role;
        Arc::new(Self::of(self.token, role, self.local, self.peer, owner, share, trial))
    }

    /// The same connection in a forked child, which has the share that was added for it.
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

    /// Whether a share is wanted before the process is forked: there is none, and child and parent might both move it.
    pub(crate) fn wants_share(&self) -> bool {
        self.share.get().is_none() && self.is_unused()
    }

    /// Gives it a share.
    pub(crate) fn give_share(&self, share: Share) {
        self.share.get_or_init(|| share);
    }

    /// The process is about to be forked: the child has it as well.
    pub(crate) fn share_with_child(&self) {
        self.share.get().inspect(|share| share.add());
    }

    /// This process ends.
    pub(crate) fn end_share(&self) {
        self.share.get().inspect(|share| share.end());
    }

    /// Whether another process has it as well, so that it cannot move.
    pub(crate) fn is_shared(&self) -> bool {
        self.share.get().is_some_and(Share::is_shared)
    }

    /// The program was told that it connects.
    pub(crate) fn begin_to_connect(&self) {
        self.is_connecting.store(true, Ordering::Relaxed);
    }

    /// The program connects again to the same peer. Whether it is to be told that it has connected, which it is once.
    pub(crate) fn ends_to_connect(&self) -> bool {
        self.is_connecting.swap(false, Ordering::Relaxed)
    }

    /// Whether it moves at its first use only because its peer is known to pay.
    pub(crate) fn early(self, is_early: bool) -> Self {
        Self { is_early, ..self }
    }

    /// It has begun early before, with this.
    pub(crate) fn after(self, before: Arc<Connection>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Whether it is known if there is a connection.
    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        self.connection.get().is_some()
    }

    /// Its connection, which is made by `make` if it is not there.
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

    /// Makes a call of the kernel before it begins to move, which it does not until that call is back. `None` if it has
    /// begun, or does not move at all.
    pub(crate) fn before_it_begins<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if !self.is_unused() {
            return None;
        }
        let _alone = self.alone();
        self.is_unused().then(call)
    }

    /// Its connection, if it was used.
    pub(crate) fn begun(&self) -> Option<&Arc<Connection>> {
        self.connection.get()?.as_ref()
    }

    /// Whether it is this process that may move it, and nothing has begun.
    pub(crate) fn is_unused(&self) -> bool {
        self.owner == Owner::Own && self.connection.get().is_none()
    }
}

pub(crate) fn next_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
