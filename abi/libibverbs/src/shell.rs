//! Structures of C with what is ours behind them.

use verbs::Error;

use crate::layout::{
    ibv_ah, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_dm, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_srq, ibv_td,
};

/// A structure that programs know, and behind it what they do not see. Programs hold pointers to the first.
#[repr(C)]
pub(crate) struct Shell<C, T> {
    c: C,
    ours: T,
}

impl<C, T> Shell<C, T> {
    /// Makes one. It stays where it is until [`Shell::free`].
    pub(crate) fn make(c: C, ours: T) -> *mut C {
        Box::into_raw(Box::new(Self { c, ours })).cast()
    }

    /// What is ours of it.
    ///
    /// # Safety
    /// The pointer is null, or from [`Shell::make`] of the same types and not freed while the reference is used.
    pub(crate) unsafe fn ours<'a>(pointer: *const C, what: &str) -> Result<&'a T, Error> {
        if pointer.is_null() {
            return Err(Error::Invalid(format!("there is no {what}")));
        }
        // SAFETY: as said above; only the part of C is ever written to by others.
        Ok(unsafe { &(*pointer.cast::<Self>()).ours })
    }

    /// Ends it.
    ///
    /// # Safety
    /// The pointer is from [`Shell::make`] of the same types, and nobody uses it any more.
    pub(crate) unsafe fn free(pointer: *mut C) {
        // SAFETY: as said above.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
    }
}

pub(crate) type Domain = Shell<ibv_pd, crate::memory::Domain>;
pub(crate) type ThreadDomain = Shell<ibv_td, crate::memory::ThreadDomain>;
pub(crate) type Region = Shell<ibv_mr, crate::memory::Region>;
pub(crate) type Window = Shell<ibv_mw, crate::memory::Window>;
pub(crate) type DeviceMemory = Shell<ibv_dm, crate::device_memory::DeviceMemory>;
pub(crate) type Channel = Shell<ibv_comp_channel, crate::completion::Channel>;
/// Also those that are made as plain ones: whoever polls does not ask which it is.
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
