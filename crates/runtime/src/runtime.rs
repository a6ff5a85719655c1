//! The runtime, and the functions of it that threads of an application call.

use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use delivery::{Instant, LinkId, SettingError};
use engine::{ConnectionHandle, DatagramPort, Engine, EngineConfig};
use link::{Link, start_thread};
use mem::{MemoryAccess, MemoryTable, TableLimits};
use semantics::{CompletionQueue, PieceList, PostError, StatusTable};
use thiserror::Error;
use wire_edge::Moved;

use crate::arming::Arming;
use crate::auxiliary::{Auxiliary, Readiness};
use crate::auxiliary_sockets::{AUXILIARY_KEYS, AuxiliaryError};
use crate::cell::{Drive, Inside, ProgressCell};
use crate::clock::Clock;
use crate::counters::{OutsideCounters, RuntimeCounters};
use crate::driver::{AttachError, Caller, Command, Driver, RuntimeHost};
use crate::exit;
use crate::fork::{Forked, HomeProcess, Inherited};
use crate::hooks::Hooks;
use crate::lookers::Lookers;
use crate::park::{Interest, Polling, Waiters};
use crate::progress_thread;
use crate::retired::Retired;
use crate::sleep::{Descriptor, Sleeper, entropy};
use crate::source::{DOORBELLS, Doorbells, RingAction, WorkSource};
use crate::submission::{Posting, Submission, Submissions};
use crate::turn_access::TurnAccess;
use crate::waits::{Spin, Waits};

/// Settings of a [`Runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Sizes, limits and policies of the protocol.
    pub engine: EngineConfig,
    /// The way in which threads wait.
    pub polling: Polling,
    /// If true, a progress thread drives the endpoint while no thread of the application drives it.
    /// Without a progress thread, the endpoint makes progress only during calls of the application.
    pub progress_thread: bool,
    /// The processor that the progress thread is pinned to, numbered as in the kernel. `None` means
    /// any processor.
    pub progress_processor: Option<usize>,
    /// Maximum number of operations and receives with a handle at one time. Each takes 40 bytes.
    pub handles_max: u32,
    /// Maximum number of operations that may wait at one time until the thread inside the engine
    /// posts them, including operations that wait for room in a queue.
    pub submissions_max: u32,
    /// Limits of memory regions and protection domains.
    pub regions: TableLimits,
    /// Seed of identifiers and cookies; peers must not be able to predict it.
    pub seed: [u8; 32],
    /// Seed of the keys of memory regions; peers must not be able to predict it.
    pub region_seed: [u64; 2],
}

impl RuntimeConfig {
    /// Returns the defaults, with a progress thread, and seeds from the kernel.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn from_entropy() -> io::Result<Self> {
        Ok(Self {
            engine: EngineConfig::default(),
            polling: Polling::default(),
            progress_thread: true,
            progress_processor: None,
            handles_max: 8192,
            submissions_max: 1024,
            regions: TableLimits::default(),
            seed: entropy()?,
            region_seed: [u64::from_ne_bytes(entropy()?), u64::from_ne_bytes(entropy()?)],
        })
    }

    /// Checks that every setting is in its valid range. The endpoint then uses exactly these
    /// values.
    ///
    /// # Errors
    /// Returns [`SettingError`], which names the setting and its range.
    pub fn check(&self) -> Result<(), SettingError> {
        let within =
            |setting, value: u32, wanted| SettingError::unless_within(setting, &value, &wanted);
        self.engine.check()?;
        within("handles_max", self.handles_max, 1..=u32::MAX)?;
        within("submissions_max", self.submissions_max, 1..=u32::MAX)?;
        within("regions_max", self.regions.regions_max, 0..=TableLimits::REGIONS_MAX)?;
        within("domains_max", self.regions.domains_max, 0..=TableLimits::DOMAINS_MAX)
    }
}

