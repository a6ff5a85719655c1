//! The runtime: what threads of an application call.

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
use link::{Link, LinkStatistics, start_thread};
use mem::{MemoryAccess, MemoryTable, TableLimits};
use semantics::{CompletionQueue, PieceList, PostError, StatusTable};
use thiserror::Error;
use wire_edge::{Moved, PeerAddr};

use crate::arming::Arming;
use crate::auxiliary::{Auxiliary, Readiness};
use crate::cell::{Drive, Inside, ProgressCell};
use crate::clock::Clock;
use crate::counters::{OutsideCounters, RuntimeCounters};
use crate::doors::{DOOR_KEYS, DoorError};
use crate::driver::{AttachError, Caller, Command, Driver, Host};
use crate::exit;
use crate::fork::{Forked, HomeProcess, Inherited};
use crate::hooks::Hooks;
use crate::lookers::Lookers;
use crate::machine::{Machine, MachineError, MachineId};
use crate::park::{Interest, Polling, Waiters};
use crate::progress_thread;
use crate::retired::Retired;
use crate::sleep::{Descriptor, Sleeper, entropy};
use crate::source::{DOORBELLS, Doorbells, Press, WorkSource};
use crate::submission::{Posting, Submission, Submissions};
use crate::turn_access::TurnAccess;
use crate::waits::{Spin, Waits};

/// What a runtime is made for.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Sizes, limits and policies of the protocol.
    pub engine: EngineConfig,
    /// How threads wait.
    pub polling: Polling,
    /// Whether a thread of its own serves the endpoint when the application does not. Without one,
    /// nothing happens while no thread of the application is inside a call.
    pub progress_thread: bool,
    /// The processor that this thread keeps to, counted as the kernel does; any by default.
    pub progress_processor: Option<usize>,
    /// Operations and receives with a handle at a time, 40 bytes each.
    pub handles_max: u32,
    /// Operations handed to another thread at a time, because it is inside the engine, those included
    /// that it holds back until a queue has room.
    pub submissions_max: u32,
    /// Memory regions and protection domains.
    pub regions: TableLimits,
    /// What identifiers and cookies are drawn from; peers must not be able to predict it.
    pub seed: [u8; 32],
    /// What keys of memory regions are drawn from; peers must not be able to predict it.
    pub region_seed: [u64; 2],
}

impl RuntimeConfig {
    /// Returns the defaults, with a progress thread, and seeds from the kernel.
    ///
    /// # Errors
    /// The error of the system call that failed.
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

    /// Refuses what no endpoint works with, or would only work with another value than was asked for.
    ///
    /// # Errors
    /// [`SettingError`] names the setting and its range.
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

/// Why a runtime could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Nothing works with a setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A descriptor to call the sleeping thread by could not be made.
    #[error("cannot make an eventfd (raise the limit of descriptors with `ulimit -n`?)")]
    Descriptor(#[source] io::Error),
    /// The progress thread could not be started.
    #[error("cannot start the progress thread (a limit of threads, `ulimit -u`?)")]
    Thread(#[source] io::Error),
    /// The progress thread cannot keep to the processor that was named.
    #[error(
        "the progress thread cannot keep to processor {processor}: {source}; \
         `taskset -pc $$` lists those that this process may use"
    )]
    Processor {
        /// The processor.
        processor: usize,
        /// What the system says.
        source: io::Error,
    },
    /// A link could not be put to use.
    #[error(transparent)]
    Link(#[from] AttachError),
}

/// Why something could not be posted. Nothing happened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SubmitError {
    /// The engine refused it.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Another thread is inside the engine, and too much that was handed over before is not yet posted.
    #[error(
        "another thread is inside the engine, and {0} operations that were handed over wait to be posted; \
         poll, and post again"
    )]
    Busy(u32),
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// When frames of what is posted are sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doorbell {
    /// Now.
    Ring,
    /// With the next drive, wait or posting that rings: many small operations leave as one.
    Later,
}

/// An engine with its links, driven by any thread that has time.
///
/// Threads of the application drive it inline when they post or poll; a progress thread does while
/// they do not. All methods may be called from any thread, and none waits for a lock that is held
/// for longer than a few instructions.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Mutex<Option<ManuallyDrop<JoinHandle<()>>>>,
    /// Another thread ends it.
    pub(crate) is_handed_over: AtomicBool,
}

