//! The state that the connections of an endpoint share. The engine borrows this state while it
//! works on one connection.

use delivery::{EndpointCounters, Instant, SentPool};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use semantics::{Carried, Pools};

use crate::agenda::Agenda;
use crate::config::EngineConfig;
use crate::connection::Connection;
use crate::links::Links;
use crate::news::News;
use crate::peer_names::PeerNames;
use crate::phase::Phase;
use crate::questions::Questions;
use crate::reception::Reception;
use crate::replies::Replies;
use crate::scratch::Scratch;
use crate::table::ConnectionTable;
use crate::watch::Watch;

/// The parts of an [`Engine`](crate::Engine) that its connections share.
///
/// A step of the engine works on these parts and on one connection. During the step, the connection
/// is not in the table, and the step cannot reach any other connection.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a EngineConfig,
    /// A random number that the endpoint chooses when it starts. Peers compare this number to
    /// detect a restart.
    pub(crate) incarnation: u64,
    /// When the last turn began.
    pub(crate) turn_at: Instant,
    pub(crate) entropy: &'a mut ChaCha8Rng,
    pub(crate) links: &'a mut Links,
    pub(crate) agenda: &'a mut Agenda,
    pub(crate) pools: &'a mut Pools,
    pub(crate) sent: &'a mut SentPool<Carried>,
    pub(crate) reception: &'a mut Reception,
    pub(crate) peers: &'a mut PeerNames,
    pub(crate) watch: &'a mut Watch,
    pub(crate) replies: &'a mut Replies,
    pub(crate) questions: &'a mut Questions,
    pub(crate) news: &'a mut News,
    /// Counters of the endpoint. They influence no decision.
    pub(crate) counters: &'a mut EndpointCounters,
    pub(crate) scratch: &'a mut Scratch,
}

impl Parts<'_> {
    /// Returns random bits.
    pub(crate) fn random(&mut self) -> u64 {
        self.entropy.next_u64()
    }

    /// Returns whether a connection may be compressed: nothing is pending, and the next turn will
    /// not visit it.
    pub(crate) fn may_rest(&self, connection: &Connection) -> bool {
        connection.is_at_rest() && !self.agenda.awaits_turn(connection.handle().index)
    }

    /// Puts a connection back into the table and on the ready list. Drops a connection that has
    /// ended.
    #[inline]
    pub(crate) fn put_back(
        &mut self,
        connections: &mut ConnectionTable,
        connection: Box<Connection>,
    ) {
        if connection.phase() == Phase::Gone {
            return self.forget(connections, connection);
        }
        self.agenda.mark_ready(connection.handle().index);
        connections.put(connection);
    }

    /// Drops a connection that was taken out of the table.
    #[cold]
    fn forget(&mut self, connections: &mut ConnectionTable, mut connection: Box<Connection>) {
        let handle = connection.handle();
        for path in connection.paths_mut() {
            path.let_go(self.sent);
        }
        self.agenda.forget(handle.index);
        if let Some(key) = connection.names().hello_key() {
            self.reception.forget(key);
        }
        self.peers.forget(connection.names().of_peer(), handle.index);
        self.forget_unconfirmed(&mut connection);
        let id = connection.names().id();
        drop(connection);
        connections.release(handle, id);
    }

    /// Ends the wait for a confirmation, because the peer has confirmed the connection or the
    /// connection has ended.
    pub(crate) fn forget_unconfirmed(&mut self, connection: &mut Connection) {
        if let Some(peer) = connection.take_unconfirmed() {
            self.reception.on_confirmed(peer);
        }
    }
}
