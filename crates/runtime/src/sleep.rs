//! Sleeping until a link has frames, a time has come, or somebody calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use delivery::{Instant, LINKS_MAX};

use crate::auxiliary::Auxiliary;
use crate::clock::Clock;
use crate::timer::Timer;

/// What a thread can sleep on: the descriptors of all links, a set of others, and one to be called by.
///
/// Built on `ppoll`, not on epoll: with at most 16 links it costs the same, needs no system call when a link wants to know of room to send, and
/// leaves no object in the kernel that a forked child would share. The others may be many, and are rarely
/// ready: their set is one of epoll.
#[derive(Debug)]
pub(crate) struct Sleeper {
    call: Descriptor,
    timer: Timer,
    links: Mutex<[Option<Watched>; LINKS_MAX]>,
    /// Descriptors that are no links.
    pub(crate) auxiliary: Auxiliary,
}

/// A link as the sleeper sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// One is readable when frames wait, the first writable when there is room; none if the link
    /// must be polled.
    pub(crate) fds: [Option<RawFd>; FDS_PER_LINK],
    /// It had no room for frames that wait to be sent.
    pub(crate) is_full: bool,
}

/// A descriptor that is readable after it was raised.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nothing else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are read from `one`. A counter at its limit is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it readable no more.
    pub(crate) fn lower(&self) {
        let mut raised = 0_u64;
        // SAFETY: eight bytes are written to `raised`; the descriptor does not block.
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

    /// Sets what to watch of the link with this index.
    pub(crate) fn watch(&self, index: usize, watched: Option<Watched>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get_mut(index) {
            *link = watched;
        }
    }

    /// Wakes the sleeping thread, or else the next one that goes to sleep.
    pub(crate) fn call(&self) {
        self.call.raise();
    }

    /// Sleeps until a link has frames (or room again), somebody calls, a signal handler has run, or
    /// `limit_ns` nanoseconds have passed (`None`: no limit). Returns whether something else than the limit ended it.
    pub(crate) fn sleep(&self, limit_ns: Option<u64>) -> bool {
        !matches!(self.sleep_beside(limit_ns, None, &mut Others::none()), Ok(Slept::Limit))
    }

    /// As [`Sleeper::sleep`] until a time of `clock`, or until one of `others` is ready; these then say what they are
    /// ready for. Only for the thread on watch, as there is one timer.
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
            // The timer was set for an earlier sleep.
            let is_early = slept == Slept::Limit && timer.is_some() && clock.now() < until;
            if !is_early {
                return Ok(slept);
            }
        }
    }

    /// Sleeps; if nothing but the limit or the timer has ended it, that is [`Slept::Limit`].
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
            // The calls so far are answered.
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

    /// As [`Sleeper::sleep_until`] with a limit, but frames on the links do not end the sleep. Returns [`Slept::Interval`] unless one of
    /// `others` is ready.
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

    /// Names what is our own: the timer first, the call last. Returns the limit, which may have become shorter.
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

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Slept {
    /// There was no time to sleep.
    Not,
    /// The time has passed.
    Limit,
    /// An interval in which frames stayed unread has ended, or a notification ended it.
    Interval,
    /// A link has frames or room, or somebody called.
    Come,
    /// So many of the others are ready.
    Others(usize),
}

/// Descriptors that a thread of the application waits for beside what the engine brings: as `ppoll` has them.
#[derive(Debug)]
pub struct Others<'a> {
    pub(crate) fds: &'a mut [libc::pollfd],
    signals: Option<&'a libc::sigset_t>,
    /// The same while the thread sleeps.
    asleep: Option<&'a libc::sigset_t>,
}

impl<'a> Others<'a> {
    /// Waits for these descriptors. Afterwards `revents` shows which are ready; negative descriptors are skipped.
    /// More than 8 need an allocation for each sleep.
    pub fn new(fds: &'a mut [libc::pollfd]) -> Self {
        Self { fds, signals: None, asleep: None }
    }

    /// Waits for no descriptor: only a signal that is handled ends the wait early.
    pub fn none() -> Self {
        Self::new(&mut [])
    }

    /// Blocks these signals instead of the thread's own while it looks at the descriptors and sleeps, as `ppoll`
    /// does.
    #[must_use]
    pub fn with_signals(self, blocked: &'a libc::sigset_t) -> Self {
        Self { signals: Some(blocked), asleep: Some(blocked), ..self }
    }

