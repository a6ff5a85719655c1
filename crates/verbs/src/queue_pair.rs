//! Queue pairs.

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {}
