//! A minimal executor: a thread that sleeps until its future is woken.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker that unparks the calling thread.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Runs a future on the calling thread.
pub(crate) fn block_on<R>(future: impl Future<Output = R>) -> R {
    block_on_with(&waker(), future)
}

/// Runs a future on the calling thread, which `waker` must unpark.
pub(crate) fn block_on_with<R>(waker: &Waker, future: impl Future<Output = R>) -> R {
    let mut future = pin!(future);
    let mut context = Context::from_waker(waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}
