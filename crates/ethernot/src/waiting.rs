//! Waits for several events at the same time: by a file descriptor, by one call, or by an iterator
//! over completions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use engine::Closed;
use runtime::{Forked, Interest};
use semantics::{Completion, CompletionQueue};

use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointInner};
use crate::error::{OperationFailure, WaitError, in_time};
use crate::handle::OperationHandle;
use crate::listener::{ConnectionRequest, Listener};
use crate::receive::{ReceiveHandle, Received};

/// An event that [`Endpoint::wait_any`] waits for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Awaited<'a> {
    /// A connection request.
    Request(&'a Listener),
    /// A completion.
    Completion(&'a CompletionQueue),
    /// A completion that stays in the queue. Threads that share a queue and a lock take the
    /// completions under their lock, so that they handle them in the order of the queue.
    Completions(&'a CompletionQueue),
    /// The end of a connection. After the connection has ended, every wait reports this event.
    End(&'a Connection),
    /// A flag of the program that is set. A thread that sets the flag calls [`Endpoint::wake`]
    /// afterwards. Without this call, a sleeping thread finds the flag at the next event of the
    /// endpoint, or when the limit expires. The wait leaves the flag set.
    Flag(&'a AtomicBool),
    /// The end of an operation.
    Operation(&'a OperationHandle),
    /// A message for a receive handle.
    Message(&'a ReceiveHandle),
}

/// The event that [`Endpoint::wait_any`] returns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Occurred {
    /// A connection request of a peer.
    Request(ConnectionRequest),
    /// The oldest completion of the queue.
    Completion(Completion),
    /// The queue had a completion. Another thread may have taken it meanwhile.
    Completions,
    /// The reason why the connection has ended, and the peer's private data.
    End(Closed, Vec<u8>),
    /// The flag was set.
    Flag,
    /// The result of [`OperationHandle::wait`].
    Operation(Result<u64, OperationFailure>),
    /// The result of [`ReceiveHandle::wait`].
    Message(Result<Received, OperationFailure>),
}

impl Endpoint {
    /// Waits until one of these events has occurred, for at most `limit` (`None`: without a limit).
    /// Returns its index in `awaited` and the event. If several events have occurred, returns the
    /// one with the lowest index.
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint, queue: &ethernot::CompletionQueue) -> Result<(), ethernot::Error> {
    /// use ethernot::{Awaited, Occurred};
    /// let listener = endpoint.listen(0)?;
    /// let awaited = [Awaited::Request(&listener), Awaited::Completion(queue)];
    /// match endpoint.wait_any(&awaited, None)? {
    ///     (_, Occurred::Request(request)) => drop(request.accept(b"welcome")?),
    ///     (_, other) => println!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires, [`WaitError::ShutDown`] if the
    /// endpoint is shut down, and [`WaitError::Foreign`] if an awaited object belongs to another
    /// endpoint.
    pub fn wait_any(
        &self,
        awaited: &[Awaited<'_>],
        limit: Option<Duration>,
    ) -> Result<(usize, Occurred), WaitError> {
        let inner = &*self.inner;
        if awaited.iter().any(|awaited| !awaited.belongs_to(inner)) {
            return Err(WaitError::Foreign);
        }
        let found = inner.runtime.wait(Interest::Anything, limit, || {
            let mut looks = awaited.iter().map(Awaited::look).enumerate();
            let found = looks.find_map(|(index, found)| Some((index, found?)));
            found.map(Ok).or_else(|| inner.shut_down())
        })?;
        in_time(found, limit)?
    }

    /// Wakes the threads and tasks that wait for events of this endpoint, so that they look at
    /// their flags ([`Awaited::Flag`]). If the descriptor is armed, it becomes readable. If nothing
    /// waits, costs some nanoseconds. Does nothing in a child process after `fork`.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use ethernot::{Awaited, Endpoint, Occurred};
    ///
    /// let endpoint = Endpoint::bind("127.0.0.1:0")?;
    /// let is_over = AtomicBool::new(false);
    /// std::thread::scope(|scope| {
    ///     let waiting = scope.spawn(|| endpoint.wait_any(&[Awaited::Flag(&is_over)], None));
    ///     is_over.store(true, Ordering::SeqCst);
    ///     endpoint.wake();
    ///     assert!(matches!(waiting.join().unwrap(), Ok((0, Occurred::Flag))));
    /// });
    /// # Ok::<(), ethernot::Error>(())
    /// ```
    pub fn wake(&self) {
        // Either this thread sees the waiting thread in the list of waiters, or the waiting thread,
        // which looks after it has enlisted, sees the flag.
        fence(Ordering::SeqCst);
        self.inner.runtime.wake_waiting();
    }

    /// Arms the endpoint's file descriptor: it becomes readable at the next event. Events are
    /// completions, the end of an operation or a message with a handle, connection requests,
    /// established connections and ended connections. Like an event descriptor of UCX or a
    /// completion channel of verbs, the descriptor works with `poll`, with epoll, and with
    /// everything that uses them:
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint, sleep_on: fn(&ethernot::Endpoint)) -> Result<(), ethernot::Error> {
    /// # let queue = ethernot::CompletionQueue::new(1);
    /// loop {
    ///     // Check for all events.
    ///     while let Some(completion) = endpoint.poll(&queue)? {
    ///         println!("{completion:?}");
    ///     }
    ///     if endpoint.arm()? {
    ///         sleep_on(endpoint); // Until the descriptor is readable.
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// Returns false if an event has occurred since the last call. If the result is false, check
    /// for events again before sleeping. Otherwise the program would miss an event. Without a
    /// [progress thread](crate::EndpointBuilder::progress_thread) the result is always false,
    /// because no thread would serve the links during the sleep.
    ///
    /// Only one thread or task at a time may use the descriptor. At the same time, other threads
    /// and tasks may wait by calls and futures.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn arm(&self) -> Result<bool, Forked> {
        self.inner.runtime.arm()
    }

    /// Makes the endpoint's descriptor unreadable. [`Endpoint::arm`] also does this.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn drain(&self) -> Result<(), Forked> {
        self.inner.runtime.drain()
    }

    /// Returns an iterator over the completions of a queue. The iterator waits for each completion
    /// for at most `limit`.
    pub fn completions<'a>(
        &'a self,
        queue: &'a Arc<CompletionQueue>,
        limit: Option<Duration>,
    ) -> Completions<'a> {
        Completions(Of::Queue(self, queue), limit)
    }
}

impl Connection {
    /// Returns an iterator over the completions of the connection's queue. The iterator waits for
    /// each completion for at most `limit`. The iteration ends when the connection ends.
    ///
    /// ```no_run
    /// # fn f(connection: &ethernot::Connection) -> Result<(), ethernot::Error> {
    /// for completion in connection.completions(None) {
    ///     println!("{:?}", completion?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn completions(&self, limit: Option<Duration>) -> Completions<'_> {
        Completions(Of::Connection(self), limit)
    }
}

/// An iterator over completions, made by [`Connection::completions`] and [`Endpoint::completions`].
///
/// An item can be an error, and the iteration continues after an error. The iteration ends when the
/// connection ends or the endpoint is shut down.
#[derive(Debug)]
#[must_use = "an iterator does nothing unless it is asked"]
pub struct Completions<'a>(Of<'a>, Option<Duration>);

