//! Connections: operations on a peer's memory, and messages.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use delivery::LinkId;
use engine::{Closed, ConnectionHandle, ConnectionInfo};
use mem::RegionId;
use runtime::{Doorbell, Forked, Interest, Posting, SpinBudget, SubmitError};
use semantics::{
    Completion, CompletionQueue, INLINE_BYTES_MAX, OPERATION_BYTES_MAX, Operation, OperationFlags,
    Order, Owner, PieceList, Receive, Request, Source,
};
use wire_edge::PeerAddr;

use crate::endpoint::{Endpoint, EndpointInner};
use crate::error::{LinkError, PostError, WaitError, in_time};
use crate::handle::OperationHandle;
use crate::news::{Fate, Stage, Subscriber, Topic};
use crate::receive::Orphans;
use crate::region::{MemoryRegion, RemoteRegion};
use crate::tasks::{UntilCompletion, UntilNews};

/// A connection to a peer.
///
/// The connection is closed when this object and all handles of its operations are dropped.
/// Operations that are not complete at that time are abandoned. To ensure that operations complete,
/// wait for their handles or call [`Endpoint::shutdown`].
#[derive(Debug)]
pub struct Connection {
    inner: Arc<ConnectionInner>,
    /// On the accepting side, the private data of the peer's request.
    request_data: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ConnectionInner {
    pub(crate) endpoint: Arc<EndpointInner>,
    handle: ConnectionHandle,
    queue: Arc<CompletionQueue>,
    fate: Arc<Fate>,
    pub(crate) orphans: Orphans,
    /// Whether both ends offer patches and swaps; unknown until the first of them is posted.
    has_patches: OnceLock<bool>,
}

/// Ordering, notification and completion of one operation. The defaults are those of `MultiEdge`:
/// the order is relaxed, the peer is not notified, and only the handle reports the end of the
/// operation.
///
/// ```
/// use ethernot::OperationOptions;
///
/// let options = OperationOptions::SIGNALLED.fence_before(true).context(7);
/// assert!(options.signalled && options.fence_before && options.context == 7);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[must_use]
#[non_exhaustive]
pub struct OperationOptions {
    /// Whether the target performs this operation only after all earlier operations of the
    /// connection (backward fence).
    pub fence_before: bool,
    /// Whether the target performs all later operations of the connection only after this operation
    /// (forward fence).
    pub fence_after: bool,
    /// The order of this operation's bytes: relaxed or strict.
    pub order: Order,
    /// Whether this endpoint queues a completion when the operation ends, with success or with a
    /// failure. Posting reserves an entry of the queue for this completion. Without this flag, a
    /// failure queues a completion only if the queue has room. The handle reports the failure in
    /// any case.
    pub signalled: bool,
    /// Whether the peer is notified of a write, by a completion in the peer's queue. The completion
    /// contains `immediate`, or 0 if there is no immediate. A message always queues a completion at
    /// the peer.
    pub notify: bool,
    /// A 32-bit value for the peer. The value is sent with a message or with the notification of a
    /// write. A write with a value always notifies the peer, even without `notify`.
    pub immediate: Option<u32>,
    /// A number that the program chooses. The completion of the operation contains this number.
    pub context: u64,
    /// Whether the library may defer the operation. The library sends the operation at the latest
    /// with the next operation without this flag, at the next poll or at the next wait. In this way
    /// many small operations are sent together.
    pub more: bool,
}

delivery::setters!(OperationOptions {
    fence_before: bool,
    fence_after: bool,
    order: Order,
    signalled: bool,
    notify: bool,
    immediate: Option<u32>,
    context: u64,
    more: bool,
});

impl OperationOptions {
    /// The default options.
    pub const NONE: Self = Self {
        fence_before: false,
        fence_after: false,
        order: Order::Relaxed,
        signalled: false,
        notify: false,
        immediate: None,
        context: 0,
        more: false,
    };
    /// Options for an operation that notifies the peer, like a notification of `MultiEdge`.
    pub const NOTIFY: Self = Self { notify: true, ..Self::NONE };
    /// Options for an operation in strict order, as on a reliable connection of verbs.
    pub const STRICT: Self = Self { order: Order::Strict, ..Self::NONE };
    /// Options for an operation that queues a completion at this endpoint.
    pub const SIGNALLED: Self = Self { signalled: true, ..Self::NONE };

