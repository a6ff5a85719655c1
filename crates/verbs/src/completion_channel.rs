//! Completion channels: programs wait for completion events on a channel.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::error::Error;
use crate::event_queue::EventQueue;
use crate::uses::Uses;

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    context: Arc<Context>,
    uses: Uses,
    events: EventQueue<Arc<CompletionQueue>>,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        context.provider().check()?;
        context.uses().begin_of("device context")?;
        let events = EventQueue::new().inspect_err(|_| context.uses().end())?;
        let (context, uses, user) = (Arc::clone(context), Uses::default(), AtomicUsize::new(0));
        Ok(Arc::new(Self { context, uses, events, user }))
    }

    /// Returns the context that the channel belongs to.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) const fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns the descriptor. The descriptor is readable if an event is queued. The caller must
    /// not read from it, because only this type may do so.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Dequeues the oldest event and returns its completion queue. Waits for an event unless the
    /// descriptor is non-blocking. The program must
    /// [acknowledge](CompletionQueue::acknowledge_events) the event.
    ///
    /// # Errors
    /// * Returns [`Error::Again`] if no event is queued and the descriptor is non-blocking.
    /// * Returns [`Error::System`] if a signal interrupts the wait.
    pub fn get(&self) -> Result<Arc<CompletionQueue>, Error> {
        let provider = self.context.provider();
        provider.check()?;
        self.events.get(on_taken, |ready| {
            self.report_left();
            self.context.waits().on_wait();
            provider.wait(ready);
        })
    }

    /// Raises an event for each armed queue of this channel that has unpolled completions, because
    /// the program is about to sleep. An earlier event has reported these completions, so arming
    /// the queue has not raised an event for them. Without a further event, the program would sleep
    /// although there are completions.
    fn report_left(&self) {
        for queue in self.context.provider().registry().completion_queues() {
            let is_here =
                queue.channel().is_some_and(|channel| std::ptr::eq(Arc::as_ptr(channel), self));
            if is_here && queue.take_left() {
                queue.fire();
            }
        }
    }

    /// Dequeues the oldest event like [`CompletionChannel::get`], but never waits. Returns `None`
    /// if no event is queued.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn take(&self) -> Result<Option<Arc<CompletionQueue>>, Error> {
        self.context.provider().check()?;
        Ok(self.events.take(on_taken))
    }

    /// Queues an event of a completion queue that was armed, and wakes waiting threads.
    pub(crate) fn fire(&self, queue: &Arc<CompletionQueue>) {
        self.events.push(Arc::clone(queue));
        self.context.provider().wake();
    }

    /// Drops the events of a queue that is being destroyed.
    pub(crate) fn forget(&self, queue: &CompletionQueue) {
        self.events.retain(|event| !std::ptr::eq(Arc::as_ptr(event), queue));
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if a completion queue uses the channel.
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.provider().check()?;
        self.uses.destroy("completion channel")?;
        self.context.uses().end();
        Ok(())
    }
}

/// Records that the program has read an event and must acknowledge it.
fn on_taken(queue: &Arc<CompletionQueue>) {
    queue.completion_events().on_taken();
}
