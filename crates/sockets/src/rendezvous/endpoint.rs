//! The endpoint of a process: its desk, and who has it worked at.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use delivery::Instant;
use engine::Engine;
use link::FaultShares;
use mem::MemoryAccess;
use runtime::{Bell as SourceBell, Polling, Posted, WorkSource};

use crate::lock::lock;
use crate::rendezvous::desk::{Desk, Turn};
use crate::rendezvous::exchange::{Exchange, Job};

/// See above.
pub(crate) struct Endpoint {
    pub(crate) exchange: Arc<Exchange>,
    bell: SourceBell,
    /// Locked inside the engine only, so that no thread waits for it for long.
    desk: Mutex<Desk>,
    /// When the desk wants to be told of the time, in nanoseconds of the runtime's clock.
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
                bell: SourceBell::new(),
                desk: Mutex::new(Desk::new(Arc::clone(&exchange))),
                exchange,
                due: AtomicU64::new(u64::MAX),
            }
        })
    }

    /// Works at the desk, inside the engine.
    pub(crate) fn at_desk<R>(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        work: impl FnOnce(&mut Desk, &mut Turn<'_, '_>) -> R,
    ) -> R {
        let mut desk = lock(&self.desk);
        let mut turn = Turn { engine, memory, now, exchange: &self.exchange };
        desk.take_arrivals(&mut turn);
        let result = work(&mut desk, &mut turn);
        self.due.store(desk.due().0, Ordering::Release);
        if desk.take_changed() {
            self.exchange.any().raise();
        }
        let graves = desk.take_graves();
        if !graves.is_empty() {
            self.exchange.ask(Job::Bury(graves));
        }
        result
    }

    /// The desk, outside of the engine: at the end only.
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }

    /// When the desk wants to be told of the time.
    pub(crate) fn due(&self) -> Instant {
        if self.exchange.has_arrivals() {
            return Instant(0);
        }
        Instant(self.due.load(Ordering::Acquire))
    }
}

impl WorkSource for Endpoint {
    fn bell(&self) -> &SourceBell {
        &self.bell
    }

    fn is_idle(&self) -> bool {
        self.exchange.under_way.load(Ordering::Relaxed) == 0
    }

    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted {
        self.at_desk(engine, memory, now, |desk, turn| {
            let mut posted = desk.post(turn, limit);
            // Marks are raised for what has changed. Those who wait are woken after a turn that did something only.
            posted.count += u32::from(desk.has_changed());
            posted
        })
    }
}
