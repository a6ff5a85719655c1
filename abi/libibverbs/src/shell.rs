//! Structures of C with what is ours behind them.

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

/// A structure that programs know, and behind it what they do not see. Programs hold pointers to the first.
#[repr(C)]
pub(crate) struct Shell<C, T> {
    c: C,
    /// Not destroyed.
    is_alive: AtomicBool,
    ours: ManuallyDrop<T>,
}

impl<C, T> Shell<C, T> {
    /// Makes one. It stays where it is until [`Shell::free`].
    pub(crate) fn make(c: C, ours: T) -> *mut C {
        let (is_alive, ours) = (AtomicBool::new(true), ManuallyDrop::new(ours));
        Box::into_raw(Box::new(Self { c, is_alive, ours })).cast()
    }

    /// What is ours of it. It is an error if it was destroyed, unless that was long ago.
    ///
    /// # Safety
    /// The pointer is null, or from [`Shell::make`] of the same types, not freed while the reference is used, and not
    /// longer ago than [`DESTROYED_KEPT`] others.
    #[inline]
    pub(crate) unsafe fn ours<'a>(pointer: *const C, what: &str) -> Result<&'a T, Error> {
        if pointer.is_null() {
            return Err(Error::Invalid(format!("there is no {what}")));
        }
        // SAFETY: as said above; only the part of C is ever written to by others.
        let (is_alive, ours) = unsafe {
            let whole = pointer.cast::<Self>();
            (&(*whole).is_alive, &raw const (*whole).ours)
        };
        if !is_alive.load(Ordering::Acquire) {
            return Err(Error::Invalid(format!("the {what} was destroyed")));
        }
        // SAFETY: it is there, as it is alive.
        Ok(unsafe { &*ours })
    }

    /// Ends it. Its structure is kept for a while, as programs destroy things twice.
    ///
    /// # Safety
    /// The pointer is from [`Shell::make`] of the same types, and no thread uses our part of it any more.
    pub(crate) unsafe fn free(pointer: *mut C) {
        let whole = pointer.cast::<Self>();
        // SAFETY: as said above.
        if unsafe { &(*whole).is_alive }.swap(false, Ordering::AcqRel) {
            // SAFETY: this is the only one who found it alive.
            unsafe { ManuallyDrop::drop(&mut (*whole).ours) };
            keep(Destroyed {
                structure: whole.cast(),
                free: |structure| {
                    // SAFETY: it was made as such a box, and what was ours is dropped already.
                    drop(unsafe { Box::from_raw(structure.cast::<Self>()) });
                },
            });
        }
    }
}

/// The structure of something that was destroyed.
struct Destroyed {
    structure: *mut c_void,
    free: fn(*mut c_void),
}

// SAFETY: one owner has it, and any thread may free it.
unsafe impl Send for Destroyed {}

/// Keeps a structure, and frees the one that was kept for longest.
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

/// Structures that are kept after they were destroyed: 4096 of at most 1 KiB are 4 MiB.
const DESTROYED_KEPT: usize = 4096;

pub(crate) type Context = Shell<verbs_context, crate::device::Opened>;
pub(crate) type Domain = Shell<ibv_pd, crate::memory::Domain>;
pub(crate) type ThreadDomain = Shell<ibv_td, crate::memory::ThreadDomain>;
pub(crate) type Region = Shell<ibv_mr, crate::memory::Region>;
pub(crate) type Window = Shell<ibv_mw, crate::memory::Window>;
pub(crate) type DeviceMemory = Shell<ibv_dm, crate::device_memory::DeviceMemory>;
pub(crate) type Channel = Shell<ibv_comp_channel, crate::completion::Channel>;
/// Also those that are made as plain ones: polling does not ask which it is.
pub(crate) type Completions = Shell<ibv_cq_ex, crate::completion::Completions>;
pub(crate) type Shared = Shell<ibv_srq, crate::shared::Shared>;
pub(crate) type Pair = Shell<ibv_qp_ex, crate::pair::Pair>;
pub(crate) type Address = Shell<ibv_ah, crate::address::Address>;

/// A completion queue, of either name.
///
/// # Safety
/// As for [`Shell::ours`].
pub(crate) unsafe fn completions<'a>(
    queue: *const ibv_cq,
) -> Result<&'a crate::completion::Completions, Error> {
    // SAFETY: as the caller says; all are made as extended ones.
    unsafe { Completions::ours(queue.cast(), "completion queue") }
}

/// A queue pair, of either name.
///
/// # Safety
/// As for [`Shell::ours`].
pub(crate) unsafe fn pair<'a>(pair: *const ibv_qp) -> Result<&'a crate::pair::Pair, Error> {
    // SAFETY: as the caller says; all are made as extended ones.
    unsafe { Pair::ours(pair.cast(), "queue pair") }
}

/// Adds to a counter that programs read in a structure of theirs, and that several threads may add to.
///
/// # Safety
/// The counter is there, and all who write to it call this.
pub(crate) unsafe fn count(counter: *mut u32, events: u32) {
    // SAFETY: as the caller says; it is aligned as the field of a structure.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(events, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_was_destroyed_is_an_error_and_gone() {
        let ours = Arc::new(7);
        let made = Shell::make(0_u64, Arc::clone(&ours));
        // SAFETY: it was just made.
        let found = unsafe { Shell::<u64, Arc<i32>>::ours(made, "thing") };
        assert!(found.is_ok_and(|found| **found == 7));
        // SAFETY: `make` made it above, and the test has no other reference to it.
        unsafe { Shell::<u64, Arc<i32>>::free(made) };
        assert_eq!(Arc::strong_count(&ours), 1);
        // SAFETY: it was destroyed a moment ago.
        let found = unsafe { Shell::<u64, Arc<i32>>::ours(made, "thing") };
        assert_eq!(found, Err(Error::Invalid("the thing was destroyed".into())));
        // SAFETY: as above.
        unsafe { Shell::<u64, Arc<i32>>::free(made) };
        assert_eq!(Arc::strong_count(&ours), 1);
    }
}
