//! Hands over operations: if another thread is inside the engine, a thread puts its operation into
//! a ring, and the thread inside posts it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, RegionId, Rights};
use semantics::{
    Completion, CompletionKind, CompletionQueue, Operation, OperationError, PieceList, PostError,
    Receive, Request, Source, StatusTable, StoredPieces,
};

use crate::counters::RuntimeCounters;

/// An operation or receive that a thread has handed over and that is not posted yet.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) connection: ConnectionHandle,
    /// Completion queue that reports an error if the engine refuses the posting. The call that
    /// handed over the posting cannot report the error, because it has already returned.
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) posting: Posting,
    /// Pieces of memory with the bytes of the posting; `None` if the request itself names the
    /// memory.
    pub(crate) list: Option<Box<StoredPieces>>,
}

/// An operation, a receive, or both together, in the form that the engine takes.
#[derive(Clone, Copy, Debug)]
pub enum Posting {
    /// An operation for the peer.
    Operation(Operation),
    /// A buffer for a message.
    Receive(Receive),
    /// A buffer for a message. When a message has arrived in the buffer, a slot of the status table
    /// reports this, and no completion does.
    Followed {
        /// The buffer.
        receive: Receive,
        /// The slot.
        status: u32,
    },
    /// A request together with the buffer for its answer. The engine posts both together, or
    /// refuses both. If several threads send requests, each answer therefore arrives in the buffer
    /// that belongs to its request. A slot of the status table reports the arrival of the answer,
    /// like for [`Posting::Followed`].
    Call {
        /// The buffer.
        receive: Receive,
        /// The slot that reports the arrival of the answer.
        status: u32,
        /// The request.
        operation: Operation,
    },
}

impl From<&Operation> for Posting {
    #[inline]
    fn from(operation: &Operation) -> Self {
        Self::Operation(*operation)
    }
}

impl From<Receive> for Posting {
    #[inline]
    fn from(receive: Receive) -> Self {
        Self::Receive(receive)
    }
}

impl Posting {
    const fn class(&self) -> Class {
        match self {
            Self::Operation(_) => Class::Operation,
            Self::Receive(_) | Self::Followed { .. } => Class::Receive,
            Self::Call { .. } => Class::Both,
        }
    }

    /// Posts to the engine at once. If there is a list, the bytes are in the pieces of the list.
    #[inline]
    pub(crate) fn apply(
        &self,
        list: Option<PieceList<'_>>,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        connection: ConnectionHandle,
    ) -> Result<(), PostError> {
        match (self, list) {
            (Self::Operation(operation), None) => {
                engine.post(memory, connection, operation).map(|_number| ())
            }
            (Self::Operation(operation), Some(list)) => {
                engine.post_list(memory, connection, operation, list).map(|_number| ())
            }
            (Self::Receive(receive), None) => engine.post_receive(memory, connection, *receive),
            (Self::Receive(receive), Some(list)) => {
                engine.post_receive_list(memory, connection, list, receive.context)
            }
            // These postings never have a list.
            (&Self::Followed { receive, status }, _) => {
                engine.post_followed_receive(memory, connection, receive, status)
            }
            (Self::Call { receive, status, operation }, _) => {
                engine.check_followed_receive(memory, connection, *receive)?;
                engine.post(memory, connection, operation)?;
                let posted = engine.post_followed_receive(memory, connection, *receive, *status);
                assert!(posted.is_ok(), "there was room for the receive a moment ago");
                Ok(())
            }
        }
    }