impl Runtime {
    /// Starts an engine on `links`, in the order of their identifiers; calls `hooks` for events.
    ///
    /// # Errors
    /// [`StartError`], one variant for each cause.
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
            host: Host {
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

    /// Returns the memory regions of the endpoint.
    pub fn memory(&self) -> &Arc<MemoryTable> {
        &self.shared.host.memory
    }

    /// Returns the table in which handles look up the progress of their operations.
    pub fn status(&self) -> &Arc<StatusTable> {
        &self.shared.host.status
    }

    /// Returns the owner of the completion queues of its connections ([`CompletionQueue::claim`]).
    #[inline]
    pub fn queue_owner(&self) -> u64 {
        self.shared.queue_owner
    }

    /// Checks that this is the process in which the endpoint was made.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn check_process(&self) -> Result<(), Forked> {
        self.shared.home.check()
    }

    /// Returns the process that it was started in.
    pub fn home(&self) -> HomeProcess {
        self.shared.home
    }

    /// Posts an operation, or a buffer for a message. Completions go to the queue of the connection, which
    /// is `queue`.
    ///
    /// If another thread is inside the engine, it is handed the operation after the same checks;
    /// what has become impossible when it comes to it, completes as failed. Operations of one thread keep their order.
    ///
    /// # Errors
    /// [`SubmitError`], one variant for each cause.
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

    /// Posts as [`Runtime::post`] does a write, a read, a send or a receive whose bytes are in several pieces of
    /// memory; ignores what the request says of their place and length.
    ///
    /// # Errors
    /// [`SubmitError`], one variant for each cause.
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

    /// Takes work from a source, to which it was added before: now, or by the thread inside the engine before that
    /// leaves. It is deferred until the next poll, by which more may have been added, if the application polls and
    /// earlier work of the source is outstanding; so [`Runtime::ring_deferred`] belongs to each poll that does not
    /// [drive](Runtime::drive).
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn ring(&self, source: &Arc<dyn WorkSource>) -> Result<(), Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        let (host, bell) = (&shared.host, source.bell());
        let make_room = || {
            shared.drive_inline();
        };
        let press = bell.press(source.is_idle(), || {
            shared.ns_since(&host.looked_at) < shared.waits.sleep_cost_ns()
        });
        if press == Press::Later {
            bell.defer();
            host.doorbells.put(source, bell, make_room);
        } else if let Some(mut inside) = shared.enter_to_send(source.is_urgent() && !bell.is_rung())
        {
            let more = inside.with(|driver| driver.ring(host, source));
            if press.counts_as_poll() {
                // However long the application adds work before it polls again.
                host.looked_at.store(host.polled_at.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            shared.leave(inside, more);
        } else {
            host.doorbells.put(source, bell, make_room);
            shared.drive_inline();
        }
        Ok(())
    }

    /// Takes all work from a source and sends it once before it returns, as far as links and the engine have room: for a
    /// source whose connection is about to be closed.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn send_out(&self, source: &Arc<dyn WorkSource>) -> Result<(), Forked> {
        let source = Arc::clone(source);
        self.shared.command(move |driver, host, now, memory| {
            driver.send_out(host, now, memory, &source);
        })
    }

    /// Takes work from the sources whose rings were deferred, if there are any. For polls that found something.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
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