/// The reason why a runtime could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting has an invalid value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The eventfd that wakes the sleeping thread could not be created.
    #[error("cannot make an eventfd (raise the limit of descriptors with `ulimit -n`?)")]
    Descriptor(#[source] io::Error),
    /// The progress thread could not be started.
    #[error("cannot start the progress thread (a limit of threads, `ulimit -u`?)")]
    Thread(#[source] io::Error),
    /// The progress thread could not be pinned to the processor that was named.
    #[error(
        "cannot pin the progress thread to processor {processor}: {source}; `taskset -pc $$` lists \
         the processors that this process can use"
    )]
    Processor {
        /// The processor.
        processor: usize,
        /// The error of the system call.
        source: io::Error,
    },
    /// A link could not be attached.
    #[error(transparent)]
    Link(#[from] AttachError),
}

/// The reason why an operation or a receive could not be posted. The call had no effect.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SubmitError {
    /// The engine refused the operation or receive.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Another thread is inside the engine, and the ring of operations that wait for that thread is
    /// full.
    #[error(
        "another thread is inside the engine, and {0} operations that were handed over are not \
         posted yet; poll, then post again"
    )]
    Busy(u32),
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// The time at which a thread sends the frames of a posted operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doorbell {
    /// The thread sends them in this call.
    Ring,
    /// A later call sends them: the next call that drives the engine, waits, or posts with
    /// [`Doorbell::Ring`]. One frame can then carry many small operations.
    Later,
}

/// An engine with its links.
///
/// Threads of the application drive the engine inside their own calls that post, poll or wait. At
/// other times, a progress thread drives it. Any thread may call any method. A method waits for the
/// thread inside the engine only if its description says so. Methods take only locks that other
/// threads hold for a few instructions.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Mutex<Option<ManuallyDrop<JoinHandle<()>>>>,
    /// True after [`Runtime::stop_later`]: another thread ends this runtime, so dropping this value
    /// has no effect.
    pub(crate) is_handed_over: AtomicBool,
}

impl Runtime {
    /// Starts an engine on `links`, which get identifiers in this order. The runtime calls `hooks`
    /// for events.
    ///
    /// # Errors
    /// Returns [`StartError`]; each variant names one cause.
    pub fn start(
        config: RuntimeConfig,
        links: Vec<Box<dyn Link>>,
        hooks: Box<dyn Hooks>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let home = HomeProcess::here();
        let status = Arc::new(StatusTable::new(config.handles_max));
        let engine = Engine::new(config.engine, config.seed, Arc::clone(&status))?;
        let clock = Clock::start();
        let submissions = Submissions::new(config.submissions_max);
        let shared = Arc::new(Shared {
            queue_owner: engine.incarnation(),
            cell: ProgressCell::new(Driver::new(engine, &clock, &submissions)),
            host: RuntimeHost {
                clock,
                memory: Arc::new(MemoryTable::new(config.regions, config.region_seed)),
                status,
                submissions,
                doorbells: Doorbells::new(DOORBELLS),
                commands: Mutex::new(Vec::new()),
                has_commands: AtomicBool::new(false),
                hooks,
                waiters: Waiters::new(),
                sleeper: Sleeper::new().map_err(StartError::Descriptor)?,
                inherited: Inherited::claim(),
                turn_due: AtomicU64::new(u64::MAX),
                armed_until: AtomicU64::new(0),
                is_parting: AtomicBool::new(false),
                must_look: AtomicBool::new(false),
                timers_end_sleeps: AtomicBool::new(false),
                is_unfinished: AtomicBool::new(false),
                is_moderated: AtomicBool::new(false),
                frames: AtomicU64::new(0),
                answers_begun: AtomicU64::new(0),
                has_news: AtomicBool::new(false),
                fired: Mutex::new(Vec::new()),
                retired: Retired::default(),
                lookers: Lookers::default(),
                below_limit: Mutex::new(Vec::new()),
                has_fired: AtomicBool::new(false),
                arming: Arming::new(),
                descriptor: Descriptor::new().map_err(StartError::Descriptor)?,
                polled_at: AtomicU64::new(0),
                looked_at: AtomicU64::new(0),
                worked_at: AtomicU64::new(0),
                frame_waited_ns: AtomicU64::new(0),
            },
            home,
            waits: Waits::new(config.polling.spinning()),
            has_thread: config.progress_thread,
            outside: OutsideCounters::default(),
            is_stopping: AtomicBool::new(false),
            is_resting: AtomicBool::new(false),
            progress_thread: Mutex::new(None),
        });
        let runtime =
            Self { shared, thread: Mutex::new(None), is_handed_over: AtomicBool::new(false) };
        for link in links {
            runtime.attach_link(link)?;
        }
        if config.progress_thread {
            runtime.start_thread(config.progress_processor)?;
        }
        exit::remember(&runtime.shared);
        Ok(runtime)
    }

