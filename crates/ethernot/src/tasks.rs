//! Futures that any executor can run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use runtime::{ChangedBy, Enlisted, Forked, Interest, Runtime, SpinBudget};
use semantics::CompletionQueue;

use crate::endpoint::EndpointInner;
use crate::news::{Subscriber, Topic};

/// Returns the result of `ended`, which checks the operation in a slot of the status table. If
/// `ended` returns `None`, registers the calling task, so that the end of the operation wakes it.
#[inline]
pub(crate) fn poll_slot<R>(
    runtime: &Runtime,
    context: &Context<'_>,
    spin_budget: &mut SpinBudget,
    slot: u32,
    ended: impl FnMut() -> Option<R>,
) -> Poll<Result<R, Forked>> {
    runtime.poll_wait(context, spin_budget, ended, |waker| {
        // Ignore the result, because the runtime checks the slot again after this call.
        let _waits = runtime.status().watch(slot, waker);
    })
}

/// A future that waits until `look` returns a result. The future calls `look` after each event of
/// `topic`.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct UntilNews<'a, L> {
    endpoint: &'a EndpointInner,
    topic: Topic,
    look: L,
    spin_budget: SpinBudget,
    subscriber: Option<Subscriber>,
}

impl<'a, L> UntilNews<'a, L> {
    pub(crate) fn new(endpoint: &'a EndpointInner, topic: Topic, look: L) -> Self {
        Self { endpoint, topic, look, spin_budget: SpinBudget::default(), subscriber: None }
    }
}

impl<R, L: FnMut() -> Option<R> + Unpin> Future for UntilNews<'_, L> {
    type Output = Result<R, Forked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { endpoint, topic, look, spin_budget, subscriber } = self.get_mut();
        endpoint.runtime.poll_wait(context, spin_budget, look, |waker| {
            *subscriber = Some(endpoint.news.subscribe(*topic, waker));
        })
    }
}

/// A future that waits until `look` returns a result. The future calls `look` after each completion
/// in `queue`, and after each other event of which the runtime notifies the application.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct UntilCompletion<'a, L> {
    endpoint: &'a EndpointInner,
    queue: &'a Arc<CompletionQueue>,
    look: L,
    spin_budget: SpinBudget,
    enlisted: Option<Enlisted>,
}

impl<'a, L> UntilCompletion<'a, L> {
    pub(crate) fn new(
        endpoint: &'a EndpointInner,
        queue: &'a Arc<CompletionQueue>,
        look: L,
    ) -> Self {
        Self { endpoint, queue, look, spin_budget: SpinBudget::default(), enlisted: None }
    }
}

impl<R, L: FnMut() -> Option<R> + Unpin> Future for UntilCompletion<'_, L> {
    type Output = Result<R, Forked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { endpoint, queue, look, spin_budget, enlisted } = self.get_mut();
        let runtime = &endpoint.runtime;
        runtime.poll_wait(context, spin_budget, look, |waker| {
            *enlisted = Some(runtime.enlist_task(waker, Interest::Completion(queue)));
        })
    }
}

/// A future that waits until `look` returns a result. The future calls `look` after each event of
/// which the runtime notifies the application. It also calls `look` at intervals, because the
/// runtime does not announce the change that `look` checks.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct UntilLook<'a, L> {
    runtime: &'a Runtime,
    changed_by: ChangedBy,
    look: L,
    spin_budget: SpinBudget,
    enlisted: Option<Enlisted>,
}

impl<'a, L> UntilLook<'a, L> {
    pub(crate) fn new(runtime: &'a Runtime, changed_by: ChangedBy, look: L) -> Self {
        Self { runtime, changed_by, look, spin_budget: SpinBudget::default(), enlisted: None }
    }
}

impl<R, L: FnMut() -> Option<R> + Unpin> Future for UntilLook<'_, L> {
    type Output = Result<R, Forked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { runtime, changed_by, look, spin_budget, enlisted } = self.get_mut();
        runtime.poll_wait(context, spin_budget, look, |waker| {
            *enlisted = Some(runtime.enlist_looker(waker, *changed_by));
        })
    }
}
