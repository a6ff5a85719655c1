//! A process's part in the shared memory.

use std::fmt;
use std::fs;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use dsm_protocol::{Call, Config, Counters, Layout, NODES_MAX, Node, PAGES_MAX, Rank};
use ethernot::{Buffer, CompletionQueue, Endpoint, MemoryRegion, Rights};
use page_faults::{Method, PageView, Pages, ViewOptions};

use crate::core::{Core, FaultsOf, State};
use crate::driver::Driver;
use crate::environment;
use crate::error::Error;
use crate::failure::FINAL_BARRIER;
use crate::greeting::{Greeting, Settings};
use crate::heap::{Heap, REGION};
use crate::host::Host;
use crate::landings::Landings;
use crate::local::Local;
use crate::meeting::{self, Seat};
use crate::memory::Memory;
use crate::misuse::MisusedCall;
use crate::mutex::DsmMutex;
use crate::network::{Network, PeerMemory};
use crate::options::Options;
use crate::progress;
use crate::races::Races;
use crate::read_write_lock::DsmRwLock;
use crate::signals::{DsmCondition, DsmEvent, DsmSemaphore};
use crate::stalls::Watch;
use crate::statistics::{Statistics, Waits};
use crate::thread_numbers;
use crate::variables::{MEET, METHOD, RACES, THREADS};

/// A process's part in the shared memory: its rank.
///
/// A rank ends by [`Dsm::finalize`]. If it is dropped otherwise, for example by a panic, the program
/// ends on all ranks.
pub struct Dsm {
    core: &'static Core,
}

impl Dsm {
    /// Joins the other ranks. Returns when all are there.
    ///
    /// # Errors
    /// Each variant of [`Error`] names a cause and its remedy.
    pub fn join(options: Options) -> Result<Self, Error> {
        if HAS_JOINED.swap(true, Ordering::AcqRel) {
            return Err(Error::Joined);
        }
        let joined = join(options);
        if joined.is_err() {
            HAS_JOINED.store(false, Ordering::Release);
        }
        joined.map(|core| Self { core })
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.core.size
    }

    /// Returns how writes are found.
    pub fn method(&self) -> Method {
        self.core.view.pages().method()
    }

    /// Returns what the machine of this rank has done.
    pub fn counters(&self) -> Counters {
        self.core.lock().node.counters()
    }

    /// Allocates a value under a lock. The value is zero. All ranks must do so in the same order.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn mutex<T: Pod>(&self) -> Result<DsmMutex<'_, T>, Error> {
        Ok(DsmMutex::new(self.core, self.core.allocate(1)?))
    }

    /// Allocates a value under a reader-writer lock. The value is zero. All ranks must do so in the
    /// same order.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn read_write_lock<T: Pod>(&self) -> Result<DsmRwLock<'_, T>, Error> {
        Ok(DsmRwLock::new(self.core, self.core.allocate(1)?))
    }

    /// Makes a condition variable. All ranks must do so in the same order. So for semaphores and
    /// events.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn condition(&self) -> Result<DsmCondition<'_>, Error> {
        Ok(DsmCondition::new(self.core, self.key()?))
    }

    /// Makes a semaphore.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn semaphore(&self) -> Result<DsmSemaphore<'_>, Error> {
        Ok(DsmSemaphore::new(self.core, self.key()?))
    }

    /// Makes an event.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn event(&self) -> Result<DsmEvent<'_>, Error> {
        Ok(DsmEvent::new(self.core, self.key()?))
    }

    /// Waits until all threads of all ranks are at the barrier. Afterwards, each sees what the
    /// others wrote before it.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed, or waits at another barrier, [`Error::Handler`] if the
    /// program has replaced the handler of faults.
    pub fn barrier(&self) -> Result<(), Error> {
        self.check_accesses()?;
        let count = u32::from(self.core.threads) * self.core.size as u32;
        self.core.call(Call::Barrier { address: self.barrier_address(), count }).map(drop)
    }

    /// Checks that accesses of this thread to the memory reach the library. If they do not, an access
    /// to an absent page ends the program by a signal. Costs three system calls. A barrier checks
    /// the same.
    ///
    /// # Errors
    /// [`Error::Handler`] if the program has replaced the handler of faults, or if this thread blocks
    /// their signals.
    pub fn check_accesses(&self) -> Result<(), Error> {
        Ok(page_faults::check()?)
    }

    /// Makes any call of the machine, for tests that use all of them. Returns the former value for
    /// atomics, otherwise 0.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the call is wrong, [`Error::Failed`] if a rank has failed.
    #[doc(hidden)]
    pub fn call_machine(&self, call: Call) -> Result<u64, Error> {
        self.core.call(call)
    }

    /// Returns whether another rank waits for a lock that this rank holds, for measurements.
    #[doc(hidden)]
    pub fn is_lock_awaited(&self, lock: u64) -> bool {
        self.core.is_lock_awaited(lock)
    }

    /// Waits until all ranks have come here, and leaves. Threads other than the caller must not use
    /// the memory any more.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn finalize(self) -> Result<(), Error> {
        let core = self.core;
        // The other threads do not come. No barrier of the program is at this address, so a rank
        // that is at one while this rank leaves notices it.
        let (address, count) = (FINAL_BARRIER, core.size as u32);
        core.call(Call::Barrier { address, count })?;
        let mut state = core.lock();
        state = wait_until(core, state, |state| state.host.network.is_idle())?;
        state.host.network.say_goodbye();
        let is_finished =
            |state: &State| state.host.network.is_alone() && state.host.network.is_idle();
        state = wait_until(core, state, is_finished)?;
        state.has_left = true;
        let races = state.races.take(&core.heap);
        drop(state);
        core.report_races(&races);
        // All ranks have said that they need nothing any more, so an error changes nothing.
        let _late = core.endpoint.shutdown(Some(SHUTDOWN));
        mem::forget(self);
        Ok(())
    }

    pub(crate) const fn core(&self) -> &'static Core {
        self.core
    }

    /// Returns an address of the region, which names an object. Nothing is stored there.
    #[track_caller]
    fn key(&self) -> Result<u64, Error> {
        Ok(self.core.allocate::<u64>(1)?.addr() as u64)
    }

    /// Returns the address of the next barrier. It depends on what was allocated, so that ranks that
    /// have not allocated the same notice it there.
    fn barrier_address(&self) -> u64 {
        REGION as u64 + self.core.heap.shared_bytes()
    }
}

