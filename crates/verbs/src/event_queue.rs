//! Queues of events with a file descriptor that programs can poll.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
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
/// events. So if the queue is not empty, a read of the descriptor under the lock does not block.
#[derive(Debug)]
pub struct EventQueue<T> {
    descriptor: EventFd,
    events: Mutex<VecDeque<T>>,
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
        Ok(Self { descriptor, events: Mutex::default() })
    }

    /// Returns the descriptor, which is readable if an event is queued.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Adds an event. If the queue is full, drops the event. This happens only if the program has
    /// not read events for a long time.
    pub fn push(&self, event: T) {
        let mut events = self.lock();
        // A write to the descriptor blocks only if its count is 2^64 - 2. The count never reaches
        // this value.
        if events.len() < EVENTS_MAX && self.descriptor.write(1).is_ok() {
            events.push_back(event);
        }
    }

    /// Dequeues the oldest event, if there is one. Calls `on_taken` with the event under the lock
    /// of the queue, before another thread can see that the event was removed.
    pub fn take(&self, on_taken: impl Fn(&T)) -> Option<T> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        self.count_down();
        on_taken(&event);
        Some(event)
    }

    /// Keeps the events for which `stays` returns true and drops all others.
    pub fn retain(&self, mut stays: impl FnMut(&T) -> bool) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| stays(event));
        for _ in events.len()..before {
            self.count_down();
        }
    }

    /// Dequeues the events for which `is_meant` returns true, and returns them in order.
    pub fn take_those(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = self.lock();
        let (taken, stay): (VecDeque<T>, _) = events.drain(..).partition(|event| is_meant(event));
        *events = stay;
        for _ in &taken {
            self.count_down();
        }
        taken.into()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns whether the program has set `O_NONBLOCK` on the descriptor.
    pub fn is_non_blocking(&self) -> bool {
        fcntl(&self.descriptor, FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
    }

    /// Dequeues the oldest event. Waits for an event unless the descriptor is non-blocking.
    ///
    /// Before the thread blocks on the descriptor, it calls `watch`. This function may wait for an
    /// event for a short time, for example by busy-polling. Signals are blocked until `watch`
    /// returns.
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
        if self.is_non_blocking() {
            return Err(Error::Again);
        }
        let of_system = |error: std::io::Error| Error::System {
            what: "waiting for an event".into(),
            number: error.raw_os_error().unwrap_or(Errno::EIO as i32),
        };
        let held = HeldSignals::hold().map_err(of_system)?;
        watch(&mut || !self.is_empty());
        loop {
            if let Some(event) = self.take(&on_taken) {
                return Ok(event);
            }
            held.wait_for(self.descriptor()).map_err(of_system)?;
        }
    }

    fn count_down(&self) {
        // An event was just removed, so the descriptor's count is positive. Therefore the read does
        // not block and does not fail.
        let _ = self.descriptor.read();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn an_event_wakes_a_blocked_thread() {
        let queue = EventQueue::new().expect("a descriptor");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.get(|_| (), never));
            queue.push(7);
            assert_eq!(waiting.join().expect("no panic"), Ok(7));
        });
    }

    #[test]
    fn unread_events_are_bounded() {
        let queue = EventQueue::new().expect("a descriptor");
        for number in 0..=EVENTS_MAX {
            queue.push(number);
        }
        assert_eq!(queue.lock().len(), EVENTS_MAX);
    }
}
