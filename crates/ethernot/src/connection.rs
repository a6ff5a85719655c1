//! Connections: operations on a peer's memory, and messages.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use delivery::LinkId;
use engine::{Closed, ConnectionHandle, ConnectionInfo};
use mem::RegionId;
use runtime::{Doorbell, Forked, Interest, Patience, Posting};
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
/// Dropped, with all handles of its operations, it is closed; operations that are not complete then
/// are given up. To be sure of them, wait for their handles, or for [`Endpoint::shutdown`].
#[derive(Debug)]
pub struct Connection {
    inner: Arc<ConnectionInner>,
    /// What the peer sent along with its request, on the side that accepted.
    request_data: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ConnectionInner {
    pub(crate) endpoint: Arc<EndpointInner>,
    handle: ConnectionHandle,
    queue: Arc<CompletionQueue>,
    fate: Arc<Fate>,
    pub(crate) orphans: Orphans,
}

/// Order and notification of one operation. The default is `MultiEdge`'s: free order, no
/// notification; only the handle reports its end.
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
    /// Performed only after all earlier operations of the connection (backward fence).
    pub fence_before: bool,
    /// All later operations are performed only after this one (forward fence).
    pub fence_after: bool,
    /// Free or strict order.
    pub order: Order,
    /// A completion is queued here when it succeeds. (When it fails, one is if the queue has room; the
    /// handle reports it in any case.) A place in the queue is kept for it until then.
    pub signalled: bool,
    /// The peer is notified of a write: a completion is queued there. It comes with `immediate`, or
    /// with 0. (Of a message the peer learns in any case.)
    pub notify: bool,
    /// A number for the peer, sent with a message, or with the notification of a write, which it implies.
    pub immediate: Option<u32>,
    /// Comes back in the completion.
    pub context: u64,
    /// It need not be sent before the next operation without this mark, the next poll or the next
    /// wait: so that many small ones leave together.
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
    /// The default.
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
    /// The peer is notified (`MultiEdge`'s notification).
    pub const NOTIFY: Self = Self { notify: true, ..Self::NONE };
    /// Strict order, as a reliable connection of verbs.
    pub const STRICT: Self = Self { order: Order::Strict, ..Self::NONE };
    /// A completion is queued here.
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
        let inner = ConnectionInner { endpoint, handle, queue, fate, orphans };
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

    /// Awaits that something is known of the connection.
    pub(crate) fn poll_settled(
        &self,
        context: &Context<'_>,
        patience: &mut Patience,
        subscriber: &mut Option<Subscriber>,
    ) -> Poll<Result<Stage, Forked>> {
        let ConnectionInner { endpoint, fate, handle, .. } = &*self.inner;
        endpoint.runtime.poll_wait(
            context,
            patience,
            || fate.settled(),
            |waker| {
                let topic = Topic::Connection(*handle);
                *subscriber = Some(endpoint.news.subscribe(topic, waker));
            },
        )
    }

    /// Copies `length` bytes of `local` from `local_offset` on to the peer's memory.
    ///
    /// The bytes must not change until the operation is complete.
    ///
    /// # Errors
    /// [`PostError`], one variant for each cause: nothing was posted then. Failures that come later are those of
    /// the handle.
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

    /// Writes up to 64 bytes, which are copied before the call returns.
    ///
    /// # Errors
    /// As for [`Connection::write`], and [`PostError::InlineTooLong`] for more than 64 bytes.
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

    /// Copies `length` bytes of the peer's memory to `local` (with the right of local writing), from
    /// `local_offset` on.
    ///
    /// # Errors
    /// As for [`Connection::write`].
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

    /// Adds to the 64-bit word of the peer's memory at `remote_offset`, modulo 2^64. The handle
    /// returns the value before.
    ///
    /// # Errors
    /// As for [`Connection::write`].
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

    /// Stores `swap` in the 64-bit word of the peer's memory at `remote_offset` if it holds
    /// `compare`. The handle returns the value before.
    ///
    /// # Errors
    /// As for [`Connection::write`].
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

    /// Sends a message into the receive that the peer has posted or will post.
    ///
    /// # Errors
    /// As for [`Connection::write`].
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