impl fmt::Debug for Dsm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.rank(), self.size());
        formatter.debug_struct("Dsm").field("rank", &rank).field("size", &size).finish()
    }
}

impl Drop for Dsm {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return;
        }
        self.core.lock().has_left = true;
        // The others see that the connections close without a goodbye, and end.
        let _late = self.core.endpoint.shutdown(Some(SHUTDOWN));
    }
}

fn wait_until<'a>(
    core: &Core,
    mut state: std::sync::MutexGuard<'a, State>,
    is_met: impl Fn(&State) -> bool,
) -> Result<std::sync::MutexGuard<'a, State>, Error> {
    loop {
        core.advance(&mut state);
        if is_met(&state) {
            return Ok(state);
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        state = core.sleep(state, Some(Duration::from_millis(1)));
    }
}

fn join(options: Options) -> Result<&'static Core, Error> {
    let seat = seat(&options)?;
    let wanted = options
        .threads
        .map_or_else(|| environment::threads(environment::of_process(THREADS)), Ok)?;
    let threads = u16::try_from(wanted).ok().filter(|threads| *threads > 0);
    let threads = threads.ok_or(Error::Threads(wanted))?;
    let (pages, heap) = region(&options, &seat)?;
    let method = environment::method(environment::of_process(METHOD).as_deref())?;
    let method = options.method.or(method);
    let races = options.races || environment::is_set(environment::of_process(RACES).as_deref());

    let endpoint = meeting::open(&seat)?;
    let faults = Arc::new(OnceLock::new());
    let (view, memory) = watch(pages as usize, method, races, &faults)?;
    let config = Config::new(Rank(seat.rank as u8), seat.size as u8, pages);
    let config = Config { threads, races, ..config };
    let layout = Layout::new(config.nodes, pages, config.log_entries);
    let control = Buffer::new(layout.bytes());
    let frames = Arc::new(register_frames(&endpoint, view.pages())?);
    let rights = Rights::REMOTE_READ.union(Rights::REMOTE_WRITE).union(Rights::REMOTE_ATOMIC);
    let control_region = endpoint
        .register(Arc::clone(&control), rights)
        .map_err(Error::network("register the control memory"))?;
    let masters = races.then(|| Buffer::new(view.pages().bytes() as u64));
    let register = |masters| endpoint.register(masters, rights);
    let masters_region = masters.clone().map(register).transpose();
    let masters_region = masters_region
        .map_err(Error::network("register the master copies of the race detector"))?;
    let peer_memory = PeerMemory {
        frames: frames.remote(),
        control: control_region.remote(),
        masters: masters_region.as_ref().map(MemoryRegion::remote),
    };

    let queue = Arc::new(CompletionQueue::new(COMPLETIONS));
    // SAFETY: the view is kept in `Core`, which lives until the process ends.
    let local =
        unsafe { Local::new(view.pages().frames(), view.pages().bytes(), control, masters) };
    let registered = Landings::new(&endpoint, Arc::clone(view.pages())).and_then(|landings| {
        let (ranks, local) = ((config.rank, seat.size), (local, Some(landings)));
        Network::new(ranks, &endpoint, &queue, &frames, masters_region, local)
    });
    let network = registered.map_err(Error::network("register memory for operations"))?;
    let mut host = Host { memory, network };
    // The control memory has its first words before a peer can read them.
    let node =
        Node::new(config, &mut host).map_err(|misuse| MisusedCall::new(misuse, seat.rank, &[]))?;
    let greeting = Greeting {
        rank: seat.rank as u32,
        settings: Settings { size: seat.size as u32, pages, threads: threads.into(), races },
        process: std::process::id(),
        memory: peer_memory,
        host: host_name(),
    };
    let met = meeting::meet(&endpoint, &queue, &seat, &greeting, options.limit)?;
    let mut places = vec![greeting.place(); seat.size];
    let mut connections = Vec::new();
    for (rank, peer) in met {
        if let Some(place) = places.get_mut(rank) {
            *place = peer.greeting.place();
        }
        let connection = Arc::new(peer.connection);
        host.network
            .connect(rank, Arc::clone(&connection), peer.greeting.memory)
            .map_err(Error::network(format!("post receives for rank {rank}")))?;
        connections.push((rank, connection));
    }
    let state = State {
        node,
        host,
        sleepers: 0,
        failure: None,
        has_left: false,
        races: Races::default(),
        watch: Watch::new(threads),
        waits: Waits::default(),
        statistics: Statistics::listen(),
    };
    let core = Box::leak(Box::new(Core {
        process: std::process::id(),
        rank: seat.rank,
        size: seat.size,
        threads,
        endpoint,
        queue,
        connections,
        places,
        view,
        state: Mutex::new(state),
        progress: Condvar::new(),
        driver: Driver::default(),
        on_failure: options.on_failure,
        on_race: options.on_race,
        watchdog: options.watchdog,
        on_stall: options.on_stall,
        heap,
        meet: seat.meet,
        joined: Instant::now(),
        _control: control_region,
    }));
    thread_numbers::offer(threads);
    faults.get_or_init(|| &*core);
    progress::start(core).map_err(Error::Thread)?;
    Ok(core)
}

