//! How a runtime ends: stopped, dropped, or by a thread of its own.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use link::start_thread;

use crate::exit;
use crate::runtime::{Runtime, lock};

impl Runtime {
    /// Starts a thread that does `last` and then ends the runtime, as dropping it does. For a caller that must not wait for
    /// peers; nothing may be called any more afterwards. If there is no thread to be had, the runtime ends at once.
    pub fn stop_later(&self, last: impl FnOnce(&Self) + Send + 'static) {
        if self.check_process().is_err() || self.is_handed_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let thread = Mutex::new(lock(&self.thread).take());
        let (shared, is_handed_over) = (Arc::clone(&self.shared), AtomicBool::new(false));
        let rest = Self { shared, thread, is_handed_over };
        // Without a thread, what it was to have is dropped, and the runtime with it.
        let _no_thread = start_thread("ethernot-end", move || {
            last(&rest);
            drop(rest);
        });
    }

    /// Sends the acknowledgements that are owed, and stops the progress thread. Connections should
    /// have been closed before; afterwards nothing happens any more but by calls.
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
        // It stops by itself if it is the one that stops the runtime.
        if thread.thread().id() != thread::current().id() {
            // A panic of the thread has been reported by the panic hook.
            drop(thread.join());
        }
    }
}

impl Drop for Runtime {
    /// In a forked child the thread does not exist, and nothing is done.
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
