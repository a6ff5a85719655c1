//! State that all threads of a process share with the thread inside the engine: what threads leave for it, and what
//! they look up.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use delivery::LinkId;
use link::{FaultShares, HeldSignals};
use nix::errno::Errno;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use runtime::{Interest, Mark, Others, Polling, Runtime, WaitError, WorkSource};

use crate::calls::connection::Connection;
use crate::calls::waiting::{Waited, Waits};
use crate::handlers;
use crate::lock::lock;
use crate::migration::offer::Offer;
use crate::rendezvous::group::DeferredDeregistration;
use crate::transport::held::HeldStreams;
use crate::wire::{Incarnation, OfferToken, StreamNumber, SwitchMarker};

/// The shared state of an endpoint.
pub(crate) struct Exchange {
    pub(crate) incarnation: Incarnation,
    random: Mutex<ChaCha8Rng>,
    /// Set when the runtime has started. [`crate::Sockets`] keeps it alive.
    runtime: OnceLock<Weak<Runtime>>,
    /// Set when it could not start.
    has_failed: AtomicBool,
    /// The endpoint, as the runtime's source of work.
    source: Weak<dyn WorkSource>,
    /// Operations that are posted and not complete.
    pub(crate) in_flight: AtomicU32,
    /// What threads have left for the connection table.
    inbox: Mutex<Vec<Arrival>>,
    has_arrivals: AtomicBool,
    /// Streams that have something to post.
    marked: Mutex<Vec<StreamNumber>>,
    /// The links of the endpoint, by addresses of this host.
    sites: Mutex<HashMap<IpAddr, Site>>,
    jobs: Mutex<Sender<Job>>,
    /// Streams that hold bytes back.
    held: HeldStreams,
    /// Raised when something has happened to any connection.
    any: Arc<Mark>,
    /// Faults to inject into links.
    faults: FaultShares,
    /// Threads spin for as long as the settings say, without adapting.
    spins_long: bool,
}

/// How the endpoint is reached at an address of this host.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) link: LinkId,
    /// UDP port of the link.
    pub(crate) port: u16,
    /// The socket from which offers are sent.
    pub(crate) offers: Arc<UdpSocket>,
}

/// What a thread leaves for the connection table.
pub(crate) enum Arrival {
    /// The program has connected, and the rendezvous socket is open.
    Joiner { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// The program uses a connection that it has accepted. The first offer is sent.
    Offered { offer: Offer, connection: Arc<Connection> },
    /// The first bytes have gone over an accepted connection, so the peer uses it.
    Began { token: u64 },
    /// A connection was left to TCP, perhaps by the program.
    Left { token: u64 },
}

/// A job for the background thread.
pub(crate) enum Job {
    /// A connection of the connecting side, whose rendezvous socket is to be watched.
    Join { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// A connection of the accepting side. Its address may need a link.
    Offer { connection: Arc<Connection> },
    /// Deregister memory of groups.
    Deregister(Vec<DeferredDeregistration>),
    /// Check whether the counters file is due.
    Look,
    /// Stop.
    Stop,
}

impl Exchange {
    pub(crate) fn new(
        source: Weak<dyn WorkSource>,
        seed: [u8; 32],
        faults: FaultShares,
        polling: Polling,
        jobs: Sender<Job>,
    ) -> Self {
        let mut random = ChaCha8Rng::from_seed(seed);
        let incarnation = Incarnation(random_128(&mut random).max(1));
        Self {
            incarnation,
            random: Mutex::new(random),
            runtime: OnceLock::new(),
            has_failed: AtomicBool::new(false),
            source,
            in_flight: AtomicU32::new(0),
            inbox: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            marked: Mutex::default(),
            sites: Mutex::default(),
            jobs: Mutex::new(jobs),
            held: HeldStreams::default(),
            any: Arc::default(),
            faults,
            spins_long: !matches!(polling, Polling::ADAPTIVE | Polling::NEVER),
        }
    }

    /// Returns the runtime, if it has started and not ended.
    pub(crate) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.get()?.upgrade()
    }

    pub(crate) fn started(&self, runtime: &Arc<Runtime>) {
        // Set once.
        let _first = self.runtime.set(Arc::downgrade(runtime));
    }

    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Asks the runtime to take what was left or marked.
    pub(crate) fn ring(&self) {
        if let (Some(runtime), Some(source)) = (self.runtime(), self.source.upgrade()) {
            // In a forked child the runtime takes nothing.
            let _forked = runtime.ring(&source);
        }
    }

    pub(crate) fn mark(&self, number: StreamNumber) {
        lock(&self.marked).push(number);
    }

    /// Appends the numbers of marked streams to `into`.
    pub(crate) fn take_marked(&self, into: &mut Vec<StreamNumber>) {
        into.append(&mut lock(&self.marked));
    }

    /// Leaves something for the connection table.
    pub(crate) fn leave(&self, arrival: Arrival) {
        lock(&self.inbox).push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    /// Returns whether so much waits that a turn of the engine is needed: a program that connects
    /// and closes without ever waiting has many rendezvous sockets open.
    pub(crate) fn is_crowded(&self) -> bool {
        lock(&self.inbox).len() >= ARRIVALS
    }

    pub(crate) fn take_arrivals(&self) -> Vec<Arrival> {
        if !self.has_arrivals.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut lock(&self.inbox))
    }