    /// Sends a message of up to 64 bytes, which are copied before the call returns.
    ///
    /// # Errors
    /// As for [`Connection::write`], and [`PostError::InlineTooLong`] for more than 64 bytes.
    pub fn send_bytes(
        &self,
        bytes: &[u8],
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let request = Request::Send { source: inline(bytes)? };
        self.start(request, bytes.len() as u64, options)
    }

    /// Posts a buffer for one message of at most `length` bytes. A completion with `context` reports
    /// that one has come.
    ///
    /// # Errors
    /// As for [`Connection::write`].
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

    /// Posts an operation without a handle, and thus without a status slot: for programs that poll
    /// completions. It is sent at once. Its fields mean what those of [`OperationOptions`] mean.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    #[inline]
    pub fn post(&self, operation: &Operation) -> Result<(), PostError> {
        self.submit_plain(operation, Doorbell::Ring)
    }

    /// Posts an operation without a handle. It need not be sent before the next one that is sent at
    /// once, the next poll or the next wait: so that many small ones leave together.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    #[inline]
    pub fn post_later(&self, operation: &Operation) -> Result<(), PostError> {
        self.submit_plain(operation, Doorbell::Later)
    }

    /// Takes the oldest completion of the connection's queue; makes progress if it is empty.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
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

    /// Takes the oldest completion as [`Connection::poll`] does, but waits for at most `limit` (`None`: until the
    /// connection ends).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], and [`WaitError::Closed`] if the connection has ended and its queue is empty.
    pub fn wait_completion(&self, limit: Option<Duration>) -> Result<Completion, WaitError> {
        let ConnectionInner { endpoint, queue, fate, .. } = &*self.inner;
        let found = endpoint.runtime.wait(Interest::Completion(queue), limit, || {
            // In this order: what a connection brings is there before it ends.
            let is_over = fate.is_over();
            let end =
                || fate.closed().filter(|_| is_over).map(|reason| Err(WaitError::Closed(reason)));
            queue.poll().map(Ok).or_else(end)
        })?;
        in_time(found, limit)?
    }

