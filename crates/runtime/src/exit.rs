//! Notifies peers at the end of the process. Without this, a process would end without notifying
//! its peers, because `exit` drops no value.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::driver::{Caller, Unsent};
use crate::runtime::{ROUNDS_INLINE, Shared, lock};

/// All endpoints of this process.
type Living = Mutex<Vec<Weak<Shared>>>;

/// Makes the process notify its peers when it exits, including peers of endpoints that start later.
/// Handlers that the program registers with `atexit` after this call run before the notification,
/// while the connections are still open. If the program does not make this call, the start of the
/// first endpoint makes it.
pub fn notify_peers_at_exit() {
    if !IS_REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function without captured state. If there is no memory to
        // register it, the process exits without notifying peers, as it would without this call.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Waits until other threads have sent the work that was posted and
/// [deferred](crate::Runtime::ring), but for at most 20 ms for each endpoint. Meant for a process
/// that is about to end by `_exit`. The calling thread sends nothing itself, because it may be in a
/// signal handler. In a forked child, no thread sends anything.
pub fn send_before_end() {
    // SAFETY: the pointer is null, or points to the box that `living` leaked.
    let Some(living) = (unsafe { LIVING.load(Ordering::Acquire).as_ref() }) else { return };
    // Do not wait for the lock: this thread may be in a signal handler, and the interrupted code
    // may hold the lock. Only code that starts or ends an endpoint holds it.
    let Ok(living) = living.try_lock() else { return };
    for shared in living.iter().filter_map(Weak::upgrade) {
        if shared.home.check().is_ok() && !shared.cell.is_poisoned() {
            shared.wait_for_sender();
        }
        // Do not drop the endpoint here, because other threads may still use it.
        std::mem::forget(shared);
    }
}

/// Adds an endpoint to the list of endpoints whose peers are notified when the process exits.
pub(crate) fn remember(shared: &Arc<Shared>) {
    notify_peers_at_exit();
    let mut living = living().lock().unwrap_or_else(PoisonError::into_inner);
    living.push(Arc::downgrade(shared));
}

/// Removes an endpoint that ends before the process does.
pub(crate) fn dismiss(shared: &Arc<Shared>) {
    let mut living = living().lock().unwrap_or_else(PoisonError::into_inner);
    living.retain(|known| !ptr::eq(known.as_ptr(), Arc::as_ptr(shared)));
}

/// Empties the list in a forked child. Does not take the lock, because a thread of the parent may
/// have held it during the fork.
pub(crate) fn forget() {
    LIVING.store(ptr::null_mut(), Ordering::Release);
}

fn living() -> &'static Living {
    let known = LIVING.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or points to the box that was leaked below.
    if let Some(living) = unsafe { known.as_ref() } {
        return living;
    }
    let new = Box::into_raw(Box::default());
    match LIVING.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `new` was made above, and is never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: `new` was made above, and no other thread has seen it; another thread leaked
            // `other` here.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

extern "C" fn at_exit() {
    // SAFETY: the pointer is null, or points to the box that `living` leaked.
    let Some(living) = (unsafe { LIVING.load(Ordering::Acquire).as_ref() }) else { return };
    let living = std::mem::take(&mut *living.lock().unwrap_or_else(PoisonError::into_inner));
    let living: Vec<_> = living.iter().filter_map(Weak::upgrade).collect();
    // A panic must not change how the process ends.
    let _reported = catch_unwind(AssertUnwindSafe(|| Shared::part(&living)));
    // Do not drop the endpoints here, because other threads may still use them.
    std::mem::forget(living);
}

impl Shared {
    /// Ends these endpoints, because the process is about to end: sends posted work, and closes all
    /// connections and machines (protocols beside the engine). Waits until the peers have
    /// acknowledged the work and the close, but for at most [`PARTING`].
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

    /// Sends posted work and waits until peers have acknowledged it. Some work may wait for peers
    /// whose addresses are not known yet. Ends [`LINGERING`] after all addresses are known, or
    /// [`MEETING`] after `began`, whichever is earlier, even if work is left.
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

    /// Waits until another thread has taken and sent the deferred work.
    fn wait_for_sender(&self) {
        let mut left = SENDING;
        loop {
            // If this thread can enter the cell, the turn that took the work has ended.
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

    /// Makes progress. Returns whether a peer still has to be notified that a connection is closed.
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

/// Longest time that the end of a process waits for peers. This is a few round trips over any
/// network, and too short for a user to notice.
const PARTING: Duration = Duration::from_millis(100);

/// The part of [`PARTING`] in which the process waits for acknowledgements before it closes
/// connections. A peer may acknowledge late because its process waits for a processor.
const LINGERING: Duration = Duration::from_millis(20);

/// The part of [`PARTING`] in which the process waits for peers whose addresses are not known yet.
const MEETING: Duration = Duration::from_millis(50);

/// Longest time that a process which ends by `_exit` waits for the thread that sends.
const SENDING: Duration = Duration::from_millis(20);

/// Interval between the checks during [`SENDING`]. A turn takes a few microseconds.
const SENDING_LOOK: Duration = Duration::from_micros(50);

/// Longest interval between checks for acknowledgements of peers, in nanoseconds.
const PARTING_LOOK_NS: u64 = 1_000_000;

static LIVING: AtomicPtr<Living> = AtomicPtr::new(ptr::null_mut());
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
