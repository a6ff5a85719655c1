//! State that the threads of a process share with the thread inside the engine: queues of work for
//! that thread, and values that all threads read.

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
    /// Set when the runtime has started. [`crate::Sockets`] owns the runtime.
    runtime: OnceLock<Weak<Runtime>>,
    /// True if the runtime could not start.
    has_failed: AtomicBool,
    /// The endpoint. The runtime calls it as a source of work.
    source: Weak<dyn WorkSource>,
    /// Number of operations in flight.
    pub(crate) in_flight: AtomicU32,
    /// Events that threads have queued for the connection table.
    inbox: Mutex<Vec<Arrival>>,
    has_arrivals: AtomicBool,
    /// Streams whose doorbells are marked, because they have operations to post.
    marked: Mutex<Vec<StreamNumber>>,
    /// The links of the endpoint, for each address of this host.
    sites: Mutex<HashMap<IpAddr, Site>>,
    jobs: Mutex<Sender<Job>>,
    /// Streams that coalesce small writes and hold bytes back.
    held: HeldStreams,
    /// Raised after an event of any connection.
    any: Arc<Mark>,
    /// Faults to inject into links.
    faults: FaultShares,
    /// True if threads spin for the fixed time in the settings. Otherwise the spinning time adapts.
    spins_long: bool,
}

/// The endpoint's link at one address of this host.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) link: LinkId,
    /// UDP port of the link.
    pub(crate) port: u16,
    /// The socket from which offers are sent.
    pub(crate) offers: Arc<UdpSocket>,
}

/// An event that a thread queues for the connection table.
pub(crate) enum Arrival {
    /// The program has connected, and its rendezvous socket is open.
    Joiner { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// The program has begun to use a connection that it accepted. The first offer is sent.
    Offered { offer: Offer, connection: Arc<Connection> },
    /// An accepted connection has carried its first bytes, so the peer uses the connection.
    Began { token: u64 },
    /// A connection was left to TCP, perhaps at the program's request.
    Left { token: u64 },
}

/// A job for the background thread.
pub(crate) enum Job {
    /// Watch the rendezvous socket of a connection that the program has connected.
    Join { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// Make the offer for a connection that the program has accepted. A link at the connection's
    /// local address may have to be opened first.
    Offer { connection: Arc<Connection> },
    /// Deregister the memory of groups.
    Deregister(Vec<DeferredDeregistration>),
    /// Write the counters file if it is due.
    Look,
    /// End the thread.
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

    /// Returns the runtime. Returns `None` before the runtime has started and after it has stopped.
    pub(crate) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.get()?.upgrade()
    }

    pub(crate) fn started(&self, runtime: &Arc<Runtime>) {
        // The runtime starts only once, so the value was not set before.
        let _first = self.runtime.set(Arc::downgrade(runtime));
    }

    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Wakes the runtime, which then handles queued events and marked streams.
    pub(crate) fn ring(&self) {
        if let (Some(runtime), Some(source)) = (self.runtime(), self.source.upgrade()) {
            // This does nothing in a forked child, because the runtime does not run there.
            let _forked = runtime.ring(&source);
        }
    }

    pub(crate) fn mark(&self, number: StreamNumber) {
        lock(&self.marked).push(number);
    }

    /// Moves the numbers of marked streams to the end of `into`.
    pub(crate) fn take_marked(&self, into: &mut Vec<StreamNumber>) {
        into.append(&mut lock(&self.marked));
    }

    /// Queues an event for the connection table.
    pub(crate) fn leave(&self, arrival: Arrival) {
        lock(&self.inbox).push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    /// Returns true if the engine must run because many events are queued for the connection table.
    /// Without this, a program that connects and closes without ever waiting would keep many
    /// rendezvous sockets open.
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

    /// Returns a random switch marker. Peers cannot guess it.
    pub(crate) fn random_marker(&self) -> SwitchMarker {
        SwitchMarker(random_128(&mut lock(&self.random)).to_be_bytes())
    }

    pub(crate) fn random_token(&self) -> OfferToken {
        OfferToken(lock(&self.random).next_u64().max(1))
    }

    /// Returns the mark that is raised after an event of any connection in the process.
    pub(crate) const fn any(&self) -> &Arc<Mark> {
        &self.any
    }

    pub(crate) const fn faults(&self) -> FaultShares {
        self.faults
    }

    /// Sends a job to the background thread.
    pub(crate) fn ask(&self, job: Job) {
        // If the thread has stopped, the endpoint has also stopped, and the job is not needed.
        let _stopped = lock(&self.jobs).send(job);
    }

    /// Returns true if events are queued for the connection table.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_arrivals.load(Ordering::Acquire)
    }
}

impl Exchange {
    /// Waits until `ready` returns true, a descriptor in `others` is ready, or `limit` has passed.
    /// `interest` names the events after which this function calls `ready` again.
    pub(crate) fn wait(
        &self,
        interest: Interest<'_>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        let Some(sleeping) = handlers::before_sleep() else { return Err(Errno::EINTR) };
        let Some(runtime) = self.runtime() else { return Ok(Self::wait_for_start(limit, ready)) };
        // End the wait when a signal handler is deferred.
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

    /// Waits while the endpoint starts, which takes at most a few milliseconds. Does not poll
    /// descriptors; the caller must do so.
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

/// Waits, and spins for the whole time. A signal handler ends the wait. The kernel reports a
/// handler only if the handler runs during a poll of descriptors. Therefore signals are blocked
/// except during polls.
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

/// The time for which a thread spins before it blocks signals. Most waits end earlier. If a handler
/// runs in this time and does not end the wait, the program sees the same result as if the handler
/// had run before the call.
const SPIN_BEFORE_SIGNALS: Duration = Duration::from_micros(50);

impl Waits for Exchange {
    fn drive(&self) {
        if let Some(runtime) = self.runtime() {
            // This does nothing in a forked child, because the runtime does not run there.
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

/// Number of events that may be queued for the connection table before the engine must run. The
/// thread that queues the last of these events also drives the engine.
const ARRIVALS: usize = 16;

/// The time between two checks by a thread that waits for the endpoint to start.
const MOMENT: Duration = Duration::from_millis(1);

fn random_128(random: &mut ChaCha8Rng) -> u128 {
    u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
}
