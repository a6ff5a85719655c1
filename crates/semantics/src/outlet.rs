//! Where one half of a connection puts its completions.

use std::sync::Arc;

use crate::pools::Notices;
use crate::{Completion, CompletionQueue, PostError, Push};

/// A completion queue, and whether places in it are promised when work is posted.
#[derive(Debug)]
pub(crate) struct Outlet {
    queue: Arc<CompletionQueue>,
    promises: bool,
    /// A completion was lost, as there was no room for it and none had been promised.
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

    /// Makes sure of a place for a completion, if this outlet does.
    #[inline]
    pub(crate) fn promise(&self) -> Result<(), PostError> {
        if !self.promises || self.queue.promise() {
            return Ok(());
        }
        Err(PostError::CompletionQueueFull(self.queue.capacity()))
    }

    /// Gives up a place that [`Outlet::promise`] made sure of.
    #[inline]
    pub(crate) fn withdraw(&self) {
        if self.promises {
            self.queue.withdraw();
        }
    }

    /// Puts a completion into the queue for which [`Outlet::promise`] was called.
    #[inline]
    pub(crate) fn complete(&mut self, to: &mut Notices, found: &Completion) {
        let pushed =
            if self.promises { self.queue.keep_promise(found) } else { self.queue.push(found) };
        self.note(to, pushed);
    }

    /// Puts a completion into the queue for which nothing was promised; false if it must wait for room.
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

    /// A completion that was promised nothing is lost. The queue is reported as one that fires, since its other users fail, too.
    #[cold]
    fn on_no_room(&mut self, to: &mut Notices) {
        if !self.promises && !self.is_overrun {
            self.is_overrun = true;
            to.fired.push(Arc::clone(&self.queue));
        }
    }
}