    /// Calls `visit` with each region that the posting names.
    fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        let (receive, operation) = match self {
            Self::Operation(operation) => (None, Some(operation)),
            Self::Receive(receive) | Self::Followed { receive, .. } => (Some(receive), None),
            Self::Call { receive, operation, .. } => (Some(receive), Some(operation)),
        };
        let region = operation.and_then(|operation| region_of(&operation.request));
        receive.map(|receive| receive.region).into_iter().chain(region).for_each(visit);
    }

    /// Checks the posting as far as this is possible outside the engine.
    pub(crate) fn check(
        &self,
        list: Option<PieceList<'_>>,
        memory: &MemoryAccess<'_>,
    ) -> Result<(), PostError> {
        let check_sink = |region, offset, length: u32| {
            let sink = memory.resolve_local(region, offset, length.into(), Rights::LOCAL_WRITE);
            sink.map(|_| ()).map_err(PostError::LocalAccess)
        };
        let check_receive =
            |receive: &Receive| check_sink(receive.region, receive.offset, receive.length);
        match (self, list) {
            (Self::Operation(operation), None) => operation.check(memory),
            (Self::Operation(operation), Some(list)) => operation.check_list(memory, list),
            (Self::Receive(_), Some(list)) => {
                let mut pieces = list.cut(0, list.length());
                pieces.try_for_each(|it| check_sink(it.region, it.offset, it.length))
            }
            (Self::Receive(receive), None) | (Self::Followed { receive, .. }, _) => {
                check_receive(receive)
            }
            (Self::Call { receive, operation, .. }, _) => {
                check_receive(receive)?;
                operation.check(memory)
            }
        }
    }
}

/// Queue of submissions from threads outside the engine to the thread inside.
#[derive(Debug)]
pub(crate) struct Submissions {
    ring: ArrayQueue<Submission>,
    /// Number of submissions in the ring and of submissions held back.
    in_line: AtomicUsize,
    /// Memory of piece lists whose submissions have been posted, for reuse. If there is none,
    /// handing over a list allocates memory. There are at most as many spare lists as places for
    /// submissions.
    spare_lists: ArrayQueue<Box<StoredPieces>>,
}

impl Submissions {
    /// Creates a queue with `capacity` places, at least 1. Submissions that are held back take
    /// places, too.
    pub(crate) fn new(capacity: u32) -> Self {
        let (ring, spare_lists) =
            (ArrayQueue::new(capacity as usize), ArrayQueue::new(capacity as usize));
        Self { ring, in_line: AtomicUsize::new(0), spare_lists }
    }

    /// Copies a list of pieces into memory that can be handed over.
    pub(crate) fn store(&self, list: PieceList<'_>) -> Box<StoredPieces> {
        let mut kept = self.spare_lists.pop().unwrap_or_else(|| Box::new(StoredPieces::EMPTY));
        kept.store(list);
        kept
    }

    /// Keeps the memory of a list for reuse.
    fn give_back(&self, list: Option<Box<StoredPieces>>) {
        if let Some(list) = list {
            // If there is no room, this drops the list and so frees its memory. This rarely
            // happens. There must be more lists at one time than places for submissions, because
            // `push` has just refused the submissions of many threads.
            let _full = self.spare_lists.push(list);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Hands over a submission. Returns false if no place is free.
    pub(crate) fn push(&self, submission: Submission) -> bool {
        let has_room = self.in_line.fetch_add(1, Ordering::Relaxed) < self.capacity();
        let refused = if has_room { self.ring.push(submission).err() } else { Some(submission) };
        let is_pushed = refused.is_none();
        if let Some(submission) = refused {
            self.in_line.fetch_sub(1, Ordering::Relaxed);
            self.give_back(submission.list);
        }
        is_pushed
    }
}

/// Submissions for which the engine had no room, in the order in which they were handed over.
///
/// Operations of a connection wait only for its earlier operations, and receives only for its
/// earlier receives. The engine has room for operations again when operations complete and when the
/// application polls the connection's queue. It has room for receives again when messages arrive.
/// The peer may send these messages only after it has performed one of the waiting operations, so
/// receives must not hold back operations.
#[derive(Debug)]
pub(crate) struct HeldBack {
    /// Has room for as many submissions as the ring [`Submissions`], so that [`HeldBack::drain`]
    /// always empties the ring. After that, the thread inside the engine can post directly, without
    /// overtaking a submission. No posting waits for a posting of another connection.
    waiting: VecDeque<Submission>,
    /// Connection, class and reason of each submission for which there was no room at the last
    /// attempt.
    blocked: Vec<(ConnectionHandle, Class, PostError)>,
    /// Connections to close, because one of their operations uses local memory that is not
    /// registered any more.
    without_memory: Vec<ConnectionHandle>,
}

/// Classes of postings: within a connection, postings of one class keep their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Operation,
    Receive,
    Both,
}

impl Class {
    /// Returns whether a posting of this class may not overtake a posting of class `other`.
    fn follows(self, other: Self) -> bool {
        self == other || self == Self::Both || other == Self::Both
    }
}

impl HeldBack {
    /// Creates an empty list with room for `capacity` submissions.
    pub(crate) fn new(capacity: usize) -> Self {
        let (waiting, blocked) = (VecDeque::with_capacity(capacity), Vec::with_capacity(capacity));
        Self { waiting, blocked, without_memory: Vec::new() }
    }

