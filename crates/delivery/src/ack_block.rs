//! What one link has received, as the wire carries it.

pub use wire_edge::{AckBlock, AckDelay};
