//! The numbers of the threads of a rank that use the memory.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dsm_protocol::ThreadNumber;

use crate::error::Error;

/// The numbers that no thread has. A process joins once, so there is one set of them.
static FREE: Mutex<Vec<u16>> = Mutex::new(Vec::new());

thread_local! {
    /// The number of this thread.
    static NUMBER: Cell<Option<u16>> = const { Cell::new(None) };
    /// Gives the number back when the thread ends.
    static GIVES_BACK: GivesBack = const { GivesBack };
}

struct GivesBack;

impl Drop for GivesBack {
    fn drop(&mut self) {
        if let Some(number) = NUMBER.take() {
            free().push(number);
        }
    }
}

/// Makes the numbers of `threads` threads available.
pub(crate) fn offer(threads: u16) {
    *free() = (0..threads).rev().collect();
}

/// Returns the number of the calling thread. A thread gets one when it first uses the memory, and
/// keeps it until it ends.
pub(crate) fn own(threads: u16) -> Result<ThreadNumber, Error> {
    if let Some(number) = NUMBER.get() {
        return Ok(ThreadNumber(number));
    }
    let number = free().pop().ok_or(Error::TooManyThreads(threads))?;
    NUMBER.set(Some(number));
    // A thread that ends, and uses the memory once more, keeps the number for ever.
    let _ends = GIVES_BACK.try_with(|_| ());
    Ok(ThreadNumber(number))
}

fn free() -> MutexGuard<'static, Vec<u16>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_have_different_numbers_and_give_them_back() {
        offer(2);
        let numbers = || {
            let both = std::sync::Barrier::new(2);
            let number = || {
                let number = own(2).unwrap();
                assert_eq!(own(2).unwrap(), number);
                both.wait();
                number.0
            };
            thread::scope(|scope| {
                let other = scope.spawn(number);
                let own = scope.spawn(number).join().unwrap();
                let mut numbers = [own, other.join().unwrap()];
                numbers.sort_unstable();
                numbers
            })
        };
        assert_eq!(numbers(), [0, 1]);
        assert_eq!(numbers(), [0, 1]);
        offer(0);
        assert!(matches!(thread::spawn(|| own(2)).join().unwrap(), Err(Error::TooManyThreads(2))));
    }
}
