//! Receives with handles: each message has one owner, whichever threads share the connection.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use mem::{AccessError, RegionId};
use runtime::{Doorbell, Interest, Patience, Posting};
use semantics::{Arrival, OperationStatus, Receive, StatusTable};

use crate::connection::{Connection, ConnectionInner, OperationOptions, question, question_from};
use crate::error::{OperationFailure, PostError};
use crate::region::{MemoryRegion, Registration};
use crate::tasks::poll_slot;

/// Follows a receive: a buffer for one message.
///
/// As with an [`OperationHandle`](crate::OperationHandle), a thread [waits](ReceiveHandle::wait) and a task
/// awaits it, by reference if it may be given up.
///
/// A handle of [`Connection::receive`] that is dropped before its message was looked at loses nothing: the next
/// `receive` of the connection takes it over, with the message that has come or will come. The answer to a
/// [`Connection::call`] whose handle is dropped is discarded; its buffer is in use until it has come.
#[must_use = "the next receive of the connection takes its message over if it is dropped"]
pub struct ReceiveHandle {
    connection: Arc<ConnectionInner>,
    place: Place,
    /// Taken over by the next receive, unless somebody has looked at the message.
    is_kept: bool,
    is_seen: AtomicBool,
    patience: Patience,
}

/// A message that has come, in the buffer of its receive.
///
/// The bytes are there until the buffer is used for something else. The memory of a dropped
/// [`MemoryRegion`] is kept for them.
#[derive(Clone)]
pub struct Received {
    connection: Arc<ConnectionInner>,
    place: Place,
    arrival: Arrival,
}

/// Which slot follows a receive, and where its buffer is, which stays registered for the message.
#[derive(Clone, Debug)]
struct Place {
    slot: u32,
    registration: Arc<Registration>,
    offset: u64,
    length: u32,
}

/// Receives whose handles were dropped, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    list: Mutex<VecDeque<Place>>,
    /// The list is not empty: for those who receive.
    has_any: AtomicBool,
}

impl Connection {
    /// Posts a buffer for one message of at most `length` bytes, which goes to the handle alone:
    /// there is no completion. Messages go to the receives of a connection in the order in which these were posted.
    ///
    /// If a handle was dropped before, this takes over its receive instead, and the message is in *its* buffer: see
    /// [`Received`] for the bytes.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub fn receive(
        &self,
        local: &MemoryRegion,
        offset: u64,
        length: u32,
    ) -> Result<ReceiveHandle, PostError> {
        let inner = self.inner();
        if let Some(place) = inner.orphans.take() {
            return Ok(ReceiveHandle::new(inner, place, true));
        }
        self.check_open()?;
        let status = inner.endpoint.runtime.status();
        let slot = status.acquire().ok_or(PostError::NoHandleLeft)?;
        let place = Place::new(slot, local, offset, length);
        let posting = Posting::Followed { receive: place.receive(), status: slot };
        if let Err(error) = self.post_posting(posting, Doorbell::Ring) {
            give_back(status, slot);
            return Err(error);
        }
        Ok(ReceiveHandle::new(inner, place, true))
    }

    /// Sends a question of up to 64 bytes and posts a buffer for the answer, as one step. If several threads ask
    /// and the peer answers in order, the answers come in the order of the questions, so each thread gets its own.
    ///
    /// # Errors
    /// As for [`Connection::write_bytes`].
    pub fn call(
        &self,
        bytes: &[u8],
        answer: &MemoryRegion,
        offset: u64,
        length: u32,
        options: OperationOptions,
    ) -> Result<ReceiveHandle, PostError> {
        self.call_by(question(bytes, options)?, answer, offset, length, options)
    }

    /// Asks as [`Connection::call`] does, with a question of `question_length` bytes in a region, which must not
    /// change until the answer has arrived.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    #[expect(clippy::too_many_arguments, reason = "two places, as in any remote operation")]
    pub fn call_from(
        &self,
        question: &MemoryRegion,
        question_offset: u64,
        question_length: u64,
        answer: &MemoryRegion,
        offset: u64,
        length: u32,
        options: OperationOptions,
    ) -> Result<ReceiveHandle, PostError> {
        let question = question_from(question, question_offset, question_length, options)?;
        self.call_by(question, answer, offset, length, options)
    }

    fn call_by(
        &self,
        question: semantics::Operation,
        answer: &MemoryRegion,
        offset: u64,
        length: u32,
        options: OperationOptions,
    ) -> Result<ReceiveHandle, PostError> {
        let inner = self.inner();
        self.check_open()?;
        let status = inner.endpoint.runtime.status();
        let slot = status.acquire().ok_or(PostError::NoHandleLeft)?;
        let Some(asking) = status.acquire() else {
            give_back(status, slot);
            return Err(PostError::NoHandleLeft);
        };
        let place = Place::new(slot, answer, offset, length);
        let operation = semantics::Operation { status: Some(asking), ..question };
        let posting = Posting::Call { receive: place.receive(), status: slot, operation };
        if let Err(error) = self.post_posting(posting, options.doorbell()) {
            give_back(status, slot);
            give_back(status, asking);
            return Err(error);
        }
        // The answer acknowledges the question as well.
        status.release(asking);
        Ok(ReceiveHandle::new(inner, place, false))
    }
}

