//! The parts of a started device: the runtime, the machine of the streams, and the queue pairs.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delivery::Instant;
use engine::{Engine, EngineConfig, Event};
use link::StreamFaults;
use mem::{MemoryAccess, TableLimits};
use runtime::{Hooks, MachineId, Runtime, RuntimeConfig};
use verbs::{Error, QueuePair, Registry};
use work::{CompletionQueue, SharedReceives};

use crate::capture::StreamCapture;
use crate::entry::Tools;
use crate::failure::forked;
use crate::inside::Inside;
use crate::journal::Journal;
use crate::limits::{DOMAINS_MAX, QUEUE_PAIRS_MAX, stream_config};
use crate::settings::Settings;
use crate::source::{QueuePairSource, RungStreams};
use crate::statistics::Statistics;
use crate::streams::{DroppedExchanges, Streams};

/// A started device.
pub(crate) struct Instance {
    runtime: Runtime,
    machine: MachineId,
    rung: Arc<RungStreams>,
    registry: Arc<Registry>,
    /// The queue pairs by number.
    sources: Mutex<HashMap<u32, Arc<QueuePairSource>>>,
    numbers: Mutex<Numbers>,
    /// Streams whose exchanges were dropped inside a turn.
    dropped: Arc<DroppedExchanges>,
}

/// The numbers of queue pairs in use. Peers never see them.
struct Numbers {
    used: HashSet<u32>,
    next: u32,
}

/// Passes the completions of the machine on. The engine has no links and no connections.
struct CompletionHooks(Arc<Registry>);

impl Hooks for CompletionHooks {
    fn on_event(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: Event) {}

    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        self.0.on_completions(queues);
    }
}

impl AsRef<Runtime> for Instance {
    fn as_ref(&self) -> &Runtime {
        &self.runtime
    }
}

impl Instance {
    /// Starts the runtime with the machine.
    pub(crate) fn start(settings: &Settings, registry: &Arc<Registry>) -> Result<Arc<Self>, Error> {
        let usual = RuntimeConfig::from_entropy().map_err(Error::of_cause)?;
        let config = RuntimeConfig {
            engine: EngineConfig::default(),
            progress_processor: settings.progress_processor,
            handles_max: 1,
            submissions_max: 1,
            regions: TableLimits::default()
                .regions_max(TableLimits::REGIONS_MAX)
                .domains_max(DOMAINS_MAX),
            ..usual
        };
        let hooks = CompletionHooks(Arc::clone(registry));
        let runtime =
            Runtime::start(config, Vec::new(), Box::new(hooks)).map_err(Error::of_cause)?;
        let rung = Arc::default();
        let dropped = Arc::default();
        let statistics = Statistics::listen(&settings.name, registry);
        let journal = Journal::open(settings)?;
        let capture = settings.capture.open()?;
        let capture = capture.map(|output| StreamCapture::new(&output, &settings.name));
        let is_faulty = settings.faults.is_any();
        let seed = RandomState::new().hash_one(1);
        let faults = is_faulty.then(|| StreamFaults::new(settings.faults, seed));
        let tools = Tools::new(journal, capture, faults);
        let config = stream_config(settings);
        let streams = Streams::new(&rung, &dropped, config, tools, statistics);
        let machine = runtime.attach_machine(Box::new(streams)).map_err(Error::of_cause)?;
        let next = RandomState::new().hash_one(0) as u32;
        let instance = Arc::new(Self {
            runtime,
            machine,
            rung,
            registry: Arc::clone(registry),
            sources: Mutex::default(),
            numbers: Mutex::new(Numbers { used: HashSet::new(), next }),
            dropped,
        });
        Ok(instance)
    }

    pub(crate) const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Checks that this process has started the device, and that no thread has panicked in a turn.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.runtime.check_process().map_err(forked)?;
        if self.runtime.is_sound() {
            return Ok(());
        }
        Err(Error::Failed(
            "a thread panicked inside the device, which is a bug of the library".into(),
        ))
    }

    /// Calls `work` with the streams, inside a turn, and returns its result.
    pub(crate) fn with_streams<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Streams, &MemoryAccess<'_>, Instant) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.check()?;
        let work = move |streams: &mut Streams, access: &MemoryAccess<'_>, now| {
            let _inside = Inside::enter();
            work(streams, access, now)
        };
        self.runtime.with_machine(self.machine, work).map_err(Error::of_cause)
    }

    /// Forgets the exchange of a stream: at once, or in the next turn if the caller is inside one.
    pub(crate) fn forget_exchange(&self, stream: u64) {
        if Inside::is_here() {
            return self.dropped.add(stream);
        }
        // Ignore the error: a forked child has nothing to forget.
        let _forked = self.with_streams(move |streams, _, _| streams.forget(stream));
    }

    /// Enters a queue pair of the device.
    pub(crate) fn enter(&self, queue_pair: &Arc<QueuePair>) -> Result<Arc<QueuePairSource>, Error> {
        let source = Arc::new(QueuePairSource::new(queue_pair, &self.rung)?);
        lock(&self.sources).insert(queue_pair.number(), Arc::clone(&source));
        Ok(source)
    }

    /// Arms the limit of a shared receive queue, like [`SharedReceives::arm_limit`].
    pub(crate) fn arm_limit(
        &self,
        receives: &Arc<SharedReceives>,
        limit: u32,
    ) -> Result<bool, Error> {
        let receives = Arc::clone(receives);
        self.with_streams(move |_, _, _| receives.arm_limit(limit))
    }

    /// Removes a queue pair.
    pub(crate) fn forget(&self, number: u32) {
        if self.check().is_ok() {
            lock(&self.sources).remove(&number);
        }
    }

    /// Returns the source of a queue pair of this device.
    pub(crate) fn source_of(&self, queue_pair: &QueuePair) -> Result<Arc<QueuePairSource>, Error> {
        let number = queue_pair.number();
        let source = lock(&self.sources).get(&number).cloned();
        source.ok_or_else(|| {
            Error::Invalid(format!("queue pair {number:#x} belongs to another device"))
        })
    }

    /// Reserves a number for a queue pair. Returns `None` if the device has its maximum of them.
    pub(crate) fn reserve_number(&self) -> Option<u32> {
        let mut numbers = lock(&self.numbers);
        if numbers.used.len() >= QUEUE_PAIRS_MAX as usize {
            return None;
        }
        loop {
            let number = numbers.next & NUMBER_MASK;
            numbers.next = numbers.next.wrapping_add(1);
            // Adapters keep the numbers 0 and 1 for management.
            if number > 1 && number != NUMBER_MASK && numbers.used.insert(number) {
                return Some(number);
            }
        }
    }

    /// Releases the number of a queue pair.
    pub(crate) fn release_number(&self, number: u32) {
        lock(&self.numbers).used.remove(&number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queue pair numbers have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;
