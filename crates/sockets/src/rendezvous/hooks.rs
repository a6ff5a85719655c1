//! The hooks that the runtime calls for an endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use delivery::Instant;
use engine::{Engine, Event};
use mem::MemoryAccess;
use runtime::{Hooks, Readiness};

use crate::calls::waiting::Waits;
use crate::counters;
use crate::rendezvous::connection_table::ConnectionTable;
use crate::rendezvous::doorbell::DescriptorKey;
use crate::rendezvous::endpoint::Endpoint;
use crate::statistics::{KEY, Statistics};
use crate::transport::held;

/// Passes events to the connection table, answers clients that connect for statistics, and starts
/// the job that writes the counters file.
pub(crate) struct EndpointHooks {
    endpoint: Arc<Endpoint>,
    statistics: Option<Arc<Statistics>>,
    /// The time at which the counters file is due, in nanoseconds of the runtime's clock.
    counted: AtomicU64,
}

impl EndpointHooks {
    pub(crate) fn new(endpoint: &Arc<Endpoint>, statistics: Option<Arc<Statistics>>) -> Self {
        let counted = if counters::is_kept() { 0 } else { u64::MAX };
        Self { endpoint: Arc::clone(endpoint), statistics, counted: AtomicU64::new(counted) }
    }
}

impl Hooks for EndpointHooks {
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event) {
        self.endpoint.with_table(engine, memory, now, |table, turn| table.on_event(turn, event));
    }

    fn on_descriptor(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        key: u64,
        ready: Readiness,
    ) {
        if let (KEY, Some(statistics)) = (key, &self.statistics) {
            return statistics.answer();
        }
        if key == held::KEY {
            // This call marks streams. The endpoint serves them at the end of this run of the
            // engine.
            return self.endpoint.exchange.held().on_expired();
        }
        let key = DescriptorKey::of_bits(key);
        self.endpoint
            .with_table(engine, memory, now, |table, turn| table.on_descriptor(turn, key, ready));
    }

    fn due(&self) -> Instant {
        let counted = self.counted.load(Ordering::Relaxed);
        Instant(self.endpoint.due().0.min(counted))
    }

    fn on_due(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        self.endpoint.with_table(engine, memory, now, ConnectionTable::on_due);
        if now.0 >= self.counted.load(Ordering::Relaxed) {
            counters::write_if_due();
            let next = now.0.saturating_add(counters::INTERVAL.as_nanos() as u64);
            self.counted.store(next, Ordering::Relaxed);
        }
    }
}