/// Frees the slot of something that was never posted.
fn give_back(status: &StatusTable, slot: u32) {
    status.cancel(slot);
    status.release(slot);
}

impl Place {
    fn new(slot: u32, local: &MemoryRegion, offset: u64, length: u32) -> Self {
        Self { slot, registration: Arc::clone(local.registration()), offset, length }
    }

    fn region(&self) -> RegionId {
        self.registration.id()
    }

    fn receive(&self) -> Receive {
        let Self { offset, length, .. } = *self;
        Receive { region: self.region(), offset, length, context: 0 }
    }
}

impl ReceiveHandle {
    fn new(connection: &Arc<ConnectionInner>, place: Place, is_kept: bool) -> Self {
        let connection = Arc::clone(connection);
        let (is_seen, patience) = (AtomicBool::new(false), Patience::default());
        Self { connection, place, is_kept, is_seen, patience }
    }

    /// Whether a message has come, or never will.
    #[inline]
    pub fn is_done(&self) -> bool {
        let status = self.connection.endpoint.runtime.status().status(self.place.slot);
        !matches!(status, OperationStatus::Pending { .. })
    }

    /// Waits for the message, for at most `limit` (`None`: for as long as it takes). May be called again: after
    /// [`OperationFailure::TimedOut`] it goes on waiting, after the end it returns the same result again.
    ///
    /// # Errors
    /// [`OperationFailure`]: the receive failed, the limit passed, or the process is a forked child.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Received, OperationFailure> {
        let runtime = &self.connection.endpoint.runtime;
        let ended = runtime.wait(Interest::Status(self.place.slot), limit, || self.ended())?;
        let (bytes, length) = (0, self.place.length);
        let limit = limit.unwrap_or(Duration::MAX);
        ended.unwrap_or(Err(OperationFailure::TimedOut { bytes, length, limit }))
    }

    /// What has come, if anything has.
    pub(crate) fn ended(&self) -> Option<Result<Received, OperationFailure>> {
        let status = self.connection.endpoint.runtime.status();
        let result = match status.status(self.place.slot) {
            OperationStatus::Pending { .. } => return None,
            OperationStatus::Failed(error) => Err(error.into()),
            OperationStatus::Done { .. } => {
                let arrival = status.arrival(self.place.slot)?;
                let connection = Arc::clone(&self.connection);
                Ok(Received { connection, place: self.place.clone(), arrival })
            }
        };
        self.is_seen.store(true, Ordering::Relaxed);
        Some(result)
    }

    pub(crate) fn connection(&self) -> &ConnectionInner {
        &self.connection
    }
}

impl Future for ReceiveHandle {
    type Output = Result<Received, OperationFailure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut patience = this.patience;
        let runtime = &this.connection.endpoint.runtime;
        let ended = poll_slot(runtime, context, &mut patience, this.place.slot, || this.ended());
        this.patience = patience;
        ended.map(|ended| ended?)
    }
}

impl Drop for ReceiveHandle {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock of the orphans when a child was forked.
        if self.connection.endpoint.runtime.check_process().is_err() {
            return;
        }
        let status = self.connection.endpoint.runtime.status();
        let is_lost = matches!(status.status(self.place.slot), OperationStatus::Failed(_));
        if self.is_kept && !*self.is_seen.get_mut() && !is_lost {
            status.forget(self.place.slot);
            self.connection.orphans.add(self.place.clone());
        } else {
            status.release(self.place.slot);
        }
    }
}

impl fmt::Debug for ReceiveHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveHandle")
            .field("place", &self.place)
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

impl Received {
    /// Returns the length of the message in bytes.
    pub const fn len(&self) -> usize {
        self.arrival.bytes as usize
    }

    /// Whether the message has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.arrival.bytes == 0
    }

    /// Returns the immediate value that the peer sent with the message.
    pub const fn immediate(&self) -> Option<u32> {
        self.arrival.immediate
    }

    /// Returns the offset of the first byte in the region of the buffer, in bytes.
    pub const fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Copies the message, or as much of it as there is room for. Returns how many bytes that is.
    ///
    /// # Errors
    /// [`AccessError::InvalidKey`] if the region was deregistered meanwhile, which a dropped one is at once whose memory is the
    /// program's own.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<usize, AccessError> {
        let length = self.len().min(bytes.len());
        let memory = self.connection.endpoint.runtime.memory();
        let into = bytes.get_mut(..length).unwrap_or_default();
        memory.access().copy_out(self.place.region(), self.place.offset, into)?;
        Ok(length)
    }

    /// Returns a copy of the message.
    ///
    /// # Errors
    /// As for [`Received::copy_to`].
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes)?;
        Ok(bytes)
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("place", &self.place)
            .field("arrival", &self.arrival)
            .finish_non_exhaustive()
    }
}

impl Orphans {
    fn add(&self, place: Place) {
        let mut list = self.lock();
        list.push_back(place);
        self.has_any.store(true, Ordering::Release);
    }

    #[inline]
    fn take(&self) -> Option<Place> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut list = self.lock();
        let place = list.pop_front();
        self.has_any.store(!list.is_empty(), Ordering::Release);
        place
    }

    /// Gives all of them up: the connection goes.
    pub(crate) fn release(&self, status: &StatusTable) {
        // Memory that is given up below makes progress, which must not happen under the lock.
        let places = std::mem::take(&mut *self.lock());
        for place in places {
            status.release(place.slot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Place>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
