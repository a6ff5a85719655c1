//! Moves one end of a connection to the edge and back to TCP. Decides without any I/O.

pub(crate) mod attempts;
pub(crate) mod homing;
pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod offer;