    fn flags(self) -> OperationFlags {
        OperationFlags {
            fence_before: self.fence_before,
            fence_after: self.fence_after,
            waits_for_answers: false,
            order: self.order,
            notify: self.notify,
            signalled: self.signalled,
        }
    }

    pub(crate) const fn doorbell(self) -> Doorbell {
        if self.more { Doorbell::Later } else { Doorbell::Ring }
    }
}

impl Connection {
    pub(crate) fn new(
        endpoint: &Endpoint,
        handle: ConnectionHandle,
        queue: Arc<CompletionQueue>,
        fate: Arc<Fate>,
    ) -> Self {
        let endpoint = Arc::clone(&endpoint.inner);
        let orphans = Orphans::default();
        let has_patches = OnceLock::new();
        let inner = ConnectionInner { endpoint, handle, queue, fate, orphans, has_patches };
        Self { inner: Arc::new(inner), request_data: Vec::new() }
    }

    pub(crate) fn set_peer_data(&mut self, private_data: Vec<u8>) {
        self.request_data = private_data;
    }

    pub(crate) fn fate(&self) -> &Fate {
        &self.inner.fate
    }

    pub(crate) fn handle(&self) -> ConnectionHandle {
        self.inner.handle
    }

    pub(crate) fn inner(&self) -> &Arc<ConnectionInner> {
        &self.inner
    }

    /// Waits until the connection is established or closed, and returns the stage. If the handshake
    /// is pending, subscribes the calling task to the next change of the connection's state.
    pub(crate) fn poll_settled(
        &self,
        context: &Context<'_>,
        spin_budget: &mut SpinBudget,
        subscriber: &mut Option<Subscriber>,
    ) -> Poll<Result<Stage, Forked>> {
        let ConnectionInner { endpoint, fate, handle, .. } = &*self.inner;
        endpoint.runtime.poll_wait(
            context,
            spin_budget,
            || fate.settled(),
            |waker| {
                let topic = Topic::Connection(*handle);
                *subscriber = Some(endpoint.news.subscribe(topic, waker));
            },
        )
    }

    /// Copies `length` bytes of `local`, from `local_offset`, to the peer's memory.
    ///
    /// The bytes must not change until the operation is complete.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause. If this call returns an error, no
    /// operation is posted. The handle reports failures that occur later.
    pub fn write(
        &self,
        local: &MemoryRegion,
        local_offset: u64,
        remote: &RemoteRegion,
        remote_offset: u64,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, length)?;
        let source = Source::Region { region: local.region().id, offset: local_offset };
        let request = Request::Write { source, key: remote.key, address };
        self.start(request, length, options)
    }

