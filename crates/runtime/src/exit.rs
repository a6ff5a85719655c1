//! At the end of the process, peers are told: `exit` drops nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::runtime::Shared;

/// The endpoints of this process.
type Living = Mutex<Vec<Weak<Shared>>>;

/// Has peers told when the process exits, of endpoints that are started later. Handlers that are registered with
/// `atexit` after this call come before that, and find the connections as they were. Without it, starting the first
/// endpoint does the same.
pub fn tell_peers_at_exit() {
    if !IS_REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function without captured state. Failure (no memory) leaves peers to
        // find out by themselves, as they do without this call.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Has peers told when the process exits while the endpoint is there.
pub(crate) fn remember(shared: &Arc<Shared>) {
    tell_peers_at_exit();
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
            // SAFETY: made above, and nobody has seen it; the other was leaked here by another thread.
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

static LIVING: AtomicPtr<Living> = AtomicPtr::new(ptr::null_mut());
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