#[derive(Debug)]
enum Of<'a> {
    Connection(&'a Connection),
    Queue(&'a Endpoint, &'a Arc<CompletionQueue>),
}

impl Iterator for Completions<'_> {
    type Item = Result<Completion, WaitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = match self.0 {
            Of::Connection(connection) => connection.wait_completion(self.1),
            Of::Queue(endpoint, queue) => endpoint.wait_completion(queue, self.1),
        };
        match found {
            Err(WaitError::Closed(_) | WaitError::ShutDown) => None,
            found => Some(found),
        }
    }
}

/// The descriptor that [`Endpoint::arm`] arms.
impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.runtime.descriptor()
    }
}

impl AsRawFd for Endpoint {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Awaited<'_> {
    fn belongs_to(&self, endpoint: &EndpointInner) -> bool {
        let owner = match self {
            Self::Completion(queue) | Self::Completions(queue) => {
                return endpoint.check_queue(queue).is_ok();
            }
            Self::Request(listener) => listener.endpoint(),
            Self::End(connection) => &connection.inner().endpoint,
            Self::Flag(_) => return true,
            Self::Operation(handle) => &handle.connection().endpoint,
            Self::Message(handle) => &handle.connection().endpoint,
        };
        std::ptr::eq(Arc::as_ptr(owner), endpoint)
    }

    fn look(&self) -> Option<Occurred> {
        match self {
            Self::Request(listener) => listener.poll().map(Occurred::Request),
            Self::Completion(queue) => queue.poll().map(Occurred::Completion),
            Self::Completions(queue) => (!queue.is_empty()).then_some(Occurred::Completions),
            Self::End(connection) => {
                let (reason, private_data) = connection.fate().end()?;
                Some(Occurred::End(reason, private_data))
            }
            Self::Flag(flag) => flag.load(Ordering::SeqCst).then_some(Occurred::Flag),
            Self::Operation(handle) => handle.ended().map(Occurred::Operation),
            Self::Message(handle) => handle.ended().map(Occurred::Message),
        }
    }
}
