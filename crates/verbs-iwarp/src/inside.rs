//! Whether the calling thread makes a turn of the machine.

use std::cell::Cell;

/// Marks the calling thread as inside a turn, until this value is dropped. Code that runs inside a
/// turn must not wait for another turn.
pub(crate) struct Inside(bool);

impl Inside {
    pub(crate) fn enter() -> Self {
        Self(IS_INSIDE.replace(true))
    }

    /// Returns whether the calling thread makes a turn.
    pub(crate) fn is_here() -> bool {
        IS_INSIDE.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(self.0);
    }
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}