    fn start_thread(&self, processor: Option<usize>) -> Result<(), StartError> {
        let shared = Arc::clone(&self.shared);
        let thread = start_thread("ethernot", move || progress_thread::run(&shared))
            .map_err(StartError::Thread)?;
        *lock(&self.shared.progress_thread) = Some(thread.thread().clone());
        let kept = processor.map(|processor| {
            let source = progress_thread::keep_to(&thread, processor);
            source.map_err(|source| StartError::Processor { processor, source })
        });
        *lock(&self.thread) = Some(ManuallyDrop::new(thread));
        kept.unwrap_or(Ok(()))
    }

    /// Returns the table of the endpoint's memory regions.
    pub fn memory(&self) -> &Arc<MemoryTable> {
        &self.shared.host.memory
    }

    /// Returns the status table, in which handles look up the progress of their operations.
    pub fn status(&self) -> &Arc<StatusTable> {
        &self.shared.host.status
    }

    /// Returns the identifier with which this endpoint [claims](CompletionQueue::claim) the
    /// completion queues of its connections.
    #[inline]
    pub fn queue_owner(&self) -> u64 {
        self.shared.queue_owner
    }

    /// Checks that the calling process is the one that created the endpoint.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn check_process(&self) -> Result<(), Forked> {
        self.shared.home.check()
    }

    /// Returns the process that started the runtime.
    pub fn home(&self) -> HomeProcess {
        self.shared.home
    }

    /// Posts an operation, or a buffer for a message. `queue` must be the completion queue of the
    /// connection.
    ///
    /// If another thread is inside the engine, this call checks the operation and hands it over to
    /// that thread. If that thread then finds that the operation has become impossible, the
    /// operation completes with an error. Operations of one thread keep their order.
    ///
    /// # Errors
    /// Returns [`SubmitError`]; each variant names one cause.
    #[inline]
    pub fn post(
        &self,
        connection: ConnectionHandle,
        queue: &Arc<CompletionQueue>,
        posting: impl Into<Posting>,
        doorbell: Doorbell,
    ) -> Result<(), SubmitError> {
        self.post_bytes(connection, queue, posting.into(), None, doorbell)
    }

    /// Posts a write, a read, a send or a receive like [`Runtime::post`], with its bytes in several
    /// pieces of memory. Ignores the place and length in the request itself.
    ///
    /// # Errors
    /// Returns [`SubmitError`]; each variant names one cause.
    pub fn post_list(
        &self,
        connection: ConnectionHandle,
        queue: &Arc<CompletionQueue>,
        posting: impl Into<Posting>,
        list: PieceList<'_>,
        doorbell: Doorbell,
    ) -> Result<(), SubmitError> {
        self.post_bytes(connection, queue, posting.into(), Some(list), doorbell)
    }

    #[inline]
    fn post_bytes(
        &self,
        connection: ConnectionHandle,
        queue: &Arc<CompletionQueue>,
        posting: Posting,
        list: Option<PieceList<'_>>,
        doorbell: Doorbell,
    ) -> Result<(), SubmitError> {
        let shared = &*self.shared;
        shared.home.check()?;
        let Some(mut inside) = shared.cell.try_enter() else {
            return self.hand_over(connection, queue, posting, list);
        };
        let host = &shared.host;
        let result = inside.with(|driver| driver.post(host, connection, &posting, list, doorbell));
        shared.leave(inside, result == Ok(true));
        Ok(result.map(|_more| ())?)
    }

    /// Rings the doorbell of a source after the caller has added work to it. This call takes the
    /// work from the source into the engine. If another thread is inside the engine, that thread
    /// takes the work before it leaves.
    ///
    /// If the application polls and earlier work of the source is outstanding, this call defers the
    /// work until the next poll. That poll then sends all work added before it in one batch. A poll
    /// that does not [drive](Runtime::drive) the engine must therefore call
    /// [`Runtime::ring_deferred`].
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn ring(&self, source: &Arc<dyn WorkSource>) -> Result<(), Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        let (host, doorbell) = (&shared.host, source.doorbell());
        let make_room = || {
            shared.drive_inline();
        };
        let action = doorbell.ring_action(source.is_idle(), || {
            shared.ns_since(&host.looked_at) < shared.waits.sleep_cost_ns()
        });
        if action == RingAction::Deferred {
            doorbell.defer();
            host.doorbells.put(source, doorbell, make_room);
        } else if let Some(mut inside) =
            shared.enter_to_send(source.is_urgent() && !doorbell.is_rung())
        {
            let more = inside.with(|driver| driver.ring(host, source));
            if action.counts_as_poll() {
                // Record that the application polled at the time of its last call. Without this, an
                // application that adds work for long before it polls again would not count as
                // polling.
                host.looked_at.store(host.polled_at.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            shared.leave(inside, more);
        } else {
            host.doorbells.put(source, doorbell, make_room);
            shared.drive_inline();
        }
        Ok(())
    }

    /// Takes all work from a source and sends it before returning, if links and the engine have
    /// room. Meant for a source whose connection is about to be closed. Does not wait for
    /// acknowledgements.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn send_out(&self, source: &Arc<dyn WorkSource>) -> Result<(), Forked> {
        let source = Arc::clone(source);
        self.shared.command(move |driver, host, now, memory| {
            driver.send_out(host, now, memory, &source);
        })
    }

    /// Takes the deferred work (see [`Runtime::ring`]) from its sources. A poll that found
    /// something does not drive the engine, so the caller of such a poll must call this function.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn ring_deferred(&self) -> Result<(), Forked> {
        self.shared.home.check()?;
        self.on_found();
        if !self.shared.host.doorbells.is_empty() {
            self.shared.drive_inline();
        }
        Ok(())
    }

    #[cold]
    fn hand_over(
        &self,
        connection: ConnectionHandle,
        queue: &Arc<CompletionQueue>,
        posting: Posting,
        list: Option<PieceList<'_>>,
    ) -> Result<(), SubmitError> {
        let shared = &*self.shared;
        let Shared { host, outside, .. } = shared;
        posting.check(list, &host.memory.access())?;
        let list = list.map(|list| host.submissions.store(list));
        let submission = Submission { connection, queue: Arc::clone(queue), posting, list };
        if !host.submissions.push(submission) {
            shared.drive_inline();
            return Err(SubmitError::Busy(host.submissions.capacity() as u32));
        }
        outside.count_handed_over();
        shared.drive_inline();
        Ok(())
    }

    /// Makes progress: reads the links, runs timers and sends. If another thread is inside the
    /// engine, returns at once, because that thread makes the progress. Never blocks.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn drive(&self) -> Result<Drive, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        Ok(shared.drive_inline().0)
    }

    /// Makes progress like [`Runtime::drive`], for an application that polled and found nothing.
    /// This call sleeps if the application has found nothing for a while and other threads need its
    /// processor. The sleep ends when a frame arrives, or after 4 ms. `docs/waiting.md` describes
    /// the policy. A poll that finds something must call [`Runtime::on_found`].
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll(&self) -> Result<Drive, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        let before = Instant(shared.host.polled_at.load(Ordering::Relaxed));
        let (outcome, worked) = shared.drive_inline();
        shared.on_polled(before, outcome, worked);
        Ok(outcome)
    }

    /// Records that a poll of the application found something. Call this after a poll that did not
    /// drive the engine, because the engine does not notice such a poll.
    #[inline]
    pub fn on_found(&self) {
        self.shared.waits.on_found();
    }

    /// Runs `work` inside the engine and waits for its result. Meant for the control path.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn control<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine, &MemoryAccess<'_>, Instant) -> R + Send + 'static,
    ) -> Result<R, Forked> {
        self.shared
            .command(|driver, _host, now, memory| work(&mut driver.engine, memory.begun(), now))
    }

    /// Waits until `ready` returns a value, for at most `limit`. Without a limit, waits for ever
    /// and never returns `None`. Calls `ready` once at the start, and again whenever an event of
    /// `interest` may have occurred.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn wait<R>(
        &self,
        interest: Interest<'_>,
        limit: Option<Duration>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        if let Some(result) = ready() {
            return Ok(Some(result));
        }
        let mut spin = Spin::begin(shared, limit);
        let looks = !spin.sleeps_at_once(shared);
        let mut goes_on = looks;
        while goes_on {
            shared.drive_inline();
            if let Some(result) = ready() {
                spin.found(shared);
                return Ok(Some(result));
            }
            goes_on = spin.goes_on(shared);
        }
        let result = shared.block(interest, spin.deadline(), looks, ready);
        if result.is_some() {
            spin.came(shared, true);
        }
        Ok(result)
    }

    /// Wakes all waiters. Call this after a change outside of the engine that may fulfil what they
    /// wait for. The waiters are:
    ///
    /// * threads in [`Runtime::wait`], which call `ready` again;
    /// * tasks in the list of [`Runtime::enlist_task`];
    /// * threads that sleep on the [descriptor](Runtime::descriptor).
    ///
    /// Hooks may call this function. The caller must make the change under a lock before this call,
    /// and `ready` must read the changed state under the same lock. Otherwise a waiter may miss the
    /// change.
    #[inline]
    pub fn wake_waiting(&self) {
        let host = &self.shared.host;
        if self.check_process().is_err() {
            return;
        }
        if host.waiters.are_blocked() {
            host.wake_waiters(true);
        }
        if host.arming.disarm() {
            host.descriptor.raise();
        }
    }

    /// Adds a datagram port to an IP multicast group on the interface of `link`, which must be a
    /// UDP link. The port then receives datagrams to the group that arrive at this interface, and
    /// datagrams that this host sends to the group.
    ///
    /// # Errors
    /// Returns [`AuxiliaryError`]; each variant names one cause.
    pub fn join_group(
        &self,
        port: DatagramPort,
        link: LinkId,
        group: IpAddr,
    ) -> Result<(), AuxiliaryError> {
        self.shared.command(move |driver, host, _now, _memory| {
            driver.join_group(host, port, link, group)
        })?
    }

    /// Removes a datagram port from an IP multicast group.
    ///
    /// # Errors
    /// Returns [`AuxiliaryError::Port`] if there is no such port.
    pub fn leave_group(&self, port: DatagramPort, group: IpAddr) -> Result<(), AuxiliaryError> {
        let leave =
            move |driver: &mut Driver, host: &RuntimeHost, _now, _memory: &TurnAccess<'_>| {
                driver.leave_group(host, port, group)
            };
        Ok(self.shared.command(leave)??)
    }

    /// Opens a redirect port: a socket at an address where the endpoint has no link. If a peer
    /// requests one of the services in `moved` at this address, the socket answers with the address
    /// of that service. Port 0 lets the kernel pick a free port. Returns the address of the socket.
    ///
    /// A redirect port stores nothing about its answers. The application may therefore close it
    /// while connections exist that peers opened with its help.
    ///
    /// # Errors
    /// Returns [`AuxiliaryError`]; each variant names one cause.
    pub fn open_redirect_port(
        &self,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, AuxiliaryError> {
        self.shared.command(move |driver, host, _now, _memory| {
            driver.open_redirect_port(host, address, moved)
        })?
    }

    /// Closes the redirect port at an address. Returns false if there is no such port.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn close_redirect_port(&self, address: SocketAddr) -> Result<bool, Forked> {
        self.shared
            .command(move |driver, host, _now, _memory| driver.close_redirect_port(host, address))
    }

    /// Closes a datagram port and removes it from its groups.
    ///
    /// # Errors
    /// Returns [`AuxiliaryError::Port`] if there is no such port.
    pub fn close_datagram_port(&self, port: DatagramPort) -> Result<(), AuxiliaryError> {
        let close =
            move |driver: &mut Driver, host: &RuntimeHost, _now, _memory: &TurnAccess<'_>| {
                driver.close_datagram_port(host, port)
            };
        Ok(self.shared.command(close)??)
    }

    /// Watches a descriptor that belongs to no link, and calls the hooks with `key` when the
    /// descriptor is ready. If the descriptor is already watched, replaces the key and the
    /// readiness. Call [`Runtime::unwatch_descriptor`] before you close the descriptor. Keys from
    /// 2^63 on are reserved for the runtime.
    ///
    /// # Errors
    /// Returns the error of the system call that failed, or `InvalidInput` for a reserved key.
    pub fn watch_descriptor(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        ready: Readiness,
    ) -> io::Result<()> {
        self.watch(key, |auxiliary| auxiliary.watch(fd, key, ready))
    }

    /// Watches a listener like [`Runtime::watch_descriptor`], but edge-triggered: the runtime calls
    /// the hooks once for each arrival, and the hooks must accept until no connection is waiting.
    /// The reason: a process without a free descriptor cannot accept. With level-triggered
    /// watching, every turn of such a process would call the hooks, and a thread would never sleep.
    ///
    /// # Errors
    /// Returns the errors of [`Runtime::watch_descriptor`].
    pub fn watch_listener(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.watch(key, |auxiliary| auxiliary.watch_arrivals(fd, key))
    }

    fn watch(&self, key: u64, watch: impl FnOnce(&Auxiliary) -> io::Result<()>) -> io::Result<()> {
        // A forked child shares the epoll set with its parent, so it would change the set of the
        // parent.
        self.check_process().map_err(io::Error::other)?;
        if key >= AUXILIARY_KEYS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let auxiliary = &self.shared.host.sleeper.auxiliary;
        let is_known = auxiliary.fd().is_some();
        watch(auxiliary)?;
        // If the epoll set existed before this call, a sleeping thread already polls the set, and
        // the kernel wakes it for the new descriptor, too.
        if !is_known {
            self.shared.host.call_watch();
        }
        Ok(())
    }

    /// Stops reporting a descriptor to the hooks. Returns false if the descriptor was not watched.
    /// A turn that has already begun may still report it.
    pub fn unwatch_descriptor(&self, fd: BorrowedFd<'_>) -> bool {
        self.check_process().is_ok() && self.shared.host.sleeper.auxiliary.unwatch(fd)
    }

    /// Lets the progress thread read the links at once, even if the application polled recently.
    /// Call this before the application blocks outside of the runtime, for example in `poll` on a
    /// descriptor.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn leave_links(&self) -> Result<(), Forked> {
        self.check_process()?;
        self.shared.host.polled_at.store(0, Ordering::Relaxed);
        self.shared.host.looked_at.store(0, Ordering::Relaxed);
        self.shared.unpark_progress_thread();
        Ok(())
    }

    /// Returns whether the endpoint works, that is, no thread has panicked inside the engine.
    pub fn is_sound(&self) -> bool {
        !self.shared.cell.is_poisoned()
    }

    /// Returns the counters of the runtime.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn counters(&self) -> Result<RuntimeCounters, Forked> {
        let mut counters = self.shared.command(|driver, _host, _now, _memory| driver.counters)?;
        self.shared.outside.add_to(&mut counters);
        Ok(counters)
    }
}

