//! Lets a thread sleep until a link has frames, a timeout expires, or another thread wakes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use delivery::{Instant, LINKS_MAX};

use crate::auxiliary::Auxiliary;
use crate::clock::Clock;
use crate::timer::Timer;

/// The objects on which the thread on watch sleeps: the descriptors of all links, an epoll set of
/// other descriptors, a timer, and a descriptor by which other threads wake it.
///
/// The descriptors of links are polled with `ppoll`, not with epoll, for three reasons. An endpoint
/// has at most 16 links, and for so few both cost the same. When a link starts to wait for room to
/// send, `ppoll` needs no extra system call. `ppoll` leaves no object in the kernel that a forked
/// child would share. Descriptors that belong to no link may be many and are rarely ready, so they
/// are in an epoll set.
#[derive(Debug)]
pub(crate) struct Sleeper {
    call: Descriptor,
    timer: Timer,
    links: Mutex<[Option<Watched>; LINKS_MAX]>,
    /// Descriptors that belong to no link.
    pub(crate) auxiliary: Auxiliary,
}

/// The descriptors of a link that the sleeper polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// When frames wait, a descriptor is readable. When there is room to send, the first descriptor
    /// is writable. If both are `None`, the runtime must poll the link.
    pub(crate) fds: [Option<RawFd>; FDS_PER_LINK],
    /// True if the link had no room for frames that wait to be sent.
    pub(crate) is_full: bool,
}

