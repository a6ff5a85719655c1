//! Atomics and locks for the send and receive halves of a stream. A thread of the program shares
//! these halves with the thread inside the engine. The types come from the standard library; in
//! models they come from loom.

#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(not(loom))]
pub(crate) use crate::lock::lock;

#[cfg(loom)]
pub(crate) use loom::sync::Mutex;

#[cfg(loom)]
pub(crate) use self::fenced::{AtomicBool, AtomicU64};

/// Locks a mutex of loom, like [`crate::lock::lock`] locks a mutex of the standard library.
#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Atomics for loom, with fences. Loom treats sequentially consistent accesses as weaker than they
/// are, but models sequentially consistent fences correctly. Therefore a fence follows each
/// sequentially consistent store and orders it before later loads. Compilers emit similar code for
/// x86-64. Loads have no fence. With fences at loads, a model could not detect that a store has too
/// weak an ordering.
#[cfg(loom)]
mod fenced {
    use loom::sync::atomic::{self, Ordering, fence};

    macro_rules! fenced {
        ($name:ident of $content:ty: $($call:ident -> $result:ty),+) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(atomic::$name);

            impl $name {
                #[inline]
                pub(crate) fn load(&self, order: Ordering) -> $content {
                    self.0.load(order)
                }

                $(pub(crate) fn $call(&self, value: $content, order: Ordering) -> $result {
                    let result = self.0.$call(value, order);
                    if order == Ordering::SeqCst {
                        fence(Ordering::SeqCst);
                    }
                    result
                })+
            }
        };
    }

    fenced!(AtomicBool of bool: store -> ());
    fenced!(AtomicU64 of u64: store -> (), swap -> u64, fetch_max -> u64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(atomic::AtomicU64::new(value))
        }
    }
}
