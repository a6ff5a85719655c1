//! Access to the program's memory for one turn of the engine.

use std::cell::OnceCell;

use mem::{MemoryAccess, MemoryTable};

/// The turn's access to memory regions, begun when it is first needed, so that a poll that finds
/// nothing does not pay for it.
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
