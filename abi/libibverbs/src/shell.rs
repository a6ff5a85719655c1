//! C structures that are followed by state of the library.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use verbs::Error;

use crate::layout::{
    ibv_ah, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_dm, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_srq, ibv_td, verbs_context,
};

/// A C structure that programs access, followed by state that only the library accesses. Programs
/// have pointers to the C structure.
#[repr(C)]
pub(crate) struct Shell<C, T> {
    c: C,
    /// False if the object is destroyed.
    is_alive: AtomicBool,
    ours: ManuallyDrop<T>,
}

impl<C, T> Shell<C, T> {
    /// Allocates a shell. Its address does not change until [`Shell::free`].
    pub(crate) fn make(c: C, ours: T) -> *mut C {
        let (is_alive, ours) = (AtomicBool::new(true), ManuallyDrop::new(ours));
        Box::into_raw(Box::new(Self { c, is_alive, ours })).cast()
    }

    /// Returns the library's state. Returns an error if the pointer is null, or if the object is
    /// destroyed and its shell is still kept (see [`DESTROYED_KEPT`]).
    ///
    /// # Safety
    /// The pointer must be null, or come from [`Shell::make`] with the same types. The shell must
    /// not be freed while the reference is used. If the shell was freed before, at most
    /// [`DESTROYED_KEPT`] shells may have been freed after it.
    #[inline]
    pub(crate) unsafe fn ours<'a>(pointer: *const C, what: &str) -> Result<&'a T, Error> {
        if pointer.is_null() {
            return Err(Error::Invalid(format!("there is no {what}")));
        }
        // SAFETY: the caller meets the requirements of this function. Other threads write only to
        // the C structure and to atomics.
        let (is_alive, ours) = unsafe {
            let whole = pointer.cast::<Self>();
            (&(*whole).is_alive, &raw const (*whole).ours)
        };
        if !is_alive.load(Ordering::Acquire) {
            return Err(Error::Invalid(format!("the {what} was destroyed")));
        }
        // SAFETY: the state exists as long as the shell is alive.
        Ok(unsafe { &*ours })
    }

    /// Drops the library's state. Keeps the shell itself for some time, because some programs
    /// destroy an object twice.
    ///
    /// # Safety
    /// The pointer must come from [`Shell::make`] with the same types. No thread may use the
    /// library's state any more.
    pub(crate) unsafe fn free(pointer: *mut C) {
        let whole = pointer.cast::<Self>();
        // SAFETY: the caller meets the requirements of this function.
        if unsafe { &(*whole).is_alive }.swap(false, Ordering::AcqRel) {
            // SAFETY: only this call has found the shell alive, so the state is dropped once.
            unsafe { ManuallyDrop::drop(&mut (*whole).ours) };
            keep(Destroyed {
                structure: whole.cast(),
                free: |structure| {
                    // SAFETY: [`Shell::make`] allocated the structure with `Box::new`. The
                    // library's state is already dropped.
                    drop(unsafe { Box::from_raw(structure.cast::<Self>()) });
                },
            });
        }
    }
}

/// The shell of a destroyed object.
struct Destroyed {
    structure: *mut c_void,
    free: fn(*mut c_void),
}

// SAFETY: a destroyed shell has one owner, and any thread may free it.
unsafe impl Send for Destroyed {}

/// Keeps a shell. If more than [`DESTROYED_KEPT`] shells are kept, frees the oldest one.
fn keep(destroyed: Destroyed) {
    static KEPT: Mutex<VecDeque<Destroyed>> = Mutex::new(VecDeque::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(destroyed);
    if kept.len() > DESTROYED_KEPT
        && let Some(oldest) = kept.pop_front()
    {
        (oldest.free)(oldest.structure);
    }
}

/// Maximum number of shells that are kept after their objects are destroyed. 4096 shells of at most
/// 1 KiB are 4 MiB.
const DESTROYED_KEPT: usize = 4096;

pub(crate) type Context = Shell<verbs_context, crate::device::Opened>;
pub(crate) type Domain = Shell<ibv_pd, crate::memory::Domain>;
pub(crate) type ThreadDomain = Shell<ibv_td, crate::memory::ThreadDomain>;
pub(crate) type Region = Shell<ibv_mr, crate::memory::Region>;
pub(crate) type Window = Shell<ibv_mw, crate::memory::Window>;
pub(crate) type DeviceMemory = Shell<ibv_dm, crate::device_memory::DeviceMemory>;
pub(crate) type Channel = Shell<ibv_comp_channel, crate::completion::Channel>;
/// All completion queues are extended ones, so that polling need not distinguish two kinds.
pub(crate) type Completions = Shell<ibv_cq_ex, crate::completion::Completions>;
pub(crate) type Shared = Shell<ibv_srq, crate::shared::Shared>;
pub(crate) type Pair = Shell<ibv_qp_ex, crate::pair::Pair>;
pub(crate) type Address = Shell<ibv_ah, crate::address::Address>;

/// Returns the library's state of a completion queue, which may be extended or not.
///
/// # Safety
/// The requirements are those of [`Shell::ours`].
pub(crate) unsafe fn completions<'a>(
    queue: *const ibv_cq,
) -> Result<&'a crate::completion::Completions, Error> {
    // SAFETY: the caller meets the requirements of this function. The library creates all queues as
    // extended ones.
    unsafe { Completions::ours(queue.cast(), "completion queue") }
}

/// Returns the library's state of a queue pair, which may be extended or not.
///
/// # Safety
/// The requirements are those of [`Shell::ours`].
pub(crate) unsafe fn pair<'a>(pair: *const ibv_qp) -> Result<&'a crate::pair::Pair, Error> {
    // SAFETY: the caller meets the requirements of this function. The library creates all queue
    // pairs as extended ones.
    unsafe { Pair::ours(pair.cast(), "queue pair") }
}

/// Adds to an event counter in a C structure. Programs read the counter, and several threads may
/// add to it.
///
/// # Safety
/// The counter must exist, and only this function may write to it.
pub(crate) unsafe fn count(counter: *mut u32, events: u32) {
    // SAFETY: the caller meets the requirements of this function. Fields of the structure are
    // aligned.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(events, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_destroyed_object_is_an_error_and_its_state_is_dropped() {
        let ours = Arc::new(7);
        let made = Shell::make(0_u64, Arc::clone(&ours));
        // SAFETY: created just above.
        let found = unsafe { Shell::<u64, Arc<i32>>::ours(made, "thing") };
        assert!(found.is_ok_and(|found| **found == 7));
        // SAFETY: `make` created the object above, and the test has no other reference to it.
        unsafe { Shell::<u64, Arc<i32>>::free(made) };
        assert_eq!(Arc::strong_count(&ours), 1);
        // SAFETY: the object was destroyed just above, so its shell is still kept.
        let found = unsafe { Shell::<u64, Arc<i32>>::ours(made, "thing") };
        assert_eq!(found, Err(Error::Invalid("the thing was destroyed".into())));
        // SAFETY: its shell is still kept, so a second destruction is allowed.
        unsafe { Shell::<u64, Arc<i32>>::free(made) };
        assert_eq!(Arc::strong_count(&ours), 1);
    }
}