    /// Writes up to 64 bytes. The call copies the bytes, so they may change after the call.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`], and [`PostError::InlineTooLong`] for more than
    /// 64 bytes.
    pub fn write_bytes(
        &self,
        bytes: &[u8],
        remote: &RemoteRegion,
        remote_offset: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, bytes.len() as u64)?;
        let request = Request::Write { source: inline(bytes)?, key: remote.key, address };
        self.start(request, bytes.len() as u64, options)
    }

    /// Copies `length` bytes of the peer's memory to `local`, from `local_offset` on. The local
    /// region needs [`Rights::LOCAL_WRITE`](crate::Rights::LOCAL_WRITE).
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    pub fn read(
        &self,
        local: &MemoryRegion,
        local_offset: u64,
        remote: &RemoteRegion,
        remote_offset: u64,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, length)?;
        let sink = local.region().id;
        let request = Request::Read { sink, sink_offset: local_offset, key: remote.key, address };
        self.start(request, length, options)
    }

    /// Adds `operand` to the 64-bit word at `remote_offset` of the peer's memory, modulo 2^64. The
    /// handle returns the previous value of the word.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    pub fn fetch_add(
        &self,
        remote: &RemoteRegion,
        remote_offset: u64,
        operand: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, WORD_BYTES)?;
        let request = Request::FetchAdd { key: remote.key, address, operand, sink: None };
        self.start(request, WORD_BYTES, options)
    }

    /// Stores `swap` in the 64-bit word at `remote_offset` of the peer's memory if the word equals
    /// `compare`. The handle returns the previous value of the word.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    pub fn compare_swap(
        &self,
        remote: &RemoteRegion,
        remote_offset: u64,
        compare: u64,
        swap: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, WORD_BYTES)?;
        let request = Request::CompareSwap { key: remote.key, address, compare, swap, sink: None };
        self.start(request, WORD_BYTES, options)
    }

    /// Sends a message. The message consumes a receive that the peer has posted or will post.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    pub fn send(
        &self,
        local: &MemoryRegion,
        local_offset: u64,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let source = Source::Region { region: local.region().id, offset: local_offset };
        self.start(Request::Send { source }, length, options)
    }

    /// Sends a message of up to 64 bytes. The call copies the bytes, so they may change after the
    /// call.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`], and [`PostError::InlineTooLong`] for more than
    /// 64 bytes.
    pub fn send_bytes(
        &self,
        bytes: &[u8],
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let request = Request::Send { source: inline(bytes)? };
        self.start(request, bytes.len() as u64, options)
    }

    /// Posts a buffer for one message of at most `length` bytes. A completion with `context`
    /// reports the arrival of the message.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    pub fn post_receive(
        &self,
        local: &MemoryRegion,
        offset: u64,
        length: u32,
        context: u64,
    ) -> Result<(), PostError> {
        let receive = Receive { region: local.region().id, offset, length, context };
        self.post_posting(receive, Doorbell::Ring)
    }

    /// Posts an operation without a handle, for programs that poll completions. Sends the operation
    /// at once. `operation.status` must be `None`, because only handles have a status slot. The
    /// other fields have the same meaning as in [`OperationOptions`].
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    #[inline]
    pub fn post(&self, operation: &Operation) -> Result<(), PostError> {
        self.submit_plain(operation, Doorbell::Ring)
    }

    /// Posts an operation without a handle. The library may defer the operation. It sends the
    /// operation at the latest with the next operation that is sent at once, at the next poll or at
    /// the next wait. In this way many small operations are sent together.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`].
    #[inline]
    pub fn post_later(&self, operation: &Operation) -> Result<(), PostError> {
        self.submit_plain(operation, Doorbell::Later)
    }

    /// Removes the oldest completion from the connection's queue, and returns it. If the queue is
    /// empty, makes progress and tries once more.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll(&self) -> Result<Option<Completion>, Forked> {
        let runtime = &self.inner.endpoint.runtime;
        if let Some(completion) = self.inner.queue.poll() {
            runtime.on_found();
            return Ok(Some(completion));
        }
        runtime.poll()?;
        Ok(self.inner.queue.poll())
    }

    /// Returns the oldest completion like [`Connection::poll`]. If there is none, waits for at most
    /// `limit` (`None`: until the connection ends).
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires, and [`WaitError::Closed`] if the
    /// connection has ended and its queue is empty.
    pub fn wait_completion(&self, limit: Option<Duration>) -> Result<Completion, WaitError> {
        let ConnectionInner { endpoint, queue, fate, .. } = &*self.inner;
        let found = endpoint.runtime.wait(Interest::Completion(queue), limit, || {
            // Read the state before the queue. The engine queues all completions before it reports
            // the end of the connection. So if the state was *ended* before an empty queue was
            // read, no completion can follow.
            let has_ended = fate.has_ended();
            let end =
                || fate.closed().filter(|_| has_ended).map(|reason| Err(WaitError::Closed(reason)));
            queue.poll().map(Ok).or_else(end)
        })?;
        in_time(found, limit)?
    }

    /// Waits in a task for a completion, like [`Connection::wait_completion`] in a thread. If the
    /// future is dropped, no completion is lost.
    ///
    /// # Errors
    /// Returns [`WaitError::Closed`] if the connection has ended and its queue is empty.
    pub fn next_completion(
        &self,
    ) -> impl Future<Output = Result<Completion, WaitError>> + Send + '_ {
        let ConnectionInner { endpoint, queue, .. } = &*self.inner;
        let found = UntilCompletion::new(endpoint, queue, || self.look_for_completion());
        async move { found.await? }
    }

    /// Returns a completion, or the end of the connection; `None` if there is neither. Reads the
    /// state before the queue, because the engine queues all completions before it reports the end.
    #[inline]
    fn look_for_completion(&self) -> Option<Result<Completion, WaitError>> {
        let ConnectionInner { queue, fate, .. } = &*self.inner;
        let has_ended = fate.has_ended();
        let end =
            || fate.closed().filter(|_| has_ended).map(|reason| Err(WaitError::Closed(reason)));
        queue.poll().map(Ok).or_else(end)
    }

    /// Returns the queue that receives the connection's completions.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.inner.queue
    }

    /// Returns the number that identifies this connection in its completions. Each connection has a
    /// different number.
    pub fn owner(&self) -> Owner {
        self.inner.handle.owner()
    }

    /// Returns the private data of the peer's request or acceptance.
    pub fn peer_data(&self) -> Vec<u8> {
        match self.inner.fate.stage() {
            Stage::Established(private_data) if self.request_data.is_empty() => private_data,
            _ => self.request_data.clone(),
        }
    }

    /// Returns the reason why the connection has ended, if it has.
    pub fn closed(&self) -> Option<Closed> {
        self.inner.fate.closed()
    }

    /// Waits until the connection has ended, for at most `limit` (`None`: without a limit). Returns
    /// the reason, and the private data that the peer sent when it closed the connection.
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires.
    pub fn wait_closed(&self, limit: Option<Duration>) -> Result<(Closed, Vec<u8>), WaitError> {
        let ConnectionInner { endpoint, fate, .. } = &*self.inner;
        let closed = endpoint.runtime.wait(Interest::News, limit, || fate.end())?;
        in_time(closed, limit)
    }

    /// Waits in a task for the end of the connection, like [`Connection::wait_closed`] in a thread.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::wait_closed`].
    pub fn ended(&self) -> impl Future<Output = Result<(Closed, Vec<u8>), WaitError>> + Send + '_ {
        let ConnectionInner { endpoint, fate, handle, .. } = &*self.inner;
        let ended = UntilNews::new(endpoint, Topic::Connection(*handle), || fate.end());
        async move { Ok(ended.await?) }
    }

    /// Closes the connection and sends `private_data` to the peer (at most 128 bytes; the rest is
    /// dropped). Operations and receives that are not complete fail as flushed.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn close(&self, private_data: &[u8]) -> Result<(), Forked> {
        self.inner.close(private_data.to_vec())
    }

    /// Returns the state of the connection and its links, with all counters. Returns `None` after
    /// the connection has ended.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn info(&self) -> Result<Option<ConnectionInfo>, Forked> {
        let handle = self.inner.handle;
        self.inner.endpoint.runtime.control(move |engine, _memory, _now| engine.info(handle))
    }

    /// Adds a link of this endpoint to the connection. `peer` is the peer's address on the link.
    /// The link carries data after the peer has answered on it. Returns the link's index within the
    /// connection.
    ///
    /// # Errors
    /// Returns [`LinkError`] if the link cannot be added, or the process is a forked child.
    pub fn add_link(&self, link: LinkId, peer: impl Into<PeerAddr>) -> Result<u8, LinkError> {
        let (handle, peer) = (self.inner.handle, peer.into());
        let runtime = &self.inner.endpoint.runtime;
        let added = runtime
            .control(move |engine, _memory, now| engine.add_path(now, handle, link, peer))?;
        added.map_err(|_unknown| LinkError::Refused)
    }

    /// Removes a link from the connection. Frames in flight on the link are retransmitted over the
    /// other links. The last link cannot be removed.
    ///
    /// # Errors
    /// Returns [`LinkError`] if there is no such link, or the process is a forked child.
    pub fn remove_link(&self, index: u8) -> Result<(), LinkError> {
        let handle = self.inner.handle;
        let runtime = &self.inner.endpoint.runtime;
        let removed =
            runtime.control(move |engine, _memory, _now| engine.remove_path(handle, index))?;
        removed.map_err(|_unknown| LinkError::Refused)
    }

    /// Posts an operation with a handle.
    pub(crate) fn start(
        &self,
        request: Request,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        self.start_bytes(request, length, None, options)
    }

    /// Posts an operation with a handle like [`Connection::start`]. If `list` has pieces, the bytes
    /// are in these pieces.
    pub(crate) fn start_bytes(
        &self,
        request: Request,
        length: u64,
        list: Option<PieceList<'_>>,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let operation = operation(request, length, options)?;
        let status = self.inner.endpoint.runtime.status();
        let slot = status.acquire().ok_or(PostError::NoHandleLeft)?;
        let operation = Operation { status: Some(slot), ..operation };
        if let Err(error) = self.submit_bytes(&operation, list, options.doorbell()) {
            status.cancel(slot);
            status.release(slot);
            return Err(error);
        }
        Ok(OperationHandle::new(Arc::clone(&self.inner), slot, operation.length))
    }

    /// Posts an operation without a handle. Returns an error if the operation has a status slot,
    /// because only operations with handles have status slots.
    #[inline]
    fn submit_plain(&self, operation: &Operation, doorbell: Doorbell) -> Result<(), PostError> {
        if let Some(slot) = operation.status {
            return Err(PostError::Status(slot));
        }
        let implied = implied_immediate(&operation.request, operation.flags.notify);
        if implied.is_some() && operation.immediate.is_none() {
            return self.submit(&Operation { immediate: implied, ..*operation }, doorbell);
        }
        self.submit(operation, doorbell)
    }

    #[inline]
    fn submit(&self, operation: &Operation, doorbell: Doorbell) -> Result<(), PostError> {
        self.submit_bytes(operation, None, doorbell)
    }

    #[inline]
    fn submit_bytes(
        &self,
        operation: &Operation,
        list: Option<PieceList<'_>>,
        doorbell: Doorbell,
    ) -> Result<(), PostError> {
        self.check_open()?;
        match list {
            None => self.post_posting(operation, doorbell),
            Some(list) => self.post_list(operation, list, doorbell),
        }
    }

    /// Posts a receive with a list of pieces.
    pub(crate) fn submit_receive_list(
        &self,
        list: PieceList<'_>,
        context: u64,
    ) -> Result<(), PostError> {
        let receive = Receive { region: RegionId::NONE, offset: 0, length: list.length(), context };
        self.post_list(receive, list, Doorbell::Ring)
    }

    fn post_list(
        &self,
        posting: impl Into<Posting>,
        list: PieceList<'_>,
        doorbell: Doorbell,
    ) -> Result<(), PostError> {
        let ConnectionInner { endpoint, handle, queue, .. } = &*self.inner;
        let result = endpoint.runtime.post_list(*handle, queue, posting, list, doorbell);
        result.map_err(|error| self.explain(error.into()))
    }

    /// Checks that the connection has not ended.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), PostError> {
        if self.inner.fate.has_ended() {
            return Err(self.explain(semantics::PostError::NotConnected.into()));
        }
        Ok(())
    }

    //= protocol.md: patch.8
    /// Checks that both ends offer patches and swaps. The engine checks it, too, but a posting that
    /// is handed over to another thread returns before that check.
    pub(crate) fn check_patches(&self) -> Result<(), PostError> {
        let ConnectionInner { endpoint, handle, has_patches, .. } = &*self.inner;
        let has_patches = if let Some(known) = has_patches.get() {
            *known
        } else {
            let handle = *handle;
            let info = endpoint.runtime.control(move |engine, _memory, _now| engine.info(handle));
            // A connection that has ended gets its own error when the operation is posted.
            let info = info.map_err(SubmitError::from)?;
            let Some(info) = info.filter(|info| info.established) else { return Ok(()) };
            *has_patches.get_or_init(|| info.patches)
        };
        let refused = || semantics::PostError::PatchesRefused.into();
        has_patches.then_some(()).ok_or_else(refused)
    }

    #[inline]
    pub(crate) fn post_posting(
        &self,
        posting: impl Into<Posting>,
        doorbell: Doorbell,
    ) -> Result<(), PostError> {
        let ConnectionInner { endpoint, handle, queue, .. } = &*self.inner;
        let result = endpoint.runtime.post(*handle, queue, posting, doorbell);
        result.map_err(|error| self.explain(error.into()))
    }

    /// Returns the error to report. If `error` says that the connection is not established, returns
    /// the reason why the connection has ended instead.
    #[cold]
    fn explain(&self, error: PostError) -> PostError {
        let is_unconnected = error == semantics::PostError::NotConnected.into();
        match self.inner.fate.closed() {
            Some(reason) if is_unconnected => PostError::Closed(reason),
            _ => error,
        }
    }
}

