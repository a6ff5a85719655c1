//! What the library counts.