/// An eventfd that is readable after [`Descriptor::raise`].
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        let one = 1_u64;
        // SAFETY: the kernel reads eight bytes from `one`. If the counter is at its limit, the
        // descriptor is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn lower(&self) {
        let mut raised = 0_u64;
        // SAFETY: the kernel writes eight bytes to `raised`; the descriptor does not block.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut raised).cast(), 8) };
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let (call, timer) = (Descriptor::new()?, Timer::new()?);
        let links = Mutex::new([None; LINKS_MAX]);
        Ok(Self { call, timer, links, auxiliary: Auxiliary::default() })
    }

    /// Sets what to watch for the link with this index.
    pub(crate) fn watch(&self, index: usize, watched: Option<Watched>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get_mut(index) {
            *link = watched;
        }
    }

    /// Wakes the sleeping thread; if no thread sleeps, the next sleep ends at once.
    pub(crate) fn call(&self) {
        self.call.raise();
    }

    /// Sleeps until one of these happens: a link has frames or has room again, another thread wakes
    /// this thread, a signal handler has run, or `limit_ns` nanoseconds have passed (`None`: no
    /// limit). Returns false if the limit ended the sleep.
    pub(crate) fn sleep(&self, limit_ns: Option<u64>) -> bool {
        !matches!(self.sleep_beside(limit_ns, None, &mut Others::none()), Ok(Slept::Limit))
    }

    /// Sleeps like [`Sleeper::sleep`], until a time of `clock` or until one of `others` is ready.
    /// If one of `others` is ready, `revents` shows for what each of them is ready. Only the thread
    /// on watch may call this, because there is only one timer.
    pub(crate) fn sleep_until(
        &self,
        clock: &Clock,
        until: Instant,
        others: &mut Others<'_>,
    ) -> io::Result<Slept> {
        loop {
            let now = clock.now();
            let (limit_ns, timer) = if until == Instant::NEVER {
                (None, None)
            } else if now < until && self.timer.set(now, until) {
                (None, Some(self.timer.as_fd().as_raw_fd()))
            } else {
                (Some(until.since_ns(now)), None)
            };
            let slept = self.sleep_beside(limit_ns, timer, others)?;
            // The timer was set for an earlier sleep, and has expired before `until`.
            let is_early = slept == Slept::Limit && timer.is_some() && clock.now() < until;
            if !is_early {
                return Ok(slept);
            }
        }
    }

    /// Sleeps. Returns [`Slept::Limit`] if only the limit or the timer has ended the sleep.
    fn sleep_beside(
        &self,
        limit_ns: Option<u64>,
        timer: Option<RawFd>,
        others: &mut Others<'_>,
    ) -> io::Result<Slept> {
        let mut few = [NOTHING; OWN_FDS + OTHERS_INLINE];
        let mut many = Vec::new();
        let count = OWN_FDS + others.fds.len();
        let fds = few.get_mut(..count).unwrap_or_else(|| {
            many.resize(count, NOTHING);
            &mut many
        });
        let (own, beside) = fds.split_at_mut(OWN_FDS);
        let limit_ns = self.name_own(own, limit_ns, timer);
        beside.copy_from_slice(others.fds);
        let ready = poll(fds, limit_ns, others.asleep)?;
        let (own, beside) = fds.split_at(OWN_FDS);
        let is_ready = |fd: Option<&libc::pollfd>| fd.is_some_and(|fd| fd.revents != 0);
        if is_ready(own.last()) {
            // The thread is awake, so make the descriptor that has woken it unreadable.
            self.call.lower();
        }
        let ready_beside = beside.iter().filter(|fd| fd.revents != 0).count();
        if ready_beside != 0 {
            others.fds.copy_from_slice(beside);
            return Ok(Slept::Others(ready_beside));
        }
        let expired = usize::from(is_ready(own.first()));
        Ok(if ready == expired { Slept::Limit } else { Slept::Come })
    }

    /// Sleeps like [`Sleeper::sleep_until`], but frames on the links do not end the sleep. Returns
    /// [`Slept::Others`] if one of `others` is ready, and [`Slept::Interval`] otherwise.
    pub(crate) fn sleep_without_links(
        &self,
        limit_ns: u64,
        others: &mut Others<'_>,
    ) -> io::Result<Slept> {
        Ok(match others.sleep(&self.call, limit_ns)? {
            others @ Slept::Others(_) => others,
            Slept::Come => {
                self.call.lower();
                Slept::Interval
            }
            _ => Slept::Interval,
        })
    }

    /// Fills in the descriptors of this endpoint: the timer first, and the descriptor by which
    /// other threads wake this thread last. Returns the limit of the sleep, shortened if a link
    /// must be polled.
    fn name_own(
        &self,
        own: &mut [libc::pollfd],
        limit_ns: Option<u64>,
        timer: Option<RawFd>,
    ) -> Option<u64> {
        let mut limit_ns = limit_ns;
        let links = *self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slots = own.iter_mut();
        if let (Some(slot), Some(timer)) = (slots.next(), timer) {
            slot.fd = timer;
            slot.events = libc::POLLIN;
        }
        for link in links.iter().flatten() {
            if link.fds.iter().all(Option::is_none) {
                limit_ns = Some(limit_ns.unwrap_or(u64::MAX).min(UNWATCHED_LINK_NS));
            }
            for (position, &fd) in link.fds.iter().flatten().enumerate() {
                let Some(slot) = slots.next() else { break };
                slot.fd = fd;
                slot.events = libc::POLLIN;
                if link.is_full && position == 0 {
                    slot.events |= libc::POLLOUT;
                }
            }
        }
        if let [.., auxiliary, call] = own {
            call.fd = self.call.as_fd().as_raw_fd();
            call.events = libc::POLLIN;
            auxiliary.fd = self.auxiliary.fd().unwrap_or(-1);
            auxiliary.events = libc::POLLIN;
        }
        limit_ns
    }
}

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Slept {
    /// The thread did not sleep.
    Not,
    /// The limit has passed.
    Limit,
    /// An interval in which frames stay unread (moderation) has ended, or another thread has woken
    /// this thread during the interval.
    Interval,
    /// A link has frames or room, or another thread has woken this thread.
    Come,
    /// Descriptors of the application are ready. The value is their number.
    Others(usize),
}

/// Descriptors for which a thread of the application waits besides the engine, in the form that
/// `ppoll` uses.
#[derive(Debug)]
pub struct Others<'a> {
    pub(crate) fds: &'a mut [libc::pollfd],
    signals: Option<&'a libc::sigset_t>,
    /// Signals blocked while the thread sleeps.
    asleep: Option<&'a libc::sigset_t>,
}