    pub(crate) fn site(&self, ip: IpAddr) -> Option<Site> {
        lock(&self.sites).get(&ip.to_canonical()).cloned()
    }

    pub(crate) fn add_site(&self, ip: IpAddr, site: Site) {
        lock(&self.sites).insert(ip.to_canonical(), site);
    }

    /// Returns a random switch marker, which peers cannot guess.
    pub(crate) fn random_marker(&self) -> SwitchMarker {
        SwitchMarker(random_128(&mut lock(&self.random)).to_be_bytes())
    }

    pub(crate) fn random_token(&self) -> OfferToken {
        OfferToken(lock(&self.random).next_u64().max(1))
    }

    /// The mark that is raised when something has happened to any connection of the process.
    pub(crate) const fn any(&self) -> &Arc<Mark> {
        &self.any
    }

    pub(crate) const fn faults(&self) -> FaultShares {
        self.faults
    }

    /// Gives the background thread a job.
    pub(crate) fn ask(&self, job: Job) {
        // When the thread has stopped, the endpoint has ended.
        let _stopped = lock(&self.jobs).send(job);
    }

    /// Returns whether something waits in the inbox.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_arrivals.load(Ordering::Acquire)
    }
}

impl Exchange {
    /// Waits for the engine or for descriptors of the program, whichever is ready first.
    pub(crate) fn wait(
        &self,
        interest: Interest<'_>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        let Some(sleeping) = handlers::before_sleep() else { return Err(Errno::EINTR) };
        let Some(runtime) = self.runtime() else { return Ok(Self::wait_for_start(limit, ready)) };
        // A deferred handler ends the wait.
        let mut ready = || handlers::are_wanted() || ready();
        let ready: &mut dyn FnMut() -> bool = &mut ready;
        let waited = if self.spins_long {
            wait_spinning(&runtime, interest, others, limit, ready)
        } else {
            let mut others = Others::new(others);
            if let Some(blocked) = sleeping.blocked() {
                others = others.with_signals_asleep(blocked);
            }
            runtime.wait_beside(interest, &mut others, limit, ready)
        };
        match waited {
            _ if handlers::are_wanted() => Err(Errno::EINTR),
            Ok(runtime::Waited::Ready) => Ok(Waited::Ready),
            Ok(runtime::Waited::Descriptors(_)) => Ok(Waited::Others),
            Ok(runtime::Waited::TimedOut) => Ok(Waited::TimedOut),
            Err(WaitError::Interrupted) => Err(Errno::EINTR),
            Err(WaitError::System(error)) => {
                Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
            }
            Err(_forked) => Err(Errno::EIO),
        }
    }

    /// Waits while the endpoint starts, which takes a few milliseconds at most. The caller polls its descriptors.
    #[cold]
    fn wait_for_start(limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Waited {
        if ready() {
            return Waited::Ready;
        }
        let limit = limit.map_or(MOMENT, |limit| limit.min(MOMENT));
        std::thread::park_timeout(limit);
        if limit == MOMENT { Waited::Others } else { Waited::TimedOut }
    }
}

/// Waits as a thread that may spin for ever. A handler ends the wait. The kernel reports only handlers that it runs
/// while it polls descriptors, so signals are blocked between two polls.
fn wait_spinning(
    runtime: &Runtime,
    interest: Interest<'_>,
    others: &mut [libc::pollfd],
    limit: Option<Duration>,
    ready: &mut dyn FnMut() -> bool,
) -> Result<runtime::Waited, WaitError> {
    let first = limit.map_or(SPIN_BEFORE_SIGNALS, |limit| limit.min(SPIN_BEFORE_SIGNALS));
    let waited =
        runtime.wait_beside(interest, &mut Others::new(others), Some(first), &mut *ready)?;
    let rest = limit.map(|limit| limit.saturating_sub(first));
    if waited != runtime::Waited::TimedOut || rest == Some(Duration::ZERO) {
        return Ok(waited);
    }
    let held = HeldSignals::hold().ok();
    let mut others = Others::new(others);
    if let Some(held) = &held {
        others = others.with_signals(held.before());
    }
    runtime.wait_beside(interest, &mut others, rest, ready)
}

/// How long a thread spins before it blocks signals. Most waits end earlier, and a handler that runs until then could
/// as well have run before the call.
const SPIN_BEFORE_SIGNALS: Duration = Duration::from_micros(50);

impl Waits for Exchange {
    fn drive(&self) {
        if let Some(runtime) = self.runtime() {
            // In a forked child nothing makes progress.
            let _forked = runtime.drive();
        }
    }

    fn wait_beside(
        &self,
        mark: &Arc<Mark>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        self.held.push_all();
        self.wait(Interest::Mark(mark), others, limit, ready)
    }

    fn on_left(&self, token: u64) {
        self.leave(Arrival::Left { token });
    }

    fn on_first_bytes(&self, token: u64) {
        self.leave(Arrival::Began { token });
    }

    fn raise(&self, mark: &Mark) {
        match self.runtime() {
            Some(runtime) => runtime.raise(mark),
            None => mark.raise(),
        }
    }

    fn held(&self) -> &HeldStreams {
        &self.held
    }
}

/// How many arrivals may wait before the thread that leaves one drives the engine.
const ARRIVALS: usize = 16;

/// How long a thread sleeps between two looks while the endpoint starts.
const MOMENT: Duration = Duration::from_millis(1);

fn random_128(random: &mut ChaCha8Rng) -> u128 {
    u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
}
