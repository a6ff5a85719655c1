//! Functions that the runtime calls when events occur.

use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event};
use mem::MemoryAccess;
use semantics::{CompletionQueue, SharedReceives};

use crate::auxiliary::Readiness;

/// Functions that the owner of a runtime provides. The thread that makes a turn calls them.
///
/// Code that needs only the [`Event`] may pass a function that takes an event, instead of a type
/// with this trait.
pub trait Hooks: Send + Sync {
    /// Handles an event of a connection. The thread that makes the turn calls this inside the
    /// engine, in the turn in which the event occurred. The same turn sends the frames that the
    /// hook causes. A hook can therefore accept a connection at once, even if the application only
    /// polls. The hook must be quick, and must not call the runtime.
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event);

    /// Handles a connection that has room again, after a call of [`Engine::await_room`] for that
    /// connection. The calling thread is inside the engine, like for [`Hooks::on_event`].
    fn on_room(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        connection: ConnectionHandle,
    ) {
        let _ = (engine, memory, now, connection);
    }

    /// Handles a ready descriptor that is [watched](crate::Runtime::watch_descriptor) under this
    /// key. The runtime calls this in each turn while the descriptor is ready. The calling thread
    /// is inside the engine, like for [`Hooks::on_event`].
    fn on_descriptor(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        key: u64,
        ready: Readiness,
    ) {
        let _ = (engine, memory, now, key, ready);
    }

    /// Returns the time at which to call [`Hooks::on_due`]. The runtime calls this in every turn,
    /// so it must cost almost nothing. If a thread outside of the engine sets an earlier time, that
    /// time takes effect in the next turn.
    fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Does work when the time returned by [`Hooks::due`] has come. The runtime calls this in every
    /// turn until `due` returns a later time. The calling thread is inside the engine, like for
    /// [`Hooks::on_event`].
    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        let _ = (engine, memory, now);
    }

    /// Returns whether posted work waits for peers whose addresses may be found soon. A process
    /// that is about to end waits for this work. The calling thread is inside the engine.
    fn awaits_peers(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Handles shared receive queues that have fewer receives left than their
    /// [limit](SharedReceives::arm_limit). The calling thread has left the engine.
    fn on_below_limit(&self, queues: &[Arc<SharedReceives>]) {
        let _ = queues;
    }

    /// Handles completion queues whose armed condition is met. The calling thread has left the
    /// engine.
    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        let _ = queues;
    }
}

impl<F: Fn(Event) + Send + Sync> Hooks for F {
    fn on_event(
        &self,
        _engine: &mut Engine,
        _memory: &MemoryAccess<'_>,
        _now: Instant,
        event: Event,
    ) {
        self(event);
    }
}