impl<'a> Others<'a> {
    /// Creates a set of these descriptors. After the wait, `revents` shows which of them are ready.
    /// Negative descriptors are skipped. If there are more than 8 descriptors, each sleep allocates
    /// memory.
    pub fn new(fds: &'a mut [libc::pollfd]) -> Self {
        Self { fds, signals: None, asleep: None }
    }

    /// Creates an empty set. With this set, only the event of the engine, the time limit or a
    /// signal handler ends the wait.
    pub fn none() -> Self {
        Self::new(&mut [])
    }

    /// Replaces the signal mask of the thread with `blocked` while it polls the descriptors and
    /// while it sleeps, like `ppoll`.
    #[must_use]
    pub fn with_signals(self, blocked: &'a libc::sigset_t) -> Self {
        Self { signals: Some(blocked), asleep: Some(blocked), ..self }
    }

    /// Replaces the signal mask of the thread with `blocked` only while the thread sleeps. If a
    /// signal that `blocked` does not contain is pending, it ends the sleep. A thread that spins
    /// without descriptors makes no system call for the mask, unlike with
    /// [`Others::with_signals`].
    #[must_use]
    pub fn with_signals_asleep(self, blocked: &'a libc::sigset_t) -> Self {
        Self { asleep: Some(blocked), ..self }
    }

    /// Returns whether the set is empty.
    pub(crate) fn are_none(&self) -> bool {
        self.fds.is_empty()
    }

    /// Polls the descriptors without waiting. Returns how many of them are ready.
    pub(crate) fn poll(&mut self) -> io::Result<usize> {
        if self.fds.is_empty() && self.signals.is_none() {
            return Ok(0);
        }
        poll(self.fds, Some(0), self.signals)
    }

