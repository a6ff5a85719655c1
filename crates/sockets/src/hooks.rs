//! What the runtime tells a process of its groups, doors and streams.

use std::sync::Arc;

use delivery::Instant;
use engine::{Engine, Event};
use mem::MemoryAccess;
use runtime::{Hooks, Readiness};

use crate::bell::DescriptorKey;
use crate::desk::Desk;
use crate::endpoint::Endpoint;

/// Passes it on to the desk.
pub(crate) struct DeskHooks(pub(crate) Arc<Endpoint>);

impl Hooks for DeskHooks {
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event) {
        self.0.at_desk(engine, memory, now, |desk, turn| desk.on_event(turn, event));
    }

    fn on_descriptor(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        key: u64,
        ready: Readiness,
    ) {
        let key = DescriptorKey::of_bits(key);
        self.0.at_desk(engine, memory, now, |desk, turn| desk.on_descriptor(turn, key, ready));
    }

    fn due(&self) -> Instant {
        self.0.due()
    }

    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        self.0.at_desk(engine, memory, now, Desk::on_due);
    }
}
