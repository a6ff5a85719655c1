//! Starts the move of a connection from TCP to the edge: at its first use, or when the connection
//! has lasted so long that a move pays.

use std::sync::{Arc, OnceLock};

use libc::c_int;
use sockets::counters::note_left;
use sockets::{Connection, Reason, Role};
use std::net::SocketAddr;

use crate::handling::Inside;
use crate::next::{errno, set_errno};
use crate::socket::{Owner, Socket, next_token};
use crate::trial::OnTrial;
use crate::{connection_table, inherited, instance, services};

impl Socket {
    /// Creates the object of a new connection, which has not carried bytes.
    pub(crate) fn new(role: Role, local: SocketAddr, peer: SocketAddr) -> Arc<Self> {
        let is_early = instance::is_early(role, local, peer);
        let (token, trial) = (next_token(), instance::trial(is_early));
        let new = Self::of(token, role, local, peer, Owner::Own, OnceLock::new(), trial);
        Arc::new(new.early(is_early))
    }

    /// Returns a replacement for a connection that began to move at its first use, if the peer did
    /// not answer. The replacement stays on TCP until a move pays. Returns `None` for other
    /// connections.
    pub(crate) fn again(&self) -> Option<Arc<Self>> {
        if !self.is_early || self.is_shared() || !services::is_unanswered(self) {
            return None;
        }
        let before = Arc::clone(self.begun()?);
        let (token, role, trial) = (next_token(), self.role, OnTrial::begin());
        let again =
            Self::of(token, role, self.local, self.peer, Owner::Own, OnceLock::new(), trial);
        Some(Arc::new(again.after(before)))
    }

    /// Makes the connection begin to move, because it has lasted long enough and none of its calls
    /// is in the kernel.
    #[cold]
    pub(crate) fn begin(&self, fd: c_int) {
        let before = errno();
        let inside = Inside::enter();
        let _begun = self.make(fd);
        drop(inside);
        set_errno(before);
    }

    /// Makes the connection stay on TCP for the given reason. Does nothing if the connection has
    /// begun to move.
    #[cold]
    pub(crate) fn stay(&self, reason: Reason) {
        if self.trial.end() {
            let before = errno();
            let inside = Inside::enter();
            connection_table::lock().forget(self.token);
            if reason == Reason::Short {
                services::note_short(self);
            }
            note_left(self.role, self.local, self.peer, reason);
            drop(inside);
            set_errno(before);
        }
    }

    /// Returns the connection object if the connection has begun to move. If nothing was decided
    /// yet, this use makes the connection begin to move, or makes it stay on TCP.
    #[inline]
    pub(crate) fn used(&self, fd: c_int) -> Option<&Arc<Connection>> {
        if self.is_decided() { self.begun() } else { self.first_used(fd) }
    }

    #[cold]
    fn first_used(&self, fd: c_int) -> Option<&Arc<Connection>> {
        match self.owner {
            Owner::Own => self.make(fd),
            Owner::Inherited => {
                inherited::fetch(self, fd);
                None
            }
            Owner::Other => None,
        }
    }

    fn make(&self, fd: c_int) -> Option<&Arc<Connection>> {
        self.connection_or(|| instance::connection(self, fd))
    }
}