    /// Sleeps until one of the descriptors is ready, another thread raises `call`, or `limit_ns`
    /// nanoseconds have passed.
    pub(crate) fn sleep(&mut self, call: &Descriptor, limit_ns: u64) -> io::Result<Slept> {
        let mut few = [NOTHING; 1 + OTHERS_INLINE];
        let mut many = Vec::new();
        let count = 1 + self.fds.len();
        let fds = few.get_mut(..count).unwrap_or_else(|| {
            many.resize(count, NOTHING);
            &mut many
        });
        let (own, beside) = fds.split_at_mut(1);
        let called = libc::pollfd { fd: call.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        own.fill(called);
        beside.copy_from_slice(self.fds);
        let ready = poll(fds, Some(limit_ns), self.asleep)?;
        let (own, beside) = fds.split_at(1);
        let is_called = own.iter().any(|fd| fd.revents != 0);
        self.fds.copy_from_slice(beside);
        Ok(match ready - usize::from(is_called) {
            0 if is_called => Slept::Come,
            0 => Slept::Limit,
            count => Slept::Others(count),
        })
    }
}

/// Calls `ppoll`. Returns how many descriptors are ready.
fn poll(
    fds: &mut [libc::pollfd],
    limit_ns: Option<u64>,
    signals: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let limit = limit_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let signals = signals.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a slice of `fds.len()` entries, and the kernel skips negative descriptors.
    // `limit` and `signals` are null, or valid until the call ends.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, signals) };
    usize::try_from(ready).map_err(|_negative| io::Error::last_os_error())
}

/// An entry that `ppoll` skips.
const NOTHING: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// Number of descriptors of the endpoint itself: the timer, the descriptors of the links, the epoll
/// set, and the descriptor by which other threads wake the sleeper.
const OWN_FDS: usize = LINKS_MAX * FDS_PER_LINK + 3;

/// Number of descriptors of the application up to which a sleep needs no allocation.
const OTHERS_INLINE: usize = 8;

/// Maximum number of descriptors of one link.
pub(crate) const FDS_PER_LINK: usize = 2;

/// Interval in nanoseconds at which a link without descriptors is polled. Polling at this rate
/// costs 1 % of a core.
const UNWATCHED_LINK_NS: u64 = 100_000;

/// Longest time by which a precise sleep may end after its timeout, in nanoseconds.
const SLACK_NS: libc::c_ulong = 1000;

/// Makes all sleeps of the calling thread precise. Without this, the kernel may add 50 µs to every
/// timeout.
pub(crate) fn sleep_precisely() {
    // SAFETY: sets an attribute of the calling thread; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// Makes one sleep of the calling thread precise, and then restores the timer slack of the thread,
/// because the thread belongs to the application.
pub(crate) fn sleep_precisely_once<R>(sleep: impl FnOnce() -> R) -> R {
    // SAFETY: asks for an attribute of the calling thread; no memory is passed.
    let slack_ns = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    let own_ns = libc::c_ulong::try_from(slack_ns).ok().filter(|&own_ns| own_ns > SLACK_NS);
    let Some(own_ns) = own_ns else { return sleep() };
    sleep_precisely();
    let result = sleep();
    // SAFETY: sets an attribute of the calling thread; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, own_ns) };
    result
}

/// Returns the processor time that the calling thread has used, in nanoseconds.
pub(crate) fn processor_ns() -> u64 {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    spent.tv_sec.cast_unsigned() * 1_000_000_000 + spent.tv_nsec.cast_unsigned()
}

/// Returns how often the kernel has preempted the calling thread (involuntary context switches).
pub(crate) fn preemptions() -> u64 {
    // SAFETY: `rusage` consists of integers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw.cast_unsigned()
}

/// Returns whether the calling thread is in a real-time scheduling class. Only threads in real-time
/// classes can preempt such a thread.
pub(crate) fn is_real_time() -> bool {
    // SAFETY: reads an attribute of the calling thread; no memory is passed.
    let class = unsafe { libc::sched_getscheduler(0) };
    matches!(class & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR)
}

/// Returns unpredictable bytes from the kernel. `BYTES` is at most 256, because `getrandom` returns
/// all requested bytes if the request is for at most 256 bytes.
pub(crate) fn entropy<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0_u8; BYTES];
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got.cast_unsigned() == bytes.len() { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_before_the_sleep_wake_it_once() {
        let sleeper = Sleeper::new().expect("an eventfd");
        sleeper.call();
        sleeper.call();
        assert!(sleeper.sleep(None));
        assert!(!sleeper.sleep(Some(1)));
    }

    #[test]
    fn a_readable_link_ends_the_sleep() {
        use std::net::UdpSocket;
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
        let sleeper = Sleeper::new().expect("an eventfd");
        sleeper.watch(3, Some(Watched { fds: [None, Some(socket.as_raw_fd())], is_full: false }));
        let address = socket.local_addr().expect("it is bound");
        socket.send_to(b"x", address).expect("loopback takes a datagram");
        assert!(sleeper.sleep(None));
    }

    #[test]
    fn a_timer_of_an_earlier_sleep_does_not_end_a_later_one() {
        let (sleeper, clock) = (Sleeper::new().expect("an eventfd"), Clock::start());
        let sleep = |until| sleeper.sleep_until(&clock, until, &mut Others::none());
        let soon = clock.now().after_ns(2_000_000);
        sleeper.call();
        assert_eq!(sleep(soon).expect("no signal"), Slept::Come);
        // The timer is still set for `soon`. It must not end this sleep, which lasts until `later`.
        let later = clock.now().after_ns(8_000_000);
        assert_eq!(sleep(later).expect("no signal"), Slept::Limit);
        assert!(clock.now() >= later);
        // Although the timer is set for a later time, a new sleep ends at its own earlier time.
        let (hour, soon) = (clock.now().after_ns(3_600_000_000_000), clock.now().after_ns(1_000));
        sleeper.call();
        assert_eq!(sleep(hour).expect("no signal"), Slept::Come);
        assert_eq!(sleep(soon).expect("no signal"), Slept::Limit);
        // A time in the past ends the sleep at once. `NEVER` never ends a sleep.
        assert_eq!(sleep(Instant(1)).expect("no signal"), Slept::Limit);
        sleeper.call();
        assert_eq!(sleep(Instant::NEVER).expect("no signal"), Slept::Come);
    }

    #[test]
    fn two_entropy_reads_differ() {
        assert_ne!(entropy::<16>().expect("entropy"), entropy().expect("entropy"));
    }
}