impl ConnectionInner {
    fn close(&self, private_data: Vec<u8>) -> Result<(), Forked> {
        let handle = self.handle;
        self.endpoint.runtime.control(move |engine, _memory, now| {
            // Ignore the error: the connection may have ended already.
            let _unknown = engine.close(now, handle, &private_data);
        })
    }
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        // Do nothing in a forked child. The connection belongs to the parent. If a thread of the
        // parent held a lock at the fork, the lock is never released in the child.
        if self.endpoint.runtime.check_process().is_err() {
            return;
        }
        self.orphans.release(self.endpoint.runtime.status());
        if self.fate.closed().is_none() {
            let _forked = self.close(Vec::new());
        }
    }
}

/// Creates a message of up to 64 bytes. [`Connection::call`] posts this message together with a
/// receive.
pub(crate) fn question(bytes: &[u8], options: OperationOptions) -> Result<Operation, PostError> {
    operation(Request::Send { source: inline(bytes)? }, bytes.len() as u64, options)
}

/// Creates a message from a region. [`Connection::call_from`] posts this message together with a
/// receive.
pub(crate) fn question_from(
    local: &MemoryRegion,
    offset: u64,
    length: u64,
    options: OperationOptions,
) -> Result<Operation, PostError> {
    let source = Source::Region { region: local.region().id, offset };
    operation(Request::Send { source }, length, options)
}

