//! Numbers that identify nodes, threads and pages.

use std::fmt;

/// The largest number of nodes. Ranks are below it.
pub const NODES_MAX: usize = 64;

/// The largest number of pages of a region: log entries have 24 bits for a page. 64 GiB.
pub const PAGES_MAX: u32 = 1 << 24;

/// A node, by its number from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Rank(pub u8);

impl Rank {
    /// Returns the rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rank {}", self.0)
    }
}

/// A thread of a node, by its number from 0 on that node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ThreadNumber(pub u16);

impl ThreadNumber {
    /// Returns the number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A page of the shared region, by its number from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PageNumber(pub u32);

impl PageNumber {
    /// Returns the number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PageNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "page {}", self.0)
    }
}
