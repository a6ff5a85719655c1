//! Access to the program's memory for one turn of the engine.

use std::cell::OnceCell;

use mem::{MemoryAccess, MemoryTable};

/// The access of a turn to memory regions. The turn begins the access when it first needs memory,
/// so that a poll which finds nothing does not pay for the access.
pub(crate) struct TurnAccess<'a> {
    table: &'a MemoryTable,
    begun: OnceCell<MemoryAccess<'a>>,
}

impl<'a> TurnAccess<'a> {
    #[inline]
    pub(crate) const fn new(table: &'a MemoryTable) -> Self {
        Self { table, begun: OnceCell::new() }
    }

    #[inline]
    pub(crate) fn begun(&self) -> &MemoryAccess<'a> {
        self.begun.get_or_init(|| self.table.access())
    }
}