    /// Returns a connection that must be closed, because the engine refused one of its operations:
    /// the local memory of the operation could no longer be accessed. The caller must call this
    /// until it returns `None`.
    #[inline]
    pub(crate) fn take_without_memory(&mut self) -> Option<ConnectionHandle> {
        self.without_memory.pop()
    }

    /// Returns the reason for which an earlier posting waits, if `posting` must not overtake that
    /// posting. Returns `None` if no such posting waits. The result is valid right after
    /// [`HeldBack::drain`], or if no submission waits.
    #[inline]
    pub(crate) fn reason_to_wait(
        &self,
        connection: ConnectionHandle,
        posting: &Posting,
    ) -> Option<PostError> {
        if self.waiting.is_empty() { None } else { self.obstacle(connection, posting.class()) }
    }

    /// Searches the waiting submissions for one that a posting of this class must not overtake.
    /// Returns the reason for which that submission waits, or `None` if there is no such
    /// submission.
    fn obstacle(&self, connection: ConnectionHandle, class: Class) -> Option<PostError> {
        let mut blocked = self.blocked.iter();
        blocked.find(|it| it.0 == connection && class.follows(it.1)).map(|it| it.2)
    }

    /// Calls `visit` with each region that the held-back submissions name.
    pub(crate) fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        for submission in &self.waiting {
            submission.posting.visit_regions(visit);
            let list = submission.list.as_ref().map(|kept| kept.list());
            list.iter().flat_map(PieceList::pieces).for_each(|piece| visit(piece.region));
        }
    }

    /// Returns whether no submission is held back and none is in the ring.
    #[inline]
    pub(crate) fn is_idle(&self, submissions: &Submissions) -> bool {
        self.waiting.is_empty() && submissions.ring.is_empty()
    }

    /// Posts the submissions that are held back, then those in the ring. Returns whether any
    /// submission left the queue.
    #[inline]
    pub(crate) fn drain(
        &mut self,
        submissions: &Submissions,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        status: &StatusTable,
        counters: &mut RuntimeCounters,
    ) -> bool {
        self.blocked.clear();
        let mut left = 0;
        let mut waiting = core::mem::take(&mut self.waiting);
        waiting.retain_mut(|submission| {
            let waits = !self.pass_on(submission, engine, memory, status, counters);
            if !waits {
                left += 1;
                submissions.give_back(submission.list.take());
            }
            waits
        });
        // Take at most one full ring. Without this limit, threads that keep posting could keep this
        // thread inside the engine.
        for _ in 0..submissions.capacity() {
            let Some(submission) = submissions.ring.pop() else { break };
            if self.pass_on(&submission, engine, memory, status, counters) {
                left += 1;
                submissions.give_back(submission.list);
            } else {
                counters.held_back += 1;
                waiting.push_back(submission);
            }
        }
        self.waiting = waiting;
        submissions.in_line.fetch_sub(left, Ordering::Relaxed);
        left > 0
    }