/// Returns the number of pages of the region, and its memory, which is free.
fn region(options: &Options, seat: &Seat) -> Result<(u32, Heap), Error> {
    let refused = Error::Region(options.region_bytes.saturating_add(options.local_bytes));
    let whole_pages = |bytes: u64| bytes.checked_next_multiple_of(PAGE_BYTES);
    let both = whole_pages(options.region_bytes).zip(whole_pages(options.local_bytes));
    let Some((shared, local)) = both.filter(|(shared, _)| *shared > 0) else { return Err(refused) };
    let all = local.checked_mul(seat.size as u64).and_then(|local| local.checked_add(shared));
    let pages = all.and_then(|bytes| u32::try_from(bytes / PAGE_BYTES).ok());
    let pages = pages.filter(|pages| *pages <= PAGES_MAX).ok_or(refused)?;
    Ok((pages, Heap::new(shared, local, seat.rank)))
}

/// Maps the region. The race detector needs faults of writes: without a wish, it gets a method with
/// them.
fn watch(
    pages: usize,
    method: Option<Method>,
    races: bool,
    faults: &Arc<OnceLock<&'static Core>>,
) -> Result<(PageView, Memory), Error> {
    let open = |method| -> Result<_, Error> {
        let view = ViewOptions { pages, address: Some(REGION), method };
        let view = PageView::new(&view, FaultsOf(Arc::clone(faults)))?;
        let memory = Memory::new(Arc::clone(view.pages()))?;
        Ok((view, memory))
    };
    if !races || method.is_some() {
        return open(method);
    }
    match open(Some(Method::Synchronous)) {
        Ok((view, memory)) if !memory.notes_writes() => Ok((view, memory)),
        other => {
            // The address must be free again.
            drop(other);
            open(Some(Method::Protection))
        }
    }
}

/// Registers the frames, so that peers read and write them. Their addresses are offsets.
fn register_frames(endpoint: &Endpoint, pages: &Pages) -> Result<MemoryRegion, Error> {
    let step = || Error::network("register the frames of the region");
    let rights = Rights::ALL;
    let (table, domain, bytes) = (endpoint.memory(), endpoint.domain(), pages.bytes() as u64);
    // SAFETY: the frames stay mapped and accessible until the process ends, because `Core` keeps the
    // view. The program accesses them by atomics, or through the view.
    let region = unsafe { table.register_raw_lazily(domain, pages.frames(), bytes, 0, rights) };
    let region = region.map_err(step())?;
    endpoint.adopt(region).map_err(step())
}

fn seat(options: &Options) -> Result<Seat, Error> {
    let found = environment::rank_and_size(environment::of_process)?;
    let (rank, size) = options.rank_and_size.or(found).unwrap_or((0, 1));
    if rank >= size || size > NODES_MAX {
        return Err(Error::Rank { rank, size });
    }
    let meet = options.meet.clone().or_else(|| environment::of_process(MEET));
    let meet = meet.or_else(|| environment::meeting_place(environment::of_process));
    let alone = (size == 1).then(|| "127.0.0.1:0".to_owned());
    let meet = alone.or(meet).ok_or(Error::NoMeetingPlace)?;
    Ok(Seat { rank, size, meet })
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "an unnamed host".into(), |name| name.trim().into())
}

static HAS_JOINED: AtomicBool = AtomicBool::new(false);

/// Completions that a rank can have at a time: receives, and operations in flight.
const COMPLETIONS: usize = 1 << 16;

const PAGE_BYTES: u64 = 4096;

/// How long a rank that leaves waits until the others know it.
const SHUTDOWN: Duration = Duration::from_millis(500);
