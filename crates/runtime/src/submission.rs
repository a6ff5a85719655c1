//! Operations handed to the thread inside the engine.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use engine::{ConnectionHandle, Engine};
use mem::MemoryAccess;
use semantics::{
    Completion, CompletionKind, CompletionQueue, Operation, OperationError, PostError, Receive,
    Request, StatusTable,
};

use crate::counters::RuntimeCounters;

/// Something to post, on its way to the engine.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) connection: ConnectionHandle,
    /// Learns of a refusal that the poster cannot be told any more.
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) posting: Posting,
}

/// What is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Posting {
    Operation(Operation),
    Receive(Receive),
}

impl Posting {
    /// Posts to the engine, now.
    #[inline]
    pub(crate) fn apply(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        connection: ConnectionHandle,
    ) -> Result<(), PostError> {
        match self {
            Self::Operation(operation) => {
                engine.post(memory, connection, operation).map(|_number| ())
            }
            Self::Receive(receive) => engine.post_receive(memory, connection, *receive),
        }
    }
}

/// Submissions that found no room in the engine and keep their place in line.
///
/// Bounded: while it is full nothing more is taken from the ring, and posters are told when the
/// ring is full too.
#[derive(Debug)]
pub(crate) struct HeldBack {
    waiting: VecDeque<Submission>,
    /// Those that still wait after the pass in progress; empty otherwise.
    remaining: VecDeque<Submission>,
}

/// Submissions held back at a time. Each is compared with those before it whenever it is tried
/// again: 64² / 2 comparisons are 2 µs.
const HELD_BACK_MAX: usize = 64;

impl HeldBack {
    /// Holds nothing.
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(HELD_BACK_MAX),
            remaining: VecDeque::with_capacity(HELD_BACK_MAX),
        }
    }

    /// Whether something of `connection` waits, which whatever is posted next must not overtake.
    #[inline]
    pub(crate) fn concerns(&self, connection: ConnectionHandle) -> bool {
        self.waiting.iter().any(|waiting| waiting.connection == connection)
    }

    /// Whether nothing waits, here or in the ring.
    #[inline]
    pub(crate) fn is_idle(&self, ring: &ArrayQueue<Submission>) -> bool {
        self.waiting.is_empty() && ring.is_empty()
    }

    /// Passes what waits, and then what is in the ring, on to the engine, in the order of each
    /// connection. Returns whether anything was passed on.
    #[inline]
    pub(crate) fn drain(
        &mut self,
        ring: &ArrayQueue<Submission>,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        status: &StatusTable,
        counters: &mut RuntimeCounters,
    ) -> bool {
        let mut progress = false;
        // At most one filling of the ring: threads that keep posting must not keep this one here.
        for _ in 0..self.waiting.len() + ring.capacity() {
            let next = match self.waiting.pop_front() {
                Some(submission) => Some(submission),
                None if self.remaining.len() < HELD_BACK_MAX => ring.pop(),
                None => None,
            };
            let Some(submission) = next else { break };
            let connection = submission.connection;
            let is_behind = self.remaining.iter().any(|waiting| waiting.connection == connection);
            let result = if is_behind {
                Err(PostError::CompletionQueueFull)
            } else {
                submission.posting.apply(engine, memory, connection)
            };
            match result {
                Ok(()) => progress = true,
                Err(error) if is_temporary(error) => {
                    counters.held_back += u64::from(!is_behind);
                    self.remaining.push_back(submission);
                }
                Err(error) => {
                    counters.refused_late += 1;
                    refuse(&submission, error, status);
                    progress = true;
                }
            }
        }
        core::mem::swap(&mut self.waiting, &mut self.remaining);
        progress
    }
}

/// Whether the same posting succeeds later, when others are complete.
const fn is_temporary(error: PostError) -> bool {
    matches!(
        error,
        PostError::CompletionQueueFull
            | PostError::NoOperationLeft(_)
            | PostError::ReceiveQueueFull(_)
    )
}

/// Completes what could not be posted as failed.
#[cold]
fn refuse(submission: &Submission, error: PostError, status: &StatusTable) {
    let error = match error {
        PostError::LocalAccess(_) => OperationError::LocalAccess,
        PostError::NotConnected => OperationError::Flushed,
        _ => OperationError::NotPosted,
    };
    let (context, kind, bytes) = match &submission.posting {
        Posting::Operation(operation) => {
            if let Some(slot) = operation.status {
                status.refuse(slot, error);
            }
            (operation.context, kind_of(&operation.request), operation.length)
        }
        Posting::Receive(receive) => (receive.context, CompletionKind::Receive, 0),
    };
    let completion = Completion {
        context,
        connection: submission.connection.index(),
        kind,
        result: Err(error),
        bytes,
        immediate: None,
        value: 0,
    };
    // Without room the application has stopped polling; a handle still tells it.
    submission.queue.offer(completion);
}

const fn kind_of(request: &Request) -> CompletionKind {
    match request {
        Request::Write { .. } => CompletionKind::Write,
        Request::Read { .. } => CompletionKind::Read,
        Request::FetchAdd { .. } => CompletionKind::FetchAdd,
        Request::CompareSwap { .. } => CompletionKind::CompareSwap,
        Request::Send { .. } => CompletionKind::Send,
    }
}
