//! Waiting for several things at a time: with a descriptor, in one call, one completion after the other.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
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

/// Something that [`Endpoint::wait_any`] waits for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Awaited<'a> {
    /// A request for a connection.
    Request(&'a Listener),
    /// A completion.
    Completion(&'a CompletionQueue),
    /// The end of a connection; one that has ended stays so.
    End(&'a Connection),
    /// The end of an operation.
    Operation(&'a OperationHandle),
    /// A message.
    Message(&'a ReceiveHandle),
}

/// What [`Endpoint::wait_any`] has found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Occurred {
    /// A peer asks for a connection.
    Request(ConnectionRequest),
    /// The oldest completion of the queue.
    Completion(Completion),
    /// Why the connection has ended, and what the peer sent along.
    End(Closed, Vec<u8>),
    /// What [`OperationHandle::wait`] returns.
    Operation(Result<u64, OperationFailure>),
    /// What [`ReceiveHandle::wait`] returns.
    Message(Result<Received, OperationFailure>),
}

impl Endpoint {
    /// Waits until one of these has occurred, for at most `limit` (`None`: for as long as it takes). Returns which, by its
    /// index, and what. They are looked at from first to last, so an earlier one comes before a later one.
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
    /// [`WaitError::TimedOut`], [`WaitError::ShutDown`], [`WaitError::Foreign`] if something belongs to another
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

    /// Makes the endpoint's descriptor readable when something comes from now on: a completion, the end of an
    /// operation or a message with a handle, a request for a connection, an establishment, an end. Like an event
    /// descriptor of UCX or a completion channel, it works with `poll`, epoll and everything made of them:
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint, sleep_on: fn(&ethernot::Endpoint)) -> Result<(), ethernot::Error> {
    /// # let queue = ethernot::CompletionQueue::new(1);
    /// loop {
    ///     // Look at everything that may have come.
    ///     while let Some(completion) = endpoint.poll(&queue)? {
    ///         println!("{completion:?}");
    ///     }
    ///     if endpoint.arm()? {
    ///         sleep_on(endpoint); // until the descriptor is readable
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// False: something has come since the last call, so look again before sleeping; nothing is lost that way. Always
    /// so without a [progress thread](crate::EndpointBuilder::progress_thread), as no thread would serve the links meanwhile. It
    /// is for one thread, or one task, at a time; others may wait in other ways.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn arm(&self) -> Result<bool, Forked> {
        self.inner.runtime.arm()
    }

    /// Makes the endpoint's descriptor unreadable again. [`Endpoint::arm`] does it as well.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn drain(&self) -> Result<(), Forked> {
        self.inner.runtime.drain()
    }

    /// Returns an iterator over the completions of a queue, which waits for each for at most `limit`.
    pub fn completions<'a>(
        &'a self,
        queue: &'a Arc<CompletionQueue>,
        limit: Option<Duration>,
    ) -> Completions<'a> {
        Completions(Of::Queue(self, queue), limit)
    }
}

impl Connection {
    /// Returns an iterator over the completions of the connection's queue, which waits for each for at most
    /// `limit`. It ends with the connection.
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

/// Completions as they come: [`Connection::completions`], [`Endpoint::completions`].
///
/// An error is one item and not the end, but for the end of the connection or the endpoint.
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

/// Readable after what [`Endpoint::arm`] waits for.
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
            Self::Completion(queue) => return endpoint.check_queue(queue).is_ok(),
            Self::Request(listener) => listener.endpoint(),
            Self::End(connection) => &connection.inner().endpoint,
            Self::Operation(handle) => &handle.connection().endpoint,
            Self::Message(handle) => &handle.connection().endpoint,
        };
        std::ptr::eq(Arc::as_ptr(owner), endpoint)
    }

    fn look(&self) -> Option<Occurred> {
        match self {
            Self::Request(listener) => listener.poll().map(Occurred::Request),
            Self::Completion(queue) => queue.poll().map(Occurred::Completion),
            Self::End(connection) => {
                let (reason, private_data) = connection.fate().end()?;
                Some(Occurred::End(reason, private_data))
            }
            Self::Operation(handle) => handle.ended().map(Occurred::Operation),
            Self::Message(handle) => handle.ended().map(Occurred::Message),
        }
    }
}
