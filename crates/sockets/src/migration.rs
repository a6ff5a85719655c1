//! Decides when one end of a connection moves to the edge, and when it returns to TCP. Has no I/O.

pub(crate) mod attempts;
pub(crate) mod homing;
pub(crate) mod life;
pub(crate) mod machine;
pub(crate) mod offer;
