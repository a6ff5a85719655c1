//! Completion channels: where programs wait for completions.

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
    /// Whatever the surface keeps with it.
    pub user: AtomicUsize,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        context.provider().check()?;
        context.uses().begin_of("device context")?;
        let events = EventQueue::new().inspect_err(|_| context.uses().end())?;
        let (context, uses) = (Arc::clone(context), Uses::default());
        Ok(Arc::new(Self { context, uses, events, user: AtomicUsize::new(0) }))
    }

    /// Returns the context to which it belongs.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) const fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns the descriptor, which is readable while there is an event. Only the calls here may read from it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Takes the oldest event and returns its queue; the event is [to be
    /// acknowledged](CompletionQueue::acknowledge_events). Waits for one unless the descriptor is not to block.
    ///
    /// # Errors
    /// [`Error::Again`] if there is none and it is not to block, [`Error::System`] if a signal came.
    pub fn get(&self) -> Result<Arc<CompletionQueue>, Error> {
        let provider = self.context.provider();
        provider.check()?;
        self.events.get(on_taken, |ready| {
            self.report_left();
            provider.wait(ready);
        })
    }

    /// Raises events for armed queues with completions that the program has not polled, because it is about to sleep in the
    /// call. An event has reported these completions before, so arming raised none.
    fn report_left(&self) {
        for queue in self.context.provider().registry().completion_queues() {
            let is_here =
                queue.channel().is_some_and(|channel| std::ptr::eq(Arc::as_ptr(channel), self));
            if is_here && queue.take_left() {
                queue.fire();
            }
        }
    }

    /// Takes an event as [`CompletionChannel::get`] does, but never waits.
    ///
    /// # Errors
    /// [`Error::NoDevice`] in a forked child.
    pub fn take(&self) -> Result<Option<Arc<CompletionQueue>>, Error> {
        self.context.provider().check()?;
        Ok(self.events.take(on_taken))
    }

    /// A queue was armed, and has got what it was armed for.
    pub(crate) fn fire(&self, queue: &Arc<CompletionQueue>) {
        self.events.push(Arc::clone(queue));
        self.context.provider().wake();
    }

    /// Forgets the events of a queue that is destroyed.
    pub(crate) fn forget(&self, queue: &CompletionQueue) {
        self.events.retain(|event| !std::ptr::eq(Arc::as_ptr(event), queue));
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// [`Error::Busy`] while queues use it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.provider().check()?;
        self.uses.destroy("completion channel")?;
        self.context.uses().end();
        Ok(())
    }
}

/// An event of a queue is with the program.
fn on_taken(queue: &Arc<CompletionQueue>) {
    queue.completion_events().on_taken();
}