/// State that all threads of an endpoint share.
pub(crate) struct Shared {
    pub(crate) cell: ProgressCell<Driver>,
    queue_owner: u64,
    pub(crate) host: RuntimeHost,
    pub(crate) home: HomeProcess,
    pub(crate) waits: Waits,
    /// True if there is a progress thread, which drives the endpoint while the application does
    /// not.
    pub(crate) has_thread: bool,
    pub(crate) outside: OutsideCounters,
    pub(crate) is_stopping: AtomicBool,
    /// True if the progress thread is parked until another thread unparks it.
    pub(crate) is_resting: AtomicBool,
    progress_thread: Mutex<Option<thread::Thread>>,
}

impl Shared {
    pub(crate) fn is_driven(&self) -> bool {
        self.cell.is_occupied()
    }

    /// Returns how long ago a thread of the application last entered the engine.
    pub(crate) fn polled_ns_ago(&self) -> u64 {
        self.ns_since(&self.host.polled_at)
    }

    /// Returns the nanoseconds since `time`. If `time` is 0, which stands for never, returns
    /// `u64::MAX`.
    fn ns_since(&self, time: &AtomicU64) -> u64 {
        match time.load(Ordering::Relaxed) {
            0 => u64::MAX,
            time => self.host.clock.now().since_ns(Instant(time)),
        }
    }