    /// Blocks these signals only while the thread sleeps: what is pending ends a sleep, and a look at the
    /// descriptors costs no more.
    #[must_use]
    pub fn with_signals_asleep(self, blocked: &'a libc::sigset_t) -> Self {
        Self { asleep: Some(blocked), ..self }
    }

    /// Whether there are none.
    pub(crate) fn are_none(&self) -> bool {
        self.fds.is_empty()
    }

    /// How many are ready now.
    pub(crate) fn poll(&mut self) -> io::Result<usize> {
        if self.fds.is_empty() && self.signals.is_none() {
            return Ok(0);
        }
        poll(self.fds, Some(0), self.signals)
    }

    /// Sleeps until one is ready, the thread is called by `call`, or for `limit_ns`.
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

/// `ppoll`, which says how many are ready.
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
    // SAFETY: `fds` is a slice of that many entries, a negative descriptor is skipped, and the limit and
    // the set of signals are null or live until the end of the call.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, signals) };
    usize::try_from(ready).map_err(|_negative| io::Error::last_os_error())
}

/// An entry that is skipped.
const NOTHING: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// Descriptors that are our own: the timer, links, those that are none, and the call.
const OWN_FDS: usize = LINKS_MAX * FDS_PER_LINK + 3;

/// So many others need no allocation.
const OTHERS_INLINE: usize = 8;

/// Descriptors of one link.
pub(crate) const FDS_PER_LINK: usize = 2;

/// How long a link without a descriptor is left alone: an interrupt rate that costs 1 % of a core.
const UNWATCHED_LINK_NS: u64 = 100_000;

/// How much later than asked a precise sleep may end, in nanoseconds.
const SLACK_NS: libc::c_ulong = 1000;

/// Lets the calling thread sleep precisely: by default the kernel may add 50 µs to every timeout.
pub(crate) fn sleep_precisely() {
    // SAFETY: sets an attribute of the calling thread; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// Has the calling thread sleep precisely in this sleep only: the thread is not ours.
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

/// Processor time that the calling thread has spent.
pub(crate) fn processor_ns() -> u64 {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    spent.tv_sec.cast_unsigned() * 1_000_000_000 + spent.tv_nsec.cast_unsigned()
}

/// How often the calling thread had to leave its processor to another.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: `rusage` is made of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw.cast_unsigned()
}

/// Whether the calling thread is of a real-time class: the kernel preempts it for no thread of another class.
pub(crate) fn is_real_time() -> bool {
    // SAFETY: asks for an attribute of the calling thread; no memory is passed.
    let class = unsafe { libc::sched_getscheduler(0) };
    matches!(class & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR)
}

/// Bytes that cannot be predicted; at most 256, which the kernel gives as a whole.
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
    fn a_call_before_the_sleep_is_not_lost_and_counts_once() {
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
    fn a_timer_that_was_set_for_an_earlier_sleep_ends_no_later_one() {
        let (sleeper, clock) = (Sleeper::new().expect("an eventfd"), Clock::start());
        let sleep = |until| sleeper.sleep_until(&clock, until, &mut Others::none());
        let soon = clock.now().after_ns(2_000_000);
        sleeper.call();
        assert_eq!(sleep(soon).expect("no signal"), Slept::Come);
        // The timer is set still.
        let later = clock.now().after_ns(8_000_000);
        assert_eq!(sleep(later).expect("no signal"), Slept::Limit);
        assert!(clock.now() >= later);
        // A later time does not keep an earlier one from ending the sleep.
        let (hour, soon) = (clock.now().after_ns(3_600_000_000_000), clock.now().after_ns(1_000));
        sleeper.call();
        assert_eq!(sleep(hour).expect("no signal"), Slept::Come);
        assert_eq!(sleep(soon).expect("no signal"), Slept::Limit);
        // A time that has passed ends it at once, and no time never does.
        assert_eq!(sleep(Instant(1)).expect("no signal"), Slept::Limit);
        sleeper.call();
        assert_eq!(sleep(Instant::NEVER).expect("no signal"), Slept::Come);
    }

    #[test]
    fn entropy_differs() {
        assert_ne!(entropy::<16>().expect("entropy"), entropy().expect("entropy"));
    }
}
