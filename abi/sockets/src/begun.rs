//! Counts the program's open connections that have begun to move from TCP to the edge. If there are
//! none, the kernel handles all calls that wait for descriptors.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Records whether a connection is included in the count.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    is_counted: AtomicBool,
}

impl Begun {
    /// Counts a connection that begins to move to the edge.
    pub(crate) fn count(&self) {
        if !self.is_counted.swap(true, Ordering::SeqCst) {
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Removes a connection from the count, because it stays on TCP, or because the program has
    /// closed its last descriptor number.
    pub(crate) fn end(&self) {
        if self.is_counted.swap(false, Ordering::SeqCst) {
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns true if at least one connection is in the count: it has begun to move and is not closed.
#[inline]
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

/// Resets the count in a forked child, because the child has inherited the parent's count.
pub(crate) fn forget_in_child() {
    COUNT.store(0, Ordering::SeqCst);
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_once_from_its_beginning_to_its_end() {
        assert!(!is_any());
        let (one, other) = (Begun::default(), Begun::default());
        one.count();
        one.count();
        other.count();
        one.end();
        one.end();
        assert!(is_any());
        drop(other);
        assert!(!is_any());
    }
}
