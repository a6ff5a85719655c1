//! Ends a runtime: in the call that stops or drops it, or on a background thread.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use link::start_thread;

use crate::exit;
use crate::runtime::{Runtime, lock};

impl Runtime {
    /// Starts a background thread that runs `last` and then drops the runtime. Returns at once.
    /// Meant for a caller that must not wait for peers. The runtime must not be used after this
    /// call. If no thread can be started, the runtime ends at once, without `last`.
    pub fn stop_later(&self, last: impl FnOnce(&Self) + Send + 'static) {
        if self.check_process().is_err() || self.is_handed_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let thread = Mutex::new(lock(&self.thread).take());
        let (shared, is_handed_over) = (Arc::clone(&self.shared), AtomicBool::new(false));
        let rest = Self { shared, thread, is_handed_over };
        // If no thread can be started, this drops the closure and the runtime that it holds.
        let _no_thread = start_thread("ethernot-end", move || {
            last(&rest);
            drop(rest);
        });
    }

    /// Sends pending acknowledgements and stops the progress thread. Close connections before this
    /// call. After it, the endpoint makes progress only inside calls.
    pub fn stop(&self) {
        if self.shared.home.check().is_err() || self.shared.cell.is_poisoned() {
            return;
        }
        let parting = self.shared.command(|driver, _host, _now, _memory| driver.hasten());
        debug_assert!(parting.is_ok(), "checked above");
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        let Some(thread) = lock(&self.thread).take() else { return };
        let thread = ManuallyDrop::into_inner(thread);
        thread.thread().unpark();
        self.shared.host.sleeper.call();
        // If the progress thread itself makes this call, do not join the thread. The thread ends
        // when it sees the flag.
        if thread.thread().id() != thread::current().id() {
            // If the thread panicked, the panic hook has already reported the panic.
            drop(thread.join());
        }
    }
}

impl Drop for Runtime {
    /// Does nothing in a forked child, because the progress thread does not exist there.
    fn drop(&mut self) {
        if *self.is_handed_over.get_mut() {
            return;
        }
        self.stop();
        if self.shared.home.check().is_err() {
            return;
        }
        exit::dismiss(&self.shared);
        if !self.shared.cell.is_poisoned() {
            let host = &self.shared.host;
            let given_up = self
                .shared
                .command(|driver, host, _now, _memory| driver.retiring.give_up(&host.retired));
            debug_assert!(given_up.is_ok(), "checked above");
            host.retired.deregister(&host.memory);
        }
    }
}
