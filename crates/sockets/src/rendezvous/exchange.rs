//! What all threads of a process share with those inside the engine: what threads leave there, and what they look up.

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

/// See above.
pub(crate) struct Exchange {
    pub(crate) incarnation: Incarnation,
    random: Mutex<ChaCha8Rng>,
    /// Set when it has started. Whoever is to keep it alive has another reference.
    runtime: OnceLock<Weak<Runtime>>,
    /// Set when it has not.
    has_failed: AtomicBool,
    /// What takes out of the engine's turns what is left here.
    source: Weak<dyn WorkSource>,
    /// Operations posted and not complete.
    pub(crate) in_flight: AtomicU32,
    /// What threads have left for the connection table.
    inbox: Mutex<Vec<Arrival>>,
    has_arrivals: AtomicBool,
    /// Streams that have something to post.
    marked: Mutex<Vec<StreamNumber>>,
    /// By address of this host: the links of the endpoint.
    sites: Mutex<HashMap<IpAddr, Site>>,
    jobs: Mutex<Sender<Job>>,
    /// Streams that hold bytes back.
    held: HeldStreams,
    /// Raised when anything has come.
    any: Arc<Mark>,
    /// What its links do wrong.
    faults: FaultShares,
    /// Threads spin for as long as they are told, whatever it costs.
    spins_long: bool,
}

/// Where the endpoint is reached at an address of this host.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) link: LinkId,
    /// UDP port of the link.
    pub(crate) port: u16,
    /// Offers are sent from here.
    pub(crate) offers: Arc<UdpSocket>,
}

/// What a thread leaves for the connection table.
pub(crate) enum Arrival {
    /// The program has connected, and the rendezvous socket is open.
    Joiner { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// The program uses a connection that it has accepted; the first offer is sent.
    Offered { offer: Offer, connection: Arc<Connection> },
    /// The first bytes have gone over an accepted connection, whose peer uses it by now.
    Began { token: u64 },
    /// A connection was left to TCP, by the program perhaps.
    Left { token: u64 },
}

/// What the background thread is asked to do.
pub(crate) enum Job {
    /// A connection of the side that connected, whose rendezvous socket the runtime does not watch yet.
    Join { connection: Arc<Connection>, rendezvous_socket: OwnedFd },
    /// A connection of the side that accepted, at whose address there is no link yet.
    Offer { connection: Arc<Connection> },
    /// The memory of a group that is no more.
    Deregister(Vec<DeferredDeregistration>),
    /// Look whether counters are to be written.
    Look,
    /// It is over.
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

    /// The runtime, if it has started and not ended.
    pub(crate) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.get()?.upgrade()
    }

    pub(crate) fn started(&self, runtime: &Arc<Runtime>) {
        // Once.
        let _first = self.runtime.set(Arc::downgrade(runtime));
    }

    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Has what was left or marked taken, soon.
    pub(crate) fn ring(&self) {
        if let (Some(runtime), Some(source)) = (self.runtime(), self.source.upgrade()) {
            // In a forked child nothing is taken.
            let _forked = runtime.ring(&source);
        }
    }

    pub(crate) fn mark(&self, number: StreamNumber) {
        lock(&self.marked).push(number);
    }

    /// Moves the numbers of marked streams behind `into`.
    pub(crate) fn take_marked(&self, into: &mut Vec<StreamNumber>) {
        into.append(&mut lock(&self.marked));
    }

    /// Leaves something for the connection table.
    pub(crate) fn leave(&self, arrival: Arrival) {
        lock(&self.inbox).push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    /// Whether so much was left there that somebody should take it: a program that connects and closes all the time,
    /// and never waits, has open rendezvous sockets.
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

    /// Numbers that peers cannot guess.
    pub(crate) fn random_marker(&self) -> SwitchMarker {
        SwitchMarker(random_128(&mut lock(&self.random)).to_be_bytes())
    }

    pub(crate) fn random_token(&self) -> OfferToken {
        OfferToken(lock(&self.random).next_u64().max(1))
    }

    /// Raised when anything has come for a connection of the process, or was decided.
    pub(crate) const fn any(&self) -> &Arc<Mark> {
        &self.any
    }

    pub(crate) const fn faults(&self) -> FaultShares {
        self.faults
    }

    /// Asks the background thread.
    pub(crate) fn ask(&self, job: Job) {
        // When it has stopped, all is over.
        let _stopped = lock(&self.jobs).send(job);
    }

    /// Whether something was left that was not taken.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_arrivals.load(Ordering::Acquire)
    }
}

impl Exchange {
    /// Waits for the engine and for descriptors of the program, whichever comes first.
    pub(crate) fn wait(
        &self,
        interest: Interest<'_>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        let Some(sleeping) = handlers::before_sleep() else { return Err(Errno::EINTR) };
        let Some(runtime) = self.runtime() else { return Ok(Self::wait_for_start(limit, ready)) };
        // A handler that is to run ends the wait.
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

    /// The endpoint starts, which takes a few milliseconds at most. Whoever waits meanwhile looks at its descriptors
    /// again and again.
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

/// Waits as a thread that may spin for ever. A handler that runs meanwhile ends the wait: the kernel tells that only of
/// signals which it lets in itself, when descriptors are looked at, so that they are held back between two looks.
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

/// How long a thread spins before it looks for signals: most waits are over by then, and a handler may as well have run
/// before the call.
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

/// Arrivals that wait until whoever leaves one makes a turn.
const ARRIVALS: usize = 16;

/// How long a thread waits for the endpoint to start until it looks again.
const MOMENT: Duration = Duration::from_millis(1);

fn random_128(random: &mut ChaCha8Rng) -> u128 {
    u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
}
