//! Receives with handles. Each message belongs to exactly one handle, even if threads share the
//! connection.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use mem::{AccessError, RegionId};
use runtime::{Doorbell, Interest, Posting, SpinBudget};
use semantics::{Arrival, OperationStatus, Receive, StatusTable};

use crate::connection::{Connection, ConnectionInner, OperationOptions, question, question_from};
use crate::error::{OperationFailure, PostError};
use crate::region::{MemoryRegion, Registration};
use crate::tasks::poll_slot;

/// Handle of a posted receive: a buffer for one message.
///
/// A thread calls [`ReceiveHandle::wait`]. A task awaits the handle like an
/// [`OperationHandle`](crate::OperationHandle). A task that may cancel the wait should await the
/// handle by reference.
///
/// If a handle of [`Connection::receive`] is dropped before the program has read its message, no
/// message is lost: the next call of `receive` on the connection takes over the posted receive and
/// its message. If a handle of [`Connection::call`] is dropped, the answer is discarded. The buffer
/// for the answer stays in use until the answer has arrived.
#[must_use = "the next receive of the connection takes its message over if it is dropped"]
pub struct ReceiveHandle {
    connection: Arc<ConnectionInner>,
    place: ReceivePlace,
    /// Whether the next call of `receive` takes over this receive if the handle is dropped before
    /// the program has read the message.
    is_kept: bool,
    is_seen: AtomicBool,
    spin_budget: SpinBudget,
}

/// A received message, in the buffer of its receive.
///
/// The bytes are valid until the program reuses the buffer. If the [`MemoryRegion`] is dropped, the
/// memory stays registered until this value is dropped.
#[derive(Clone)]
pub struct Received {
    connection: Arc<ConnectionInner>,
    place: ReceivePlace,
    arrival: Arrival,
}

/// The status slot of a receive, and its buffer. The buffer stays registered until this value is
/// dropped.
#[derive(Clone, Debug)]
struct ReceivePlace {
    slot: u32,
    registration: Arc<Registration>,
    offset: u64,
    length: u32,
}

/// Posted receives whose handles were dropped, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    list: Mutex<VecDeque<ReceivePlace>>,
    /// Whether the list has entries. While it has none, threads that receive need not take the
    /// lock.
    has_any: AtomicBool,
}

impl Connection {
    /// Posts a buffer for one message of at most `length` bytes. Only the handle reports the
    /// message, and no completion is queued. Messages consume the receives of a connection in the
    /// order in which these were posted.
    ///
    /// If an earlier handle was dropped, the new handle takes over the receive of that handle. The
    /// message is then in the *earlier* buffer: read the bytes through [`Received`].
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
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
        let place = ReceivePlace::new(slot, local, offset, length);
        let posting = Posting::Followed { receive: place.receive(), status: slot };
        if let Err(error) = self.post_posting(posting, Doorbell::Ring) {
            give_back(status, slot);
            return Err(error);
        }
        Ok(ReceiveHandle::new(inner, place, true))
    }

    /// Sends a question of up to 64 bytes and posts a buffer for the answer, in one step. Several
    /// threads may call this method on one connection. If the peer answers in order, each thread
    /// gets the answer to its own question.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write_bytes`].
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

    /// Sends a question like [`Connection::call`]. The question is `question_length` bytes of a
    /// region. These bytes must not change until the answer has arrived.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
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
        let place = ReceivePlace::new(slot, answer, offset, length);
        let operation = semantics::Operation { status: Some(asking), ..question };
        let posting = Posting::Call { receive: place.receive(), status: slot, operation };
        if let Err(error) = self.post_posting(posting, options.doorbell()) {
            give_back(status, slot);
            give_back(status, asking);
            return Err(error);
        }
        // Release the slot of the question. The slot is not needed, because the answer also shows
        // that the question has arrived.
        status.release(asking);
        Ok(ReceiveHandle::new(inner, place, false))
    }
}

/// Frees the slot of an operation or receive whose post failed.
fn give_back(status: &StatusTable, slot: u32) {
    status.cancel(slot);
    status.release(slot);
}

impl ReceivePlace {
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
    fn new(connection: &Arc<ConnectionInner>, place: ReceivePlace, is_kept: bool) -> Self {
        let connection = Arc::clone(connection);
        let (is_seen, spin_budget) = (AtomicBool::new(false), SpinBudget::default());
        Self { connection, place, is_kept, is_seen, spin_budget }
    }

    /// Returns whether the receive has ended: its message has arrived, or the receive has failed.
    #[inline]
    pub fn is_done(&self) -> bool {
        let status = self.connection.endpoint.runtime.status().status(self.place.slot);
        !matches!(status, OperationStatus::Pending { .. })
    }

    /// Waits for the message, for at most `limit` (`None`: without a limit). The call may be
    /// repeated. A call after [`OperationFailure::TimedOut`] waits again. A call after the receive
    /// has ended returns the same result.
    ///
    /// # Errors
    /// Returns [`OperationFailure`] if the receive failed, the limit expired, or the process is a
    /// forked child.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Received, OperationFailure> {
        let runtime = &self.connection.endpoint.runtime;
        let ended = runtime.wait(Interest::Status(self.place.slot), limit, || self.ended())?;
        let (bytes, length) = (0, self.place.length);
        let limit = limit.unwrap_or(Duration::MAX);
        ended.unwrap_or(Err(OperationFailure::TimedOut { bytes, length, limit }))
    }

    /// Returns the message or the failure, if the receive has ended.
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
        let mut spin_budget = this.spin_budget;
        let runtime = &this.connection.endpoint.runtime;
        let ended = poll_slot(runtime, context, &mut spin_budget, this.place.slot, || this.ended());
        this.spin_budget = spin_budget;
        ended.map(|ended| ended?)
    }
}

impl Drop for ReceiveHandle {
    fn drop(&mut self) {
        // Do nothing in a forked child. If a thread of the parent held the lock of the list at the
        // fork, the lock is never released in the child.
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

    /// Returns whether the message is empty.
    pub const fn is_empty(&self) -> bool {
        self.arrival.bytes == 0
    }

    /// Returns the immediate value that the peer sent with the message.
    pub const fn immediate(&self) -> Option<u32> {
        self.arrival.immediate
    }

    /// Returns the offset of the message in the region of its buffer, in bytes.
    pub const fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Copies the message to `bytes`, or only its beginning if `bytes` is shorter. Returns the
    /// number of copied bytes.
    ///
    /// # Errors
    /// Returns [`AccessError::InvalidKey`] if the region was deregistered before this call.
    /// Dropping a region of memory that the program owns deregisters the region at once.
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
    /// Returns the errors of [`Received::copy_to`].
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
    fn add(&self, place: ReceivePlace) {
        let mut list = self.lock();
        list.push_back(place);
        self.has_any.store(true, Ordering::Release);
    }

    #[inline]
    fn take(&self) -> Option<ReceivePlace> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut list = self.lock();
        let place = list.pop_front();
        self.has_any.store(!list.is_empty(), Ordering::Release);
        place
    }

    /// Releases all receives in the list, because the connection is closed.
    pub(crate) fn release(&self, status: &StatusTable) {
        // Do not hold the lock while releasing. Releasing drops memory and then makes progress in
        // the engine, and no thread may run the engine while it holds this lock.
        let places = std::mem::take(&mut *self.lock());
        for place in places {
            status.release(place.slot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ReceivePlace>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