    /// Awaits a completion, as [`Connection::wait_completion`] waits for one. A future that is dropped takes none.
    ///
    /// # Errors
    /// [`WaitError::Closed`] if the connection has ended and its queue is empty.
    pub fn next_completion(
        &self,
    ) -> impl Future<Output = Result<Completion, WaitError>> + Send + '_ {
        let ConnectionInner { endpoint, queue, .. } = &*self.inner;
        let found = UntilCompletion::new(endpoint, queue, || self.look_for_completion());
        async move { found.await? }
    }

    /// A completion, or the end of the connection. In this order: what a connection brings is there before it ends.
    #[inline]
    fn look_for_completion(&self) -> Option<Result<Completion, WaitError>> {
        let ConnectionInner { queue, fate, .. } = &*self.inner;
        let is_over = fate.is_over();
        let end = || fate.closed().filter(|_| is_over).map(|reason| Err(WaitError::Closed(reason)));
        queue.poll().map(Ok).or_else(end)
    }

    /// Returns the queue to which its completions go.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.inner.queue
    }

    /// Returns the owner that the completions of this connection carry, and those of no other.
    pub fn owner(&self) -> Owner {
        self.inner.handle.owner()
    }

    /// Returns what the peer sent along with its request or its acceptance.
    pub fn peer_data(&self) -> Vec<u8> {
        match self.inner.fate.stage() {
            Stage::Established(private_data) if self.request_data.is_empty() => private_data,
            _ => self.request_data.clone(),
        }
    }

    /// Returns why the connection has ended, if it has.
    pub fn closed(&self) -> Option<Closed> {
        self.inner.fate.closed()
    }

    /// Waits until the connection has ended, for at most `limit` (`None`: for as long as it takes). Returns
    /// why, and what the peer sent along when it closed.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn wait_closed(&self, limit: Option<Duration>) -> Result<(Closed, Vec<u8>), WaitError> {
        let ConnectionInner { endpoint, fate, .. } = &*self.inner;
        let closed = endpoint.runtime.wait(Interest::News, limit, || fate.end())?;
        in_time(closed, limit)
    }

    /// Awaits the end of the connection, as [`Connection::wait_closed`] waits for it.
    ///
    /// # Errors
    /// As for [`Connection::wait_closed`].
    pub fn ended(&self) -> impl Future<Output = Result<(Closed, Vec<u8>), WaitError>> + Send + '_ {
        let ConnectionInner { endpoint, fate, handle, .. } = &*self.inner;
        let ended = UntilNews::new(endpoint, Topic::Connection(*handle), || fate.end());
        async move { Ok(ended.await?) }
    }

    /// Closes the connection and sends the peer `private_data` (at most 128 bytes, more is cut off).
    /// Operations and receives that are not complete fail as flushed.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn close(&self, private_data: &[u8]) -> Result<(), Forked> {
        self.inner.close(private_data.to_vec())
    }

    /// Returns what is known of the connection and its links, with all counters; `None` once it has ended.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn info(&self) -> Result<Option<ConnectionInfo>, Forked> {
        let handle = self.inner.handle;
        self.inner.endpoint.runtime.control(move |engine, _memory, _now| engine.info(handle))
    }

    /// Adds a link of this endpoint, on which the peer has the address `peer`. It carries
    /// data once the peer has answered there. Returns its index within the connection.
    ///
    /// # Errors
    /// [`LinkError`]: the link cannot be used, or the process is a forked child.
    pub fn add_link(&self, link: LinkId, peer: impl Into<PeerAddr>) -> Result<u8, LinkError> {
        let (handle, peer) = (self.inner.handle, peer.into());
        let runtime = &self.inner.endpoint.runtime;
        let added = runtime
            .control(move |engine, _memory, now| engine.add_path(now, handle, link, peer))?;
        added.map_err(|_unknown| LinkError::Refused)
    }

    /// Stops using a link; frames in flight on it are retransmitted over the others. The last link stays.
    ///
    /// # Errors
    /// [`LinkError`]: no such link, or the process is a forked child.
    pub fn remove_link(&self, index: u8) -> Result<(), LinkError> {
        let handle = self.inner.handle;
        let runtime = &self.inner.endpoint.runtime;
        let removed =
            runtime.control(move |engine, _memory, _now| engine.remove_path(handle, index))?;
        removed.map_err(|_unknown| LinkError::Refused)
    }

    /// Posts an operation with a handle.
    fn start(
        &self,
        request: Request,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        self.start_bytes(request, length, None, options)
    }

    /// As [`Connection::start`]; with a list, the bytes are in its pieces.
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

    /// Slots of the status table are given out with handles.
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

    /// Posts a receive of several pieces.
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

    /// Whether the connection is not over.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), PostError> {
        if self.inner.fate.is_over() {
            return Err(self.explain(semantics::PostError::NotConnected.into()));
        }
        Ok(())
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

    /// Says why there is no connection, where that is the reason.
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
            // It may be over already.
            let _unknown = engine.close(now, handle, &private_data);
        })
    }
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        // In a forked child it is not ours to close, and locks may be held by threads of the parent.
        if self.endpoint.runtime.check_process().is_err() {
            return;
        }
        self.orphans.release(self.endpoint.runtime.status());
        if self.fate.closed().is_none() {
            let _forked = self.close(Vec::new());
        }
    }
}

/// A message of up to 64 bytes, to be posted with a receive.
pub(crate) fn question(bytes: &[u8], options: OperationOptions) -> Result<Operation, PostError> {
    operation(Request::Send { source: inline(bytes)? }, bytes.len() as u64, options)
}

/// A message in a region, to be posted with a receive.
pub(crate) fn question_from(
    local: &MemoryRegion,
    offset: u64,
    length: u64,
    options: OperationOptions,
) -> Result<Operation, PostError> {
    let source = Source::Region { region: local.region().id, offset };
    operation(Request::Send { source }, length, options)
}

/// An operation that no slot follows.
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

/// The immediate of a write that notifies the peer and names none: the notification needs one.
#[inline]
fn implied_immediate(request: &Request, notify: bool) -> Option<u32> {
    (notify && matches!(request, Request::Write { .. })).then_some(0)
}

fn inline(bytes: &[u8]) -> Result<Source, PostError> {
    let mut kept = [0; INLINE_BYTES_MAX];
    let place = kept.get_mut(..bytes.len()).ok_or(PostError::InlineTooLong(bytes.len()))?;
    place.copy_from_slice(bytes);
    Ok(Source::Inline(kept))
}

/// What atomics work on.
const WORD_BYTES: u64 = 8;