/// Makes an operation without a status slot.
fn operation(
    request: Request,
    length: u64,
    options: OperationOptions,
) -> Result<Operation, PostError> {
    if length > u64::from(OPERATION_BYTES_MAX) {
        return Err(PostError::TooLong(length));
    }
    Ok(Operation {
        request,
        length: length as u32,
        flags: options.flags(),
        immediate: options.immediate.or(implied_immediate(&request, options.notify)),
        context: options.context,
        status: None,
    })
}

/// Returns the immediate of a write or patch that notifies the peer but has no immediate of its
/// own: 0. The write needs this immediate, because each notification carries one. Returns `None`
/// for other operations.
#[inline]
fn implied_immediate(request: &Request, notify: bool) -> Option<u32> {
    let is_write = matches!(request, Request::Write { .. } | Request::Patch { .. });
    (notify && is_write).then_some(0)
}

pub(crate) fn inline(bytes: &[u8]) -> Result<Source, PostError> {
    let mut kept = [0; INLINE_BYTES_MAX];
    let place = kept.get_mut(..bytes.len()).ok_or(PostError::InlineTooLong(bytes.len()))?;
    place.copy_from_slice(bytes);
    Ok(Source::Inline(kept))
}

/// Length of the word of an atomic operation, in bytes.
pub(crate) const WORD_BYTES: u64 = 8;
