//! What the runtime calls, inside the engine.

use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event};
use mem::MemoryAccess;
use runtime::{Hooks, Readiness};
use semantics::{CompletionQueue, SharedReceives};

use super::desk::Desk;
use super::manager::Clerk;
use super::statistics_socket::{self, Statistics};

/// What the runtime calls.
pub(crate) struct DeskHooks {
    pub(crate) desk: Arc<Desk>,
    pub(crate) clerk: Arc<Clerk>,
    /// None if there is no name for its socket.
    pub(crate) statistics: Option<Arc<Statistics>>,
}

impl Hooks for DeskHooks {
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event) {
        self.desk.on_event(engine, memory, now, &event);
        // A thread that is notified of a connection finds its queue pair as it then is.
        self.clerk.on_event(engine, memory, now, &event);
    }

    fn on_room(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        connection: ConnectionHandle,
    ) {
        let then = self.desk.on_room(connection);
        self.desk.finish(engine, memory, now, then);
    }

    fn on_descriptor(
        &self,
        engine: &mut Engine,
        _memory: &MemoryAccess<'_>,
        _now: Instant,
        key: u64,
        _ready: Readiness,
    ) {
        if key == statistics_socket::KEY
            && let Some(statistics) = &self.statistics
        {
            statistics.answer(|| statistics.report(&self.desk, engine));
        }
    }

    fn due(&self) -> Instant {
        self.desk.due().next().min(self.clerk.due())
    }

    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        if self.desk.due().next() <= now {
            self.desk.look(engine, memory, now);
        }
        self.clerk.on_due(engine, now);
    }

    fn awaits_peers(&self, now: Instant) -> bool {
        self.desk.awaits_peers(now)
    }

    fn on_below_limit(&self, queues: &[Arc<SharedReceives>]) {
        for queue in queues {
            self.desk.registry().on_below_limit(queue);
        }
    }

    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        self.desk.registry().on_completions(queues);
    }
}
