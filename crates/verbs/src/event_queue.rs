//! Queues of events with a file descriptor that programs can poll.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use link::HeldSignals;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::Error;

/// Events in order, and a descriptor that is readable if the queue has an event. Programs poll the
/// descriptor, duplicate it and set `O_NONBLOCK` on it.
///
/// While a thread holds the lock of the queue, the descriptor's count equals the number of queued
/// events that are not kept for waiting threads. So if there are other events, a
/// read of the descriptor under the lock does not block.
///
/// A thread that waits in [`EventQueue::get`] takes its event without the descriptor. Such an event
/// therefore costs no system call of the queue.
#[derive(Debug)]
pub struct EventQueue<T> {
    descriptor: EventFd,
    pending: Mutex<Pending<T>>,
    /// Whether the descriptor was blocking when a thread last looked.
    was_blocking: AtomicBool,
}

/// The queued events.
#[derive(Debug)]
struct Pending<T> {
    events: VecDeque<T>,
    /// Number of threads that will look at the queue again before they block on the descriptor.
    waiting: usize,
    /// Number of events that are not counted in the descriptor, because a waiting thread takes
    /// them. At most `waiting`.
    kept: usize,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { events: VecDeque::new(), waiting: 0, kept: 0 }
    }
}

/// Marks the calling thread as waiting, until it is dropped.
struct Waiting<'a, T>(&'a EventQueue<T>);

impl<'a, T> Waiting<'a, T> {
    fn begin(queue: &'a EventQueue<T>) -> Self {
        queue.lock().waiting += 1;
        Self(queue)
    }
}

