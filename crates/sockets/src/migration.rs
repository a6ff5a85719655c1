//! How one end of a connection moves, and comes home: decided without any I/O.

pub(crate) mod attempts;
pub(crate) mod homing;
pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod offer;
