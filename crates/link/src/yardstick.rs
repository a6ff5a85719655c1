//! Bare baselines for links: the least work by which a program can exchange messages over the same
//! kernel interface. They have no protocol, checksum or engine.

pub mod packet;
pub mod shm;
pub mod xdp;