    /// Enters the cell to send work. If another thread is inside and the work is urgent, waits up
    /// to `ENTER_NS` for that thread to leave. Urgent work is not handed over, because the process
    /// may end by `_exit` right after this call, and the work would be lost.
    #[inline]
    fn enter_to_send(&self, is_urgent: bool) -> Option<Inside<'_, Driver>> {
        let inside = self.cell.try_enter();
        if inside.is_none() && is_urgent { self.enter_within(ENTER_NS) } else { inside }
    }

    #[cold]
    fn enter_within(&self, limit_ns: u64) -> Option<Inside<'_, Driver>> {
        let began = self.host.clock.now();
        let sleep_ns = self.waits.sleep_cost_ns();
        loop {
            if let Some(inside) = self.cell.try_enter() {
                return Some(inside);
            }
            let waited_ns = self.host.clock.now().since_ns(began);
            if waited_ns >= limit_ns {
                return None;
            }
            if waited_ns < sleep_ns {
                std::hint::spin_loop();
            } else {
                // Sleep, because the thread inside may be waiting for the processor of this thread.
                thread::sleep(Duration::from_nanos(sleep_ns));
            }
        }
    }

    /// Leaves the cell after a posting. If there is `more` to do, or another thread has announced
    /// work, makes turns before leaving.
    #[inline]
    pub(crate) fn leave(&self, inside: Inside<'_, Driver>, more: bool) {
        let mut inside = inside;
        if !more {
            match inside.leave() {
                Ok(()) => {
                    self.host.wake_others(true);
                    self.host.report_fired();
                    return;
                }
                Err(again) => inside = again,
            }
        }
        self.take_turns(inside, Caller::Application, true);
    }

    /// Drives the engine for a thread of the application, if no other thread is inside. Also
    /// returns whether a turn did work.
    #[inline]
    pub(crate) fn drive_inline(&self) -> (Drive, bool) {
        let Some(inside) = self.cell.enter_or_announce() else {
            self.make_way();
            return (Drive::HandedOver, false);
        };
        self.waits.on_entered();
        self.take_turns(inside, Caller::Application, false)
    }

    /// Drives the engine for a thread that has nothing else to do. Also returns whether a turn did
    /// work.
    pub(crate) fn drive_all(&self) -> (Drive, bool) {
        match self.cell.enter_or_announce() {
            Some(inside) => self.take_turns(inside, Caller::Watch, false),
            None => (Drive::HandedOver, false),
        }
    }

    /// Makes turns until there is nothing more to do, and leaves the cell. After each turn, wakes
    /// the threads that wait for its results. `worked`: the caller has already done work inside.
    /// Also returns whether the caller or a turn did work.
    #[inline]
    fn take_turns(
        &self,
        inside: Inside<'_, Driver>,
        caller: Caller,
        worked: bool,
    ) -> (Drive, bool) {
        let mut worked = worked;
        let rounds = match caller {
            Caller::Application => ROUNDS_INLINE,
            Caller::Watch => ROUNDS_MAX,
        };
        let mut is_cut_short = false;
        let mut outcome = inside.drive(rounds, |driver| {
            self.host.wake_others(worked);
            let turned = driver.turn(&self.host, caller);
            worked |= turned.worked;
            // Leave the cell to report completions, because a thread may report them only outside
            // of it.
            is_cut_short = turned.more && self.host.has_fired();
            turned.more && !is_cut_short
        });
        self.host.wake_others(worked);
        self.host.report_fired();
        if is_cut_short && outcome == Drive::Drove {
            outcome = Drive::Exhausted;
        }
        if caller == Caller::Application && outcome == Drive::Exhausted {
            // This thread has made its maximum number of turns, so another thread must continue.
            self.host.call_watch();
        }
        (outcome, worked)
    }

    /// Queues a command, which the next turn of any thread runs inside the engine.
    pub(crate) fn run_later(&self, command: Command) {
        lock(&self.host.commands).push(command);
        self.host.has_commands.store(true, Ordering::Release);
    }

    /// Runs `work` inside the engine and waits for its result.
    pub(crate) fn command<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Driver, &RuntimeHost, Instant, &TurnAccess<'_>) -> R + Send + 'static,
    ) -> Result<R, Forked> {
        self.home.check()?;
        let answer = Arc::new((Mutex::new(None), Condvar::new()));
        let shared = Arc::clone(&answer);
        self.run_later(Box::new(move |driver, host, now, memory| {
            let result = work(driver, host, now, memory);
            let (slot, answered) = &*shared;
            *lock(slot) = Some(result);
            answered.notify_all();
        }));
        let (slot, answered) = &*answer;
        loop {
            self.demand_sound();
            if let Some(inside) = self.cell.enter_or_announce() {
                self.take_turns(inside, Caller::Application, false);
            }
            let answer = lock(slot);
            // Look again after a time limit. The thread inside the engine may leave without running
            // the command, when it has made its maximum number of turns.
            let (mut answer, _) = answered
                .wait_timeout_while(answer, COMMAND_LOOK, |answer| answer.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(result) = answer.take() {
                return Ok(result);
            }
        }
    }

    /// Panics if a thread has panicked inside the engine. Without this, the calling thread would
    /// wait for ever for progress.
    #[inline]
    pub(crate) fn demand_sound(&self) {
        assert!(!self.cell.is_poisoned(), "a thread has panicked inside the engine");
    }

    /// Sleeps until `ready` returns a value or `deadline` passes. If another thread is on watch,
    /// and this thread has not driven the engine since it posted, drives the engine before it
    /// sleeps. Without this, no thread might send deferred work of this thread, because the thread
    /// on watch does not know that work waits.
    #[cold]
    fn block<R>(
        &self,
        interest: Interest<'_>,
        deadline: Instant,
        has_looked: bool,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.host.waiters.enlist(interest, self.host.arming.reports());
        // If another thread finished work before it could see this thread in the list of waiters,
        // `ready` below sees that work.
        self.cell.pass();
        let mut has_looked = has_looked;
        let result = loop {
            if let Some(result) = ready() {
                break Some(result);
            }
            self.demand_sound();
            let left_ns = deadline.since_ns(self.host.clock.now());
            if left_ns == 0 {
                break None;
            }
            if self.host.waiters.take_watch() {
                self.host.waiters.set_on_watch(true);
                let result = self.watch_until(deadline, &mut ready);
                self.give_up_watch();
                if result.is_some() {
                    break result;
                }
            } else if !has_looked {
                has_looked = true;
                self.drive_inline();
            } else {
                thread::park_timeout(Duration::from_nanos(left_ns.min(PARK_NS_MAX)));
            }
        };
        self.delist();
        result
    }

    /// Gives up the watch, because the calling thread stops waiting. The caller must call
    /// [`Shared::delist`] next.
    pub(crate) fn give_up_watch(&self) {
        self.host.waiters.set_on_watch(false);
        self.host.waiters.give_up_watch();
    }

    /// Removes the calling thread from the list of waiters. If no thread is on watch, wakes another
    /// waiter or the progress thread to take the watch.
    pub(crate) fn delist(&self) {
        let has_successor = self.host.waiters.delist();
        if !has_successor && self.is_resting.swap(false, Ordering::SeqCst) {
            self.unpark_progress_thread();
        }
    }

    #[cold]
    fn unpark_progress_thread(&self) {
        if let Some(thread) = &*lock(&self.progress_thread) {
            thread.unpark();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("waits", &self.waits).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of turns that a thread makes when it posts or polls. With this limit, a posting
/// or a poll spends at most 8 turns on frames of other connections.
pub(crate) const ROUNDS_INLINE: u32 = 8;

/// Maximum number of turns that a thread makes without a break if it has nothing else to do. After
/// these turns, the thread checks whether it should stop.
const ROUNDS_MAX: u32 = 64;

/// Longest time in nanoseconds for which a thread with urgent work waits for the thread inside the
/// engine, which the kernel may have descheduled.
const ENTER_NS: u64 = 2_000_000;

/// Longest sleep of a blocked thread in nanoseconds. This limit only matters if the thread that
/// should wake the sleeper has panicked.
pub(crate) const PARK_NS_MAX: u64 = 1_000_000_000;

/// Interval at which a thread that waits for a command drives the engine itself.
const COMMAND_LOOK: Duration = Duration::from_micros(200);
