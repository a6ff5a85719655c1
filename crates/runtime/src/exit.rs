//! At the end of the process, peers are notified: `exit` drops nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::driver::{Caller, Unsent};
use crate::runtime::{ROUNDS_INLINE, Shared, lock};

/// The endpoints of this process.
type Living = Mutex<Vec<Weak<Shared>>>;

/// Notifies peers when the process exits, for endpoints that are started later. Handlers that are registered with
/// `atexit` after this call run before that, and find the connections as they were. Without it, starting the first
/// endpoint does the same.
pub fn notify_peers_at_exit() {
    if !IS_REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function without captured state. Failure (no memory) leaves peers to
        // find out by themselves, as they do without this call.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Sends work that was posted and [deferred](crate::Runtime::ring), before the process ends by `_exit`. Waits for a
/// thread that sends it, for 20 ms at most: the calling thread may be in a signal handler, and does nothing but wait.
/// In a forked child nothing is sent.
pub fn send_before_end() {
    // SAFETY: null, or what was leaked in `living`.
    let Some(living) = (unsafe { LIVING.load(Ordering::Acquire).as_ref() }) else { return };
    // The thread that has the lock starts an endpoint or ends one.
    let Ok(living) = living.try_lock() else { return };
    for shared in living.iter().filter_map(Weak::upgrade) {
        if shared.home.check().is_ok() && !shared.cell.is_poisoned() {
            shared.wait_for_sender();
        }
        // Not to be dropped here.
        std::mem::forget(shared);
    }
}

/// Notifies peers when the process exits while the endpoint is there.
pub(crate) fn remember(shared: &Arc<Shared>) {
    notify_peers_at_exit();
    let mut living = living().lock().unwrap_or_else(PoisonError::into_inner);
    living.push(Arc::downgrade(shared));
}

/// This one ends in another way.
pub(crate) fn dismiss(shared: &Arc<Shared>) {
    let mut living = living().lock().unwrap_or_else(PoisonError::into_inner);
    living.retain(|known| !ptr::eq(known.as_ptr(), Arc::as_ptr(shared)));
}

/// In a forked child there is none; the parent's lock may be held for ever.
pub(crate) fn forget() {
    LIVING.store(ptr::null_mut(), Ordering::Release);
}

fn living() -> &'static Living {
    let known = LIVING.load(Ordering::Acquire);
    // SAFETY: null, or what was leaked below.
    if let Some(living) = unsafe { known.as_ref() } {
        return living;
    }
    let new = Box::into_raw(Box::default());
    match LIVING.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: made above, and no other thread has seen it; the other was leaked here by another thread.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

extern "C" fn at_exit() {
    // SAFETY: null, or what was leaked in `living`.
    let Some(living) = (unsafe { LIVING.load(Ordering::Acquire).as_ref() }) else { return };
    let living = std::mem::take(&mut *living.lock().unwrap_or_else(PoisonError::into_inner));
    let living: Vec<_> = living.iter().filter_map(Weak::upgrade).collect();
    // A panic must not end the process in another way than the program has asked for.
    let _reported = catch_unwind(AssertUnwindSafe(|| Shared::part(&living)));
    // What other threads still use is not to be dropped here.
    std::mem::forget(living);
}

impl Shared {
    /// Closes the connections of these endpoints and their machines, and waits until their peers have heard of it and of all
    /// that was delivered: for [`PARTING`] at most, as the process is about to end.
    fn part(endpoints: &[Arc<Self>]) {
        let is_ours = |endpoint: &&Arc<Self>| endpoint.home.check().is_ok();
        let mut parting: Vec<&Arc<Self>> = endpoints.iter().filter(is_ours).collect();
        let began = std::time::Instant::now();
        for endpoint in &parting {
            endpoint.linger(began);
        }
        for endpoint in &parting {
            let host = &endpoint.host;
            lock(&host.commands).push(Box::new(|driver, _host, now, _memory| {
                driver.engine.close_all(now);
                driver.machines.close(now);
                driver.hasten();
            }));
            host.has_commands.store(true, Ordering::Release);
        }
        loop {
            parting.retain(|endpoint| endpoint.is_parting());
            let Some(endpoint) = parting.first() else { return };
            if began.elapsed() >= PARTING {
                return;
            }
            endpoint.host.sleeper.sleep(Some(PARTING_LOOK_NS));
        }
    }

    /// Sends what was posted, and waits until peers have acknowledged it: for [`LINGERING`] at most after the last of those
    /// that work waits for is found, and until [`MEETING`] after the begin in any case.
    fn linger(&self, began: std::time::Instant) {
        let mut is_sent = false;
        let mut unsent = Unsent::Outstanding;
        let mut met_at = began;
        loop {
            if self.cell.is_poisoned() {
                return;
            }
            if let Some(inside) = self.cell.enter_or_announce() {
                inside.drive(ROUNDS_INLINE, |driver| {
                    if !std::mem::replace(&mut is_sent, true) {
                        driver.send_out_all(&self.host);
                    }
                    let more = driver.turn(&self.host, Caller::Watch).more;
                    unsent = driver.unsent(&self.host);
                    more
                });
            }
            if unsent == Unsent::AwaitsPeers {
                met_at = std::time::Instant::now();
            }
            let is_late = met_at.elapsed() >= LINGERING || began.elapsed() >= MEETING;
            if unsent == Unsent::Nothing || is_late {
                return;
            }
            self.host.sleeper.sleep(Some(PARTING_LOOK_NS / 8));
        }
    }

    /// Waits until a thread has taken and sent what was deferred.
    fn wait_for_sender(&self) {
        let mut left = SENDING;
        loop {
            // A turn has taken all, and has ended.
            if self.host.doorbells.is_empty() {
                if let Some(inside) = self.cell.try_enter() {
                    return inside.abandon();
                }
            } else {
                self.host.call_watch();
            }
            if left.is_zero() {
                return;
            }
            std::thread::sleep(SENDING_LOOK);
            left = left.saturating_sub(SENDING_LOOK);
        }
    }

    /// Makes progress; whether a peer has yet to hear that a connection is closed.
    fn is_parting(&self) -> bool {
        if self.cell.is_poisoned() {
            return false;
        }
        let Some(inside) = self.cell.enter_or_announce() else { return true };
        let mut is_closing = true;
        inside.drive(ROUNDS_INLINE, |driver| {
            let more = driver.turn(&self.host, Caller::Watch).more;
            is_closing = driver.engine.is_closing() || driver.machines.are_closing();
            more
        });
        is_closing
    }
}

/// How long the end of a process may wait for peers: some round trips over any network, and no more than
/// its user notices.
const PARTING: Duration = Duration::from_millis(100);

/// For how long of that the process waits for acknowledgements before it closes connections: the peer's process may wait for
/// its processor.
const LINGERING: Duration = Duration::from_millis(20);

/// For how long of that it waits for peers that are not found yet.
const MEETING: Duration = Duration::from_millis(50);

/// How long the end of a process by `_exit` may wait for the thread that sends.
const SENDING: Duration = Duration::from_millis(20);

/// How often it looks: a turn takes some microseconds.
const SENDING_LOOK: Duration = Duration::from_micros(50);

/// How often it looks whether they have heard, at least.
const PARTING_LOOK_NS: u64 = 1_000_000;

static LIVING: AtomicPtr<Living> = AtomicPtr::new(ptr::null_mut());
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
