//! Settings of a node. They are equal on all nodes, apart from the rank.

use crate::identity::{NODES_MAX, PAGES_MAX, Rank};

/// How copies of pages become invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coherence {
    /// An acquire invalidates the pages that write notices name.
    Notices,
    /// An acquire invalidates all pages whose home is elsewhere. For comparison: Argo does so.
    SelfInvalidation,
}

/// Settings of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// This node.
    pub rank: Rank,
    /// Number of nodes, 1 to [`NODES_MAX`].
    pub nodes: u8,
    /// Threads of each node, at least 1.
    pub threads: u16,
    /// Pages of the region, at most [`PAGES_MAX`].
    pub pages: u32,
    /// Entries of the log of notices: a power of two. A node that has not read an entry when it is
    /// overwritten invalidates all pages.
    pub log_entries: u32,
    /// How copies become invalid.
    pub coherence: Coherence,
    /// Pages that a read fault fetches: 1, or for comparison a larger group of neighbours.
    pub fetch_pages: u32,
    /// Pages that a thread which reads page after page fetches at a time, at most; 1 if it fetches
    /// each page alone.
    pub read_ahead: u32,
    /// Pages whose reads are in flight, at most, unless threads wait for more. Single pages do not
    /// count.
    pub pages_in_flight: u32,
    /// Whether pages that were fetched between the last two barriers, and that the present barrier
    /// invalidates, are fetched without a fault.
    pub history: bool,
    /// Barriers in a row at which a page was written by one node alone, that is not its home,
    /// until the home moves to that node; 0 if homes move only on request.
    pub migrate_after: u8,
    /// Whether races are reported. Each home then has master copies of its pages.
    pub races: bool,
}

impl Config {
    /// Returns the settings of the node `rank` of `nodes` nodes with one thread each.
    pub const fn new(rank: Rank, nodes: u8, pages: u32) -> Self {
        Self {
            rank,
            nodes,
            threads: 1,
            pages,
            log_entries: 1 << 16,
            coherence: Coherence::Notices,
            fetch_pages: 1,
            read_ahead: 1024,
            // 1 MiB: more would not be in the cache any more when it is used.
            pages_in_flight: 256,
            history: true,
            migrate_after: 3,
            races: false,
        }
    }

    /// Returns whether the numbers are in their ranges.
    pub const fn is_valid(&self) -> bool {
        self.nodes > 0
            && self.nodes as usize <= NODES_MAX
            && self.rank.0 < self.nodes
            && self.threads > 0
            && self.pages <= PAGES_MAX
            && self.log_entries.is_power_of_two()
            && self.log_entries <= PAGES_MAX
            && self.fetch_pages > 0
            && self.read_ahead > 0
            && self.pages_in_flight > 0
    }
}
