//! Passes completions of one half of a connection to their queue.

use std::sync::Arc;

use crate::pools::Notices;
use work::{Completion, CompletionQueue, PostError, Push};

/// A completion queue. If `promises` is true, posting work reserves room in the queue.
#[derive(Debug)]
pub(crate) struct Outlet {
    queue: Arc<CompletionQueue>,
    promises: bool,
    /// Whether a completion was lost because the queue was full and no room was reserved.
    is_overrun: bool,
}

impl Outlet {
    pub(crate) const fn new(queue: Arc<CompletionQueue>, promises: bool) -> Self {
        Self { queue, promises, is_overrun: false }
    }

    pub(crate) const fn promises(&self) -> bool {
        self.promises
    }

    pub(crate) const fn is_overrun(&self) -> bool {
        self.is_overrun
    }

    /// Reserves room for a completion. Has no effect if this outlet reserves no room.
    #[inline]
    pub(crate) fn promise(&self) -> Result<(), PostError> {
        if !self.promises || self.queue.promise() {
            return Ok(());
        }
        Err(PostError::CompletionQueueFull(self.queue.capacity()))
    }

    /// Releases the room that [`Outlet::promise`] reserved.
    #[inline]
    pub(crate) fn withdraw(&self) {
        if self.promises {
            self.queue.withdraw();
        }
    }

    /// Pushes a completion. The caller has reserved room with [`Outlet::promise`].
    #[inline]
    pub(crate) fn complete(&mut self, to: &mut Notices, found: &Completion) {
        let pushed =
            if self.promises { self.queue.keep_promise(found) } else { self.queue.push(found) };
        self.note(to, pushed);
    }

    /// Pushes a completion for which no room is reserved. Returns false if the completion must wait
    /// for room.
    #[inline]
    pub(crate) fn offer(&mut self, to: &mut Notices, found: &Completion) -> bool {
        if self.promises {
            let pushed = self.queue.offer(found);
            self.note(to, pushed);
            return pushed != Push::NoRoom;
        }
        self.complete(to, found);
        true
    }

    #[inline]
    fn note(&mut self, to: &mut Notices, pushed: Push) {
        match pushed {
            Push::Added => to.count += 1,
            Push::Fired => {
                to.count += 1;
                to.fired.push(Arc::clone(&self.queue));
            }
            Push::NoRoom => self.on_no_room(to),
        }
    }

    /// Handles a completion that is lost because no room was reserved. Reports the queue as fired,
    /// so that other users of the queue also notice the loss.
    #[cold]
    fn on_no_room(&mut self, to: &mut Notices) {
        if !self.promises && !self.is_overrun {
            self.is_overrun = true;
            to.fired.push(Arc::clone(&self.queue));
        }
    }
}