    /// Makes progress, unless another thread is at it: reads the links, runs timers, sends. Never blocks.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn drive(&self) -> Result<Drive, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        Ok(shared.drive_inline().0)
    }

    /// Makes progress as [`Runtime::drive`] does, on behalf of an application that polls and found nothing. If it
    /// has polled for a while without finding anything, and other threads want its processor, it sleeps until a
    /// frame comes, for at most 4 ms: the policy is in `docs/waiting.md`. [`Runtime::on_found`] belongs to each
    /// poll that finds something.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll(&self) -> Result<Drive, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        let before = Instant(shared.host.polled_at.load(Ordering::Relaxed));
        let (outcome, worked) = shared.drive_inline();
        shared.on_polled(before, outcome, worked);
        Ok(outcome)
    }

    /// Records that a polling application found something without making progress.
    #[inline]
    pub fn on_found(&self) {
        self.shared.waits.on_found();
    }

    /// Runs `work` inside the engine, soon, and waits for its result: the control path.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn control<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine, &MemoryAccess<'_>, Instant) -> R + Send + 'static,
    ) -> Result<R, Forked> {
        self.shared
            .command(|driver, _host, now, memory| work(&mut driver.engine, memory.begun(), now))
    }

    /// Waits until `ready` returns something, or for at most `limit` (`None`: for ever; then the
    /// result is never `None`). `interest` names what makes another look at `ready` worth while.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
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

    /// Makes threads that [wait](Runtime::wait) look again, and wakes tasks that were [enlisted](Runtime::enlist_task)
    /// and threads that sleep on the [descriptor](Runtime::descriptor): what they wait for may have come from outside
    /// of the engine. May be called by hooks. A thread that looks under the lock under which it came misses nothing.
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

    /// Puts a further link to use.
    ///
    /// # Errors
    /// [`AttachError`], one variant for each cause.
    pub fn attach_link(&self, link: Box<dyn Link>) -> Result<LinkId, AttachError> {
        self.shared.command(move |driver, host, _now, _memory| driver.attach(host, link))?
    }

    /// Takes a link out of use; connections go on over their others. False if there is none.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn detach_link(&self, link: LinkId) -> Result<bool, Forked> {
        self.shared.command(move |driver, host, _now, _memory| driver.detach(host, link))
    }

    /// Adds a port of datagrams to an IP group: it gets what is sent there and passes the interface of this link,
    /// which is a UDP link. What this host sends is among it.
    ///
    /// # Errors
    /// [`DoorError`], one for each cause.
    pub fn join_group(
        &self,
        port: DatagramPort,
        link: LinkId,
        group: IpAddr,
    ) -> Result<(), DoorError> {
        self.shared.command(move |driver, host, _now, _memory| {
            driver.join_group(host, port, link, group)
        })?
    }

    /// Removes a port of datagrams from an IP group.
    ///
    /// # Errors
    /// [`DoorError::Port`] if there is no such port.
    pub fn leave_group(&self, port: DatagramPort, group: IpAddr) -> Result<(), DoorError> {
        let leave = move |driver: &mut Driver, host: &Host, _now, _memory: &TurnAccess<'_>| {
            driver.leave_group(host, port, group)
        };
        Ok(self.shared.command(leave)??)
    }

    /// Opens a door: a peer that asks for one of these services at this address, where no link of the endpoint is, gets
    /// the place of the service. Port 0 takes a free one; returns which it is.
    ///
    /// The answers say so and remember nothing, so a door may be closed while connections live that it helped to
    /// make.
    ///
    /// # Errors
    /// [`DoorError`], one for each cause.
    pub fn open_door(
        &self,
        address: SocketAddr,
        moved: Vec<(u32, Moved)>,
    ) -> Result<SocketAddr, DoorError> {
        self.shared
            .command(move |driver, host, _now, _memory| driver.open_door(host, address, moved))?
    }

    /// Closes the door at an address; false if there is none.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn close_door(&self, address: SocketAddr) -> Result<bool, Forked> {
        self.shared.command(move |driver, host, _now, _memory| driver.close_door(host, address))
    }

    /// Closes a port of datagrams, which may have joined groups.
    ///
    /// # Errors
    /// [`DoorError::Port`] if there is no such port.
    pub fn close_datagram_port(&self, port: DatagramPort) -> Result<(), DoorError> {
        let close = move |driver: &mut Driver, host: &Host, _now, _memory: &TurnAccess<'_>| {
            driver.close_datagram_port(host, port)
        };
        Ok(self.shared.command(close)??)
    }

    /// Returns the links in use, and where peers can send to reach each.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn link_addresses(&self) -> Result<Vec<(LinkId, PeerAddr)>, Forked> {
        self.shared.command(|driver, _host, _now, _memory| driver.link_addresses())
    }

    /// Returns what the driver of a link has counted, if it is there.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn link_statistics(&self, link: LinkId) -> Result<Option<LinkStatistics>, Forked> {
        self.shared.command(move |driver, _host, _now, _memory| driver.link_statistics(link))
    }

    /// Puts a further protocol to use: it is driven beside the engine, by the same threads.
    ///
    /// # Errors
    /// [`MachineError`], one for each cause. The machine is dropped then.
    pub fn attach_machine(&self, machine: Box<dyn Machine>) -> Result<MachineId, MachineError> {
        let shared = Arc::downgrade(&self.shared);
        self.shared.command(move |driver, host, _now, _memory| {
            driver.attach_machine(host, shared, machine)
        })?
    }

    /// Takes a protocol out of use and gives it back. Its descriptors are watched no more.
    ///
    /// # Errors
    /// [`MachineError::NotThere`] if it is none of this runtime any more.
    pub fn detach_machine(&self, id: MachineId) -> Result<Box<dyn Machine>, MachineError> {
        self.shared.command(move |driver, host, _now, _memory| {
            driver.machines.detach(&host.sleeper.auxiliary, id)
        })?
    }

    /// Runs `work` with a machine inside the engine, soon, and waits for its result: the control path. A turn of the
    /// machine follows.
    ///
    /// # Errors
    /// [`MachineError::NotThere`] if it is none of this runtime any more, or no `M`.
    pub fn with_machine<M: Machine, R: Send + 'static>(
        &self,
        id: MachineId,
        work: impl FnOnce(&mut M, &MemoryAccess<'_>, Instant) -> R + Send + 'static,
    ) -> Result<R, MachineError> {
        self.shared.command(move |driver, _host, now, memory| {
            driver.machines.get(id).map(|machine| work(machine, memory.begun(), now))
        })?
    }

    /// Reports to the hooks, under `key`, when a descriptor that is no link is ready, or changes what it is watched
    /// for. It must be [unwatched](Runtime::unwatch_descriptor) before it is closed. Keys from 2^63 on are the
    /// runtime's own.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn watch_descriptor(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        ready: Readiness,
    ) -> io::Result<()> {
        self.watch(key, |auxiliary| auxiliary.watch(fd, key, ready))
    }

    /// Watches a listener as [`Runtime::watch_descriptor`] does, but the hooks are called once for each arrival,
    /// and accept until nothing is there. While the process has no descriptor left, it can accept nothing; calls in
    /// every turn would then take a whole processor.
    ///
    /// # Errors
    /// As [`Runtime::watch_descriptor`].
    pub fn watch_listener(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.watch(key, |auxiliary| auxiliary.watch_arrivals(fd, key))
    }

    fn watch(&self, key: u64, watch: impl FnOnce(&Auxiliary) -> io::Result<()>) -> io::Result<()> {
        // A child would change the parent's set.
        self.check_process().map_err(io::Error::other)?;
        if key >= DOOR_KEYS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let auxiliary = &self.shared.host.sleeper.auxiliary;
        let is_known = auxiliary.fd().is_some();
        watch(auxiliary)?;
        // A thread that sleeps knows the set if there was one; the kernel reports what is added to it.
        if !is_known {
            self.shared.host.call_watch();
        }
        Ok(())
    }

    /// Stops reporting a descriptor to the hooks; false if it was not watched. A turn that has begun may report it
    /// still.
    pub fn unwatch_descriptor(&self, fd: BorrowedFd<'_>) -> bool {
        self.check_process().is_ok() && self.shared.host.sleeper.auxiliary.unwatch(fd)
    }

    /// Lets the progress thread serve the links from now on, although the application polled a moment ago, because
    /// the application is about to wait for something of which the runtime knows nothing, such as a descriptor.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn leave_links(&self) -> Result<(), Forked> {
        self.check_process()?;
        self.shared.host.polled_at.store(0, Ordering::Relaxed);
        self.shared.host.looked_at.store(0, Ordering::Relaxed);
        self.shared.unpark_progress_thread();
        Ok(())
    }

    /// Whether the endpoint works: no thread has panicked inside the engine.
    pub fn is_sound(&self) -> bool {
        !self.shared.cell.is_poisoned()
    }

    /// Returns what the runtime has counted.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn counters(&self) -> Result<RuntimeCounters, Forked> {
        let mut counters = self.shared.command(|driver, _host, _now, _memory| driver.counters)?;
        self.shared.outside.add_to(&mut counters);
        Ok(counters)
    }
}

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) cell: ProgressCell<Driver>,
    queue_owner: u64,
    pub(crate) host: Host,
    pub(crate) home: HomeProcess,
    pub(crate) waits: Waits,
    /// A thread serves the endpoint while the application does not.
    pub(crate) has_thread: bool,
    pub(crate) outside: OutsideCounters,
    pub(crate) is_stopping: AtomicBool,
    /// The progress thread waits to be unparked.
    pub(crate) is_resting: AtomicBool,
    progress_thread: Mutex<Option<thread::Thread>>,
}

