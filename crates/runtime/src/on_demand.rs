//! What a device runs, such as a runtime: started when a call first needs it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::fork::{Forked, forks};
use crate::park::Interest;
use crate::runtime::Runtime;

/// What a device runs. The first call that needs it starts it, so a program that only lists devices
/// starts no threads and opens no sockets.
///
/// A forked child cannot use what its parent has started. If the parent has started nothing before
/// the fork, the child may start an instance of its own.
#[derive(Debug)]
pub struct OnDemand<I> {
    instance: OnceLock<Arc<I>>,
    starting: Mutex<()>,
    /// Identifies the process that started the instance: the value of [`forks`] in that process,
    /// plus one. 0 if nothing is started.
    started_in: AtomicU32,
}

impl<I> Default for OnDemand<I> {
    fn default() -> Self {
        Self { instance: OnceLock::new(), starting: Mutex::new(()), started_in: AtomicU32::new(0) }
    }
}

impl<I> OnDemand<I> {
    /// Checks that the caller may use the instance: nothing is started, or the calling process has
    /// started it. Costs two loads.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child of the process that started the instance.
    pub fn check(&self) -> Result<(), Forked> {
        let started_in = self.started_in.load(Ordering::Acquire);
        if started_in == 0 || started_in == forks() + 1 { Ok(()) } else { Err(Forked) }
    }

    /// Returns the instance. Starts it by `start` if necessary. Threads that call this at the same
    /// time wait for the one that starts it. After a failed start, the next call tries again.
    ///
    /// # Errors
    /// Returns the error of [`OnDemand::check`], converted by `forked`, or the error of `start`.
    pub fn get_or_start<E>(
        &self,
        forked: impl FnOnce(Forked) -> E,
        start: impl FnOnce() -> Result<Arc<I>, E>,
    ) -> Result<&Arc<I>, E> {
        self.check().map_err(forked)?;
        if let Some(instance) = self.instance.get() {
            return Ok(instance);
        }
        // Set this before the lock is taken. Then a child that is forked while the lock is held
        // sees that its parent has started the instance, and does not take the lock.
        self.started_in.store(forks() + 1, Ordering::Release);
        let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(instance) = self.instance.get() {
            return Ok(instance);
        }
        let started = start();
        if started.is_err() {
            self.started_in.store(0, Ordering::Release);
        }
        let started = started?;
        Ok(self.instance.get_or_init(|| started))
    }

    /// Returns the instance, if it is started.
    pub fn running(&self) -> Option<&Arc<I>> {
        self.instance.get()
    }
}

/// What each device does with its runtime. These functions do nothing if the instance is not
/// started, and in a forked child, which has no threads and nothing to send.
impl<I: AsRef<Runtime>> OnDemand<I> {
    /// Makes progress once ([`Runtime::poll`]), if `is_usable` returns true for the instance.
    pub fn drive(&self, is_usable: impl FnOnce(&I) -> bool) {
        if let Some(instance) = self.running().filter(|instance| is_usable(instance)) {
            let _forked = (**instance).as_ref().poll();
        }
    }

    /// Waits for news ([`Runtime::wait_for_news`]). Returns at once if `is_usable` returns false for
    /// the instance, because no news arrives then.
    pub fn wait(
        &self,
        longest: Duration,
        is_usable: impl FnOnce(&I) -> bool,
        ready: &mut dyn FnMut() -> bool,
    ) {
        if let Some(instance) = self.running().filter(|instance| is_usable(instance)) {
            (**instance).as_ref().wait_for_news(longest, ready);
        }
    }

    /// Sends the work whose doorbells were rung for later ([`Runtime::ring_deferred`]).
    pub fn ring_deferred(&self) {
        if let Some(instance) = self.running() {
            let _forked = (**instance).as_ref().ring_deferred();
        }
    }

    /// Wakes the threads that wait in the runtime ([`Runtime::wake_waiting`]).
    pub fn wake_waiting(&self) {
        if let Some(instance) = self.running() {
            (**instance).as_ref().wake_waiting();
        }
    }

    /// Leaves the links to the progress thread ([`Runtime::leave_links`]).
    pub fn leave_links(&self) {
        if let Some(instance) = self.running() {
            let _forked = (**instance).as_ref().leave_links();
        }
    }
}

impl Runtime {
    /// Waits until `ready` returns true, but no longer than `longest`. Calls `ready` when there is
    /// news ([`Interest::News`]). If `ready` still returns false, leaves the links to the progress
    /// thread, which drives the runtime while the caller waits in another way. Returns at once in a
    /// forked child.
    pub fn wait_for_news(&self, longest: Duration, ready: &mut dyn FnMut() -> bool) {
        let is_ready = || ready().then_some(());
        if let Ok(None) = self.wait(Interest::News, Some(longest), is_ready) {
            let _forked = self.leave_links();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_need_an_instance_at_once_get_the_same() {
        let (on_demand, starts) = (OnDemand::default(), AtomicU32::new(0));
        let get = || {
            let start = || Ok(Arc::new(starts.fetch_add(1, Ordering::Relaxed)));
            Arc::clone(on_demand.get_or_start(|forked| forked, start).expect("it starts"))
        };
        assert!(on_demand.running().is_none());
        std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(get));
            assert!(threads.into_iter().all(|thread| *thread.join().expect("no panic") == 0));
        });
        assert_eq!(starts.load(Ordering::Relaxed), 1);
        assert!(on_demand.running().is_some());
    }

    #[test]
    fn an_instance_that_did_not_start_is_started_again() {
        let on_demand = OnDemand::default();
        let forked = |_| "forked";
        assert_eq!(on_demand.get_or_start(forked, || Err("no room")), Err("no room"));
        assert_eq!(on_demand.check(), Ok(()));
        let started = on_demand.get_or_start(forked, || Ok(Arc::new(7)));
        assert_eq!(started, Ok(&Arc::new(7)));
    }
}