impl<T> Drop for Waiting<'_, T> {
    /// Counts an event in the descriptor that was kept for this thread and that it has not taken.
    fn drop(&mut self) {
        let mut pending = self.0.lock();
        pending.waiting -= 1;
        if pending.kept > pending.waiting {
            pending.kept -= 1;
            // The count is far below its limit, so the write does not fail.
            let _ = self.0.descriptor.write(1);
        }
    }
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// Returns [`Error::System`] if the process can open no more file descriptors.
    pub fn new() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC;
        let descriptor =
            EventFd::from_flags(flags).map_err(|errno| system("making a descriptor", errno))?;
        let (pending, was_blocking) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { descriptor, pending, was_blocking })
    }

    /// Returns the descriptor, which is readable if an event is queued.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Adds an event. If the queue is full, drops the event. This happens only if the program has
    /// not read events for a long time.
    ///
    /// Costs one system call, or none if a thread waits in [`EventQueue::get`].
    pub fn push(&self, event: T) {
        let mut pending = self.lock();
        if pending.events.len() >= EVENTS_MAX {
            return;
        }
        if pending.kept < pending.waiting {
            pending.kept += 1;
            pending.events.push_back(event);
        } else if self.descriptor.write(1).is_ok() {
            // The write blocks only if the count is 2^64 - 2, which it never reaches.
            pending.events.push_back(event);
        }
    }

    /// Dequeues the oldest event, if there is one. Calls `on_taken` with the event under the lock
    /// of the queue, before another thread can see that the event was removed.
    pub fn take(&self, on_taken: impl Fn(&T)) -> Option<T> {
        let mut pending = self.lock();
        let event = pending.events.pop_front()?;
        self.count_down(&mut pending);
        on_taken(&event);
        Some(event)
    }

    /// Keeps the events for which `stays` returns true and drops all others.
    pub fn retain(&self, mut stays: impl FnMut(&T) -> bool) {
        let mut pending = self.lock();
        let before = pending.events.len();
        pending.events.retain(|event| stays(event));
        for _ in pending.events.len()..before {
            self.count_down(&mut pending);
        }
    }

    /// Dequeues the events for which `is_meant` returns true, and returns them in order.
    pub fn take_those(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let mut pending = self.lock();
        let (taken, stay): (VecDeque<T>, _) =
            pending.events.drain(..).partition(|event| is_meant(event));
        pending.events = stay;
        for _ in &taken {
            self.count_down(&mut pending);
        }
        taken.into()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }

    /// Returns whether the program has set `O_NONBLOCK` on the descriptor.
    pub fn is_non_blocking(&self) -> bool {
        let is_non_blocking = fcntl(&self.descriptor, FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK));
        self.was_blocking.store(!is_non_blocking, Ordering::Relaxed);
        is_non_blocking
    }

    /// Dequeues the oldest event. Waits for an event unless the descriptor is non-blocking.
    ///
    /// Before the thread blocks on the descriptor, it calls `watch`. This function may wait for an
    /// event for a short time, for example by busy-polling. It must notice an event that is
    /// [pushed](EventQueue::push) meanwhile, or return soon. Signals are blocked until `watch`
    /// returns.
    ///
    /// If the descriptor was blocking before, the thread looks for `O_NONBLOCK` only after `watch`
    /// has returned without an event. So a program that waits for each event in this call pays no
    /// system call for the look, and the first call after the program has set the flag may last as
    /// long as `watch`.
    ///
    /// # Errors
    /// * Returns [`Error::Again`] if no event is queued and the descriptor is non-blocking.
    /// * Returns [`Error::System`] with `EINTR` if a signal interrupts the wait, as with `read`.
    pub fn get(
        &self,
        on_taken: impl Fn(&T),
        watch: impl FnOnce(&mut dyn FnMut() -> bool),
    ) -> Result<T, Error> {
        if let Some(event) = self.take(&on_taken) {
            return Ok(event);
        }
        let was_blocking = self.was_blocking.load(Ordering::Relaxed);
        if !was_blocking && self.is_non_blocking() {
            return Err(Error::Again);
        }
        let of_system = |error: std::io::Error| Error::System {
            what: "waiting for an event".into(),
            number: error.raw_os_error().unwrap_or(Errno::EIO as i32),
        };
        let held = HeldSignals::hold().map_err(of_system)?;
        let waiting = Waiting::begin(self);
        watch(&mut || !self.is_empty());
        let event = self.take(&on_taken);
        drop(waiting);
        if let Some(event) = event {
            return Ok(event);
        }
        if was_blocking && self.is_non_blocking() {
            return Err(Error::Again);
        }
        loop {
            if let Some(event) = self.take(&on_taken) {
                return Ok(event);
            }
            held.wait_for(self.descriptor()).map_err(of_system)?;
        }
    }

    /// Accounts for an event that was just removed.
    fn count_down(&self, pending: &mut Pending<T>) {
        if let Some(kept) = pending.kept.checked_sub(1) {
            pending.kept = kept;
        } else {
            // The event was counted, so the descriptor's count is positive. Therefore the read does
            // not block and does not fail.
            let _ = self.descriptor.read();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn system(what: &str, errno: Errno) -> Error {
    Error::System { what: what.into(), number: errno as i32 }
}

/// Maximum number of unread events. They take at most 65 536 × 32 B = 2 MiB. A completion queue
/// adds at most one event each time the program arms the queue.
const EVENTS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable<T>(queue: &EventQueue<T>) -> bool {
        let mut wanted = [PollFd::new(queue.descriptor(), PollFlags::POLLIN)];
        poll(&mut wanted, PollTimeout::ZERO).expect("it can be polled") > 0
    }

    fn never(_: &mut dyn FnMut() -> bool) {}

    #[test]
    fn the_descriptor_is_readable_while_events_are_pending() {
        let queue = EventQueue::new().expect("a descriptor");
        assert!(!is_readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.get(|_| (), never), Ok(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|_| ()), Some(2));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn withdrawn_events_clear_the_descriptor() {
        let queue = EventQueue::new().expect("a descriptor");
        for number in 0..4 {
            queue.push(number);
        }
        queue.retain(|number| number % 2 == 1);
        assert_eq!(
            (queue.take(|_| ()), queue.take(|_| ()), queue.take(|_| ())),
            (Some(1), Some(3), None)
        );
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_nonblocking_channel_reports_that_it_is_empty() {
        let queue = EventQueue::<()>::new().expect("a descriptor");
        fcntl(queue.descriptor(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
        assert_eq!(queue.get(|()| (), never), Err(Error::Again));
    }

    #[test]
    fn a_channel_that_becomes_nonblocking_waits_at_most_once_more() {
        let queue = EventQueue::new().expect("a descriptor");
        let arrives = |_: &mut dyn FnMut() -> bool| queue.push(1);
        assert_eq!(queue.get(|_| (), arrives), Ok(1));
        let set = |flags| fcntl(queue.descriptor(), FcntlArg::F_SETFL(flags)).expect("a flag");
        set(OFlag::O_NONBLOCK);
        assert_eq!(queue.get(|_| (), never), Err(Error::Again));
        let unexpected = |_: &mut dyn FnMut() -> bool| panic!("it does not wait");
        assert_eq!(queue.get(|_| (), unexpected), Err(Error::Again));
        set(OFlag::empty());
        assert_eq!(queue.get(|_| (), arrives), Ok(1));
    }

    #[test]
    fn an_event_wakes_a_blocked_thread() {
        let queue = EventQueue::new().expect("a descriptor");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.get(|_| (), never));
            queue.push(7);
            assert_eq!(waiting.join().expect("no panic"), Ok(7));
        });
    }

    #[test]
    fn an_event_for_a_waiting_thread_leaves_the_descriptor_alone() {
        let queue = EventQueue::new().expect("a descriptor");
        let arrives = |ready: &mut dyn FnMut() -> bool| {
            assert!(!ready());
            queue.push(1);
            assert!(ready() && !is_readable(&queue));
            // No thread waits for this one.
            queue.push(2);
            assert!(is_readable(&queue));
        };
        assert_eq!(queue.get(|_| (), arrives), Ok(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|_| ()), Some(2));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn an_event_that_a_waiting_thread_leaves_is_counted() {
        let queue = EventQueue::new().expect("a descriptor");
        let waiting = [Waiting::begin(&queue), Waiting::begin(&queue)];
        for number in 0..3 {
            queue.push(number);
        }
        let kept = || queue.lock().kept;
        assert_eq!(kept(), 2);
        assert_eq!(queue.take(|_| ()), Some(0));
        let [first, second] = waiting;
        drop(first);
        assert_eq!(kept(), 1);
        assert_eq!(queue.take(|_| ()), Some(1));
        assert!(is_readable(&queue), "the third event was counted at once");
        drop(second);
        assert_eq!(queue.take(|_| ()), Some(2));
        assert!(!is_readable(&queue));
        let waiting = Waiting::begin(&queue);
        queue.push(3);
        assert!(!is_readable(&queue));
        drop(waiting);
        assert!(is_readable(&queue));
    }

    #[test]
    fn events_that_are_taken_by_others_or_dropped_are_not_awaited() {
        let queue = EventQueue::new().expect("a descriptor");
        let robbed = |ready: &mut dyn FnMut() -> bool| {
            queue.push(1);
            assert_eq!(queue.take_those(|_| true), [1]);
            queue.push(2);
            queue.retain(|_| false);
            assert!(!ready());
            queue.push(3);
        };
        assert_eq!(queue.get(|_| (), robbed), Ok(3));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn unread_events_are_bounded() {
        let queue = EventQueue::new().expect("a descriptor");
        for number in 0..=EVENTS_MAX {
            queue.push(number);
        }
        assert_eq!(queue.lock().events.len(), EVENTS_MAX);
    }
}
