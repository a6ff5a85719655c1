//! Functions that the runtime calls when something has happened.

use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event};
use mem::MemoryAccess;
use semantics::{CompletionQueue, SharedReceives};

use crate::auxiliary::Readiness;

/// Functions that the runtime calls in the thread that makes a turn.
///
/// Code that needs nothing but the [`Event`] may pass a function of an event instead.
pub trait Hooks: Send + Sync {
    /// Handles an event of a connection. It is called inside the engine, within the turn that
    /// brought the event, so that the result is sent at once: it may accept a connection although
    /// the application only polls. It must be quick, and must not call the runtime.
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event);

    /// Handles a connection that has room again, for which [`Engine::await_room`] was called. It is
    /// called inside the engine, as [`Hooks::on_event`] is.
    fn on_room(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        connection: ConnectionHandle,
    ) {
        let _ = (engine, memory, now, connection);
    }

    /// Handles a descriptor that is [watched](crate::Runtime::watch_descriptor) under this key and
    /// is ready. It is called inside the engine, as [`Hooks::on_event`] is, in each turn while the
    /// descriptor is ready.
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

    /// Returns the time at which to call [`Hooks::on_due`]. It is called in every turn, so it must
    /// cost almost nothing. An earlier time that a thread outside of the engine sets takes effect
    /// in the next turn.
    fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Does work for which the time returned by [`Hooks::due`] has come. It is called inside the
    /// engine, as [`Hooks::on_event`] is, in every turn until `due` returns a later time.
    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        let _ = (engine, memory, now);
    }

    /// Whether posted work waits for peers that may be found in a moment. A process that is about
    /// to end waits for such work. It is called inside the engine.
    fn awaits_peers(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Handles shared queues that have fewer receives left than their
    /// [limit](SharedReceives::arm_limit). It is called after the calling thread has left the
    /// engine.
    fn on_below_limit(&self, queues: &[Arc<SharedReceives>]) {
        let _ = queues;
    }

    /// Handles completion queues that were armed, and that reached what they were armed for. It is
    /// called after the calling thread has left the engine.
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
