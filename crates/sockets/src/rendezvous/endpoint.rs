//! The endpoint of a process: its connection table, and the functions that the runtime calls to
//! make progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use delivery::Instant;
use engine::Engine;
use link::FaultShares;
use mem::MemoryAccess;
use runtime::{Polling, Posted, SourceDoorbell, WorkSource};

use crate::lock::lock;
use crate::rendezvous::connection_table::{ConnectionTable, EngineTurn};
use crate::rendezvous::exchange::{Exchange, Job};

/// The endpoint of a process.
pub(crate) struct Endpoint {
    pub(crate) exchange: Arc<Exchange>,
    doorbell: SourceDoorbell,
    /// A thread locks the table only while it holds the lock of the engine, or when the process
    /// ends. So no thread waits long for this lock.
    table: Mutex<ConnectionTable>,
    /// The time at which a timer of the connection table is due, in nanoseconds of the runtime's
    /// clock.
    due: AtomicU64,
}

impl Endpoint {
    pub(crate) fn new(
        seed: [u8; 32],
        faults: FaultShares,
        polling: Polling,
        jobs: Sender<Job>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let source = Weak::clone(own) as Weak<dyn WorkSource>;
            let exchange = Arc::new(Exchange::new(source, seed, faults, polling, jobs));
            Self {
                doorbell: SourceDoorbell::new(),
                table: Mutex::new(ConnectionTable::new(Arc::clone(&exchange))),
                exchange,
                due: AtomicU64::new(u64::MAX),
            }
        })
    }

    /// Calls `work` with the connection table. The caller must hold the lock of the engine.
    pub(crate) fn with_table<R>(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        work: impl FnOnce(&mut ConnectionTable, &mut EngineTurn<'_, '_>) -> R,
    ) -> R {
        let mut table = lock(&self.table);
        let mut turn = EngineTurn { engine, memory, now, exchange: &self.exchange };
        table.take_arrivals(&mut turn);
        let result = work(&mut table, &mut turn);
        self.due.store(table.due().0, Ordering::Release);
        if table.take_changed() {
            self.exchange.any().raise();
        }
        let deferred = table.take_deferred();
        if !deferred.is_empty() {
            self.exchange.ask(Job::Deregister(deferred));
        }
        result
    }

    /// Locks the connection table without the lock of the engine. Allowed only when the process
    /// ends.
    pub(crate) fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        lock(&self.table)
    }

    /// Returns the time at which the endpoint has work: when a timer of the connection table is
    /// due, or at once if threads have queued events for the table.
    pub(crate) fn due(&self) -> Instant {
        if self.exchange.has_arrivals() {
            return Instant(0);
        }
        Instant(self.due.load(Ordering::Acquire))
    }
}

impl WorkSource for Endpoint {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        self.exchange.in_flight.load(Ordering::Relaxed) == 0
    }

    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted {
        self.with_table(engine, memory, now, |table, turn| {
            let mut posted = table.post(turn, limit);
            // Also count events as posted operations. Events have raised marks. The runtime wakes
            // the threads that wait for marks only after a run of the engine that has posted an
            // operation.
            posted.count += u32::from(table.has_changed());
            posted
        })
    }
}
