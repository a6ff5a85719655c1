//! Callbacks that the runtime calls inside the engine.

use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event};
use mem::MemoryAccess;
use runtime::{Hooks, Readiness};
use semantics::{CompletionQueue, SharedReceives};

use super::connection_table::ConnectionTable;
use super::manager::Manager;
use super::statistics_socket::{self, Statistics};

/// Passes callbacks of the runtime on to the connection table, the connection manager and the
/// statistics.
pub(crate) struct TableHooks {
    pub(crate) table: Arc<ConnectionTable>,
    pub(crate) manager: Arc<Manager>,
    /// The statistics socket; `None` if no name was free for it.
    pub(crate) statistics: Option<Arc<Statistics>>,
}

impl Hooks for TableHooks {
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event) {
        self.table.on_event(engine, memory, now, &event);
        // The connection table has already handled the event. So a thread that the connection
        // manager notifies finds the new state of the queue pair.
        self.manager.on_event(engine, memory, now, &event);
    }

    fn on_room(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        connection: ConnectionHandle,
    ) {
        let then = self.table.on_room(connection);
        self.table.finish(engine, memory, now, then);
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
            statistics.answer(&self.table, engine);
        }
    }

    fn due(&self) -> Instant {
        self.table.due().next().min(self.manager.due())
    }

    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        if self.table.due().next() <= now {
            self.table.look(engine, memory, now);
        }
        self.manager.on_due(engine, now);
    }

    fn awaits_peers(&self, now: Instant) -> bool {
        self.table.awaits_peers(now)
    }

    fn on_below_limit(&self, queues: &[Arc<SharedReceives>]) {
        for queue in queues {
            self.table.registry().on_below_limit(queue);
        }
    }

    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        self.table.registry().on_completions(queues);
    }
}