    /// Posts a submission, or completes it with an error. Returns false if the submission must
    /// wait.
    fn pass_on(
        &mut self,
        submission: &Submission,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        status: &StatusTable,
        counters: &mut RuntimeCounters,
    ) -> bool {
        let (connection, class) = (submission.connection, submission.posting.class());
        if let Some(error) = self.obstacle(connection, class) {
            // Record this submission as blocked, too. No later submission may overtake a waiting
            // submission of class `Both`.
            if class == Class::Both {
                self.blocked.push((connection, class, error));
            }
            return false;
        }
        let list = submission.list.as_ref().map(|kept| kept.list());
        match submission.posting.apply(list, engine, memory, connection) {
            Ok(()) => true,
            Err(error) if is_temporary(error) => {
                self.blocked.push((connection, class, error));
                false
            }
            Err(error) => {
                counters.refused_late += 1;
                fail(submission, error, status);
                let is_operation =
                    matches!(submission.posting, Posting::Operation(_) | Posting::Call { .. });
                if is_operation && matches!(error, PostError::LocalAccess(_)) {
                    self.without_memory.push(connection);
                }
                true
            }
        }
    }
}

/// Returns the local region that a request names.
const fn region_of(request: &Request) -> Option<RegionId> {
    match *request {
        Request::Write { source: Source::Region { region, .. }, .. }
        | Request::Patch { source: Source::Region { region, .. }, .. }
        | Request::Send { source: Source::Region { region, .. } }
        | Request::SendInvalidate { source: Source::Region { region, .. }, .. } => Some(region),
        Request::Read { sink, .. } => Some(sink),
        Request::FetchAdd { sink: Some(sink), .. }
        | Request::CompareSwap { sink: Some(sink), .. }
        | Request::Swap { sink: Some(sink), .. } => Some(sink.region),
        Request::Write { .. }
        | Request::Patch { .. }
        | Request::Send { .. }
        | Request::SendInvalidate { .. }
        | Request::FetchAdd { .. }
        | Request::CompareSwap { .. }
        | Request::Swap { .. }
        | Request::BindWindow { .. }
        | Request::Invalidate { .. } => None,
    }
}

/// Returns whether the same posting can succeed later, when other operations of the connection are
/// complete.
const fn is_temporary(error: PostError) -> bool {
    matches!(
        error,
        PostError::CompletionQueueFull(_)
            | PostError::NoOperationLeft(_)
            | PostError::ReceiveQueueFull(_)
            | PostError::NoListLeft(_)
    )
}

/// Reports an error for a submission that could not be posted.
#[cold]
fn fail(submission: &Submission, error: PostError, status: &StatusTable) {
    let error = match error {
        PostError::LocalAccess(_) => OperationError::LocalAccess,
        PostError::NotConnected => OperationError::NotConnected,
        _ => OperationError::NotPosted,
    };
    let (context, kind, bytes) = match &submission.posting {
        Posting::Operation(operation) => {
            if let Some(slot) = operation.status {
                status.fail(slot, error);
            }
            let length = submission.list.as_ref().map(|kept| kept.list().length());
            let length = length.unwrap_or(operation.length);
            (operation.context, operation.request.completion_kind(), length)
        }
        Posting::Receive(receive) => (receive.context, CompletionKind::Receive, 0),
        // Only the slot reports a receive with a slot; no completion reports it.
        Posting::Followed { status: slot, .. } => return status.fail(*slot, error),
        Posting::Call { status: slot, operation, .. } => {
            if let Some(slot) = operation.status {
                status.fail(slot, error);
            }
            return status.fail(*slot, error);
        }
    };
    let completion = Completion {
        context,
        owner: submission.connection.owner(),
        kind,
        result: Err(error),
        bytes,
        immediate: None,
        solicited: false,
        value: 0,
    };
    // If the application has stopped polling, the queue may have no room, and the completion is
    // lost. A handle still shows the error.
    let _ = submission.queue.offer(&completion);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use semantics::Piece;

    use super::*;

    #[test]
    fn memory_of_a_submitted_list_is_reused_for_the_next() {
        let submissions = Submissions::new(4);
        let pieces = [Piece { length: 5, ..Piece::NOTHING }];
        let [one, none] = [&pieces[..], &[]].map(|it| PieceList::new(it).expect("a list"));
        let first = submissions.store(one);
        assert_eq!(first.list(), one);
        let address = std::ptr::from_ref(&*first);
        submissions.give_back(Some(first));
        let second = submissions.store(none);
        assert!(std::ptr::eq(address, &raw const *second), "it was allocated again");
        assert_eq!(second.list(), none);
    }
}