impl Shared {
    /// Whether a thread is inside the engine.
    pub(crate) fn is_driven(&self) -> bool {
        self.cell.is_occupied()
    }

    /// For how long the application has not made progress itself.
    pub(crate) fn polled_ns_ago(&self) -> u64 {
        self.ns_since(&self.host.polled_at)
    }

    /// How long it is since then; 0 stands for never.
    fn ns_since(&self, time: &AtomicU64) -> u64 {
        match time.load(Ordering::Relaxed) {
            0 => u64::MAX,
            time => self.host.clock.now().since_ns(Instant(time)),
        }
    }

    /// Enters to send work. Urgent work waits a moment for a thread that is inside to leave, because the process may end by
    /// `_exit` right after the call, and work that was only handed over would be lost with that thread.
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
                // The thread inside may wait for the processor of this one.
                thread::sleep(Duration::from_nanos(sleep_ns));
            }
        }
    }

    /// Leaves after something was posted, unless there is `more` to do.
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

    /// Drives on behalf of a thread of the application, unless another thread is inside. Also returns whether there was work.
    #[inline]
    pub(crate) fn drive_inline(&self) -> (Drive, bool) {
        let Some(inside) = self.cell.enter_or_announce() else {
            self.make_way();
            return (Drive::HandedOver, false);
        };
        self.waits.on_entered();
        self.take_turns(inside, Caller::Application, false)
    }

    /// Drives on behalf of a thread that has nothing else to do. Returns, too, whether there was work.
    pub(crate) fn drive_all(&self) -> (Drive, bool) {
        match self.cell.enter_or_announce() {
            Some(inside) => self.take_turns(inside, Caller::Watch, false),
            None => (Drive::HandedOver, false),
        }
    }

    /// Takes turns until there is nothing more to do, leaves, and wakes those who wait for what was done. Where one
    /// turn follows another, they need not wait for the last. The caller may have `worked` already. Returns, too,
    /// whether any of them did.
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
            // Completions that a thread waits for are reported outside only.
            is_cut_short = turned.more && self.host.has_fired();
            turned.more && !is_cut_short
        });
        self.host.wake_others(worked);
        self.host.report_fired();
        if is_cut_short && outcome == Drive::Drove {
            outcome = Drive::Exhausted;
        }
        if caller == Caller::Application && outcome == Drive::Exhausted {
            // Somebody must go on where a budget has ended.
            self.host.call_watch();
        }
        (outcome, worked)
    }

    /// Has a command run inside the engine, in the next turn of any thread.
    pub(crate) fn run_later(&self, command: Command) {
        lock(&self.host.commands).push(command);
        self.host.has_commands.store(true, Ordering::Release);
    }

    /// Has `work` run inside the engine and waits for its result.
    pub(crate) fn command<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Driver, &Host, Instant, &TurnAccess<'_>) -> R + Send + 'static,
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
            // The limit only bounds the wait for a thread that ran out of rounds meanwhile.
            let (mut answer, _) = answered
                .wait_timeout_while(answer, COMMAND_LOOK, |answer| answer.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(result) = answer.take() {
                return Ok(result);
            }
        }
    }

    /// A panic of a thread inside the engine must not make others wait for ever.
    #[inline]
    pub(crate) fn demand_sound(&self) {
        assert!(!self.cell.is_poisoned(), "a thread has panicked inside the engine");
    }

    /// Sleeps until `ready` returns something, or `deadline`. A thread that has not looked since it posted does so first if
    /// it does not get the watch: work may wait for its doorbell, and the thread on watch knows nothing of it.
    #[cold]
    fn block<R>(
        &self,
        interest: Interest<'_>,
        deadline: Instant,
        has_looked: bool,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.host.waiters.enlist(interest, self.host.arming.reports());
        // What was done before it could be seen that this thread waits, is seen below.
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

    /// The calling thread, which was on watch, waits no more: [`Shared::delist`] follows.
    pub(crate) fn give_up_watch(&self) {
        self.host.waiters.set_on_watch(false);
        self.host.waiters.give_up_watch();
    }

    /// The calling thread waits no more. Somebody is on watch afterwards, or is called to be.
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

/// Turns of one inline drive: a thread that posts or polls serves others for at most about 8 bursts.
pub(crate) const ROUNDS_INLINE: u32 = 8;

/// Turns of one drive of a thread with nothing else to do, before it looks whether it should stop.
const ROUNDS_MAX: u32 = 64;

/// For how long a thread that posts waits for one that is inside the engine, which may have lost its processor.
const ENTER_NS: u64 = 2_000_000;

/// Longest a blocked thread sleeps without a look of its own: it only matters when the thread that
/// would wake it has panicked.
pub(crate) const PARK_NS_MAX: u64 = 1_000_000_000;

/// How often a thread that waits for a command looks again for itself.
const COMMAND_LOOK: Duration = Duration::from_micros(200);
